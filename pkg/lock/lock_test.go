package lock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
)

// newAPI returns the API of a cluster, with an API server's preconditions for updating or deleting a Lease.
func newAPI(t *testing.T) client.Client {
	t.Helper()
	api := kit.Must(fakeapi.NewClient())(t)
	return api
}

// stopped is the API of a process that can be stopped: while stopped, it reaches nothing.
type stopped struct {
	client.Client
	is atomic.Bool
}

func (s *stopped) here() client.Client {
	return fakeapi.Intercept(s.Client.(client.WithWatch), func(ctx context.Context, r *fakeapi.Request) error {
		for s.is.Load() && (r.Verb == "create" || r.Verb == "update") {
			time.Sleep(100 * time.Millisecond)
			ctx = context.Background() // it was stopped, and not its request
		}
		return r.Send(ctx)
	})
}

func peering(api client.Client, peer string) lock.Cluster {
	return lock.Cluster{API: api, ID: "a", Name: "a", Peer: peer}
}

func silently(ctx context.Context, _ string, until func(context.Context) error) error {
	return until(ctx)
}

func take(t *testing.T, verb string, clusters ...lock.Cluster) (context.Context, *lock.Held) {
	t.Helper()
	ctx, held, err := lock.Acquire(t.Context(), verb, silently, clusters...)
	kit.FatalIf(t, err != nil, "%s: %v", verb, err)
	return ctx, held
}

// check returns whether a write may begin, as an error.
func check(ctx context.Context) error {
	end, err := lock.BeginWrite(ctx)
	if err == nil {
		end()
	}
	return err
}

func leases(t *testing.T, api client.Client) (out []coordinationv1.Lease) {
	t.Helper()
	var list coordinationv1.LeaseList
	kit.NoError(t, api.List(t.Context(), &list))
	return list.Items
}

// Which commands may run at the same time, and how long others wait.
func TestWhoWaits(t *testing.T) {
	exclusive := func(api client.Client, peer string) lock.Cluster {
		c := peering(api, peer)
		c.Exclusive = true
		return c
	}
	for name, tc := range map[string]struct {
		first, second func(api client.Client, peer string) lock.Cluster
		peers         [2]string
		waits         bool
	}{
		"the same peering":                     {peering, peering, [2]string{"b", "b"}, true},
		"two peerings":                         {peering, peering, [2]string{"b", "c"}, false},
		"a peering, then the cluster":          {peering, exclusive, [2]string{"b", ""}, true},
		"the cluster, then a peering":          {exclusive, peering, [2]string{"", "b"}, true},
		"the cluster twice":                    {exclusive, exclusive, [2]string{"", ""}, true},
		"the cluster with two peerings of it":  {exclusive, exclusive, [2]string{"b", "c"}, true},
		"a peering, then the cluster and this": {peering, exclusive, [2]string{"b", "b"}, true},
	} {
		kit.Bubble(t, name, func(t *testing.T) {
			api := newAPI(t)
			_, first := take(t, "first", tc.first(api, tc.peers[0]))
			go func() {
				time.Sleep(time.Minute)
				first.Release()
			}()
			begun, said := time.Now(), ""
			_, second, err := lock.Acquire(t.Context(), "second", func(ctx context.Context, reason string, until func(context.Context) error) error {
				said = reason
				return until(ctx)
			}, tc.second(api, tc.peers[1]))
			kit.NoError(t, err)
			took := time.Since(begun)
			kit.ErrorIf(t, tc.waits != (took >= time.Minute) || tc.waits != (took > 0) || took > time.Minute+time.Second, "it took %s", took)
			kit.ErrorIf(t, tc.waits != strings.HasPrefix(said, "a: waiting for first of "), "it said %q", said)
			second.Release()
			time.Sleep(2 * time.Minute)
			left := leases(t, api)
			kit.ErrorIf(t, len(left) > 0, "%d Leases are left: %v", len(left), left)
		})
	}
}

