package kube

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Wait is something that a command has waited for.
type Wait struct {
	// Where is the cluster, or the pair of clusters for a whole step.
	Where string
	// What is done, and what was missing until then, empty where it was there at the first look.
	What, Missing string
	From, To      time.Time
}

// Timeline notes what a command has waited for. Several goroutines may write to it. The zero value is empty.
type Timeline struct {
	mu    sync.Mutex
	waits []Wait
}

type timelineKey struct{}

// WithTimeline has all that is done with the context noted.
func WithTimeline(ctx context.Context, t *Timeline) context.Context {
	return context.WithValue(ctx, timelineKey{}, t)
}

// Begin notes that something is waited for, which ends when the function that it returns is called. That does nothing
// where nobody wants to know.
func Begin(ctx context.Context, where, what, missing string) (end func()) {
	t, wanted := ctx.Value(timelineKey{}).(*Timeline)
	if !wanted {
		return func() {}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	i := len(t.waits)
	t.waits = append(t.waits, Wait{Where: where, What: what, Missing: missing, From: time.Now()})
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.waits[i].To = time.Now()
	}
}

// Waits are in the order in which they began. What has not ended yet ends now.
func (t *Timeline) Waits() []Wait {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := slices.Clone(t.waits)
	for i := range out {
		if out[i].To.IsZero() {
			out[i].To = time.Now()
		}
	}
	return out
}
