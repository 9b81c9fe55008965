package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/tunnel"
)

// lookupTimeout is how long a name server may take, while everything else waits.
const lookupTimeout = 2 * time.Second

// endpoints are the places where the server may be reached, tried in turn.
//
// A name is resolved when it is first used, and when the place that it led to has
// not answered. In between its address stays. Name servers give a load balancer's
// addresses in another order each time. A name server that does not answer is no reason to
// leave a place that does.
type endpoints struct {
	// hosts are all of them as they were set, queue the same in the order in which they
	// are tried. Its first one is the current one.
	hosts, queue []string
	// known are the addresses that names have led to; stale says that the current
	// one has not answered since.
	known map[string]netip.Addr
	stale bool
	// preferred is the one that packets are led to. It is empty if it does not matter. tryAt is when that is tried
	// next, tryGap the last pause, wanted since when it is.
	preferred string
	tryAt     time.Time
	tryGap    time.Duration
	wanted    time.Time
	// unknown is why the name that was looked up last led nowhere, nil if it did not.
	unknown error
	// lookup resolves a name.
	lookup func(ctx context.Context, network, name string) ([]netip.Addr, error)
}

func newEndpoints() endpoints {
	return endpoints{known: map[string]netip.Addr{}, lookup: net.DefaultResolver.LookupNetIP}
}

// set takes over the list. The current one stays if it is in it, as long as it answers;
// after that a new list is tried from its beginning. With prefer the first one is the best, if it is an address.
func (e *endpoints) set(hosts []string, prefer bool) {
	if prefer && len(hosts) > 0 && hosts[0] != e.preferred {
		e.preferred = hosts[0]
		e.recovered()
	}
	if slices.Equal(e.hosts, hosts) {
		return
	}
	before := e.queue
	e.hosts, e.queue = hosts, slices.Clone(hosts)
	if len(before) > 0 {
		e.first(before[0])
	}
}

// first has one that is in the queue tried before the others.
func (e *endpoints) first(endpoint string) {
	if i := slices.Index(e.queue, endpoint); i > 0 {
		e.queue = slices.Insert(slices.Delete(e.queue, i, i+1), 0, endpoint)
	}
}

// firstTryGap and lastTryGap are the pauses between two attempts to use the preferred endpoint. Nodes return to a plane
// some seconds after it works again, so the first attempts are for free.
const firstTryGap, lastTryGap = 100 * time.Millisecond, 10 * time.Minute

// busyDelay is how long the preferred endpoint is not tried while nodes send packets: those that get no further are lost.
// After that it is worth it, as the plane depends on one more node until then. busyGap is between two looks.
const busyDelay, busyGap = time.Minute, time.Second

// recovered says that the tunnel works after it did not, or that there is another one to prefer: that is tried soon.
func (e *endpoints) recovered() { e.tryAt, e.tryGap, e.wanted = time.Time{}, 0, time.Time{} }

// try returns the preferred endpoint if packets of a tunnel that works are sent to another one. It does so less and less
// often, and otherwise returns none that is valid. busy says that nodes send packets by the tunnel.
// Where packets get no further, the peer continues to send by the path before, and WireGuard follows it back. It may do so
// without need, for packets that were sent before.
//
// again is how long to wait before the next look at it, 0 if there is nothing to look at.
func (e *endpoints) try(now time.Time, used netip.AddrPort, busy bool) (preferred netip.AddrPort, again time.Duration) {
	preferred, err := netip.ParseAddrPort(e.preferred)
	switch {
	case err != nil || !used.IsValid():
		return netip.AddrPort{}, 0
	case used == preferred:
		e.first(e.preferred)
		return netip.AddrPort{}, 0
	case now.Before(e.tryAt):
		return netip.AddrPort{}, e.tryAt.Sub(now)
	}
	if e.wanted.IsZero() {
		e.wanted = now
	}
	if busy && now.Sub(e.wanted) < busyDelay {
		return netip.AddrPort{}, busyGap
	}
	if busy {
		e.tryGap = max(e.tryGap, busyDelay)
	}
	e.tryGap = min(max(2*e.tryGap, firstTryGap), lastTryGap)
	e.tryAt = now.Add(e.tryGap)
	return preferred, e.tryGap
}

// next goes to the next one.
func (e *endpoints) next() {
	e.stale = true
	if len(e.queue) > 0 {
		e.queue = append(e.queue[1:], e.queue[0])
	}
}

// current is the one that is to be tried now.
func (e *endpoints) current(ctx context.Context) (netip.AddrPort, error) {
	if len(e.queue) == 0 {
		return netip.AddrPort{}, errors.New("no endpoint of the peer's gateway is known yet")
	}
	endpoint := e.queue[0]
	host, port, err := v1alpha1.SplitEndpoint(endpoint)
	if err != nil {
		return netip.AddrPort{}, err
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		addr, err = e.resolve(ctx, host)
	}
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("endpoint %q: %w", endpoint, err)
	}
	return netip.AddrPortFrom(addr.Unmap(), port), nil
}

