package dataplane_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/liqonet/liqonet/pkg/udp"
	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

// Packets with wrong checksums are counted where they arrive.
func TestWrongChecksums(t *testing.T) {
	from, to := netns.New(t, "from"), netns.New(t, "to")
	netns.Veth(t, from, "eth0", to, "eth0")
	from.Addr(t, "eth0", netip.MustParsePrefix("10.9.0.1/24"))
	to.Addr(t, "eth0", netip.MustParsePrefix("10.9.0.2/24"))
	const port = 9000
	dataplane.ServeUDP(t, to, port)
	packet := dataplane.Packet(netip.MustParseAddrPort("10.9.0.1:1234"), netip.AddrPortFrom(netip.MustParseAddr("10.9.0.2"), port), []byte("damaged"))
	packet[26], packet[27] = 0x12, 0x34 // UDP's checksum, 0 if there is none
	for range 3 {
		kit.NoError(t, dataplane.SendRaw(from, packet))
	}
	kit.Within(t, 5*time.Second, "3 packets are counted", func() string {
		if n := netns.In(t, to, func() (uint64, error) { return udp.WrongChecksums(), nil }); n != 3 {
			return fmt.Sprint(n)
		}
		return ""
	})
	n := netns.In(t, from, func() (uint64, error) { return udp.WrongChecksums(), nil })
	kit.ErrorIf(t, n != 0, "the sender counts %d", n)
}