// The lock of a killed command is free after 6 s, regardless of its machine's clock.
func TestKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here := &stopped{Client: newAPI(t)}
		ctx, first := take(t, "peer", peering(here.here(), "b"))
		here.is.Store(true)
		l := leases(t, here.Client)[0]
		l.Spec.RenewTime = &metav1.MicroTime{Time: time.Now().Add(time.Hour)}
		kit.NoError(t, here.Client.Update(t.Context(), &l))
		begun := time.Now()
		_, second := take(t, "rotate-keys", peering(here.Client, "b"))
		took := time.Since(begun)
		kit.ErrorIf(t, took < lock.Expiry || took > lock.Expiry+2*time.Second, "it took %s", took)
		// The first one was only stopped. It learns which command has overtaken it, even after that has ended.
		second.Release()
		time.Sleep(time.Minute)
		here.is.Store(false)
		err := check(ctx)
		kit.ErrorIf(t, !errors.Is(err, lock.ErrOvertaken) || !strings.Contains(err.Error(), "overtaken by rotate-keys of "), "got %v", err)
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), lock.ErrOvertaken) {
			t.Errorf("it ended with %v", context.Cause(ctx))
		}
		first.Release()
		_, third := take(t, "peer", peering(here.Client, "b"))
		third.Release()
		left := leases(t, here.Client)
		kit.ErrorIf(t, len(left) > 0, "%d Leases are left", len(left))
	})
}

// A stopped command whose lock nobody has taken continues.
func TestStoppedAndGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here := &stopped{Client: newAPI(t)}
		ctx, held := take(t, "peer", peering(here.here(), "b"))
		here.is.Store(true)
		time.Sleep(time.Hour)
		here.is.Store(false)
		kit.CheckNoError(t, check(ctx))
		time.Sleep(time.Hour) // it is renewed again
		if err := check(ctx); err != nil || ctx.Err() != nil {
			t.Error(err, ctx.Err())
		}
		held.Release()
	})
}

// unpeer makes other commands give up, alive or not, and waits for another unpeer.
func TestOverrules(t *testing.T) {
	for name, tc := range map[string]struct {
		verb        string
		stop, all   bool
		writes      time.Duration // how long its write takes, before it hangs for 20 s
		least, most time.Duration
	}{
		"a command that gives up":   {"peer", false, false, 0, 1, lock.RenewInterval + time.Second},
		"one that does not":         {"peer", true, false, 0, lock.Expiry, lock.Expiry + time.Second},
		"one that has the cluster":  {"rotate-keys", false, true, 0, 1, lock.RenewInterval + time.Second},
		"the same, and does not":    {"rotate-keys", true, true, 0, lock.Expiry, lock.Expiry + 2*time.Second},
		"one that hangs":            {"peer", false, false, time.Second, 1, lock.RenewInterval + time.Second},
		"one that hangs in a write": {"peer", false, false, 4 * time.Second, 4 * time.Second, 5 * time.Second},
		"one that hangs for longer": {
			"rotate-keys", false, true, 9 * time.Second, lock.Expiry,
			lock.Expiry + lock.RenewInterval + time.Second,
		},
		"another unpeer, that lives": {lock.Unpeer, false, false, 0, time.Minute, time.Minute + time.Second},
	} {
		kit.Bubble(t, name, func(t *testing.T) {
			here := &stopped{Client: newAPI(t)}
			held := peering(here.here(), "b")
			held.Exclusive = tc.all
			ctx, first := take(t, tc.verb, held)
			here.is.Store(tc.stop)
			go func() {
				if tc.writes > 0 {
					end, err := lock.BeginWrite(ctx)
					if err != nil {
						t.Error(err)
						return
					}
					time.Sleep(tc.writes)
					end()
					time.Sleep(20 * time.Second)
					first.Release()
					return
				}
				select {
				case <-ctx.Done():
				case <-time.After(time.Minute):
				}
				first.Release()
			}()
			synctest.Wait()
			begun := time.Now()
			_, second := take(t, lock.Unpeer, peering(here.Client, "b"))
			took := time.Since(begun)
			kit.ErrorIf(t, took < tc.least || took > tc.most, "it took %s", took)
			if tc.verb != lock.Unpeer && !tc.stop && !strings.Contains(context.Cause(ctx).Error(), "overtaken by unpeer of ") {
				t.Errorf("the first one has ended with %v", context.Cause(ctx))
			}
			second.Release()
			here.is.Store(false)
			<-ctx.Done()
			time.Sleep(time.Minute)
			for _, note := range leases(t, here.Client) { // they record which command was overtaken, and by which
				if note.Spec.HolderIdentity != nil {
					t.Errorf("%s still holds %s", *note.Spec.HolderIdentity, note.Name)
				}
			}
			kit.CheckNoError(t, lock.DeleteOvertakenLeases(t.Context(), here.Client))
			left := leases(t, here.Client)
			kit.ErrorIf(t, len(left) > 0, "%d Leases are left", len(left))
		})
	}
}

