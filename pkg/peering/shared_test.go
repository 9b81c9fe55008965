package peering

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// agentKeys returns the generations of the node agents' overlay keys.
func (w *Site) agentKeys(t *testing.T) []int32 {
	t.Helper()
	ds := Get(t, w, v1alpha1.Namespace, v1alpha1.NodeAgentName, &appsv1.DaemonSet{})
	return manifests.OverlayKeys(&ds.Spec.Template.Spec)
}

// checkKeys fails the test unless agents mount the keys that Peerings name, and these exist in Secrets.
func (w *Site) checkKeys(t *testing.T) {
	t.Helper()
	w.checkMounts(t)
	given := w.agentKeys(t)
	for _, p := range List[v1alpha1.PeeringList](t, w).Items {
		for _, plane := range p.Spec.Planes {
			if !slices.Contains(given, plane.OverlayKeyGeneration) {
				t.Errorf("%s: the links of Peering %s, plane %d, have key %d, and node agents have %v", w.Name, p.Name, plane.Index, plane.OverlayKeyGeneration, given)
			}
		}
	}
}

// Changes of the shared node agents by another command, before any write of peer for another pair, persist.
func TestPeerKeepsWhatOthersDidToNodeAgents(t *testing.T) {
	kit.Play(t)
	type command struct {
		// alone means that the cluster has no third peering, which always uses the first key; exclusive that the command
		// waits for others, so it runs before the first one has its locks.
		alone, exclusive bool
		run              func(t *testing.T, a, b *Site)
		check            func(t *testing.T, a *Site)
	}
	for name, other := range map[string]command{
		"rotate-keys": {
			exclusive: true,
			run: func(t *testing.T, a, b *Site) {
				kit.CheckNoError(t, kit.Err(Rotate(t.Context(), a.Cluster, b.Cluster, Rotation{}, kube.Quiet{})))
			},
			check: func(*testing.T, *Site) {},
		},
		"rotate-keys of the only peering": {
			alone: true, exclusive: true,
			run: func(t *testing.T, a, b *Site) {
				kit.CheckNoError(t, kit.Err(Rotate(t.Context(), a.Cluster, b.Cluster, Rotation{}, kube.Quiet{})))
			},
			check: func(*testing.T, *Site) {},
		},
		"peer after a node has left": {
			run: func(t *testing.T, a, b *Site) {
				a.leave(t, "a-2")
				MustPeer(t, a, b, engine.Options{})
			},
			check: func(*testing.T, *Site) {},
		},
		"upgrade": {
			exclusive: true,
			run:       func(t *testing.T, a, _ *Site) { mustUpgrade(t, Newer(), a) },
			check: func(t *testing.T, a *Site) {
				image := a.agents(t)[v1alpha1.NodeAgentName].Image
				kit.ErrorIf(t, image != "image:2", "the node agents have %s", image)
			},
		},
		"peer --agent-image": {
			run: func(t *testing.T, a, b *Site) { MustPeer(t, a, b, engine.Options{Image: "image:3"}) },
			check: func(t *testing.T, a *Site) {
				image := a.agents(t)[v1alpha1.NodeAgentName].Image
				kit.ErrorIf(t, image != "image:3", "the node agents have %s", image)
			},
		},
		"peer --node-metrics": {
			run: func(t *testing.T, a, b *Site) { MustPeer(t, a, b, engine.Options{NodeMetrics: "node"}) },
			check: func(t *testing.T, a *Site) {
				ds, err := a.ReadNodeAgents(t.Context())
				kit.ErrorIf(t, err != nil || !manifests.ExposesNodeMetrics(ds), "metrics are not shown at the nodes' addresses: %v", err)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for at := 1; at == 1 || kit.Full(); at++ {
				t.Logf("before write %d", at)
				a, b := pairOf(t, 2)
				if !other.alone {
					a.PeeredWith(t, "d", "10.244.0.0/16", "172.18.4.11")
				}
				c := NewSite(t, "c", "10.244.0.0/16", "172.18.3.11")
				a.Peer, c.Peer = c, a
				done := false
				between := func() {
					a.Peer, b.Peer, done = b, a, true
					other.run(t, a, b)
					a.checkMounts(t)
					a.Peer = c
				}
				r := kube.Reporter(kube.Quiet{})
				if other.exclusive {
					r = then{"Reading both clusters": between}
				} else {
					a.Writes, a.BeforeWriteAt, a.BeforeWrite = 0, at, between
				}
				kit.CheckNoError(t, kit.Err(Peer(t.Context(), a.Cluster, c.Cluster, engine.Options{}, r)))
				if !done {
					kit.ErrorIf(t, at < 5, "%d writes are none", at)
					return
				}
				other.check(t, a)
				a.checkMounts(t)
				for _, p := range List[v1alpha1.PeeringList](t, a).Items {
					for _, plane := range p.Spec.Planes {
						// peer for their pair gives links with a retired key the next one.
						if key := plane.OverlayKeyGeneration; key >= plan.OverlayKey(kubetest.ReadLedger(t, a.Cluster)) && !slices.Contains(a.agentKeys(t), key) {
							t.Errorf("the links of Peering %s have key %d, and node agents have %v", p.Name, key, a.agentKeys(t))
						}
					}
				}
				if t.Failed() || other.exclusive {
					return
				}
			}
		})
	}
}

