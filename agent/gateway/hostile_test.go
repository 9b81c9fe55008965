package gateway

import (
	"context"
	"errors"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/schema"
)

// accepted fails the test if a kernel would not accept a gateway's desired state.
func accepted(t *testing.T, kernel *overlay.Kernel, d desired) {
	t.Helper()
	over, cancel := context.WithCancel(t.Context())
	cancel() // the desired state is checked before anything is changed
	if _, err := nat.ApplyGateway(over, d.nat); !errors.Is(err, context.Canceled) {
		t.Errorf("nftables: %v", err)
	}
	if _, err := kernel.Apply(over, d.overlay); !errors.Is(err, context.Canceled) {
		t.Errorf("links and routes: %v", err)
	}
}

func newKernel(t *testing.T) *overlay.Kernel {
	t.Helper()
	k := kit.Must(overlay.New())(t)
	t.Cleanup(k.Close)
	return k
}

// Whatever node report an API server stores, a gateway serves the node that was known first.
func TestHostileReports(t *testing.T) {
	kit.NotShort(t)
	kernel, linked, bound := newKernel(t), 0, schema.NewBound(t, "the desired state")
	me := local{key: newKey(t), node: "n1", underlay: "eth0", underlayMTU: 1450}
	p := peering(t, v1alpha1.Client, newKey(t))
	p.Spec.Local.Hosts = []v1alpha1.AddressMapping{{Real: v1alpha1.IP{Addr: addr("192.0.2.7")}, Mapped: v1alpha1.IP{Addr: addr("10.60.32.5")}}}
	good := node("n1", "10.80.0.1", "172.18.0.2", 0, "10.244.0.0/24")
	schema.Hostile(t, 100, schema.Examples()["NodeNetwork"], func(obj map[string]any) {
		bad := schema.Into[v1alpha1.NodeNetwork](t, obj)
		bad.CreationTimestamp = metav1.Unix(1, 0)
		for i := range bad.Status.Gateways {
			bad.Status.Gateways[i].Plane = p.Spec.Planes[0].Index
		}
		var d desired
		var err error
		bound.Of(obj, func() { d, err = desire(me, p, []v1alpha1.NodeNetwork{bad, good}) })
		kit.NoError(t, err)
		if d.omittedNodes != nil {
			schema.NoControl(t, "the omissions", d.omittedNodes.Error())
		}
		if got, want := routesOf(d, "loqn1"), []string{"10.244.0.0/24", "192.0.2.7/32"}; !slices.Equal(got, want) {
			t.Errorf("the other node has %v, want %v", got, want)
		}
		if len(d.overlay.Links) > 1 {
			linked++
		}
		accepted(t, kernel, d)
	})
	kit.ErrorIf(t, linked == 0, "none was linked, which proves little")
	t.Logf("%d were linked", linked)
}

// Whatever Peering an API server stores, its gateway reports what is wrong, or computes a state that a kernel
// accepts.
func TestHostilePeerings(t *testing.T) {
	kit.NotShort(t)
	kernel, applied, bound := newKernel(t), 0, schema.NewBound(t, "the desired state")
	me := local{plane: 1, key: newKey(t), node: "n1", underlay: "eth0", underlayMTU: 1450}
	nodes := []v1alpha1.NodeNetwork{node("n1", "10.80.0.1", "172.18.0.2", 0, "10.244.0.0/24")}
	schema.Hostile(t, 100, schema.Examples()["Peering"], func(obj map[string]any) {
		p := schema.Into[v1alpha1.Peering](t, obj)
		kit.NoError(t, p.Validate(), "it is stored, but cannot be applied")
		var d desired
		var err error
		bound.Of(obj, func() { d, err = desire(me, &p, nodes) })
		if err != nil {
			schema.NoControl(t, "the error", err.Error())
			return
		}
		applied++
		accepted(t, kernel, d)
	})
	kit.ErrorIf(t, applied == 0, "none was applied, which proves little")
	t.Logf("%d were applied", applied)
}
