package probe

import (
	"bytes"
	"cmp"
	"context"
	"crypto/subtle"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/samber/lo"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/probe"
	"github.com/liqonet/liqonet/pkg/udp"
)

const (
	// retryInterval is how long to wait for an answer before sending a packet or connecting again.
	retryInterval = 400 * time.Millisecond
	// headers is the size of the headers of IP and of UDP or ICMP, in bytes.
	headers = 28
)

// call runs one call.
func call(ctx context.Context, token string, c probe.Call) probe.Answer {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(c.Timeout)*time.Millisecond)
	defer cancel()
	a := probe.Answer{ID: c.ID}
	var err error
	switch c.Protocol {
	case probe.TCP:
		err = callTCP(ctx, token, c, &a)
	case probe.UDP:
		err = callUDP(ctx, token, c, &a)
	case probe.ICMP:
		err = callICMP(ctx, c, &a)
	default:
		err = fmt.Errorf("unknown protocol %q", c.Protocol)
	}
	if a.Answered = err == nil; !a.Answered {
		a.Error = errorText(err)
	}
	return a
}

// errorText describes an error without addresses and names of system calls.
func errorText(err error) string {
	var errno syscall.Errno
	var request *url.Error
	switch {
	case errors.As(err, &errno):
		return errno.Error()
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return "no answer"
	case errors.As(err, &request):
		return request.Err.Error()
	}
	return err.Error()
}

// callTCP connects, with retries until the timeout.
func callTCP(ctx context.Context, token string, c probe.Call, a *probe.Answer) error {
	for {
		a.Tries++
		if err := tryTCP(ctx, token, c, a); err == nil || !failure.Pause(ctx, retryInterval/4) {
			return err
		}
	}
}

func tryTCP(ctx context.Context, token string, c probe.Call, a *probe.Answer) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp4", c.To.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	if c.ConnectOnly {
		return nil
	}
	until, _ := ctx.Deadline()
	_ = conn.SetDeadline(until) // fails only for a closed connection
	answer, err := request(conn, token, lo.Ternary[byte](c.Size > 0, modeEcho, modeAnswer))
	if err == nil {
		err = parseReply(answer, a)
	}
	if err != nil || c.Size == 0 {
		return err
	}
	go func() { _, _ = conn.Write(make([]byte, c.Size)) }() // what is lost does not come back
	if n, err := io.CopyN(io.Discard, conn, int64(c.Size)); err != nil {
		return fmt.Errorf("connected, but only %d of %d bytes came back: %s", n, c.Size, errorText(err))
	}
	return nil
}

// request sends one request over a connection, and returns the answer.
func request(conn net.Conn, token string, mode byte) (answer []byte, err error) {
	q := encodeRequest(token, mode, 0)
	if _, err = conn.Write(q); err == nil {
		_, err = io.ReadFull(conn, q)
	}
	if err != nil {
		return nil, fmt.Errorf("connected, but then: %s", errorText(err))
	}
	return q, nil
}

// callUDP sends until an answer or an ICMP error arrives, or the timeout.
func callUDP(ctx context.Context, token string, c probe.Call, a *probe.Answer) error {
	// With DontFragment, packets leave whole regardless of the path MTU that the kernel knows.
	discover := lo.Ternary(c.DontFragment, unix.IP_PMTUDISC_PROBE, unix.IP_PMTUDISC_DONT)
	dialer := net.Dialer{Control: udp.Options(unix.IPPROTO_IP, map[int]int{unix.IP_RECVERR: 1, unix.IP_MTU_DISCOVER: discover})}
	dialed, err := dialer.DialContext(ctx, "udp4", c.To.String())
	if err != nil {
		return err
	}
	defer dialed.Close()
	conn := dialed.(*net.UDPConn)
	var how []byte
	if c.Link != "" {
		link, err := net.InterfaceByName(c.Link)
		if err != nil {
			return fmt.Errorf("interface %s: %w", c.Link, err)
		}
		how = (&ipv4.ControlMessage{IfIndex: link.Index}).Marshal()
	}
	send := func() error {
		_, _, err := conn.WriteMsgUDP(encodeRequest(token, modeAnswer, c.Size-headers), how, nil)
		return err
	}
	receive := func(raw []byte) error { return parseReply(raw, a) }
	err = exchange(ctx, a, conn, send, receive)
	if r := a.Refusal; c.AllowSmaller && r != nil && r.Type == 0 && r.MTU > headers && r.MTU < c.Size {
		c.Size, a.Size, a.Refusal = r.MTU, r.MTU, nil
		err = exchange(ctx, a, conn, send, receive)
	}
	return err
}

