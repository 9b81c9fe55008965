package e2e

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/test/workload"
)

// shortTimeout is for calls that must not succeed.
const shortTimeout = 300 * time.Millisecond

// callTimeout is for calls that have to succeed: much longer than any takes, also
// on a machine that does nothing for seconds.
const callTimeout = 8 * time.Second

// checkPair has every pod and every node of both clusters call every pod of the
// other one, by all protocols. Who is seen as what has to be just what status
// and map say.
func checkPair(t testing.TB, ctx context.Context, a, b *cluster) {
	t.Helper()
	views := status(t, ctx, 0, a, b)
	for from, to := range bothWays(a, b) {
		ours, theirs := viewOf(t, views, from, to), viewOf(t, views, to, from)
		expect(t, ours.State == "Connected" && ours.NodesReady == len(from.nodes),
			"%s says of %s: %s, %d nodes ready: %s", from.Name, to.Name, ours.State, ours.NodesReady, ours.Message)
		expect(t, slices.Equal(ours.LocalPods, theirs.RemotePods),
			"%s says that its pods are known as %v, %s says %v", from.Name, ours.LocalPods, to.Name, theirs.RemotePods)
		address := map[string]netip.Addr{}
		for _, p := range to.pods {
			address[p.Pod.Name] = mapped(t, ctx, to, from, "default/"+p.Pod.Name)
			want := theirs.seenAs(t, p.IP)
			expect(t, address[p.Pod.Name] == want, "map says that %s is %s in %s, status says %s", p.Pod, address[p.Pod.Name], from.Name, want)
		}
		for _, p := range from.pods {
			checkCalls(t, p.vantage, to.pods, address, ours.seenAs(t, p.IP))
		}
		require(t, len(ours.Nodes) == len(from.nodes), "%s says that its nodes are %v", from.Name, ours.Nodes)
		for i, n := range from.nodes {
			want := ours.Nodes[i].SeenAs
			if got := mapped(t, ctx, from, to, n.Address.String()); got != want || ours.Nodes[i].Name != n.Node.Name {
				t.Errorf("map says that node %s is %s in %s, status says that %s is %s", n.Node.Name, got, to.Name, ours.Nodes[i].Name, want)
			}
			checkCalls(t, n.vantage, to.pods, address, want)
		}
	}
}

// checkCalls calls all pods by their addresses, and wants them to see source.
func checkCalls(t testing.TB, from *vantage, to []pod, address map[string]netip.Addr, source netip.Addr) {
	t.Helper()
	for _, p := range to {
		for _, protocol := range []string{"tcp", "udp"} {
			got, err := from.call(protocol, address[p.Pod.Name], callTimeout)
			if err != nil {
				t.Error(err)
				continue
			}
			if want := (answer{p.Pod.Name, source}); got != want {
				t.Errorf("%s calls %s by %s: it was %s who answered, and saw %s; want %s and %s",
					from, protocol, address[p.Pod.Name], got.hostname, got.source, want.hostname, want.source)
			}
		}
		// A ping's answer says nothing of its source: look at the request when it
		// is given to the pod.
		seen, err := watchPings(p.vantage, func() error {
			_, err := from.call("icmp", address[p.Pod.Name], callTimeout)
			return err
		})
		if err != nil {
			t.Error(err)
		} else if !slices.Equal(seen, []netip.Addr{source}) {
			t.Errorf("%s pings %s: it saw %v; want %s", from, p.Pod, seen, source)
		}
	}
}

// watchPings returns whose echo requests came in at a pod while do ran.
func watchPings(at *vantage, do func() error) ([]netip.Addr, error) {
	socket := -1
	if err := at.do(func() (err error) {
		// Every IPv4 packet that comes in, without its link layer header (packet(7)).
		socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_IP)))
		return err
	}); err != nil {
		return nil, err
	}
	defer unix.Close(socket)
	doErr := do()
	var seen []netip.Addr
	buf := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(socket, buf, unix.MSG_DONTWAIT)
		if err != nil { // EAGAIN: that was all
			return seen, doErr
		}
		packet := buf[:n]
		if n < 28 || packet[9] != unix.IPPROTO_ICMP {
			continue
		}
		echo := packet[min(n-8, int(packet[0]&15)*4):]
		if echo[0] != 8 || binary.BigEndian.Uint16(echo[4:]) != watchedPing {
			continue
		}
		if source := netip.AddrFrom4([4]byte(packet[12:16])); !slices.Contains(seen, source) {
			seen = append(seen, source)
		}
	}
}

func htons(v uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], v)
	return binary.NativeEndian.Uint16(b[:])
}

// checkOnePacket is a quick look whether pods of both clusters reach each other.
func checkOnePacket(t testing.TB, ctx context.Context, a, b *cluster) {
	t.Helper()
	views := status(t, ctx, 0, a, b)
	for from, to := range bothWays(a, b) {
		source := viewOf(t, views, from, to).seenAs(t, from.pods[0].IP)
		target := to.pods[len(to.pods)-1]
		address := viewOf(t, views, to, from).seenAs(t, target.IP)
		checkCalls(t, from.pods[0].vantage, []pod{target}, map[string]netip.Addr{target.Pod.Name: address}, source)
	}
}

