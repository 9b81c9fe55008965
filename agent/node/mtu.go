package node

import (
	"net/netip"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
)

// tunnelTarget is where a gateway on this very node sends the tunnel's packets to.
func tunnelTarget(l local, status *v1alpha1.PlaneStatus) netip.Addr {
	endpoint, err := netip.ParseAddrPort(status.Endpoint)
	if err != nil || status.NodeName != l.name {
		return netip.Addr{}
	}
	return endpoint.Addr().Unmap()
}

// pathKey is a gateway pod, and where it sends the tunnel's packets to if it is on this
// node.
type pathKey struct{ pod, target netip.Addr }

// pathInfo is from which address this node sends to a gateway, and how large the packets
// may be. The link may be another one than that with the node's own address. For a gateway
// on this node it is also the path of the tunnel to the peer.
type pathInfo struct {
	source netip.Addr
	mtu    int
	err    error
}

// pathTo returns the path to a gateway. The kernel is asked after it has told of a
// change, or probes of one; and once per resync (see Reconcile), as it does not tell what
// it learns from ICMP errors.
func (a *agent) pathTo(g gateway) pathInfo {
	key := pathKey{g.pod, g.peer}
	p, known := a.paths[key]
	if known {
		return p
	}
	var outer int
	if p.source, outer, p.err = a.kernel.SourceTo(g.pod); p.err == nil {
		p.mtu = outer - overlay.Overhead(g.pod)
		if g.peer.IsValid() {
			// There may be no route: then packets do not get there anyway.
			if _, outer, err := a.kernel.SourceTo(g.peer); err == nil {
				p.mtu = min(p.mtu, outer-tunnel.Overhead(g.peer))
			}
		}
	}
	a.paths[key] = p
	return p
}
