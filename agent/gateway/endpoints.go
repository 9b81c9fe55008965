package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/exchange"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/liveness"
	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/pkg/wire"
)

// lookupTimeout is how long a name server may take, while everything else waits.
const lookupTimeout = 2 * time.Second

// endpoints are the addresses and names at which the server may be reached, tried in turn.
//
// A name is resolved before its first use, and again if its address has not answered. Until then the address stays:
// name servers return a load balancer's addresses in a different order each time. A name server that does not answer
// is no reason to leave an endpoint that does.
type endpoints struct {
	// hosts are all endpoints as they were set, and queue the same in the order of attempts. The first in queue is the
	// current one.
	hosts, queue []string
	// known maps names to their last addresses. stale is set if the current address has not answered since.
	known map[string]netip.Addr
	stale bool
	// preferred is the best endpoint or empty, and pendingSince since when it is unused. tryAt is when to try it next,
	// and tryGap the last pause.
	preferred    string
	tryAt        time.Time
	tryGap       time.Duration
	pendingSince time.Time
	// unknown is why the last lookup failed, nil if it succeeded.
	unknown error
	// lookup resolves a name.
	lookup func(ctx context.Context, network, name string) ([]netip.Addr, error)
}

func newEndpoints() endpoints {
	return endpoints{known: map[string]netip.Addr{}, lookup: net.DefaultResolver.LookupNetIP}
}

// resolveOverTCP makes a resolver use TCP. Answers to a UDP socket could be recognized only by their source port, which
// any pod can use (see nat.Gateway).
func resolveOverTCP(r *net.Resolver) {
	r.PreferGo = true
	r.Dial = func(ctx context.Context, _, address string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}
}

// set replaces the list. The current endpoint stays while it answers, if the new list contains it. After that, a new
// list is tried from its beginning. If prefer is set, the first endpoint is the preferred one, if it is an address.
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
		e.moveToFront(before[0])
	}
}

// moveToFront moves an endpoint to the front of the queue, if it is in it.
func (e *endpoints) moveToFront(endpoint string) {
	if i := slices.Index(e.queue, endpoint); i > 0 {
		e.queue = slices.Insert(slices.Delete(e.queue, i, i+1), 0, endpoint)
	}
}

// firstTryGap and lastTryGap are the shortest and the longest pause between attempts to use the preferred endpoint.
// Nodes return to a plane some seconds after it works again, so the first attempts cost nothing.
const firstTryGap, lastTryGap = 100 * time.Millisecond, 10 * time.Minute

// busyDelay is how long the preferred endpoint is not tried while nodes send packets, since packets that it does not
// forward are lost. After that a try is worth the risk, as the plane otherwise depends on one more node. busyGap is
// the time between two checks.
const busyDelay, busyGap = time.Minute, time.Second

// recovered resets the pauses, because the tunnel works again or another endpoint is preferred. Then that is tried
// soon.
func (e *endpoints) recovered() { e.tryAt, e.tryGap, e.pendingSince = time.Time{}, 0, time.Time{} }

// nextAttempt returns the preferred endpoint if a working tunnel sends packets to another one, with increasing pauses.
// Otherwise it returns an invalid one. busy is set if nodes send packets through the tunnel. If the preferred
// endpoint does not forward packets, the peer continues to use the previous path, and WireGuard follows it back. It
// may also do so needlessly, because of packets that were sent before.
//
// again is how long to wait before the next call, 0 if no call is needed.
func (e *endpoints) nextAttempt(now time.Time, used netip.AddrPort, busy bool) (preferred netip.AddrPort, again time.Duration) {
	preferred, err := netip.ParseAddrPort(e.preferred)
	switch {
	case err != nil || !used.IsValid():
		return netip.AddrPort{}, 0
	case used == preferred:
		e.moveToFront(e.preferred)
		return netip.AddrPort{}, 0
	case now.Before(e.tryAt):
		return netip.AddrPort{}, e.tryAt.Sub(now)
	}
	if e.pendingSince.IsZero() {
		e.pendingSince = now
	}
	if busy && now.Sub(e.pendingSince) < busyDelay {
		return netip.AddrPort{}, busyGap
	}
	if busy {
		e.tryGap = max(e.tryGap, busyDelay)
	}
	e.tryGap = min(max(2*e.tryGap, firstTryGap), lastTryGap)
	e.tryAt = now.Add(e.tryGap)
	return preferred, e.tryGap
}

// next moves to the next endpoint.
func (e *endpoints) next() {
	e.stale = true
	if len(e.queue) > 0 {
		e.queue = append(e.queue[1:], e.queue[0])
	}
}

