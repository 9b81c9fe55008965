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

// answers is what this gateway tells the nodes of its cluster and the peer's gateway when they ask whether packets pass
// through it. Its methods are safe for concurrent use.
type answers struct {
	log       *slog.Logger
	responder liveness.Responder
	// started is when this gateway began. known is set once all nodes send to it instead of the previous one.
	started time.Time
	known   atomic.Bool
	// served is the last desired state. works is set if the kernel matches it except for single nodes' links.
	served atomic.Pointer[desired]
	works  atomic.Bool
	// session asks the peer's gateway frequently whether the tunnel works. It is nil if the peering has no other plane.
	session atomic.Pointer[liveness.Session]
	// The askers are the nodes, and the peer's gateway, which reports for its own nodes. useBegins signals that a node
	// sends packets.
	nodesAsk, peerAsks askers
	useBegins          notify.Signal
	// news signals that the tunnel has come up or gone down, and measured does the same for the loop.
	news, measured notify.Signal
	// leaving is closed when this gateway is about to end.
	leaving chan struct{}
}

func newAnswers(log *slog.Logger) answers {
	return answers{
		log: log, started: time.Now(), useBegins: notify.NewSignal(), news: notify.NewSignal(), measured: notify.NewSignal(),
		leaving: make(chan struct{}),
	}
}

// serve sets the desired state, and setWorks whether the kernel matches it. follow sets the session, nil for none.
func (s *answers) serve(want desired)               { s.served.Store(&want) }
func (s *answers) setWorks(works bool)              { s.works.Store(works) }
func (s *answers) follow(session *liveness.Session) { s.session.Store(session) }

// isClosed reports whether a channel is closed on which nothing is sent.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// run answers questions until ctx ends, and notifies the requesters when the answer changes.
func (s *answers) run(ctx context.Context) {
	s.responder.State, s.responder.Asked = s.answer, s.record
	s.responder.MTU = func() uint16 { return uint16(s.desired().capacity) }
	// Questions use IPv4, as the overlay and the tunnel carry nothing else.
	go loop.Keep(ctx, s.log, "answer questions", func(ctx context.Context) error {
		conn, err := net.ListenUDP("udp4", &net.UDPAddr{Port: liveness.Port})
		if err != nil {
			return err
		}
		return s.responder.Serve(ctx, conn)
	})
	go s.watchUse(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.news:
			s.push()
		}
	}
}

// push notifies the requesters, and the loop, that the answer has changed.
func (s *answers) push() {
	s.responder.Push()
	s.measured.Send()
}

// desired returns the last desired state, the zero value before the first one.
func (s *answers) desired() desired { return ptr.Deref(s.served.Load(), desired{}) }

// introduce records that all nodes send to this gateway.
func (s *answers) introduce() {
	if !s.known.Swap(true) {
		s.news.Send()
	}
}

// evidence returns what is known here about the tunnel.
func (s *answers) evidence() evidence {
	e := evidence{works: s.works.Load(), leaving: isClosed(s.leaving)}
	if session := s.session.Load(); session != nil {
		e.session = new(session.State())
	}
	return e
}

// answer returns whether packets pass through this gateway, as the answer to a question. The asker is a node, or the
// peer's gateway, which knows the tunnel itself.
func (s *answers) answer(asker netip.Addr) liveness.Answer {
	v := judge(s.evidence(), time.Now())
	if v.works && s.peerAsks.knows(asker) {
		// A gateway's own measurement of the tunnel must not come back to it through the other one.
		isNew := !s.known.Load() && time.Since(s.started) < introTimeout
		return liveness.Answer{State: liveness.State{Up: true, Clean: time.Hour, Leaving: v.leaving || isNew}}
	}
	return liveness.Answer{State: v.told, Interval: perNode * time.Duration(len(s.desired().nat.Nodes))}
}

// record records a question of a node, or of the peer's gateway, which also reports for its own nodes. It returns false
// for others: they are unknown, and the number of their addresses is not limited.
func (s *answers) record(by netip.Addr, q liveness.Question) (known bool) {
	if s.peerAsks.note(by, q.InUse) {
		if session := s.session.Load(); session != nil {
			session.Told(q)
		}
		return true
	}
	known = s.nodesAsk.note(by, q.InUse)
	if known && q.InUse {
		s.useBegins.Send()
	}
	return known
}

// inUse reports whether packets are sent through this gateway, in any direction.
func (s *answers) inUse() bool { return s.nodesAsk.inUse() || s.peerAsks.inUse() }

// fullSize returns the size of packets that nodes of this cluster send, 0 while they send none. Packets of the peer's
// nodes do not count: the peer asks for them itself, and each side would keep the other one asking forever.
func (s *answers) fullSize() int {
	return lo.Ternary(s.nodesAsk.inUse(), s.desired().mtu, 0)
}

// watchUse makes the session ask more often, and also with packets of full size, while nodes send packets.
func (s *answers) watchUse(ctx context.Context) {
	for used := false; ; {
		news, next := s.useBegins, (<-chan time.Time)(nil)
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
			session.Use(used, size)
		}
	}
}

// leave announces that this gateway is about to end, and returns when packets are no longer sent through it. If there
// is no other plane, nobody asks, and it returns immediately.
func (s *answers) leave() {
	if s.session.Load() == nil {
		return
	}
	close(s.leaving)
	s.push()
	begun := time.Now()
	_ = wait.PollUntilContextTimeout(context.Background(), inUse/10, leaveTimeout, true, func(context.Context) (bool, error) {
		return time.Since(begun) >= leaveLeast && !s.inUse(), nil
	}) // anyone who sends for longer loses packets
}
