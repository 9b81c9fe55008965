package cli

import (
	"fmt"
	"slices"
	"strings"
)

// enum is a flag whose value is one of a list; the first is the default.
type enum struct {
	allowed []string
	value   string
}

func newEnum(allowed ...string) *enum { return &enum{allowed: allowed, value: allowed[0]} }

// String returns the value.
func (e *enum) String() string { return e.value }

// Type is what --help shows.
func (e *enum) Type() string { return strings.Join(e.allowed, "|") }

// Set refuses what is not in the list.
func (e *enum) Set(s string) error {
	for _, a := range e.allowed {
		if strings.EqualFold(a, s) {
			e.value = a
			return nil
		}
	}
	return fmt.Errorf("must be one of %s", strings.Join(e.allowed, ", "))
}

// oneOf checks a value that came past the flag, by environment or file.
func oneOf(flag, value string, allowed ...string) (string, error) {
	if i := slices.IndexFunc(allowed, func(a string) bool { return strings.EqualFold(a, value) }); i >= 0 {
		return allowed[i], nil
	}
	return "", usageError{fmt.Errorf("--%s: %q must be one of %s", flag, value, strings.Join(allowed, ", "))}
}
