package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/netns"
	"github.com/liqonet/liqonet/test/workload"
)

const (
	// sinkPort is where tests listen in a pod, closedPort where nobody does.
	sinkPort, closedPort = 7900, 7901
	// udpHeaders are the bytes of an IPv4 and a UDP header.
	udpHeaders = 28
	// discoveries is how many large packets are sent: the first one may be lost, of
	// which its sender learns the MTU of the way (RFC 1191).
	discoveries = 2
)

// checkPackets has pods and nodes of both clusters send what is not everyday
// traffic to pods of the other one: fragments, packets without a checksum, and SCTP.
func checkPackets(t testing.TB, ctx context.Context, a, b *cluster) {
	views := status(t, ctx, 0, a, b)
	for from, to := range bothWays(a, b) {
		ours, theirs := viewOf(t, views, from, to), viewOf(t, views, to, from)
		for i, p := range from.pods {
			target := to.pods[(i+1)%len(to.pods)]
			address := theirs.seenAs(t, target.IP)
			for _, v := range []*vantage{p.vantage, from.nodes[i].vantage} {
				// Where the pod's link has room for 5000 bytes, only this packet tells its sender the MTU of the path: the
				// kernel forbids routers to fragment it, unlike what it has fragmented itself.
				for _, size := range []int{5000, 40_000} {
					err := v.do(func() error { return echoUDP(address, size) })
					expect(t, err == nil, "%s exchanges %d bytes with %s: %v", v, size, target.vantage, err)
				}
			}
			for _, size := range []int{100, 5000} {
				source, err := deliver(p.vantage, target.vantage, address, size, unix.SOL_SOCKET, unix.SO_NO_CHECK, 1)
				want := ours.seenAs(t, p.IP)
				expect(t, err == nil && source == want,
					"%s sends %d bytes without a checksum to %s, which sees %s: want %s, %v", p.vantage, size, target.vantage, source, want, err)
			}
			source, err := sendSCTP(p.vantage, target.vantage, address)
			expect(t, err == nil && source == ours.seenAs(t, p.IP), "%s sends SCTP to %s, which sees %s: %v", p.vantage, target.vantage, source, err)
		}
	}
}

// checkLimit sends packets that must not be fragmented: those of mtu bytes
// arrive, and larger ones give the sender an error with that number.
func checkLimit(t testing.TB, from, at *vantage, address netip.Addr, mtu int) {
	t.Helper()
	if _, err := deliver(from, at, address, mtu-udpHeaders, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE); err != nil {
		t.Errorf("%s sends %d bytes to %s: %v", from, mtu, at, err)
	}
	ns := netns.Open(t, from.name, fmt.Sprintf("/proc/self/fd/%d", from.ns.Fd()))
	found, err := dataplane.DiscoverMTU(ns, address, sinkPort, mtu+1)
	expect(t, err == nil && found == mtu, "%s sends %d bytes to %s, and is told of an MTU of %d: %v; want %d", from, mtu+1, at, found, err, mtu)
}

// deliver sends a UDP packet of size bytes, with a socket option
// of the sender, waits until it arrives, and returns which source it had there.
func deliver(from, at *vantage, address netip.Addr, size, level, name, value int) (source netip.Addr, err error) {
	var sink *net.UDPConn
	if err := at.do(func() (err error) {
		sink, err = net.ListenUDP("udp4", &net.UDPAddr{Port: sinkPort})
		return err
	}); err != nil {
		return source, err
	}
	defer sink.Close()
	conn, err := dialUDP(from, netip.AddrPortFrom(address, sinkPort))
	if err != nil {
		return source, err
	}
	defer conn.Close()
	if err := setOption(conn, level, name, value); err != nil {
		return source, err
	}
	return arrives(conn, sink, pattern(size))
}

