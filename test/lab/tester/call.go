package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"
)

// answer is one line of output of call.
type answer struct {
	Protocol string `json:"protocol"`
	Address  string `json:"address"`
	Sequence int    `json:"sequence"`
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

type callOptions struct {
	timeout      time.Duration
	size         int
	dontFragment bool
}

// call sends count times and prints an answer for each; it fails if one of
// them got no right answer.
func call(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("call", flag.ContinueOnError)
	var opts callOptions
	flags.DurationVar(&opts.timeout, "timeout", 2*time.Second, "how long to wait for each answer")
	flags.IntVar(&opts.size, "size", 56, "bytes of payload")
	flags.BoolVar(&opts.dontFragment, "df", false, "set the don't-fragment bit and never fragment here (udp, icmp)")
	count := flags.Int("count", 1, "how often to send")
	interval := flags.Duration("interval", 200*time.Millisecond, "pause between sending")
	var positional []string
	for len(args) > 0 { // flags may stand before and after the address
		if err := flags.Parse(args); err != nil {
			return err
		}
		if args = flags.Args(); len(args) > 0 {
			positional, args = append(positional, args[0]), args[1:]
		}
	}
	if len(positional) != 2 {
		return errors.New("call needs a protocol and an address")
	}
	protocol, address := positional[0], positional[1]
	ask := map[string]func(context.Context, string, int, callOptions) (answer, error){
		"tcp": callTCP, "udp": callUDP, "icmp": callICMP, "http": callHTTP,
	}[protocol]
	if ask == nil {
		return fmt.Errorf("unknown protocol %q: want tcp, udp, http or icmp", protocol)
	}

	lost := 0
	encoder := json.NewEncoder(out)
	for i := range *count {
		if i > 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(*interval):
			}
		}
		start := time.Now()
		callCtx, cancel := context.WithTimeout(ctx, opts.timeout)
		a, err := ask(callCtx, address, i+1, opts)
		cancel()
		a.Protocol, a.Address, a.Sequence = protocol, address, i+1
		if err != nil {
			lost++
			a.Error = err.Error()
		} else {
			a.OK = true
			a.RTTMilliseconds = float64(time.Since(start).Microseconds()) / 1000
		}
		if err := encoder.Encode(a); err != nil {
			return err
		}
	}
	if lost > 0 {
		return fmt.Errorf("%d of %d without an answer", lost, *count)
	}
	return nil
}

// dial connects with a deadline for everything that follows.
func dial(ctx context.Context, network, address string, opts callOptions) (net.Conn, error) {
	dialer := net.Dialer{}
	if network != "tcp" {
		dialer.Control = func(_, _ string, c syscall.RawConn) error {
			var sockErr error
			err := c.Control(func(fd uintptr) {
				// ip(7): without IP_RECVERR, "network unreachable" is not told
				// to sockets of these protocols.
				sockErr = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_RECVERR, 1)
				if sockErr == nil && opts.dontFragment {
					// The bit is set, and what is larger than the known path
					// MTU is refused with EMSGSIZE.
					sockErr = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_MTU_DISCOVER, syscall.IP_PMTUDISC_DO)
				}
			})
			return errors.Join(err, sockErr)
		}
	}
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			conn.Close()
			return nil, err
		}
	}
	return conn, nil
}

func payload(size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte('a' + i%26)
	}
	return b
}

func callTCP(ctx context.Context, address string, _ int, opts callOptions) (answer, error) {
	conn, err := dial(ctx, "tcp", address, opts)
	if err != nil {
		return answer{}, err
	}
	defer conn.Close()
	a := answer{Local: conn.LocalAddr().String(), Server: &seen{}}
	reader := bufio.NewReader(conn)
	first, err := reader.ReadBytes('\n')
	if err != nil {
		return a, fmt.Errorf("read the server's line: %w", err)
	}
	if err := json.Unmarshal(first, a.Server); err != nil {
		return a, fmt.Errorf("read the server's line %q: %w", first, err)
	}
	sent := payload(opts.size)
	written := make(chan error, 1) // a large payload is echoed while it is sent
	go func() {
		_, err := conn.Write(sent)
		written <- err
	}()
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(reader, got); err != nil {
		return a, fmt.Errorf("read the echo of %d bytes: %w", len(sent), err)
	}
	if err := <-written; err != nil {
		return a, fmt.Errorf("send %d bytes: %w", len(sent), err)
	}
	if !bytes.Equal(sent, got) {
		return a, errors.New("the echo differs from what was sent")
	}
	return a, nil
}

func callUDP(ctx context.Context, address string, _ int, opts callOptions) (answer, error) {
	conn, err := dial(ctx, "udp", address, opts)
	if err != nil {
		return answer{}, err
	}
	defer conn.Close()
	a := answer{Local: conn.LocalAddr().String(), Server: &seen{}}
	sent := payload(opts.size)
	if _, err := conn.Write(sent); err != nil {
		return a, withMTU(conn, err)
	}
	buf := make([]byte, 1<<16)
	n, err := conn.Read(buf)
	if err != nil {
		return a, withMTU(conn, err)
	}
	first, echo, _ := bytes.Cut(buf[:n], []byte("\n"))
	if err := json.Unmarshal(first, a.Server); err != nil {
		return a, fmt.Errorf("read the server's line %q: %w", first, err)
	}
	if !bytes.HasPrefix(sent, echo) || len(echo) < len(sent) && n < maxUDP {
		return a, errors.New("the echo differs from what was sent")
	}
	return a, nil
}

// withMTU adds the path MTU that the kernel knows to "message too long".
func withMTU(conn net.Conn, err error) error {
	var raw syscall.RawConn
	if c, ok := conn.(syscall.Conn); ok && errors.Is(err, syscall.EMSGSIZE) {
		raw, _ = c.SyscallConn()
	}
	if raw == nil {
		return err
	}
	_ = raw.Control(func(fd uintptr) {
		if mtu, mtuErr := syscall.GetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_MTU); mtuErr == nil {
			err = fmt.Errorf("%w (path MTU %d)", err, mtu)
		}
	})
	return err
}

func callHTTP(ctx context.Context, address string, _ int, _ callOptions) (answer, error) {
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
func callICMP(ctx context.Context, address string, sequence int, opts callOptions) (answer, error) {
	conn, err := dial(ctx, "ip4:icmp", address, opts)
	if err != nil {
		return answer{}, err
	}
	defer conn.Close()
	a := answer{Local: conn.LocalAddr().String()}
	id := uint16(os.Getpid())
	// Pings from pods have equal process numbers, and those of one pod must
	// not take each other's answers: the time makes requests different.
	request := binary.BigEndian.AppendUint16([]byte{8, 0, 0, 0}, id)
	request = binary.BigEndian.AppendUint16(request, uint16(sequence))
	request = binary.BigEndian.AppendUint64(request, uint64(time.Now().UnixNano()))
	request = append(request, payload(max(0, opts.size-8))...)
	binary.BigEndian.PutUint16(request[2:], checksum(request))
	if _, err := conn.Write(request); err != nil {
		return a, withMTU(conn, err)
	}
	buf := make([]byte, 1<<16)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return a, withMTU(conn, err)
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

// checksum is the internet checksum of RFC 1071.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
