package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/test/flow"
)

// followTimeout is within what the MTU follows a change of links, ten times what
// it takes.
const followTimeout = 20 * time.Second

// widenTimeout is the same for a larger MTU: a gateway adopts what its nodes say after ten seconds, and what the peer's
// gateway says after ten more.
const widenTimeout = followTimeout + 20*time.Second

// streamTimeout is within what a TCP connection goes on after packets were lost.
const streamTimeout = time.Minute

// The MTU follows from the links of both sides: 9000 bytes on one and 1400 on the other, a narrow link next to the
// nodes, and one of a node that is changed while it is used. TCP connections continue over all that; packets that
// may not be fragmented pass up to the MTU and not beyond.
func TestMTU(t *testing.T) {
	ctx := begin(t)
	a, b := fx.gamma, fx.delta
	mustLiqonet(t, ctx, "peer", a.Name, b.Name)
	w := watchMTU(t, ctx, a, b)

	w.expect("links of 9000 and 1400 bytes", 1400-tunnel.OverheadIPv4)
	w.narrowNode(b)
	w.stop()
	w.narrowUnderlay(b, 1300, func() {
		w.expect("a narrow link between the clusters", 1300-tunnel.OverheadIPv4)
	})

	unpeered(t, ctx, a, b)
}

// narrowNode changes the link of a gateway's node while it is used.
func (w *mtuWatch) narrowNode(b *cluster) {
	gateway := b.nodes[b.at(b.gatewayNode(w.t))]
	widen := gateway.during(w.t, w.ctx, "ip link set eth0 mtu 1300", "ip link set eth0 mtu 1400")
	w.expect("a node's link of 1300 bytes", 1300-tunnel.OverheadIPv4)
	widen()
	// A packet may have been too large for the narrow link: what the node has said of
	// that, the gateways' kernels believe for ten minutes.
	for _, g := range w.gateways {
		try(w.t, forgetPaths(g))
	}
	w.expectWithin(widenTimeout, "that node's link of 1400 bytes again", 1400-tunnel.OverheadIPv4)
}

// mtuWatch has what TestMTU needs at each step.
type mtuWatch struct {
	t        testing.TB
	ctx      context.Context
	pair     [2]*cluster
	gateways [2]*vantage
	underlay *vantage
	// nodes are those of both clusters, address tells pods' addresses for the
	// other cluster.
	nodes   []*vantage
	address map[string]netip.Addr
	streams []*bulkStream
	// steps counts what was expected.
	steps int
	// nudge is called while the MTU is not yet what it should be.
	nudge func()
}

func watchMTU(t testing.TB, ctx context.Context, a, b *cluster) *mtuWatch {
	w := &mtuWatch{t: t, ctx: ctx, pair: [2]*cluster{a, b}, address: map[string]netip.Addr{}, nudge: func() {}}
	w.underlay = must(namespace("lab." + *labName + ".underlay"))(t)
	t.Cleanup(func() { _ = w.underlay.ns.Close() })
	views := status(t, ctx, 0, a, b)
	for i, c := range w.pair {
		other := w.pair[1-i]
		v := viewOf(t, views, c, other)
		w.gateways[i] = c.gateway(t)
		for _, n := range c.nodes {
			w.nodes = append(w.nodes, n.vantage)
		}
		for _, p := range c.pods {
			w.address[p.Pod.Name] = v.seenAs(t, p.IP)
		}
	}
	return w
}

// expect waits until the MTU is what it should be, then checks it with packets of
// a pod and a node on either side, in turn.
func (w *mtuWatch) expect(what string, mtu int) {
	w.t.Helper()
	w.expectWithin(followTimeout, what, mtu)
}

