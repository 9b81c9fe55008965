// Package check defines checks and findings for doctor and verify, and determines which finding explains others. It is pure.
//
// Out of scope: the checks themselves (pkg/doctor, pkg/verify), and printing.
package check

import (
	"cmp"
	"slices"

	"github.com/samber/lo"
)

// Result is the result of a check or of one finding.
type Result string

// The results, from the best to the worst.
const (
	Passed Result = "passed"
	// Skipped means that the check could not be performed.
	Skipped Result = "skipped"
	Warning Result = "warning"
	Failed  Result = "failed"
)

func (r Result) rank() int { return slices.Index([]Result{Passed, Skipped, Warning, Failed}, r) }

// IsProblem reports whether the result is a warning or a failure.
func (r Result) IsProblem() bool { return r.rank() >= Warning.rank() }

// Finding is a problem in one place, or the result of one attempt.
type Finding struct {
	// Check is the name of the check, for findings that are shown without it.
	Check  string `json:"check,omitempty"`
	Result Result `json:"result"`
	// Cluster is where the problem is. Node, Peering (the Peering's name) and Plane narrow it down, if known.
	Cluster string `json:"cluster,omitempty"`
	Node    string `json:"node,omitempty"`
	Peering string `json:"peering,omitempty"`
	Plane   *int32 `json:"plane,omitempty"`
	// From and To describe the sender and the receiver, and Sent the packet.
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
	Sent string `json:"sent,omitempty"`
	// Problem describes the problem, as a sentence without a period. Evidence is the observation behind it, or the response.
	Problem  string `json:"what,omitempty"`
	Evidence string `json:"evidence,omitempty"`
	// Hint says what to do. It ends in a command.
	Hint string `json:"hint,omitempty"`
	// CausedBy is the name of the check whose finding explains this one, empty if there is none.
	CausedBy string `json:"follows,omitempty"`
	// Pairs identify the affected peerings. Both clusters use the same identifier.
	Pairs []string `json:"-"`
}

// String returns the cluster and the problem or, for an attempt, the sender, packet and receiver.
func (f *Finding) String() string {
	if f.From == "" {
		return f.Cluster + ": " + f.Problem
	}
	out := f.From
	if f.Sent != "" {
		out += ", " + f.Sent
	}
	if f.To != "" {
		out += " (" + f.To + ")"
	}
	return out
}

// Scope is the scope in which the findings of a check explain others.
type Scope int

const (
	// Nearby covers the same node, and the same peerings in both clusters.
	Nearby Scope = iota
	// InCluster covers the whole cluster, and the same peerings in the other one.
	InCluster
	// Everywhere covers all clusters.
	Everywhere
)

// Check is a check of doctor, or a check of verify in one direction.
type Check struct {
	// Name is stable across versions.
	Name     string `json:"name"`
	Category string `json:"category,omitempty"`
	// Description states what the check expects.
	Description string `json:"about"`
	// From and To are the clusters of the direction.
	From   string `json:"from,omitempty"`
	To     string `json:"to,omitempty"`
	Result Result `json:"result"`
	// Message says why the check was skipped, in full or in part.
	Message string `json:"message,omitempty"`
	// Hint is a command, if the check has failed.
	Hint     string    `json:"hint,omitempty"`
	Findings []Finding `json:"findings,omitempty"`
	// Anchor is the address of the documentation's section.
	Anchor string `json:"anchor,omitempty"`

	// DependsOn names the checks whose findings explain those of this one. Scope is the scope in which its own findings explain others.
	DependsOn []string `json:"-"`
	Scope     Scope    `json:"-"`
}

// WithResult returns the findings that have the given result.
func (c *Check) WithResult(r Result) []Finding {
	return lo.Filter(c.Findings, func(f Finding, _ int) bool { return f.Result == r })
}

// explains reports whether the other finding is in the scope of the cause.
func (r Scope) explains(cause, other *Finding) bool {
	same := cause.Cluster == other.Cluster
	if r == Everywhere || same && (r == InCluster || cause.Node != "" && cause.Node == other.Node) {
		return true
	}
	// A finding that concerns no single peering cannot follow from another cluster.
	return (same || other.Peering != "") && lo.Some(other.Pairs, cause.Pairs)
}

// Report is the result of a run.
type Report struct {
	// Cause is the finding that explains the others, nil if nothing is wrong.
	Cause  *Finding `json:"cause,omitempty"`
	Result Result   `json:"result"`
	Checks []Check  `json:"checks"`
}

// Counts returns the number of checks by result.
func (r *Report) Counts() map[Result]int {
	return lo.CountValuesBy(r.Checks, func(c Check) Result { return c.Result })
}

// Worst returns the first of the findings with the worst result, nil if there are none.
func Worst(findings []*Finding) *Finding {
	return lo.MaxBy(findings, func(a, b *Finding) bool { return a.Result.rank() > b.Result.rank() })
}

// Explain sets CausedBy of the findings, the result, and the cause: the worst finding that does not follow from another one. Among equals,
// it chooses the one with the widest reach, then the one on which most checks depend.
func (r *Report) Explain() {
	checks := lo.KeyBy(r.Checks, func(c Check) string { return c.Name })
	dependents := lo.CountValues(lo.FlatMap(r.Checks, func(c Check, _ int) []string { return c.DependsOn }))
	wrong := lo.Filter(lo.FlatMap(r.Checks, func(c Check, _ int) []*Finding { return lo.ToSlicePtr(c.Findings) }),
		func(f *Finding, _ int) bool { return f.Result.IsProblem() })
	slices.SortStableFunc(wrong, func(a, b *Finding) int {
		return cmp.Or(int(checks[b.Check].Scope-checks[a.Check].Scope), dependents[b.Check]-dependents[a.Check])
	})
	for i, cause := range wrong {
		for k, other := range wrong {
			// A finding that itself follows from another one explains only later ones, so there are no cycles.
			if other.CausedBy == "" && other.Check != cause.Check && (cause.CausedBy == "" || k > i) &&
				slices.Contains(checks[other.Check].DependsOn, cause.Check) && checks[cause.Check].Scope.explains(cause, other) {
				other.CausedBy = cause.Check
			}
		}
	}
	r.Cause = Worst(lo.Filter(wrong, func(f *Finding, _ int) bool { return f.CausedBy == "" }))
	r.Result = cmp.Or(lo.FromPtr(Worst(wrong)).Result, Passed)
}