// resolve finds the address of a name. After one that has not answered comes the
// next one of the name's, in the order of numbers.
func (e *endpoints) resolve(ctx context.Context, name string) (netip.Addr, error) {
	before, known := e.known[name]
	if known && !e.stale {
		return before, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	addrs, err := e.lookup(ctx, "ip", name)
	e.stale, e.unknown = false, nil
	if err != nil || len(addrs) == 0 {
		err = cmp.Or(err, errors.New("it has no address"))
		if e.unknown = fmt.Errorf("endpoint %q: %w", name, err); known {
			return before, nil // better than none
		}
		return netip.Addr{}, err
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	addr := addrs[0]
	if i := slices.IndexFunc(addrs, func(a netip.Addr) bool { return known && a.Compare(before) > 0 }); i >= 0 {
		addr = addrs[i]
	}
	e.known[name] = addr
	return addr, nil
}

// A knock is a datagram to an endpoint that is not in use. It finds out whether packets sent there would be refused: a
// node refuses them until its kube-proxy knows the Service's port, with an ICMP port unreachable. WireGuard itself never
// answers what is not its own, so that nothing comes says nothing.
type knock struct {
	conn net.Conn
	to   netip.AddrPort
	// busy says that nodes sent packets by the tunnel already.
	busy bool
	// until is how long an answer may take.
	until time.Time
}

// minKnockTime is how long the answer to a knock may take at least.
const minKnockTime = 20 * time.Millisecond

// newKnock sends it. rtt is what an answer from there takes.
func newKnock(to netip.AddrPort, busy bool, rtt time.Duration) (*knock, error) {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err == nil {
		if _, err = conn.Write([]byte{0}); err != nil {
			_ = conn.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("send to endpoint %s: %w", to, err)
	}
	return &knock{conn, to, busy, time.Now().Add(max(2*rtt, minKnockTime))}, nil
}

// refused ends the knock, and says whether it was.
func (k *knock) refused() bool {
	defer func() { _ = k.conn.Close() }()
	// An error that the socket has is returned first, whatever the deadline.
	_, err := k.conn.Write([]byte{0})
	return errors.Is(err, syscall.ECONNREFUSED)
}

const (
	// redialFirst and redialLater are the times without an answer after which a client
	// starts another handshake: while it was never answered, and later. WireGuard itself
	// waits 5 s, and 15 s if the server forgot the session. They grow to redialMost.
	redialFirst, redialLater, redialMost = 300 * time.Millisecond, time.Second, 2 * time.Second
	// minUnanswered is how many probes in a row have to be unanswered before a session
	// that has worked counts as down. On a bad link or a busy machine some are lost, and a
	// new handshake would drop all packets on their way.
	minUnanswered = 5
	// oneWayTimeout is the time without an answer after which a session is down even
	// though packets come from the peer: they may pass in one direction only.
	oneWayTimeout = 6 * time.Second
)

// redialer watches a tunnel's session, and decides when a client starts another
// handshake.
type redialer struct {
	// downSince is zero while the session works. redialed is when the last handshake was
	// started.
	downSince, redialed time.Time
	// lastReceived is when something last came from the peer.
	lastReceived time.Time
}

// observe takes what was measured, and whether anything has come from the peer. It returns
// whether the session is down.
func (r *redialer) observe(probes tunnel.ProbeStats, received bool) bool {
	if received {
		r.lastReceived = time.Now()
	}
	switch {
	case !r.sessionDown(probes):
		r.downSince = time.Time{}
	case r.downSince.IsZero():
		r.downSince = time.Now()
	}
	return !r.downSince.IsZero()
}

// sessionDown goes by probes, and by when something last came from the peer: then
// answers may only be late on a busy machine.
func (r *redialer) sessionDown(probes tunnel.ProbeStats) bool {
	if probes.LastReply.IsZero() {
		return true
	}
	silent := time.Since(probes.LastReply)
	if silent <= probeInterval+redialLater || probes.Unanswered < minUnanswered {
		return false
	}
	return time.Since(r.lastReceived) >= redialLater || silent >= oneWayTimeout
}

// shouldRedial says that another handshake is to be started. A server may begin to
// answer at any moment, so the first attempts follow each other fast. From far away an
// answer takes longer: each attempt gets a third of the time that all have taken. Where
// the peer has sent something since the last attempt, the handshake continues: the
// answers to probes come after it.
func (r *redialer) shouldRedial(probes tunnel.ProbeStats) bool {
	if r.downSince.IsZero() {
		return false
	}
	since := time.Since(r.redialed)
	if r.lastReceived.After(r.redialed) && time.Since(r.lastReceived) < redialMost && since < oneWayTimeout {
		return false
	}
	least := lo.Ternary(probes.LastReply.IsZero(), redialFirst, redialLater)
	return since >= min(max(time.Since(r.downSince)/3, least), redialMost)
}