// then calls a function after a step of that name.
type then map[string]func()

func (s then) Step(ctx context.Context, name string, do func(context.Context) error) error {
	err := do(ctx)
	if f := s[name]; f != nil {
		f()
	}
	return err
}

// rotate-keys ends after another command has read the cluster, but before that has a lock. It does not use what it has read.
func TestWhatWasReadBeforeTheLockIsReadAgain(t *testing.T) {
	kit.Play(t)
	for name, do := range map[string]func(t *testing.T, a, b *Site, rotate func()){
		"upgrade": func(t *testing.T, a, _ *Site, rotate func()) {
			out, err := UpgradeAll(t.Context(), []*kube.Cluster{a.Cluster}, Newer(), then{"Reading the cluster": rotate})
			kit.ErrorIf(t, err != nil || out[0].Err != nil, "%v %v", out, err)
		},
		"peer": func(t *testing.T, a, b *Site, rotate func()) {
			r, err := Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{}, then{"Reading both clusters": rotate})
			kit.ErrorIf(t, err != nil || len(r.Changed) > 0, "%v %v", r.Changed, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := pairOf(t, 2)
			var after map[string]string
			do(t, a, b, sync.OnceFunc(func() {
				kit.CheckNoError(t, kit.Err(Rotate(t.Context(), a.Cluster, b.Cluster, Rotation{}, kube.Quiet{})))
				after = a.keysOf(t)
			}))
			a.checkKeys(t)
			b.checkKeys(t)
			kit.Check(t, "rotate-keys had given others", a.keysOf(t), after)
		})
	}
}

// An overlay key is deleted with the last link that uses it, whichever command removes that link.
func TestUnusedOverlayKeysGo(t *testing.T) {
	kit.Play(t)
	keys := func(w *Site) (out []int32) {
		for _, s := range List[corev1.SecretList](t, w).Items {
			if g := manifests.OverlayGeneration(s.Name); g > 0 {
				out = append(out, g)
			}
		}
		slices.Sort(out)
		return out
	}
	a, b := pairOf(t, 2)
	d := a.PeeredWith(t, "d", "10.244.0.0/16", "172.18.4.11")
	want := func(after string, generations ...int32) {
		t.Helper()
		if got, given := keys(a), a.agentKeys(t); !slices.Equal(got, generations) || !slices.Equal(given, generations) {
			t.Errorf("after %s there are the keys %v, agents have %v, want %v", after, got, given, generations)
		}
		a.checkKeys(t)
	}
	rotate := func(peer *Site) {
		t.Helper()
		a.Peer = peer
		kit.CheckNoError(t, kit.Err(Rotate(t.Context(), a.Cluster, peer.Cluster, Rotation{}, kube.Quiet{})))
	}
	unpeer := func(peer *Site) {
		t.Helper()
		a.Peer = peer
		MustUnpeer(t, a, peer)
	}
	want("peer", 1)
	rotate(b)
	want("rotate-keys a b", 1, 2)
	unpeer(b)
	want("unpeer a b", 1)
	a.PeerAgain(t, b)
	rotate(b)
	want("rotate-keys a b, again", 1, 2)
	unpeer(d)
	want("unpeer a d", 2)
	rotate(b)
	want("rotate-keys a b, with one peering", 3)
}

// Commands that end at the same time leave no key behind: each leaves it to the other while that runs.
func TestUnusedOverlayKeysGoWhenCommandsEndTogether(t *testing.T) {
	kit.Play(t)
	writes := []int{3, 8}
	if kit.Full() {
		writes = []int{1, 2, 3, 4, 5, 6, 7, 8}
	}
	for _, ends := range writes {
		t.Run(fmt.Sprint(ends), func(t *testing.T) {
			t.Parallel()
			a, b := pairOf(t, 2)
			d := a.PeeredWith(t, "d", "10.244.0.0/16", "172.18.4.11")
			a.Peer = b
			kit.Must(Rotate(t.Context(), a.Cluster, b.Cluster, Rotation{}, kube.Quiet{}))(t)
			// unpeer a b runs completely during unpeer a d. Both leave a without peerings that use a key.
			a.PeeredWith(t, "c", "10.244.0.0/16", "172.18.3.11")
			a.Peer = b
			a.Writes, a.BeforeWriteAt, a.BeforeWrite = 0, ends, func() {
				MustUnpeer(t, a, b)
			}
			MustUnpeer(t, a, d)
			used := map[int32]bool{}
			for _, p := range List[v1alpha1.PeeringList](t, a).Items {
				for _, plane := range p.Spec.Planes {
					used[plane.OverlayKeyGeneration] = true
				}
			}
			for _, s := range List[corev1.SecretList](t, a).Items {
				g := manifests.OverlayGeneration(s.Name)
				kit.ErrorIf(t, g > 0 && !used[g], "key %d is still there; links have %v", g, used)
			}
			a.checkKeys(t)
		})
	}
}
