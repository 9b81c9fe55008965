package gateway

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/samber/lo"
	"github.com/samber/lo/it"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/liveness"
	"github.com/liqonet/liqonet/pkg/metrics"
	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/pkg/udp"
)

const (
	// intervalPerNode is added to the time between a node's requests for each node that sends packets through this
	// gateway. So it gets about 5,000 requests a second at most.
	intervalPerNode = 200 * time.Microsecond
	// receiveBuffer is the size of the socket's queue, in bytes. If this process is held up for a moment, requests of
	// 5,000 nodes wait there: all of them must not see a failure at the same time. Small ones take 0.75 kB each.
	receiveBuffer = 4 << 20
	// usageTimeout is how long a gateway still counts as in use after the last user stops: some packets are on the way.
	// useInterval is how often it checks.
	useInterval, usageTimeout = 100 * time.Millisecond, 300 * time.Millisecond
	// desertedAfter is how many intervals without any node's request mean that nodes do not reach this gateway. Idle
	// nodes wait for a third of them. minInterval is the shortest interval.
	desertedAfter, minInterval = 30, 100 * time.Millisecond
	// senderTimeout is how long after its last request a sender of packets counts as gone. Each of 5,000 nodes asks
	// once a second, and later on a busy machine.
	senderTimeout = 2 * time.Second
	// idleIntervalFactor is the factor for the time between requests to the peer's gateway while no node of this
	// cluster sends packets. Each request costs both gateways an encrypted packet. The first packet that a node sends
	// restores the usual time immediately.
	idleIntervalFactor = 2
	// drainTimeout is how long a gateway that ends waits for nodes to use another one. It is shorter than the kubelet's
	// timeout. minDrainTime is for nodes that have just begun to send and have not reported it yet.
	drainTimeout, minDrainTime = 5 * time.Second, time.Second
	// adoptionTimeout is how long a starting gateway waits for nodes to know it before the peer's nodes may use it:
	// until then, nodes accept no packets from its address. A node that is gone never learns it.
	adoptionTimeout = 5 * time.Second
)

// livenessServer replies to the nodes of its cluster and to the peer's gateway when they ask whether packets pass
// through it. Its methods are safe for concurrent use.
type livenessServer struct {
	log       *slog.Logger
	responder liveness.Responder
	// started is when this gateway began. isAdopted is set once all nodes send to it instead of the previous one.
	started   time.Time
	isAdopted atomic.Bool
	// served is what requesters depend on in the last desired state, nil before the first one. datapathReady is set if
	// the kernel matches that state except for single nodes' links.
	served        atomic.Pointer[served]
	datapathReady atomic.Bool
	// session asks the peer's gateway frequently whether the tunnel works. It is nil if the peering has no other plane.
	session atomic.Pointer[liveness.Session]
	// The requesters are the nodes, and the peer's gateway, which reports for its own nodes. trafficStarted signals
	// that a node sends packets.
	nodes, peerGateway requesters
	trafficStarted     notify.Signal
	// callers are the gateways that send probes with the peer's address.
	callers callers
	// senders is how many nodes send packets through this gateway.
	senders atomic.Int64
	// stateChanged signals that the tunnel has come up or gone down, and measured does the same for the loop.
	stateChanged, measured notify.Signal
	// leaving is set when this gateway is about to end.
	leaving atomic.Bool
}

// served is what requesters depend on in a desired state: its MTUs, and the number of nodes.
type served struct{ capacity, mtu, nodes int }

func newLivenessServer(log *slog.Logger) livenessServer {
	return livenessServer{
		log: log, started: time.Now(), trafficStarted: notify.NewSignal(), stateChanged: notify.NewSignal(), measured: notify.NewSignal(),
	}
}

// serve sets the desired state, and setWorks whether the kernel matches it. follow sets the session, nil for none.
func (s *livenessServer) serve(want desired) {
	s.served.Store(&served{want.capacity, want.mtu, len(want.nat.Nodes)})
}
func (s *livenessServer) setWorks(works bool)              { s.datapathReady.Store(works) }
func (s *livenessServer) follow(session *liveness.Session) { s.session.Store(session) }

// isLeaving reports whether this gateway is about to end.
func (s *livenessServer) isLeaving() bool { return s.leaving.Load() }

