package doctor

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// Result of a check, or of one finding.
type Result string

// The results, from the best to the worst.
const (
	OK Result = "ok"
	// NotSeen is for what could not be read.
	NotSeen Result = "not seen"
	Warning Result = "warning"
	Failed  Result = "failed"
)

func (r Result) rank() int { return slices.Index([]Result{OK, NotSeen, Warning, Failed}, r) }

// Bad says that something is amiss.
func (r Result) Bad() bool { return r.rank() >= Warning.rank() }

// Finding is what is amiss in one place.
type Finding struct {
	// Check is the name of the one that found it.
	Check  string `json:"check"`
	Result Result `json:"result"`
	// Cluster, and where it is known Node and Peering (the Peering's name), and Plane.
	Cluster string `json:"cluster"`
	Node    string `json:"node,omitempty"`
	Peering string `json:"peering,omitempty"`
	Plane   *int32 `json:"plane,omitempty"`
	// What is amiss, as a sentence without an end, Evidence what shows it.
	What     string `json:"what"`
	Evidence string `json:"evidence,omitempty"`
	// Hint is what to do. It ends in a command.
	Hint string `json:"hint,omitempty"`
	// Follows is the check with the finding from which this one follows, empty where there is none.
	Follows string `json:"follows,omitempty"`

	// pairs are the peerings that it is about, by both clusters' IDs.
	pairs []string
}

// Check is one thing that is looked at.
type Check struct {
	// Name is stable: liqonet-SUBJECT-NUMBER.
	Name     string `json:"name"`
	Category string `json:"category"`
	// About is what holds where all is well.
	About  string `json:"about"`
	Result Result `json:"result"`
	// Findings are empty where all is well.
	Findings []Finding `json:"findings,omitempty"`
	// Anchor is the section of docs/troubleshooting.md.
	Anchor string `json:"anchor"`

	// needs are the parts of a cluster without which it says nothing.
	needs []Part
	look  func(x *look)
}

// Report is what was found.
type Report struct {
	// Cause is the finding that explains the others, nil where nothing is amiss.
	Cause  *Finding `json:"cause,omitempty"`
	Result Result   `json:"result"`
	Checks []Check  `json:"checks"`
}

// look is one check of one cluster.
type look struct {
	*Facts
	*Cluster
	check *Check
	found []Finding
}

// say adds a finding.
func (x *look) say(f Finding) *Finding {
	f.Check, f.Cluster = x.check.Name, x.Cluster.Name
	x.found = append(x.found, f)
	return &x.found[len(x.found)-1]
}

// failed adds one of a node, or of the whole cluster.
func (x *look) failed(node, what, evidence, hint string) *Finding {
	return x.say(Finding{Result: Failed, Node: node, What: what, Evidence: evidence, Hint: hint})
}

// failedAt is the same of a node that packets of the peerings with a gateway on it do not pass.
func (x *look) failedAt(node, what, evidence, hint string) {
	x.failed(node, what, evidence, hint).pairs = x.pairs(func(p *v1alpha1.Peering) bool {
		return slices.ContainsFunc(p.Spec.Planes, func(plane v1alpha1.Plane) bool { return x.gatewayNode(p, plane.Index) == node })
	})
}

// warned is the same of what does no harm yet.
func (x *look) warned(node, what, evidence, hint string) *Finding {
	return x.say(Finding{Result: Warning, Node: node, What: what, Evidence: evidence, Hint: hint})
}

// unseen says what could not be seen.
func (x *look) unseen(node, why string) {
	x.say(Finding{Result: NotSeen, Node: node, What: why})
}

// kubectl is a command for the user, in our namespace.
func (x *look) kubectl(format string, args ...any) string {
	return x.Kubectl + " -n liqonet-system " + fmt.Sprintf(format, args...)
}

// peer is the command that puts right what peer makes, of a peering with another cluster.
func (x *look) peer(other string) string {
	return "kubectl liqonet peer " + x.Cluster.Name + " " + other
}

// status is the command that shows a peering with another cluster.
func (x *look) status(other string) string {
	return "kubectl liqonet status " + x.Cluster.Name + " " + other
}

// fix is the command that makes our objects again.
func (x *look) fix() string { return "kubectl liqonet doctor " + x.Cluster.Name + " --fix" }

// again is the command that puts right what peer makes. Without a peering it is about the other cluster that was named.
func (x *look) again() string {
	for _, p := range x.Cluster.Peerings {
		return x.peer(p.Spec.Remote.Name)
	}
	if x.Ledger != nil && len(x.Ledger.Spec.Peers) > 0 {
		return x.peer(x.Ledger.Spec.Peers[0].Name)
	}
	for _, c := range x.Clusters {
		if c != x.Cluster {
			return x.peer(c.Name)
		}
	}
	return "kubectl liqonet peer --help"
}

// Examine looks at all facts.
func Examine(f *Facts) *Report {
	r := &Report{Result: OK, Checks: Catalogue()}
	for i := range r.Checks {
		check := &r.Checks[i]
		for _, c := range f.Clusters {
			x := &look{Facts: f, Cluster: c, check: check}
			if why := x.missing(); why != "" {
				x.unseen("", why)
			} else {
				check.look(x)
			}
			for f := range each(x.found) {
				f.pairs = append(f.pairs, x.pairs(func(p *v1alpha1.Peering) bool { return p.Name == f.Peering })...)
			}
			check.Findings = append(check.Findings, x.found...)
		}
		check.Result, check.Anchor = OK, Anchor(check.Name)
		for _, found := range check.Findings {
			if found.Result.rank() > check.Result.rank() {
				check.Result = found.Result
			}
		}
	}
	r.explain()
	return r
}

// Anchor is where docs/troubleshooting.md tells of a check.
func Anchor(name string) string { return "docs/troubleshooting.md#" + name }

// missing says why a check of a cluster says nothing.
func (x *look) missing() string {
	if len(x.check.needs) > 0 && x.Unreachable+x.Refused != "" { // others are about the API server itself
		return "the API server does not answer"
	}
	var why []string
	for _, part := range x.check.needs {
		if reason := x.Unseen[part]; reason != "" && !slices.Contains(why, reason) {
			why = append(why, reason)
		}
	}
	return strings.Join(why, "; ")
}

// Counts is how many checks had each result.
func (r *Report) Counts() map[Result]int {
	out := map[Result]int{}
	for _, c := range r.Checks {
		out[c.Result]++
	}
	return out
}

// each goes over elements where they are: they are large.
func each[T any](of []T) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for i := range of {
			if !yield(&of[i]) {
				return
			}
		}
	}
}

// listed names the first three, and counts the others.
func listed(names []string) string {
	const most = 3
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
