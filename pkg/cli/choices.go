package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// oneOf is a flag whose value is one of a list, or empty if it is so from the beginning.
type oneOf struct {
	value string
	// kind is what --help calls the value.
	kind    string
	allowed []string
}

// String returns the value.
func (o *oneOf) String() string { return o.value }

// Type is what --help shows.
func (o *oneOf) Type() string { return o.kind }

func (o *oneOf) completions() []cobra.Completion { return o.allowed }

// Set refuses what is not in the list.
func (o *oneOf) Set(s string) error {
	if s != "" && !slices.Contains(o.allowed, s) {
		return fmt.Errorf("%q must be one of %s", s, strings.Join(o.allowed, ", "))
	}
	o.value = s
	return nil
}

// lister is a flag that can be repeated.
type lister interface{ GetSlice() []string }

// choices is a flag whose value is one of a list, for all clusters, or as
// CLUSTER=VALUE for one of them. It can be repeated.
type choices struct {
	// allowed are the values; the first one is the default.
	allowed []string
	// withPort is the value that may have a port, as VALUE:PORT.
	withPort string
	values   []string
}

// String returns the values as the environment variable would have them.
func (c *choices) String() string {
	if len(c.values) == 0 {
		return c.allowed[0]
	}
	return strings.Join(c.values, " ")
}

// Type is what --help shows.
func (c *choices) Type() string { return "value" }

// GetSlice returns the values, spelled as in the list.
func (c *choices) GetSlice() []string { return c.values }

func (c *choices) completions() []cobra.Completion { return c.allowed }

// Set refuses what is not in the list.
func (c *choices) Set(s string) error {
	at := strings.LastIndex(s, "=") + 1
	value, _, hasPort := strings.Cut(s[at:], ":")
	i := slices.IndexFunc(c.allowed, func(a string) bool { return strings.EqualFold(a, value) })
	if i < 0 || hasPort && c.allowed[i] != c.withPort {
		return fmt.Errorf("%q must be one of %s", s[at:], strings.Join(c.allowed, ", "))
	}
	c.values = append(c.values, s[:at]+c.allowed[i]+s[at+len(value):])
	return nil
}
