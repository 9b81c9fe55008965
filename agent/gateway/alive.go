package gateway

import (
	"context"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"github.com/samber/lo"
	"github.com/samber/lo/it"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/liveness"
)

const (
	// askLife is how long a node counts as alive after a question to this gateway. A node asks the gateway of a plane
	// that it does not use once a second, and once in 10 s in a cluster of 5,000 nodes.
	askLife = 30 * time.Second
	// handshakeLife is how long another gateway counts as alive after it has written a handshake. WireGuard passes no
	// packets without a new one after 180 s (Reject-After-Time, section 6.1 of its paper), and a gateway writes that
	// within 5 s.
	handshakeLife = 200 * time.Second
)

// askers are the cluster's nodes, or the peer's gateway, and when each last asked this gateway a question
// (pkg/liveness). A dead node stops asking, while its last report remains in the API.
type askers struct {
	mu    sync.Mutex
	known map[netip.Addr]asker
	// last is when any of them last asked. used is when one last reported that it sends packets through this gateway, or
	// that it stopped.
	last, used time.Time
}

// asker holds the time of the last question, or when the asker became known if it has not asked yet.
type asker struct {
	at       time.Time
	hasAsked bool
	// sends is when it last reported that it sends packets, zero if it has reported the opposite since.
	sends time.Time
}

// asks reports whether it has asked recently.
func (n asker) asks() bool { return n.hasAsked && n.recent() }

func (n asker) recent() bool { return time.Since(n.at) < askLife }

// isUser reports whether it sends packets through this gateway.
func (n asker) isUser() bool { return time.Since(n.sends) < userGone }

// know sets the known addresses. It gives new ones time to ask. Questions from other addresses are ignored, which
// limits the number of entries.
func (s *askers) know(addrs ...netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = lo.SliceToMap(addrs, func(addr netip.Addr) (netip.Addr, asker) {
		n, known := s.known[addr]
		if !known {
			n.at = time.Now()
		}
		return addr, n
	})
}

// knows reports whether an address is known.
func (s *askers) knows(addr netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known := s.known[addr]
	return known
}

// note records a question, and reports whether its sender is known.
func (s *askers) note(by netip.Addr, sends bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, known := s.known[by]
	if !known {
		return false
	}
	s.last = time.Now()
	if sends || n.isUser() {
		s.used = s.last
	}
	n = asker{at: s.last, hasAsked: true}
	if sends {
		n.sends = s.last
	}
	s.known[by] = n
	return true
}

// inUse reports whether packets are sent through this gateway, or were a moment ago.
func (s *askers) inUse() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.used) < inUse || it.ContainsBy(maps.Values(s.known), asker.isUser)
}

// look reports whether a node asks, and whether it is gone: others ask, but it does not. Both are false for a new
// node. They are also false if no node asks, as in a peering of one plane, or while all node agents restart.
func (s *askers) look(node netip.Addr) (asks, gone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.known[node]
	return n.asks(), !n.recent() && time.Since(s.last) < askLife
}

// count returns how many nodes ask.
func (s *askers) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return it.CountBy(maps.Values(s.known), asker.asks)
}

// claim is a node's report that it reaches the peer through a plane.
type claim struct {
	node netip.Addr
	// own is set if the node also reports this for this gateway's plane.
	own bool
}

// handshake is the last one that a gateway has written, and when this gateway first saw it.
type handshake struct {
	at   *metav1.Time
	seen time.Time
}

// readReports extracts everything that the Peering's status depends on from the reports of nodes and gateways.
func (a *agent) readReports(p *v1alpha1.Peering, nodes []v1alpha1.NodeNetwork) {
	var known []netip.Addr
	claims := map[int32][]claim{}
	for addr, n := range members(p, nodes) {
		known = append(known, addr)
		reaches := func(plane int32) bool { return ptr.Deref(n.Gateway(p.Name, plane), v1alpha1.NodeGateway{}).Ready }
		own := reaches(a.local.plane)
		for _, plane := range p.Spec.Planes {
			if reaches(plane.Index) {
				claims[plane.Index] = append(claims[plane.Index], claim{addr, own})
			}
		}
	}
	a.nodesAsk.know(known...)
	a.claims = claims
	a.handshakes = lo.SliceToMap(p.Status.Planes, func(s v1alpha1.PlaneStatus) (int32, handshake) {
		h, known := a.handshakes[s.Index]
		if !known || !h.at.Equal(s.LastHandshake) {
			h = handshake{s.LastHandshake, time.Now()}
		}
		return s.Index, h
	})
	a.degraded, a.nodes = degraded(p, nodes), countNodes(p, a.local.plane, nodes, &a.nodesAsk)
}

