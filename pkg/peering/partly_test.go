package peering

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// partly is a cluster that answers some requests, and others not at all, or late. wait is told what is asked: a verb and a kind.
func (w *Site) partly(wait func(ctx context.Context, verb, kind string) error) *kube.Cluster {
	c := *w.Cluster
	write := func(ctx context.Context, verb, kind string) error {
		end, err := lock.Begin(ctx)
		if err != nil {
			return err
		}
		defer end()
		return wait(ctx, verb, kind)
	}
	c.Client = interceptor.NewClient(w.Client, interceptor.Funcs{
		Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if err := wait(ctx, "get", kube.KindName(obj)); err != nil {
				return err
			}
			return api.Get(ctx, key, obj, opts...)
		},
		List: func(ctx context.Context, api client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if err := wait(ctx, "list", kube.KindName(list)); err != nil {
				return err
			}
			return api.List(ctx, list, opts...)
		},
		Watch: func(ctx context.Context, api client.WithWatch, list client.ObjectList, opts ...client.ListOption) (watch.Interface, error) {
			if err := wait(ctx, "watch", kube.KindName(list)); err != nil {
				return nil, err
			}
			return api.Watch(ctx, list, opts...)
		},
		Create: func(ctx context.Context, api client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			if err := write(ctx, "create", kube.KindName(obj)); err != nil {
				return err
			}
			return api.Create(ctx, obj, opts...)
		},
		Update: func(ctx context.Context, api client.WithWatch, obj client.Object, opts ...client.UpdateOption) error {
			if err := write(ctx, "update", kube.KindName(obj)); err != nil {
				return err
			}
			return api.Update(ctx, obj, opts...)
		},
		Patch: func(ctx context.Context, api client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			if err := write(ctx, "patch", kube.KindName(obj)); err != nil {
				return err
			}
			return api.Patch(ctx, obj, patch, opts...)
		},
		Apply: func(ctx context.Context, api client.WithWatch, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			u, err := applied(obj)
			if err == nil {
				err = write(ctx, "apply", u.GetKind())
			}
			if err != nil {
				return err
			}
			return api.Apply(ctx, obj, opts...)
		},
		Delete: func(ctx context.Context, api client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			if err := write(ctx, "delete", kube.KindName(obj)); err != nil {
				return err
			}
			return api.Delete(ctx, obj, opts...)
		},
		SubResourceApply: func(ctx context.Context, api client.Client, sub string, obj runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
			if err := write(ctx, "apply", sub); err != nil {
				return err
			}
			return api.SubResource(sub).Apply(ctx, obj, opts...)
		},
	})
	return &c
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
		_, err := Peer(ctx, a, b, engine.Options{}, kube.Quiet{})
		return err
	},
	"peer, changed": func(ctx context.Context, a, b *kube.Cluster) error {
		_, err := Peer(ctx, a, b, engine.Options{Image: "image:2"}, kube.Quiet{})
		return err
	},
	"rotate-keys": verbs["rotate-keys"],
	"upgrade":     verbs["upgrade"],
	"expose-host": func(ctx context.Context, a, b *kube.Cluster) error {
		_, err := ExposeHost(ctx, a, b, netip.MustParseAddr("192.0.2.7"), kube.Quiet{})
		return err
	},
	"unpeer": verbs["unpeer"],
}

// A second cluster that answers some requests, and others not at all, keeps the locks of the first one no longer than one that answers none.
func TestPeerThatHangsInPart(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	for name, command := range onTwo {
		for _, what := range kubetest.Some(t, slices.Sorted(maps.Keys(hungs)), 2, len(hungs)) {
			isHung := hungs[what]
			t.Run(name+"/"+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a, b := TwoSites(t)
					if name != "peer, new" {
						MustPeer(t, a, b, engine.Options{})
					}
					before := a.contents(t)
					var hung atomic.Bool
					free := make(chan time.Duration, 1)
					begin := func() {
						if hung.Swap(true) {
							return
						}
						go func() {
							took, err := a.free(t.Context())
							if err != nil {
								t.Error(err)
							}
							free <- took
						}()
					}
					a.Writes, b.Writes = 0, 0
					a.BeforeWriteAt, a.BeforeWrite = 2, begin
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
					defer cancel()
					began := time.Now()
					err := command(ctx, a.Cluster, b.partly(func(ctx context.Context, verb, kind string) error {
						if hung.Load() && isHung(verb, kind) {
							return hang(ctx)
						}
						return nil
					}))
					took := time.Since(began)
					if !hung.Load() {
						t.Logf("it did not come to that")
						return
					}
					locked := <-free
					t.Logf("took %s, free after %s: %v", took, locked, err)
					if locked > 30*time.Second {
						t.Errorf("the locks were held for %s", locked)
					}
					if diff := cmp.Diff(before, a.contents(t)); err != nil && diff != "" && (name == "peer, new" || name == "peer, changed") {
						t.Errorf("a is not as before:\n%s", diff)
					}
				})
			})
		}
	}
}

