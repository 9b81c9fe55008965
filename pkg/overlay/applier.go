package overlay

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/liqonet/liqonet/pkg/link"
)

// PartialError is what Apply could not do. Everything else that is wanted is in the kernel.
type PartialError struct {
	// Links are the interfaces that are not as wanted, or that lack a route, sorted. It is empty if the only problem is
	// an object of others.
	Links []string
	// RemovalFailed is true if an unwanted object of ours is still present.
	RemovalFailed bool
	errs          []error
}

func (e *PartialError) Error() string { return errors.Join(e.errs...).Error() }

func (e *PartialError) Unwrap() []error { return e.errs }

// applier is one run of Apply.
type applier struct {
	kernel *Kernel
	want   State
	// wantedLinks and wantedRoutes are the links and routes of want.
	wantedLinks  map[string]Link
	wantedRoutes map[routeKey]Route
	changes      []string
	// failedLinks is what could not be done. allFailed is true if that affects all links.
	failedLinks PartialError
	allFailed   bool

	links map[string]*link.State
	// forwarding are the entries of VXLAN links' forwarding tables, by interface index.
	forwarding map[int][]netlink.Neigh
	routes     map[routeKey]kernelRoute
	// surplus are routes of ours with the same key as one in routes.
	surplus []kernelRoute
	rules   []netlink.Rule
}

func (a *applier) changed(format string, args ...any) {
	a.changes = append(a.changes, fmt.Sprintf(format, args...))
}

func (a *applier) fail(format string, args ...any) {
	a.failedLinks.errs = append(a.failedLinks.errs, fmt.Errorf(format, args...))
}

func (a *applier) failLink(name string, err error) {
	a.fail("%w", err)
	a.failedLinks.Links = append(a.failedLinks.Links, name)
}

// removed records and returns whether a removal succeeded.
func (a *applier) removed(err error, format string, args ...any) bool {
	what := fmt.Sprintf(format, args...)
	if err != nil {
		a.fail("remove %s: %w", what, err)
		a.failedLinks.RemovalFailed = true
		return false
	}
	a.changed("removed %s", what)
	return true
}

func (a *applier) err() error {
	switch {
	case len(a.failedLinks.errs) == 0:
		return nil
	case a.allFailed:
		return errors.Join(a.failedLinks.errs...)
	}
	a.failedLinks.Links = slices.Compact(slices.Sorted(slices.Values(a.failedLinks.Links)))
	return &a.failedLinks
}
