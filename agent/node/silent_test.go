package node

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
)

// If all gateways of a Peering are dead, it is not known to be connected, and nodes report that. They do not if a
// gateway is alive, if they reach the peer, or if the gateways have reported a failure themselves.
func TestGatewaysAreSilent(t *testing.T) {
	for name, test := range map[string]struct {
		lives, reached bool
		before, want   metav1.ConditionStatus
	}{
		"both are dead":         {before: metav1.ConditionTrue, want: metav1.ConditionUnknown},
		"one is alive":          {lives: true, before: metav1.ConditionTrue, want: metav1.ConditionTrue},
		"reached":               {reached: true, before: metav1.ConditionTrue, want: metav1.ConditionTrue},
		"they have reported it": {before: metav1.ConditionFalse, want: metav1.ConditionFalse},
		"nothing was reported":  {want: ""},
		"reported, and alive":   {lives: true, before: metav1.ConditionFalse, want: metav1.ConditionFalse},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &v1alpha1.Peering{ObjectMeta: metav1.ObjectMeta{Name: "b"}}
				p.Spec.Planes = []v1alpha1.Plane{{Index: 0}, {Index: 1}}
				p.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionDegraded, Status: metav1.ConditionTrue, Reason: "PartlyReached"}}
				if test.before != "" {
					p.Status.Conditions = append(p.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionConnected, Status: test.before, Reason: "ProbesAnswered"})
				}
				p.Status.Conditions = append(p.Status.Conditions, v1alpha1.ReadyCondition(p.Status.Conditions))
				readyBefore := p.Status.Conditions[len(p.Status.Conditions)-1]
				lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: v1alpha1.GatewayName("b", 1)}}
				c := fake.NewClientBuilder().WithScheme(kit.Must(fakeapi.Scheme())(t)).WithStatusSubresource(p).WithObjects(p, lease).Build()
				now := func() (now v1alpha1.Peering) {
					kit.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(p), &now))
					return now
				}
				watch := silentGateways{client: c, log: slog.New(slog.DiscardHandler)}
				go watch.run(t.Context())
				for begun := time.Now(); time.Since(begun) < 2*gatewaySilence+5*time.Second; time.Sleep(time.Second) {
					watch.update([]v1alpha1.Peering{now()}, map[string]bool{"b": test.reached})
					if test.lives {
						lease.Spec.RenewTime = new(metav1.NowMicro())
						kit.NoError(t, c.Update(t.Context(), lease))
					}
					synctest.Wait()
				}
				got := ptr.Deref(meta.FindStatusCondition(now().Status.Conditions, v1alpha1.ConditionConnected), metav1.Condition{})
				kit.ErrorIf(t, got.Status != test.want || (got.Status == metav1.ConditionUnknown) != (got.Reason == v1alpha1.ReasonGatewaysSilent),
					"got %+v", got)
				ready := now().Status.Conditions[len(p.Status.Conditions)-1]
				if isMarked := got.Reason == v1alpha1.ReasonGatewaysSilent; isMarked && (ready.Status != got.Status || ready.Reason != got.Reason) || !isMarked && ready != readyBefore {
					t.Errorf("with %+v, got %+v", got, ready)
				}
				if degraded := now().Status.Conditions[0]; (degraded.Status == metav1.ConditionUnknown) != (test.want == metav1.ConditionUnknown) || (degraded.Reason == "PartlyReached") == (test.want == metav1.ConditionUnknown) {
					t.Errorf("another condition is %+v", degraded)
				}
			})
		})
	}
}
