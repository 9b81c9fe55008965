package ipam

import (
	"errors"
	"fmt"
)

// Errors about a range match one of these.
var (
	// ErrInvalid means that a prefix is not valid for its purpose.
	ErrInvalid = errors.New("invalid range")
	// ErrTooLarge means that a peer has more addresses than it may.
	ErrTooLarge = errors.New("too many addresses")
	// ErrConflict means that a wish cannot be met because the range is in use.
	ErrConflict = errors.New("range in use")
	// ErrExhausted means that the pools have no free range of a length.
	ErrExhausted = errors.New("no free range")
)

// rangeError is an error with a text for the user that matches one of the errors above.
type rangeError struct {
	kind error
	text string
}

func (e *rangeError) Error() string { return e.text }

func (e *rangeError) Unwrap() error { return e.kind }

func errorf(kind error, format string, args ...any) error {
	return &rangeError{kind, fmt.Sprintf(format, args...)}
}
