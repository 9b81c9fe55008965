// Package failure defines the error that a command ends with: what was attempted in which cluster, why it failed, and
// what the user can do. Scripts can react to its Kind.
package failure

import (
	"context"
	"fmt"
	"regexp"
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
	Kind              Kind
	Cluster, Op, Hint string
	Err               error
}

func (e *Error) Error() string {
	s := e.Op
	if e.Cluster != "" {
		s = fmt.Sprintf("cluster %q: %s", e.Cluster, e.Op)
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

// TimeoutError is context.DeadlineExceeded in other words.
type TimeoutError string

func (t TimeoutError) Error() string { return string(t) }

// Is reports whether the target is context.DeadlineExceeded.
func (TimeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// Usagef returns an error about invalid input. The hint says what to do about it.
func Usagef(hint, format string, args ...any) error {
	return &Error{Kind: Usage, Op: fmt.Sprintf(format, args...), Hint: hint}
}

// Quote returns a name as one word of a shell, for commands in hints. Users copy these, while an API server that is not theirs may return any
// name. A name that begins like an option is left out.
func Quote(name string) string {
	switch {
	case strings.HasPrefix(name, "-"):
		return "NAME"
	case name == "" || plainWord.MatchString(name):
		return name
	}
	return "'" + strings.ReplaceAll(name, "'", `'\''`) + "'"
}

// plainWord matches what no shell interprets.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// RecoverPanic calls fn, and returns a panic as an error. An unforeseen object must not keep a command from rolling
// back.
func RecoverPanic(fn func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &Error{
				Op: "process the clusters' answers", Err: fmt.Errorf("%v, at %s", r, panicLocation()),
				Hint: "an object in one of the clusters is malformed, or this is a bug in liqonet: please report it with this message",
			}
		}
	}()
	return fn()
}

// panicLocation returns where a panic began: the innermost of our functions.
func panicLocation() string {
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

// Go calls fn in a new goroutine.
func (g Group) Go(fn func() error) {
	g.Group.Go(func() error { return RecoverPanic(fn) })
}

// RunSteps runs steps until one fails or panics.
func RunSteps(ctx context.Context, steps ...func(context.Context) error) error {
	return RecoverPanic(func() error {
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

// ForEach calls fn for all items in parallel, until one call fails or panics.
func ForEach[T any](ctx context.Context, items []T, fn func(context.Context, T) error) error {
	return ForEachLimit(ctx, MaxParallel, items, func(ctx context.Context, _ int, item T) error { return fn(ctx, item) })
}

// ForEachLimit is ForEach with its own limit. It also passes the index of the item.
func ForEachLimit[T any](ctx context.Context, limit int, items []T, fn func(ctx context.Context, i int, item T) error) error {
	g, ctx := NewGroup(ctx)
	g.SetLimit(limit)
	for i, item := range items {
		g.Go(func() error { return fn(ctx, i, item) })
	}
	return g.Wait()
}

// Map calls fn for all items in parallel, and returns the results and errors in the same order.
func Map[T, R any](items []T, fn func(T) (R, error)) ([]R, []error) {
	results, errs := make([]R, len(items)), make([]error, len(items))
	_ = ForEachLimit(context.Background(), len(items), items, func(_ context.Context, i int, x T) error {
		errs[i] = RecoverPanic(func() (err error) { results[i], err = fn(x); return err })
		return nil
	})
	return results, errs
}
