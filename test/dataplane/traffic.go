package dataplane

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/test/flow"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

// patience is how long an expected packet may take, and short how long to wait for a packet that is not expected.
// Emulated machines are slow.
const (
	patience = 6 * time.Second
	short    = 400 * time.Millisecond
)

// ServeTCP replies on each connection with the client's address and the hash of all received data.
func ServeTCP(t testing.TB, ns *netns.NS, port uint16) {
	t.Helper()
	l := netns.In(t, ns, func() (net.Listener, error) { return net.Listen("tcp4", fmt.Sprintf(":%d", port)) })
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				h := sha256.New()
				if _, err := io.Copy(h, c); err != nil {
					return
				}
				_, _ = fmt.Fprintf(c, "%s %x", addrOf(c.RemoteAddr()), h.Sum(nil))
			}()
		}
	}()
}

// ServeUDP replies to each packet with the sender's address, padded to 16 bytes, and with the packet itself.
func ServeUDP(t testing.TB, ns *netns.NS, port uint16) {
	t.Helper()
	c := netns.In(t, ns, func() (net.PacketConn, error) { return net.ListenPacket("udp4", fmt.Sprintf(":%d", port)) })
	t.Cleanup(func() { _ = c.Close() })
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, from, err := c.ReadFrom(buf[16:])
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				continue
			}
			copy(buf, make([]byte, 16))
			copy(buf, addrOf(from).String())
			buf[15] = '\n'
			_, _ = c.WriteTo(buf[:16+n], from)
		}
	}()
}

// Send sends packets of size bytes to a port that ServeUDP serves.
func Send(t testing.TB, from *netns.NS, to netip.Addr, port uint16, name string, size int) *flow.Flow {
	t.Helper()
	conn := netns.In(t, from, func() (*net.UDPConn, error) {
		return net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, port)))
	})
	t.Cleanup(func() {
		kit.CheckNoError(t, conn.Close())
	})
	return kit.Must(flow.Start(t.Context(), conn, name, size))(t)
}

func addrOf(a net.Addr) netip.Addr {
	return netip.MustParseAddrPort(a.String()).Addr().Unmap()
}

// dial opens a socket in a namespace.
func dial(ns *netns.NS, network string, dst netip.Addr, port uint16, timeout time.Duration) (c net.Conn, err error) {
	d := net.Dialer{Timeout: timeout}
	err = ns.Run(func() error {
		c, err = d.Dial(network, netip.AddrPortFrom(dst, port).String())
		return err
	})
	return c, err
}

// TCP sends bytes and returns the source that the server saw.
func TCP(ns *netns.NS, dst netip.Addr, port uint16, size int) (netip.Addr, error) {
	c, err := dial(ns, "tcp4", dst, port, patience)
	if err != nil {
		return netip.Addr{}, err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(3 * patience))
	payload := pattern(size)
	if _, err := c.Write(payload); err != nil {
		return netip.Addr{}, err
	}
	_ = c.(*net.TCPConn).CloseWrite()
	reply, err := io.ReadAll(c)
	if err != nil {
		return netip.Addr{}, err
	}
	var source, hash string
	if _, err := fmt.Sscan(string(reply), &source, &hash); err != nil {
		return netip.Addr{}, fmt.Errorf("reply %q: %w", reply, err)
	}
	if hash != fmt.Sprintf("%x", sha256.Sum256(payload)) {
		return netip.Addr{}, errors.New("the server received different data")
	}
	return netip.ParseAddr(source)
}

// UDP sends one packet and returns the source that the server saw.
func UDP(ns *netns.NS, dst netip.Addr, port uint16, size int) (netip.Addr, error) {
	return UDPFrom(ns, 0, dst, port, size)
}

// UDPFrom is UDP from a port.
func UDPFrom(ns *netns.NS, from uint16, dst netip.Addr, port uint16, size int) (source netip.Addr, err error) {
	var c *net.UDPConn
	if err := ns.Run(func() (err error) {
		c, err = net.DialUDP("udp4", &net.UDPAddr{Port: int(from)}, net.UDPAddrFromAddrPort(netip.AddrPortFrom(dst, port)))
		return err
	}); err != nil {
		return netip.Addr{}, err
	}
	defer func() { _ = c.Close() }()
	return exchange(c, size)
}

// exchange sends a packet until there is a reply, and waits twice as long each time: emulated processors are slow with many
// fragments. If the packet or its reply must not be fragmented and is too large, it is dropped, and causes an ICMP error.
func exchange(c net.Conn, size int) (netip.Addr, error) {
	const attempts = 6
	payload := pattern(size)
	buf := make([]byte, 1<<16)
	var n int
	for i := 0; ; i++ {
		_ = c.SetDeadline(time.Now().Add(patience << i / (1<<attempts - 1)))
		_, err := c.Write(payload)
		if err == nil {
			n, err = c.Read(buf)
		}
		if err == nil {
			break
		}
		if i+1 >= attempts || !errors.Is(err, os.ErrDeadlineExceeded) {
			return netip.Addr{}, err
		}
	}
	if n != 16+size || !bytes.Equal(buf[16:n], payload) {
		return netip.Addr{}, fmt.Errorf("the reply to %d bytes differs, and has %d", size, n-16)
	}
	return netip.ParseAddr(string(bytes.TrimRight(buf[:16], "\x00\n")))
}

