package probe

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/probe"
)

const (
	// again is after how long without an answer a packet is sent again, and a connection tried again.
	again = 400 * time.Millisecond
	// headers are the bytes of IP and UDP.
	headers = 28
)

// callAll makes all calls at the same time.
func callAll(ctx context.Context, token string, calls []probe.Call) []probe.Answer {
	out := make([]probe.Answer, len(calls))
	var wg sync.WaitGroup
	for i, c := range calls {
		wg.Go(func() { out[i] = call(ctx, token, c) })
	}
	wg.Wait()
	return out
}

func call(ctx context.Context, token string, c probe.Call) probe.Answer {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(c.Timeout)*time.Millisecond)
	defer cancel()
	a := probe.Answer{}
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
	a.ID = c.ID
	if a.Answered = err == nil; !a.Answered {
		a.Error = plainly(err)
	}
	return a
}

// plainly says what has happened, without addresses and names of calls.
func plainly(err error) string {
	var errno syscall.Errno
	switch {
	case errors.As(err, &errno):
		return errno.Error()
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return "no answer"
	}
	return err.Error()
}

// callTCP connects, again and again until the time is over.
func callTCP(ctx context.Context, token string, c probe.Call, a *probe.Answer) (err error) {
	for {
		a.Tries++
		start := time.Now()
		err = tryTCP(ctx, token, c, a)
		a.Microseconds = time.Since(start).Microseconds()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(again / 4):
		}
	}
}

func tryTCP(ctx context.Context, token string, c probe.Call, a *probe.Answer) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp4", c.To.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	a.Local = addressOf(conn.LocalAddr())
	if c.ConnectOnly {
		return nil
	}
	until, _ := ctx.Deadline()
	if err := conn.SetDeadline(until); err != nil {
		return err
	}
	mode := byte(modeAnswer)
	if c.Size > 0 {
		mode = modeEcho
	}
	answer, err := ask(conn, token, mode)
	if err != nil {
		return fmt.Errorf("connected, and then: %s", plainly(err))
	}
	if err := understand(answer, a); err != nil || c.Size == 0 {
		return err
	}
	go func() { _, _ = conn.Write(make([]byte, c.Size)) }() // what fails does not come back
	if n, err := io.CopyN(io.Discard, conn, int64(c.Size)); err != nil {
		return fmt.Errorf("connected, and of %d bytes %d came back: %s", c.Size, n, plainly(err))
	}
	return nil
}

// ask asks once by a connection.
func ask(conn net.Conn, token string, mode byte) (answer []byte, err error) {
	q := question(token, mode, 0)
	if _, err = conn.Write(q); err == nil {
		_, err = io.ReadFull(conn, q)
	}
	return q, err
}

// understand notes who has answered.
func understand(raw []byte, a *probe.Answer) error {
	r, err := parseReply(raw)
	if err != nil {
		return errors.New("somebody else has answered")
	}
	a.From, a.Source = r.Name, r.Source
	return nil
}

// callUDP sends until there is an answer or an ICMP error, or the time is over.
func callUDP(ctx context.Context, token string, c probe.Call, a *probe.Answer) error {
	discover := unix.IP_PMTUDISC_DONT
	if c.DontFragment {
		discover = unix.IP_PMTUDISC_PROBE // whatever the kernel knows of the way
	}
	dialer := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		return errors.Join(setOption(raw, unix.IP_RECVERR, 1), setOption(raw, unix.IP_MTU_DISCOVER, discover))
	}}
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
		_, _, err := conn.WriteMsgUDP(question(token, modeAnswer, c.Size-headers), how, nil)
		return err
	}
	receive := func(raw []byte) error { return understand(raw, a) }
	err = exchange(ctx, a, conn, send, receive)
	if r := a.Refusal; c.OrLess && r != nil && r.Type == 0 && r.MTU > headers && r.MTU < c.Size {
		c.Size, a.Size, a.Refusal = r.MTU, r.MTU, nil
		err = exchange(ctx, a, conn, send, receive)
	}
	return err
}

// exchange sends again and again until something understandable comes back.
func exchange(ctx context.Context, a *probe.Answer, conn *net.UDPConn, send func() error, understand func([]byte) error) error {
	until, _ := ctx.Deadline()
	buf := make([]byte, largest)
	var refused error // says more than silence
	for {
		a.Tries++
		start := time.Now()
		err := send()
		a.Local = addressOf(conn.LocalAddr())
		if err == nil {
			next := start.Add(again)
			if next.After(until) {
				next = until
			}
			if err = conn.SetReadDeadline(next); err != nil {
				return err
			}
			var n int
			if n, err = conn.Read(buf); err == nil {
				a.Microseconds = time.Since(start).Microseconds()
				return understand(buf[:n])
			}
		}
		if errors.Is(err, unix.EMSGSIZE) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENETUNREACH) {
			if r := refusal(conn); r != nil {
				a.Refusal = r
			}
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			refused = err
		}
		if a.Refusal != nil && a.Refusal.MTU > 0 || !time.Now().Before(until) {
			return cmp.Or(refused, err)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		select { // what is refused at once may be so for a moment only
		case <-ctx.Done():
			return refused
		case <-time.After(again / 4):
		}
	}
}

// callICMP asks the kernel of whoever has the address, by a socket that needs no capability.
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
		raw, err := (&icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{Seq: sequence, Data: make([]byte, max(0, c.Size-headers))}}).Marshal(nil)
		if err == nil {
			_, err = conn.WriteTo(raw, net.UDPAddrFromAddrPort(netip.AddrPortFrom(c.To.Addr(), 0)))
		}
		return err
	}, func([]byte) error { return nil })
}

func setOption(c syscall.RawConn, option, value int) error {
	var set error
	err := c.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, option, value) })
	return errors.Join(err, set)
}

// refusal is the last error that the kernel keeps for a socket with IP_RECVERR, see ip(7).
func refusal(conn *net.UDPConn) (out *probe.Refusal) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil
	}
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
					if r := parseRefusal(m.Data); r != nil {
						out = r
					}
				}
			}
		}
	})
	return out
}

// parseRefusal is what the kernel tells of one error, with the address behind it (see linux/errqueue.h); nil if it is about
// something else.
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