// run answers requests until ctx ends, and notifies the requesters when the answer changes.
func (s *livenessServer) run(ctx context.Context) {
	s.responder.State, s.responder.OnRequest = s.answer, s.handleRequest
	s.responder.Measured = s.handleProbe
	// Requests use IPv4, as the overlay and the tunnel carry nothing else.
	go loop.RunForever(ctx, s.log, "answer questions", func(ctx context.Context) error {
		config := net.ListenConfig{Control: udp.Options(unix.SOL_SOCKET, map[int]int{unix.SO_RCVBUFFORCE: receiveBuffer})}
		conn, err := config.ListenPacket(ctx, "udp4", fmt.Sprintf(":%d", liveness.Port))
		if err != nil {
			return err
		}
		return s.responder.Serve(ctx, conn)
	})
	go s.trackUsage(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.stateChanged:
			s.push()
		}
	}
}

// push notifies the requesters, and the loop, that the answer has changed.
func (s *livenessServer) push() {
	s.responder.Push()
	s.measured.Send()
}

// lastServed returns what serve has set last, the zero value before that.
func (s *livenessServer) lastServed() served { return ptr.Deref(s.served.Load(), served{}) }

// markAdopted records that all nodes send to this gateway.
func (s *livenessServer) markAdopted() {
	if !s.isAdopted.Swap(true) {
		s.stateChanged.Send()
	}
}

// healthInputs returns what is known here about the tunnel.
func (s *livenessServer) healthInputs() healthInputs {
	e := healthInputs{datapathReady: s.datapathReady.Load(), leaving: s.isLeaving()}
	if session := s.session.Load(); session != nil {
		e.hasSession, e.session = true, session.State()
	}
	return e
}

// answer returns whether packets pass through this gateway, as the answer to a request. The requester is a node, or the
// peer's gateway, which knows the tunnel itself.
func (s *livenessServer) answer(to netip.Addr) liveness.Answer {
	v := evaluate(s.healthInputs(), time.Now())
	if v.datapathReady && s.peerGateway.isKnown(to) {
		// A gateway's own measurement of the tunnel must not come back to it through the other one.
		isNew := !s.isAdopted.Load() && time.Since(s.started) < adoptionTimeout
		return liveness.Answer{State: liveness.State{Up: true, LossFree: time.Hour, Leaving: v.leaving || isNew || s.isDeserted(v)}}
	}
	return liveness.Answer{State: v.advertised, Interval: intervalPerNode * time.Duration(s.load(to))}
}

// load returns how many of the cluster's nodes the interval of one of them depends on. While it sends packets, these
// are the senders, but at least half of the nodes: many may begin at the same time.
func (s *livenessServer) load(node netip.Addr) int {
	all := s.lastServed().nodes
	if !s.nodes.sends(node) {
		return all
	}
	return min(max(int(s.senders.Load()), all/2), all)
}

// isDeserted reports whether this cluster's nodes do not ask this gateway, although there are other planes. Then the
// peer's packets would reach no node, although the tunnel works. If their agents do not run, no gateway is asked, and
// the peer's nodes stay where they are.
func (s *livenessServer) isDeserted(v tunnelHealth) bool {
	interval := max(intervalPerNode*time.Duration(s.lastServed().nodes), minInterval)
	return v.hasSession && s.nodes.isSilent(desertedAfter*interval)
}

// handleRequest records a request of a node, or of the peer's gateway, which also reports for its own nodes. It returns
// false for others: they are unknown, and the number of their addresses is not limited.
func (s *livenessServer) handleRequest(by netip.Addr, q liveness.Request) (known bool) {
	if s.peerGateway.record(by, q) {
		if session := s.session.Load(); session != nil {
			session.HandleReport(q)
		}
		return true
	}
	known = s.nodes.record(by, q)
	if known && q.InUse {
		s.trafficStarted.Send()
	}
	return known
}

// handleProbe records which of the peer's gateways has sent a probe, and returns the answer.
func (s *livenessServer) handleProbe(by netip.Addr, nonce [8]byte) (mtu uint16) {
	if s.peerGateway.isKnown(by) {
		s.callers.hear(nonce, time.Now())
	}
	return uint16(s.lastServed().capacity)
}

// inUse reports whether packets are sent through this gateway, in any direction.
func (s *livenessServer) inUse() bool { return s.nodes.inUse() || s.peerGateway.inUse() }

// fullSize returns the size of packets that nodes of this cluster send, 0 while they send none. Packets of the peer's
// nodes do not count: the peer asks for them itself, and each side would keep the other one asking forever.
func (s *livenessServer) fullSize() int {
	return lo.Ternary(s.nodes.inUse(), s.lastServed().mtu, 0)
}

