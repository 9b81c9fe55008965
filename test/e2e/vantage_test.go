package e2e

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"

	"github.com/liqonet/liqonet/test/lab"
	"github.com/liqonet/liqonet/test/netns/enter"
	"github.com/liqonet/liqonet/test/workload"
)

// vantage is a network namespace from which packets are sent: a pod's or a
// node's.
type vantage struct {
	name string
	addr netip.Addr
	ns   *os.File
}

func (v *vantage) String() string { return v.name }

// do runs a function in the namespace, on a thread of its own. Sockets that it
// opens stay there; goroutines that it starts are not.
func (v *vantage) do(f func() error) error { return enter.Do(v.ns, f) }

// Start starts a program in the namespace.
func (v *vantage) Start(cmd *exec.Cmd) error { return v.do(cmd.Start) }

// run runs a program in the namespace.
func (v *vantage) run(name string, args ...string) error {
	return v.do(func() error {
		// It is started by this thread, and so inherits the namespace.
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s %s in %s: %w: %s", name, strings.Join(args, " "), v.name, err, out)
		}
		return nil
	})
}

// call asks a test pod and returns what it saw.
func (v *vantage) call(protocol string, to netip.Addr, timeout time.Duration) (a answer, err error) {
	err = v.do(func() error {
		a, err = ask(protocol, to, timeout)
		return err
	})
	if err != nil {
		return a, fmt.Errorf("%s calls %s %s: %w", v.name, protocol, to, err)
	}
	return a, nil
}

// answer is what a server said.
type answer struct {
	// hostname of the server, which is the pod's name, and the caller's address
	// as the server saw it. Nothing for ICMP.
	hostname string
	source   netip.Addr
}

// parseAnswer reads the line of the lab's tester.
func parseAnswer(line []byte) (answer, error) {
	var said struct{ Hostname, Source string }
	if err := json.Unmarshal(line, &said); err != nil {
		return answer{}, fmt.Errorf("the server said %q: %w", line, err)
	}
	from, err := netip.ParseAddrPort(said.Source)
	if err != nil {
		return answer{}, err
	}
	return answer{said.Hostname, from.Addr().Unmap()}, nil
}

// ask calls a test pod, in the namespace of the thread.
func ask(protocol string, to netip.Addr, timeout time.Duration) (answer, error) {
	network := map[string]string{"icmp": "ip4:icmp", "background icmp": "ip4:icmp", "http": "tcp"}[protocol]
	if network == "" {
		network = protocol
	}
	conn, err := net.DialTimeout(network, workload.Target(protocol, to), timeout)
	if err != nil {
		return answer{}, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return answer{}, err
	}
	switch protocol {
	case "tcp":
		c, err := greet(conn)
		if err != nil {
			return answer{}, err
		}
		return c.greeting, c.echo(payload)
	case "udp":
		return askUDP(conn)
	case "icmp":
		return answer{}, ping(conn, watchedPing)
	case "background icmp":
		return answer{}, ping(conn, watchedPing+1)
	default:
		return askHTTP(conn)
	}
}

var payload = bytes.Repeat([]byte("0123456789abcdef"), 64) // 1 KiB, fits any MTU of the lab

// connection is one to a test pod's TCP server, which echoes.
type connection struct {
	net.Conn
	reader   *bufio.Reader
	greeting answer
}

func greet(conn net.Conn) (*connection, error) {
	c := &connection{Conn: conn, reader: bufio.NewReader(conn)}
	line, err := c.reader.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	c.greeting, err = parseAnswer(line)
	return c, err
}

func (c *connection) echo(sent []byte) error {
	if _, err := c.Write(sent); err != nil {
		return err
	}
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(c.reader, got); err != nil {
		return err
	}
	if !bytes.Equal(got, sent) {
		return errors.New("the echo is not what was sent")
	}
	return nil
}

func askUDP(conn net.Conn) (answer, error) { return exchangeUDP(conn, payload) }

// exchangeUDP sends a packet, which is echoed.
func exchangeUDP(conn net.Conn, sent []byte) (answer, error) {
	if _, err := conn.Write(sent); err != nil {
		return answer{}, err
	}
	buf := make([]byte, 1<<16)
	n, err := conn.Read(buf)
	if err != nil {
		return answer{}, err
	}
	line, echo, _ := bytes.Cut(buf[:n], []byte("\n"))
	if !bytes.Equal(echo, sent) {
		return answer{}, errors.New("the echo is not what was sent")
	}
	return parseAnswer(line)
}

