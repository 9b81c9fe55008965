// Package failure has the error that a command ends with: what was being done to
// which cluster, why that failed, and what the user can do. Its Kind is what a
// script can react to.
package failure

import (
	"context"
	"fmt"
	"runtime"
	"strings"

	"golang.org/x/sync/errgroup"
)

// Kind is the class of an error.
type Kind int

const (
	// Unexpected is everything without a class of its own.
	Unexpected Kind = iota
	// Usage is input that cannot work, e.g. the same cluster twice.
	Usage
	// Unreachable is an API server that does not answer.
	Unreachable
	// Forbidden is a permission or credential that is missing.
	Forbidden
	// NotReady is something that did not come up or go away in time.
	NotReady
	// Ranges is an address range that is missing or in conflict.
	Ranges
	// Identity is a cluster that says it is another one, and cannot prove it.
	Identity
	// OneSided is a peering that was removed from one of its clusters only.
	OneSided
	// Busy is a cluster in which another command works, or one that has overtaken this command.
	Busy
)

// Error is a failure in one cluster: what was being done there, why it failed,
// and what the user can do.
type Error struct {
	Kind    Kind
	Cluster string
	Doing   string
	Hint    string
	Err     error
}

func (e *Error) Error() string {
	s := e.Doing
	if e.Cluster != "" {
		s = fmt.Sprintf("cluster %q: %s", e.Cluster, e.Doing)
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Caught calls do, and returns what it panics with as an error. An object that nobody
// has thought of must not keep a command from rolling back what it did.
func Caught(do func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &Error{
				Doing: "continue with what the clusters answer", Err: fmt.Errorf("%v, at %s", r, place()),
				Hint: "an object of one of the clusters is as no program makes it, or this is a defect of liqonet: please report it with this message",
			}
		}
	}()
	return do()
}

// place is where a panic began: the function of ours that was called last.
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

// Group is an errgroup.Group whose functions may panic: that is their error.
type Group struct{ *errgroup.Group }

// NewGroup is as errgroup.WithContext.
func NewGroup(ctx context.Context) (Group, context.Context) {
	g, ctx := errgroup.WithContext(ctx)
	return Group{g}, ctx
}

// Go calls do in a goroutine of its own.
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

// MaxParallel is how many items ForEach works on at once. There may be one for each node.
const MaxParallel = 16

// ForEach does something with all items in parallel, until that fails or panics for one of them.
func ForEach[T any](ctx context.Context, items []T, do func(context.Context, T) error) error {
	return ForEachAtMost(ctx, MaxParallel, items, func(ctx context.Context, _ int, item T) error { return do(ctx, item) })
}

// ForEachAtMost is ForEach with a limit of its own. It passes the index of the item, too.
func ForEachAtMost[T any](ctx context.Context, limit int, items []T, do func(ctx context.Context, i int, item T) error) error {
	g, ctx := NewGroup(ctx)
	g.SetLimit(limit)
	for i, item := range items {
		g.Go(func() error { return do(ctx, i, item) })
	}
	return g.Wait()
}
