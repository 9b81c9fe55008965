package gateway

import (
	"context"
	"encoding/json"
	"net/netip"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/kit"
)

// A gateway that leaves does not overwrite the report of its plane's next gateway: nodes would follow it to a pod
// that is ending.
func TestLeaveToTheNext(t *testing.T) {
	own, next := netip.MustParseAddr("10.244.0.7"), netip.MustParseAddr("10.244.1.9")
	for name, tt := range map[string]struct {
		leaving bool
		there   netip.Addr
		// during is the address that another gateway reports while this one reads.
		during, want netip.Addr
	}{
		"it continues":     {false, next, netip.Addr{}, own},
		"its own":          {true, own, netip.Addr{}, own},
		"nothing reported": {true, netip.Addr{}, netip.Addr{}, own},
		"the next one's":   {true, next, netip.Addr{}, next},
		"the next one reports at the same moment": {true, own, next, next},
	} {
		t.Run(name, func(t *testing.T) {
			p := &v1alpha1.Peering{ObjectMeta: metav1.ObjectMeta{Name: "b", UID: "uid"}}
			p.Spec.Overlay = "VXLAN"
			if tt.there.IsValid() {
				p.Status.Planes = []v1alpha1.PlaneStatus{{PodIP: v1alpha1.IP{Addr: tt.there}}}
			}
			var api client.WithWatch
			report := func(addr netip.Addr) {
				now := &v1alpha1.Peering{}
				kit.NoError(t, api.Get(t.Context(), types.NamespacedName{Name: "b"}, now))
				now.Status.Planes = []v1alpha1.PlaneStatus{{PodIP: v1alpha1.IP{Addr: addr}}}
				kit.NoError(t, api.Status().Update(t.Context(), now))
			}
			during := tt.during
			api = newBuilder(t, p).WithInterceptorFuncs(interceptor.Funcs{
				// The apply replaces the plane's status here.
				SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
					if during.IsValid() {
						addr := during
						during = netip.Addr{}
						report(addr)
					}
					return c.SubResource(sub).Patch(ctx, obj, patch, opts...)
				},
			}).Build()
			w := writer{client: api, peering: "b", podIPs: []netip.Addr{own}, leaving: func() bool { return tt.leaving }}
			kit.NoError(t, w.write(t.Context(), status{peering: "uid", plane: v1alpha1.PlaneStatus{PodIP: v1alpha1.IP{Addr: own}}}))
			now := &v1alpha1.Peering{}
			kit.NoError(t, api.Get(t.Context(), types.NamespacedName{Name: "b"}, now))
			if got := now.PlaneStatus(0); got == nil || got.PodIP.Addr != tt.want {
				t.Errorf("the status is %+v, want that of %s", got, tt.want)
			}
		})
	}
}

// A gateway that stops writing conditions leaves them unchanged until another gateway has written them. An API server
// rejects the incomplete conditions that would remain.
func TestConditionsStayUntilTheNextWriter(t *testing.T) {
	theirs := metav1.Condition{Type: v1alpha1.ConditionConnected, Status: metav1.ConditionTrue, Reason: "ProbesAnswered"}
	p := &v1alpha1.Peering{ObjectMeta: metav1.ObjectMeta{Name: "b", UID: "uid"}}
	p.Status.Conditions = []metav1.Condition{theirs}
	var applied []v1alpha1.Peering
	api := newBuilder(t, p).WithInterceptorFuncs(interceptor.Funcs{
		SubResourcePatch: func(_ context.Context, _ client.Client, _ string, obj client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
			var got v1alpha1.Peering
			kit.NoError(t, json.Unmarshal(kit.Must(patch.Data(obj))(t), &got))
			if applied = append(applied, got); len(got.Status.Conditions) == 0 {
				return apierrors.NewInvalid(v1alpha1.GroupVersion.WithKind("Peering").GroupKind(), "b", nil)
			}
			return nil
		},
	}).Build()
	w := writer{client: api, peering: "b", leaving: func() bool { return false }}
	kit.NoError(t, w.write(t.Context(), status{peering: "uid"}))
	if len(applied) != 2 || applied[1].ResourceVersion == "" || len(applied[1].Status.Conditions) != 1 || applied[1].Status.Conditions[0] != theirs {
		t.Errorf("want the conditions and the version that were read, got %+v", applied)
	}
}
