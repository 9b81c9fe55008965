package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/test/netns"
)

// Packet is a UDP packet as it is on the wire, with any source.
func Packet(source, dst netip.AddrPort, payload []byte) []byte {
	// RFC 791: no options, no fragment, TTL 64, a checksum by the kernel.
	b := []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
	b = append(append(b, source.Addr().AsSlice()...), dst.Addr().AsSlice()...)
	// RFC 768: without a checksum.
	b = binary.BigEndian.AppendUint16(b, source.Port())
	b = binary.BigEndian.AppendUint16(b, dst.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(payload)))
	b = append(append(b, 0, 0), payload...)
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(b[10:], ^uint16(sum))
	return b
}

// Encapsulate puts an IP packet into a frame and that into what the overlay
// sends.
func Encapsulate(kind overlay.Kind, vni uint32, source, dst overlay.MAC, packet []byte) []byte {
	header := []byte{0x08, 0, 0, 0} // RFC 7348
	if kind == overlay.Geneve {
		header = []byte{0, 0, 0x65, 0x58} // RFC 8926: Ethernet inside
	}
	b := binary.BigEndian.AppendUint32(header, vni<<8)
	b = append(append(b, dst[:]...), source[:]...)
	return append(append(b, 0x08, 0x00), packet...)
}

// SendRaw sends an IP packet as it is.
func SendRaw(ns *netns.NS, packet []byte) error {
	return ns.Run(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		err = unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: [4]byte(packet[16:20])})
		return errors.Join(err, unix.Close(fd))
	})
}

// Receives says whether a UDP packet from source arrives at a port while send is
// called some times.
func Receives(t testing.TB, at *netns.NS, port uint16, source netip.Addr, send func() error) bool {
	t.Helper()
	var sink net.PacketConn
	at.Do(t, func() (err error) {
		sink, err = net.ListenPacket("udp4", fmt.Sprintf(":%d", port))
		return err
	})
	defer func() { _ = sink.Close() }()
	for range 3 {
		if err := send(); err != nil {
			t.Fatalf("send to port %d: %v", port, err)
		}
	}
	_ = sink.SetReadDeadline(time.Now().Add(short))
	for {
		_, from, err := sink.ReadFrom(make([]byte, 100))
		if err != nil {
			return false
		}
		if addrOf(from) == source {
			return true
		}
	}
}
