package gateway

import (
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
)

// minMTU is the least that is worked with, and that a peer is believed: every
// link carries that (RFC 791).
const minMTU = 68

// way is how packets get to the peer's gateway.
type way struct {
	// overhead is what the tunnel adds to a packet by the endpoint that WireGuard
	// uses now, in bytes; 0 while it has none.
	overhead int
	// mtu is what the kernel knows of the way there, by routes and by ICMP errors,
	// in bytes; 0 where it knows nothing.
	mtu int
	// agreed is the MTU that the peer's gateway can do, 0 if it has not said.
	agreed int
}

// capacity is the largest packet that this side can carry: through the tunnel,
// over the pod's network and that of its node, and through the overlay to each
// node.
func capacity(m machine, role v1alpha1.Role, nodes []v1alpha1.NodeNetwork, links []linkedNode) int {
	outer := m.underlayMTU
	if m.way.mtu > 0 {
		outer = min(outer, m.way.mtu)
	}
	for _, n := range nodes {
		// What a client sends leaves by its own node; a server is called by any.
		passes := n.Spec.NodeName == m.node || role == v1alpha1.Server
		if passes && n.DeletionTimestamp.IsZero() && n.Status.UnderlayMTU > 0 {
			outer = min(outer, int(n.Status.UnderlayMTU))
		}
	}
	overhead := m.way.overhead
	if overhead == 0 {
		overhead = tunnel.Overhead(m.endpoint.Addr())
	}
	mtu := outer - overhead
	for _, l := range links {
		mtu = min(mtu, m.underlayMTU-overlay.Overhead(l.source))
		if l.mtu > 0 {
			mtu = min(mtu, l.mtu)
		}
	}
	return max(mtu, minMTU)
}

// measure looks at how large packets to the peer may be, and says whether that
// has changed.
func (a *agent) measure() bool {
	now := a.machine.way
	if a.prober != nil {
		if mtu := int(a.prober.Snapshot().RemoteMTU); mtu >= minMTU {
			now.agreed = mtu
		}
	}
	if a.device != nil {
		if stats, err := a.device.Stats(); err == nil && stats.Endpoint.IsValid() {
			endpoint := stats.Endpoint.Addr().Unmap()
			now.overhead, now.mtu = tunnel.Overhead(endpoint), 0
			if _, _, mtu, err := a.kernel.SourceTo(endpoint); err == nil {
				now.mtu = mtu
			}
		}
	}
	changed := now != a.machine.way
	a.machine.way = now
	return changed
}
