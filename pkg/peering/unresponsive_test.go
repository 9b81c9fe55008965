package peering

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// begun runs a function before a request. A write has then started.
func begun(ctx context.Context, r *fakeapi.Request, do func() error) error {
	if r.Reads() {
		return do()
	}
	end, err := lock.BeginWrite(ctx)
	if err != nil {
		return err
	}
	defer end()
	return do()
}

// before runs a function before each request to a cluster.
func (w *Site) before(do func(context.Context) error) *kube.Cluster {
	return w.partly(func(ctx context.Context, _, _ string) error { return do(ctx) })
}

// hangs returns a cluster whose API server is unresponsive while hung is set.
func (w *Site) hangs(hung *atomic.Bool) *kube.Cluster {
	return w.before(func(ctx context.Context) error {
		if !hung.Load() {
			return nil
		}
		<-ctx.Done()
		return context.Cause(ctx)
	})
}

// free returns how long it takes until no lock of the cluster is held.
func (w *Site) free(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	_, held, err := lock.Acquire(ctx, "upgrade", kube.Quiet{}.Step, engine.LockFor(w.Cluster, ""))
	took := time.Since(start)
	held.Release()
	return took, err
}

// changes are what peer changes of a peering that works.
var changes = map[string][2]engine.Options{
	"new":           {},
	"image":         {{}, {Image: "image:2"}},
	"two planes":    {{Planes: 1}, {Planes: 2}},
	"one plane":     {{Planes: 2}, {Planes: 1}},
	"server":        {{Server: "id-of-a"}, {Server: "id-of-b"}},
	"other planes":  {{Planes: 2, Server: "id-of-a"}, {Planes: 2, Server: "id-of-b"}},
	"image, planes": {{Planes: 2}, {Planes: 2, Image: "image:2"}},
	"node metrics":  {{}, {NodeMetrics: "Node"}},
}

// If the second cluster becomes unresponsive, at any write to it, the command ends after about 20 s, even if its own
// timeout expires before. Then the locks of the first cluster, which peer rolls back, are free. The next command
// completes the rest.
func TestPeerThatHangs(t *testing.T) {
	kit.Play(t)
	const enough = 26 * time.Second
	type command struct {
		// before is how the clusters are peered; nil if they are not.
		before *engine.Options
		run    func(ctx context.Context, a, b *kube.Cluster) error
	}
	rotate := func(o Rotation) command {
		return command{&engine.Options{}, func(ctx context.Context, a, b *kube.Cluster) error {
			return kit.Err(Rotate(ctx, a, b, o, kube.Quiet{}))
		}}
	}
	commands := map[string]command{
		"rotate-keys": rotate(Rotation{}), "rotate-keys --psk-only": rotate(Rotation{PresharedOnly: true}), "upgrade": {&engine.Options{}, verbs["upgrade"]},
	}
	for name, o := range changes {
		c := command{run: func(ctx context.Context, a, b *kube.Cluster) error {
			return kit.Err(Peer(ctx, a, b, o[1], kube.Quiet{}))
		}}
		if name != "new" {
			c.before = &o[0]
		}
		commands["peer, "+name] = c
	}
	for _, name := range kubetest.Some(t, slices.Sorted(maps.Keys(commands)), 6, len(commands)) {
		command := commands[name].run
		setup := func(t *testing.T) (a, b *Site) {
			a, b = TwoSites(t, kubetest.Node("other", true, "172.18.9.9"))
			if o := commands[name].before; o != nil {
				MustPeer(t, a, b, *o)
			}
			a.Writes, b.Writes = 0, 0
			return a, b
		}
		var writes int
		synctest.Test(t, func(t *testing.T) {
			a, b := setup(t)
			err := command(t.Context(), a.Cluster, b.Cluster)
			kit.FatalIf(t, err != nil, "%s: %v", name, err)
			writes = b.Writes
		})
		for _, n := range kubetest.Moments(t, writes, 2) {
			for _, timeout := range kubetest.Some(t, []time.Duration{5 * time.Minute, 2 * time.Second}, 1, 2) {
				kit.Bubble(t, fmt.Sprintf("%s/write %d, %s", name, n, timeout), func(t *testing.T) {
					a, b := setup(t)
					before := a.contents(t)
					var hung atomic.Bool
					ctx, cancel := context.WithCancelCause(t.Context())
					free := make(chan time.Duration, 1)
					b.BeforeWriteAt, b.BeforeWrite = n, func() {
						hung.Store(true)
						time.AfterFunc(timeout, func() { cancel(context.DeadlineExceeded) })
						go func() {
							took, err := a.free(t.Context())
							kit.ErrorIf(t, err != nil, "%v", err)
							free <- took
						}()
					}
					err := command(ctx, a.Cluster, b.hangs(&hung))
					cancel(nil)
					kit.FatalIf(t, !hung.Load(), "it did not come to that write: %v", err)
					took := <-free
					t.Logf("free after %s: %v", took, err)
					kit.ErrorIf(t, took > enough, "the locks were held for %s", took)
					hung.Store(false)
					if err == nil { // everything was done before
						Settled(t, a, b, engine.Options{})
					} else if timeout > enough && kubetest.KindOf(t, err) != kube.Busy {
						t.Errorf("got %v", err)
					}
					if err != nil && strings.HasPrefix(name, "peer") {
						kit.Check(t, "the contents of a", a.contents(t), before)
					}
					err = command(t.Context(), a.Cluster, b.Cluster)
					kit.ErrorIf(t, err != nil, "again: %v", err)
				})
			}
		}
	}
}