// exchange sends repeatedly until it receives a valid answer.
func exchange(ctx context.Context, a *probe.Answer, conn *net.UDPConn, send func() error, receive func([]byte) error) error {
	until, _ := ctx.Deadline()
	buf := make([]byte, maxPacket)
	var refused error // more informative than silence
	for {
		a.Tries++
		err := errors.Join(conn.SetReadDeadline(lo.Earliest(time.Now().Add(retryInterval), until)), send())
		if err == nil {
			var n int
			if n, err = conn.Read(buf); err == nil {
				return receive(buf[:n])
			}
		}
		a.Refusal = cmp.Or(readRefusal(conn), a.Refusal)
		isSilence := errors.Is(err, os.ErrDeadlineExceeded)
		if !isSilence {
			refused = err
		}
		if a.Refusal != nil && a.Refusal.MTU > 0 || !time.Now().Before(until) {
			return cmp.Or(refused, err)
		}
		if !isSilence && !failure.Pause(ctx, retryInterval/4) { // an immediate refusal may be temporary
			return refused
		}
	}
}

// callICMP pings the kernel that has the address, through a socket that needs no capability.
func callICMP(ctx context.Context, c probe.Call, a *probe.Answer) error {
	pings, err := icmp.ListenPacket("udp4", "0.0.0.0")
	if errors.Is(err, unix.EACCES) {
		return errors.New("this pod may not send pings (sysctl net.ipv4.ping_group_range)")
	}
	if err != nil {
		return fmt.Errorf("open a socket for pings: %w", err)
	}
	defer func() { _ = pings.Close() }()
	conn := pings.IPv4PacketConn().PacketConn.(*net.UDPConn)
	sequence := 0
	return exchange(ctx, a, conn, func() error {
		sequence++
		_, err := conn.WriteToUDPAddrPort(echoRequest(0, sequence, c.Size), netip.AddrPortFrom(c.To.Addr(), 0))
		return err
	}, func([]byte) error { return nil })
}

// echoRequest returns an ICMP echo request that makes an IP packet of the given size.
func echoRequest(id, sequence, size int) []byte {
	body := &icmp.Echo{ID: id, Seq: sequence, Data: make([]byte, max(0, size-headers))}
	raw, _ := (&icmp.Message{Type: ipv4.ICMPTypeEcho, Body: body}).Marshal(nil) // fails only for types of another protocol
	return raw
}

// readRefusal returns the last error that the kernel has queued for a socket with IP_RECVERR, see ip(7).
func readRefusal(conn *net.UDPConn) (out *probe.Refusal) {
	raw, _ := conn.SyscallConn() // fails only for a nil connection
	_ = raw.Control(func(fd uintptr) {
		oob := make([]byte, 512)
		for {
			_, n, _, _, err := unix.Recvmsg(int(fd), make([]byte, 1), oob, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
			if err != nil {
				return
			}
			messages, _ := unix.ParseSocketControlMessage(oob[:n])
			for _, m := range messages {
				if m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_RECVERR {
					out = cmp.Or(parseRefusal(m.Data), out)
				}
			}
		}
	})
	return out
}

// parseRefusal parses a queued error, which is followed by an address (see linux/errqueue.h). It returns nil if the
// error has another origin.
func parseRefusal(data []byte) *probe.Refusal {
	var e unix.SockExtendedErr
	n, err := binary.Decode(data, binary.NativeEndian, &e)
	if err != nil {
		return nil
	}
	r := &probe.Refusal{}
	switch e.Origin {
	case unix.SO_EE_ORIGIN_LOCAL:
	case unix.SO_EE_ORIGIN_ICMP:
		r.Type, r.Code = e.Type, e.Code
		var offender unix.RawSockaddrInet4
		if _, err := binary.Decode(data[n:], binary.NativeEndian, &offender); err == nil {
			r.From = netip.AddrFrom4(offender.Addr)
		}
	default:
		return nil
	}
	if unix.Errno(e.Errno) == unix.EMSGSIZE {
		r.MTU = int(e.Info)
	}
	return r
}

const (
	// streams is how many connections send at full speed, and requesters how many wait for each answer.
	streams, requesters = 4, 8
	// chunkSize is the size of one write.
	chunkSize = 256 << 10
	// connectTimeout is how long connecting may take.
	connectTimeout = 3 * time.Second
)

// bench measures the three speeds, one after another.
func bench(ctx context.Context, token string, b probe.Bench) (*probe.Speed, error) {
	duration := time.Duration(b.Milliseconds) * time.Millisecond
	s, err := &probe.Speed{}, error(nil)
	if s.BitsPerSecond, err = measureThroughput(ctx, token, b.To, duration); err == nil {
		s.MedianMicroseconds, s.SlowMicroseconds, err = measureLatency(ctx, token, b.To, duration)
	}
	if err == nil {
		s.RequestsPerSecond, err = measureRequestRate(ctx, token, b.To, duration)
	}
	return s, err
}

// concurrently opens n connections of a mode with a deadline, runs do on each at the same time, and returns the sum of the results.
func concurrently(
	ctx context.Context, token string, to netip.AddrPort, n int, mode byte, duration time.Duration, do func(net.Conn) (float64, error),
) (float64, error) {
	var g errgroup.Group
	results := make([]float64, n)
	for i := range n {
		conn, err := (&net.Dialer{Timeout: connectTimeout}).DialContext(ctx, "tcp4", to.String())
		if err != nil {
			return 0, fmt.Errorf("connect: %s", errorText(err))
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(duration + 2*connectTimeout)) // fails only for a closed connection
		if _, err = request(conn, token, mode); err != nil {
			return 0, err
		}
		g.Go(func() (err error) {
			results[i], err = do(conn)
			return err
		})
	}
	err := g.Wait()
	return lo.Sum(results), err
}

// measureThroughput returns how many bits per second arrive.
func measureThroughput(ctx context.Context, token string, to netip.AddrPort, duration time.Duration) (float64, error) {
	return concurrently(ctx, token, to, streams, modeSink, duration, func(conn net.Conn) (float64, error) {
		start := time.Now()
		for block := make([]byte, chunkSize); time.Since(start) < duration; {
			if _, err := conn.Write(block); err != nil {
				return 0, err
			}
		}
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			return 0, err
		}
		arrived := make([]byte, 8)
		if _, err := io.ReadFull(conn, arrived); err != nil {
			return 0, err
		}
		return float64(binary.BigEndian.Uint64(arrived)) * 8 / time.Since(start).Seconds(), nil
	})
}

