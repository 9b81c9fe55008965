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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// Peer returns when the agents that were applied have taken over, whatever their predecessors have reported.
func TestRollout(t *testing.T) {
	kit.NotShort(t)
	for name, tc := range map[string]struct {
		setup func(b *Site)
		want  string
	}{
		"all is done":                      {func(*Site) {}, ""},
		"the gateway's pod is late":        {func(b *Site) { b.Late = "gateway-a-0" }, "the gateway is being replaced"},
		"Leases are of those before":       {func(b *Site) { b.Holder = "an-older-pod" }, "since it was replaced"},
		"a node that is not ready is late": {func(b *Site) { b.Late = "b-2" }, ""},
		"a node that is ready is late":     {func(b *Site) { b.Late = "b-1" }, "the node agent of b-1 is being replaced"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := TwoSites(t, kubetest.Node("b-2", false, "172.18.2.12"))
			MustPeer(t, a, b, engine.Options{})
			b.Mu.Lock()
			tc.setup(b)
			b.Mu.Unlock()
			r := kube.Reporter(kube.Quiet{})
			if tc.want != "" {
				r = &impatient{after: 1, Duration: 5 * time.Second}
			}
			_, err := Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{Image: "image:2"}, r)
			switch {
			case tc.want == "" && err != nil:
				t.Error(err)
			case tc.want == "":
			case err == nil:
				t.Errorf("it did not wait; want an error with %q", tc.want)
			case kubetest.KindOf(t, err) != kube.NotReady || !strings.Contains(err.Error(), tc.want):
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

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

// makeLate changes the node whose pod is not replaced.
func (w *Site) makeLate(node string) {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	w.Late = node
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

// KilledRollOut returns the clusters of Trio after a command was killed that has deleted so many pods of node agents in a.
func KilledRollOut(t *testing.T, command string, deleted int) (a, b, c *Site) {
	t.Helper()
	a, b, c = Trio(t, engine.Options{})
	kit.FailsWith(t, RollsOut[command](t.Context(), (&Dying{Writes: deleted}).Of(a), c.Cluster), ErrInjected)
	a.isReplacing(t)
	return a, b, c
}

// isReplacing ends the test unless a command replaces node agents, or was killed while it did.
func (w *Site) isReplacing(t *testing.T) {
	t.Helper()
	ds, err := w.ReadNodeAgents(t.Context())
	kit.FatalIf(t, err != nil || ds.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType, "no node agents are replaced: %v", err)
}

// Next are the commands that may come next in a.
var Next = map[string]func(ctx context.Context, a, b, c *kube.Cluster) error{
	"peer": func(ctx context.Context, a, b, _ *kube.Cluster) error {
		return kit.Err(Peer(ctx, a, b, engine.Options{}, kube.Quiet{}))
	},
	"peer, the other one first": func(ctx context.Context, a, b, _ *kube.Cluster) error {
		return kit.Err(Peer(ctx, b, a, engine.Options{}, kube.Quiet{}))
	},
	"unpeer":                           onPair("unpeer"),
	"unpeer, the other one first":      func(ctx context.Context, a, b, _ *kube.Cluster) error { return verbs["unpeer"](ctx, b, a) },
	"unpeer of the same":               func(ctx context.Context, a, _, c *kube.Cluster) error { return verbs["unpeer"](ctx, a, c) },
	"upgrade":                          func(ctx context.Context, a, b, _ *kube.Cluster) error { return RollsOut["upgrade"](ctx, a, b) },
	"rotate-keys":                      onPair("rotate-keys"),
	"rotate-keys, the other one first": func(ctx context.Context, a, b, _ *kube.Cluster) error { return verbs["rotate-keys"](ctx, b, a) },
	"rotate-keys --psk-only": func(ctx context.Context, a, b, _ *kube.Cluster) error {
		return kit.Err(Rotate(ctx, a, b, Rotation{PresharedOnly: true}, kube.Quiet{}))
	},
	"expose-host": onPair("expose-host"),
	"expose-host --remove": func(ctx context.Context, a, b, _ *kube.Cluster) error {
		return kit.Err(UnexposeHost(ctx, a, b, netip.MustParseAddr("192.0.2.7"), kube.Quiet{}))
	},
}

func onPair(verb string) func(ctx context.Context, a, b, c *kube.Cluster) error {
	return func(ctx context.Context, a, b, _ *kube.Cluster) error { return verbs[verb](ctx, a, b) }
}

// A command is killed while it replaces node agents one by one. Any next command in the cluster completes the rollout within a minute.
func TestRollOutOfTheKilledIsCompleted(t *testing.T) {
	kit.Play(t)
	type play struct {
		first, second string
		deleted       int
	}
	var plays []play
	for _, first := range slices.Sorted(maps.Keys(RollsOut)) {
		for _, second := range slices.Sorted(maps.Keys(Next)) {
			for deleted := range 4 { // one pod is deleted on each of three nodes
				plays = append(plays, play{first, second, deleted})
			}
		}
	}
	for _, p := range kubetest.Some(t, plays, 3, len(plays)) {
		kit.Bubble(t, fmt.Sprintf("%s, %d pods were deleted, then %s", p.first, p.deleted, p.second), func(t *testing.T) {
			a, b, c := KilledRollOut(t, p.first, p.deleted)
			begun := time.Now()
			kit.CheckNoError(t, Next[p.second](t.Context(), a.Cluster, b.Cluster, c.Cluster))
			took := time.Since(begun)
			kit.ErrorIf(t, took > time.Minute, "it took %s", took)
			a.isCompleted(t, p.first)
		})
	}
}

// isCompleted reports what is left of a rollout by a command that was killed.
func (w *Site) isCompleted(t *testing.T, command string) {
	t.Helper()
	w.IsRolledOut(t)
	w.checkMounts(t)
	// A command for the same peering completes or removes what peer left incomplete.
	left := w.UnusedKeys(t)
	kit.ErrorIf(t, len(left) > 0 && command != "peer", "there are keys that no link has: %v", left)
}

// The agents are removed with the last peering, even if a rollout of them was not completed.
func TestUnpeerOfTheLastAfterAKilledRollOut(t *testing.T) {
	kit.Play(t)
	for first, do := range RollsOut {
		kit.Bubble(t, first, func(t *testing.T) {
			a, b := pairOf(t, 2)
			kit.FailsWith(t, do(t.Context(), (&Dying{Writes: 1}).Of(a), b.Cluster), ErrInjected)
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
				b.Unreachable = is
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
					kit.CheckNoError(t, a.Play(ctx)) // a pod as this command wants it exists
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
		a.makeLate("a-1")
		var others sync.WaitGroup
		others.Go(func() {
			kit.CheckNoError(t, kit.Err(Peer(t.Context(), a.Cluster, c.Cluster, engine.Options{Image: "image:3"}, kube.Quiet{})))
		})
		time.Sleep(30 * time.Second)
		begun := time.Now()
		kit.CheckNoError(t, verbs["unpeer"](t.Context(), a.Cluster, b.Cluster))
		took := time.Since(begun)
		kit.ErrorIf(t, took > 5*time.Second, "it took %s", took)
		a.isReplacing(t)
		a.makeLate("")
		others.Wait()
		a.IsRolledOut(t)
	})
}

// A rollout that cuts off nodes stops at the first group, even if it is retried. The command that retried it has done its own work.
func TestRollOutOfTheKilledLooksAtProbes(t *testing.T) {
	kit.Play(t)
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := KilledRollOut(t, "upgrade", 0)
		a.Lossy = "image:2"
		for _, verb := range []string{"expose-host", "unpeer"} {
			kit.CheckNoError(t, verbs[verb](t.Context(), a.Cluster, b.Cluster))
			var lost []string
			for _, pod := range List[corev1.PodList](t, a).Items {
				if strings.HasPrefix(pod.Name, v1alpha1.NodeAgentName) && pod.Spec.Containers[0].Image == a.Lossy {
					lost = append(lost, pod.Spec.NodeName)
				}
			}
			kit.ErrorIf(t, len(lost) != 1, "after %s, packets are lost on %v", verb, lost)
		}
	})
}

// What completes a rollout may be killed as well.
func TestKilledTwice(t *testing.T) {
	kit.Play(t)
	type kills struct {
		first, second string
		writes        int
	}
	var all []kills
	for _, first := range slices.Sorted(maps.Keys(RollsOut)) {
		for _, second := range slices.Sorted(maps.Keys(Next)) {
			for writes := range 5 {
				all = append(all, kills{first, second, writes})
			}
		}
	}
	for _, k := range kubetest.Some(t, all, 2, len(all)) {
		first, second, writes := k.first, k.second, k.writes
		kit.Bubble(t, fmt.Sprint(first, ", then ", second, ", ", writes), func(t *testing.T) {
			a, b, c := KilledRollOut(t, first, 1)
			err := Next[second](t.Context(), (&Dying{begun: true, Writes: 25 + 6*writes}).Of(a), b.Cluster, c.Cluster)
			t.Logf("the second: %v", err)
			begun := time.Now()
			kit.CheckNoError(t, verbs["unpeer"](t.Context(), a.Cluster, b.Cluster))
			took := time.Since(begun)
			kit.ErrorIf(t, took > 30*time.Second, "it took %s", took)
			a.isCompleted(t, first)
		})
	}
}

// While others work, the last command completes a rollout, also if it fails.
func TestLastOneFails(t *testing.T) {
	kit.Play(t)
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := KilledRollOut(t, "upgrade", 1)
		d := NewSite(t, "d", "10.244.0.0/16", "172.18.4.11")
		d.Peer, d.Unreachable = a, true
		var others sync.WaitGroup
		others.Go(func() {
			_, err := Peer(kit.Timeout(t, time.Minute), a.Cluster, d.Cluster, engine.Options{Server: "id-of-d"}, kube.Quiet{})
			t.Logf("the last one: %v", err)
		})
		time.Sleep(5 * time.Second)
		kit.CheckNoError(t, verbs["expose-host"](t.Context(), a.Cluster, b.Cluster))
		others.Wait()
		a.IsRolledOut(t)
	})
}

// A command that fails after one that was killed completes its rollout as well.
func TestNextOneFails(t *testing.T) {
	kit.Play(t)
	fails := map[string]func(ctx context.Context, a, b, d *Site) error{
		"peer, new": func(ctx context.Context, a, _, d *Site) error {
			d.Unreachable = true
			return kit.Err(Peer(ctx, a.Cluster, d.Cluster, engine.Options{Server: "id-of-d"}, kube.Quiet{}))
		},
		"peer, changed": func(ctx context.Context, a, b, _ *Site) error {
			b.Lossy = "image:5"
			return kit.Err(Peer(ctx, a.Cluster, b.Cluster, engine.Options{Clusters: map[string]engine.ClusterOptions{b.ID: {Image: "image:5"}}}, kube.Quiet{}))
		},
		"rotate-keys --psk-only": func(ctx context.Context, a, b, _ *Site) error {
			b.readOnly = true
			return kit.Err(Rotate(ctx, a.Cluster, b.Cluster, Rotation{PresharedOnly: true}, kube.Quiet{}))
		},
		"unpeer": func(ctx context.Context, a, b, _ *Site) error {
			b.readOnly = true
			_, _, err := Unpeer(ctx, a.Cluster, b.Cluster, kube.Quiet{})
			return err
		},
	}
	for name, fail := range kubetest.SomeOf(t, 2, fails) {
		kit.Bubble(t, name, func(t *testing.T) {
			a, b, _ := KilledRollOut(t, "upgrade", 1)
			d := NewSite(t, "d", "10.244.0.0/16", "172.18.4.11")
			d.Peer = a
			t.Logf("it fails: %v", fail(kit.Timeout(t, time.Minute), a, b, d))
			a.IsRolledOut(t)
		})
	}
}

// After a killed rollout, a node that does not replace its pod holds up the next command for some seconds. When the node
// works again, the next command completes the rollout.
func TestLateNodeAfterKill(t *testing.T) {
	kit.Play(t)
	// Others replace agents themselves.
	names := []string{"peer", "peer, the other one first", "unpeer", "unpeer, the other one first", "expose-host", "rotate-keys --psk-only"}
	for _, name := range kubetest.Some(t, names, 1, len(names)) {
		kit.Bubble(t, name, func(t *testing.T) {
			a, b, c := KilledRollOut(t, "upgrade", 0)
			a.makeLate("a-1")
			ctx := kit.Timeout(t, 5*time.Minute)
			begun := time.Now()
			err := Next[name](ctx, a.Cluster, b.Cluster, c.Cluster)
			took := time.Since(begun)
			kit.ErrorIf(t, took > 35*time.Second || err != nil, "it took %s: %v", took, err)
			a.makeLate("")
			kit.CheckNoError(t, Next["rotate-keys --psk-only"](ctx, a.Cluster, c.Cluster, nil))
			a.IsRolledOut(t)
		})
	}
}

// The gateways of a new peering start before all nodes have reported. When a late node reports, they are replaced
// only if its kernel lacks what they use.
func TestGatewaysStartBeforeAllNodesHaveReported(t *testing.T) {
	kit.Slow(t)
	both := v1alpha1.KernelFacts{Release: "6.1", VXLAN: true, WireGuard: true}
	for name, tc := range map[string]struct {
		slow    v1alpha1.KernelFacts
		starts  int
		backend v1alpha1.WireGuardBackend
	}{
		"as the others":     {both, 1, "Kernel"},
		"without WireGuard": {v1alpha1.KernelFacts{Release: "6.1", VXLAN: true}, 2, "UserSpace"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			second := kubetest.Node("second", true, "172.18.9.12")
			second.Labels = map[string]string{corev1.LabelOSStable: "linux"}
			a, b := TwoSites(t, second)
			a.Kernel, b.Kernel = both, both
			b.Slow, b.SlowKernel = "second", tc.slow
			MustPeer(t, a, b, engine.Options{})
			starts := 0
			for _, did := range b.did {
				if did == "run 1 Deployment gateway-a-0" {
					starts++
				}
			}
			kit.ErrorIf(t, starts != tc.starts, "the gateway was applied %d times, want %d: %q", starts, tc.starts, b.did)
			hasTUN := slices.ContainsFunc(gatewayOf(t, b).Spec.Template.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == "tun" })
			if got := b.peering(t).Spec.Planes[0].WireGuard; got != tc.backend || hasTUN != (tc.backend == "UserSpace") {
				t.Errorf("WireGuard by %s, and a TUN device: %t; want it by %s", got, hasTUN, tc.backend)
			}
		})
	}
}