// trackUsage makes the session ask more often, and also with packets of full size, while nodes send packets.
func (s *livenessServer) trackUsage(ctx context.Context) {
	for used := false; ; {
		news, next := s.trafficStarted, (<-chan time.Time)(nil)
		if used {
			news, next = nil, time.After(useInterval)
		}
		select {
		case <-ctx.Done():
			return
		case <-news:
		case <-next:
		}
		s.senders.Store(int64(s.nodes.countSenders()))
		size := s.fullSize()
		used = size > 0
		if session := s.session.Load(); session != nil {
			session.SetUsage(size)
		}
	}
}

// drain announces that this gateway is about to end, and returns when packets are no longer sent through it. If there
// is no other plane, nobody asks, and it returns immediately.
func (s *livenessServer) drain() {
	if s.session.Load() == nil {
		return
	}
	s.leaving.Store(true)
	s.push()
	begun := time.Now()
	_ = wait.PollUntilContextTimeout(context.Background(), usageTimeout/10, drainTimeout, true, func(context.Context) (bool, error) {
		return time.Since(begun) >= minDrainTime && !s.inUse(), nil
	}) // anyone who sends for longer loses packets
}

const (
	// requesterTimeout is how long a node counts as alive after a request to this gateway. A node asks at least every
	// 10 s, and repeats a request that is not answered.
	requesterTimeout = 20 * time.Second
)

// requesters are the cluster's nodes, or the peer's gateway, and when each last sent a request to this gateway
// (pkg/liveness). A dead node stops asking, while its last report remains in the API.
type requesters struct {
	mu    sync.Mutex
	known map[netip.Addr]requester
	// last is when any of them last asked. usedAt is when one last reported that it sends packets through this gateway,
	// or that it stopped.
	last, usedAt time.Time
}

// requester holds the time of the last request, or when the requester became known if it has not asked yet.
type requester struct {
	at           time.Time
	hasRequested bool
	// sentAt is when it last reported that it sends packets, zero if it has reported the opposite since.
	sentAt time.Time
	// reached are the planes that it last reported in a request (liveness.Request).
	reached uint8
}

// isAlive reports whether it has asked recently.
func (n requester) isAlive() bool { return n.hasRequested && n.isRecent() }

// isVoter reports whether it also knows through which planes it reaches the peer.
func (n requester) isVoter() bool { return n.isAlive() && n.reached&liveness.ReachKnown != 0 }

func (n requester) isRecent() bool { return time.Since(n.at) < requesterTimeout }

// isSender reports whether it sends packets through this gateway.
func (n requester) isSender() bool { return time.Since(n.sentAt) < senderTimeout }

// setKnown sets the known addresses. It gives new ones time to ask. Requests from other addresses are ignored, which
// limits the number of entries.
func (s *requesters) setKnown(addrs ...netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = lo.SliceToMap(addrs, func(addr netip.Addr) (netip.Addr, requester) {
		n, known := s.known[addr]
		if !known {
			n.at = time.Now()
		}
		return addr, n
	})
}

// isKnown reports whether an address is known.
func (s *requesters) isKnown(addr netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known := s.known[addr]
	return known
}

// record records a request, and reports whether its sender is known.
func (s *requesters) record(by netip.Addr, q liveness.Request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, known := s.known[by]
	if !known {
		return false
	}
	s.last = time.Now()
	if q.InUse || n.isSender() {
		s.usedAt = s.last
	}
	// The agent of a node that has just started does not know what the previous one knew.
	n = requester{at: s.last, hasRequested: true, reached: cmp.Or(q.Reached, n.reached)}
	if q.InUse {
		n.sentAt = s.last
	}
	s.known[by] = n
	return true
}

// inUse reports whether packets are sent through this gateway, or were a moment ago.
func (s *requesters) inUse() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.usedAt) < usageTimeout || it.ContainsBy(maps.Values(s.known), requester.isSender)
}

// sends reports whether a node sends packets through this gateway, and countSenders how many do.
func (s *requesters) sends(node netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known[node].isSender()
}

func (s *requesters) countSenders() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return it.CountBy(maps.Values(s.known), requester.isSender)
}

// reach returns the planes through which a node reaches the peer, a bit for each, and whether it votes. It is gone if
// others ask, but it does not. A new node, which has not asked yet, is neither.
func (s *requesters) reach(node netip.Addr) (planes uint8, votes, gone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.known[node]
	return n.reached, n.isVoter(), !n.isRecent() && time.Since(s.last) < requesterTimeout
}

// reaching returns how many nodes reach the peer through a plane, of how many that ask and know.
func (s *requesters) reaching(plane int32) (reaching, voters int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.known {
		if n.isVoter() {
			voters++
			reaching += int(n.reached>>plane) & 1
		}
	}
	return reaching, voters
}

