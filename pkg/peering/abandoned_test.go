package peering

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// Dying is a process that is killed a number of writes after it starts a rollout of node agents. Its locks remain.
type Dying struct {
	mu     sync.Mutex
	begun  bool
	Writes int
}

func (d *Dying) write(do func() error) error {
	d.mu.Lock()
	isDead := d.begun && d.Writes == 0
	if d.begun && !isDead {
		d.Writes--
	}
	d.mu.Unlock()
	if isDead {
		return ErrInjected
	}
	return do()
}

// Of returns a cluster as the process reaches it.
func (d *Dying) Of(w *Site) *kube.Cluster {
	c := *w.Cluster
	lockOr := func(obj client.Object, do func() error) error {
		d.mu.Lock()
		isAlive := !d.begun || d.Writes > 0
		d.mu.Unlock()
		if isLock(obj) && isAlive {
			return do()
		}
		return d.write(do)
	}
	c.Client = interceptor.NewClient(w.Client, interceptor.Funcs{
		Create: func(ctx context.Context, api client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			return lockOr(obj, func() error { return api.Create(ctx, obj, opts...) })
		},
		Update: func(ctx context.Context, api client.WithWatch, obj client.Object, opts ...client.UpdateOption) error {
			return lockOr(obj, func() error { return api.Update(ctx, obj, opts...) })
		},
		Patch: func(ctx context.Context, api client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			return d.write(func() error { return api.Patch(ctx, obj, patch, opts...) })
		},
		Apply: func(ctx context.Context, api client.WithWatch, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			err := d.write(func() error { return api.Apply(ctx, obj, opts...) })
			u, readErr := applied(obj)
			strategy, _, _ := unstructured.NestedString(u.Object, "spec", "updateStrategy", "type")
			if err == nil && readErr == nil && strategy == string(appsv1.OnDeleteDaemonSetStrategyType) {
				d.mu.Lock()
				defer d.mu.Unlock()
				d.begun = true
			}
			return errors.Join(err, readErr)
		},
		Delete: func(ctx context.Context, api client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			return lockOr(obj, func() error { return api.Delete(ctx, obj, opts...) })
		},
	})
	return &c
}

// IsRolledOut fails the test unless all node agents have the newest revision, and new ones will have it.
func (w *Site) IsRolledOut(t *testing.T) {
	t.Helper()
	ds, err := w.NodeAgents(t.Context())
	if err != nil || ds == nil {
		t.Fatal(ds, err)
	}
	if ds.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType {
		t.Errorf("the node agents of %s are left to be replaced by hand", w.Name)
	}
	newest := slices.MaxFunc(List[appsv1.ControllerRevisionList](t, w).Items, func(a, b appsv1.ControllerRevision) int { return int(a.Revision - b.Revision) })
	for _, pod := range List[corev1.PodList](t, w).Items {
		hash := appsv1.ControllerRevisionHashLabelKey
		if strings.HasPrefix(pod.Name, v1alpha1.NodeAgentName) && pod.Labels[hash] != newest.Labels[hash] {
			t.Errorf("pod %s is not of revision %s", pod.Name, newest.Name)
		}
	}
}

// UnusedKeys returns the generations of overlay keys that no link uses.
func (w *Site) UnusedKeys(t *testing.T) (out []int32) {
	t.Helper()
	used := map[int32]bool{}
	for _, p := range List[v1alpha1.PeeringList](t, w).Items {
		for _, plane := range p.Spec.Planes {
			used[plane.OverlayKeyGeneration] = true
		}
	}
	for _, s := range List[corev1.SecretList](t, w).Items {
		if g := manifests.OverlayGeneration(s.Name); g > 0 && !used[g] {
			out = append(out, g)
		}
	}
	return out
}

// Trio returns a, b and c. b and c are peered with a, which has several nodes.
func Trio(t *testing.T, o engine.Options) (a, b, c *Site) {
	t.Helper()
	a, b = unpeeredPair(t, 3)
	c = NewSite(t, "c", "10.244.0.0/16", "172.18.3.11")
	c.Peer = a
	MustPeer(t, a, b, o)
	MustPeer(t, a, c, engine.Options{})
	return a, b, c
}

