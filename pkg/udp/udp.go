// Package udp makes sockets, and reads packets from those on which single errors say nothing: probes and questions,
// and the answers to them.
package udp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Options has a socket get options of IPv4 before it is used, see Control of net.ListenConfig.
func Options(options map[int]int) func(network, address string, socket syscall.RawConn) error {
	return func(_, _ string, socket syscall.RawConn) error {
		var errs []error
		err := socket.Control(func(fd uintptr) {
			for option, value := range options {
				errs = append(errs, unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, option, value))
			}
		})
		return errors.Join(append(errs, err)...)
	}
}

// maxReadErrors is how many errors in a row are taken for those of single packets.
const maxReadErrors = 100

// Serve hands each packet of at most size bytes to answer, until ctx ends or conn does not work any more. Then
// it closes conn. Of a longer packet, answer gets one byte more than size. The end of ctx is no error.
func Serve(ctx context.Context, conn net.PacketConn, size int, answer func(packet []byte, from net.Addr)) error {
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
			// Most errors concern one packet, such as an ICMP error for an answer.
			if failed++; errors.Is(err, net.ErrClosed) || failed == maxReadErrors {
				return err
			}
			continue
		}
		failed = 0
		answer(buf[:n], from)
	}
}

// Receive hands each packet that comes from an address to take, until conn is closed. size is as for Serve.
func Receive(conn *net.UDPConn, size int, remote netip.AddrPort, take func(packet []byte)) {
	buf := make([]byte, size+1)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		switch {
		case errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrClosed):
			return
		case err != nil:
			// An ICMP error; not more often than what was sent causes it.
			continue
		}
		if netip.AddrPortFrom(from.Addr().Unmap(), from.Port()) == remote {
			take(buf[:n])
		}
	}
}
