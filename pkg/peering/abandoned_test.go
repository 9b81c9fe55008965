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

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// Dying is a process that is killed a number of writes after it starts a rollout of node agents. Its locks remain.
type Dying struct {
	mu     sync.Mutex
	begun  bool
	Writes int
}

func (d *Dying) write(ctx context.Context, r *fakeapi.Request) error {
	d.mu.Lock()
	isDead := d.begun && d.Writes == 0
	if d.begun && !isDead && !r.IsLock() {
		d.Writes--
	}
	d.mu.Unlock()
	if isDead {
		return ErrInjected
	}
	return r.Send(ctx)
}

// Of returns a cluster as the process reaches it.
func (d *Dying) Of(w *Site) *kube.Cluster {
	return w.Through(func(ctx context.Context, r *fakeapi.Request) error {
		if r.Reads() || r.Sub != "" || r.Verb == "deletecollection" {
			return r.Send(ctx)
		}
		err := d.write(ctx, r)
		if u, ok := r.Object.(*unstructured.Unstructured); ok && r.Verb == "apply" && err == nil {
			strategy, _, _ := unstructured.NestedString(u.Object, "spec", "updateStrategy", "type")
			d.mu.Lock()
			defer d.mu.Unlock()
			d.begun = d.begun || strategy == string(appsv1.OnDeleteDaemonSetStrategyType)
		}
		return err
	})
}

