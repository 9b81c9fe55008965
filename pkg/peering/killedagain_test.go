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
		_, err := Peer(ctx, a, b, engine.Options{}, kube.Quiet{})
		return err
	},
	"peer, the other one first": func(ctx context.Context, a, b *kube.Cluster) error {
		_, err := Peer(ctx, b, a, engine.Options{}, kube.Quiet{})
		return err
	},
	"unpeer":                      verbs["unpeer"],
	"unpeer, the other one first": func(ctx context.Context, a, b *kube.Cluster) error { return verbs["unpeer"](ctx, b, a) },
	"expose-host":                 verbs["expose-host"],
	"rotate-keys, the other one first": func(ctx context.Context, a, b *kube.Cluster) error {
		return verbs["rotate-keys"](ctx, b, a)
	},
	"rotate-keys --psk-only": func(ctx context.Context, a, b *kube.Cluster) error {
		_, err := Rotate(ctx, a, b, Rotation{PresharedOnly: true}, kube.Quiet{})
		return err
	},
	"upgrade": func(ctx context.Context, a, b *kube.Cluster) error { return RollsOut["upgrade"](ctx, a, b) },
}

// What completes a rollout may be killed as well.
func TestKilledTwice(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
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
		t.Run(fmt.Sprint(first, ", then ", second, ", ", writes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b, c := Trio(t, engine.Options{})
				if err := RollsOut[first](t.Context(), (&Dying{Writes: 1}).Of(a), c.Cluster); !errors.Is(err, ErrInjected) {
					t.Fatal(err)
				}
				err := afterKill[second](t.Context(), (&Dying{begun: true, Writes: 25 + 6*writes}).Of(a), b.Cluster)
				t.Logf("the second: %v", err)
				begun := time.Now()
				if err := verbs["unpeer"](t.Context(), a.Cluster, b.Cluster); err != nil {
					t.Error(err)
				}
				if took := time.Since(begun); took > 30*time.Second {
					t.Errorf("it took %s", took)
				}
				a.IsRolledOut(t)
				a.checkMounts(t)
				if left := a.UnusedKeys(t); len(left) > 0 && first != "peer" {
					t.Errorf("there are keys that no link has: %v", left)
				}
			})
		})
	}
}

// While others work, the last command completes a rollout, also if it fails.
func TestLastOneFails(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b, c := Trio(t, engine.Options{})
		d := NewSite(t, "d", "10.244.0.0/16", "172.18.4.11")
		d.Peer, d.unreachable = a, true
		if err := RollsOut["upgrade"](t.Context(), (&Dying{Writes: 1}).Of(a), c.Cluster); !errors.Is(err, ErrInjected) {
			t.Fatal(err)
		}
		var others sync.WaitGroup
		others.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := Peer(ctx, a.Cluster, d.Cluster, engine.Options{Server: "id-of-d"}, kube.Quiet{})
			t.Logf("the last one: %v", err)
		})
		time.Sleep(5 * time.Second)
		if err := verbs["expose-host"](t.Context(), a.Cluster, b.Cluster); err != nil {
			t.Error(err)
		}
		others.Wait()
		a.IsRolledOut(t)
	})
}

// A command that fails after one that was killed completes its rollout as well.
func TestNextOneFails(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	fails := map[string]func(ctx context.Context, a, b, d *Site) error{
		"peer, new": func(ctx context.Context, a, _, d *Site) error {
			d.unreachable = true
			_, err := Peer(ctx, a.Cluster, d.Cluster, engine.Options{Server: "id-of-d"}, kube.Quiet{})
			return err
		},
		"peer, changed": func(ctx context.Context, a, b, _ *Site) error {
			b.lossy = "image:5"
			_, err := Peer(ctx, a.Cluster, b.Cluster, engine.Options{Clusters: map[string]engine.ClusterOptions{b.ID: {Image: "image:5"}}}, kube.Quiet{})
			return err
		},
		"rotate-keys --psk-only": func(ctx context.Context, a, b, _ *Site) error {
			b.readOnly = true
			_, err := Rotate(ctx, a.Cluster, b.Cluster, Rotation{PresharedOnly: true}, kube.Quiet{})
			return err
		},
		"unpeer": func(ctx context.Context, a, b, _ *Site) error {
			b.readOnly = true
			_, _, err := Unpeer(ctx, a.Cluster, b.Cluster, kube.Quiet{})
			return err
		},
	}
	for name, fail := range fails {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b, c := Trio(t, engine.Options{})
				d := NewSite(t, "d", "10.244.0.0/16", "172.18.4.11")
				d.Peer = a
				if err := RollsOut["upgrade"](t.Context(), (&Dying{Writes: 1}).Of(a), c.Cluster); !errors.Is(err, ErrInjected) {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				t.Logf("it fails: %v", fail(ctx, a, b, d))
				a.IsRolledOut(t)
			})
		})
	}
}

// After a killed rollout, a node that does not replace its pod holds up the next command for some seconds. When the node
// works again, the next command completes the rollout.
func TestLateNodeAfterKill(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(afterKill)), func(name string) bool {
		return name == "upgrade" || name == "rotate-keys, the other one first" // they replace agents themselves
	})
	for _, name := range kubetest.Some(t, names, 1, len(names)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
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
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				begun := time.Now()
				err := afterKill[name](ctx, a.Cluster, b.Cluster)
				if took := time.Since(begun); took > 35*time.Second || err != nil {
					t.Errorf("it took %s: %v", took, err)
				}
				makeLate("")
				if err := afterKill["rotate-keys --psk-only"](ctx, a.Cluster, c.Cluster); err != nil {
					t.Error(err)
				}
				a.IsRolledOut(t)
			})
		})
	}
}