func gatewayOf(t *testing.T, s *Site) *appsv1.Deployment {
	t.Helper()
	d := Get(t, s, v1alpha1.Namespace, "gateway-a-0", &appsv1.Deployment{})
	return d
}

// No gateway is left behind if the ranges turn out to conflict with those of a late node.
func TestStartedGatewaysAreTakenBack(t *testing.T) {
	kit.Play(t)
	second := kubetest.Node("second", true, "172.18.9.12")
	second.Labels = map[string]string{corev1.LabelOSStable: "linux"}
	a, b := TwoSites(t, second)
	b.Slow = "second" // supports no overlay
	_, err := Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{})
	kit.ErrorIf(t, kubetest.KindOf(t, err) != kube.Usage, "got %v, want that the kernel lacks all", err)
	for _, s := range []*Site{a, b} {
		if cn := kubetest.ReadLedger(t, s.Cluster); cn != nil && len(cn.Spec.Peers) > 0 {
			t.Errorf("%s: the ledger still has %+v", s.Name, plan.Allocation(cn, s.Peer.ID))
		}
		var left appsv1.DeploymentList
		err := s.Raw.List(t.Context(), &left)
		kit.ErrorIf(t, err != nil || len(left.Items) > 0, "%s: %d gateways are left, error %v", s.Name, len(left.Items), err)
		kit.ErrorIf(t, !slices.Contains(s.did, "delete Deployment gateway-"+s.Peer.Name+"-0"),
			"%s: no gateway was started and deleted: %q", s.Name, s.did)
	}
}

