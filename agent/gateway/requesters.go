package gateway

import (
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/samber/lo"
	"github.com/samber/lo/it"
)

const (
	// requesterTimeout is how long a node counts as alive after a request to this gateway. A node asks the gateway of a
	// plane that it does not use once a second, and once in 10 s in a cluster of 5,000 nodes.
	requesterTimeout = 30 * time.Second
	// handshakeTimeout is how long another gateway counts as alive after it has written a handshake. WireGuard passes
	// no packets without a new one after 180 s (Reject-After-Time, section 6.1 of its paper), and a gateway writes that
	// within 5 s.
	handshakeTimeout = 200 * time.Second
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
}

// isAlive reports whether it has asked recently.
func (n requester) isAlive() bool { return n.hasRequested && n.isRecent() }

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
func (s *requesters) record(by netip.Addr, sends bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, known := s.known[by]
	if !known {
		return false
	}
	s.last = time.Now()
	if sends || n.isSender() {
		s.usedAt = s.last
	}
	n = requester{at: s.last, hasRequested: true}
	if sends {
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

// state reports whether a node asks, and whether it is gone: others ask, but it does not. Both are false for a new
// node. They are also false if no node asks, as in a peering of one plane, or while all node agents restart.
func (s *requesters) state(node netip.Addr) (asks, gone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.known[node]
	return n.isAlive(), !n.isRecent() && time.Since(s.last) < requesterTimeout
}

// count returns how many nodes ask.
func (s *requesters) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return it.CountBy(maps.Values(s.known), requester.isAlive)
}
