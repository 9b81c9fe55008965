package tunnel

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"

	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

// Packets to IPv6 addresses arrive, even after a packet to an IPv4 address.
func TestEndpointsOfBothFamilies(t *testing.T) {
	ns := netns.New(t, "bind")
	addresses := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("fd00:c::1")}
	sender := &bind{Bind: conn.NewDefaultBind(), out: newWindow(), in: newWindow()}
	t.Cleanup(func() { _ = sender.Close() })
	var receivers [2]*net.UDPConn
	ns.Do(t, func() error {
		l, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		errs := []error{netlink.LinkSetUp(l)}
		for i, a := range addresses {
			errs = append(errs, netlink.AddrAdd(l, &netlink.Addr{IPNet: netlink.NewIPNet(a.AsSlice()), Flags: unix.IFA_F_NODAD}))
			receivers[i], err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 0)))
			errs = append(errs, err)
		}
		_, _, err = sender.Open(0)
		return errors.Join(append(errs, err)...)
	})
	for range 10 {
		for _, r := range receivers {
			to := kit.Must(sender.ParseEndpoint(r.LocalAddr().String()))(t)
			// The kernel adds the route to an IPv6 address slightly later than the address.
			received := false
			for end := time.Now().Add(5 * time.Second); !received && time.Now().Before(end); {
				if err := sender.Send([][]byte{[]byte("hello")}, to); err != nil {
					t.Errorf("send to %s: %v", to.DstToString(), err)
				}
				kit.NoError(t, r.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
				_, err := r.Read(make([]byte, 16))
				received = err == nil
			}
			if !received {
				t.Fatalf("%s received nothing", to.DstToString())
			}
		}
	}
	for _, r := range receivers {
		_ = r.Close()
	}
}
