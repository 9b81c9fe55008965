package probe

import (
	"bytes"
	"context"
	"crypto/subtle"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/netutil"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/probe"
	"github.com/liqonet/liqonet/pkg/udp"
)

const (
	// connections is the maximum number of concurrent connections.
	connections = 256
	// idle is how long a connection may be idle.
	idle = 20 * time.Second
	// maxPacket is the size of the largest UDP packet.
	maxPacket = 1<<16 - 1
)

// serve answers questions until ctx ends.
func serve(ctx context.Context, token string, s probe.Serve) error {
	if len(token) == 0 || len(token) >= headerSize {
		return errors.New("the task has no token, or one that is too long")
	}
	at := fmt.Sprintf("0.0.0.0:%d", s.Port)
	tcp, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", at)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	context.AfterFunc(ctx, func() { _ = tcp.Close() }) // nothing could be done about an error
	// Regardless of the path MTU that the kernel knows, packets larger than its interface's MTU leave in fragments.
	// Routers may fragment the others.
	options := udp.Options(unix.IPPROTO_IP, map[int]int{unix.IP_MTU_DISCOVER: unix.IP_PMTUDISC_DONT})
	packets, err := (&net.ListenConfig{Control: options}).ListenPacket(ctx, "udp4", at)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	context.AfterFunc(ctx, func() { _ = packets.Close() })
	withAddresses := ipv4.NewPacketConn(packets)
	if err := withAddresses.SetControlMessage(ipv4.FlagDst, true); err != nil {
		return fmt.Errorf("ask for the addresses of packets: %w", err)
	}
	go serveTCP(netutil.LimitListener(tcp, connections), token, s.Name)
	go serveUDP(withAddresses, token, s.Name)
	return nil
}

func serveTCP(l net.Listener, token, name string) {
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		go func() {
			defer conn.Close()
			_ = serveConnection(conn, token, name) // the caller notices it
		}()
	}
}

func serveConnection(conn net.Conn, token, name string) error {
	source := addressOf(conn.RemoteAddr())
	q := make([]byte, headerSize)
	for {
		_ = conn.SetDeadline(time.Now().Add(idle)) // fails only for a closed connection
		if _, err := io.ReadFull(conn, q); err != nil {
			return err
		}
		mode, ok := parseQuestion(q, token)
		if !ok {
			return errors.New("not of this run")
		}
		if _, err := conn.Write(answer(q, reply{name, source})); err != nil {
			return err
		}
		switch mode {
		case modeEcho:
			_, err := io.Copy(conn, conn)
			return err
		case modeSink:
			n, err := io.Copy(io.Discard, conn)
			if err == nil {
				_, err = conn.Write(binary.BigEndian.AppendUint64(nil, uint64(n)))
			}
			return err
		}
	}
}

// serveUDP answers from the address that was asked: a node has several.
func serveUDP(conn *ipv4.PacketConn, token, name string) {
	buf := make([]byte, maxPacket)
	for {
		n, cm, from, err := conn.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || cm == nil {
			continue
		}
		if _, ok := parseQuestion(buf[:n], token); ok {
			_, _ = conn.WriteTo(answer(buf[:n], reply{name, addressOf(from)}), &ipv4.ControlMessage{Src: cm.Dst}, from) // the caller asks again
		}
	}
}

// addressOf returns the IP address of a TCP or UDP address.
func addressOf(a net.Addr) netip.Addr {
	at, _ := netip.ParseAddrPort(a.String())
	return at.Addr()
}

// headerSize is the minimum size of questions and answers, which are padded to it. An answer is never larger than its
// question, so that a server cannot be used for amplification.
const headerSize = 160

// These are the modes of a connection after its first answer.
const (
	// modeAnswer answers further questions.
	modeAnswer = 'a'
	// modeEcho returns all received data.
	modeEcho = 'e'
	// modeSink counts the received data, and returns the count at the end.
	modeSink = 's'
)

// question returns a packet of the given size that asks who answers.
func question(token string, mode byte, size int) []byte {
	q := make([]byte, max(size, headerSize))
	copy(q[1:], token)
	q[0] = mode
	return q
}

// parseQuestion returns the mode of a question, and whether the question belongs to this run.
func parseQuestion(q []byte, token string) (mode byte, ok bool) {
	if len(q) < headerSize || len(token) == 0 || subtle.ConstantTimeCompare(q[1:1+len(token)], []byte(token)) == 0 {
		return 0, false
	}
	return q[0], true
}

// reply is the content of an answer.
type reply struct {
	Name   string     `json:"n"`
	Source netip.Addr `json:"s"`
}

// answer turns a question into its answer, in place.
func answer(q []byte, r reply) []byte {
	raw, _ := json.Marshal(r) // a string and an address
	clear(q)
	copy(q, raw)
	return q
}

// parseReply records who has answered.
func parseReply(raw []byte, a *probe.Answer) error {
	var r reply
	if err := json.Unmarshal(bytes.TrimRight(raw[:min(len(raw), headerSize)], "\x00"), &r); err != nil {
		return errors.New("another program has answered")
	}
	a.From, a.Source = r.Name, r.Source
	return nil
}
