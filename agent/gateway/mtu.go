package gateway

import (
	"time"

	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
)

// minMTU is the least that is worked with, and that a peer is believed: every host takes
// packets of that size (RFC 791).
const minMTU = 576

const (
	// growAfter is how long a peer has to say the same MTU before it is believed that it can
	// do more.
	growAfter = 10 * time.Second
	// agreeGap is the least time between two changes of what a peer is believed. Each is
	// one of all nodes' links and routes.
	agreeGap = 5 * time.Second
)

// told is what the peer's gateway says of its MTU, and what of it is believed.
type told struct {
	// said is the last one, in bytes, since when; agreed is believed, since when.
	said, agreed          int
	saidSince, agreedFrom time.Time
}

// hear takes what the peer says at a time, 0 for nothing, and returns the MTU that it is
// believed to do, 0 for unknown.
func (t *told) hear(mtu int, now time.Time) int {
	if mtu == 0 {
		return t.agreed
	}
	if mtu = max(mtu, minMTU); mtu != t.said {
		t.said, t.saidSince = mtu, now
	}
	grows := t.said > t.agreed && now.Sub(t.saidSince) >= growAfter
	first := t.agreed == 0
	if first || now.Sub(t.agreedFrom) >= agreeGap && (grows || t.said < t.agreed) {
		t.agreed, t.agreedFrom = t.said, now
	}
	return t.agreed
}

// path is how packets get to the peer's gateway.
type path struct {
	// overhead is what the tunnel adds to a packet by the endpoint that WireGuard
	// uses now, in bytes; 0 while it has none.
	overhead int
	// mtu is what the kernel knows of the path there, by routes and by ICMP errors,
	// in bytes; 0 where it knows nothing.
	mtu int
	// agreed is the MTU that the peer's gateway can do, 0 if it has not said.
	agreed int
}

// capacity is the largest packet that this side can carry: through the tunnel,
// over the pod's network and that of its node, and through the overlay to each
// node.
func capacity(l local, role v1alpha1.Role, nodes []v1alpha1.NodeNetwork, links []linkedNode) int {
	outer := l.underlayMTU
	if l.path.mtu > 0 {
		outer = min(outer, l.path.mtu)
	}
	for _, n := range nodes {
		// What a client sends leaves by its own node; a server is called by any.
		passes := n.Name == l.node || role == v1alpha1.Server
		if passes && n.DeletionTimestamp.IsZero() && n.Status.UnderlayMTU > 0 {
			outer = min(outer, int(n.Status.UnderlayMTU))
		}
	}
	overhead := l.path.overhead
	if overhead == 0 {
		overhead = tunnel.Overhead(l.endpoint.Addr())
	}
	mtu := outer - overhead
	for _, n := range links {
		mtu = min(mtu, l.underlayMTU-overlay.Overhead(n.source))
		if n.mtu > 0 {
			mtu = min(mtu, n.mtu)
		}
	}
	return max(mtu, minMTU)
}

// measurePath looks at how large packets to the peer may be, and says whether that
// has changed.
func (a *agent) measurePath() bool {
	now := a.local.path
	now.agreed = a.told.hear(int(a.probes.RemoteMTU), time.Now())
	if a.tunnel.Endpoint.IsValid() && time.Since(a.pathRead) >= loop.LookInterval {
		a.pathRead = time.Now()
		endpoint := a.tunnel.Endpoint.Addr().Unmap()
		now.overhead, now.mtu = tunnel.Overhead(endpoint), 0
		if _, mtu, err := a.kernel.SourceTo(endpoint); err == nil {
			now.mtu = mtu
		}
	}
	changed := now != a.local.path
	a.local.path = now
	return changed
}
