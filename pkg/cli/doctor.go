package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/liqonet/liqonet/pkg/check"
	"github.com/liqonet/liqonet/pkg/diagnose"
	"github.com/liqonet/liqonet/pkg/doctor"
	"github.com/liqonet/liqonet/pkg/kube"
)

func newDoctor(g *globals) *cobra.Command {
	var out *output
	var fix bool
	var read diagnose.DoctorOptions
	cmd := &cobra.Command{
		Use:   "doctor [CLUSTER…]",
		Short: "Say what is wrong with clusters and their peerings, and what to do",
		Long: `Say what is wrong with the clusters that are named, or else with that of the
current context and its peers, before and after peering. The first line names
the cause, and what to do about it. Below it is what was looked at.

Pods look at the kernel of each node for some seconds. Otherwise nothing is
changed. What you may not see is named, and is no failure.

-o wide lists all checks. The exit code is 11 if one has failed.

With --fix, leftovers of ours are removed, and objects of ours that somebody
has changed are made again as peer does it.`,
		Example: `  kubectl liqonet doctor
  kubectl liqonet doctor cluster-a cluster-b
  kubectl liqonet doctor cluster-a cluster-b -o wide
  kubectl liqonet doctor cluster-a cluster-b --fix`,
		ValidArgsFunction: g.completeContexts(math.MaxInt),
		Args:              cobra.ArbitraryArgs,
		RunE:              func(cmd *cobra.Command, args []string) error { return g.doctor(cmd.Context(), args, fix, read, out) },
	}
	out = addOutput(cmd.Flags(), "junit")
	cmd.Flags().BoolVar(&fix, "fix", false, "remove leftovers of ours, and make our objects again as peer does it")
	cmd.Flags().BoolVar(&read.ObjectsOnly, "objects-only", false, "run no pods: what only kernels and packets tell is not seen")
	addTimeout(cmd, 2*time.Minute)
	return cmd
}

// doctorDocument is what doctor prints for programs.
type doctorDocument struct {
	*check.Report `json:",inline"`
	// Fixed lists what --fix has changed.
	Fixed []string `json:"fixed,omitempty"`
	// Locks say which command works on which cluster.
	Locks []string `json:"locks,omitempty"`
}

func (g *globals) doctor(ctx context.Context, refs []string, fix bool, read diagnose.DoctorOptions, out *output) error {
	clusters, errs, err := g.patients(ctx, refs)
	if err != nil {
		return err
	}
	progress := newProgress(g.streams.Err)
	facts, err := diagnose.ReadFacts(ctx, clusters, errs, read, progress)
	if err != nil {
		return cmp.Or(interrupted(ctx, "read the clusters"), err)
	}
	doc := &doctorDocument{Report: doctor.Examine(facts)}
	if fix {
		if doc.Fixed, err = diagnose.Fix(ctx, clusters, facts, doc.Report, progress); err != nil {
			return err
		}
		if len(doc.Fixed) > 0 {
			if facts, err = diagnose.ReadFacts(ctx, clusters, errs, read, progress); err != nil {
				return err
			}
			doc.Report = doctor.Examine(facts)
		}
	}
	for _, c := range facts.Clusters {
		for _, held := range c.Locks {
			doc.Locks = append(doc.Locks, c.Name+": "+held)
		}
	}
	if err := out.printDiagnosis(g.streams.Out, doc); err != nil {
		return err
	}
	if doc.Result == check.Failed {
		return ending{ExitFound, "a check has failed"}
	}
	return nil
}

