package peering

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// afterKill are the commands that may come next.
var afterKill = map[string]func(ctx context.Context, a, b *kube.Cluster) error{
	"peer": func(ctx context.Context, a, b *kube.Cluster) error {
		return kit.Err(Peer(ctx, a, b, engine.Options{}, kube.Quiet{}))
	},
	"peer, the other one first": func(ctx context.Context, a, b *kube.Cluster) error {
		return kit.Err(Peer(ctx, b, a, engine.Options{}, kube.Quiet{}))
	},
	"unpeer":                      verbs["unpeer"],
	"unpeer, the other one first": func(ctx context.Context, a, b *kube.Cluster) error { return verbs["unpeer"](ctx, b, a) },
	"expose-host":                 verbs["expose-host"],
	"rotate-keys, the other one first": func(ctx context.Context, a, b *kube.Cluster) error {
		return verbs["rotate-keys"](ctx, b, a)
	},
	"rotate-keys --psk-only": func(ctx context.Context, a, b *kube.Cluster) error {
		return kit.Err(Rotate(ctx, a, b, Rotation{PresharedOnly: true}, kube.Quiet{}))
	},
	"upgrade": func(ctx context.Context, a, b *kube.Cluster) error { return RollsOut["upgrade"](ctx, a, b) },
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
		for _, second := range slices.Sorted(maps.Keys(afterKill)) {
			for writes := range 5 {
				all = append(all, kills{first, second, writes})
			}
		}
	}
	for _, k := range kubetest.Some(t, all, 4, len(all)) {
		first, second, writes := k.first, k.second, k.writes
		kit.Bubble(t, fmt.Sprint(first, ", then ", second, ", ", writes), func(t *testing.T) {
			a, b, c := Trio(t, engine.Options{})
			if err := RollsOut[first](t.Context(), (&Dying{Writes: 1}).Of(a), c.Cluster); !errors.Is(err, ErrInjected) {
				t.Fatal(err)
			}
			err := afterKill[second](t.Context(), (&Dying{begun: true, Writes: 25 + 6*writes}).Of(a), b.Cluster)
			t.Logf("the second: %v", err)
			begun := time.Now()
			kit.CheckNoError(t, verbs["unpeer"](t.Context(), a.Cluster, b.Cluster))
			took := time.Since(begun)
			kit.ErrorIf(t, took > 30*time.Second, "it took %s", took)
			a.IsRolledOut(t)
			a.checkMounts(t)
			left := a.UnusedKeys(t)
			kit.ErrorIf(t, len(left) > 0 && first != "peer", "there are keys that no link has: %v", left)
		})
	}
}

// While others work, the last command completes a rollout, also if it fails.
func TestLastOneFails(t *testing.T) {
	kit.Play(t)
	synctest.Test(t, func(t *testing.T) {
		a, b, c := Trio(t, engine.Options{})
		d := NewSite(t, "d", "10.244.0.0/16", "172.18.4.11")
		d.Peer, d.unreachable = a, true
		err := RollsOut["upgrade"](t.Context(), (&Dying{Writes: 1}).Of(a), c.Cluster)
		kit.FatalIf(t, !errors.Is(err, ErrInjected), "%v", err)
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
			d.unreachable = true
			return kit.Err(Peer(ctx, a.Cluster, d.Cluster, engine.Options{Server: "id-of-d"}, kube.Quiet{}))
		},
		"peer, changed": func(ctx context.Context, a, b, _ *Site) error {
			b.lossy = "image:5"
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
	for name, fail := range fails {
		kit.Bubble(t, name, func(t *testing.T) {
			a, b, c := Trio(t, engine.Options{})
			d := NewSite(t, "d", "10.244.0.0/16", "172.18.4.11")
			d.Peer = a
			err := RollsOut["upgrade"](t.Context(), (&Dying{Writes: 1}).Of(a), c.Cluster)
			kit.FatalIf(t, !errors.Is(err, ErrInjected), "%v", err)
			t.Logf("it fails: %v", fail(kit.Timeout(t, time.Minute), a, b, d))
			a.IsRolledOut(t)
		})
	}
}

// After a killed rollout, a node that does not replace its pod holds up the next command for some seconds. When the node
// works again, the next command completes the rollout.
func TestLateNodeAfterKill(t *testing.T) {
	kit.Play(t)
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(afterKill)), func(name string) bool {
		return name == "upgrade" || name == "rotate-keys, the other one first" // they replace agents themselves
	})
	for _, name := range kubetest.Some(t, names, 1, len(names)) {
		kit.Bubble(t, name, func(t *testing.T) {
			a, b, c := Trio(t, engine.Options{})
			if err := RollsOut["upgrade"](t.Context(), (&Dying{Writes: 0}).Of(a), c.Cluster); !errors.Is(err, ErrInjected) {
				t.Fatal(err)
			}
			makeLate := func(node string) {
				a.Mu.Lock()
				defer a.Mu.Unlock()
				a.late = node
			}
			makeLate("a-1")
			ctx := kit.Timeout(t, 5*time.Minute)
			begun := time.Now()
			err := afterKill[name](ctx, a.Cluster, b.Cluster)
			took := time.Since(begun)
			kit.ErrorIf(t, took > 35*time.Second || err != nil, "it took %s: %v", took, err)
			makeLate("")
			kit.CheckNoError(t, afterKill["rotate-keys --psk-only"](ctx, a.Cluster, c.Cluster))
			a.IsRolledOut(t)
		})
	}
}
