package discovery

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

var (
	// ErrUnknown is matched by every UnknownError.
	ErrUnknown = errors.New("not known from the cluster's API")
	// ErrOutside is matched by every OutsideError.
	ErrOutside = errors.New("address outside of the ranges found")
)

// UnknownError says that a fact cannot be found out and has to be given.
type UnknownError struct {
	// Cluster is what the user calls it.
	Cluster string
	// What is missing, e.g. "range of the pods".
	What string
	// Reason says why it is not known.
	Reason string
	// Flag is what to add to the command, e.g. "--pod-cidr a=10.244.0.0/16".
	Flag string
	// Command finds the value.
	Command string
}

func (e *UnknownError) Error() string {
	return fmt.Sprintf("cluster %q: the %s is not known: %s; give %s (to find it: %s)", e.Cluster, e.What, e.Reason, e.Flag, e.Command)
}

// Is matches ErrUnknown.
func (e *UnknownError) Is(target error) bool { return target == ErrUnknown }

// OutsideError says that something has an address outside of the ranges found, so
// they are wrong or not all.
type OutsideError struct {
	// Cluster is what the user calls it.
	Cluster string
	// Object is the first one found, e.g. "pod default/web-0", and Addr its address.
	Object string
	Addr   netip.Addr
	// More is how many others there are.
	More int
	// What the ranges are of, "pods" or "services", and what was found.
	What   string
	Ranges []Fact[netip.Prefix]
	// Flag is what to add to the command.
	Flag string
	// Command shows all addresses.
	Command string
}

func (e *OutsideError) Error() string {
	found := make([]string, 0, len(e.Ranges))
	for _, r := range e.Ranges {
		found = append(found, r.String())
	}
	others := ""
	if e.More > 0 {
		others = fmt.Sprintf(" (and %d more)", e.More)
	}
	return fmt.Sprintf("cluster %q: %s has the address %s%s, which is outside of the ranges found for %s [%s]; give all of them by %s (to see the addresses: %s)",
		e.Cluster, e.Object, e.Addr, others, e.What, strings.Join(found, "; "), e.Flag, e.Command)
}

// Is matches ErrOutside.
func (e *OutsideError) Is(target error) bool { return target == ErrOutside }
