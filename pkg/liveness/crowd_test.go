package liveness_test

import (
	"context"
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
	interval time.Duration
	sessions []*liveness.Session
	dead     atomic.Bool
}

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
		OnRequest: func(netip.Addr, liveness.Request) bool { return !c.dead.Load() },
	}
	running.Go(func() { kit.CheckNoError(t, r.Serve(ctx, conn)) })
	to := conn.LocalAddr().(*net.UDPAddr)
	address := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)}) }
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
		question := append([]byte("lqlv\x01\x01\x01"), make([]byte, 25)...)
		for start, sent := time.Now(), 0; ctx.Err() == nil; time.Sleep(time.Millisecond) {
			for ; sent < int(int64(len(others))*int64(time.Since(start))/int64(c.interval)); sent++ {
				_, _ = others[sent%len(others)].Write(question) // lost like any packet
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
