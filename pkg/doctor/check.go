// Package doctor says what is wrong with clusters and their peerings, where, and
// what to do. It is pure: Facts in, a Report out. What a fact is, is said here; who reads them are pkg/diagnose (objects) and
// agent/probe (kernels).
//
// A check has a stable name, as liqonet-mtu-01. It looks at facts and returns findings. The catalogue says on which others each
// depends, from which pkg/check tells the cause.
//
// Out of scope: reading, repairing, printing.
package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/check"
)

// Check is one of a cluster.
type Check struct {
	check.Check
	// needs are the parts of a cluster without which it says nothing.
	needs []Part
	look  func(x *look)
}

// look is one check of one cluster.
type look struct {
	*Facts
	*Cluster
	check Check
	found []check.Finding
}

// say adds a finding.
func (x *look) say(f check.Finding) *check.Finding {
	f.Check, f.Cluster = x.check.Name, x.Cluster.Name
	x.found = append(x.found, f)
	return &x.found[len(x.found)-1]
}

// failed adds one of a node, or of the whole cluster.
func (x *look) failed(node, what, evidence, hint string) *check.Finding {
	return x.say(check.Finding{Result: check.Failed, Node: node, What: what, Evidence: evidence, Hint: hint})
}

// failedAt is the same of a node that packets of the peerings with a gateway on it do not pass.
func (x *look) failedAt(node, what, evidence, hint string) {
	x.failed(node, what, evidence, hint).Pairs = x.pairs(func(p *v1alpha1.Peering) bool {
		return slices.ContainsFunc(p.Spec.Planes, func(plane v1alpha1.Plane) bool { return x.gatewayNode(p, plane.Index) == node })
	})
}

// warned is the same of what does no harm yet.
func (x *look) warned(node, what, evidence, hint string) *check.Finding {
	return x.say(check.Finding{Result: check.Warning, Node: node, What: what, Evidence: evidence, Hint: hint})
}

// unseen says what could not be seen.
func (x *look) unseen(node, why string) {
	x.say(check.Finding{Result: check.Skipped, Node: node, What: why})
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
func Examine(f *Facts) *check.Report {
	r := &check.Report{}
	for _, c := range Catalogue() {
		c.Result = check.Passed
		for _, cluster := range f.Clusters {
			x := &look{Facts: f, Cluster: cluster, check: c}
			if why := x.missing(); why != "" {
				x.unseen("", why)
			} else {
				c.look(x)
			}
			for _, f := range lo.ToSlicePtr(x.found) {
				f.Pairs = append(f.Pairs, x.pairs(func(p *v1alpha1.Peering) bool { return p.Name == f.Peering })...)
			}
			c.Findings = append(c.Findings, x.found...)
		}
		for _, result := range []check.Result{check.Skipped, check.Warning, check.Failed} {
			if c.Count(result) > 0 {
				c.Result = result
			}
		}
		if c.Result == check.Skipped {
			c.Message = c.Findings[0].What
		}
		r.Checks = append(r.Checks, c.Check)
	}
	r.Explain()
	return r
}

// missing says why a check of a cluster says nothing.
func (x *look) missing() string {
	if len(x.check.needs) > 0 && x.Unreachable+x.Refused != "" { // others are about the API server itself
		return "the API server does not answer"
	}
	why := lo.Map(x.check.needs, func(part Part, _ int) string { return x.Unseen[part] })
	return strings.Join(lo.Uniq(lo.Compact(why)), "; ")
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
