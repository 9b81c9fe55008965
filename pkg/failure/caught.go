package failure

import (
	"context"
	"fmt"
	"runtime"
	"strings"

	"golang.org/x/sync/errgroup"
)

// Caught calls do, and returns what it panics with as an error. An object that nobody
// has thought of must not keep a command from taking back what it did.
func Caught(do func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &Error{
				Doing: "go on with what the clusters answer", Err: fmt.Errorf("%v, at %s", r, place()),
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
