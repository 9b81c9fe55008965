package overlay_test

import (
	"net/netip"
	"testing"
	"testing/quick"

	"github.com/liqonet/liqonet/pkg/overlay"
)

// No two addresses share a MAC address, and all are locally administered unicast
// ones.
func TestMACFor(t *testing.T) {
	property := func(a, b [4]byte) bool {
		x, y := overlay.MACFor(netip.AddrFrom4(a)), overlay.MACFor(netip.AddrFrom4(b))
		return (x == y) == (a == b) && x[0]&3 == 2
	}
	if err := quick.Check(property, nil); err != nil {
		t.Error(err)
	}
}