// sendSCTP sends the first packet of an association, which has to arrive. The
// checksum does not cover addresses, so it has to arrive as it is.
func sendSCTP(from, at *vantage, address netip.Addr) (source netip.Addr, err error) {
	// Common header and INIT chunk, RFC 9260.
	packet := []byte{0x1e, 0xdc, 0x1e, 0xdd, 0, 0, 0, 0, 0, 0, 0, 0}
	packet = append(packet, 1, 0, 0, 20, 1, 2, 3, 4, 0, 1, 0, 0, 0, 1, 0, 1, 5, 6, 7, 8)
	binary.LittleEndian.PutUint32(packet[8:], crc32.Checksum(packet, crc32.MakeTable(crc32.Castagnoli)))
	const network = "ip4:132"
	var sink *net.IPConn
	if err := at.do(func() (err error) {
		sink, err = net.ListenIP(network, nil)
		return err
	}); err != nil {
		return source, err
	}
	defer sink.Close()
	var conn *net.IPConn
	if err := from.do(func() (err error) {
		conn, err = net.DialIP(network, nil, &net.IPAddr{IP: address.AsSlice()})
		return err
	}); err != nil {
		return source, err
	}
	defer conn.Close()
	return arrives(conn, sink, packet)
}

// arrives sends a packet, waits until it arrives, and returns which source it had there.
func arrives(conn, at net.Conn, sent []byte) (source netip.Addr, err error) {
	buf := make([]byte, 1<<16)
	err = attempts(1, callTimeout, at, func() error {
		if _, err := conn.Write(sent); err != nil {
			return err
		}
		n, sender, err := at.(net.PacketConn).ReadFrom(buf)
		if err == nil && !bytes.Equal(buf[:n], sent) {
			err = errors.New("something else has arrived")
		}
		switch a := sender.(type) {
		case *net.UDPAddr:
			source = a.AddrPort().Addr().Unmap()
		case *net.IPAddr:
			ip, _ := netip.AddrFromSlice(a.IP)
			source = ip.Unmap()
		}
		return err
	})
	return source, err
}

// echoUDP exchanges a packet with a test pod, in the namespace of the thread.
func echoUDP(to netip.Addr, size int) error {
	conn, err := net.Dial("udp", workload.Target("udp", to))
	if err != nil {
		return err
	}
	defer conn.Close()
	sent := pattern(size)
	return attempts(discoveries, time.Second, conn, func() error { return errOf(exchangeUDP(conn, sent)) })
}

// bulk sends bytes by TCP to a test pod, which echoes, in the namespace of the
// thread. Neither direction may use larger segments than fit.
func bulk(to netip.Addr, size int) error {
	conn, err := net.DialTimeout("tcp", workload.Target("tcp", to), callTimeout)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(4 * callTimeout)); err != nil {
		return err
	}
	c, err := greet(conn)
	if err != nil {
		return err
	}
	return c.exchange(pattern(size))
}

// exchange is echo for more than buffers hold.
func (c *connection) exchange(sent []byte) error {
	written := make(chan error, 1)
	go func() {
		_, err := c.Write(sent)
		written <- err
	}()
	got := make([]byte, len(sent))
	for n := 0; n < len(got); {
		m, err := c.reader.Read(got[n:])
		if err != nil {
			c.Close() // so that the writer ends, too
			return errors.Join(fmt.Errorf("after %d of %d bytes: %w", n, len(sent), err), <-written)
		}
		n += m
	}
	if err := <-written; err != nil {
		return err
	}
	if !bytes.Equal(got, sent) {
		return errors.New("the echo is not what was sent")
	}
	return nil
}

// attempts does something until there is an answer, so many times at most.
func attempts(n int, pause time.Duration, conn net.Conn, do func() error) (err error) {
	for range n {
		if err := conn.SetReadDeadline(time.Now().Add(pause)); err != nil {
			return err
		}
		if err = do(); !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	return err
}

func dialUDP(from *vantage, to netip.AddrPort) (conn *net.UDPConn, err error) {
	err = from.do(func() error {
		conn, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(to))
		return err
	})
	return conn, err
}

func setOption(conn *net.UDPConn, level, name, value int) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var setErr error
	err = raw.Control(func(fd uintptr) { setErr = unix.SetsockoptInt(int(fd), level, name, value) })
	return errors.Join(err, setErr)
}

// pattern has no two equal pieces that a fragment could be mistaken for.
func pattern(size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

// forgetPaths has a kernel forget the path MTUs that it has learned, which it
// does by itself after ten minutes (net.ipv4.route.mtu_expires).
func forgetPaths(v *vantage) error {
	return v.do(func() error { return os.WriteFile("/proc/sys/net/ipv4/route/flush", []byte(strconv.Itoa(-1)), 0o200) })
}
