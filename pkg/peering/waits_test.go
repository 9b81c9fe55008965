package peering

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/kit"
)

// waits are the steps in which a command waits for the lock of another one, and how long each took.
type waits struct {
	mu  sync.Mutex
	all map[string]time.Duration
}

func (w *waits) Step(ctx context.Context, name string, do func(context.Context) error) error {
	began := time.Now()
	err := do(ctx)
	if strings.Contains(name, "waiting for") {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.all[name] += time.Since(began)
	}
	return err
}

// Commands on different peerings of one cluster wait for each other a second at most. A third peering stays, so none is the last one.
func TestPairsDoNotWaitForEachOther(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	a := newCouple(t, false, false).a
	peers := []*site{newSite(t, "d", "10.244.0.0/16", "172.18.4.11"), newSite(t, "e", "10.244.0.0/16", "172.18.5.11")}
	for _, p := range peers {
		p.peer = a
	}
	all := func(do func(*Cluster, Reporter) error) {
		t.Helper()
		w := &waits{all: map[string]time.Duration{}}
		var commands sync.WaitGroup
		for _, p := range peers {
			commands.Go(func() {
				if err := do(p.Cluster, w); err != nil {
					t.Error(err)
				}
			})
		}
		commands.Wait()
		for name, took := range w.all {
			if took > time.Second {
				t.Errorf("%s: %s", name, took)
			}
		}
	}
	all(func(p *Cluster, r Reporter) error {
		_, err := Peer(t.Context(), a.Cluster, p, Options{}, r)
		return err
	})
	all(func(p *Cluster, r Reporter) error {
		_, err := Rotate(t.Context(), a.Cluster, p, Rotation{PresharedOnly: true}, r)
		return err
	})
	// The other side of each is its last peering, and is left: what has to wait is what removes all of liqonet.
	all(func(p *Cluster, r Reporter) error {
		peer := *p
		peer.Unasked = ErrUnwanted
		_, _, err := Unpeer(t.Context(), a.Cluster, &peer, r)
		return err
	})
	if entries := readLedger(t, a.Cluster).Spec.Peers; len(entries) != 1 || slices.ContainsFunc(peers, func(p *site) bool { return p.ID == entries[0].ClusterID }) {
		t.Errorf("peers are left: %+v", entries)
	}
}