// RollsOut are commands that replace node agents of a.
var RollsOut = map[string]func(ctx context.Context, a, c *kube.Cluster) error{
	"upgrade": func(ctx context.Context, a, _ *kube.Cluster) error {
		out, err := UpgradeAll(ctx, []*kube.Cluster{a}, Newer(), kube.Quiet{})
		for _, o := range out {
			err = errors.Join(err, o.Err)
		}
		return err
	},
	"rotate-keys": verbs["rotate-keys"],
	"peer":        verbs["peer"],
}

// A command is killed while it replaces node agents one by one. Any next command in the cluster completes the rollout within a minute.
func TestRollOutOfTheKilledIsCompleted(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	host := netip.MustParseAddr("192.0.2.7")
	next := map[string]func(ctx context.Context, a, b, c *kube.Cluster) error{
		"peer": func(ctx context.Context, a, b, _ *kube.Cluster) error {
			_, err := Peer(ctx, a, b, engine.Options{}, kube.Quiet{})
			return err
		},
		"unpeer":             func(ctx context.Context, a, b, _ *kube.Cluster) error { return verbs["unpeer"](ctx, a, b) },
		"unpeer of the same": func(ctx context.Context, a, _, c *kube.Cluster) error { return verbs["unpeer"](ctx, a, c) },
		"upgrade":            func(ctx context.Context, a, b, _ *kube.Cluster) error { return RollsOut["upgrade"](ctx, a, b) },
		"rotate-keys":        func(ctx context.Context, a, b, _ *kube.Cluster) error { return verbs["rotate-keys"](ctx, a, b) },
		"rotate-keys --psk-only": func(ctx context.Context, a, b, _ *kube.Cluster) error {
			_, err := Rotate(ctx, a, b, Rotation{PresharedOnly: true}, kube.Quiet{})
			return err
		},
		"expose-host": func(ctx context.Context, a, b, _ *kube.Cluster) error { return verbs["expose-host"](ctx, a, b) },
		"expose-host --remove": func(ctx context.Context, a, b, _ *kube.Cluster) error {
			_, err := HideHost(ctx, a, b, host, kube.Quiet{})
			return err
		},
	}
	type play struct {
		first, second string
		writes        int
	}
	var plays []play
	for _, first := range slices.Sorted(maps.Keys(RollsOut)) {
		for _, second := range slices.Sorted(maps.Keys(next)) {
			for writes := range 4 { // one pod is deleted on each of three nodes
				plays = append(plays, play{first, second, writes})
			}
		}
	}
	for _, p := range kubetest.Some(t, plays, 3, len(plays)) {
		t.Run(fmt.Sprintf("%s, %d pods were deleted, then %s", p.first, p.writes, p.second), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b, c := Trio(t, engine.Options{})
				d := &Dying{Writes: p.writes}
				if err := RollsOut[p.first](t.Context(), d.Of(a), c.Cluster); !errors.Is(err, ErrInjected) {
					t.Fatal(err)
				}
				if ds, err := a.NodeAgents(t.Context()); err != nil || ds.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType {
					t.Fatalf("it was not killed in the midst: %v", err)
				}
				begun := time.Now()
				if err := next[p.second](t.Context(), a.Cluster, b.Cluster, c.Cluster); err != nil {
					t.Error(err)
				}
				if took := time.Since(begun); took > time.Minute {
					t.Errorf("it took %s", took)
				}
				a.IsRolledOut(t)
				a.checkMounts(t)
				// A command for the same peering completes or removes what peer left incomplete.
				if left := a.UnusedKeys(t); len(left) > 0 && p.first != "peer" {
					t.Errorf("there are keys that no link has: %v", left)
				}
			})
		})
	}
}

// The agents are removed with the last peering, even if a rollout of them was not completed.
func TestUnpeerOfTheLastAfterAKilledRollOut(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	for first, do := range RollsOut {
		t.Run(first, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := pairOf(t, 2)
				if err := do(t.Context(), (&Dying{Writes: 1}).Of(a), b.Cluster); !errors.Is(err, ErrInjected) {
					t.Fatal(err)
				}
				if _, _, err := Unpeer(t.Context(), a.Cluster, b.Cluster, kube.Quiet{}); err != nil {
					t.Error(err)
				}
				if left := append(a.Ours(t), b.Ours(t)...); len(left) > 0 {
					t.Errorf("it leaves %v", left)
				}
			})
		})
	}
}