// isSilent reports whether no node has asked for some time. It returns false if no node is known.
func (s *requesters) isSilent(d time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	isWaiting := func(n requester) bool { return time.Since(n.at) < d } // also one that has just become known
	return len(s.known) > 0 && !it.ContainsBy(maps.Values(s.known), isWaiting)
}

const (
	// probeInterval is the time between probes.
	probeInterval = 1500 * time.Millisecond
	// replyTimeout is the time without an answer after which the tunnel counts as not connected.
	replyTimeout = 3500 * time.Millisecond
	// unusableTimeout is how long the session may find a problem until the tunnel counts as not connected. Probes may
	// still be answered while packets of full size or of new flows are lost. A peer's gateway that ends leaves sooner.
	unusableTimeout = 7 * time.Second
	// minUnanswered is how many probes in a row have to be unanswered before a session that has worked counts as down. A
	// bad link or a busy machine loses some, and a new handshake would drop all packets in transit.
	minUnanswered = 5
	// oneWayTimeout is the time without an answer after which a session is down although packets arrive from the peer:
	// they may pass in one direction only.
	oneWayTimeout = 6 * time.Second
)

// healthInputs is the input of the decision whether the tunnel works.
type healthInputs struct {
	// datapathReady is set if the kernel matches the desired state except for single nodes' links. leaving is set if
	// this gateway is about to end.
	datapathReady, leaving bool
	// session is the state of the session. There is none if the peering has no other plane.
	hasSession bool
	session    liveness.State
	// probes are the latest ones, and received is when a packet last came from the peer. usableAt is when the session
	// last found no problem.
	probes             liveness.ProbeStats
	received, usableAt time.Time
}

// isUsable reports whether the session finds no problem: packets of all sizes pass, and the peer's gateway stays.
func (e healthInputs) isUsable() bool { return !e.hasSession || e.session.Up && !e.session.Leaving }

// tunnelHealth is whether packets pass through this gateway. Everything that is decided or reported about that follows
// from it.
type tunnelHealth struct {
	healthInputs
	// advertised is what nodes are told, as soon as possible: they leave a plane that is down for another one. If there
	// is no other plane, a node that asks has sent through this one until now.
	advertised liveness.State
	// answered is set if probes are answered, and at least one was measured. connected is what the status reports: the
	// session finds no problem for long, either.
	answered, connected bool
	// sessionLost is set if WireGuard's session is, so that a client starts another handshake. That drops packets in
	// transit, so it is the slowest to decide. If a packet came from the peer recently, answers may just be late on a
	// busy machine.
	sessionLost bool
}

func evaluate(e healthInputs, now time.Time) tunnelHealth {
	v := tunnelHealth{healthInputs: e}
	switch {
	case !e.datapathReady:
	case !e.hasSession:
		v.advertised.Up = true
	default:
		v.advertised = e.session
	}
	v.advertised.Leaving = v.advertised.Leaving || e.leaving
	silent := now.Sub(e.probes.LastReply)
	v.answered = e.probes.Window > 0 && silent < replyTimeout
	v.connected = v.answered && (e.isUsable() || now.Sub(e.usableAt) < unusableTimeout)
	v.sessionLost = e.probes.LastReply.IsZero() ||
		silent > probeInterval+redialLater && e.probes.Unanswered >= minUnanswered &&
			(now.Sub(e.received) >= redialLater || silent >= oneWayTimeout)
	return v
}

// publicState returns the state for metrics and the history (Up, Down or Leaving), and why. If there is another plane,
// it is what nodes are told, unless the status says that the plane does not work. Otherwise it is the result of probes.
func (v tunnelHealth) publicState(s v1alpha1.PlaneStatus) (state, why string) {
	message := s.Message
	switch {
	case v.leaving:
		return metrics.Leaving, "this gateway ends"
	case !v.datapathReady:
		return metrics.Down, message
	case !v.hasSession && s.Connected:
		return metrics.Up, "probes through the tunnel are answered"
	case !v.hasSession:
		return metrics.Down, message
	// The session is faster than probes.
	case !v.advertised.Up && v.advertised.Down >= startGrace:
		return metrics.Down, cmp.Or(message, "no answer through the tunnel")
	case !v.advertised.Up:
		return metrics.Down, fmt.Sprintf("no answer for %.1f s", v.advertised.Down.Seconds())
	case v.answered && !s.Connected:
		return metrics.Down, message
	case v.advertised.Leaving:
		return metrics.Leaving, "the peer's gateway ends, or its nodes do not know it yet"
	}
	return metrics.Up, "the peer's gateway answers"
}
