package gateway

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/liqonet/liqonet/pkg/liveness"
)

// The peer's report about its nodes does not come back to it: two gateways would keep each other asking forever.
func TestUseIsNotToldBack(t *testing.T) {
	a, peer, node := &agent{}, netip.MustParseAddr("10.70.95.254"), netip.MustParseAddr("10.80.0.1")
	a.answers.served.Store(&desired{mtu: 1400})
	a.answers.nodesAsk.know(node)
	used := liveness.Question{InUse: true}
	a.answers.record(peer, used) // unknown so far
	if a.answers.fullSize() != 0 {
		t.Error("an unknown address uses the gateway, and packets of full size are tried")
	}
	a.answers.peerAsks.know(peer)
	a.answers.record(peer, used)
	if a.answers.fullSize() != 0 || !a.answers.peerAsks.inUse() {
		t.Errorf("the peer's nodes use the gateway: size %d, want 0; in use: %v", a.answers.fullSize(), a.answers.peerAsks.inUse())
	}
	a.answers.record(node, used)
	if a.answers.fullSize() != 1400 {
		t.Error("a node uses the gateway as well, but packets of full size are not tried")
	}
}

// A sender of packets counts until it reports that it has stopped, or is gone. Nodes ask late on a busy machine, and
// rarely in a large cluster.
func TestUsers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var u askers
		node, other := netip.MustParseAddr("10.80.0.1"), netip.MustParseAddr("10.80.0.2")
		u.know(node, other)
		expect := func(when string, want bool) {
			t.Helper()
			if got := u.inUse(); got != want {
				t.Errorf("%s: in use: %v, want %v", when, got, want)
			}
		}
		expect("nobody has asked", false)
		u.note(node, false)
		expect("a node sends no packets", false)
		u.note(node, true)
		u.note(other, true)
		time.Sleep(userGone - time.Millisecond)
		expect("nodes are late", true)
		u.note(node, true)
		time.Sleep(inUse)
		expect("one is gone", true)
		u.note(other, false)
		expect("the other one has never reported that it stopped", true)
		u.note(node, false)
		expect("packets are on the way", true)
		time.Sleep(inUse)
		expect("the other one has stopped", false)
		u.note(node, true)
		time.Sleep(userGone)
		expect("the other one is gone, too", false)
	})
}
