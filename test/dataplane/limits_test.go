package dataplane_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/samber/lo"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/liveness"
	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

const sinkPort = 9700

// limited is a router with our table, between hosts with one address each. The table limits traffic.
type limited struct {
	*netns.NS
	hosts map[string]dataplane.Host
}

// newLimited connects hosts to a router by interfaces with their names, in the given groups.
func newLimited(t *testing.T, addrs map[string]string, groups map[string]uint32) *limited {
	t.Helper()
	r := &limited{NS: netns.New(t, "router"), hosts: map[string]dataplane.Host{}}
	r.Sysctl(t, "ipv4/ip_forward", "1")
	for name, addr := range addrs {
		h := dataplane.Host{NS: netns.New(t, name), Addr: netip.MustParseAddr(addr)}
		netns.Veth(t, r.NS, name, h.NS, "eth0")
		subnet := netip.PrefixFrom(h.Addr, 24)
		gateway := subnet.Masked().Addr().Next()
		h.NS.Addr(t, "eth0", subnet)
		h.Route(t, netip.MustParsePrefix("0.0.0.0/0"), gateway)
		r.Addr(t, name, netip.PrefixFrom(gateway, 24))
		r.WithLink(t, name, func(l netlink.Link) error {
			return netlink.LinkSetGroup(l, int(groups[name]))
		})
		r.hosts[name] = h
	}
	return r
}

// sink counts the packets that arrive at a host, and their bytes with IP and UDP headers.
func sink(t *testing.T, h dataplane.Host) (received func() (packets, bytes int)) {
	t.Helper()
	var c *net.UDPConn
	h.Do(t, func() (err error) {
		if c, err = net.ListenUDP("udp4", &net.UDPAddr{Port: sinkPort}); err != nil {
			return err
		}
		raw, err := c.SyscallConn()
		if err != nil {
			return err
		}
		return raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20) })
	})
	t.Cleanup(func() { _ = c.Close() })
	return func() (packets, bytes int) {
		buf := make([]byte, 1<<16)
		for {
			_ = c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
			n, _, err := c.ReadFrom(buf)
			if err != nil {
				return packets, bytes
			}
			packets, bytes = packets+1, bytes+n+28
		}
	}
}

