package agents

import (
	"testing"
	"time"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/test/bare"
	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/flow"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

// A gateway that dies and starts on another node has another address there, from which nodes accept its packets. That takes no
// longer than the failover itself, also where the network plugin would masquerade packets from pods to nodes.
func TestGatewayMoves(t *testing.T) {
	clusters := newClusters(t, dataplane.Options{Overlay: overlay.VXLAN, Tunnel: tunnel.Userspace})
	limit := bare.Limit(t)
	settled(t, clusters)
	c, peer := clusters[1], clusters[0] // nobody calls a client's gateway
	flows := []*flow.Flow{send(t, c, peer, 8), send(t, peer, c, 8)}
	for _, fl := range flows {
		kit.Within(t, flow.Patience, "packets pass", func() string { return fl.Unanswered(50, flow.Patience) })
	}
	plane := c.nodes[0].plane(t)
	c.gateways[plane].kill()
	to := &c.nodes[1-plane]
	c.startGateway(t, plane, to, to.attach(t, "moved", to.podAddr.Next()), to.podAddr.Next())
	c.agents = append(c.agents, c.gateways[plane])
	moved := time.Now().Add(time.Second)
	for _, fl := range flows {
		kit.Within(t, switchTimeout, "packets pass by the other plane", func() string { return fl.NoneSince(moved) })
	}
	settled(t, clusters) // nodes also hear the gateway at its new address
	dropped := c.forgedOverlay(t)
	c.gateways[1-plane].kill()
	kit.Within(t, leaveTimeout, "the node uses the gateway that has moved", func() string {
		return lo.Ternary(c.nodes[0].plane(t) == plane, "", "it does not")
	})
	moved = time.Now().Add(time.Second)
	for _, fl := range flows {
		kit.Within(t, switchTimeout, "packets pass by the gateway that has moved", func() string { return fl.NoneSince(moved) })
	}
	kit.ErrorIf(t, c.forgedOverlay(t) > dropped, "nodes drop packets of the gateway that has moved")
	for _, r := range flow.End(flows...) {
		t.Log(r)
		kit.ErrorIf(t, r.Gap > limit, "%s, limit %s", r, limit)
	}
}

// forgedOverlay returns how many packets of the overlay nodes have dropped because of their source.
func (c *cluster) forgedOverlay(t *testing.T) (packets uint64) {
	t.Helper()
	for i := range c.nodes {
		for _, d := range netns.In(t, c.nodes[i].NS, nat.Drops) {
			packets += lo.Ternary(d.Reason == "forged-overlay", d.Packets, 0)
		}
	}
	return packets
}