// members returns the nodes that have an address in the overlay, by that address. It skips reports that are being
// deleted, or that remain from another internal range.
func members(p *v1alpha1.Peering, nodes []v1alpha1.NodeNetwork) iter.Seq2[netip.Addr, *v1alpha1.NodeNetwork] {
	return func(yield func(netip.Addr, *v1alpha1.NodeNetwork) bool) {
		for i := range nodes {
			addr := nodes[i].Status.Address.Addr
			isMember := nodes[i].DeletionTimestamp.IsZero() && p.Spec.Local.InternalCIDR.Contains(addr)
			if isMember && !yield(addr, &nodes[i]) {
				return
			}
		}
	}
}

// planesAlive returns the planes through which packets pass: this gateway's own as measured, the others as reported by
// nodes that are alive. If these nodes reach the peer only through other planes, its own does not count either: the
// other gateways know only what the nodes report.
func (a *agent) planesAlive(own v1alpha1.PlaneStatus) map[int32]bool {
	alive, confirmed, asking := map[int32]bool{}, map[int32]int{}, a.nodesAsk.count()
	others := 0
	for plane, claims := range a.claims {
		confirmed[plane] = lo.CountBy(claims, func(c claim) bool {
			asks, _ := a.nodesAsk.look(c.node)
			return asks
		})
		if plane != own.Index {
			others += confirmed[plane]
		}
	}
	for _, plane := range a.peering.Spec.Planes {
		if a.writes(plane.Index) && !a.starts() {
			alive[plane.Index] = slices.ContainsFunc(a.claims[plane.Index], func(c claim) bool { return a.believes(c, plane.Index) })
		} else {
			// A node that is compromised or does not reach the API server does not withdraw its report.
			alive[plane.Index] = 2*confirmed[plane.Index] > asking
		}
	}
	alive[own.Index] = own.Connected && (confirmed[own.Index] > 0 || others == 0)
	return alive
}

// starts reports whether this gateway has been listening for less time than nodes get to ask.
func (a *agent) starts() bool { return time.Since(a.started) < askLife }

// isUnsure reports whether the conditions must stay unchanged: this gateway is starting, and does not know yet
// whether packets pass through the other planes. They may change if its own plane works and the peering is not
// reported as connected.
func (a *agent) isUnsure(alive map[int32]bool) bool {
	own := a.local.plane
	if !a.starts() || alive[own] && !meta.IsStatusConditionTrue(a.peering.Status.Conditions, v1alpha1.ConditionConnected) {
		return false
	}
	return slices.ContainsFunc(a.peering.Spec.Planes, func(p v1alpha1.Plane) bool { return p.Index != own && !alive[p.Index] })
}

// believes reports whether a claim is still true. If a node is silent, either it is dead or this gateway is cut off
// from it. The second case must not look like the end of the peering. There the node reports that it does not reach
// the peer through this gateway, and the other plane's gateway continues to write.
func (a *agent) believes(c claim, plane int32) bool {
	asks, gone := a.nodesAsk.look(c.node)
	return asks || !(gone && c.own) && a.writes(plane)
}

// writes reports whether another plane's tunnel works and its gateway reaches the API server.
func (a *agent) writes(plane int32) bool {
	h := a.handshakes[plane]
	return h.at != nil && time.Since(h.seen) < handshakeLife
}

// isWriter reports whether this gateway writes the conditions. The writer is the gateway of the lowest plane through
// which packets pass, among those that can write. If there is none, every gateway that is alive writes, since none
// knows which others are alive. They write the same values.
func (a *agent) isWriter(alive map[int32]bool) bool {
	own := a.local.plane
	for _, p := range a.peering.Spec.Planes {
		if alive[p.Index] && (p.Index == own || a.writes(p.Index)) {
			return p.Index == own
		}
	}
	return true
}

// disputes reports whether to rewrite Connected after a node agent or another gateway has overwritten it. It returns
// false if that gateway may be right: two gateways must not overwrite each other forever.
func (a *agent) disputes(alive map[int32]bool, mine *metav1.Condition) bool {
	own, there := a.local.plane, metav1.ConditionUnknown
	if c := meta.FindStatusCondition(a.peering.Status.Conditions, v1alpha1.ConditionConnected); c != nil {
		there = c.Status
	}
	return there != mine.Status && (alive[own] || there == metav1.ConditionUnknown ||
		!slices.ContainsFunc(a.peering.Spec.Planes, func(p v1alpha1.Plane) bool { return p.Index != own && a.writes(p.Index) }))
}

const (
	// perNode is added to the time between a node's questions for each node of the cluster. So a gateway gets at most
	// 5,000 questions a second.
	perNode = 200 * time.Microsecond
	// inUse is how long a gateway still counts as in use after the last user stops: some packets are on the way.
	// useInterval is how often it checks.
	useInterval, inUse = 100 * time.Millisecond, 300 * time.Millisecond
	// userGone is how long after its last question a sender of packets counts as gone. Each of 5,000 nodes asks once a
	// second, and later on a busy machine.
	userGone = 2 * time.Second
	// idleQuestions is the factor for the time between questions to the peer's gateway while no node of this cluster
	// sends packets. Each question costs both gateways an encrypted packet. The first packet that a node sends restores
	// the usual time immediately.
	idleQuestions = 2
	// leaveTimeout is how long a gateway that ends waits for nodes to use another one. It is shorter than the kubelet's
	// timeout. leaveLeast is for nodes that have just begun to send and have not reported it yet.
	leaveTimeout, leaveLeast = 5 * time.Second, time.Second
	// introTimeout is how long a starting gateway waits for nodes to know it before the peer's nodes may use it: until
	// then, nodes accept no packets from its address. A node that is gone never learns it.
	introTimeout = 5 * time.Second
)

