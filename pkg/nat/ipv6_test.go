package nat_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/test/netns"
)

// path6 is a pod, its node, their gateway and a peer, in a row: the tables of
// node and gateway are ours, and plain interfaces stand in for overlay and tunnel.
type path6 struct {
	pod, node, gateway, peer *netns.NS
}

// Addresses; those that are mapped are as the peer knows them.
var (
	pod6, pod6Mapped       = addr("fd00:10:244:1::3"), addr("fd00:10:61:1::3")
	node6Addr, node6Mapped = addr("fd00:10:80::1"), addr("fd00:10:62::1")
	gate6Addr, gate6Mapped = addr("fd00:10:80::1ffe"), addr("fd00:10:62::1ffe")
	peer6                  = addr("fd00:20::5")
)

// newPath6 makes the path. With checksums in software they are computed by
// whoever sends, and looked at by whoever receives.
func newPath6(t *testing.T, software bool) *path6 {
	t.Helper()
	p := &path6{netns.New(t, "pod"), netns.New(t, "node"), netns.New(t, "gateway"), netns.New(t, "peer")}
	for _, ns := range []*netns.NS{p.node, p.gateway} {
		ns.Sysctl(t, "ipv6/conf/all/forwarding", "1")
	}
	// As on our interfaces: no link-local addresses, and neighbours are permanent ones.
	for _, ns := range []*netns.NS{p.pod, p.node, p.gateway, p.peer} {
		ns.Sysctl(t, "ipv6/conf/default/addr_gen_mode", "1")
	}
	connect := func(a *netns.NS, aDev string, aAddr netip.Addr, b *netns.NS, bDev string, bAddr netip.Addr) {
		netns.Veth(t, a, aDev, b, bDev)
		for _, end := range []struct {
			ns, other     *netns.NS
			dev, otherDev string
			addr, peer    netip.Addr
		}{{a, b, aDev, bDev, aAddr, bAddr}, {b, a, bDev, aDev, bAddr, aAddr}} {
			if software {
				end.ns.Features(t, end.dev, false, "rx-checksum", "tx-checksum-ip-generic")
			}
			var mac string
			end.other.Do(t, func() error {
				i, err := net.InterfaceByName(end.otherDev)
				mac = i.HardwareAddr.String()
				return err
			})
			end.ns.Output(t, "ip", "addr", "add", end.addr.String(), "dev", end.dev, "nodad")
			end.ns.Output(t, "ip", "neigh", "replace", end.peer.String(), "lladdr", mac, "dev", end.dev, "nud", "permanent")
			end.ns.Output(t, "ip", "route", "replace", end.peer.String(), "dev", end.dev, "src", end.addr.String())
		}
	}
	connect(p.pod, "eth0", pod6, p.node, "pod0", addr("fd00:10:244:1::1"))
	connect(p.node, "lq0-0", node6Addr, p.gateway, "lqn1", gate6Addr)
	connect(p.gateway, "wg0", gate6Addr, p.peer, "eth0", peer6)
	p.node.Output(t, "ip", "link", "set", "lq0-0", "group", "1")
	p.gateway.Output(t, "ip", "link", "set", "lqn1", "group", "1")
	p.gateway.Output(t, "ip", "link", "set", "wg0", "group", "2")
	awaitLocal(t, p.pod, pod6)
	awaitLocal(t, p.node, node6Addr)
	awaitLocal(t, p.gateway, gate6Addr)
	awaitLocal(t, p.peer, peer6)
	p.pod.Output(t, "ip", "route", "add", "default", "via", "fd00:10:244:1::1")
	p.node.Output(t, "ip", "route", "add", "fd00:20::/48", "via", gate6Addr.String(), "dev", "lq0-0", "src", node6Addr.String())
	p.gateway.Output(t, "ip", "route", "add", "fd00:10:244:1::/64", "via", node6Addr.String(), "dev", "lqn1", "src", gate6Addr.String())
	p.peer.Output(t, "ip", "route", "add", "default", "via", gate6Addr.String())
	// What network plugins do with what leaves the pods' range.
	p.node.Output(t, "nft", "add table ip6 foreign; add chain ip6 foreign post { type nat hook postrouting priority 100; }; "+
		"add rule ip6 foreign post ip6 saddr fd00:10:244::/48 masquerade")
	n := node6()
	n.Uplinks = nil
	p.node.Do(t, func() error { _, err := nat.ApplyNode(context.Background(), n); return err })
	p.gateway.Do(t, func() error { _, err := nat.ApplyGateway(context.Background(), gateway6()); return err })
	return p
}

