// Package check has what doctor and verify have in common: checks, what they find, and which finding explains others. It is pure.
//
// Out of scope: which checks there are (pkg/doctor, pkg/verify), and printing.
package check

import (
	"cmp"
	"slices"

	"github.com/samber/lo"
)

// Result of a check, or of one finding.
type Result string

// The results, from the best to the worst.
const (
	Passed Result = "passed"
	// Skipped is for what could not be tried or read.
	Skipped Result = "skipped"
	Warning Result = "warning"
	Failed  Result = "failed"
)

func (r Result) rank() int { return slices.Index([]Result{Passed, Skipped, Warning, Failed}, r) }

// Bad says that something is wrong.
func (r Result) Bad() bool { return r.rank() >= Warning.rank() }

// Finding is what is wrong in one place, or what one attempt has come to.
type Finding struct {
	// Check is the name of the one that found it, where it stands without its check.
	Check  string `json:"check,omitempty"`
	Result Result `json:"result"`
	// Cluster, and where it is known Node and Peering (the Peering's name), and Plane.
	Cluster string `json:"cluster,omitempty"`
	Node    string `json:"node,omitempty"`
	Peering string `json:"peering,omitempty"`
	Plane   *int32 `json:"plane,omitempty"`
	// From and To say in words who was asked by whom, Sent what was sent.
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
	Sent string `json:"sent,omitempty"`
	// What is wrong, as a sentence without an end, Evidence what shows it, or what came back.
	What     string `json:"what,omitempty"`
	Evidence string `json:"evidence,omitempty"`
	// Hint is what to do. It ends in a command.
	Hint string `json:"hint,omitempty"`
	// Follows is the check with the finding from which this one follows, empty where there is none.
	Follows string `json:"follows,omitempty"`
	// Pairs are the peerings that it is about, each named alike in both clusters.
	Pairs []string `json:"-"`
}

// Reach is how far the findings of a check explain others.
type Reach int

const (
	// Nearby is the same node, and the same peerings in both clusters.
	Nearby Reach = iota
	// InCluster is all of the cluster, and the same peerings.
	InCluster
	// Everywhere is any cluster.
	Everywhere
)

// Check is one thing that is looked at, or tried in one direction.
type Check struct {
	// Name is stable.
	Name     string `json:"name"`
	Category string `json:"category,omitempty"`
	// About is what holds where all is well.
	About string `json:"about"`
	// From and To are the clusters of a direction.
	From   string `json:"from,omitempty"`
	To     string `json:"to,omitempty"`
	Result Result `json:"result"`
	// Message says why it was skipped, or what else is worth to know.
	Message string `json:"message,omitempty"`
	// Hint is a command, where it has failed.
	Hint     string    `json:"hint,omitempty"`
	Findings []Finding `json:"findings,omitempty"`
	// Anchor is the section of the documentation.
	Anchor string `json:"anchor,omitempty"`

	// DependsOn names the checks whose findings explain those of this one, and Reach says how far its own explain others.
	DependsOn []string `json:"-"`
	Reach     Reach    `json:"-"`
}

// Count is how many of the findings have a result.
func (c *Check) Count(r Result) int {
	return lo.CountBy(c.Findings, func(f Finding) bool { return f.Result == r })
}

// explains says whether a finding is near enough to explain another one.
func (r Reach) explains(cause, other *Finding) bool {
	same := cause.Cluster == other.Cluster
	if r == Everywhere || same && (r == InCluster || cause.Node != "" && cause.Node == other.Node) {
		return true
	}
	// What is about no single peering follows from nothing in another cluster.
	return (same || other.Peering != "") && slices.ContainsFunc(cause.Pairs, func(pair string) bool { return slices.Contains(other.Pairs, pair) })
}

// Report is what was found.
type Report struct {
	// Cause is the finding that explains the others, nil where nothing is wrong.
	Cause  *Finding `json:"cause,omitempty"`
	Result Result   `json:"result"`
	Checks []Check  `json:"checks"`
}

// Counts is how many checks had each result.
func (r *Report) Counts() map[Result]int {
	return lo.CountValuesBy(r.Checks, func(c Check) Result { return c.Result })
}

// Explain says of each finding from which one it follows, and which one is the cause: the worst that follows from no other one. Of these it is
// the one that reaches farthest, and then the one on which most checks depend.
func (r *Report) Explain() {
	var wrong []*Finding
	checks, dependents := map[string]*Check{}, map[string]int{}
	for i := range r.Checks {
		c := &r.Checks[i]
		checks[c.Name] = c
		for _, name := range c.DependsOn {
			dependents[name]++
		}
		for k := range c.Findings {
			if c.Findings[k].Result.Bad() {
				wrong = append(wrong, &c.Findings[k])
			}
		}
	}
	slices.SortStableFunc(wrong, func(a, b *Finding) int {
		return cmp.Or(int(checks[b.Check].Reach-checks[a.Check].Reach), dependents[b.Check]-dependents[a.Check])
	})
	r.Result = Passed
	for i, cause := range wrong {
		for k, other := range wrong {
			// What follows from others explains only what comes after it: so nothing follows from itself.
			if other.Follows == "" && other.Check != cause.Check && (cause.Follows == "" || k > i) &&
				slices.Contains(checks[other.Check].DependsOn, cause.Check) && checks[cause.Check].Reach.explains(cause, other) {
				other.Follows = cause.Check
			}
		}
	}
	for _, f := range wrong {
		if f.Result.rank() > r.Result.rank() {
			r.Result = f.Result
		}
		if f.Follows == "" && (r.Cause == nil || f.Result.rank() > r.Cause.Result.rank()) {
			r.Cause = f
		}
	}
}
