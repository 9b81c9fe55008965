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
	// askLife is how long a node counts as alive after a question to this gateway. A node asks the gateway of a plane
	// that it does not use once a second, and once in 10 s in a cluster of 5,000 nodes.
	askLife = 30 * time.Second
	// handshakeLife is how long another gateway counts as alive after it has written a handshake. WireGuard passes no
	// packets without a new one after 180 s (Reject-After-Time, section 6.1 of its paper), and a gateway writes that
	// within 5 s.
	handshakeLife = 200 * time.Second
)

// askers are the cluster's nodes, or the peer's gateway, and when each last sent a question to this gateway
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