// A command waits the given time for a cluster whose lock is held, or that does not answer. After that it holds no locks.
func TestBusy(t *testing.T) {
	for name, hangs := range map[string]bool{"held": false, "does not answer": true} {
		kit.Bubble(t, name, func(t *testing.T) {
			own, other := newAPI(t), newAPI(t)
			_, first := take(t, "upgrade", lock.Cluster{API: other, ID: "b", Name: "b", Exclusive: true})
			api := other
			if hangs {
				api = fakeapi.Intercept(other.(client.WithWatch), func(ctx context.Context, r *fakeapi.Request) error {
					if r.Verb != "list" {
						return r.Send(ctx)
					}
					<-ctx.Done()
					return ctx.Err()
				})
			}
			begun := time.Now()
			_, _, err := lock.Acquire(t.Context(), "peer", silently, peering(own, "b"), lock.Cluster{API: api, ID: "b", Name: "b", Peer: "a", Timeout: 20 * time.Second})
			busy := (*lock.Busy)(nil)
			if took := time.Since(begun); !errors.As(err, &busy) || busy.Cluster != "b" || took != 20*time.Second || strings.HasPrefix(busy.Holder, "upgrade of ") == hangs {
				t.Errorf("after %s: %v", took, err)
			}
			left := leases(t, own)
			kit.ErrorIf(t, len(left) > 0, "%d Leases are left", len(left))
			first.Release()
		})
	}
}

// A command waits longer than the given time for one that works in both clusters, but not for one that only has the name
// of a command that was killed in the other cluster.
func TestWaitsForCommandsOnBothClusters(t *testing.T) {
	for name, isKilled := range map[string]bool{"alive": false, "killed": true} {
		kit.Bubble(t, name, func(t *testing.T) {
			here, hostile := &stopped{Client: newAPI(t)}, newAPI(t)
			own := func(api client.Client) lock.Cluster { return lock.Cluster{API: api, ID: "b", Name: "b", Peer: "a"} }
			_, first := take(t, "peer", own(here.here()), peering(hostile, "b"))
			here.is.Store(isKilled)
			begun, want := time.Now(), time.Minute
			time.AfterFunc(want, first.Release)
			other := peering(hostile, "b")
			other.Timeout = 20 * time.Second
			_, second, err := lock.Acquire(t.Context(), "peer", silently, own(here.Client), other)
			if isKilled {
				want = lock.Expiry + other.Timeout
			}
			busy := (*lock.Busy)(nil)
			took := time.Since(begun)
			kit.ErrorIf(t, (took-want).Abs() > time.Second || errors.As(err, &busy) != isKilled, "after %s: %v", took, err)
			here.is.Store(false)
			time.Sleep(time.Minute)
			second.Release()
			first.Release()
		})
	}
}

// The second cluster cannot prolong the wait by giving a lock there the name of the command that waits for it, or of one
// that works on another peering of the first cluster.
func TestWaitsForNoOtherName(t *testing.T) {
	for name, own := range map[string]bool{"of the waiting command": true, "of a command on another peering": false} {
		kit.Bubble(t, name, func(t *testing.T) {
			here, hostile := newAPI(t), newAPI(t)
			_, other := take(t, "peer", peering(here, "c"))
			_, first := take(t, "peer", peering(hostile, "c"))
			begun := time.Now()
			renaming := fakeapi.Intercept(hostile.(client.WithWatch), func(ctx context.Context, r *fakeapi.Request) error {
				err := r.Send(ctx)
				if found, isLeases := r.Object.(*coordinationv1.LeaseList); isLeases {
					for _, l := range leases(t, here) {
						for i := range found.Items {
							if (l.Name == "liqonet-peering-b") == own {
								found.Items[i].Spec.HolderIdentity = l.Spec.HolderIdentity
							}
						}
					}
				}
				return err
			})
			_, _, err := lock.Acquire(kit.Timeout(t, time.Minute), "rotate-keys", silently, peering(here, "b"),
				lock.Cluster{API: renaming, ID: "b", Name: "b", Peer: "a", Exclusive: true, Timeout: 20 * time.Second})
			busy, took := (*lock.Busy)(nil), time.Since(begun)
			kit.ErrorIf(t, !errors.As(err, &busy) || took != 20*time.Second, "after %s: %v", took, err)
			first.Release()
			other.Release()
		})
	}
}

// A command that waits for its second cluster also gives up when it is asked to in the first one.
func TestGivesUpWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, other := newAPI(t), newAPI(t)
		_, upgrade := take(t, "upgrade", lock.Cluster{API: other, ID: "b", Name: "b", Exclusive: true})
		var waiting sync.WaitGroup
		waiting.Go(func() {
			_, _, err := lock.Acquire(t.Context(), "peer", silently, peering(own, "b"), lock.Cluster{API: other, ID: "b", Name: "b", Peer: "a"})
			kit.ErrorIf(t, !errors.Is(err, lock.ErrOvertaken), "it ended with %v", err)
		})
		synctest.Wait()
		begun := time.Now()
		_, unpeer := take(t, lock.Unpeer, peering(own, "b"))
		took := time.Since(begun)
		kit.ErrorIf(t, took == 0 || took > lock.RenewInterval+time.Second, "it took %s", took)
		waiting.Wait()
		unpeer.Release()
		upgrade.Release()
	})
}

