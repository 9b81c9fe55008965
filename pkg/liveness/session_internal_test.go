package liveness

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/kit"
)

// A large cluster's nodes ask rarely. Once one of their requests is not answered, they detect the failure as fast as
// those of a small cluster, with few requests: a gateway that is only slow gets them from all nodes.
func TestFailureInALargeCluster(t *testing.T) {
	const rtt = time.Millisecond
	for nodes, most := range map[int]uint32{100: 250, 1000: 120, 5000: 30} {
		base := max(usualInterval, time.Duration(nodes)*200*time.Microsecond)
		var s stream
		now := time.Now()
		for range 100 {
			s.recordAnswer(s.recordRequest(now, false), now.Add(rtt))
			now = s.nextAt(base, base)
		}
		start := now
		var detected time.Duration
		for first := s.sequence; now.Sub(start) < fastTime; now = s.nextAt(base, base) {
			if detected == 0 && s.hasLostAnswers(now, now) {
				detected = now.Sub(start)
				kit.ErrorIf(t, s.sequence-first > 9, "%d nodes: %d requests until the failure is detected", nodes, s.sequence-first)
			}
			s.recordRequest(now, false)
			kit.ErrorIf(t, s.sequence-first > most, "%d nodes: more than %d requests in %s", nodes, most, fastTime)
		}
		t.Logf("%d nodes: detected %s after the first request that was not answered", nodes, detected)
		kit.ErrorIf(t, detected < minLostTime || detected > 250*time.Millisecond, "%d nodes: detected after %s", nodes, detected)
	}
}

// recorder is a socket that records where packets are sent.
type recorder struct {
	net.PacketConn
	to []netip.AddrPort
}

func (r *recorder) WriteTo(b []byte, to net.Addr) (int, error) {
	r.to = append(r.to, to.(*net.UDPAddr).AddrPort())
	return len(b), nil
}

// All nodes of a large cluster are told of a change, at the socket of their last small request. Each has two sockets,
// and others before its agent was restarted.
func TestAllNodesAreTold(t *testing.T) {
	const nodes = 6143
	conn := &recorder{}
	r := &Responder{
		conn: conn, requesters: map[netip.Addr]requester{}, State: func(netip.Addr) Answer { return Answer{} },
		OnRequest: func(netip.Addr, Request) bool { return true },
	}
	want := map[netip.AddrPort]bool{}
	for i := range nodes {
		addr := netip.AddrFrom4([4]byte{10, 80, byte(i >> 8), byte(i)})
		for port := range uint16(2) {
			r.handle(frame{kind: kindRequest}, netip.AddrPortFrom(addr, 1+port), make([]byte, headerLength))
			r.handle(frame{kind: kindRequest}, netip.AddrPortFrom(addr, 3+port), make([]byte, 1400))
		}
		want[netip.AddrPortFrom(addr, 2)] = true
	}
	conn.to = nil
	r.Push()
	for _, to := range conn.to {
		kit.ErrorIf(t, !want[to], "%s is told, or is told twice", to)
		delete(want, to)
	}
	kit.ErrorIf(t, len(want) > 0, "%d of %d nodes are not told", len(want), nodes)
}