// Another command's rollout does not delay peer, whether that command is alive or was killed. Packets pass with the current agents.
func TestPeerWaitsForNoRollOutOfAnother(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	for _, writes := range kubetest.Some(t, []int{0, 1, 2}, 1, 3) {
		t.Run(fmt.Sprintf("waits for packets, %d pods were deleted", writes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b, c := Trio(t, engine.Options{Server: "id-of-b"})
				deaf := func(is bool) {
					b.Mu.Lock()
					defer b.Mu.Unlock()
					b.unreachable = is
				}
				deaf(true)
				begun := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				var others sync.WaitGroup
				others.Go(func() {
					time.Sleep(5 * time.Second)
					if _, err := Peer(ctx, (&Dying{Writes: writes}).Of(a), c.Cluster, engine.Options{Image: "image:3"}, kube.Quiet{}); !errors.Is(err, ErrInjected) {
						t.Errorf("the one that is killed: %v", err)
					}
					deaf(false)
				})
				if _, err := Peer(ctx, a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{}); err != nil {
					t.Error(err)
				}
				others.Wait()
				if took := time.Since(begun); took > time.Minute {
					t.Errorf("it took %s", took)
				}
				a.IsRolledOut(t)
				a.checkKeys(t)
			})
		})
	}
	t.Run("replaces node agents itself", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a, b, c := Trio(t, engine.Options{})
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
			defer cancel()
			var once sync.Once
			first := *a.Cluster
			first.Client = interceptor.NewClient(a.Client, interceptor.Funcs{
				Delete: func(ctx context.Context, api client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
					err := api.Delete(ctx, obj, opts...)
					if kube.KindName(obj) == "Pod" {
						once.Do(func() {
							if err := a.play(ctx, a.Raw); err != nil { // a pod as this command wants it exists
								t.Error(err)
							}
							if _, err := Peer(ctx, (&Dying{}).Of(a), c.Cluster, engine.Options{Image: "image:3"}, kube.Quiet{}); !errors.Is(err, ErrInjected) {
								t.Errorf("the one that is killed: %v", err)
							}
						})
					}
					return err
				},
			})
			begun := time.Now()
			if _, err := Peer(ctx, &first, b.Cluster, engine.Options{Image: "image:2"}, kube.Quiet{}); err != nil {
				t.Error(err)
			}
			if took := time.Since(begun); took > time.Minute {
				t.Errorf("it took %s", took)
			}
			a.IsRolledOut(t)
			a.checkKeys(t)
			if image := a.image(t); image != "image:2" {
				t.Errorf("the node agents have %s", image)
			}
		})
	})
}

// A command leaves the rollout to another one that is alive, and waits only until it knows that.
func TestRollOutOfTheLivingIsLeft(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b, c := Trio(t, engine.Options{})
		late := func(node string) {
			a.Mu.Lock()
			defer a.Mu.Unlock()
			a.late = node
		}
		late("a-1")
		var others sync.WaitGroup
		others.Go(func() {
			if _, err := Peer(t.Context(), a.Cluster, c.Cluster, engine.Options{Image: "image:3"}, kube.Quiet{}); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(30 * time.Second)
		begun := time.Now()
		if err := verbs["unpeer"](t.Context(), a.Cluster, b.Cluster); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took > 5*time.Second {
			t.Errorf("it took %s", took)
		}
		if ds, err := a.NodeAgents(t.Context()); err != nil || ds.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType {
			t.Errorf("the other one does not replace node agents any more: %v", err)
		}
		late("")
		others.Wait()
		a.IsRolledOut(t)
	})
}

// A rollout that cuts off nodes stops at the first group, even if it is retried. The command that retried it has done its own work.
func TestRollOutOfTheKilledLooksAtProbes(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b, c := Trio(t, engine.Options{})
		if err := RollsOut["upgrade"](t.Context(), (&Dying{}).Of(a), c.Cluster); !errors.Is(err, ErrInjected) {
			t.Fatal(err)
		}
		a.lossy = "image:2"
		for _, verb := range []string{"expose-host", "unpeer"} {
			if err := verbs[verb](t.Context(), a.Cluster, b.Cluster); err != nil {
				t.Error(err)
			}
			var lost []string
			for _, pod := range List[corev1.PodList](t, a).Items {
				if strings.HasPrefix(pod.Name, v1alpha1.NodeAgentName) && pod.Spec.Containers[0].Image == a.lossy {
					lost = append(lost, pod.Spec.NodeName)
				}
			}
			if len(lost) != 1 {
				t.Errorf("after %s, packets are lost on %v", verb, lost)
			}
		}
	})
}