func pattern(size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

// Ping sends an ICMP echo request of a payload size and waits for the reply.
func Ping(ns *netns.NS, dst netip.Addr, size int, timeout time.Duration) error {
	return PingWith(ns, dst, pattern(size), timeout)
}

// PingWith is Ping with the given payload.
func PingWith(ns *netns.NS, dst netip.Addr, payload []byte, timeout time.Duration) error {
	var c *icmp.PacketConn
	if err := ns.Run(func() (err error) {
		c, err = icmp.ListenPacket("ip4:icmp", "0.0.0.0")
		return err
	}); err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	id := int(time.Now().UnixNano() & 0xffff)
	message := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: id, Seq: 1, Data: payload}}
	b, err := message.Marshal(nil)
	if err != nil {
		return err
	}
	if _, err := c.WriteTo(b, &net.IPAddr{IP: dst.AsSlice()}); err != nil {
		return err
	}
	_ = c.SetReadDeadline(time.Now().Add(timeout))
	buf := make([]byte, 1<<16)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return err
		}
		m, err := icmp.ParseMessage(1, buf[:n])
		if err != nil {
			continue
		}
		echo, ok := m.Body.(*icmp.Echo)
		if ok && m.Type == ipv4.ICMPTypeEchoReply && echo.ID == id && from.String() == dst.String() {
			if !bytes.Equal(echo.Data, payload) {
				return errors.New("the reply has another payload")
			}
			return nil
		}
	}
}

// control calls a function with the descriptor of a UDP socket.
func control(c net.Conn, f func(fd int) (int, error)) (value int, err error) {
	raw, err := c.(*net.UDPConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	controlErr := raw.Control(func(fd uintptr) { value, err = f(int(fd)) })
	return value, errors.Join(controlErr, err)
}

// option sets an IP option of a UDP socket.
func option(c net.Conn, name, value int) error {
	_, err := control(c, func(fd int) (int, error) { return 0, unix.SetsockoptInt(fd, unix.IPPROTO_IP, name, value) })
	return err
}

// pathMTU returns the path MTU that a connected socket knows.
func pathMTU(c net.Conn) (int, error) {
	return control(c, func(fd int) (int, error) { return unix.GetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU) })
}

// DiscoverMTU sends packets of size bytes (with headers) that must not be fragmented until the kernel learns of a
// smaller MTU, and returns that MTU.
func DiscoverMTU(ns *netns.NS, dst netip.Addr, port uint16, size int) (int, error) {
	c, err := dial(ns, "udp4", dst, port, patience)
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	if err := option(c, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO); err != nil {
		return 0, err
	}
	const headers = 28
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if _, err := c.Write(pattern(size - headers)); errors.Is(err, unix.EMSGSIZE) {
			return pathMTU(c)
		}
	}
	return 0, errors.New("no EMSGSIZE")
}

// NotFragmented exchanges one packet of size bytes (with headers) that must not
// be fragmented.
func NotFragmented(ns *netns.NS, dst netip.Addr, port uint16, size int) error {
	c, err := dial(ns, "udp4", dst, port, patience)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if err := option(c, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO); err != nil {
		return err
	}
	const headers = 28
	_, err = exchange(c, size-headers)
	return err
}

// Hop sends a UDP packet with a TTL, and returns the error that comes back for it, nil if the server replies.
func Hop(ns *netns.NS, dst netip.Addr, port uint16, ttl int) error {
	c, err := dial(ns, "udp4", dst, port, patience)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if err := errors.Join(option(c, unix.IP_TTL, ttl), option(c, unix.IP_RECVERR, 1)); err != nil {
		return err
	}
	_, err = exchange(c, 100)
	return err
}

// Reaches reports whether a TCP connection is established, or is refused by the other side: packets arrive in either
// case.
func Reaches(ns *netns.NS, dst netip.Addr, port uint16) bool {
	c, err := dial(ns, "tcp4", dst, port, short)
	if err == nil {
		_ = c.Close()
	}
	return err == nil || errors.Is(err, unix.ECONNREFUSED)
}

// ReachesUDP reports whether a UDP packet is answered, or refused.
func ReachesUDP(ns *netns.NS, dst netip.Addr, port uint16) bool {
	c, err := dial(ns, "udp4", dst, port, short)
	if err != nil {
		return false
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(short))
	if _, err := c.Write(pattern(32)); err != nil {
		return errors.Is(err, unix.ECONNREFUSED)
	}
	_, err = c.Read(make([]byte, 1<<16))
	return !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, unix.EHOSTUNREACH)
}