// A cluster that is unresponsive during the identity check delays expose-host for 20 s.
func TestExposeHostToPeerThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := Peered(t)
		var hung atomic.Bool
		hung.Store(true)
		start := time.Now()
		_, err := ExposeHost(t.Context(), a.Cluster, b.hangs(&hung), netip.MustParseAddr("192.0.2.7"), kube.Quiet{})
		took := time.Since(start)
		kit.ErrorIf(t, kubetest.KindOf(t, err) != kube.Busy || took > 26*time.Second, "after %s: %v", took, err)
	})
}

// endOfFirst records when the first step has ended.
type endOfFirst struct{ first *time.Time }

func (e endOfFirst) Step(ctx context.Context, _ string, do func(context.Context) error) error {
	err := do(ctx)
	if e.first.IsZero() {
		*e.first = time.Now()
	}
	return err
}

// The first cluster is reported as done when it is. An unresponsive one is waited for 20 s, and a slow one until it is done.
func TestUnpeerPeerThatHangs(t *testing.T) {
	kit.Play(t)
	var writes int
	synctest.Test(t, func(t *testing.T) {
		a, b := Peered(t)
		b.Writes = 0
		MustUnpeer(t, a, b)
		writes = b.Writes
	})
	for _, n := range kubetest.Moments(t, writes, 3) {
		kit.Bubble(t, fmt.Sprint("write ", n), func(t *testing.T) {
			a, b := TwoSites(t)
			before := a.contents(t)
			MustPeer(t, a, b, engine.Options{})
			var hung atomic.Bool
			var at, first time.Time
			b.Writes, b.BeforeWriteAt, b.BeforeWrite = 0, n, func() {
				at = time.Now()
				hung.Store(true)
			}
			_, _, err := Unpeer(kit.Timeout(t, 2*time.Minute), a.Cluster, b.hangs(&hung), endOfFirst{&first})
			took := time.Since(at)
			t.Logf("after %s, the first after %s: %v", took, first.Sub(at), err)
			kit.ErrorIf(t, !hung.Load() || kubetest.KindOf(t, err) != kube.OneSided || took > 26*time.Second, "after %s: %v", took, err)
			if first.Sub(at) > peerTimeout+5*time.Second {
				t.Errorf("the first cluster was said to be done after %s", first.Sub(at))
			}
			kit.Check(t, "a is not as before it was peered", a.contents(t), before)
			hung.Store(false)
			MustUnpeer(t, b, a)
		})
	}
	kit.Bubble(t, "slow", func(t *testing.T) {
		a, b := Peered(t)
		start := time.Now()
		slow := b.before(func(ctx context.Context) error {
			select {
			case <-time.After(500 * time.Millisecond):
			case <-ctx.Done():
			}
			return ctx.Err()
		})
		ctx := kit.Timeout(t, 2*time.Minute)
		if _, _, err := Unpeer(ctx, a.Cluster, slow, kube.Quiet{}); err != nil || time.Since(start) < kube.ResponseTimeout {
			t.Errorf("after %s: %v", time.Since(start), err)
		}
	})
}
