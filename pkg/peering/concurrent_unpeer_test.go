package peering

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// Whenever the clusters are unpeered while another command works on them, that command ends soon, and nothing of the
// peering is left. If it was the last one, nothing of liqonet is left. Only an upgrade is waited for.
func TestUnpeerMeanwhile(t *testing.T) {
	kit.Play(t)
	first, step := 1, 1
	if !kit.Full() {
		first, step = 1+rand.New(rand.NewPCG(kubetest.Seed(), 0)).IntN(31), 61 // unpeer at different moments
		t.Logf("-seed %d: at write %d", kubetest.Seed(), first)
	}
	upgrade := func(ctx context.Context, clusters ...*kube.Cluster) error {
		out, err := UpgradeAll(ctx, clusters, Newer(), kube.Quiet{})
		for _, o := range out {
			err = errors.Join(err, o.Err)
		}
		return err
	}
	for name, do := range map[string]func(ctx context.Context, a, b *kube.Cluster) error{
		"upgrade":         func(ctx context.Context, a, _ *kube.Cluster) error { return upgrade(ctx, a) },
		"upgrade of both": func(ctx context.Context, a, b *kube.Cluster) error { return upgrade(ctx, a, b) },
		"rotate-keys": func(ctx context.Context, a, b *kube.Cluster) error {
			return kit.Err(Rotate(ctx, a, b, Rotation{}, kube.Quiet{}))
		},
		"peer": func(ctx context.Context, a, b *kube.Cluster) error {
			return kit.Err(Peer(ctx, a, b, engine.Options{Image: "image:2"}, kube.Quiet{}))
		},
	} {
		for _, last := range []bool{false, true} {
			t.Run(fmt.Sprint(name, map[bool]string{false: " next to another peering", true: " of the last one"}[last]), func(t *testing.T) {
				t.Parallel()
				isDone := false
				for at := first; !isDone; at += step {
					synctest.Test(t, func(t *testing.T) { // with the real timeouts of commands
						a, b := unpeeredPair(t, 2)
						if !last {
							a.PeeredWith(t, "c", "10.244.0.0/16", "172.18.3.11")
							a.Peer = b
						}
						before := []map[string]string{a.versions(t), b.versions(t)}
						MustPeer(t, a, b, engine.Options{})
						unpeered, begun := false, time.Now()
						var unpeering sync.WaitGroup
						a.Writes, a.BeforeWriteAt, a.BeforeWrite = 0, at, func() {
							unpeered, begun = true, time.Now()
							unpeering.Go(func() {
								_, _, err := Unpeer(t.Context(), a.Cluster, b.Cluster, kube.Quiet{})
								kit.ErrorIf(t, err != nil, "at write %d: unpeer: %v", at, err)
							})
							if at%2 == 1 && !strings.HasPrefix(name, "upgrade") { // unpeer waits for it
								unpeering.Wait()
							}
						}
						ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
						err := do(ctx, a.Cluster, b.Cluster)
						cancel()
						unpeering.Wait()
						if !unpeered {
							kit.ErrorIf(t, at < 5, "%d writes are none", at)
							isDone = true
							return
						}
						e := (*failure.Error)(nil)
						kit.ErrorIf(t, err != nil && (!errors.As(err, &e) || e.Kind == failure.Unexpected), "at write %d: %v", at, err)
						if time.Since(begun) > 20*time.Second || errors.Is(err, context.DeadlineExceeded) {
							t.Errorf("at write %d: after %s: %v", at, time.Since(begun), err)
						}
						t.Logf("at write %d after %s: %v", at, time.Since(begun), err)
						for i, w := range []*Site{a, b} {
							for _, name := range slices.Sorted(maps.Keys(w.versions(t))) {
								// If all keys are replaced, another peering need not have the first one.
								isKey := err == nil && name == "Secret liqonet-system/liqonet-overlay-2"
								_, was := before[i][name]
								kit.ErrorIf(t, !was && !isKey, "at write %d: %s still has %s", at, w.Name, name)
							}
						}
					})
				}
			})
		}
	}
}
