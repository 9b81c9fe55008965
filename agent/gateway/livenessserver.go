package gateway

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/samber/lo"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/pkg/liveness"
	"github.com/liqonet/liqonet/pkg/notify"
)

const (
	// intervalPerNode is added to the time between a node's requests for each node of the cluster. So a gateway gets at
	// most 5,000 requests a second.
	intervalPerNode = 200 * time.Microsecond
	// usageTimeout is how long a gateway still counts as in use after the last user stops: some packets are on the way.
	// useInterval is how often it checks.
	useInterval, usageTimeout = 100 * time.Millisecond, 300 * time.Millisecond
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
	// lastDesired is the last desired state. datapathReady is set if the kernel matches it except for single nodes'
	// links.
	lastDesired   atomic.Pointer[desired]
	datapathReady atomic.Bool
	// session asks the peer's gateway frequently whether the tunnel works. It is nil if the peering has no other plane.
	session atomic.Pointer[liveness.Session]
	// The requesters are the nodes, and the peer's gateway, which reports for its own nodes. trafficStarted signals
	// that a node sends packets.
	nodes, peerGateway requesters
	trafficStarted     notify.Signal
	// stateChanged signals that the tunnel has come up or gone down, and measured does the same for the loop.
	stateChanged, measured notify.Signal
	// leaving is set when this gateway is about to end.
	leaving atomic.Bool
}

func newLivenessServer(log *slog.Logger) livenessServer {
	return livenessServer{
		log: log, started: time.Now(), trafficStarted: notify.NewSignal(), stateChanged: notify.NewSignal(), measured: notify.NewSignal(),
	}
}

// serve sets the desired state, and setWorks whether the kernel matches it. follow sets the session, nil for none.
func (s *livenessServer) serve(want desired)               { s.lastDesired.Store(&want) }
func (s *livenessServer) setWorks(works bool)              { s.datapathReady.Store(works) }
func (s *livenessServer) follow(session *liveness.Session) { s.session.Store(session) }

// isLeaving reports whether this gateway is about to end.
func (s *livenessServer) isLeaving() bool { return s.leaving.Load() }

// run answers requests until ctx ends, and notifies the requesters when the answer changes.
func (s *livenessServer) run(ctx context.Context) {
	s.responder.State, s.responder.OnRequest = s.answer, s.handleRequest
	s.responder.MTU = func() uint16 { return uint16(s.desired().capacity) }
	// Requests use IPv4, as the overlay and the tunnel carry nothing else.
	go loop.RunForever(ctx, s.log, "answer questions", func(ctx context.Context) error {
		conn, err := net.ListenUDP("udp4", &net.UDPAddr{Port: liveness.Port})
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

// desired returns the last desired state, the zero value before the first one.
func (s *livenessServer) desired() desired { return ptr.Deref(s.lastDesired.Load(), desired{}) }

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
		e.session = new(session.State())
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
		return liveness.Answer{State: liveness.State{Up: true, LossFree: time.Hour, Leaving: v.leaving || isNew}}
	}
	return liveness.Answer{State: v.advertised, Interval: intervalPerNode * time.Duration(len(s.desired().nat.Nodes))}
}

// handleRequest records a request of a node, or of the peer's gateway, which also reports for its own nodes. It returns
// false for others: they are unknown, and the number of their addresses is not limited.
func (s *livenessServer) handleRequest(by netip.Addr, q liveness.Request) (known bool) {
	if s.peerGateway.record(by, q.InUse) {
		if session := s.session.Load(); session != nil {
			session.HandleReport(q)
		}
		return true
	}
	known = s.nodes.record(by, q.InUse)
	if known && q.InUse {
		s.trafficStarted.Send()
	}
	return known
}

// inUse reports whether packets are sent through this gateway, in any direction.
func (s *livenessServer) inUse() bool { return s.nodes.inUse() || s.peerGateway.inUse() }

// fullSize returns the size of packets that nodes of this cluster send, 0 while they send none. Packets of the peer's
// nodes do not count: the peer asks for them itself, and each side would keep the other one asking forever.
func (s *livenessServer) fullSize() int {
	return lo.Ternary(s.nodes.inUse(), s.desired().mtu, 0)
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
		size := s.fullSize()
		used = size > 0
		if session := s.session.Load(); session != nil {
			session.SetUsage(used, size)
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