func (w *mtuWatch) expectWithin(timeout time.Duration, what string, mtu int) {
	w.t.Helper()
	start := time.Now()
	eventually(w.t, w.ctx, timeout, what, func() string {
		w.nudge()
		r := liqonet(w.t, w.ctx, "", "status", "-o", "json", w.pair[0].Name, w.pair[1].Name)
		views := parseStatus(w.t, r.stdout)
		for i, c := range w.pair {
			v, ok := views[[2]string{c.Name, w.pair[1-i].Name}]
			if !ok || v.State != "Connected" || v.MTU != mtu {
				return fmt.Sprintf("%s says %s, MTU %d, want %d", c.Name, v.State, v.MTU, mtu)
			}
		}
		for _, n := range w.nodes {
			if other, err := otherMTU(w.ctx, n, mtu); err != nil || other != "" {
				return fmt.Sprintf("%s: %s%s", n, other, why(err))
			}
		}
		return ""
	})
	w.t.Logf("%s: MTU %d after %.1f s", what, mtu, time.Since(start).Seconds())
	if w.t.Failed() {
		w.t.FailNow()
	}
	// What kernels have learned of paths before is right for ten minutes.
	for _, c := range w.pair {
		for i := range c.pods {
			try(w.t, errors.Join(forgetPaths(c.pods[i].vantage), forgetPaths(c.nodes[i].vantage)))
		}
	}
	for _, s := range w.streams {
		s.wait(w.t, w.ctx)
	}
	for i, c := range w.pair {
		for j, p := range c.pods {
			if w.steps%2 != j {
				continue // it is the other one's turn
			}
			target := w.pair[1-i].pods[(i+j)%2]
			address := w.address[target.Pod.Name]
			if err := p.do(func() error { return bulk(address, 1<<20) }); err != nil {
				w.t.Errorf("%s: %s sends TCP to %s: %v", what, p.vantage, target.vantage, err)
			}
			checkLimit(w.t, p.vantage, target.vantage, address, mtu)
			checkLimit(w.t, c.nodes[j].vantage, target.vantage, address, mtu)
		}
	}
	// Some continue, each with another segment size.
	if w.steps < 3 {
		from, to := w.pair[0].pods[w.steps%2], w.pair[1].pods[w.steps/2]
		w.streams = append(w.streams, startBulk(w.t, w.ctx, from.vantage, w.address[to.Pod.Name]))
		w.streams[w.steps].wait(w.t, w.ctx)
	}
	w.steps++
}

// stop ends the connections, none of which may have broken.
func (w *mtuWatch) stop() {
	w.t.Helper()
	for i, s := range w.streams {
		s.wait(w.t, w.ctx)
		_, err := s.End()
		expect(w.t, err == nil, "TCP connection %d: %v", i+1, err)
	}
	w.streams = nil
}

// otherMTU are the overlay links of a node, and the routes by them to the peer, which have another MTU.
func otherMTU(ctx context.Context, n *vantage, mtu int) (string, error) {
	return n.shell(ctx, fmt.Sprintf(`{ ip -o link show | grep ': loq'; ip route show table all | grep 'via .* dev loq' || echo 'no route to the peer'; } |
		grep -vw 'mtu %d' || true`, mtu))
}

// narrowUnderlay has the underlay let only smaller packets through to a cluster
// while f runs. The gateway of the other one learns it from ICMP errors.
func (w *mtuWatch) narrowUnderlay(c *cluster, mtu int, f func()) {
	set := func(mtu int) error {
		return w.underlay.do(func() error {
			subnet := c.spec.NodeSubnet
			routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Dst: &net.IPNet{
				IP: subnet.Addr().AsSlice(), Mask: net.CIDRMask(subnet.Bits(), 32),
			}}, netlink.RT_FILTER_DST)
			if err != nil || len(routes) != 1 {
				return fmt.Errorf("%d routes to %s: %w", len(routes), subnet, err)
			}
			routes[0].MTU = mtu
			return netlink.RouteReplace(&routes[0])
		})
	}
	try(w.t, set(mtu))
	// Something has to be too large for it.
	from, to := w.pair[0], w.pair[1]
	if c == from {
		from, to = to, from
	}
	conn, err := dialUDP(from.pods[0].vantage, netip.AddrPortFrom(w.address[to.pods[0].Pod.Name], closedPort))
	try(w.t, err)
	defer conn.Close()
	try(w.t, setOption(conn, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE))
	w.nudge = func() { _, _ = conn.Write(pattern(mtu - udpHeaders)) } // less than that fits
	f()
	w.nudge = func() {}
	try(w.t, set(0))
}

// bulkStream is one TCP connection that never rests.
type bulkStream struct {
	*flow.Conversation
	rounds atomic.Int64
}

// startBulk sends to a test pod, which echoes, until it is stopped.
func startBulk(t testing.TB, ctx context.Context, from *vantage, to netip.Addr) *bulkStream {
	t.Helper()
	conn := openLasting(t, from, to)
	s, sent := &bulkStream{}, pattern(128<<10)
	s.Conversation = flow.Converse(ctx, func() error {
		defer s.rounds.Add(1)
		// The kernel sends again after 0.2 s, 0.4 s and so on.
		return errors.Join(conn.SetDeadline(time.Now().Add(streamTimeout)), conn.exchange(sent))
	})
	return s
}

// wait waits until something more has come back.
func (s *bulkStream) wait(t testing.TB, ctx context.Context) {
	t.Helper()
	before := s.rounds.Load()
	eventually(t, ctx, streamTimeout, "a TCP connection continues", func() string {
		return unless(s.rounds.Load() >= before+2, "nothing has come back by it")
	})
}