// patients are the clusters that are named, or else that of the current context and its peers where the kubeconfig has contexts of their
// names. One that does not answer is among them.
func (g *globals) patients(ctx context.Context, refs []string) ([]*kube.Cluster, []error, error) {
	refs, contexts, implicit, err := g.named("doctor", refs)
	if err != nil {
		return nil, nil, err
	}
	clusters, errs, err := g.identify(ctx, refs)
	if err = cmp.Or(err, interrupted(ctx, "ask the clusters who they are")); err != nil {
		return nil, nil, err
	}
	if implicit && errs[0] == nil {
		names, _ := diagnose.Peers(ctx, clusters[0]) // those that cannot be read are not asked
		names = slices.DeleteFunc(names, func(name string) bool { return contexts[name] == nil || name == refs[0] })
		if len(names) > 0 {
			others, why, err := g.identify(ctx, names)
			if err != nil {
				return nil, nil, err
			}
			clusters, errs = append(clusters, others...), append(errs, why...)
		}
	}
	return clusters, errs, checkDistinct(clusters)
}

// printDiagnosis shows the cause, and then each category: of those in which all is well a line, of others what is amiss.
func (o *output) printDiagnosis(w io.Writer, d *doctorDocument) error {
	if !o.forPeople() {
		return o.printReport(w, "Diagnosis", junitSuite{Name: "doctor"}, d, d.Checks, check.Failed)
	}
	t := text{w}
	for _, fixed := range d.Fixed {
		t.printf("Fixed: %s\n", fixed)
	}
	counts := d.Counts()
	switch c := d.Cause; {
	case c == nil && counts[check.Skipped] > 0:
		t.printf("Nothing found: %d checks passed, %d could not be seen\n", counts[check.Passed], counts[check.Skipped])
	case c == nil:
		t.printf("Nothing found: %d checks passed\n", counts[check.Passed])
	default:
		word := "Cause"
		if c.Result == check.Warning {
			word = "Nothing is broken. Warning"
		}
		t.printf("%s: %s: %s\n", word, c.Cluster, c.What)
		o.printFinding(t, c, "  ")
	}
	for _, held := range d.Locks {
		t.printf("At work in %s\n", held)
	}
	t.printf("\n")
	for i, first := range d.Checks {
		if i == 0 || d.Checks[i-1].Category != first.Category {
			o.printCategory(t, slices.DeleteFunc(slices.Clone(d.Checks), func(c check.Check) bool { return c.Category != first.Category }))
		}
	}
	return nil
}

// printCategory shows which checks of a category have not passed; those that could not be seen by their reasons.
func (o *output) printCategory(t text, checks []check.Check) {
	passed := 0
	var all []unknown
	for _, c := range checks {
		if c.Result == check.Passed {
			passed++
		}
		for _, f := range c.Findings {
			if f.Result == check.Skipped {
				all = addUnknown(all, f.What, c.Name, f.Cluster)
			}
		}
	}
	t.printf("%s: %d of %d checks passed\n", checks[0].Category, passed, len(checks))
	for i := range checks {
		if c := &checks[i]; o.wide() || c.Result.Bad() {
			o.printCheck(t, c)
		}
	}
	for _, u := range all {
		what := "checks"
		if len(u.checks) == 1 {
			what = "check"
		}
		t.printf("  not seen: %d %s of %s: %s\n", len(u.checks), what, strings.Join(u.clusters, ", "), u.why)
	}
}

// printCheck shows one check. What follows from something else is told by a line.
func (o *output) printCheck(t text, c *check.Check) {
	t.printf("%s\n", lines(fmt.Sprintf("  %-9s%-23s%s", c.Result, c.Name, c.About)))
	for k := range c.Findings {
		f := &c.Findings[k]
		switch {
		case !f.Result.Bad():
		case f.Follows != "":
			t.printf("    %s: %s (follows from %s)\n", f.Cluster, f.What, f.Follows)
		default:
			t.printf("    %s: %s\n", f.Cluster, f.What)
			o.printFinding(t, f, "      ")
		}
	}
	if c.Result.Bad() {
		t.printf("    see %s\n", c.Anchor)
	}
}

// printFinding shows what a finding is known by, and what to do.
func (o *output) printFinding(t text, f *check.Finding, indent string) {
	for _, line := range []string{f.Evidence, f.Hint} {
		if line = strings.TrimSpace(line); line != "" {
			t.printf("%s%s\n", lines(indent), line)
		}
	}
}