// A gateway mounts no key that another command retires while it is applied: a pod that starts later would wait for it.
func TestGatewayMountsNoRetiredKey(t *testing.T) {
	t.Parallel()
	a, b := Peered(t)
	planned := &DryRun(t, a, b, engine.Options{}).Clusters[0]
	kit.NoError(t, a.Raw.Create(t.Context(), manifests.OverlaySecret(2, make([]byte, engine.KeyBytes))))
	var retire sync.Once
	through := a.Through(func(ctx context.Context, r *fakeapi.Request) error {
		if r.Verb == "apply" && r.Kind == "Deployment" {
			retire.Do(func() {
				kit.NoError(t, kit.Err(engine.UpdateLedger(ctx, a.Cluster, func(cn *v1alpha1.ClusterNetwork) error {
					cn.Spec.OverlayKey.Generation = 2
					return nil
				})))
			})
		}
		return r.Send(ctx)
	})
	kit.NoError(t, applyGateway(t.Context(), engine.NewSide(through, 0), planned, planned.Gateways[0], true))
	live := &appsv1.Deployment{}
	kit.NoError(t, a.Raw.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.Namespace, Name: "gateway-b-0"}, live))
	kit.Check(t, "overlay keys that the gateway mounts", manifests.OverlayKeys(&live.Spec.Template.Spec), []int32{2})
}