// watchedPing is the identifier of the pings that watchPings looks for.
const watchedPing = 0xe2e0

// ping sends an echo request (RFC 792) and waits for its reply.
func ping(conn net.Conn, identifier uint16) error {
	data := append(binary.BigEndian.AppendUint64(nil, uint64(time.Now().UnixNano())), payload...)
	request, err := (&icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: int(identifier), Seq: 1, Data: data}}).Marshal(nil)
	if err != nil {
		return err
	}
	if _, err := conn.Write(request); err != nil {
		return err
	}
	buf := make([]byte, 1<<16)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return err
		}
		reply := buf[:n]
		if n >= 20 && reply[0]>>4 == 4 { // with the IP header, as Linux gives it
			reply = reply[min(n, 4*int(reply[0]&15)):]
		}
		// Replies to others' pings come here, too: the time makes them different.
		if len(reply) == len(request) && reply[0] == 0 && bytes.Equal(reply[4:], request[4:]) {
			return nil
		}
	}
}

// askHTTP does by hand what net/http does on other goroutines, and so in other
// namespaces.
func askHTTP(conn net.Conn) (answer, error) {
	body, err := get(conn, "/")
	if err != nil {
		return answer{}, err
	}
	return parseAnswer(body)
}

// askAPI reads the version of a cluster's API server, as anybody may.
func askAPI(server netip.AddrPort, timeout time.Duration) error {
	conn, err := net.DialTimeout("tcp", server.String(), timeout)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	_, err = get(tls.Client(conn, &tls.Config{InsecureSkipVerify: true}), "/version")
	return err
}

func get(conn net.Conn, path string) ([]byte, error) {
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: e2e\r\nConnection: close\r\n\r\n", path); err != nil {
		return nil, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("HTTP %s", resp.Status)
	}
	return io.ReadAll(resp.Body)
}

// nodeVantage is a node itself, as its host network is.
func nodeVantage(n *lab.Node) (*vantage, error) {
	v, err := namespace(n.Netns())
	if err != nil {
		return nil, err
	}
	v.name, v.addr = "node "+n.Name, n.Address
	return v, nil
}

// machine is the one of the cluster's control plane, which has no pods and nothing of
// ours: a host outside of all clusters.
func (c *cluster) machine(t testing.TB) *vantage {
	t.Helper()
	n := must(fx.lab.Node(c.Name + "-cp"))(t)
	v := must(nodeVantage(n))(t)
	t.Cleanup(func() { v.ns.Close() })
	return v
}

// namespace is one of the lab's network namespaces.
func namespace(name string) (*vantage, error) {
	ns, err := os.Open(filepath.Join("/run/netns", name))
	if err != nil {
		return nil, err
	}
	return &vantage{name: name, ns: ns}, nil
}

// podVantages finds the namespaces of test pods by their processes. Names of
// pods are unique in a lab: the random part of a DaemonSet's is.
func podVantages(pods []workload.Pod) (map[string]*vantage, error) {
	byName := map[string]workload.Pod{}
	for _, p := range pods {
		byName[p.Name] = p
	}
	out := map[string]*vantage{}
	all, err := processes()
	if err != nil {
		return nil, err
	}
	for _, proc := range all {
		if len(proc.args) < 2 || proc.args[0] != "/tester" || proc.args[1] != "serve" {
			continue
		}
		environ, err := os.ReadFile(filepath.Join(proc.dir, "environ"))
		if err != nil {
			return nil, err
		}
		for v := range strings.SplitSeq(string(environ), "\x00") {
			name, ok := strings.CutPrefix(v, "HOSTNAME=")
			p, known := byName[name]
			if !ok || !known {
				continue
			}
			ns, err := os.Open(filepath.Join(proc.dir, "ns", "net"))
			if err != nil {
				return nil, err
			}
			out[name] = &vantage{name: p.String(), addr: p.IP, ns: ns}
		}
	}
	if len(out) != len(pods) {
		return nil, fmt.Errorf("found the processes of %d test pods, not of %d", len(out), len(pods))
	}
	return out, nil
}
