package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// choices is a flag whose value is one of a list, for all clusters, or as
// CLUSTER=VALUE for one of them. It can be repeated.
type choices struct {
	allowed []string
	// withPort is a value that may have a port, as VALUE:PORT.
	withPort string
	values   []string
}

func newChoices(withPort string, allowed ...string) *choices {
	return &choices{allowed: allowed, withPort: withPort}
}

// String returns the values as the environment variable would have them.
func (c *choices) String() string {
	if len(c.values) == 0 {
		return c.allowed[0]
	}
	return strings.Join(c.values, " ")
}

// Type is what --help shows.
func (c *choices) Type() string { return "[CLUSTER=]" + strings.Join(c.allowed, "|") }

// Set refuses what is not in the list.
func (c *choices) Set(s string) error {
	if _, _, err := c.parse(s[strings.LastIndex(s, "=")+1:]); err != nil {
		return err
	}
	c.values = append(c.values, s)
	return nil
}

// parse returns the value as the list has it, and its port.
func (c *choices) parse(s string) (value string, port int32, err error) {
	name, portText, hasPort := strings.Cut(s, ":")
	i := slices.IndexFunc(c.allowed, func(a string) bool { return strings.EqualFold(a, name) })
	if i < 0 || hasPort && c.allowed[i] != c.withPort {
		return "", 0, fmt.Errorf("%q must be one of %s", s, strings.Join(c.allowed, ", "))
	}
	if hasPort {
		n, err := strconv.ParseUint(portText, 10, 16)
		if err != nil || n == 0 {
			return "", 0, fmt.Errorf("%q is not a port from 1 to 65535", portText)
		}
		port = int32(n)
	}
	return c.allowed[i], port, nil
}
