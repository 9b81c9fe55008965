package gateway

import (
	"net/netip"
	"testing"

	"github.com/liqonet/liqonet/pkg/liveness"
)

// What the peer says of its nodes is not told back to it: two gateways would keep each other asking for ever.
func TestUseIsNotToldBack(t *testing.T) {
	a, peer := &agent{}, netip.MustParseAddr("10.70.95.254")
	a.mtu.Store(1400)
	used := liveness.Question{InUse: true}
	a.asked(peer, used) // before it is known, it counts as a node
	if a.fullSize() != 1400 {
		t.Error("a node uses the gateway, and packets of full size are not tried")
	}
	a = &agent{}
	a.mtu.Store(1400)
	a.peer.Store(&peer)
	a.asked(peer, used)
	if a.fullSize() != 0 || !a.usedByPeer.within(inUse) {
		t.Errorf("the peer's nodes use the gateway: size %d, want 0; noted: %v", a.fullSize(), a.usedByPeer.within(inUse))
	}
	a.asked(netip.MustParseAddr("10.80.0.1"), used)
	if a.fullSize() != 1400 {
		t.Error("a node uses the gateway as well, and packets of full size are not tried")
	}
}
