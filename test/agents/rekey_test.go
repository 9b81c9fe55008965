package agents

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/exchange"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/flow"
	"github.com/liqonet/liqonet/test/kit"
)

// freshTimeout is how long gateways may take until both have noted that they have agreed.
const freshTimeout = 30 * time.Second

// Gateways agree on pre-shared keys while packets pass. They do so again when one of them was replaced. As long as they cannot, the
// Peering says so. Nothing is lost.
func TestKeysAreAgreedOn(t *testing.T) {
	clusters := newClusters(t, dataplane.Options{Overlay: overlay.VXLAN, Tunnel: tunnel.Userspace})
	settled(t, clusters)
	there, back := send(t, clusters[0], clusters[1], 8), send(t, clusters[1], clusters[0], 8)
	for _, c := range clusters {
		p := &v1alpha1.Peering{ObjectMeta: metav1.ObjectMeta{Name: c.peer()}}
		if err := c.api.Client.Patch(t.Context(), p, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"presharedKeyAgeSeconds":3600}}`))); err != nil {
			t.Fatal(err)
		}
	}
	first, plane := fresh(t, clusters, [2][planes]metav1.Time{}), clusters[0].nodes[0].plane(t)
	replaced := []*cluster{clusters[0], clusters[1]}
	if !kit.Full() {
		replaced = replaced[rand.IntN(2):][:1]
	}
	for _, c := range replaced {
		c.replaceBlocked(t, plane)
		// The other plane goes on with its key.
		before := first
		before[0][1-plane], before[1][1-plane] = metav1.Time{}, metav1.Time{}
		next := fresh(t, clusters, before)
		for i := range clusters {
			if next[i][1-plane] != first[i][1-plane] {
				t.Error("the other plane has another key, too")
			}
		}
		first = next
	}
	for _, r := range flow.End(there, back) {
		if t.Log(r); r.Lost > 0 {
			t.Error("a packet was lost")
		}
	}
	checkNoSecret(t, clusters)
}

// fresh waits until all gateways have agreed on keys after some time, and returns when they have.
func fresh(t *testing.T, clusters [2]*cluster, after [2][planes]metav1.Time) (since [2][planes]metav1.Time) {
	t.Helper()
	for i, c := range clusters {
		kit.Within(t, freshTimeout, "gateways of "+c.name+" have agreed on keys", func() string {
			p, condition := c.keysFresh(t)
			for plane := range c.gateways {
				s := p.PlaneStatus(int32(plane))
				if s == nil || s.PresharedKeyTime == nil || !s.PresharedKeyTime.After(after[i][plane].Time) || s.PresharedKeyOverdue {
					return fmt.Sprintf("plane %d: %+v", plane, s)
				}
				since[i][plane] = *s.PresharedKeyTime
			}
			if condition == nil || condition.Reason == "NotAgreed" {
				return fmt.Sprintf("%+v", condition)
			}
			return ""
		})
	}
	return since
}

func (c *cluster) keysFresh(t *testing.T) (*v1alpha1.Peering, *metav1.Condition) {
	t.Helper()
	p := &v1alpha1.Peering{}
	if err := c.api.Client.Get(t.Context(), types.NamespacedName{Name: c.peer()}, p); err != nil {
		t.Fatal(err)
	}
	return p, meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionKeysFresh)
}

// replaceBlocked ends a gateway in order, and starts another one, of whose words about keys none gets out. Its tunnel has the key of
// the Secret then, and the cluster says so.
func (c *cluster) replaceBlocked(t *testing.T, plane int) {
	t.Helper()
	gateway := c.gateways[plane]
	gateway.signal(t, syscall.SIGTERM)
	if err := gateway.cmd.Wait(); err != nil {
		t.Error(err)
	}
	gateway.Output(t, "nft", fmt.Sprintf("table ip blocked { chain output { type filter hook output priority 0; tcp dport %[1]d drop; tcp sport %[1]d drop; }; }", exchange.Port))
	defer gateway.Output(t, "nft", "delete table ip blocked")
	gateway.start(t)
	kit.Within(t, freshTimeout, "the Peering says that the key is not fresh", func() string {
		p, condition := c.keysFresh(t)
		s := p.PlaneStatus(int32(plane))
		want := fmt.Sprintf("plane %d: the tunnel has the pre-shared key of its Secret", plane)
		if !s.Connected || s.PresharedKeyTime != nil || condition.Status != metav1.ConditionFalse || !strings.Contains(condition.Message, want) {
			return fmt.Sprintf("%+v; %+v", s, condition)
		}
		return ""
	})
}
