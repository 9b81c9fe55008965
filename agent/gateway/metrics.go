package gateway

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"k8s.io/utils/ptr"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/metrics"
	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/tunnel"
)

// metricsIP returns the pod's address at which metrics are served. It prefers IPv4, which is what the nftables table
// lets in (nat.Gateway.Pods).
func metricsIP(addrs []netip.Addr) netip.Addr {
	return addrs[max(0, slices.IndexFunc(addrs, netip.Addr.Is4))]
}

// countNodes counts nodes by what they do with the gateway of a plane. Nodes that are gone do nothing, whatever they
// last reported.
func countNodes(p *v1alpha1.Peering, plane int32, nodes []v1alpha1.NodeNetwork, askers *askers) map[string]int {
	out := map[string]int{metrics.NodesKnown: 0, metrics.NodesReady: 0, metrics.NodesActive: 0}
	for addr, n := range members(p, nodes) {
		out[metrics.NodesKnown]++
		_, gone := askers.look(addr)
		g := ptr.Deref(n.Gateway(p.Name, plane), v1alpha1.NodeGateway{})
		if g.Ready && !gone {
			out[metrics.NodesReady]++
		}
		if g.Active && !gone {
			out[metrics.NodesActive]++
		}
	}
	return out
}

// shown is what metrics show.
type shown struct {
	metrics *metrics.Agent
	// plane is the last state, and nodes the number of nodes by what they do with this gateway.
	plane atomic.Pointer[metrics.Plane]
	nodes map[string]int
}

// readMetrics returns the last state, with the kernel's current counters.
func (a *agent) readMetrics() (s metrics.Snapshot, err error) {
	plane := a.shown.plane.Load()
	if plane == nil {
		return s, nil
	}
	p := *plane
	if t, err := a.kernel.Traffic(tunnel.InterfaceName); err == nil { // otherwise there is no interface now
		p.Traffic = (*metrics.Traffic)(&t)
	}
	s.Planes = []metrics.Plane{p}
	drops, err := nat.Drops(context.Background())
	for _, d := range drops {
		s.Drops = append(s.Drops, metrics.Drop{Peering: p.Peering, Plane: fmt.Sprint(p.Index), Hook: d.Hook, Reason: d.Reason, Packets: d.Packets})
	}
	return s, err
}
