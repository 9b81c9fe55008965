package loop

import (
	"context"
	"sync"
	"time"
)

const (
	// beatEvery is how often a Punctuality looks, beats how many of its looks count.
	beatEvery, beats = time.Second, 60
	// starvedLeast is from how many percent on a Lease tells it.
	starvedLeast = 20
)

// Punctuality tells how late an agent is: how long it waits for a processor when its time has come. That may be for a limit
// of its own, or because the machine is busy. It needs no help of the kernel's. The zero value is punctual.
type Punctuality struct {
	mu   sync.Mutex
	late [beats]time.Duration
	next int
}

// Watch looks until ctx ends.
func (p *Punctuality) Watch(ctx context.Context) {
	for {
		due := time.Now().Add(beatEvery)
		select {
		case <-ctx.Done():
			return
		case <-time.After(beatEvery):
			p.note(time.Since(due))
		}
	}
}

func (p *Punctuality) note(late time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.late[p.next] = late
	p.next = (p.next + 1) % beats
}

// Starved is how late the agent was at the last looks, in percent of the time between two. One that was held up once, for
// however long, was late once.
func (p *Punctuality) Starved() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	var late time.Duration
	for _, l := range p.late {
		late += min(max(l, 0), beatEvery)
	}
	return int(100 * late / (beats * beatEvery))
}
