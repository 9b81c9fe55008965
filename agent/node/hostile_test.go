package node

import (
	"context"
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/schema"
)

// Whatever Peering an API server stores, a node continues to serve the older one. The kernel accepts the desired
// state.
func TestHostilePeerings(t *testing.T) {
	kit.NotShort(t)
	me := local{name: "n2", address: addr("10.80.0.7"), uplinks: []string{"eth0"}}
	good := peering("good", 0, mapping("10.244.0.0/16", "10.20.0.0/16"), mapping("10.244.0.0/16", "10.40.0.0/16"), "10.71.0.0/18")
	good.CreationTimestamp = metav1.NewTime(time.Unix(1, 0))
	kernel, err := overlay.New()
	kit.NoError(t, err)
	t.Cleanup(kernel.Close)
	over, cancel := context.WithCancel(t.Context())
	cancel() // the desired state is checked before anything is changed
	applied, bound := 0, schema.NewBound(t, "the desired state")
	schema.Hostile(t, 100, schema.Examples()["Peering"], func(obj map[string]any) {
		bad := schema.Into[v1alpha1.Peering](t, obj)
		bad.CreationTimestamp = metav1.NewTime(time.Unix(2, 0))
		var d desired
		bound.Of(obj, func() { d, err = desire(me, []v1alpha1.Peering{bad, *good.DeepCopy()}) })
		if err != nil {
			schema.NoControl(t, "the error", err.Error())
		}
		kit.ErrorIf(t, !served(d, good), "the other peering is not served: %v", err)
		if served(d, bad) {
			applied++
		}
		if _, err := nat.ApplyNode(over, *d.nat); !errors.Is(err, context.Canceled) {
			t.Errorf("nftables: %v", err)
		}
		if _, err := kernel.Apply(over, d.overlay); !errors.Is(err, context.Canceled) {
			t.Errorf("links and routes: %v", err)
		}
	})
	kit.ErrorIf(t, applied == 0, "none was served, which proves little")
	t.Logf("%d were served", applied)
}