// current returns the endpoint to try now.
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

// resolve returns the address of a name. If the previous address has not answered, it returns the name's next one in
// numerical order.
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
	addr := addrs[max(0, slices.IndexFunc(addrs, func(a netip.Addr) bool { return known && a.Compare(before) > 0 }))]
	e.known[name] = addr
	return addr, nil
}

// A portCheck sends a datagram to an endpoint that is not in use, to find out whether packets to it would be refused.
// A node refuses them with an ICMP port unreachable until its kube-proxy knows the Service's port. WireGuard itself
// answers no foreign packets, so silence proves nothing.
type portCheck struct {
	conn net.Conn
	to   netip.AddrPort
	// busy is set if nodes already sent packets through the tunnel.
	busy bool
	// until is when the check ends.
	until time.Time
}

// minCheckTime is the minimum time to wait for an answer to a check.
const minCheckTime = 20 * time.Millisecond

// newPortCheck sends the datagram, from a port of tunnels: nodes let these through to fewer destinations (nat.Node). rtt is
// the round trip time to the endpoint.
func newPortCheck(to netip.AddrPort, busy bool, rtt time.Duration) (*portCheck, error) {
	from := &net.UDPAddr{Port: int(wire.EndOfRange(tunnel.ListenPort))} // the last one that the tunnel itself would use
	conn, err := net.DialUDP("udp", from, net.UDPAddrFromAddrPort(to))
	if err == nil {
		if _, err = conn.Write([]byte{0}); err != nil {
			_ = conn.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("send to endpoint %s: %w", to, err)
	}
	return &portCheck{conn, to, busy, time.Now().Add(max(2*rtt, minCheckTime))}, nil
}

// refused ends the check, and reports whether the datagram was refused.
func (c *portCheck) refused() bool {
	defer func() { _ = c.conn.Close() }()
	// A pending error of the socket is returned first, whatever the deadline.
	_, err := c.conn.Write([]byte{0})
	return errors.Is(err, syscall.ECONNREFUSED)
}

// redialFirst and redialLater are the times without an answer after which a client starts another handshake: before the
// first answer, and later. WireGuard itself waits 5 s, and 15 s if the server has lost the session. They grow to
// redialMost.
const redialFirst, redialLater, redialMost = 300 * time.Millisecond, time.Second, 2 * time.Second

// dialer decides which endpoint a client calls, and when it starts another handshake.
type dialer struct {
	endpoints endpoints
	// check is the pending check of the preferred endpoint, nil if there is none.
	check *portCheck
	// downSince is zero while the session works. redialed is when the last handshake started.
	downSince, redialed time.Time
	// lastReceived is when a packet last came from the peer, and unanswered how many handshakes were started since.
	lastReceived time.Time
	unanswered   int
	// cookies is how many replies with a cookie had come before the last handshake.
	cookies uint64
}

// portTries is how many handshakes get no answer before the client calls from another port each time. One address may
// lead to several nodes, and the network may keep sending the packets of a known flow to one that is gone.
const portTries = 3

// nextPort returns the port for the next handshake, given the last one's.
func (c *dialer) nextPort(port uint16) uint16 {
	if c.unanswered++; c.unanswered <= portTries {
		return port
	}
	return lo.Ternary(port == wire.EndOfRange(tunnel.ListenPort), tunnel.ListenPort, port+1)
}

// cookieTimeout is longer than the time after which WireGuard repeats a handshake: 5 to 5.33 s (Rekey-Timeout, section
// 6.1 of its paper).
const cookieTimeout = 6 * time.Second

// awaitsCookie reports whether the server has answered the last handshake with a cookie. WireGuard itself repeats that
// handshake with the cookie, which another one from here would discard. Anyone can make a server do so by sending it
// many handshakes.
func (c *dialer) awaitsCookie() bool {
	if time.Since(c.redialed) >= cookieTimeout {
		return false
	}
	replies, err := nat.CookieReplies()
	return err == nil && replies > c.cookies
}

// observe records whether the session is lost.
func (c *dialer) observe(lost bool) {
	switch {
	case lost && c.downSince.IsZero():
		c.downSince = time.Now()
	case !lost && !c.downSince.IsZero():
		// Nodes return to this plane after some seconds.
		c.downSince = time.Time{}
		c.endpoints.recovered()
	}
}

// shouldRedial reports whether to start another handshake. A server may begin to answer at any moment, so the first
// attempts follow each other fast. From far away an answer takes longer, so each attempt gets a third of the time
// since the session went down. If the peer has sent something since the last attempt, the handshake continues:
// answers to probes come after it.
func (c *dialer) shouldRedial(probes liveness.ProbeStats) bool {
	if c.downSince.IsZero() {
		return false
	}
	since := time.Since(c.redialed)
	if c.lastReceived.After(c.redialed) && time.Since(c.lastReceived) < redialMost && since < oneWayTimeout {
		return false
	}
	least := lo.Ternary(probes.LastReply.IsZero(), redialFirst, redialLater)
	return since >= min(max(time.Since(c.downSince)/3, least), redialMost)
}

// preferred returns the preferred endpoint if it is to be called now: another one is in use, and it has not refused a
// datagram. It also returns how long to wait before the next call, 0 if that does not matter. The round trip time is that to
// the peer, and busy is set if nodes send packets through the tunnel.
func (c *dialer) preferred(used netip.AddrPort, busy bool, rtt time.Duration) (to netip.AddrPort, again time.Duration, err error) {
	if check := c.check; check != nil {
		if left := time.Until(check.until); left > 0 {
			return to, left, nil
		}
		c.check = nil
		if !check.refused() && (check.busy || !busy) {
			to = check.to
		}
		return to, firstTryGap, nil
	}
	preferred, again := c.endpoints.nextAttempt(time.Now(), used, busy)
	if !preferred.IsValid() {
		return to, again, nil
	}
	if c.check, err = newPortCheck(preferred, busy, rtt); err != nil {
		return to, again, err
	}
	return to, time.Until(c.check.until), nil
}

// announcements are those of this gateway and of the peer's.
type announcements struct {
	// channel connects to the peer's gateway, nil before the first connection.
	channel *exchange.Channel
	// announced is the usable part of the peer's announcement, nil if there is none. own are the announced endpoints that
	// are addresses of this cluster.
	announced *v1alpha1.RemoteAnnouncement
	own       string
}

// announcement returns what to announce to the peer: the addresses of all nodes, and the endpoints at which the Service
// leads to the gateway of this plane. Those on the gateway's own node come first.
func announcement(ownNode string, nodes []v1alpha1.NodeNetwork, svc *corev1.Service, plane int32) (out exchange.Announcement) {
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(n v1alpha1.NodeNetwork) bool { return !n.DeletionTimestamp.IsZero() })
	if i := slices.IndexFunc(nodes, func(n v1alpha1.NodeNetwork) bool { return n.Name == ownNode }); i > 0 {
		nodes[0], nodes[i] = nodes[i], nodes[0]
	}
	out.NodeIPs = lo.FlatMap(nodes, func(n v1alpha1.NodeNetwork, _ int) []v1alpha1.IP { return n.Status.NodeIPs })
	out.NodeIPs = slices.DeleteFunc(out.NodeIPs, func(ip v1alpha1.IP) bool { return !ip.IsValid() })
	out.NodeIPs = slices.Compact(slices.SortedFunc(slices.Values(out.NodeIPs), func(a, b v1alpha1.IP) int { return a.Compare(b.Addr) }))
	port := v1alpha1.ServicePort(svc, plane)
	if port == nil {
		return out
	}
	add := func(addr netip.Addr, port int32) {
		e := netip.AddrPortFrom(addr.Unmap(), uint16(port)).String()
		if addr.IsValid() && port > 0 && len(out.Endpoints) < exchange.MaxEndpoints && !slices.Contains(out.Endpoints, e) {
			out.Endpoints = append(out.Endpoints, e)
		}
	}
	switch svc.Spec.Type {
	case corev1.ServiceTypeLoadBalancer:
		for _, in := range svc.Status.LoadBalancer.Ingress {
			addr, _ := netip.ParseAddr(in.IP) // none if it has a name
			add(addr, port.Port)
		}
	case corev1.ServiceTypeNodePort:
		// Take one address of each node first, so that the announcement covers as many nodes as possible. Alternate between
		// private and public ones, and between families: the peer may use one of these kinds only.
		ips := lo.Map(nodes, func(n v1alpha1.NodeNetwork, _ int) []v1alpha1.IP { return n.Status.NodeIPs })
		kinds := lo.PartitionBy(lo.Interleave(ips...), func(ip v1alpha1.IP) [2]bool {
			return [2]bool{ipam.IsPrivateAddr(ip.Unmap()), ip.Unmap().Is4()}
		})
		for _, ip := range lo.Interleave(kinds...) {
			add(ip.Addr, port.NodePort)
		}
	}
	return out
}