// awaitLocal waits until packets to an address of a namespace are taken: of IPv6
// the kernel makes it its own a moment after it was added.
func awaitLocal(t *testing.T, ns *netns.NS, a netip.Addr) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		route := ns.Output(t, "ip", "-6", "route", "show", "table", "local", a.String())
		if strings.HasPrefix(route, "local ") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not take packets to %s: %q", ns, a, route)
		}
	}
}

const port6 = 7000

// serve6 answers UDP packets by their source, and TCP connections by source and
// sum of what they sent.
func serve6(t *testing.T, ns *netns.NS) {
	t.Helper()
	ns.Do(t, func() error {
		packets, err := net.ListenPacket("udp6", fmt.Sprintf(":%d", port6))
		if err != nil {
			return err
		}
		connections, err := net.Listen("tcp6", fmt.Sprintf(":%d", port6))
		if err != nil {
			return errors.Join(err, packets.Close())
		}
		t.Cleanup(func() { _, _ = packets.Close(), connections.Close() })
		go func() {
			buf := make([]byte, 1<<16)
			for {
				_, from, err := packets.ReadFrom(buf)
				if err != nil {
					return
				}
				_, _ = packets.WriteTo([]byte(from.(*net.UDPAddr).AddrPort().Addr().String()), from)
			}
		}()
		go func() {
			for {
				c, err := connections.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					sum := crc32.NewIEEE()
					_, _ = io.Copy(sum, c)
					fmt.Fprintf(c, "%s %x", c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr(), sum.Sum32())
				}()
			}
		}()
		return nil
	})
}

func dial6(t *testing.T, ns *netns.NS, network string, dst netip.Addr) net.Conn {
	t.Helper()
	var c net.Conn
	ns.Do(t, func() (err error) {
		c, err = (&net.Dialer{Timeout: 5 * time.Second}).Dial(network, netip.AddrPortFrom(dst, port6).String())
		return err
	})
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	return c
}

// sources6 sends by UDP and TCP, and compares the source that the server saw.
func sources6(t *testing.T, from *netns.NS, dst, want netip.Addr) {
	t.Helper()
	c := dial6(t, from, "udp6", dst)
	buf := make([]byte, 100)
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(buf); err != nil || string(buf[:n]) != want.String() {
		t.Errorf("UDP from %s to %s was seen to come from %q, not %s: %v", from, dst, buf[:n], want, err)
	}
	c = dial6(t, from, "tcp6", dst)
	sent := make([]byte, 1<<20)
	for i := range sent {
		sent[i] = byte(i * 7)
	}
	_, err := c.Write(sent)
	err = errors.Join(err, c.(*net.TCPConn).CloseWrite())
	answer, readErr := io.ReadAll(c)
	if want := fmt.Sprintf("%s %x", want, crc32.ChecksumIEEE(sent)); errors.Join(err, readErr) != nil || string(answer) != want {
		t.Errorf("TCP from %s to %s was answered by %q, not %q: %v", from, dst, answer, want, errors.Join(err, readErr))
	}
}

// cause6 is an error as the socket learns it whose packet caused it.
type cause6 struct {
	typ, code byte
	offender  netip.Addr
}

func (c cause6) String() string {
	return fmt.Sprintf("type %d code %d of %s", c.typ, c.code, c.offender)
}

