package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/liqonet/liqonet/pkg/liveness"
	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/test/kit"
)

// The peer's report about its nodes does not come back to it: two gateways would keep each other asking forever.
func TestUseIsNotToldBack(t *testing.T) {
	a, peer, node := &agent{}, netip.MustParseAddr("10.70.95.254"), netip.MustParseAddr("10.80.0.1")
	a.livenessServer.serve(desired{mtu: 1400})
	a.livenessServer.nodes.setKnown(node)
	used := liveness.Request{InUse: true}
	a.livenessServer.handleRequest(peer, used) // unknown so far
	kit.ErrorIf(t, a.livenessServer.fullSize() != 0, "an unknown address uses the gateway, and packets of full size are tried")
	a.livenessServer.peerGateway.setKnown(peer)
	a.livenessServer.handleRequest(peer, used)
	if a.livenessServer.fullSize() != 0 || !a.livenessServer.peerGateway.inUse() {
		t.Errorf("the peer's nodes use the gateway: size %d, want 0; in use: %v", a.livenessServer.fullSize(),
			a.livenessServer.peerGateway.inUse())
	}
	a.livenessServer.handleRequest(node, used)
	kit.ErrorIf(t, a.livenessServer.fullSize() != 1400, "a node uses the gateway as well, but packets of full size are not tried")
}

// A sender of packets counts until it reports that it has stopped, or is gone. Nodes ask late on a busy machine, and
// rarely in a large cluster.
func TestUsers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var u requesters
		node, other := netip.MustParseAddr("10.80.0.1"), netip.MustParseAddr("10.80.0.2")
		u.setKnown(node, other)
		expect := func(when string, want bool) {
			t.Helper()
			if got := u.inUse(); got != want {
				t.Errorf("%s: in use: %v, want %v", when, got, want)
			}
		}
		expect("nobody has asked", false)
		u.record(node, liveness.Request{InUse: false})
		expect("a node sends no packets", false)
		u.record(node, liveness.Request{InUse: true})
		u.record(other, liveness.Request{InUse: true})
		time.Sleep(senderTimeout - time.Millisecond)
		expect("nodes are late", true)
		u.record(node, liveness.Request{InUse: true})
		time.Sleep(usageTimeout)
		expect("one is gone", true)
		u.record(other, liveness.Request{InUse: false})
		expect("the other one has never reported that it stopped", true)
		u.record(node, liveness.Request{InUse: false})
		expect("packets are on the way", true)
		time.Sleep(usageTimeout)
		expect("the other one has stopped", false)
		u.record(node, liveness.Request{InUse: true})
		time.Sleep(senderTimeout)
		expect("the other one is gone, too", false)
	})
}

// Requests of anyone whom a gateway does not know leave nothing, whatever their number, and cost no more than others.
func TestManyStrangers(t *testing.T) {
	s := newLivenessServer(slog.New(slog.DiscardHandler))
	var nodes []netip.Addr
	for i := range 5000 {
		nodes = append(nodes, netip.AddrFrom4([4]byte{10, 80, byte(i >> 8), byte(i)}))
	}
	s.nodes.setKnown(nodes...)
	cost := func(by func(i int) netip.Addr) time.Duration {
		start := time.Now()
		for i := range 200000 {
			s.handleRequest(by(i), liveness.Request{InUse: true})
		}
		return time.Since(start)
	}
	stranger := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 61, byte(i >> 8), byte(i)}) }
	before := cost(stranger)
	kit.ErrorIf(t, s.inUse(), "requests of strangers count as use")
	known := cost(func(i int) netip.Addr { return nodes[i%len(nodes)] })
	kit.ErrorIf(t, min(before, cost(stranger)) > 3*known, "requests of strangers take %s, those of nodes %s", before, known)
	kit.Check(t, "known addresses", len(s.nodes.known)+len(s.peerGateway.known), len(nodes))
}

// The interval of a node's requests depends on how many nodes send through the gateway, so two planes detect a failure
// faster than one. Nodes that send nothing ask as rarely as if all did.
func TestIntervalOfRequests(t *testing.T) {
	s := newLivenessServer(slog.New(slog.DiscardHandler))
	var nodes []netip.Addr
	for i := range 5000 {
		nodes = append(nodes, netip.AddrFrom4([4]byte{10, 80, byte(i >> 8), byte(i)}))
	}
	s.serve(desired{nat: nat.Gateway{Nodes: nodes}})
	s.nodes.setKnown(nodes...)
	ctx, cancel := context.WithCancel(t.Context())
	tracked := make(chan struct{})
	go func() { s.trackUsage(ctx); close(tracked) }()
	defer func() { cancel(); <-tracked }()
	sent := 0
	for _, tt := range []struct {
		senders int
		want    time.Duration
	}{{1, 500 * time.Millisecond}, {2500, 500 * time.Millisecond}, {4000, 800 * time.Millisecond}, {5000, time.Second}} {
		kit.Check(t, "interval of a node that sends nothing", s.answer(nodes[len(nodes)-1]).Interval, time.Second)
		for ; sent < tt.senders; sent++ {
			s.handleRequest(nodes[sent], liveness.Request{InUse: true})
		}
		kit.Within(t, time.Second, fmt.Sprintf("the interval of %d senders", tt.senders), func() string {
			if got := s.answer(nodes[0]).Interval; got != tt.want {
				return fmt.Sprintf("%s, want %s", got, tt.want)
			}
			return ""
		})
	}
}
