package gateway

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/metrics"
	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/tunnel"
)

// metricsIP is the pod's address at which metrics are shown. The one of IPv4 is the one that the table
// lets in (nat.Gateway.Pods).
func metricsIP(addrs []netip.Addr) netip.Addr {
	return addrs[max(0, slices.IndexFunc(addrs, netip.Addr.Is4))]
}

// show has what was last seen shown to who scrapes.
func (a *agent) show(s v1alpha1.PlaneStatus) {
	a.shown.Store(&metrics.Plane{
		Peering: a.Peering, Index: int32(a.Plane), State: a.state(s.Connected), MTU: int(s.MTU),
		Handshake: a.tunnel.LastHandshake, Key: keyMade(a.peering.Plane(a.local.plane)), Nodes: a.nodes,
	})
}

// state is the plane's. Where there is another one it is what nodes are told, otherwise what probes say.
func (a *agent) state(connected bool) string {
	up := connected && a.works.Load()
	if session := a.session.Load(); session != nil {
		up = a.works.Load() && session.State().Up
	}
	switch {
	case a.leaving.Load():
		return metrics.Leaving
	case up:
		return metrics.Up
	default:
		return metrics.Down
	}
}

// keyMade is when the plane's key was made, the zero time where a version has made it that did not note so. The
// mounted file does not tell: the kubelet writes it anew for each pod.
func keyMade(p *v1alpha1.Plane) time.Time {
	if p == nil || p.KeyTime == nil {
		return time.Time{}
	}
	return p.KeyTime.Time
}

// countNodes says what nodes do with the gateway of a plane. Nodes that are gone do nothing, whatever they reported last.
func countNodes(p *v1alpha1.Peering, plane int32, nodes []v1alpha1.NodeNetwork, askers *askers) map[string]int {
	out := map[string]int{metrics.NodesKnown: 0, metrics.NodesReady: 0, metrics.NodesActive: 0}
	for addr, n := range members(p, nodes) {
		out[metrics.NodesKnown]++
		if _, gone := askers.look(addr); gone {
			continue
		}
		g := n.Gateway(p.Name, plane)
		if g != nil && g.Ready {
			out[metrics.NodesReady]++
		}
		if g != nil && g.Active {
			out[metrics.NodesActive]++
		}
	}
	return out
}

// readMetrics returns what was seen last, with what the kernel has counted by now.
func (a *agent) readMetrics() (s metrics.Snapshot, err error) {
	plane := a.shown.Load()
	if plane == nil {
		return s, nil
	}
	p := *plane
	if t, err := a.kernel.Traffic(tunnel.InterfaceName); err == nil { // otherwise there is none now
		p.Traffic = (*metrics.Traffic)(&t)
	}
	s.Planes = []metrics.Plane{p}
	drops, err := nat.Drops(context.Background())
	for _, d := range drops {
		s.Drops = append(s.Drops, metrics.Drop{Peering: p.Peering, Plane: fmt.Sprint(p.Index), Hook: d.Hook, Reason: d.Reason, Packets: d.Packets})
	}
	return s, err
}