// learn6 waits for an error of a socket's packet (ipv6(7), IPV6_RECVERR).
func learn6(t *testing.T, c net.Conn) cause6 {
	t.Helper()
	raw, err := c.(*net.UDPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	control := make([]byte, 512)
	var n int
	var inner error
	err = raw.Read(func(fd uintptr) bool {
		_, n, _, _, inner = unix.Recvmsg(int(fd), make([]byte, 100), control, unix.MSG_ERRQUEUE)
		return !errors.Is(inner, unix.EAGAIN)
	})
	if err = errors.Join(err, inner); errors.Is(err, os.ErrDeadlineExceeded) {
		return cause6{}
	} else if err != nil {
		t.Fatal(err)
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil {
		t.Fatal(err)
	}
	// struct sock_extended_err, and the offender's struct sockaddr_in6.
	for _, m := range messages {
		if m.Header.Level == unix.SOL_IPV6 && m.Header.Type == unix.IPV6_RECVERR && len(m.Data) >= 16+24 && m.Data[4] == unix.SO_EE_ORIGIN_ICMP6 {
			return cause6{m.Data[5], m.Data[6], netip.AddrFrom16([16]byte(m.Data[16+8:]))}
		}
	}
	t.Fatalf("no ICMPv6 error in %v", messages)
	return cause6{}
}

func setOption6(t *testing.T, c net.Conn, name, value int) {
	t.Helper()
	raw, err := c.(*net.UDPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var inner error
	err = raw.Control(func(fd uintptr) { inner = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, name, value) })
	if err = errors.Join(err, inner); err != nil {
		t.Fatal(err)
	}
}

// errors6 has a packet from one host to the other answered by all kinds of
// ICMPv6 errors (RFC 4443), which carry what the other host received.
func errors6(t *testing.T, from, to *netns.NS, dst, own, seen netip.Addr) {
	t.Helper()
	var sink, raw net.PacketConn
	const sinkPort = port6 + 1
	to.Do(t, func() (err error) {
		if sink, err = net.ListenPacket("udp6", fmt.Sprintf(":%d", sinkPort)); err != nil {
			return err
		}
		raw, err = net.ListenPacket("ip6:ipv6-icmp", own.String())
		return err
	})
	defer func() { _, _ = sink.Close(), raw.Close() }()
	for typ := byte(1); typ <= 4; typ++ {
		var c net.Conn
		from.Do(t, func() (err error) {
			c, err = net.Dial("udp6", netip.AddrPortFrom(dst, sinkPort).String())
			return err
		})
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(2 * time.Second))
		setOption6(t, c, unix.IPV6_RECVERR, 1)
		if _, err := c.Write([]byte("cause")); err != nil {
			t.Fatal(err)
		}
		_ = sink.SetReadDeadline(time.Now().Add(2 * time.Second))
		n, source, err := sink.ReadFrom(make([]byte, 100))
		if err != nil {
			t.Fatalf("type %d: the packet did not arrive: %v", typ, err)
		}
		sender := source.(*net.UDPAddr).AddrPort()
		if sender.Addr() != seen {
			t.Errorf("type %d: the packet came from %s, not %s", typ, sender, seen)
		}
		// Type, code, checksum, which the kernel fills in, and the MTU of what is too big.
		message := []byte{typ, 0, 0, 0, 0, 0, 5, 0}
		// The packet as it arrived: IPv6 header, UDP header, payload.
		message = append(message, 0x60, 0, 0, 0, 0, byte(8+n), unix.IPPROTO_UDP, 60)
		message = append(append(message, sender.Addr().AsSlice()...), own.AsSlice()...)
		for _, field := range []uint16{sender.Port(), sinkPort, uint16(8 + n), 0xabcd} {
			message = binary.BigEndian.AppendUint16(message, field)
		}
		if _, err := raw.WriteTo(append(message, "cause"...), &net.IPAddr{IP: sender.Addr().AsSlice()}); err != nil {
			t.Fatal(err)
		}
		if got, want := learn6(t, c), (cause6{typ, 0, dst}); got != want {
			t.Errorf("from %s to %s: learned of %s, not of %s", from, to, got, want)
		}
	}
}

// hop6 sends a packet that does not get further than hops, and compares who says so.
func hop6(t *testing.T, from *netns.NS, dst netip.Addr, hops int, want netip.Addr) {
	t.Helper()
	c := dial6(t, from, "udp6", dst)
	setOption6(t, c, unix.IPV6_RECVERR, 1)
	setOption6(t, c, unix.IPV6_UNICAST_HOPS, hops)
	if _, err := c.Write([]byte("cause")); err != nil {
		t.Fatal(err)
	}
	if got, want := learn6(t, c), (cause6{3, 0, want}); got != want {
		t.Errorf("from %s to %s, %d hops: learned of %s, not of %s", from, dst, hops, got, want)
	}
}

// closed6 expects that no packet gets through to a host that waits for one.
func closed6(t *testing.T, from *netns.NS, dst netip.Addr, at *netns.NS) {
	t.Helper()
	var sink net.PacketConn
	const sinkPort = port6 + 2
	at.Do(t, func() (err error) {
		sink, err = net.ListenPacket("udp6", fmt.Sprintf(":%d", sinkPort))
		return err
	})
	defer sink.Close()
	from.Do(t, func() error {
		c, err := net.Dial("udp6", netip.AddrPortFrom(dst, sinkPort).String())
		if err != nil {
			return err
		}
		_, err = c.Write([]byte("hello"))
		return errors.Join(err, c.Close())
	})
	_ = sink.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	if n, _, err := sink.ReadFrom(make([]byte, 100)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("from %s to %s: %d bytes arrived, %v", from, dst, n, err)
	}
}

// echo6 sends an echo request and waits for its reply, as ping does.
func echo6(t *testing.T, from *netns.NS, dst netip.Addr) {
	t.Helper()
	var c *icmp.PacketConn
	from.Do(t, func() (err error) {
		c, err = icmp.ListenPacket("ip6:ipv6-icmp", "::")
		return err
	})
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	// The kernel fills in the checksum.
	request, err := (&icmp.Message{Type: ipv6.ICMPTypeEchoRequest, Body: &icmp.Echo{ID: 7, Seq: 1}}).Marshal(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.WriteTo(request, &net.IPAddr{IP: dst.AsSlice()}); err != nil {
		t.Fatal(err)
	}
	// The socket gets all kinds of messages, those to neighbours among them.
	for buf := make([]byte, 1500); ; {
		n, source, err := c.ReadFrom(buf)
		if err != nil {
			t.Fatalf("no echo of %s in %s: %v", dst, from, err)
		}
		m, err := icmp.ParseMessage(unix.IPPROTO_ICMPV6, buf[:n])
		if err == nil && m.Type == ipv6.ICMPTypeEchoReply && source.String() == dst.String() {
			return
		}
	}
}

// TestIPv6 sends packets through the tables of IPv6. The product does not make
// any yet; this keeps IPv4's from becoming the only ones that could work.
func TestIPv6(t *testing.T) {
	for name, software := range map[string]bool{"checksums in software": true, "checksums offloaded": false} {
		t.Run(name, func(t *testing.T) {
			p := newPath6(t, software)
			for _, ns := range []*netns.NS{p.pod, p.node, p.peer} {
				serve6(t, ns)
			}
			sources6(t, p.pod, peer6, pod6Mapped)
			sources6(t, p.peer, pod6Mapped, peer6)
			// What is no pod has the overlay's address.
			sources6(t, p.node, peer6, node6Mapped)
			errors6(t, p.pod, p.peer, peer6, peer6, pod6Mapped)
			errors6(t, p.peer, p.pod, pod6Mapped, pod6, peer6)
			errors6(t, p.node, p.peer, peer6, peer6, node6Mapped)
			hop6(t, p.pod, peer6, 2, gate6Addr)
			hop6(t, p.peer, pod6Mapped, 1, gate6Mapped)
			hop6(t, p.peer, pod6Mapped, 2, node6Mapped)
			// Neither nodes nor what has another meaning on this side.
			closed6(t, p.peer, node6Mapped, p.node)
			closed6(t, p.peer, pod6, p.pod)
			closed6(t, p.peer, gate6Mapped, p.gateway)
			echo6(t, p.gateway, node6Addr)
			if count := strings.TrimSpace(p.gateway.Output(t, "cat", "/proc/sys/net/netfilter/nf_conntrack_count")); count != "0" {
				t.Errorf("the gateway tracks %s connections", count)
			}
		})
	}
}
