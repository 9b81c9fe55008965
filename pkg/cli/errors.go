package cli

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/output"
)

// explain returns the error's message, and its hint on a second line. A pairsError already contains the hints.
func explain(err error, indent string) output.Lines {
	if p := (*pairsError)(nil); errors.As(err, &p) {
		return p.text
	}
	text := output.OneLine(err.Error())
	if e := (*kube.Error)(nil); errors.As(err, &e) && e.Hint != "" {
		text += "\n" + indent + output.OneLine(e.Hint)
	}
	return output.Lines(text)
}

// pairsError lists the failed ones of several pairs or clusters.
type pairsError struct {
	text output.Lines
	// partial is true if others did not fail.
	partial bool
	// first is the first of the errors.
	first error
}

func (e *pairsError) Error() string { return string(e.text) }

func (e *pairsError) Unwrap() error { return e.first }

// failuresOf returns a pairsError of the failed elements, or nil if none failed. For a single element, it returns that element's error.
func failuresOf[T any](kind string, all []T, of func(T) (name string, err error)) error {
	var first error
	var failed []string
	for _, one := range all {
		if name, err := of(one); err != nil {
			first = cmp.Or(first, err)
			failed = append(failed, fmt.Sprintf("  %s: %s", output.OneLine(name), explain(err, "    ")))
		}
	}
	if first == nil || len(all) == 1 {
		return first
	}
	text := fmt.Sprintf("%d of %d %s failed\n%s", len(failed), len(all), kind, strings.Join(failed, "\n"))
	return &pairsError{output.Lines(text), len(failed) < len(all), first}
}
