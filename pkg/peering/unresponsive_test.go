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

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/pkg/status"
	"github.com/liqonet/liqonet/pkg/version"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// hangs returns a cluster whose API server is unresponsive while hung is set.
func (w *Site) hangs(hung *atomic.Bool) *kube.Cluster {
	return w.partly(func(ctx context.Context, _, _ string) error {
		if hung.Load() {
			return hang(ctx)
		}
		return nil
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
// timeout expires before. Then the locks of the first cluster are free. peer has rolled it back, or says that the peering
// works and what is left. The next command completes the rest.
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
	for _, name := range kubetest.Some(t, slices.Sorted(maps.Keys(commands)), 3, len(commands)) {
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
					isCommitted := err != nil && name == "peer, one plane" && strings.HasPrefix(err.Error(), "the peering works as requested")
					if err != nil && strings.HasPrefix(name, "peer") && !isCommitted {
						kit.Check(t, "the contents of a", a.contents(t), before)
					}
					err = command(kit.Timeout(t, 10*time.Minute), a.Cluster, b.Cluster)
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

// partly is a cluster that answers some requests, and others not at all, or late. wait is told what is asked: a verb and a kind.
func (w *Site) partly(wait func(ctx context.Context, verb, kind string) error) *kube.Cluster {
	return w.Through(func(ctx context.Context, r *fakeapi.Request) error {
		end, err := func() {}, error(nil)
		if !r.Reads() { // a write has then started
			if end, err = lock.BeginWrite(ctx); err != nil {
				return err
			}
		}
		err = wait(ctx, r.Verb, r.Kind)
		end()
		if err != nil {
			return err
		}
		return r.Send(ctx)
	})
}

// hungs are what a cluster does not answer that may answer all else.
var hungs = map[string]func(verb, kind string) bool{
	"everything":         func(_, _ string) bool { return true },
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

// onTwo are commands on two clusters, which are peered but for the first one.
var onTwo = map[string]func(ctx context.Context, a, b *kube.Cluster) error{
	"peer, new": func(ctx context.Context, a, b *kube.Cluster) error {
		return kit.Err(Peer(ctx, a, b, engine.Options{}, kube.Quiet{}))
	},
	"peer, changed": verbs["peer"], "rotate-keys": verbs["rotate-keys"], "upgrade": verbs["upgrade"], "expose-host": verbs["expose-host"], "unpeer": verbs["unpeer"],
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

// A second cluster that does not answer some requests, or answers each one late, keeps the locks of the first one no longer than
// one that answers none.
func TestPeerThatHangsInPart(t *testing.T) {
	kit.Play(t)
	late := map[string]time.Duration{"each takes 1.1s": 1100 * time.Millisecond, "each takes 3.1s": 3100 * time.Millisecond}
	for name := range onTwo {
		for _, what := range kubetest.Some(t, append(slices.Sorted(maps.Keys(hungs)), slices.Sorted(maps.Keys(late))...), 1, len(hungs)+len(late)) {
			kit.Bubble(t, name+"/"+what, func(t *testing.T) {
				a, b := TwoSites(t)
				if name != "peer, new" {
					MustPeer(t, a, b, engine.Options{})
				}
				before := a.contents(t)
				locked, isHung, err := lockedFor(t, name, a, b, func(ctx context.Context, verb, kind string) error {
					if isHung := hungs[what]; isHung == nil {
						return sleep(ctx, late[what])
					} else if isHung(verb, kind) {
						return hang(ctx)
					}
					return nil
				})
				kit.ErrorIf(t, locked > 35*time.Second || late[what] == 0 && locked > 30*time.Second, "the locks were held for %s", locked)
				if late[what] == 0 && isHung && err != nil && strings.HasPrefix(name, "peer") {
					kit.Check(t, "the contents of a", a.contents(t), before)
				}
			})
		}
	}
}

// sleep lasts no longer than the context.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
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

// Unpeer says that a is done when it is, and waits for b for 20 s, whatever b leaves without an answer, and since whichever
// request. It waits for a slow one until it is done.
func TestUnpeerPeerThatHangs(t *testing.T) {
	kit.Play(t)
	var requests []int
	for i := range 60 {
		requests = append(requests, i+1)
	}
	for what, isHung := range kubetest.SomeOf(t, 3, hungs) {
		for _, from := range kubetest.Some(t, requests, 1, 20) {
			kit.Bubble(t, fmt.Sprint(what, " from request ", from), func(t *testing.T) {
				a, b := TwoSites(t)
				before := a.contents(t)
				MustPeer(t, a, b, engine.Options{})
				var asked atomic.Int32
				var hungAt atomic.Int64
				var first time.Time
				began := time.Now()
				_, _, err := Unpeer(kit.Timeout(t, 5*time.Minute), a.Cluster, b.partly(func(ctx context.Context, verb, kind string) error {
					if int(asked.Add(1)) >= from && isHung(verb, kind) {
						hungAt.CompareAndSwap(0, int64(time.Since(began))+1)
						return hang(ctx)
					}
					return nil
				}), endOfFirst{&first})
				took, at := time.Since(began), time.Duration(hungAt.Load())
				t.Logf("%d requests, hung at %s, took %s, the first after %s: %v", asked.Load(), at, took, first.Sub(began), err)
				kit.ErrorIf(t, first.Sub(began) > peerTimeout+5*time.Second, "a was said to be done after %s", first.Sub(began))
				kit.ErrorIf(t, took > 45*time.Second, "it took %s", took)
				if what == "everything" && at > 0 {
					kit.ErrorIf(t, kubetest.KindOf(t, err) != kube.OneSided || took-at > 26*time.Second, "%s later: %v", took-at, err)
				}
				kit.Check(t, "a is not as before it was peered", a.contents(t), before)
				MustUnpeer(t, b, a)
				LeavesNothing(t, a, b)
			})
		}
	}
	kit.Bubble(t, "slow", func(t *testing.T) {
		a, b := Peered(t)
		start := time.Now()
		slow := b.partly(func(ctx context.Context, _, _ string) error { return sleep(ctx, 500*time.Millisecond) })
		if _, _, err := Unpeer(kit.Timeout(t, 2*time.Minute), a.Cluster, slow, kube.Quiet{}); err != nil || time.Since(start) < kube.ResponseTimeout {
			t.Errorf("after %s: %v", time.Since(start), err)
		}
	})
}

// served is a cluster behind an API server that can fail.
func served(t *testing.T, name, nodeAddress, pods string) (*kube.Cluster, *fakeapi.Server) {
	t.Helper()
	server := kit.Must(fakeapi.New(fakeapi.Objects("id-of-"+name, name+"-1", nodeAddress, pods)...))(t)
	t.Cleanup(server.Close)
	s := kubetest.Scheme(t)
	mapper := meta.NewDefaultRESTMapper(nil)
	for gvk := range s.AllKnownTypes() {
		switch gvk.Kind {
		case "Namespace", "Node", "ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "CustomResourceDefinition", "SelfSubjectAccessReview", "ClusterNetwork", "Peering", "NodeNetwork":
			mapper.Add(gvk, meta.RESTScopeRoot)
		default:
			mapper.Add(gvk, meta.RESTScopeNamespace)
		}
	}
	c, err := client.NewWithWatch(&rest.Config{Host: server.URL, QPS: -1, WrapTransport: kube.RetryTransport}, client.Options{Scheme: s, Mapper: mapper})
	kit.NoError(t, err)
	return &kube.Cluster{Name: name, ID: "id-of-" + name, Client: c, DefaultImage: "image:1", Version: version.String(), Now: time.Now, Discovery: kubetest.NewCluster(t, name, interceptor.Funcs{}).Discovery}, server
}

// A short outage of an API server does not fail peer, in any step, and does not cause more requests.
func TestBlipOfAPIServerFailsNoPeer(t *testing.T) {
	kit.Play(t)
	a, serverA := served(t, "a", "172.18.1.11", "10.244.0.0/16")
	b, serverB := served(t, "b", "172.18.2.11", "10.244.0.0/16")
	const blip = 3 * time.Second
	// At the start of a step, and in the middle of one.
	o := Steps{
		"Installing the node agents":        func() { serverA.FailFor(blip) },
		"Pushing ranges, keys and gateways": func() { serverB.FailFor(blip) },
		"Waiting until packets pass":        func() { time.AfterFunc(10*time.Millisecond, func() { serverA.FailFor(blip) }) },
		"Removing the peering of a and b":   func() { t.Error("it was rolled back") },
		"Rolling back the changes":          func() { t.Error("it was put back") },
	}
	start := time.Now()
	kit.Must(Peer(t.Context(), a, b, engine.Options{}, o))(t)
	took := time.Since(start)
	kit.ErrorIf(t, took < 2*blip, "it took %s: nothing failed", took)
	for _, s := range []*fakeapi.Server{serverA, serverB} {
		// Most of them are the requests of an undisturbed run.
		n := s.Requests()
		kit.ErrorIf(t, n > 400, "%d requests in %s", n, took)
	}
}

// Waits list once and then watch. Conditions that cannot be watched are checked less and less often.
func TestWaitingDoesNotPoll(t *testing.T) {
	t.Parallel()
	t.Run("watched", func(t *testing.T) {
		t.Parallel()
		c, server := served(t, "a", "172.18.1.11", "10.244.0.0/16")
		kinds := append(engine.RolloutKinds(), status.ViewKinds()...)
		ctx := kit.Timeout(t, 2*time.Second)
		looks := 0
		err := c.Await(ctx, "wait", "", kinds, func(kube.Objects) (string, error) {
			looks++
			return "never", nil
		})
		kit.ErrorIf(t, kubetest.KindOf(t, err) != kube.NotReady || looks < 4, "after %d looks: %v", looks, err)
		n := server.Requests()
		kit.ErrorIf(t, n > 3*len(kinds), "%d requests for %d kinds", n, len(kinds))
	})
	t.Run("not watched", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			ctx := kit.Timeout(t, time.Minute)
			looks := 0
			err := kubetest.NewCluster(t, "a", interceptor.Funcs{}).Await(ctx, "wait", "", nil, func(kube.Objects) (string, error) {
				looks++
				return "never", nil
			})
			kit.ErrorIf(t, kubetest.KindOf(t, err) != kube.NotReady || looks < 50 || looks > 90, "after %d looks: %v", looks, err)
		})
	})
}
