package node

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/agent/heartbeat"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
)

// A gateway that a node does not hear is lost if its Lease is not renewed, and if the API server says so. It is not
// lost any more as soon as the node hears it.
func TestLostGateways(t *testing.T) {
	key := planeKey{"b", 0}
	for name, test := range map[string]struct{ renews, exists, unreadable, want bool }{
		"not renewed":     {exists: true, want: true},
		"renewed":         {exists: true, renews: true},
		"no Lease":        {want: true},
		"cannot be read":  {exists: true, unreadable: true},
		"renewed, unread": {exists: true, renews: true, unreadable: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: v1alpha1.GatewayName("b", 0)}}
				b := fake.NewClientBuilder().WithScheme(kit.Must(fakeapi.Scheme())(t))
				if test.exists {
					b = b.WithObjects(lease)
				}
				c := interceptor.NewClient(b.Build(), interceptor.Funcs{
					Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
						if test.unreadable {
							return errors.New("no answer")
						}
						return c.Get(ctx, key, obj, opts...)
					},
				})
				l := lostGateways{client: c, log: slog.New(slog.DiscardHandler), changed: notify.NewSignal()}
				go l.run(t.Context())
				var lost map[planeKey]bool
				for begun := time.Now(); time.Since(begun) < 2*heartbeat.Timeout+time.Second; time.Sleep(time.Second) {
					lost = l.update([]planeKey{key})
					if test.renews && !test.unreadable {
						lease.Spec.RenewTime = new(metav1.NowMicro())
						kit.NoError(t, c.Update(t.Context(), lease))
					}
					synctest.Wait()
				}
				kit.ErrorIf(t, lost[key] != test.want, "lost: %v", lost)
				kit.ErrorIf(t, len(l.update(nil)) > 0, "lost although it is heard")
			})
		})
	}
}

// Packets to the peer are not sent to a lost gateway: they go nowhere, or to another plane's. Probes are, so that it is
// heard when it is back.
func TestLostGatewayGetsNoPackets(t *testing.T) {
	p := peering("b", 2, mapping("10.244.0.0/16", "10.20.0.0/16"), mapping("10.244.0.0/16", "10.30.0.0/16"), "10.70.0.0/18")
	remote := p.Spec.Planes[0].RemoteAddress.Addr
	me := local{name: "n1", address: addr("10.80.0.7")}
	before := kit.Must(desire(me, []v1alpha1.Peering{p}))(t)
	me.lost = map[planeKey]bool{{"b", 0}: true}
	d := kit.Must(desire(me, []v1alpha1.Peering{p}))(t)
	kit.Check(t, "links", len(d.overlay.Links), len(before.overlay.Links))
	to := func(d desired, dst netip.Prefix) bool {
		return slices.ContainsFunc(d.overlay.Routes, func(r overlay.Route) bool { return r.Dst == dst && strings.HasPrefix(r.Dev, "loq") })
	}
	for _, r := range p.RemoteRanges() {
		kit.ErrorIf(t, !to(before, r) || to(d, r) || !isUnreachable(d, r), "%s: routes %v", r, d.overlay.Routes)
	}
	kit.ErrorIf(t, !to(d, netip.PrefixFrom(remote, 32)), "probes have no route: %v", d.overlay.Routes)
}
