package heartbeat_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/samber/lo"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/agent/heartbeat"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
)

// newAPI returns an API server with a Peering of two planes that were connected, and the Leases of their gateways.
func newAPI(t *testing.T) (client.WithWatch, *v1alpha1.Peering, []*coordinationv1.Lease) {
	t.Helper()
	p := &v1alpha1.Peering{ObjectMeta: metav1.ObjectMeta{Name: "b"}}
	p.Spec.Planes = []v1alpha1.Plane{{Index: 0}, {Index: 1}}
	for _, of := range []string{v1alpha1.ConditionConnected, v1alpha1.ConditionDegraded, v1alpha1.ConditionRedundant} {
		status := metav1.ConditionTrue
		if of == v1alpha1.ConditionDegraded {
			status = metav1.ConditionFalse
		}
		p.Status.Conditions = append(p.Status.Conditions, metav1.Condition{Type: of, Status: status, Reason: "Before", Message: "before"})
	}
	p.Status.Conditions = append(p.Status.Conditions, v1alpha1.ReadyCondition(p.Status.Conditions))
	var leases []*coordinationv1.Lease
	objects := []client.Object{p}
	for _, plane := range p.Spec.Planes {
		leases = append(leases, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: v1alpha1.GatewayName("b", plane.Index)}})
		objects = append(objects, leases[plane.Index])
	}
	return fake.NewClientBuilder().WithScheme(kit.Must(fakeapi.Scheme())(t)).WithStatusSubresource(p).WithObjects(objects...).Build(), p, leases
}

func renew(t *testing.T, c client.Client, lease *coordinationv1.Lease) {
	t.Helper()
	lease.Spec.RenewTime = new(metav1.NowMicro())
	kit.NoError(t, c.Update(t.Context(), lease))
}

// If all gateways of a Peering are dead, a node that does not reach the peer reports within 30 s that it is not known to
// be connected, and one that reaches it through one plane at most that it is not redundant. Nodes write nothing if a
// gateway is alive, or has reported the failure itself. Other conditions keep their messages, which agents do not read.
func TestGatewaysAreSilent(t *testing.T) {
	const unchanged, unknown, last = "True False True True", "Unknown Unknown False Unknown", "True False False True"
	for name, test := range map[string]struct {
		lives   bool
		labels  bool
		reached uint8
		before  metav1.ConditionStatus
		want    string
	}{
		"both are dead":          {want: unknown},
		"one is alive":           {lives: true, want: unchanged},
		"others label its Lease": {labels: true, want: unknown},
		"both planes work":       {reached: 3, want: unchanged},
		"one plane works":        {reached: 2, want: last},
		"the same, and alive":    {reached: 2, lives: true, want: unchanged},
		"they have reported it":  {before: metav1.ConditionFalse, want: "False False False True"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, p, leases := newAPI(t)
				now := func() (now v1alpha1.Peering) {
					kit.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(p), &now))
					return now
				}
				if test.before != "" {
					was := now()
					was.Status.Conditions[0].Status, was.Status.Conditions[2].Status = test.before, test.before
					kit.NoError(t, c.Status().Update(t.Context(), &was))
				}
				watch := &heartbeat.Silence{Client: c, Log: slog.New(slog.DiscardHandler)}
				go watch.Run(t.Context())
				const notices = 8 * time.Second // until the agent finds that the peer does not answer
				for begun := time.Now(); time.Since(begun) < 30*time.Second-notices; time.Sleep(time.Second) {
					seen := now()
					for i := range seen.Status.Conditions {
						seen.Status.Conditions[i].Message = ""
					}
					watch.Update([]v1alpha1.Peering{seen}, map[string]uint8{"b": test.reached})
					if test.lives {
						renew(t, c, leases[1])
					}
					if test.labels {
						leases[1].Labels = map[string]string{"at": fmt.Sprint(time.Now().Unix())}
						kit.NoError(t, c.Update(t.Context(), leases[1]))
					}
					synctest.Wait()
				}
				got := ""
				for _, condition := range now().Status.Conditions {
					got += " " + string(condition.Status)
					if isMarked := condition.Reason == v1alpha1.ReasonGatewaysSilent; isMarked == (condition.Message == "before") {
						t.Errorf("%+v", condition)
					}
				}
				kit.Check(t, "Connected, Degraded, Redundant, Ready", got[1:], test.want)
			})
		})
	}
}

// An agent that does not know whether it reaches the peer changes nothing.
func TestUnknownReachability(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p, _ := newAPI(t)
		watch := &heartbeat.Silence{Client: c, Log: slog.New(slog.DiscardHandler)}
		watch.Update([]v1alpha1.Peering{*p}, nil)
		go watch.Run(t.Context())
		time.Sleep(time.Minute)
		kit.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(p), p))
		connected := ptr.Deref(meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionConnected), metav1.Condition{})
		kit.ErrorIf(t, connected.Status != metav1.ConditionTrue, "got %+v", connected)
	})
}

// A Peering that has changed since an agent read it is not corrected: a gateway may have written it.
func TestChangedPeeringIsNotCorrected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p, _ := newAPI(t)
		kit.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(p), p))
		watch := &heartbeat.Silence{Client: c, Log: slog.New(slog.DiscardHandler)}
		watch.Update([]v1alpha1.Peering{*p.DeepCopy()}, map[string]uint8{"b": 0})
		p.Status.Conditions[0].Message = "again"
		kit.NoError(t, c.Status().Update(t.Context(), p))
		go watch.Run(t.Context())
		time.Sleep(time.Minute)
		kit.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(p), p))
		kit.Check(t, "Connected", p.Status.Conditions[0].Status, metav1.ConditionTrue)
	})
}

