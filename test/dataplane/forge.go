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
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

// Packet returns a UDP packet in wire format, with any source.
func Packet(source, dst netip.AddrPort, payload []byte) []byte {
	// RFC 768: without a checksum.
	b := binary.BigEndian.AppendUint16(nil, source.Port())
	b = binary.BigEndian.AppendUint16(b, dst.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(payload)))
	return header(unix.IPPROTO_UDP, source.Addr(), dst.Addr(), 0, 0, append(append(b, 0, 0), payload...))
}

// header adds an IP header to a payload: no options, TTL 64 (RFC 791).
func header(proto byte, source, dst netip.Addr, id, fragment uint16, payload []byte) []byte {
	b := []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, proto, 0, 0}
	binary.BigEndian.PutUint16(b[4:], id)
	binary.BigEndian.PutUint16(b[6:], fragment)
	b = append(append(b, source.AsSlice()...), dst.AsSlice()...)
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)+len(payload)))
	binary.BigEndian.PutUint16(b[10:], checksum(b))
	return append(b, payload...)
}

// checksum returns the checksum of RFC 1071.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(b[i]) << 8
		if i+1 < len(b) {
			sum += uint32(b[i+1])
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// Unreachable returns an ICMP error about a packet: in one piece if first is 0, otherwise in two fragments. The first
// one then has that many bytes, a multiple of 8.
func Unreachable(source, dst netip.Addr, cause []byte, first int) [][]byte {
	const destinationUnreachable, port, moreFragments = 3, 3, 0x2000
	message := append([]byte{destinationUnreachable, port, 0, 0, 0, 0, 0, 0}, cause...)
	binary.BigEndian.PutUint16(message[2:], checksum(message))
	if first == 0 {
		return [][]byte{header(unix.IPPROTO_ICMP, source, dst, 0, 0, message)}
	}
	id := uint16(time.Now().UnixNano())
	return [][]byte{
		header(unix.IPPROTO_ICMP, source, dst, id, moreFragments, message[:first]),
		header(unix.IPPROTO_ICMP, source, dst, id, uint16(first/8), message[first:]),
	}
}

// Packet6 returns a UDP packet over IPv6.
func Packet6(source, dst netip.AddrPort, payload []byte) []byte {
	length := uint16(8 + len(payload))
	udp := binary.BigEndian.AppendUint16(nil, source.Port())
	udp = binary.BigEndian.AppendUint16(udp, dst.Port())
	udp = binary.BigEndian.AppendUint16(udp, length)
	udp = append(append(udp, 0, 0), payload...)
	ends := append(source.Addr().AsSlice(), dst.Addr().AsSlice()...)
	pseudo := append(append([]byte{}, ends...), 0, 0, byte(length>>8), byte(length), 0, 0, 0, unix.IPPROTO_UDP)
	binary.BigEndian.PutUint16(udp[6:], checksum(append(pseudo, udp...)))
	b := append([]byte{0x60, 0, 0, 0, byte(length >> 8), byte(length), unix.IPPROTO_UDP, 64}, ends...)
	return append(b, udp...)
}

// Encapsulate puts an IP packet into an Ethernet frame, and the frame into the payload of an overlay packet.
func Encapsulate(kind overlay.Kind, vni uint32, source, dst overlay.MAC, packet []byte) []byte {
	etherType := uint16(unix.ETH_P_IP)
	if packet[0]>>4 == 6 {
		etherType = unix.ETH_P_IPV6
	}
	return EncapsulateFrame(kind, vni, source, dst, etherType, packet)
}

// EncapsulateFrame is Encapsulate for any kind of frame.
func EncapsulateFrame(kind overlay.Kind, vni uint32, source, dst overlay.MAC, etherType uint16, payload []byte) []byte {
	header := []byte{0x08, 0, 0, 0} // RFC 7348
	if kind == overlay.Geneve {
		header = []byte{0, 0, 0x65, 0x58} // RFC 8926: Ethernet inside
	}
	b := binary.BigEndian.AppendUint32(header, vni<<8)
	b = append(append(b, dst[:]...), source[:]...)
	return append(binary.BigEndian.AppendUint16(b, etherType), payload...)
}

// ARP returns a request or a reply (RFC 826).
func ARP(operation uint16, source overlay.MAC, sourceIP netip.Addr, target overlay.MAC, targetIP netip.Addr) []byte {
	b := binary.BigEndian.AppendUint16([]byte{0, 1, 8, 0, 6, 4}, operation)
	b = append(append(b, source[:]...), sourceIP.AsSlice()...)
	return append(append(b, target[:]...), targetIP.AsSlice()...)
}

// SendRaw sends an IP packet without changes.
func SendRaw(ns *netns.NS, packet []byte) error {
	return ns.Run(func() error { return SendPacket(packet) })
}

// SendPacket is SendRaw in the calling thread's network namespace.
func SendPacket(packet []byte) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	err = unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: [4]byte(packet[16:20])})
	return errors.Join(err, unix.Close(fd))
}

// Receives reports whether a UDP packet from source arrives at a port after a few calls of send. If source is invalid,
// a packet from anywhere counts.
func Receives(t testing.TB, at *netns.NS, port uint16, source netip.Addr, send func() error) bool {
	t.Helper()
	sink := netns.In(t, at, func() (net.PacketConn, error) { return net.ListenPacket("udp", fmt.Sprintf(":%d", port)) })
	defer func() { _ = sink.Close() }()
	for range 3 {
		kit.NoError(t, send(), "send to port %d", port)
	}
	_ = sink.SetReadDeadline(time.Now().Add(short))
	for {
		_, from, err := sink.ReadFrom(make([]byte, 100))
		if err != nil {
			return false
		}
		if !source.IsValid() || addrOf(from).WithZone("") == source {
			return true
		}
	}
}

// Broken reports whether what is sent about a connection between two pods breaks it. The port is one that ServeUDP serves.
func Broken(t testing.TB, from, to Host, port uint16, send func(cause []byte) error) bool {
	t.Helper()
	c := netns.In(t, from, func() (net.Conn, error) { return net.Dial("udp4", netip.AddrPortFrom(to.Addr, port).String()) })
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(patience))
	kit.Must(c.Write([]byte("before")))(t)
	kit.NoError(t, kit.Err(c.Read(make([]byte, 100))), "pods do not reach each other, so the test proves nothing")
	kit.NoError(t, send(Packet(c.LocalAddr().(*net.UDPAddr).AddrPort(), c.RemoteAddr().(*net.UDPAddr).AddrPort(), []byte("before"))))
	_ = c.SetDeadline(time.Now().Add(short))
	_, err := c.Read(make([]byte, 100))
	return errors.Is(err, unix.ECONNREFUSED)
}