// endpoints returns the endpoints to try in turn. First come those that the peer's gateway has announced, then those
// announced by its other planes' gateways, and then those that the CLI wrote. podIPs are this pod's addresses.
//
// It also updates announced. Before the first announcement, that is what the previous gateway learned.
func (a *announcements) endpoints(p *v1alpha1.Peering, plane *v1alpha1.Plane, nodes []v1alpha1.NodeNetwork, podIPs []netip.Addr) []string {
	announced := ptr.Deref(p.PlaneStatus(plane.Index), v1alpha1.PlaneStatus{}).Remote
	if a.channel != nil {
		announced = cmp.Or(a.channel.Received(), announced)
	}
	// It is the API server's address for pods. A name cannot clash with an address that a peer announces.
	api, _ := netip.ParseAddr(os.Getenv("KUBERNETES_SERVICE_HOST"))
	own := append([]netip.Addr{api}, podIPs...)
	got, leftOut := usableEndpoints(p, plane, nodes, own, ptr.Deref(announced, exchange.Announcement{}))
	a.own = strings.Join(leftOut, ", ")
	if a.announced = nil; len(got.Endpoints)+len(got.NodeIPs) > 0 {
		a.announced = &got
	}
	var elsewhere []string
	if others := otherPlanesEndpoints(p, plane); len(others) > 0 {
		usable, _ := usableEndpoints(p, plane, nodes, own, exchange.Announcement{Endpoints: others})
		elsewhere = usable.Endpoints
	}
	return lo.Uniq(slices.Concat(got.Endpoints, elsewhere, plane.Endpoints))
}

