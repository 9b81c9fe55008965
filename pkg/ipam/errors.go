package ipam

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

var (
	// ErrInvalid is matched by every InvalidError.
	ErrInvalid = errors.New("invalid range")
	// ErrConflict is matched by every ConflictError.
	ErrConflict = errors.New("range in use")
	// ErrExhausted is matched by every ExhaustedError.
	ErrExhausted = errors.New("no free range")
)

// shown is how many uses an error or a reason lists.
const shown = 8

// InvalidError is a prefix that cannot be what it was given as.
type InvalidError struct {
	Prefix netip.Prefix
	// Reason completes "<prefix> …".
	Reason string
}

func (e *InvalidError) Error() string {
	if !e.Prefix.IsValid() {
		return "the range given " + e.Reason
	}
	return e.Prefix.String() + " " + e.Reason
}

// Is matches ErrInvalid.
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// ConflictError is a wish that cannot be met because something uses the range.
type ConflictError struct {
	// What was to be given a range.
	What string
	// Wish is the range that was asked for.
	Wish netip.Prefix
	// With is what uses it, the largest ones first, and More how many others.
	With []Use
	More int
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s cannot be %s: it overlaps %s", e.What, e.Wish, list(e.With, e.More))
}

// Is matches ErrConflict.
func (e *ConflictError) Is(target error) bool { return target == ErrConflict }

// ExhaustedError says that the pools have no free range of a length.
type ExhaustedError struct {
	// What was to be given a range.
	What string
	// Wanted is the range that was to be kept, not valid if there was none.
	Wanted netip.Prefix
	// With is what uses Wanted, the largest ones first, and WithMore how many others.
	With     []Use
	WithMore int
	// Bits is the length of the range that was looked for.
	Bits int
	// Pools are those of the family.
	Pools []netip.Prefix
	// Used is what uses the pools, the largest ones first, and UsedMore how many
	// others.
	Used     []Use
	UsedMore int
}

func (e *ExhaustedError) Error() string {
	var s strings.Builder
	s.WriteString(e.What)
	if e.Wanted.IsValid() && len(e.With) > 0 {
		fmt.Fprintf(&s, " cannot stay %s, which overlaps %s, and", e.Wanted, list(e.With, e.WithMore))
	}
	if len(e.Pools) == 0 {
		s.WriteString(" has no pool of its family to be mapped to: configure one")
		return s.String()
	}
	fmt.Fprintf(&s, " finds no free /%d in the pools", e.Bits)
	fits := false
	for i, p := range e.Pools {
		s.WriteString([]string{" ", ", "}[min(i, 1)] + p.String())
		if p.Bits() > e.Bits {
			s.WriteString(" (too small)")
		} else {
			fits = true
		}
	}
	if !fits {
		fmt.Fprintf(&s, ": none is as large as a /%d; configure a larger pool, or exchange smaller ranges", e.Bits)
	} else {
		fmt.Fprintf(&s, ": in use are %s", list(e.Used, e.UsedMore))
	}
	return s.String()
}

// Is matches ErrExhausted.
func (e *ExhaustedError) Is(target error) bool { return target == ErrExhausted }

// list shows the first uses and counts the others.
func list(uses []Use, more int) string {
	parts := make([]string, 0, len(uses)+1)
	for _, u := range uses {
		parts = append(parts, u.String())
	}
	if more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, ", ")
}

// largest keeps the largest of the uses that it is given, and counts the others:
// there may be thousands, and nobody reads them all.
type largest struct {
	uses []Use
	more int
}

func (l *largest) add(u Use) {
	if n := len(l.uses); n == shown && u.Prefix.Bits() > l.uses[n-1].Prefix.Bits() {
		l.more++ // most of many take this way
		return
	}
	i, found := slices.BinarySearchFunc(l.uses, u, func(a, b Use) int {
		return cmp.Or(a.Prefix.Bits()-b.Prefix.Bits(), a.Prefix.Addr().Compare(b.Prefix.Addr()), strings.Compare(a.By, b.By))
	})
	if found {
		return
	}
	l.uses = slices.Insert(l.uses, i, u)
	if len(l.uses) > shown {
		l.uses = l.uses[:shown]
		l.more++
	}
}

func (l largest) String() string { return list(l.uses, l.more) }
