package peering

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
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

// before runs a function before each request to a cluster. A write has then started.
func (w *Site) before(do func(context.Context) error) *kube.Cluster {
	write := func(ctx context.Context) error {
		end, err := lock.Begin(ctx)
		if err != nil {
			return err
		}
		defer end()
		return do(ctx)
	}
	c := *w.Cluster
	c.Client = interceptor.NewClient(w.Client, interceptor.Funcs{
		Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if err := do(ctx); err != nil {
				return err
			}
			return api.Get(ctx, key, obj, opts...)
		},
		List: func(ctx context.Context, api client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if err := do(ctx); err != nil {
				return err
			}
			return api.List(ctx, list, opts...)
		},
		Watch: func(ctx context.Context, api client.WithWatch, list client.ObjectList, opts ...client.ListOption) (watch.Interface, error) {
			if err := do(ctx); err != nil {
				return nil, err
			}
			return api.Watch(ctx, list, opts...)
		},
		Create: func(ctx context.Context, api client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			if err := write(ctx); err != nil {
				return err
			}
			return api.Create(ctx, obj, opts...)
		},
		Update: func(ctx context.Context, api client.WithWatch, obj client.Object, opts ...client.UpdateOption) error {
			if err := write(ctx); err != nil {
				return err
			}
			return api.Update(ctx, obj, opts...)
		},
		Patch: func(ctx context.Context, api client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			if err := write(ctx); err != nil {
				return err
			}
			return api.Patch(ctx, obj, patch, opts...)
		},
		Apply: func(ctx context.Context, api client.WithWatch, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			if err := write(ctx); err != nil {
				return err
			}
			return api.Apply(ctx, obj, opts...)
		},
		Delete: func(ctx context.Context, api client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			if err := write(ctx); err != nil {
				return err
			}
			return api.Delete(ctx, obj, opts...)
		},
		SubResourceApply: func(ctx context.Context, api client.Client, sub string, obj runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
			if err := write(ctx); err != nil {
				return err
			}
			return api.SubResource(sub).Apply(ctx, obj, opts...)
		},
	})
	return &c
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
	_, held, err := lock.Take(ctx, "upgrade", kube.Quiet{}.Step, engine.LockOf(w.Cluster, ""))
	took := time.Since(start)
	held.Release()
	return took, err
}

// If the second cluster becomes unresponsive, at any write to it, the command ends after about 20 s, even if its own
// timeout expires before. Then the locks of the first cluster, which peer rolls back, are free. The next command
// completes the rest.
func TestPeerThatHangs(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	const enough = 26 * time.Second
	commands := map[string]func(ctx context.Context, a, b *kube.Cluster) error{
		"peer, new": func(ctx context.Context, a, b *kube.Cluster) error {
			_, err := Peer(ctx, a, b, engine.Options{}, kube.Quiet{})
			return err
		},
		"peer, changed": func(ctx context.Context, a, b *kube.Cluster) error {
			_, err := Peer(ctx, a, b, engine.Options{Image: "image:2"}, kube.Quiet{})
			return err
		},
		"rotate-keys": func(ctx context.Context, a, b *kube.Cluster) error {
			_, err := Rotate(ctx, a, b, Rotation{}, kube.Quiet{})
			return err
		},
		"rotate-keys --psk-only": func(ctx context.Context, a, b *kube.Cluster) error {
			_, err := Rotate(ctx, a, b, Rotation{PresharedOnly: true}, kube.Quiet{})
			return err
		},
		"upgrade": func(ctx context.Context, a, b *kube.Cluster) error {
			out, err := UpgradeAll(ctx, []*kube.Cluster{a, b}, Newer(), kube.Quiet{})
			for _, u := range out {
				err = errors.Join(err, u.Err)
			}
			return err
		},
	}
	for name, command := range commands {
		setup := func(t *testing.T) (a, b *Site) {
			a, b = TwoSites(t)
			if name != "peer, new" {
				MustPeer(t, a, b, engine.Options{})
			}
			a.Writes, b.Writes = 0, 0
			return a, b
		}
		var writes int
		synctest.Test(t, func(t *testing.T) {
			a, b := setup(t)
			if err := command(t.Context(), a.Cluster, b.Cluster); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			writes = b.Writes
		})
		for _, n := range kubetest.Moments(t, writes, 2) {
			for _, timeout := range kubetest.Some(t, []time.Duration{5 * time.Minute, 2 * time.Second}, 1, 2) {
				t.Run(fmt.Sprintf("%s/write %d, %s", name, n, timeout), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
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
								if err != nil {
									t.Error(err)
								}
								free <- took
							}()
						}
						err := command(ctx, a.Cluster, b.hangs(&hung))
						cancel(nil)
						if !hung.Load() {
							t.Fatalf("it did not come to that write: %v", err)
						}
						took := <-free
						t.Logf("free after %s: %v", took, err)
						if took > enough {
							t.Errorf("the locks were held for %s", took)
						}
						hung.Store(false)
						if err == nil { // everything was done before
							if plan := DryRun(t, a, b, engine.Options{}); plan.Changes() > 0 {
								t.Errorf("without an error, it has left changes: %v", changesOf(plan))
							}
						} else if timeout > enough && kubetest.KindOf(t, err) != kube.Busy {
							t.Errorf("got %v", err)
						}
						if strings.HasPrefix(name, "peer") {
							if diff := cmp.Diff(before, a.contents(t)); diff != "" {
								t.Errorf("a is not as before:\n%s", diff)
							}
						}
						if err := command(t.Context(), a.Cluster, b.Cluster); err != nil {
							t.Errorf("again: %v", err)
						}
					})
				})
			}
		}
	}
}

