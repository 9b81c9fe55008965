package services

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/liqonet/liqonet/test/kit"
)

// withdrawnAfter returns how long a peer has to be unreachable until its endpoints are withdrawn.
func withdrawnAfter(t *testing.T, h *holder) time.Duration {
	t.Helper()
	h.set("b", true)
	begin := time.Now()
	h.set("b", false)
	for !h.isWithdrawn("b") {
		time.Sleep(100 * time.Millisecond) // in a played clock
		kit.FatalIf(t, time.Since(begin) > time.Hour, "never withdrawn")
	}
	return time.Since(begin).Round(time.Second)
}

func TestHoldDoubles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		changes := 0
		h := newHolder(func(string) { changes++ })
		h.set("b", false)
		time.Sleep(time.Hour)
		kit.ErrorIf(t, !h.isWithdrawn("b"), "endpoints of a peer that was never connected are used")
		kit.Check(t, "first time", withdrawnAfter(t, h), firstHold)
		kit.Check(t, "second time", withdrawnAfter(t, h), 2*firstHold)
		kit.Check(t, "third time", withdrawnAfter(t, h), 4*firstHold)
		h.set("b", true)
		kit.ErrorIf(t, h.isWithdrawn("b") || changes != 7, "it is not used again at once: %d changes", changes)
		h.set("b", false)
		time.Sleep(firstHold)
		h.set("b", true)
		time.Sleep(time.Minute)
		kit.ErrorIf(t, h.isWithdrawn("b") || changes != 7, "a short outage withdraws: %d changes", changes)
		var longest time.Duration
		for range 20 {
			longest = max(longest, withdrawnAfter(t, h))
		}
		kit.Check(t, "at most", longest, longestHold)
		h.set("b", true)
		time.Sleep(holdMemory)
		kit.Check(t, "after a while", withdrawnAfter(t, h), firstHold)
		h.forget("b")
		kit.Check(t, "withdrawn peers", h.withdrawn(), 0)
	})
}

// The end of one outage's time does not count for the next outage.
func TestHoldOfTheNextOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHolder(func(string) {})
		h.set("b", true)
		h.set("b", false)
		p := h.peers["b"]
		h.set("b", true)
		h.set("b", false)
		h.expire("b", p, 1) // its timer ran already when it was stopped
		kit.ErrorIf(t, h.isWithdrawn("b"), "it is withdrawn at once")
		h.forget("b")
		h.set("b", true)
		h.set("b", false)
		h.expire("b", p, 2)
		kit.ErrorIf(t, h.isWithdrawn("b"), "it is withdrawn by a timer from before it was forgotten")
		time.Sleep(firstHold + time.Millisecond)
		synctest.Wait()
		kit.ErrorIf(t, !h.isWithdrawn("b"), "it is not withdrawn")
	})
}

// A new controller leaves what its predecessor has withdrawn, and withdraws what it has not.
func TestHoldOfAPredecessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHolder(func(string) {})
		h.restore("gone", true)
		h.restore("there", false)
		h.set("gone", false)
		h.set("there", false)
		kit.ErrorIf(t, !h.isWithdrawn("gone") || h.isWithdrawn("there"), "withdrawn: %v, %v", h.isWithdrawn("gone"), h.isWithdrawn("there"))
		time.Sleep(firstHold + time.Millisecond)
		synctest.Wait()
		kit.ErrorIf(t, !h.isWithdrawn("gone") || !h.isWithdrawn("there"), "withdrawn after a while: %v, %v", h.isWithdrawn("gone"), h.isWithdrawn("there"))
		h.set("gone", true)
		kit.ErrorIf(t, h.isWithdrawn("gone"), "a peer that is back is not used")
	})
}
