package liveness_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/liqonet/liqonet/pkg/liveness"
	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/test/kit"
)

const (
	// perNode is what a gateway adds to the interval of requests for each node.
	perNode = 200 * time.Microsecond
	// watched is how many of a cluster's nodes are real sessions. The others are sockets that only send requests, since
	// thousands of sessions on one machine would delay each other.
	watched = 50
)

// crowd is a cluster's nodes, all of which send packets through one gateway.
type crowd struct {
	interval  time.Duration
	gateway   netip.AddrPort
	responder *liveness.Responder
	sessions  []*liveness.Session
	dead      atomic.Bool
}

// manyPorts is more than a gateway has nodes.
const manyPorts = 18000

// request is a valid request of a node that sends packets.
func request() []byte { return append([]byte("lqlv\x01\x01\x01"), make([]byte, 25)...) }

// address is that of a node. A stranger's is that of none.
func address(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)}) }

var stranger = netip.AddrFrom4([4]byte{127, 2, 0, 1})

// newCrowd starts the nodes. Each has its own address.
func newCrowd(t *testing.T, nodes int) *crowd {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	c := &crowd{interval: max(100*time.Millisecond, perNode*time.Duration(nodes))}
	conn := kit.Must(net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}))(t)
	kit.NoError(t, conn.SetReadBuffer(4<<20)) // as a gateway
	r := &liveness.Responder{
		State: func(netip.Addr) liveness.Answer {
			return liveness.Answer{State: liveness.State{Up: true, LossFree: time.Hour}, Interval: c.interval}
		},
		OnRequest: func(by netip.Addr, _ liveness.Request) bool { return !c.dead.Load() && by != stranger },
	}
	c.responder, c.gateway = r, netip.MustParseAddrPort(conn.LocalAddr().String())
	running.Go(func() { kit.CheckNoError(t, r.Serve(ctx, conn)) })
	to := conn.LocalAddr().(*net.UDPAddr)
	for i := range watched {
		s := liveness.New(address(i), to.AddrPort(), 10, notify.NewSignal())
		s.SetUsage(1400)
		c.sessions = append(c.sessions, s)
		running.Go(func() {
			time.Sleep(rand.N(c.interval)) // nodes ask at different moments
			s.Run(ctx)
		})
	}
	var others []*net.UDPConn
	for i := watched; i < nodes; i++ {
		others = append(others, kit.Must(net.DialUDP("udp4", &net.UDPAddr{IP: address(i).AsSlice()}, to))(t))
	}
	running.Go(func() {
		for start, sent := time.Now(), 0; ctx.Err() == nil; time.Sleep(time.Millisecond) {
			for ; sent < int(int64(len(others))*int64(time.Since(start))/int64(c.interval)); sent++ {
				_, _ = others[sent%len(others)].Write(request()) // lost like any packet
			}
		}
		for _, o := range others {
			kit.CheckNoError(t, o.Close())
		}
	})
	return c
}

// detection returns how long each node takes to detect that the gateway is dead.
func (c *crowd) detection(t *testing.T) (took []time.Duration) {
	t.Helper()
	kit.WithinFor(t, time.Minute, 3*time.Second, "the path is up for all nodes", func() string {
		if i := slices.IndexFunc(c.sessions, func(s *liveness.Session) bool { return !s.State().Up }); i >= 0 {
			return fmt.Sprintf("node %d: %+v", i, c.sessions[i].State())
		}
		return ""
	})
	time.Sleep(rand.N(c.interval))
	c.dead.Store(true)
	defer c.dead.Store(false)
	died := time.Now()
	took = make([]time.Duration, len(c.sessions))
	for left := len(took); left > 0; time.Sleep(5 * time.Millisecond) {
		kit.FatalIf(t, time.Since(died) > 30*time.Second, "%d nodes have not detected it", left)
		for i, s := range c.sessions {
			if took[i] == 0 && !s.State().Up {
				took[i] = time.Since(died)
				left--
			}
		}
	}
	return took
}

// The nodes of a large cluster detect that a gateway is dead nearly as fast as those of a small one. They wait longer
// for the first request that is not answered: half of their interval on average.
func TestCrowdDetectsADeadGateway(t *testing.T) {
	if !kit.Full() {
		t.Skip("thousands of sockets keep a busy machine busy")
	}
	var usual time.Duration
	for _, nodes := range []int{100, 1000, 2500, 5000} {
		t.Run(fmt.Sprintf("%d nodes", nodes), func(t *testing.T) {
			c := newCrowd(t, nodes)
			var took []time.Duration
			for range 4 {
				took = append(took, c.detection(t)...)
			}
			slices.Sort(took)
			median, slowest := took[len(took)/2], took[len(took)-1]
			t.Logf("%d nodes: detected after %s (median), %s (slowest)", nodes, median.Round(time.Millisecond), slowest.Round(time.Millisecond))
			if usual == 0 {
				usual = median
			}
			if limit := 2*usual + c.interval/2; median > limit {
				t.Errorf("%d nodes: detected after %s, limit %s, 100 nodes: %s", nodes, median, limit, usual)
			}
		})
	}
}

