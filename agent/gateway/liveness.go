package gateway

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/liveness"
)

const (
	// perNode is how much longer nodes wait between two questions for each node that there is. So a
	// gateway gets 5,000 questions a second at most.
	perNode = 200 * time.Microsecond
	// inUse is for how long a gateway counts as in use when nobody sends packets by it any more: some are on the way.
	// useInterval is how often it looks.
	useInterval, inUse = 100 * time.Millisecond, 300 * time.Millisecond
	// userGone is how long it takes until who has sent packets, and asks nothing more, counts as gone. Each of 5,000 nodes asks once in a
	// second, and on a busy machine later.
	userGone = 2 * time.Second
	// idleQuestions is how many times as long the time between questions to the peer's gateway is while
	// no node of this cluster sends packets. Each question costs both gateways an encrypted packet, and
	// the first packet that a node sends brings the usual time back at once.
	idleQuestions = 2
	// leaveTimeout is how long a gateway that ends waits for nodes to use another one. It is less than
	// the kubelet waits. leaveLeast is for those who have just begun to send, and have not said so.
	leaveTimeout, leaveLeast = 5 * time.Second, time.Second
	// introduction is how long a gateway that starts waits for nodes to know it, before the peer's nodes may use
	// it: they take no packets of its address before. A node that is gone never does.
	introduction = 5 * time.Second
)

// wayTo is what is said of the way by this gateway to who asks: a node, or the peer's gateway, which
// knows the tunnel itself.
func (a *agent) wayTo(asker netip.Addr) liveness.Answer {
	leaving := a.leaving.Load()
	out := liveness.Answer{State: liveness.State{Leaving: leaving}, Interval: time.Duration(a.interval.Load())}
	session := a.session.Load()
	switch {
	case !a.works.Load():
	case a.peerAsks.knows(asker):
		// What each measures of the tunnel is not to come back to it by the other.
		out.Up, out.Clean, out.Interval = true, time.Hour, 0
		out.Leaving = leaving || !a.known.Load() && time.Since(a.started) < introduction
	case session == nil:
		out.Up = true // the node knows already that there is another plane, and has sent by this one until now
	default:
		out.State = session.State()
		out.Leaving = out.Leaving || leaving
	}
	return out
}

// isKnown says that all nodes that have a link to this gateway's plane have it to this very pod.
func (a *agent) isKnown(nodes []v1alpha1.NodeNetwork) bool {
	return !slices.ContainsFunc(nodes, func(n v1alpha1.NodeNetwork) bool {
		g := n.Gateway(a.Peering, int32(a.Plane))
		return g == nil || g.GatewayIP.Addr != a.podIP
	})
}

// answerLiveness answers questions whether the way works until ctx ends, and tells who asked when that
// changes.
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
	a.serve(ctx, "answer whether the way works", liveness.Port, a.responder.Serve)
}

// asked notes what those who ask say: a node, or the peer's gateway, which also speaks for its own nodes.
func (a *agent) asked(by netip.Addr, q liveness.Question) {
	session := a.session.Load()
	switch {
	case a.peerAsks.note(by, q.InUse):
		if session != nil {
			session.Told(q)
		}
	case a.nodesAsk.note(by, q.InUse) && q.InUse: // others are strangers: there is no bound for their addresses
		a.useBegins.Send()
	}
}

// fullSize is the size of packets that nodes of this cluster send, 0 while they send none. Those of the peer's nodes
// do not count: it asks for them itself, and each would keep the other one asking for ever.
func (a *agent) fullSize() int {
	if a.nodesAsk.inUse() {
		return int(a.mtu.Load())
	}
	return 0
}

// watchUse has the tunnel asked more often, and with packets of full size, too, while nodes send packets.
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

// leave tells everybody that this gateway is about to end, and returns when nobody sends packets by
// it any more. Where there is no other plane nobody asks, and it returns at once.
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
	}) // who sends for longer loses packets
}

// follows says that another pod of this plane is about to end. Two with the same key would take each other's packets.
// One that was killed meanwhile never says that it has left.
func (a *agent) follows(before *v1alpha1.PlaneStatus) bool {
	return before != nil && before.Leaving && !slices.Contains(a.PodIPs, before.PodIP.Addr) && time.Since(a.started) < leaveTimeout+leaveLeast
}

// hasLeft tells the next gateway of this plane, which waits for it.
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
