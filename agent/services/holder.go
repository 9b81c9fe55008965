package services

import (
	"sync"
	"time"
)

const (
	// firstHold is how long a peer may be unreachable before its endpoints are withdrawn. A client repeats its first packet after 1
	// and 3 s (RFC 6298), so that shorter outages cost it nothing.
	firstHold = 3 * time.Second
	// Each withdrawal within holdMemory doubles the time, up to longestHold: a peer that comes and goes must not make this cluster
	// write all of its slices all the time.
	holdMemory, longestHold = 10 * time.Minute, 5 * time.Minute
)

// holder decides which peers' endpoints are withdrawn.
type holder struct {
	// changed is called for a peering whose endpoints are to be withdrawn or used again.
	changed func(peering string)

	mu    sync.Mutex
	peers map[string]*held
}

// held is the state of one peer.
type held struct {
	connected, withdrawn bool
	// timer withdraws the endpoints in the outage with this number. An earlier timer may run although it was stopped.
	timer  *time.Timer
	outage int
	// recent are the times of the last withdrawals.
	recent []time.Time
}

func newHolder(changed func(peering string)) *holder {
	return &holder{changed: changed, peers: map[string]*held{}}
}

// restore says what another controller has left of a peer's endpoints, before the first set: whether they are withdrawn. The endpoints
// of other peers are withdrawn until these are connected.
func (h *holder) restore(peering string, withdrawn bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.of(peering)
	p.withdrawn, p.connected = withdrawn, !withdrawn
}

func (h *holder) of(peering string) *held {
	p := h.peers[peering]
	if p == nil {
		p = &held{withdrawn: true}
		h.peers[peering] = p
	}
	return p
}

// set says whether a peer is connected.
func (h *holder) set(peering string, connected bool) {
	h.mu.Lock()
	p := h.of(peering)
	was := p.connected
	p.connected = connected
	changes := connected && p.withdrawn
	switch {
	case connected:
		p.withdrawn = false
		if p.timer != nil {
			p.timer.Stop()
		}
	case was && !p.withdrawn:
		p.outage++
		n := p.outage
		p.timer = time.AfterFunc(p.hold(), func() { h.expire(peering, p, n) })
	}
	h.mu.Unlock()
	if changes {
		h.changed(peering)
	}
}

// hold returns for how long the peer may be unreachable now.
func (p *held) hold() time.Duration {
	var recent []time.Time
	for _, at := range p.recent {
		if time.Since(at) < holdMemory {
			recent = append(recent, at)
		}
	}
	p.recent = recent
	d := firstHold
	for range recent {
		if d = 2 * d; d >= longestHold {
			return longestHold
		}
	}
	return d
}

// expire withdraws a peer's endpoints, unless its outage is over.
func (h *holder) expire(peering string, p *held, outage int) {
	h.mu.Lock()
	withdraws := h.peers[peering] == p && p.outage == outage && !p.connected && !p.withdrawn
	if withdraws {
		p.withdrawn = true
		p.recent = append(p.recent, time.Now())
	}
	h.mu.Unlock()
	if withdraws {
		h.changed(peering)
	}
}

// forget forgets a peer that is gone.
func (h *holder) forget(peering string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.peers[peering]; p != nil && p.timer != nil {
		p.timer.Stop()
	}
	delete(h.peers, peering)
}

// isWithdrawn reports whether a peer's endpoints are withdrawn.
func (h *holder) isWithdrawn(peering string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.peers[peering]
	return p == nil || p.withdrawn
}

// withdrawn returns how many peers' endpoints are withdrawn.
func (h *holder) withdrawn() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.peers {
		if p.withdrawn {
			n++
		}
	}
	return n
}