// memoryConn delivers packets from memory, and counts those that are sent.
type memoryConn struct {
	net.PacketConn
	in   chan netip.AddrPort
	sent map[netip.Addr]int
}

func (c *memoryConn) ReadFrom(b []byte) (int, net.Addr, error) {
	from, more := <-c.in
	if !more {
		return 0, nil, net.ErrClosed
	}
	return copy(b, request()), net.UDPAddrFromAddrPort(from), nil
}

func (c *memoryConn) WriteTo(b []byte, to net.Addr) (int, error) {
	c.sent[to.(*net.UDPAddr).AddrPort().Addr()]++
	return len(b), nil
}

func (c *memoryConn) Close() error { return nil }

// Whoever asks from many ports is one requester, or none: it is told of a change once, like each node.
func TestManyPortsAreOneRequester(t *testing.T) {
	c := &memoryConn{in: make(chan netip.AddrPort), sent: map[netip.Addr]int{}}
	r := &liveness.Responder{
		State:     func(netip.Addr) liveness.Answer { return liveness.Answer{} },
		OnRequest: func(by netip.Addr, _ liveness.Request) bool { return by != stranger },
	}
	go func() {
		defer close(c.in)
		for port := range uint16(manyPorts) {
			for _, by := range []netip.Addr{stranger, address(1)} {
				c.in <- netip.AddrPortFrom(by, 40000+port)
			}
		}
		c.in <- netip.AddrPortFrom(address(2), 40000)
	}()
	if err := r.Serve(t.Context(), c); !errors.Is(err, net.ErrClosed) {
		t.Fatal(err)
	}
	kit.Check(t, "answers", c.sent, map[netip.Addr]int{address(1): manyPorts, address(2): 1})
	clear(c.sent)
	r.Push()
	kit.Check(t, "messages about a change", c.sent, map[netip.Addr]int{address(1): 1, address(2): 1})
}

// flood sends requests from an address, from that many ports, until the test ends. It returns once all ports are open.
func (c *crowd) flood(t *testing.T, by netip.Addr, ports int) {
	t.Helper()
	const rate = 30000
	var sockets []*net.UDPConn
	for range ports {
		sockets = append(sockets, kit.Must(net.DialUDP("udp4", &net.UDPAddr{IP: by.AsSlice()}, net.UDPAddrFromAddrPort(c.gateway)))(t))
	}
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() {
		cancel()
		running.Wait()
		for _, s := range sockets {
			kit.CheckNoError(t, s.Close())
		}
	})
	running.Go(func() {
		for start, sent := time.Now(), 0; ctx.Err() == nil; time.Sleep(time.Millisecond) {
			for ; sent < int(time.Since(start).Seconds()*rate); sent++ {
				_, _ = sockets[sent%ports].Write(request()) // lost like any packet
			}
		}
	})
	running.Go(func() { // something changes all the time
		for ctx.Err() == nil {
			c.responder.Push()
			time.Sleep(100 * time.Millisecond)
		}
	})
}

// A flood of requests from thousands of ports does no more harm than one from a single port, whether its sender is known
// or not: no node sees the gateway as dead.
func TestFloodFromManyPorts(t *testing.T) {
	if !kit.Full() {
		t.Skip("thousands of sockets keep a busy machine busy; TestManyPortsAreOneRequester covers what is remembered")
	}
	for name, by := range map[string]netip.Addr{"a node": address(watched - 1), "a stranger": stranger} {
		t.Run(name, func(t *testing.T) {
			outages := map[int]int{}
			for _, ports := range []int{1, manyPorts} {
				t.Run(fmt.Sprintf("%d ports", ports), func(t *testing.T) {
					c := newCrowd(t, 100)
					c.flood(t, by, ports)
					others := c.sessions[:watched-1]
					isUp := func(s *liveness.Session) bool { return s.State().Up }
					kit.Within(t, time.Minute, "the path is up for all nodes", func() string {
						if i := slices.IndexFunc(others, func(s *liveness.Session) bool { return !isUp(s) }); i >= 0 {
							return fmt.Sprintf("node %d: %+v", i, others[i].State())
						}
						return ""
					})
					was := make([]bool, len(others))
					for start := time.Now(); time.Since(start) < 10*time.Second; time.Sleep(5 * time.Millisecond) {
						for i, s := range others {
							if up := isUp(s); up != !was[i] {
								if was[i] = !up; !up {
									outages[ports]++
								}
							}
						}
					}
				})
			}
			t.Logf("outages by ports: %v", outages)
			kit.ErrorIf(t, outages[manyPorts] > outages[1], "outages: %d, from one port: %d", outages[manyPorts], outages[1])
		})
	}
}
