// Package failure defines the error that a command ends with: what was attempted in which cluster, why it failed, and
// what the user can do. Scripts can react to its Kind.
package failure

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// Kind is the class of an error.
type Kind int

const (
	// Unexpected is for errors without a class of their own.
	Unexpected Kind = iota
	// Usage is for input that cannot work, e.g. the same cluster twice.
	Usage
	// Unreachable is for an API server that does not answer.
	Unreachable
	// Forbidden is for a missing permission or credential.
	Forbidden
	// NotReady is for something that did not start or end in time.
	NotReady
	// Ranges is for a missing or conflicting address range.
	Ranges
	// Identity is for a cluster that claims to be another one, and cannot prove it.
	Identity
	// OneSided is for a peering that was removed from only one of its clusters.
	OneSided
	// Busy is for a cluster in which another command works, or has overtaken this command.
	Busy
)

// Error is a failure in one cluster: what was attempted, why it failed, and what the user can do.
type Error struct {
	Kind                 Kind
	Cluster, Doing, Hint string
	Err                  error
}

func (e *Error) Error() string {
	s := e.Doing
	if e.Cluster != "" {
		s = fmt.Sprintf("cluster %q: %s", e.Cluster, e.Doing)
	}
	switch {
	case e.Err == nil:
		return s
	case s == "":
		return e.Err.Error()
	}
	return s + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Timeout is context.DeadlineExceeded in other words.
type Timeout string

func (t Timeout) Error() string { return string(t) }

// Is reports whether the target is context.DeadlineExceeded.
func (Timeout) Is(target error) bool { return target == context.DeadlineExceeded }

// Usagef returns an error about invalid input. The hint says what to do about it.
func Usagef(hint, format string, args ...any) error {
	return &Error{Kind: Usage, Doing: fmt.Sprintf(format, args...), Hint: hint}
}

// Caught calls do, and returns a panic as an error. An unforeseen object must not keep a command from rolling back.
func Caught(do func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &Error{
				Doing: "process the clusters' answers", Err: fmt.Errorf("%v, at %s", r, place()),
				Hint: "an object in one of the clusters is malformed, or this is a bug in liqonet: please report it with this message",
			}
		}
	}()
	return do()
}

// place returns where a panic began: the innermost of our functions.
func place() string {
	callers := make([]uintptr, 64)
	frames := runtime.CallersFrames(callers[:runtime.Callers(3, callers)])
	for {
		f, more := frames.Next()
		if strings.HasPrefix(f.Function, "github.com/liqonet/") || !more {
			return fmt.Sprintf("%s:%d", f.Function, f.Line)
		}
	}
}

// Group is an errgroup.Group that turns panics of its functions into errors.
type Group struct{ *errgroup.Group }

// NewGroup is like errgroup.WithContext.
func NewGroup(ctx context.Context) (Group, context.Context) {
	g, ctx := errgroup.WithContext(ctx)
	return Group{g}, ctx
}

// Go calls do in a new goroutine.
func (g Group) Go(do func() error) {
	g.Group.Go(func() error { return Caught(do) })
}

// InOrder runs steps until one fails or panics.
func InOrder(ctx context.Context, steps ...func(context.Context) error) error {
	return Caught(func() error {
		for _, do := range steps {
			if err := do(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// Pause waits, and reports false if ctx ends before.
func Pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// MaxParallel is how many items ForEach processes at once. There may be one item per node.
const MaxParallel = 16

// ForEach calls do for all items in parallel, until one call fails or panics.
func ForEach[T any](ctx context.Context, items []T, do func(context.Context, T) error) error {
	return ForEachAtMost(ctx, MaxParallel, items, func(ctx context.Context, _ int, item T) error { return do(ctx, item) })
}

// ForEachAtMost is ForEach with its own limit. It also passes the index of the item.
func ForEachAtMost[T any](ctx context.Context, limit int, items []T, do func(ctx context.Context, i int, item T) error) error {
	g, ctx := NewGroup(ctx)
	g.SetLimit(limit)
	for i, item := range items {
		g.Go(func() error { return do(ctx, i, item) })
	}
	return g.Wait()
}

// All calls do for all items in parallel, and returns the results and errors in the same order.
func All[T, R any](items []T, do func(T) (R, error)) ([]R, []error) {
	results, errs := make([]R, len(items)), make([]error, len(items))
	_ = ForEachAtMost(context.Background(), len(items), items, func(_ context.Context, i int, x T) error {
		errs[i] = Caught(func() (err error) { results[i], err = do(x); return err })
		return nil
	})
	return results, errs
}