// The same where each answer takes long.
func TestPeerThatIsSlow(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	for name, command := range onTwo {
		for _, each := range []time.Duration{1100 * time.Millisecond, 3100 * time.Millisecond} {
			t.Run(fmt.Sprint(name, "/", each), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a, b := TwoSites(t)
					if name != "peer, new" {
						MustPeer(t, a, b, engine.Options{})
					}
					var hung atomic.Bool
					free := make(chan time.Duration, 1)
					a.Writes, b.Writes = 0, 0
					a.BeforeWriteAt, a.BeforeWrite = 2, func() {
						hung.Store(true)
						go func() {
							took, _ := a.free(t.Context())
							free <- took
						}()
					}
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
					defer cancel()
					err := command(ctx, a.Cluster, b.partly(func(ctx context.Context, verb, kind string) error {
						if hung.Load() {
							select {
							case <-time.After(each):
							case <-ctx.Done():
								return context.Cause(ctx)
							}
						}
						return nil
					}))
					if !hung.Load() {
						return
					}
					locked := <-free
					t.Logf("free after %s: %v", locked, err)
					if locked > 35*time.Second {
						t.Errorf("the locks were held for %s", locked)
					}
				})
			})
		}
	}
}

// Unpeer says that a is done when it is, and does not wait for b, whatever b leaves without an answer, and since whichever request.
func TestUnpeerPeerThatHangsInPart(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	for what, isHung := range hungs {
		for _, from := range kubetest.Some(t, []int{1, 5, 10, 20, 40}, 1, 5) {
			t.Run(fmt.Sprint(what, " from request ", from), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a, b := TwoSites(t)
					before := a.contents(t)
					MustPeer(t, a, b, engine.Options{})
					var asked atomic.Int32
					var first time.Time
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
					defer cancel()
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
					if took > 45*time.Second {
						t.Errorf("it took %s", took)
					}
					if diff := cmp.Diff(before, a.contents(t)); diff != "" {
						t.Errorf("a is not as before it was peered:\n%s", diff)
					}
				})
			})
		}
	}
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

// If b stops answering in the midst of peer, at any request, a is as before.
func TestRollBackWithoutThePeer(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	for _, name := range kubetest.Some(t, slices.Sorted(maps.Keys(changes)), 3, len(changes)) {
		o := changes[name]
		requests := 0
		setup := func(t *testing.T) (a, b *Site) {
			a, b = TwoSites(t, kubetest.Node("other", true, "172.18.9.9"))
			if name != "new" {
				MustPeer(t, a, b, o[0])
			}
			a.Writes, b.Writes = 0, 0
			return a, b
		}
		synctest.Test(t, func(t *testing.T) {
			a, b := setup(t)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			if _, err := Peer(ctx, a.Cluster, b.Cluster, o[1], kube.Quiet{}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			requests = b.Writes
		})
		for _, n := range kubetest.Moments(t, requests, 1) {
			t.Run(fmt.Sprint(name, "/write ", n, " of ", requests), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a, b := setup(t)
					before := a.contents(t)
					var hung atomic.Bool
					free := make(chan time.Duration, 1)
					b.BeforeWriteAt, b.BeforeWrite = n, func() {
						hung.Store(true)
						go func() {
							took, _ := a.free(t.Context())
							free <- took
						}()
					}
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
					defer cancel()
					_, err := Peer(ctx, a.Cluster, b.hangs(&hung), o[1], kube.Quiet{})
					if !hung.Load() {
						t.Logf("not hung: %v", err)
						return
					}
					if took := <-free; took > 30*time.Second {
						t.Errorf("free after %s", took)
					}
					if err == nil {
						return
					}
					if diff := cmp.Diff(before, a.contents(t)); diff != "" {
						t.Errorf("a is not as before (%v):\n%s", err, diff)
					}
					hung.Store(false)
					if _, err := Peer(t.Context(), a.Cluster, b.Cluster, o[1], kube.Quiet{}); err != nil {
						t.Errorf("again: %v", err)
					}
				})
			})
		}
	}
}
