package node

import (
	"encoding/json"
	"time"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/probe"
)

// hour sums numbers over the last hour, in steps of a minute.
type hour struct {
	steps [60]uint64
	// last is the minute of the last step, since 1970.
	last int64
}

// add adds a number now, and returns the sum.
func (h *hour) add(now time.Time, n uint64) uint64 {
	minute := now.Unix() / 60
	if h.last-minute >= int64(len(h.steps)) {
		*h = hour{last: minute} // the clock was set back: nothing would be older than an hour until then
	}
	for h.last = max(h.last, minute-int64(len(h.steps))); h.last < minute; {
		h.last++
		h.steps[h.last%int64(len(h.steps))] = 0
	}
	h.steps[minute%int64(len(h.steps))] += n
	return lo.Sum(h.steps[:])
}

// recent is what others have recently done to this node's kernel. Doctor reads it with the health check: how often
// something happened is in no kernel.
type recent struct {
	health               *loop.Health
	repairs, unencrypted hour
	// repaired is the last change that was repaired.
	repaired string
	// dropped is the kernel's counter at the last look, at readAt. It counts from the first look.
	dropped uint64
	readAt  time.Time
}

// dropInterval is how often the counter is read.
const dropInterval = 10 * time.Second

// addRepair records that the kernel had to be repaired.
func (r *recent) addRepair(changes []string) {
	if len(changes) > 0 {
		r.repairs.add(time.Now(), 1)
		r.repaired = changes[0]
	}
}

// publish reads the counter of packets that would have left unencrypted, and publishes everything.
func (r *recent) publish() {
	now := time.Now()
	if r.health == nil || now.Sub(r.readAt) < dropInterval {
		return
	}
	drops, err := nat.Drops()
	if err != nil {
		return // the next look reads it
	}
	total := lo.SumBy(drops, func(d nat.Drop) uint64 { return lo.Ternary(d.Reason == nat.Unencrypted, d.Packets, 0) })
	added := total - r.dropped
	switch {
	case r.readAt.IsZero():
		added = 0
	case total < r.dropped: // the table was written again
		added = total
	}
	r.dropped, r.readAt = total, now
	raw, _ := json.Marshal(probe.Recent{Repairs: r.repairs.add(now, 0), Repaired: r.repaired, Unencrypted: r.unencrypted.add(now, added)}) // numbers and a string
	r.health.Details.Store(&raw)
}