// measureRequestRate returns how many requests per second are answered.
func measureRequestRate(ctx context.Context, token string, to netip.AddrPort, duration time.Duration) (float64, error) {
	return concurrently(ctx, token, to, requesters, modeAnswer, duration, func(conn net.Conn) (float64, error) {
		n, start := 0, time.Now()
		for ; time.Since(start) < duration; n++ {
			if _, err := request(conn, token, modeAnswer); err != nil {
				return 0, err
			}
		}
		return float64(n) / time.Since(start).Seconds(), nil
	})
}

// measureLatency returns the round trip times of small packets, in microseconds. Lost packets do not count.
func measureLatency(ctx context.Context, token string, to netip.AddrPort, duration time.Duration) (median, slow float64, err error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "udp4", to.String())
	if err != nil {
		return 0, 0, err
	}
	defer conn.Close()
	var took []time.Duration
	buf := make([]byte, maxPacket)
	for start := time.Now(); time.Since(start) < duration; {
		asked := time.Now()
		_ = conn.SetDeadline(asked.Add(retryInterval)) // fails only for a closed connection
		if _, err := conn.Write(encodeRequest(token, modeAnswer, 0)); err == nil {
			if _, err = conn.Read(buf); err == nil {
				took = append(took, time.Since(asked))
			}
		}
	}
	if len(took) == 0 {
		return 0, 0, errors.New("no packet was answered")
	}
	slices.Sort(took)
	at := func(part float64) float64 { return float64(took[int(part*float64(len(took)-1))].Nanoseconds()) / 1000 }
	return at(0.5), at(0.99), nil
}

const (
	// maxConnections is the maximum number of concurrent connections.
	maxConnections = 256
	// idleTimeout is how long a connection may be idle.
	idleTimeout = 20 * time.Second
	// maxPacket is the size of the largest UDP packet.
	maxPacket = 1<<16 - 1
)

// serve answers requests until ctx ends.
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
	go serveTCP(netutil.LimitListener(tcp, maxConnections), token, s.Name)
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
		_ = conn.SetDeadline(time.Now().Add(idleTimeout)) // fails only for a closed connection
		if _, err := io.ReadFull(conn, q); err != nil {
			return err
		}
		mode := q[0]
		if !isOfRun(q, token) {
			return errors.New("not of this run")
		}
		if _, err := conn.Write(encodeReply(q, reply{name, source})); err != nil {
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
		if isOfRun(buf[:n], token) {
			_, _ = conn.WriteTo(encodeReply(buf[:n], reply{name, addressOf(from)}), &ipv4.ControlMessage{Src: cm.Dst}, from) // the caller asks again
		}
	}
}

// addressOf returns the IP address of a TCP or UDP address.
func addressOf(a net.Addr) netip.Addr {
	at, _ := netip.ParseAddrPort(a.String())
	return at.Addr()
}

// headerSize is the minimum size of requests and answers, which are padded to it. An answer is never larger than its
// request, so that a server cannot be used for amplification.
const headerSize = 160

// These are the modes of a connection after its first answer.
const (
	// modeAnswer answers further requests.
	modeAnswer = 'a'
	// modeEcho returns all received data.
	modeEcho = 'e'
	// modeSink counts the received data, and returns the count at the end.
	modeSink = 's'
)

// encodeRequest returns a packet of the given size that asks who answers.
func encodeRequest(token string, mode byte, size int) []byte {
	q := make([]byte, max(size, headerSize))
	copy(q[1:], token)
	q[0] = mode
	return q
}

// isOfRun reports whether a request has the token of this run, which serve has checked.
func isOfRun(q []byte, token string) bool {
	return len(q) >= headerSize && subtle.ConstantTimeCompare(q[1:1+len(token)], []byte(token)) == 1
}

// reply is the content of an answer.
type reply struct {
	Name   string     `json:"n"`
	Source netip.Addr `json:"s"`
}

// encodeReply turns a request into its answer, in place.
func encodeReply(q []byte, r reply) []byte {
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
