package node

import (
	"net/netip"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
)

// peerOf is where a gateway on this very node sends the tunnel's packets to.
func peerOf(m machine, status *v1alpha1.PlaneStatus) netip.Addr {
	endpoint, err := netip.ParseAddrPort(status.Endpoint)
	if err != nil || status.NodeName != m.name {
		return netip.Addr{}
	}
	return endpoint.Addr().Unmap()
}

// wayTo asks the kernel from which address this node sends to a gateway, and how
// large packets may be that it carries: to the gateway in the overlay, and from
// one on this very node to the peer in the tunnel. That may be another link than
// the one with the node's own address.
func (a *agent) wayTo(g gateway) (source netip.Addr, mtu int, err error) {
	source, _, outer, err := a.kernel.SourceTo(g.pod)
	if err != nil {
		return source, 0, err
	}
	mtu = outer - overlay.Overhead(g.pod)
	if g.peer.IsValid() {
		// There may be no route: then packets do not get there anyway.
		if _, _, outer, err := a.kernel.SourceTo(g.peer); err == nil {
			mtu = min(mtu, outer-tunnel.Overhead(g.peer))
		}
	}
	return source, mtu, nil
}