// A command does not lose its lock while an API server does not answer for a while.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		var down atomic.Bool
		flaky := fakeapi.Intercept(api.(client.WithWatch), func(ctx context.Context, r *fakeapi.Request) error {
			err := r.Send(ctx) // it is carried out, and the answer is lost
			if r.Verb == "update" && down.Load() {
				return errors.New("no answer")
			}
			return err
		})
		ctx, held := take(t, "upgrade", peering(flaky, "b"))
		down.Store(true)
		time.Sleep(time.Minute)
		err := check(ctx)
		kit.ErrorIf(t, err == nil || errors.Is(err, lock.ErrOvertaken), "it writes without knowing whether it holds the lock: %v", err)
		down.Store(false)
		kit.CheckNoError(t, check(ctx))
		held.Release()
	})
}

// Random commands, some of which are stopped at times: no two write under the same lock, except between a check and its
// write.
func TestNoTwoHolders(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	runs := 3
	if kit.Full() {
		runs = 100
	}
	for run := range runs {
		synctest.Test(t, func(t *testing.T) {
			apis := []client.Client{newAPI(t), newAPI(t)}
			ctx := kit.Timeout(t, 3*time.Minute)
			var mu sync.Mutex
			writing := map[string]string{} // by lock
			var writes, overtaken int
			var all sync.WaitGroup
			for i := range 6 {
				r := rand.New(rand.NewPCG(seed, uint64(100*run+i)))
				all.Go(func() {
					for ctx.Err() == nil {
						here := []*stopped{{Client: apis[0]}, {Client: apis[1]}}
						peer, isExclusive := fmt.Sprint("p", r.IntN(2)), r.IntN(4) == 0
						var clusters []lock.Cluster
						for k, h := range here {
							c := lock.Cluster{API: h.here(), ID: fmt.Sprint(k), Name: fmt.Sprint(k), Peer: peer, Exclusive: isExclusive}
							clusters = append(clusters, c)
						}
						verb := []string{"peer", "unpeer"}[r.IntN(2)]
						locked, held, err := lock.Acquire(ctx, verb, silently, clusters...)
						if err != nil {
							continue
						}
						stop := r.IntN(3) == 0
						for range 5 {
							time.Sleep(time.Duration(r.IntN(2000)) * time.Millisecond)
							if stop {
								here[0].is.Store(true)
								here[1].is.Store(true)
								time.Sleep(time.Duration(r.IntN(20)) * time.Second)
								here[0].is.Store(false)
								here[1].is.Store(false)
							}
							end, err := lock.BeginWrite(locked)
							if err != nil {
								overtakenNow := errors.Is(err, lock.ErrOvertaken)
								mu.Lock()
								if overtakenNow {
									overtaken++
								}
								mu.Unlock()
								break
							}
							me := fmt.Sprint(verb, i)
							mu.Lock()
							writes++
							for what, by := range writing {
								kit.ErrorIf(t, what == peer || isExclusive || strings.HasPrefix(what, "all "),
									"%s writes to %s (exclusive %t) while %s writes to %s", me, peer, isExclusive, by, what)
							}
							what := peer
							if isExclusive {
								what = "all " + peer
							}
							writing[what] = me
							mu.Unlock()
							time.Sleep(time.Duration(r.IntN(1500)) * time.Millisecond) // less than Expiry - fresh
							mu.Lock()
							delete(writing, what)
							mu.Unlock()
							end()
						}
						held.Release()
					}
				})
			}
			all.Wait()
			kit.ErrorIf(t, writes == 0, "no command has written")
			if run == 0 {
				t.Logf("%d writes, %d were overtaken", writes, overtaken)
			}
			for _, api := range apis {
				for _, l := range leases(t, api) {
					if l.Spec.HolderIdentity != nil {
						t.Errorf("%s is held by %s", l.Name, *l.Spec.HolderIdentity)
					}
				}
			}
		})
	}
}

