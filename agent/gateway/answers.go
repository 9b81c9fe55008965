package gateway

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/liveness"
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

// serve serves a UDP port until ctx ends, even if the socket fails. what describes the server in errors.
func (a *agent) serve(ctx context.Context, what string, port uint16, serve func(context.Context, net.PacketConn) error) {
	loop.Keep(ctx, a.Log, func(ctx context.Context) error {
		conn, err := net.ListenUDP("udp4", &net.UDPAddr{Port: int(port)})
		if err == nil {
			err = serve(ctx, conn)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	})
}
