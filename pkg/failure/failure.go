// Package failure has the error that a command ends with: what was being done to
// which cluster, why that failed, and what the user can do. Its Kind is what a
// script can react to.
package failure

import "fmt"

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