// IsRolledOut fails the test unless all node agents have the newest revision, and new ones will have it.
func (w *Site) IsRolledOut(t *testing.T) {
	t.Helper()
	ds, err := w.ReadNodeAgents(t.Context())
	kit.FatalIf(t, err != nil || ds == nil, "%v %v", ds, err)
	kit.ErrorIf(t, ds.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType,
		"the node agents of %s are left to be replaced by hand", w.Name)
	newest := slices.MaxFunc(List[appsv1.ControllerRevisionList](t, w).Items, func(a, b appsv1.ControllerRevision) int { return int(a.Revision - b.Revision) })
	for _, pod := range List[corev1.PodList](t, w).Items {
		hash := appsv1.ControllerRevisionHashLabelKey
		kit.ErrorIf(t, strings.HasPrefix(pod.Name, v1alpha1.NodeAgentName) && pod.Labels[hash] != newest.Labels[hash],
			"pod %s is not of revision %s", pod.Name, newest.Name)
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
	kit.Play(t)
	host := netip.MustParseAddr("192.0.2.7")
	next := map[string]func(ctx context.Context, a, b, c *kube.Cluster) error{
		"peer": func(ctx context.Context, a, b, _ *kube.Cluster) error {
			return kit.Err(Peer(ctx, a, b, engine.Options{}, kube.Quiet{}))
		},
		"unpeer":             func(ctx context.Context, a, b, _ *kube.Cluster) error { return verbs["unpeer"](ctx, a, b) },
		"unpeer of the same": func(ctx context.Context, a, _, c *kube.Cluster) error { return verbs["unpeer"](ctx, a, c) },
		"upgrade":            func(ctx context.Context, a, b, _ *kube.Cluster) error { return RollsOut["upgrade"](ctx, a, b) },
		"rotate-keys":        func(ctx context.Context, a, b, _ *kube.Cluster) error { return verbs["rotate-keys"](ctx, a, b) },
		"rotate-keys --psk-only": func(ctx context.Context, a, b, _ *kube.Cluster) error {
			return kit.Err(Rotate(ctx, a, b, Rotation{PresharedOnly: true}, kube.Quiet{}))
		},
		"expose-host": func(ctx context.Context, a, b, _ *kube.Cluster) error { return verbs["expose-host"](ctx, a, b) },
		"expose-host --remove": func(ctx context.Context, a, b, _ *kube.Cluster) error {
			return kit.Err(UnexposeHost(ctx, a, b, host, kube.Quiet{}))
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
		kit.Bubble(t, fmt.Sprintf("%s, %d pods were deleted, then %s", p.first, p.writes, p.second), func(t *testing.T) {
			a, b, c := Trio(t, engine.Options{})
			d := &Dying{Writes: p.writes}
			err := RollsOut[p.first](t.Context(), d.Of(a), c.Cluster)
			kit.FatalIf(t, !errors.Is(err, ErrInjected), "%v", err)
			if ds, err := a.ReadNodeAgents(t.Context()); err != nil || ds.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType {
				t.Fatalf("it was not killed in the midst: %v", err)
			}
			begun := time.Now()
			kit.CheckNoError(t, next[p.second](t.Context(), a.Cluster, b.Cluster, c.Cluster))
			took := time.Since(begun)
			kit.ErrorIf(t, took > time.Minute, "it took %s", took)
			a.IsRolledOut(t)
			a.checkMounts(t)
			// A command for the same peering completes or removes what peer left incomplete.
			left := a.UnusedKeys(t)
			kit.ErrorIf(t, len(left) > 0 && p.first != "peer", "there are keys that no link has: %v", left)
		})
	}
}

// The agents are removed with the last peering, even if a rollout of them was not completed.
func TestUnpeerOfTheLastAfterAKilledRollOut(t *testing.T) {
	kit.Play(t)
	for first, do := range RollsOut {
		kit.Bubble(t, first, func(t *testing.T) {
			a, b := pairOf(t, 2)
			err := do(t.Context(), (&Dying{Writes: 1}).Of(a), b.Cluster)
			kit.FatalIf(t, !errors.Is(err, ErrInjected), "%v", err)
			MustUnpeer(t, a, b)
			LeavesNothing(t, a, b)
		})
	}
}

// Another command's rollout does not delay peer, whether that command is alive or was killed. Packets pass with the current agents.
func TestPeerWaitsForNoRollOutOfAnother(t *testing.T) {
	kit.Play(t)
	for _, writes := range kubetest.Some(t, []int{0, 1, 2}, 1, 3) {
		kit.Bubble(t, fmt.Sprintf("waits for packets, %d pods were deleted", writes), func(t *testing.T) {
			a, b, c := Trio(t, engine.Options{Server: "id-of-b"})
			deaf := func(is bool) {
				b.Mu.Lock()
				defer b.Mu.Unlock()
				b.unreachable = is
			}
			deaf(true)
			begun := time.Now()
			ctx := kit.Timeout(t, 5*time.Minute)
			var others sync.WaitGroup
			others.Go(func() {
				time.Sleep(5 * time.Second)
				_, err := Peer(ctx, (&Dying{Writes: writes}).Of(a), c.Cluster, engine.Options{Image: "image:3"}, kube.Quiet{})
				kit.ErrorIf(t, !errors.Is(err, ErrInjected), "the one that is killed: %v", err)
				deaf(false)
			})
			kit.CheckNoError(t, kit.Err(Peer(ctx, a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{})))
			others.Wait()
			took := time.Since(begun)
			kit.ErrorIf(t, took > time.Minute, "it took %s", took)
			a.IsRolledOut(t)
			a.checkKeys(t)
		})
	}
	kit.Bubble(t, "replaces node agents itself", func(t *testing.T) {
		a, b, c := Trio(t, engine.Options{})
		ctx := kit.Timeout(t, 4*time.Minute)
		var once sync.Once
		first := a.Through(func(ctx context.Context, r *fakeapi.Request) error {
			err := r.Send(ctx)
			if r.Of("delete", "Pod") {
				once.Do(func() {
					kit.CheckNoError(t, a.play(ctx)) // a pod as this command wants it exists
					_, err := Peer(ctx, (&Dying{}).Of(a), c.Cluster, engine.Options{Image: "image:3"}, kube.Quiet{})
					kit.ErrorIf(t, !errors.Is(err, ErrInjected), "the one that is killed: %v", err)
				})
			}
			return err
		})
		begun := time.Now()
		kit.CheckNoError(t, kit.Err(Peer(ctx, first, b.Cluster, engine.Options{Image: "image:2"}, kube.Quiet{})))
		took := time.Since(begun)
		kit.ErrorIf(t, took > time.Minute, "it took %s", took)
		a.IsRolledOut(t)
		a.checkKeys(t)
		image := a.image(t)
		kit.ErrorIf(t, image != "image:2", "the node agents have %s", image)
	})
}

// A command leaves the rollout to another one that is alive, and waits only until it knows that.
func TestRollOutOfTheLivingIsLeft(t *testing.T) {
	kit.Play(t)
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
			kit.CheckNoError(t, kit.Err(Peer(t.Context(), a.Cluster, c.Cluster, engine.Options{Image: "image:3"}, kube.Quiet{})))
		})
		time.Sleep(30 * time.Second)
		begun := time.Now()
		kit.CheckNoError(t, verbs["unpeer"](t.Context(), a.Cluster, b.Cluster))
		took := time.Since(begun)
		kit.ErrorIf(t, took > 5*time.Second, "it took %s", took)
		if ds, err := a.ReadNodeAgents(t.Context()); err != nil || ds.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType {
			t.Errorf("the other one does not replace node agents any more: %v", err)
		}
		late("")
		others.Wait()
		a.IsRolledOut(t)
	})
}

// A rollout that cuts off nodes stops at the first group, even if it is retried. The command that retried it has done its own work.
func TestRollOutOfTheKilledLooksAtProbes(t *testing.T) {
	kit.Play(t)
	synctest.Test(t, func(t *testing.T) {
		a, b, c := Trio(t, engine.Options{})
		err := RollsOut["upgrade"](t.Context(), (&Dying{}).Of(a), c.Cluster)
		kit.FatalIf(t, !errors.Is(err, ErrInjected), "%v", err)
		a.lossy = "image:2"
		for _, verb := range []string{"expose-host", "unpeer"} {
			kit.CheckNoError(t, verbs[verb](t.Context(), a.Cluster, b.Cluster))
			var lost []string
			for _, pod := range List[corev1.PodList](t, a).Items {
				if strings.HasPrefix(pod.Name, v1alpha1.NodeAgentName) && pod.Spec.Containers[0].Image == a.lossy {
					lost = append(lost, pod.Spec.NodeName)
				}
			}
			kit.ErrorIf(t, len(lost) != 1, "after %s, packets are lost on %v", verb, lost)
		}
	})
}
