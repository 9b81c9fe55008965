package probe

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/link"
	"github.com/liqonet/liqonet/pkg/probe"
)

const (
	// packetTries is how often a packet is sent, each packetPause.
	packetTries, packetPause = 4, 400 * time.Millisecond
	// pingHeaders are the bytes of IP and ICMP.
	pingHeaders = 28
)

// ping sends echo requests of each size, which nobody may fragment, until all are answered or were sent often enough.
func (r *kernelReader) ping(ctx context.Context) {
	if len(r.task.Ping) == 0 {
		return
	}
	conn, err := icmp.ListenPacket("ip4:icmp", "0.0.0.0")
	if err != nil {
		r.failed("pings", err)
		return
	}
	defer func() { _ = conn.Close() }()
	if raw, err := conn.IPv4PacketConn().PacketConn.(*net.IPConn).SyscallConn(); err == nil {
		_ = setOption(raw, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE) // large ones are lost, then
	}
	id := os.Getpid() & 0xffff
	out := make([]probe.Ping, len(r.task.Ping))
	var echoes []echo // by sequence number
	for i, p := range r.task.Ping {
		out[i].To, out[i].Sizes = p.To, p.Sizes
		for _, size := range p.Sizes {
			echoes = append(echoes, echo{of: &out[i], size: size})
		}
	}
	for range packetTries {
		missing := false
		for seq, e := range echoes {
			if e.answered {
				continue
			}
			missing = true
			body := &icmp.Echo{ID: id, Seq: seq, Data: make([]byte, max(0, e.size-pingHeaders))}
			if raw, err := (&icmp.Message{Type: ipv4.ICMPTypeEcho, Body: body}).Marshal(nil); err == nil {
				_, _ = conn.WriteTo(raw, &net.IPAddr{IP: e.of.To.AsSlice()})
			}
		}
		if !missing || ctx.Err() != nil {
			break
		}
		receivePings(conn, id, echoes)
	}
	for _, e := range echoes {
		if e.answered {
			e.of.Answered = append(e.of.Answered, e.size)
		}
	}
	r.out.Pings = out
}

// echo is a request of one size, and whether it was answered.
type echo struct {
	of       *probe.Ping
	size     int
	answered bool
}

func receivePings(conn *icmp.PacketConn, id int, echoes []echo) {
	_ = conn.SetReadDeadline(time.Now().Add(packetPause))
	buf := make([]byte, 1<<16)
	for {
		n, _, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		m, err := icmp.ParseMessage(1, buf[:n])
		if err != nil || m.Type != ipv4.ICMPTypeEchoReply {
			continue
		}
		if e, ok := m.Body.(*icmp.Echo); ok && e.ID == id && e.Seq < len(echoes) {
			echoes[e.Seq].answered = true
		}
	}
}

// What of an ARP packet of IPv4 over Ethernet is where (RFC 826).
const (
	arpLength    = 28
	arpOperation = 6
	arpSenderMAC = 8
	arpSenderIP  = 14
	arpTargetIP  = 24

	arpRequest, arpReply = 1, 2
)

// findDuplicates asks on each uplink who has this node's own addresses, as a host does before it takes one (RFC 5227):
// nobody but another machine answers.
func (r *kernelReader) findDuplicates(ctx context.Context, uplinks []*link.State) {
	out := map[string]string{}
	for _, l := range uplinks {
		if len(l.HardwareAddr) != 6 {
			continue
		}
		found, err := askForOwn(ctx, l)
		if err != nil {
			r.failed("duplicate addresses on "+l.Name, err)
		}
		for addr, mac := range found {
			out[addr.String()] = mac
		}
	}
	r.out.Duplicates = out
}

func askForOwn(ctx context.Context, l *link.State) (map[netip.Addr]string, error) {
	protocol := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ARP))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(protocol))
	if err != nil {
		return nil, fmt.Errorf("open a packet socket: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: l.Index}); err != nil {
		return nil, fmt.Errorf("bind a packet socket: %w", err)
	}
	pause := unix.NsecToTimeval(int64(packetPause))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &pause); err != nil {
		return nil, err
	}
	everybody := &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: l.Index, Halen: 6, Addr: [8]byte{255, 255, 255, 255, 255, 255}}
	own := addressesOf(l)
	out := map[netip.Addr]string{}
	buf := make([]byte, 64)
	for range packetTries {
		for _, addr := range own {
			request := make([]byte, arpLength)
			copy(request, []byte{0, 1, 8, 0, 6, 4, 0, arpRequest})
			copy(request[arpSenderMAC:], l.HardwareAddr)
			copy(request[arpTargetIP:], addr.AsSlice())
			if err := unix.Sendto(fd, request, 0, everybody); err != nil {
				return out, fmt.Errorf("send: %w", err)
			}
		}
		for until := time.Now().Add(packetPause); time.Now().Before(until) && ctx.Err() == nil; {
			n, _, err := unix.Recvfrom(fd, buf, 0)
			if err != nil {
				break // the time is over
			}
			if n < arpLength || binary.BigEndian.Uint16(buf[arpOperation:]) != arpReply {
				continue
			}
			sender, _ := netip.AddrFromSlice(buf[arpSenderIP : arpSenderIP+4])
			mac := net.HardwareAddr(slices.Clone(buf[arpSenderMAC : arpSenderMAC+6])).String()
			if slices.Contains(own, sender) && mac != l.HardwareAddr.String() {
				out[sender] = mac
			}
		}
		if len(out) > 0 {
			break
		}
	}
	return out, nil
}