// begin opens count connections to the sink's port, without a reply to any.
func begin(t *testing.T, from dataplane.Host, to netip.Addr, kind, count int) {
	t.Helper()
	from.Do(t, func() error {
		for range count {
			fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_NONBLOCK, 0)
			if err != nil {
				return err
			}
			t.Cleanup(func() { _ = unix.Close(fd) })
			if err := unix.Connect(fd, &unix.SockaddrInet4{Port: sinkPort, Addr: to.As4()}); err != nil && err != syscall.EINPROGRESS {
				return err
			}
			if kind == unix.SOCK_DGRAM {
				if _, err := unix.Write(fd, []byte("new")); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// tracked returns the number of connections of a source in the router's conntrack table.
func (r *limited) tracked(t *testing.T, source netip.Addr) (n int) {
	t.Helper()
	r.Do(t, func() error {
		flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, netlink.FAMILY_V4)
		for _, f := range flows {
			if f.Forward.SrcIP.Equal(source.AsSlice()) {
				n++
			}
		}
		return err
	})
	return n
}

// dropped returns the value of a counter of our table.
func (r *limited) dropped(t *testing.T, counter string) (packets int) {
	t.Helper()
	r.Do(t, func() error {
		table := &nftables.Table{Name: nat.TableName, Family: nftables.TableFamilyIPv4}
		obj, err := (&nftables.Conn{}).GetObject(&nftables.CounterObj{Table: table, Name: counter})
		if err != nil {
			return err
		}
		packets = int(obj.(*nftables.CounterObj).Packets)
		return nil
	})
	return packets
}

// A node accepts as many new connections of a peer as its limit allows, whatever the protocol. The others do not enter
// its conntrack table. Existing connections continue, even if packets flow only in one direction, and other peers are
// not affected.
func TestNewConnectionsPerPeer(t *testing.T) {
	const limit, tries = 20, 200
	r := newLimited(t,
		map[string]string{"loq0-0": "10.63.0.2", "loq1-0": "10.65.0.2", "loq2-0": "10.66.0.2", "pod": "10.244.0.2"},
		map[string]uint32{"loq0-0": overlay.Group, "loq1-0": overlay.Group, "loq2-0": overlay.Group})
	pod, peer, other, unlimited := r.hosts["pod"], r.hosts["loq0-0"], r.hosts["loq1-0"], r.hosts["loq2-0"]
	gateway := func(link, pod, remote string, limit uint32) nat.NodeGateway {
		return nat.NodeGateway{
			Pod: mapped(pod), Overlay: mapped("10.80.31.254"), Link: link, Remote: []netip.Prefix{netip.MustParsePrefix(remote)}, LimitNew: limit,
		}
	}
	table := nat.Node{
		OverlayGroup: overlay.Group, Address: mapped("10.80.0.1"), OverlayPort: overlay.Port, TunnelPort: tunnel.ListenPort,
		Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, OwnPods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24")},
		Remote: []netip.Prefix{netip.MustParsePrefix("10.63.0.0/16"), netip.MustParsePrefix("10.65.0.0/16"), netip.MustParsePrefix("10.66.0.0/16")},
		Gateways: []nat.NodeGateway{
			gateway("loq0-0", "10.244.7.1", "10.63.0.0/16", limit), gateway("loq1-0", "10.244.7.2", "10.65.0.0/16", limit),
			gateway("loq2-0", "10.244.7.3", "10.66.0.0/16", 0),
		},
	}
	netns.In(t, r, func() (bool, error) { return nat.ApplyNode(context.Background(), table) })
	received := sink(t, pod)
	echo := uint16(9701)
	dataplane.ServeUDP(t, pod.NS, echo)
	// A connection in only one direction stays new in the kernel's table.
	dial := func(port uint16) net.Conn {
		return netns.In(t, peer, func() (net.Conn, error) { return net.Dial("udp4", netip.AddrPortFrom(pod.Addr, port).String()) })
	}
	oneWay, bothWays := dial(sinkPort), dial(echo)
	defer func() { _, _ = oneWay.Close(), bothWays.Close() }()
	asks := func() error {
		_ = bothWays.SetDeadline(time.Now().Add(2 * time.Second))
		if _, err := bothWays.Write([]byte("?")); err != nil {
			return err
		}
		_, err := bothWays.Read(make([]byte, 100))
		return err
	}
	kit.NoError(t, asks())
	kit.Must(oneWay.Write([]byte("first")))(t)
	if n, _ := received(); n != 1 {
		t.Fatalf("%d packets", n)
	}

	start, before := time.Now(), r.tracked(t, peer.Addr)
	begin(t, peer, pod.Addr, unix.SOCK_DGRAM, tries)
	begin(t, peer, pod.Addr, unix.SOCK_STREAM, tries)
	for range tries {
		kit.Must(oneWay.Write([]byte("more")))(t)
	}
	kit.CheckNoError(t, asks(), "an earlier connection no longer gets replies")
	// The last packets may still be in flight. A dropped TCP connection is retried after a second.
	var passed, dropped int
	for deadline := time.Now().Add(10 * time.Second); passed+dropped < 2*tries && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		passed, dropped = r.tracked(t, peer.Addr)-before, r.dropped(t, "forward/over-limit-new/loq0-0")
	}
	most := limit + int(time.Since(start).Seconds()*limit) + 1
	kit.ErrorIf(t, passed < limit-2 || passed > most || dropped < 2*tries-passed,
		"%d of %d new connections passed, want %d to %d; %d packets were dropped", passed, 2*tries, limit-2, most, dropped)
	if n, _ := received(); n < tries+limit-2 || n > tries+most {
		t.Errorf("%d packets arrived: want all %d of an earlier connection, and up to %d others", n, tries, most)
	}

	begin(t, other, pod.Addr, unix.SOCK_DGRAM, limit-1)
	if n, _ := received(); n != limit-1 {
		t.Errorf("%d of %d connections of another peer, below its limit, passed", n, limit-1)
	}
	begin(t, unlimited, pod.Addr, unix.SOCK_DGRAM, tries)
	if n, _ := received(); n != tries {
		t.Errorf("%d of %d connections of a peer without a limit passed", n, tries)
	}
}

// flood sends UDP packets with so many bytes. Nobody reads the answers.
func flood(t *testing.T, from dataplane.Host, to netip.AddrPort, size, packets int) {
	t.Helper()
	c := netns.In(t, from, func() (net.Conn, error) { return net.Dial("udp4", to.String()) })
	t.Cleanup(func() { kit.CheckNoError(t, c.Close()) })
	for range packets {
		kit.Must(c.Write(make([]byte, size)))(t)
	}
}

var gatewayAddress = netip.MustParseAddr("10.80.31.254")

// becomeGateway gives the router a gateway's address, routes to its peer, and responder.
func (r *limited) becomeGateway(t *testing.T) {
	t.Helper()
	r.Addr(t, "lo", netip.PrefixFrom(gatewayAddress, 32))
	r.Do(t, func() (err error) {
		for name, h := range r.hosts {
			if strings.HasPrefix(name, "wg") {
				subnet := &net.IPNet{IP: netip.PrefixFrom(h.Addr, 24).Masked().Addr().AsSlice(), Mask: net.CIDRMask(24, 32)}
				err = errors.Join(err, netlink.RouteReplace(&netlink.Route{Dst: subnet, Gw: h.Addr.AsSlice(), Src: gatewayAddress.AsSlice()}))
			}
		}
		return err
	})
	dataplane.ServeUDP(t, r.NS, liveness.Port)
}

// limit gives the router a gateway's table, with a limit for its peer in bytes per second.
func (r *limited) limit(t *testing.T, rate uint64) {
	t.Helper()
	same := func(s string) nat.Mapping {
		return nat.Mapping{Real: netip.MustParsePrefix(s), Mapped: netip.MustParsePrefix(s)}
	}
	r.Do(t, func() error {
		_, err := nat.ApplyGateway(context.Background(), nat.Gateway{
			Underlay: "eth0", TunnelGroup: tunnel.Group, OverlayGroup: overlay.Group, ReceiveGroup: tunnel.ReceiveGroup,
			Local: []nat.Mapping{same("10.244.0.0/16")}, Internal: same("10.80.0.0/19"), Address: gatewayAddress,
			Remote: []netip.Prefix{netip.MustParsePrefix("10.63.0.0/16")}, PeerGateway: netip.MustParseAddr("10.63.0.2"),
			PeerNodes: netip.MustParsePrefix("10.63.1.0/24"), OverlayPort: overlay.Port, TunnelPort: tunnel.ListenPort,
			LivenessPort: liveness.Port, LimitRate: rate,
		})
		return err
	})
}

// The peer's gateway always gets answers: only its nodes may send probes too, and not more than the gateway can answer. Pods of
// either cluster send none.
func TestProbesOfPeer(t *testing.T) {
	const tries = 60000
	r := newLimited(t, map[string]string{"wg0": "10.63.0.2", "wg1": "10.63.1.2", "wg2": "10.63.2.2", "loqn0": "10.80.1.2", "loqn1": "10.244.0.2"},
		map[string]uint32{"wg0": tunnel.Group, "wg1": tunnel.Group, "wg2": tunnel.Group, "loqn0": overlay.Group, "loqn1": overlay.Group})
	r.becomeGateway(t)
	r.limit(t, 0)
	for name, want := range map[string]bool{"wg0": true, "wg1": true, "wg2": false, "loqn0": true, "loqn1": false} {
		h := r.hosts[name]
		to := gatewayAddress
		if strings.HasPrefix(name, "loqn") {
			to = netip.PrefixFrom(h.Addr, 24).Masked().Addr().Next() // the source of the answer
		}
		kit.Check(t, h.Addr.String()+" reaches the port for liveness requests", dataplane.ReachesUDP(h.NS, to, liveness.Port), want)
	}
	responder := netip.AddrPortFrom(gatewayAddress, liveness.Port)
	start := time.Now()
	flood(t, r.hosts["wg1"], responder, 1, tries)
	dropped, most := r.dropped(t, "input/over-limit-rate"), 20000*(1+time.Since(start).Seconds())
	passed := tries - dropped
	kit.ErrorIf(t, passed < 20000 || float64(passed) > most, "%d of %d probes of one node passed, want 20000 to %.0f", passed, tries, most)
	flood(t, r.hosts["wg0"], responder, 1, tries/10) // a slow processor's socket is still full: not all are answered
	kit.Check(t, "dropped requests of the peer's gateway", r.dropped(t, "input/over-limit-rate")-dropped, 0)
	kit.Within(t, 10*time.Second, "the peer's gateway is answered", func() string {
		return lo.Ternary(dataplane.ReachesUDP(r.hosts["wg0"].NS, gatewayAddress, liveness.Port), "", "no answer")
	})
}

// A gateway forwards as much from its peer as the limit allows. Traffic below the limit passes, and so do probes and
// the other direction.
func TestRatePerPeer(t *testing.T) {
	const limit, size, tries = 125000, 1000, 1000
	r := newLimited(t, map[string]string{"wg0": "10.63.0.2", "loqn1": "10.244.0.2"}, map[string]uint32{"wg0": tunnel.Group, "loqn1": overlay.Group})
	r.becomeGateway(t)
	r.limit(t, limit)
	peer, pod := r.hosts["wg0"], r.hosts["loqn1"]
	send := func(from, to dataplane.Host, packets int) {
		t.Helper()
		flood(t, from, netip.AddrPortFrom(to.Addr, sinkPort), size-28, packets)
	}
	toPod, toPeer := sink(t, pod), sink(t, peer)
	const below = limit/size - 5
	start := time.Now()
	send(peer, pod, below)
	if n, _ := toPod(); n != below {
		t.Errorf("%d of %d packets below the limit arrived", n, below)
	}
	send(peer, pod, tries)
	for range 20 {
		kit.ErrorIf(t, !dataplane.ReachesUDP(peer.NS, gatewayAddress, liveness.Port), "a probe is not answered")
	}
	most := int(limit * (1 + time.Since(start).Seconds()))
	n, bytes := toPod()
	if total := bytes + below*size; total < limit-size || total > most {
		t.Errorf("%d bytes passed, want %d to %d", total, limit-size, most)
	}
	kit.Check(t, "dropped packets that were counted", r.dropped(t, "forward/over-limit-rate"), tries-n)
	send(pod, peer, tries)
	if n, _ := toPeer(); n != tries {
		t.Errorf("%d of %d packets to the peer arrived", n, tries)
	}
	r.limit(t, 0)
	send(peer, pod, tries)
	if n, _ := toPod(); n != tries {
		t.Errorf("%d of %d packets arrived without a limit", n, tries)
	}
}