// It takes until the next renewal, or until the lock has expired, to learn whether a holder is alive.
func TestHoldersThatRenewNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		holders := func(beSure bool) (took time.Duration, all []lock.Holder) {
			t.Helper()
			begun := time.Now()
			all = kit.Must(lock.Holders(t.Context(), api, beSure))(t)
			return time.Since(begun), all
		}
		if took, all := holders(true); took > 0 || len(all) > 0 {
			t.Errorf("after %s: %v", took, all)
		}
		here := &stopped{Client: api}
		_, first := take(t, "peer", peering(here.here(), "b"))
		_, second := take(t, "unpeer", peering(api, "c"))
		if took, all := holders(true); took > lock.RenewInterval+time.Second || len(all) != 2 || all[0].IsExpired || all[1].IsExpired {
			t.Errorf("after %s: %v", took, all)
		}
		here.is.Store(true)
		time.Sleep(time.Hour)
		if took, all := holders(false); took > 0 || len(all) != 2 || all[0].IsExpired || all[1].IsExpired {
			t.Errorf("at once: after %s: %v", took, all)
		}
		took, all := holders(true)
		kit.FatalIf(t, took < lock.Expiry || took > lock.Expiry+time.Second || len(all) != 2 || !all[0].IsExpired || all[1].IsExpired,
			"one was killed: after %s: %v", took, all)
		here.is.Store(false)
		first.Release()
		second.Release()
	})
}

// A lock that is taken only if no other command is alive blocks no command, even while that is not certain.
func TestIfIdle(t *testing.T) {
	idle := func(api client.Client) lock.Cluster {
		c := peering(api, "")
		c.Exclusive, c.IfIdle, c.Timeout = true, true, time.Second
		return c
	}
	for name, isDead := range map[string]bool{"another command works": false, "they were killed": true} {
		kit.Bubble(t, name, func(t *testing.T) {
			api := newAPI(t)
			theirs := &stopped{Client: api}
			_, held := take(t, "first", peering(theirs.here(), "b"))
			theirs.is.Store(isDead)
			begun := time.Now()
			go func() {
				time.Sleep(time.Second + 250*time.Millisecond) // between two reads of the other command
				asked := time.Now()
				_, other := take(t, "second", peering(api, "c"))
				took := time.Since(asked)
				kit.ErrorIf(t, took > time.Second, "another command has waited for %s", took)
				other.Release()
			}()
			_, mine, err := lock.Acquire(t.Context(), "tidy up", silently, idle(api))
			took := time.Since(begun)
			busy := (*lock.Busy)(nil)
			kit.ErrorIf(t, !isDead && (!errors.As(err, &busy) || took > lock.RenewInterval+time.Second), "after %s: %v", took, err)
			if isDead && (err != nil || took > lock.Expiry+time.Second || len(mine.OvertakenClusters()) != 1) {
				t.Errorf("after %s: %v, overtaken %v", took, err, mine.OvertakenClusters())
			}
			mine.Release()
			theirs.is.Store(false)
			held.Release()
		})
	}
}

// Work in only one cluster needs that cluster's lock, and no answer from the other. It fails if another command has that
// lock. Locks are released at once in a cluster that the command no longer waits for.
func TestOneClusterDoesNotAnswer(t *testing.T) {
	for _, isOvertaken := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			a, b := newAPI(t), newAPI(t)
			var hung atomic.Bool
			answers, giveUp := context.WithCancel(t.Context())
			second := peering(fakeapi.Intercept(b.(client.WithWatch), func(ctx context.Context, r *fakeapi.Request) error {
				if hung.Load() && (r.Verb == "update" || r.Verb == "delete") {
					<-ctx.Done()
					return ctx.Err()
				}
				return r.Send(ctx)
			}), "a")
			second.ID, second.Name, second.Responsive = "b", "b", answers
			ctx, held := take(t, "peer", peering(a, "b"), second)
			hung.Store(true)
			time.Sleep(10 * time.Second)
			err := check(ctx)
			kit.ErrorIf(t, err == nil, "it writes without knowing whether it holds the second lock")
			kit.CheckNoError(t, check(lock.InCluster(ctx, "a")))
			if isOvertaken {
				for _, l := range leases(t, a) {
					kit.NoError(t, a.Delete(t.Context(), &l))
				}
				time.Sleep(lock.RenewInterval)
				err := check(lock.InCluster(ctx, "a"))
				kit.ErrorIf(t, !errors.Is(err, lock.ErrOvertaken), "another command has the lock: %v", err)
			}
			giveUp()
			start := time.Now()
			err = lock.Lost(ctx)
			kit.ErrorIf(t, (err != nil) != isOvertaken, "%v", err)
			held.Release()
			took := time.Since(start)
			kit.ErrorIf(t, took > 0, "it waited for %s", took)
			left := leases(t, a)
			kit.ErrorIf(t, len(left) > 0, "the first cluster has %v", left)
		})
	}
}
