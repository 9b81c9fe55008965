package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
)

const (
	// callTimeout is how long call waits for the answer.
	callTimeout = 2 * time.Second
	// payload is what call sends.
	payload = "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcd"
)

// answer is the line of output of call.
type answer struct {
	// OK is whether the right answer came in time.
	OK bool `json:"ok"`
	// RTTMilliseconds is the time from connecting, or sending, to the answer.
	RTTMilliseconds float64 `json:"rttMilliseconds,omitempty"`
	// Local is the client's own address, as the client sees it.
	Local string `json:"local,omitempty"`
	// Server is what the server says; nil for ICMP.
	Server *seen  `json:"server,omitempty"`
	Error  string `json:"error,omitempty"`
}

// call sends once and prints the answer; it fails if there is no right one.
func call(ctx context.Context, args []string, out io.Writer) error {
	if len(args) != 2 {
		return errors.New("call needs a protocol and an address")
	}
	ask := map[string]func(context.Context, string) (answer, error){"tcp": callTCP, "udp": callUDP, "icmp": callICMP, "http": callHTTP}[args[0]]
	if ask == nil {
		return fmt.Errorf("unknown protocol %q: want tcp, udp, http or icmp", args[0])
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	start := time.Now()
	a, err := ask(ctx, args[1])
	if err != nil {
		a.Error = err.Error()
	} else {
		a.OK, a.RTTMilliseconds = true, float64(time.Since(start).Microseconds())/1000
	}
	return errors.Join(err, json.NewEncoder(out).Encode(a))
}

// dial connects with a deadline for everything that follows.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{}
	if network != "tcp" {
		dialer.Control = func(_, _ string, c syscall.RawConn) error {
			var sockErr error
			err := c.Control(func(fd uintptr) {
				// ip(7): without IP_RECVERR, "network unreachable" is not told
				// to sockets of these protocols.
				sockErr = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_RECVERR, 1)
			})
			return errors.Join(err, sockErr)
		}
	}
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	deadline, _ := ctx.Deadline()
	return conn, conn.SetDeadline(deadline)
}

func callTCP(ctx context.Context, address string) (answer, error) {
	conn, err := dial(ctx, "tcp", address)
	if err != nil {
		return answer{}, err
	}
	defer conn.Close()
	reader := bufio.NewReader(conn)
	return exchange(conn, func() (first, echo []byte, err error) {
		if first, err = reader.ReadBytes('\n'); err == nil {
			echo = make([]byte, len(payload))
			_, err = io.ReadFull(reader, echo)
		}
		return first, echo, err
	})
}

func callUDP(ctx context.Context, address string) (answer, error) {
	conn, err := dial(ctx, "udp", address)
	if err != nil {
		return answer{}, err
	}
	defer conn.Close()
	return exchange(conn, func() (first, echo []byte, err error) {
		buf := make([]byte, 1<<16)
		n, err := conn.Read(buf)
		first, echo, _ = bytes.Cut(buf[:n], []byte("\n"))
		return first, echo, err
	})
}

// exchange sends the payload, and reads the server's line and the echo.
func exchange(conn net.Conn, read func() (first, echo []byte, err error)) (answer, error) {
	a := answer{Local: conn.LocalAddr().String(), Server: &seen{}}
	if _, err := io.WriteString(conn, payload); err != nil {
		return a, err
	}
	first, echo, err := read()
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal(first, a.Server); err != nil {
		return a, fmt.Errorf("read the server's line %q: %w", first, err)
	}
	if string(echo) != payload {
		return a, errors.New("the echo differs from what was sent")
	}
	return a, nil
}

func callHTTP(ctx context.Context, address string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/", nil)
	if err != nil {
		return answer{}, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	a := answer{Server: &seen{}}
	if resp.StatusCode != http.StatusOK {
		return a, fmt.Errorf("HTTP %s", resp.Status)
	}
	return a, json.NewDecoder(resp.Body).Decode(a.Server)
}

// callICMP sends an echo request (RFC 792) from a raw socket, which needs
// CAP_NET_RAW: pods have it unless it is dropped.
func callICMP(ctx context.Context, address string) (answer, error) {
	conn, err := dial(ctx, "ip4:icmp", address)
	if err != nil {
		return answer{}, err
	}
	defer conn.Close()
	a := answer{Local: conn.LocalAddr().String()}
	// Pings from pods have equal process numbers, and those of one pod must
	// not take each other's answers: the time makes requests different.
	echo := icmp.Echo{ID: os.Getpid() & 0xffff, Seq: 1, Data: append(binary.BigEndian.AppendUint64(nil, uint64(time.Now().UnixNano())), payload...)}
	request, err := (&icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &echo}).Marshal(nil)
	if err != nil {
		return a, err
	}
	if _, err := conn.Write(request); err != nil {
		return a, err
	}
	buf := make([]byte, 1<<16)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return a, err
		}
		reply := buf[:n]
		if len(reply) >= 20 && reply[0]>>4 == 4 { // the kernel gives the IP header, too
			reply = reply[min(int(reply[0]&15)*4, len(reply)):]
		}
		// Type 0, code 0; then the same as was sent, from the identifier on.
		if len(reply) >= 8 && reply[0] == 0 && reply[1] == 0 && bytes.Equal(reply[4:], request[4:]) {
			return a, nil
		}
		if len(reply) >= 8 && reply[0] == 3 {
			return a, fmt.Errorf("destination unreachable, code %d", reply[1])
		}
	}
}
