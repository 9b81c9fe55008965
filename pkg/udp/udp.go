// Package udp has the sockets of probes and questions, and of the answers to them. Single errors on those say nothing.
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

// Options has a socket get options of IPv4 before it is used, see Control of net.ListenConfig.
func Options(options map[int]int) func(network, address string, socket syscall.RawConn) error {
	return func(_, _ string, socket syscall.RawConn) (err error) {
		closed := socket.Control(func(fd uintptr) {
			for option, value := range options {
				err = errors.Join(err, unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, option, value))
			}
		})
		return errors.Join(err, closed)
	}
}

// maxReadErrors is how many errors in a row are taken for those of single packets.
const maxReadErrors = 100

// Serve hands each packet of at most size bytes to take, until ctx ends or conn does not work any more. Then
// it closes conn. Of a longer packet, take gets one byte more than size. The end of ctx is no error.
func Serve(ctx context.Context, conn net.PacketConn, size int, take func(packet []byte, from netip.AddrPort)) error {
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
			take(buf[:n], netip.AddrPortFrom(at.Addr().Unmap(), at.Port()))
		}
	}
}

// retryDelay is the pause after a socket could not be made.
const retryDelay = 100 * time.Millisecond

// Asker asks one responder by sockets of its own, one after the other.
type Asker struct {
	// Local is the address that is asked from. If it is invalid, the kernel chooses.
	Local  netip.Addr
	Remote netip.AddrPort
	// Options are those of the sockets, as for Options.
	Options map[int]int
	// Size is that of the longest answer, as for Serve.
	Size int
	// Wake has a turn begin that is not due.
	Wake <-chan struct{}

	// Turn asks. It is told when it was due, the zero time if it was woken. It says when the next turn is due, and
	// whether another socket is to be used from then on.
	Turn func(conn *net.UDPConn, due time.Time) (next time.Time, isLast bool)
	// Take is given each packet that comes from the responder.
	Take func(packet []byte)
	// Fail is called where there is no socket: the address may come and go. It says when to try again.
	Fail func() time.Time
}

// Run asks until ctx ends.
func (a Asker) Run(ctx context.Context) {
	local := net.UDPAddrFromAddrPort(netip.AddrPortFrom(a.Local, 0)).String()
	for ctx.Err() == nil {
		conn, err := (&net.ListenConfig{Control: Options(a.Options)}).ListenPacket(ctx, "udp", local)
		if err == nil {
			a.converse(ctx, conn.(*net.UDPConn))
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(max(retryDelay, time.Until(a.Fail()))):
		}
	}
}

// converse uses one socket until ctx ends, the socket breaks, or another one is to be used.
func (a Asker) converse(ctx context.Context, conn *net.UDPConn) {
	broken := make(chan struct{})
	go func() {
		defer close(broken)
		_ = Serve(ctx, conn, a.Size, func(packet []byte, from netip.AddrPort) {
			if from == a.Remote {
				a.Take(packet)
			}
		}) // another socket may work
	}()
	defer func() {
		_ = conn.Close()
		<-broken
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	next, isLast := time.Now(), false
	for !isLast {
		var due time.Time
		select {
		case <-ctx.Done():
			return
		case <-broken:
			return
		case <-a.Wake:
		case <-timer.C:
			due = next
		}
		next, isLast = a.Turn(conn, due)
		timer.Reset(time.Until(next))
	}
}
