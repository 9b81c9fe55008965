package ipam

import (
	"errors"
	"fmt"
)

// The errors of this package match one of these, where they are about a range.
var (
	// ErrInvalid is a prefix that cannot be what it was given as.
	ErrInvalid = errors.New("invalid range")
	// ErrTooLarge says that a peer has more addresses than it may.
	ErrTooLarge = errors.New("too many addresses")
	// ErrConflict is a wish that cannot be met because something uses the range.
	ErrConflict = errors.New("range in use")
	// ErrExhausted says that the pools have no free range of a length.
	ErrExhausted = errors.New("no free range")
)

// rangeError is a text for the user, which matches one of the errors above.
type rangeError struct {
	kind error
	text string
}

func (e *rangeError) Error() string { return e.text }

func (e *rangeError) Unwrap() error { return e.kind }

func errorf(kind error, format string, args ...any) error {
	return &rangeError{kind, fmt.Sprintf(format, args...)}
}