// livenessAnswer returns this gateway's answer to the question whether packets pass through it. The asker is a node,
// or the peer's gateway, which knows the tunnel itself.
func (a *agent) livenessAnswer(asker netip.Addr) liveness.Answer {
	out := liveness.Answer{Interval: perNode * time.Duration(len(ptr.Deref(a.served.Load(), desired{}).nat.Nodes))}
	switch session := a.session.Load(); {
	case !a.works.Load():
	case a.peerAsks.knows(asker):
		// A gateway's own measurement of the tunnel must not come back to it through the other one.
		out.Up, out.Clean, out.Interval = true, time.Hour, 0
		out.Leaving = !a.known.Load() && time.Since(a.started) < introTimeout
	case session == nil:
		out.Up = true // the node already knows of another plane, and has sent through this one until now
	default:
		out.State = session.State()
	}
	out.Leaving = out.Leaving || a.leaving.Load()
	return out
}

// isKnown reports whether all nodes that have a link to this gateway's plane have it to this pod.
func (a *agent) isKnown(nodes []v1alpha1.NodeNetwork) bool {
	return !slices.ContainsFunc(nodes, func(n v1alpha1.NodeNetwork) bool {
		return ptr.Deref(n.Gateway(a.Peering, a.local.plane), v1alpha1.NodeGateway{}).GatewayIP.Addr != a.podIP
	})
}

// answerLiveness answers questions whether packets pass until ctx ends, and tells the askers when that changes.
func (a *agent) answerLiveness(ctx context.Context) {
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-a.news:
				a.responder.Push()
				a.measured.Send()
			}
		}
	}()
	a.serve(ctx, "answer liveness questions", liveness.Port, a.responder.Serve)
}

// recordQuestion records a question of a node, or of the peer's gateway, which also speaks for its own nodes.
func (a *agent) recordQuestion(by netip.Addr, q liveness.Question) {
	session := a.session.Load()
	switch {
	case a.peerAsks.note(by, q.InUse):
		if session != nil {
			session.Told(q)
		}
	case a.nodesAsk.note(by, q.InUse) && q.InUse: // others are unknown, and the number of their addresses is not limited
		a.useBegins.Send()
	}
}

// fullSize returns the size of packets that nodes of this cluster send, 0 while they send none. Packets of the peer's
// nodes do not count: the peer asks for them itself, and each side would keep the other one asking forever.
func (a *agent) fullSize() int {
	if a.nodesAsk.inUse() {
		return ptr.Deref(a.served.Load(), desired{}).mtu
	}
	return 0
}

// watchUse makes the session ask more often, and also with packets of full size, while nodes send packets.
func (a *agent) watchUse(ctx context.Context) {
	for used := false; ; {
		news, next := a.useBegins, (<-chan time.Time)(nil)
		if used {
			news, next = nil, time.After(useInterval)
		}
		select {
		case <-ctx.Done():
			return
		case <-news:
		case <-next:
		}
		size := a.fullSize()
		used = size > 0
		if session := a.session.Load(); session != nil {
			session.Use(used, size)
		}
	}
}

// leave announces that this gateway is about to end, and returns when packets are no longer sent through it. If there
// is no other plane, nobody asks, and it returns immediately.
func (a *agent) leave() {
	if a.session.Load() == nil {
		return
	}
	a.leaving.Store(true)
	a.responder.Push()
	a.measured.Send()
	begun := time.Now()
	_ = wait.PollUntilContextTimeout(context.Background(), inUse/10, leaveTimeout, true, func(context.Context) (bool, error) {
		return time.Since(begun) >= leaveLeast && !a.nodesAsk.inUse() && !a.peerAsks.inUse(), nil
	}) // anyone who sends for longer loses packets
}

// follows reports whether another pod of this plane is about to end. Two pods with the same key would take each
// other's packets. A killed pod never reports that it has left, so the wait is limited.
func (a *agent) follows(last *v1alpha1.PlaneStatus) bool {
	return last != nil && last.Leaving && !slices.Contains(a.PodIPs, last.PodIP.Addr) && time.Since(a.started) < leaveTimeout+leaveLeast
}

// hasLeft tells the plane's next gateway, which waits for it, that this one has left.
func (a *agent) hasLeft() error {
	s, ok := a.Status("")
	if !s.plane.Leaving || !ok {
		return nil
	}
	s.plane.Leaving = false
	ctx, cancel := context.WithTimeout(context.Background(), leaveLeast)
	defer cancel()
	return a.writeStatus(ctx, s)
}