// A gateway is alive while its Lease changes. An observer that does not reach the API server does not know.
func TestObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p, leases := newAPI(t)
		isDown := &atomic.Bool{}
		get := func(ctx context.Context, api client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if isDown.Load() {
				return errors.New("connection refused")
			}
			return api.Get(ctx, key, obj, opts...)
		}
		o := &heartbeat.Observer{Client: interceptor.NewClient(c, interceptor.Funcs{Get: get}), Peering: "b", Own: 0}
		o.SetPlanes(p.Spec.Planes)
		go o.Run(t.Context())
		for _, step := range []struct {
			name  string
			renew bool
			for_  time.Duration
			want  bool
		}{
			{"a Lease of unknown age, at first", false, 7 * time.Second, false},
			{"a Lease of unknown age", false, 20 * time.Second, false},
			{"renewed", true, 10 * time.Second, true},
			{"since a moment no more", false, 10 * time.Second, true},
			{"no more", false, 11 * time.Second, false},
			{"again", true, 10 * time.Second, true},
		} {
			for range step.for_ / time.Second {
				if step.renew {
					renew(t, c, leases[1])
				}
				time.Sleep(time.Second)
				synctest.Wait()
			}
			kit.Check(t, step.name, o.IsAlive(1), step.want)
		}
		kit.ErrorIf(t, o.IsAlive(0), "it observes its own gateway")
		isDown.Store(true)
		time.Sleep(time.Minute)
		kit.ErrorIf(t, !o.IsAlive(1), "a gateway counts as dead because the API server is down")
		isDown.Store(false)
		time.Sleep(time.Minute)
		kit.NoError(t, c.Delete(t.Context(), leases[1]))
		time.Sleep(7 * time.Second)
		kit.ErrorIf(t, o.IsAlive(1), "a gateway counts as alive because its Lease was deleted")
	})
}

// One node corrects all of many Peerings in time, although each request takes a while. If requests fail, it takes longer.
func TestManyGatewaysAreSilent(t *testing.T) {
	const takes, notices = 100 * time.Millisecond, 8 * time.Second
	t.Run("a slow API server", func(t *testing.T) { tryManySilent(t, 250, takes, 0, 30*time.Second-notices) })
	t.Run("one that fails often", func(t *testing.T) { tryManySilent(t, 20, takes, 7, 2*time.Minute) })
}

// tryManySilent tries it with an API server at which each request takes a time, and one of some fails.
func tryManySilent(t *testing.T, peerings int, takes time.Duration, oneOf int64, within time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		one, p, leases := newAPI(t)
		var requests atomic.Int64
		request := func(ctx context.Context) error {
			if !failure.Pause(ctx, takes) {
				return ctx.Err()
			}
			if n := requests.Add(1); oneOf > 0 && n%oneOf == 0 {
				return errors.New("too many requests")
			}
			return nil
		}
		seen := []v1alpha1.Peering{*p}
		reached := map[string]uint8{p.Name: 0}
		for i := range peerings {
			of := *p.DeepCopy()
			of.Name, of.ResourceVersion = fmt.Sprint("peer-", i), ""
			kit.NoError(t, one.Create(t.Context(), &of))
			for plane, lease := range leases {
				l := lease.DeepCopy()
				l.Name, l.ResourceVersion = v1alpha1.GatewayName(of.Name, int32(plane)), ""
				kit.NoError(t, one.Create(t.Context(), l))
			}
			seen, reached[of.Name] = append(seen, of), 0
		}
		c := interceptor.NewClient(one, interceptor.Funcs{
			Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
				if err := request(ctx); err != nil {
					return err
				}
				return api.Get(ctx, key, obj, opts...)
			},
			SubResourcePatch: func(ctx context.Context, api client.Client, sub string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
				if err := request(ctx); err != nil {
					return err
				}
				return api.SubResource(sub).Patch(ctx, obj, patch, opts...)
			},
		})
		watch := &heartbeat.Silence{Client: c, Log: slog.New(slog.DiscardHandler)}
		watch.Update(seen, reached)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go watch.Run(ctx)
		wrong := seen
		for end := time.Now().Add(within); len(wrong) > 0 && time.Now().Before(end); {
			time.Sleep(time.Second)
			var list v1alpha1.PeeringList
			kit.NoError(t, one.List(t.Context(), &list))
			watch.Update(list.Items, reached) // as an agent does: a corrected Peering uses up no more requests
			wrong = lo.Filter(list.Items, func(p v1alpha1.Peering, _ int) bool {
				return meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionConnected)
			})
		}
		kit.ErrorIf(t, len(wrong) > 0, "%d of %d are still reported as connected", len(wrong), peerings)
	})
}

// A gateway notices that one of several others is dead, although its API server is slow.
func TestObserverOfSlowAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p, leases := newAPI(t)
		o := &heartbeat.Observer{Client: interceptor.NewClient(c, interceptor.Funcs{
			Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
				if !failure.Pause(ctx, 2*time.Second) {
					return ctx.Err()
				}
				return api.Get(ctx, key, obj, opts...)
			},
		}), Peering: "b", Own: 3}
		o.SetPlanes(append(p.Spec.Planes, v1alpha1.Plane{Index: 2}, v1alpha1.Plane{Index: 3}))
		go o.Run(t.Context())
		for range 20 {
			time.Sleep(time.Second)
			renew(t, c, leases[1])
		}
		kit.ErrorIf(t, !o.IsAlive(1), "it does not know that a gateway is alive")
		time.Sleep(heartbeat.Timeout + 10*time.Second)
		kit.ErrorIf(t, o.IsAlive(1), "it does not know that a gateway is dead")
	})
}