// A cluster that is unresponsive during the identity check delays expose-host for 20 s.
func TestExposeHostToPeerThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := TwoSites(t)
		MustPeer(t, a, b, engine.Options{})
		var hung atomic.Bool
		hung.Store(true)
		start := time.Now()
		_, err := ExposeHost(t.Context(), a.Cluster, b.hangs(&hung), netip.MustParseAddr("192.0.2.7"), kube.Quiet{})
		if took := time.Since(start); kubetest.KindOf(t, err) != kube.Busy || took > 26*time.Second {
			t.Errorf("after %s: %v", took, err)
		}
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
	kit.Slow(t)
	t.Parallel()
	var writes int
	synctest.Test(t, func(t *testing.T) {
		a, b := TwoSites(t)
		MustPeer(t, a, b, engine.Options{})
		b.Writes = 0
		if _, _, err := Unpeer(t.Context(), a.Cluster, b.Cluster, kube.Quiet{}); err != nil {
			t.Fatal(err)
		}
		writes = b.Writes
	})
	for _, n := range kubetest.Moments(t, writes, 3) {
		t.Run(fmt.Sprint("write ", n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := TwoSites(t)
				before := a.contents(t)
				MustPeer(t, a, b, engine.Options{})
				var hung atomic.Bool
				var at, first time.Time
				b.Writes, b.BeforeWriteAt, b.BeforeWrite = 0, n, func() {
					at = time.Now()
					hung.Store(true)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				_, _, err := Unpeer(ctx, a.Cluster, b.hangs(&hung), endOfFirst{&first})
				took := time.Since(at)
				t.Logf("after %s, the first after %s: %v", took, first.Sub(at), err)
				if !hung.Load() || kubetest.KindOf(t, err) != kube.OneSided || took > 26*time.Second {
					t.Errorf("after %s: %v", took, err)
				}
				if first.Sub(at) > answerTimeout+5*time.Second {
					t.Errorf("the first cluster was said to be done after %s", first.Sub(at))
				}
				if diff := cmp.Diff(before, a.contents(t)); diff != "" {
					t.Errorf("a is not as before it was peered:\n%s", diff)
				}
				hung.Store(false)
				if _, _, err := Unpeer(t.Context(), b.Cluster, a.Cluster, kube.Quiet{}); err != nil {
					t.Error(err)
				}
			})
		})
	}
	t.Run("slow", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a, b := TwoSites(t)
			MustPeer(t, a, b, engine.Options{})
			start := time.Now()
			slow := b.before(func(ctx context.Context) error {
				select {
				case <-time.After(500 * time.Millisecond):
				case <-ctx.Done():
				}
				return ctx.Err()
			})
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			if _, _, err := Unpeer(ctx, a.Cluster, slow, kube.Quiet{}); err != nil || time.Since(start) < kube.ResponseTimeout {
				t.Errorf("after %s: %v", time.Since(start), err)
			}
		})
	})
}
