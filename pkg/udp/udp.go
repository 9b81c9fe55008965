// Package udp provides the sockets for probes and requests, and for the answers to them. Single errors of these
// sockets mean nothing.
package udp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Options returns a function that sets options of a protocol on a socket before its use, see Control of
// net.ListenConfig.
func Options(protocol int, options map[int]int) func(network, address string, socket syscall.RawConn) error {
	return func(_, _ string, socket syscall.RawConn) (err error) {
		closed := socket.Control(func(fd uintptr) {
			for option, value := range options {
				err = errors.Join(err, unix.SetsockoptInt(int(fd), protocol, option, value))
			}
		})
		return errors.Join(err, closed)
	}
}

// maxReadErrors is how many consecutive errors may concern single packets.
const maxReadErrors = 100

// Serve calls handle for each packet of at most size bytes, until ctx ends or conn fails, and then closes conn. For a
// longer packet, handle gets size+1 bytes. Serve returns nil if ctx ends.
func Serve(ctx context.Context, conn net.PacketConn, size int, handle func(packet []byte, from netip.AddrPort)) error {
	closed := func() { _ = conn.Close() }
	defer closed()
	defer context.AfterFunc(ctx, closed)()
	buf := make([]byte, size+1)
	for failed := 0; ; {
		n, from, err := conn.ReadFrom(buf)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			// Most errors concern one packet, such as an ICMP error for it.
			if failed++; errors.Is(err, net.ErrClosed) || failed == maxReadErrors {
				return err
			}
			continue
		}
		failed = 0
		if addr, isUDP := from.(*net.UDPAddr); isUDP {
			at := addr.AddrPort()
			handle(buf[:n], netip.AddrPortFrom(at.Addr().Unmap(), at.Port()))
		}
	}
}

// retryDelay is the pause after a socket could not be opened.
const retryDelay = 100 * time.Millisecond

// Client asks one responder through its own sockets, one after another.
type Client struct {
	// Local is the address from which it asks. If it is invalid, the kernel chooses one.
	Local  netip.Addr
	Remote netip.AddrPort
	// Options are options of the sockets for IPv4, as for Options.
	Options map[int]int
	// Size is the maximum size of an answer, as for Serve.
	Size int
	// Wake causes a call of Send that is not due yet.
	Wake <-chan struct{}

	// Send sends a request. due is when it was due, the zero time if it was woken before that. It returns when the next
	// one is due, and whether to use another socket from then on.
	Send func(conn *net.UDPConn, due time.Time) (next time.Time, isLast bool)
	// Receive is called for each packet from the responder.
	Receive func(packet []byte)
	// Unavailable is called when there is no socket: the local address may come and go. It returns when to try again.
	Unavailable func() time.Time
}

// Run asks until ctx ends.
func (a Client) Run(ctx context.Context) {
	local := net.UDPAddrFromAddrPort(netip.AddrPortFrom(a.Local, 0)).String()
	for ctx.Err() == nil {
		conn, err := (&net.ListenConfig{Control: Options(unix.IPPROTO_IP, a.Options)}).ListenPacket(ctx, "udp", local)
		if err == nil {
			a.useSocket(ctx, conn.(*net.UDPConn))
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(max(retryDelay, time.Until(a.Unavailable()))):
		}
	}
}

// useSocket uses one socket until ctx ends, the socket fails, or another one is needed.
func (a Client) useSocket(ctx context.Context, conn *net.UDPConn) {
	broken := make(chan struct{})
	go func() {
		defer close(broken)
		_ = Serve(ctx, conn, a.Size, func(packet []byte, from netip.AddrPort) {
			if from == a.Remote {
				a.Receive(packet)
			}
		}) // another socket may work
	}()
	defer func() {
		_ = conn.Close()
		<-broken
	}()
	next, isLast := time.Now(), false
	for !isLast {
		var due time.Time
		select {
		case <-ctx.Done():
			return
		case <-broken:
			return
		case <-a.Wake:
		case <-time.After(time.Until(next)):
		}
		if !time.Now().Before(next) { // also if it was woken, since the process may have been held up until both happened
			due = next
		}
		next, isLast = a.Send(conn, due)
	}
}