// stream is something that is asked again and again, in one namespace.
type stream struct {
	name string
	from *vantage
	// open makes what is asked, in the namespace.
	open func() (asker, error)
}

// asker asks once. It is closed in the end.
type asker interface {
	ask() error
	Close() error
}

// each is an asker that keeps nothing from one time to the next.
type each func() error

func (f each) ask() error { return f() }

func (each) Close() error { return nil }

// fresh is the open of a stream that keeps nothing.
func fresh(ask func() error) func() (asker, error) {
	return func() (asker, error) { return each(ask), nil }
}

// probing asks all its streams, each on its own, until it is stopped.
type probing struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	asked    map[string]int
	slowest  time.Duration
	failures []string
}

const probePause = 100 * time.Millisecond

func probe(ctx context.Context, streams []stream) *probing {
	ctx, cancel := context.WithCancel(ctx)
	p := &probing{cancel: cancel, asked: map[string]int{}}
	start := time.Now()
	for _, s := range streams {
		p.wg.Go(func() {
			err := s.from.do(func() error {
				a, err := s.open()
				if err != nil {
					return err
				}
				defer a.Close()
				for ctx.Err() == nil {
					asked := time.Now()
					p.count(s.name, asked.Sub(start), a.ask(), time.Since(asked))
					time.Sleep(probePause)
				}
				return nil
			})
			if err != nil {
				p.count(s.name, time.Since(start), err, 0)
			}
		})
	}
	return p
}

func (p *probing) count(name string, at time.Duration, err error, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked[name]++
	p.slowest = max(p.slowest, took)
	if err != nil {
		p.failures = append(p.failures, fmt.Sprintf("%s, after %.1f s: %v", name, at.Seconds(), err))
	}
}

// stop ends the probing and fails the test if anything was not answered.
func (p *probing) stop(t testing.TB) {
	t.Helper()
	p.cancel()
	p.wg.Wait()
	asked := 0
	for _, n := range p.asked {
		asked += n
	}
	expect(t, asked >= 2*len(p.asked) && asked != 0, "the probing has asked %d times only, of %d streams", asked, len(p.asked))
	t.Logf("%d streams asked %d times, the slowest answer took %s", len(p.asked), asked, p.slowest.Round(time.Millisecond))
	if n := len(p.failures); n > 0 {
		t.Errorf("%d of %d had no answer:\n%s", n, asked, strings.Join(p.failures[:min(n, 20)], "\n"))
	}
}

// ownTraffic is what goes on inside of a cluster and must never notice a
// peering: from pods and from nodes, to pods of other nodes, to a Service, and
// to the API server.
func (c *cluster) ownTraffic() []stream {
	var out []stream
	for i := range c.nodes {
		other := c.pods[(i+1)%len(c.pods)].Pod
		for _, from := range []*vantage{c.pods[i].vantage, c.nodes[i].vantage} {
			add := func(what string, open func() (asker, error)) {
				out = append(out, stream{from.name + " to " + what, from, open})
			}
			for _, protocol := range []string{"tcp", "udp", "background icmp"} {
				add(protocol+" of "+other.Name, fresh(func() error {
					_, err := ask(protocol, other.IP, callTimeout)
					return err
				}))
			}
			add("the Service", fresh(func() error {
				_, err := ask("http", c.service, callTimeout)
				return err
			}))
			add("the API server", fresh(func() error { return askAPI(c.server, callTimeout) }))
			add("one connection to "+other.Name, lasting(other.IP))
		}
	}
	return out
}

// peerTraffic is what goes on between two clusters that are peered: connections
// that last, and packets.
func peerTraffic(t testing.TB, ctx context.Context, a, b *cluster) []stream {
	t.Helper()
	views := status(t, ctx, 0, a, b)
	var out []stream
	for from, to := range bothWays(a, b) {
		theirs := viewOf(t, views, to, from)
		for _, p := range from.pods {
			for _, target := range to.pods {
				address := theirs.seenAs(t, target.IP)
				name := p.vantage.name + " to " + target.vantage.name
				out = append(
					out,
					stream{"one connection of " + name, p.vantage, lasting(address)},
					stream{"udp of " + name, p.vantage, fresh(func() error {
						_, err := ask("udp", address, callTimeout)
						return err
					})},
				)
			}
		}
	}
	return out
}

// lasting opens one TCP connection that is used again and again.
func lasting(to netip.Addr) func() (asker, error) {
	return func() (asker, error) {
		conn, err := net.DialTimeout("tcp", workload.Target("tcp", to), callTimeout)
		if err != nil {
			return nil, err
		}
		if err := conn.SetDeadline(time.Now().Add(callTimeout)); err != nil {
			return nil, err
		}
		return greet(conn)
	}
}

// openLasting opens such a connection, until the test ends.
func openLasting(t testing.TB, from *vantage, to netip.Addr) (c *connection) {
	t.Helper()
	try(t, from.do(func() error {
		a, err := lasting(to)()
		if err == nil {
			c = a.(*connection)
		}
		return err
	}))
	t.Cleanup(func() { c.Close() })
	return c
}

func (c *connection) ask() error {
	if err := c.SetDeadline(time.Now().Add(callTimeout)); err != nil {
		return err
	}
	return c.echo(payload)
}
