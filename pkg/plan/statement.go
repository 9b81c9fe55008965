package plan

import (
	"encoding/json"
	"net/netip"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// Statement is a value, with its source or the reason for it.
type Statement struct {
	What   string `json:"what"`
	Value  Value  `json:"value"`
	Reason string `json:"reason"`
	// Assumed means that the value was inferred, not read. What only node agents know is assumed until they have
	// reported.
	Assumed bool `json:"assumed,omitempty"`
	// DuringRun means that the value becomes known when the plan is carried out.
	DuringRun bool `json:"duringRun,omitempty"`
}

// RangePlan is a range, and the range by which the cluster knows it.
type RangePlan struct {
	What    string       `json:"what"`
	Real    netip.Prefix `json:"real,omitzero"`
	Mapped  netip.Prefix `json:"mapped,omitzero"`
	Reason  string       `json:"reason"`
	Assumed bool         `json:"assumed,omitempty"`
	// DuringRun means that the range is not known before the plan is carried out.
	DuringRun bool `json:"duringRun,omitempty"`
}

// Value is a text in a plan: a known one, or a description of a value that becomes known when the plan is carried out.
type Value struct{ known, later string }

// Known returns a known value.
func Known(text string) Value { return Value{known: text} }

// Later returns a value that becomes known during the run. The text describes its source.
func Later(what string) Value { return Value{later: what} }

// IsKnown reports whether the value is known already.
func (v Value) IsKnown() bool { return v.later == "" }

// String returns the value, or its description in parentheses.
func (v Value) String() string {
	if v.IsKnown() {
		return v.known
	}
	return "(" + v.later + ")"
}

// forJSON returns a text, or an object that describes the future value.
func (v Value) forJSON() any {
	if v.IsKnown() {
		return v.known
	}
	return map[string]any{"duringRun": v.later}
}

// MarshalJSON writes a text, or an object that describes the future value.
func (v Value) MarshalJSON() ([]byte, error) { return json.Marshal(v.forJSON()) }

// UnmarshalJSON reads the output of MarshalJSON.
func (v *Value) UnmarshalJSON(raw []byte) error {
	var later struct{ DuringRun string }
	if json.Unmarshal(raw, &later) == nil && later.DuringRun != "" {
		*v = Later(later.DuringRun)
		return nil
	}
	*v = Value{}
	return json.Unmarshal(raw, &v.known)
}

// known returns a statement about a known value.
func known(what, value, reason string) Statement {
	return Statement{What: what, Value: Known(value), Reason: reason}
}

// later returns a statement about a value that becomes known during the run.
func later(what, value, reason string) Statement {
	return Statement{What: what, Value: Later(value), Reason: reason, DuringRun: true}
}

// byFlag returns the reason for a value: a flag, or that it was so before.
func byFlag(given bool, flag string) string {
	if given {
		return "given by " + flag
	}
	return "as before"
}

// secret returns the name of one of our Secrets for a plan.
func secret(name string) string { return "Secret " + v1alpha1.Namespace + "/" + name }
