package kube

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Wait is a wait of a command.
type Wait struct {
	// Where is the cluster, or the pair of clusters for a whole step.
	Where string
	// What was waited for, and what was missing until then. Missing is empty if nothing was missing at the first check.
	What, Missing string
	From, To      time.Time
}

// Timeline records the waits of a command. It is safe for concurrent use. The zero value is empty.
type Timeline struct {
	mu    sync.Mutex
	waits []Wait
}

type timelineKey struct{}

// WithTimeline records all waits under the context in t.
func WithTimeline(ctx context.Context, t *Timeline) context.Context {
	return context.WithValue(ctx, timelineKey{}, t)
}

// StartWait records the start of a wait, and the returned function its end. Without a Timeline in the context it does
// nothing.
func StartWait(ctx context.Context, where, what, missing string) (end func()) {
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

// Waits returns the waits in the order in which they started. One that has not ended yet ends now.
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

// Reporter shows the progress of a command.
type Reporter interface {
	// Step runs do, and reports its start, its end and its error.
	Step(ctx context.Context, name string, do func(context.Context) error) error
}

// Quiet is a Reporter that shows nothing.
type Quiet struct{}

// Step runs do.
func (Quiet) Step(ctx context.Context, _ string, do func(context.Context) error) error {
	return do(ctx)
}

// Timed records the steps of a pair of clusters in the timeline.
type Timed struct {
	Reporter
	Where string
}

// Step runs do.
func (t Timed) Step(ctx context.Context, name string, do func(context.Context) error) error {
	return t.Reporter.Step(ctx, name, func(ctx context.Context) error {
		defer StartWait(ctx, t.Where, name, "")()
		return do(ctx)
	})
}