// otherPlanesEndpoints returns the addresses that the gateways of the peer's other planes have announced, with this
// plane's port. So a plane that has missed a change learns about it through one that works.
func otherPlanesEndpoints(p *v1alpha1.Peering, plane *v1alpha1.Plane) (out []string) {
	var port uint16
	for _, e := range plane.Endpoints {
		if _, n, err := v1alpha1.SplitEndpoint(e); err == nil {
			port = n
		}
	}
	for _, s := range p.Status.Planes {
		if s.Index == plane.Index || s.Remote == nil || port == 0 {
			continue
		}
		for _, e := range s.Remote.Endpoints {
			if announced, err := netip.ParseAddrPort(e); err == nil {
				out = append(out, netip.AddrPortFrom(announced.Addr(), port).String())
			}
		}
	}
	return out
}

// usableEndpoints returns the usable part of a peer's announcement, and the endpoints that are addresses of this
// cluster. own are such addresses other than those of its nodes and pods. Nodes and pods may have very many, so only the
// announced ones are looked up.
func usableEndpoints(p *v1alpha1.Peering, plane *v1alpha1.Plane, nodes []v1alpha1.NodeNetwork, own []netip.Addr, announced exchange.Announcement) (usable exchange.Announcement, leftOut []string) {
	ranges := lo.Map(p.Spec.Local.Pods, func(m v1alpha1.CIDRMapping, _ int) netip.Prefix { return m.Real.Prefix })
	ranges = append(ranges, p.Spec.Local.InternalCIDR.Prefix)
	ranges = append(ranges, v1alpha1.Prefixes(p.Spec.Local.ServiceCIDRs)...)
	own = append(own, lo.Map(p.Spec.Local.Hosts, func(h v1alpha1.AddressMapping, _ int) netip.Addr { return h.Real.Addr })...)
	wanted := lo.Keyify(lo.Map(announced.NodeIPs, func(ip v1alpha1.IP, _ int) netip.Addr { return ip.Addr }))
	for _, e := range announced.Endpoints {
		if addrPort, err := netip.ParseAddrPort(e); err == nil {
			wanted[addrPort.Addr()] = struct{}{}
		}
	}
	for _, n := range nodes {
		ranges = append(ranges, v1alpha1.Prefixes(n.Status.PodCIDRs)...)
		for _, ips := range [][]v1alpha1.IP{n.Status.NodeIPs, n.Status.PodIPs, n.Status.Resolvers} { // not copied, as there may be very many
			for _, ip := range ips {
				if _, is := wanted[ip.Addr]; is {
					own = append(own, ip.Addr)
				}
			}
		}
	}
	// An invalid address yields an invalid prefix, which matches nothing.
	ranges = append(ranges, lo.Map(own, func(a netip.Addr, _ int) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) })...)
	f := exchange.Filter{Own: ranges, Tunneled: p.RemoteRanges(), Endpoints: plane.Endpoints, NodeIPs: p.Spec.Remote.NodeIPs}
	return f.Usable(announced)
}
