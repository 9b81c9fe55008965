package plan

import (
	"encoding/json"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// Value is what a plan says of something: a text that is known, or what comes about when the plan is carried out.
type Value struct{ known, later string }

// Known is a value that is known.
func Known(text string) Value { return Value{known: text} }

// Later is a value that comes about during the run. The text says where from.
func Later(what string) Value { return Value{later: what} }

// IsKnown says that there is a value already.
func (v Value) IsKnown() bool { return v.later == "" }

// String is the value, or what it will be, in brackets.
func (v Value) String() string {
	if v.IsKnown() {
		return v.known
	}
	return "(" + v.later + ")"
}

// known is a statement of a value that is known.
func known(what, value, reason string) Statement {
	return Statement{What: what, Value: Known(value), Reason: reason}
}

// later is one of a value that comes about during the run.
func later(what, value, reason string) Statement {
	return Statement{What: what, Value: Later(value), Reason: reason, DuringRun: true}
}

// byFlag is why something is as it is: a flag says so, or it was so before.
func byFlag(given bool, flag string) string {
	if given {
		return "given by " + flag
	}
	return "as before"
}

// secret is how a plan names a Secret of ours.
func secret(name string) string { return "Secret " + v1alpha1.Namespace + "/" + name }

// plain is a text, or an object that says what the value will be.
func (v Value) plain() any {
	if v.IsKnown() {
		return v.known
	}
	return map[string]any{"duringRun": v.later}
}

// MarshalJSON writes a text, or an object that says what the value will be.
func (v Value) MarshalJSON() ([]byte, error) { return json.Marshal(v.plain()) }

// UnmarshalJSON reads what MarshalJSON writes.
func (v *Value) UnmarshalJSON(raw []byte) error {
	var later struct{ DuringRun string }
	if json.Unmarshal(raw, &later) == nil && later.DuringRun != "" {
		*v = Later(later.DuringRun)
		return nil
	}
	*v = Value{}
	return json.Unmarshal(raw, &v.known)
}
