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
	"time"

	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// partly is a cluster that answers some requests, and others not at all, or late. wait is told what is asked: a verb and a kind.
func (w *Site) partly(wait func(ctx context.Context, verb, kind string) error) *kube.Cluster {
	return w.Through(func(ctx context.Context, r *fakeapi.Request) error {
		err := begun(ctx, r, func() error { return wait(ctx, r.Verb, r.Kind) })
		if err != nil {
			return err
		}
		return r.Send(ctx)
	})
}

// hungs are what a cluster does not answer that answers all else.
var hungs = map[string]func(verb, kind string) bool{
	"all but namespaces": func(_, kind string) bool { return kind != "Namespace" },
	"writes":             func(verb, _ string) bool { return verb != "get" && verb != "list" && verb != "watch" },
	"lists":              func(verb, _ string) bool { return verb == "list" },
	"watches":            func(verb, _ string) bool { return verb == "watch" },
	"Leases":             func(_, kind string) bool { return kind == "Lease" },
	"Secrets":            func(_, kind string) bool { return kind == "Secret" },
	"Namespaces":         func(_, kind string) bool { return kind == "Namespace" },
}

func hang(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

var onTwo = map[string]func(ctx context.Context, a, b *kube.Cluster) error{
	"peer, new": func(ctx context.Context, a, b *kube.Cluster) error {
		return kit.Err(Peer(ctx, a, b, engine.Options{}, kube.Quiet{}))
	},
	"peer, changed": func(ctx context.Context, a, b *kube.Cluster) error {
		return kit.Err(Peer(ctx, a, b, engine.Options{Image: "image:2"}, kube.Quiet{}))
	},
	"rotate-keys": verbs["rotate-keys"],
	"upgrade":     verbs["upgrade"],
	"expose-host": func(ctx context.Context, a, b *kube.Cluster) error {
		return kit.Err(ExposeHost(ctx, a, b, netip.MustParseAddr("192.0.2.7"), kube.Quiet{}))
	},
	"unpeer": verbs["unpeer"],
}

// lockedFor runs a command whose second cluster makes wait wait from the second write to the first one. It returns how long the
// first one was locked then, false if the command has ended before.
func lockedFor(t *testing.T, name string, a, b *Site, wait func(ctx context.Context, verb, kind string) error) (time.Duration, bool, error) {
	t.Helper()
	var begun atomic.Bool
	free := make(chan time.Duration, 1)
	a.Writes, b.Writes = 0, 0
	a.BeforeWriteAt, a.BeforeWrite = 2, func() {
		if begun.Swap(true) {
			return
		}
		go func() {
			took, err := a.free(t.Context())
			kit.CheckNoError(t, err)
			free <- took
		}()
	}
	err := onTwo[name](kit.Timeout(t, 5*time.Minute), a.Cluster, b.partly(func(ctx context.Context, verb, kind string) error {
		if begun.Load() {
			return wait(ctx, verb, kind)
		}
		return nil
	}))
	if !begun.Load() {
		return 0, false, err
	}
	locked := <-free
	t.Logf("free after %s: %v", locked, err)
	return locked, true, err
}

// setUp returns two clusters as a command of onTwo finds them.
func setUp(t *testing.T, name string) (a, b *Site) {
	if name == "peer, new" {
		return TwoSites(t)
	}
	return Peered(t)
}

// A second cluster that answers some requests, and others not at all, keeps the locks of the first one no longer than one that
// answers none.
func TestPeerThatHangsInPart(t *testing.T) {
	kit.Play(t)
	for name := range onTwo {
		for _, what := range kubetest.Some(t, slices.Sorted(maps.Keys(hungs)), 2, len(hungs)) {
			kit.Bubble(t, name+"/"+what, func(t *testing.T) {
				a, b := setUp(t, name)
				before := a.contents(t)
				locked, isHung, err := lockedFor(t, name, a, b, func(ctx context.Context, verb, kind string) error {
					if hungs[what](verb, kind) {
						return hang(ctx)
					}
					return nil
				})
				kit.ErrorIf(t, locked > 30*time.Second, "the locks were held for %s", locked)
				if isHung && err != nil && strings.HasPrefix(name, "peer") {
					kit.Check(t, "the contents of a", a.contents(t), before)
				}
			})
		}
	}
}

// The same where each answer takes long.
func TestPeerThatIsSlow(t *testing.T) {
	kit.Play(t)
	for name := range onTwo {
		for _, each := range []time.Duration{1100 * time.Millisecond, 3100 * time.Millisecond} {
			kit.Bubble(t, fmt.Sprint(name, "/", each), func(t *testing.T) {
				a, b := setUp(t, name)
				locked, _, _ := lockedFor(t, name, a, b, func(ctx context.Context, _, _ string) error {
					select {
					case <-time.After(each):
						return nil
					case <-ctx.Done():
						return context.Cause(ctx)
					}
				})
				kit.ErrorIf(t, locked > 35*time.Second, "the locks were held for %s", locked)
			})
		}
	}
}

// Unpeer says that a is done when it is, and does not wait for b, whatever b leaves without an answer, and since whichever request.
func TestUnpeerPeerThatHangsInPart(t *testing.T) {
	kit.Play(t)
	for what, isHung := range hungs {
		for _, from := range kubetest.Some(t, []int{1, 5, 10, 20, 40}, 1, 5) {
			kit.Bubble(t, fmt.Sprint(what, " from request ", from), func(t *testing.T) {
				a, b := TwoSites(t)
				before := a.contents(t)
				MustPeer(t, a, b, engine.Options{})
				var asked atomic.Int32
				var first time.Time
				ctx := kit.Timeout(t, 5*time.Minute)
				began := time.Now()
				var at atomic.Int64
				_, _, err := Unpeer(ctx, a.Cluster, b.partly(func(ctx context.Context, verb, kind string) error {
					if int(asked.Add(1)) >= from && isHung(verb, kind) {
						at.CompareAndSwap(0, int64(time.Since(began))+1)
						return hang(ctx)
					}
					return nil
				}), endOfFirst{&first})
				took := time.Since(began)
				t.Logf("%d requests, hung at %s, took %s, the first after %s: %v", asked.Load(), time.Duration(at.Load()), took, first.Sub(began), err)
				if first.Sub(began) > 25*time.Second {
					t.Errorf("a was said to be done after %s", first.Sub(began))
				}
				kit.ErrorIf(t, took > 45*time.Second, "it took %s", took)
				kit.Check(t, "a is not as before it was peered", a.contents(t), before)
			})
		}
	}
}
