package cli

import (
	"cmp"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/samber/lo"
	"github.com/spf13/cobra"

	"github.com/liqonet/liqonet/pkg/check"
	"github.com/liqonet/liqonet/pkg/diagnose"
	"github.com/liqonet/liqonet/pkg/doctor"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/identity"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/pkg/output"
	"github.com/liqonet/liqonet/pkg/verify"
)

// printReport prints checks in a format for programs: a document, JUnit XML in the given suite, or the names of the checks that have one of
// the given results.
func printReport(o *output.Format, w io.Writer, kind string, suite junitSuite, doc any, checks []check.Check, named ...check.Result) error {
	if o.String() == "junit" {
		return suite.print(w, checks)
	}
	names := lo.FilterMap(checks, func(c check.Check, _ int) (string, bool) { return c.Name, slices.Contains(named, c.Result) })
	return o.Print(w, kind, doc, checks, slices.Compact(names)) // a check of verify has two directions
}

// printSkipReasons calls line once for each reason for which checks were skipped, with the names of the checks and clusters.
func printSkipReasons(skipped []check.Finding, line func(why string, checks, clusters []string)) {
	for _, same := range lo.PartitionBy(skipped, func(f check.Finding) string { return f.Problem }) {
		checks := lo.Map(same, func(f check.Finding, _ int) string { return f.Check })
		clusters := lo.Map(same, func(f check.Finding, _ int) string { return f.Cluster })
		line(same[0].Problem, lo.Uniq(checks), lo.Uniq(clusters))
	}
}

// The following types are JUnit XML, as CI systems read it. It has no specification: these are the elements and attributes that all of
// them support.
type junitSuite struct {
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Time     string      `xml:"time,attr,omitempty"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Class   string        `xml:"classname,attr"`
	Name    string        `xml:"name,attr"`
	Failure *junitOutcome `xml:"failure"`
	Skipped *junitOutcome `xml:"skipped"`
}

type junitOutcome struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// print prints a test case for each check. The first word of the suite's name is the command.
func (s junitSuite) print(w io.Writer, checks []check.Check) error {
	s.Tests = len(checks)
	command, _, _ := strings.Cut(s.Name, " ")
	for _, c := range checks {
		one := junitCase{Class: command + "." + c.Name, Name: c.Description}
		if c.From != "" {
			one.Name += fmt.Sprintf(": %s → %s", c.From, c.To)
		}
		switch c.Result {
		case check.Failed:
			s.Failures++
			failed := c.WithResult(check.Failed)
			one.Failure = &junitOutcome{Message: fmt.Sprintf("%d of %d failed", len(failed), len(c.Findings))}
			for _, f := range failed {
				one.Failure.Text += fmt.Sprintf("%s: %s\n", output.OneLine(f.String()), output.OneLine(f.Evidence+"\n"+f.Hint))
			}
			one.Failure.Text += c.Hint + "\n"
		case check.Skipped:
			s.Skipped++
			one.Skipped = &junitOutcome{Message: c.Message}
		}
		s.Cases = append(s.Cases, one)
	}
	raw, err := xml.MarshalIndent(struct {
		XMLName xml.Name   `xml:"testsuites"`
		Suite   junitSuite `xml:"testsuite"`
	}{Suite: s}, "", "  ")
	if err == nil {
		_, err = io.WriteString(w, output.EscapeXML(xml.Header+string(raw)+"\n"))
	}
	return err
}

func newVerify(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify A B",
		Short: "Test with packets whether a peering works",
		Long: `Test with packets whether the peering of two clusters works: pods and nodes
reach pods, with packets of full size, through services and through each plane.
Nothing else is reachable, and nothing leaves a node unencrypted.

It runs short-lived pods of the agents' image on some nodes of both clusters, in
the namespace liqonet-system, and removes them. They only send packets to
addresses of these two clusters.

The exit code is 10 if a check fails.`,
		Example: `  kubectl liqonet verify cluster-a cluster-b
  kubectl liqonet verify cluster-a cluster-b --bench
  kubectl liqonet verify cluster-a cluster-b -o junit`,
		Args: exactArgs(2, "two clusters"),
	}
	out := output.AddFlag(cmd.Flags(), "junit")
	bench := cmd.Flags().Bool("bench", false, "also measure the speed, from pod to pod and, without the tunnel, from node to node")
	return g.pairCommand(cmd, 3*time.Minute, func(ctx context.Context, a, b *kube.Cluster, _ []string) error {
		unverified, err := identity.Compare(ctx, a, b)
		if err != nil {
			return err
		}
		report, err := diagnose.Verify(ctx, a, b, *bench, newProgress(g))
		if err == nil {
			report.Notes = append(unverified, report.Notes...)
			err = printVerification(out, g.streams.Out, report)
		}
		switch {
		case err != nil:
			return err
		case report.Result == check.Failed:
			return exitError(ExitChecks)
		case report.Result == check.Skipped:
			return &kube.Error{
				Kind: kube.NotReady, Op: "verify " + strings.Join(report.Clusters, " and "),
				Err: errors.New("pods could not be tested in both directions"), Hint: a.Kubectl + " -n liqonet-system get events",
			}
		}
		return nil
	})
}

// printVerification prints a table with a row for each check and a column for each direction, then the failures.
func printVerification(o *output.Format, w io.Writer, r *verify.Report) error {
	if !o.HumanReadable() {
		suite := junitSuite{Name: "verify " + strings.Join(r.Clusters, " "), Time: fmt.Sprintf("%.1f", r.Seconds)}
		return printReport(o, w, "Verification", suite, r, r.Checks, check.Passed, check.Skipped, check.Failed)
	}
	rows := lo.Map(lo.Chunk(r.Checks, 2), func(directions []check.Check, _ int) []any {
		there, back := directions[0], directions[1]
		return []any{there.Name, outcome(there), outcome(back), there.Description}
	})
	o.Table(w, []string{"check", "→ " + r.Clusters[1], "→ " + r.Clusters[0], "what"}, rows)
	o.Section(w, []string{"speed", "from", "to", "pods", "nodes", "ratio"}, lo.Map(r.Bench, func(s verify.Speed, _ int) []any {
		return []any{s.What, s.From, s.To, speed(s.Tunnel, s.Unit), speed(s.Direct, s.Unit), speed(s.Ratio, "")}
	}))
	for _, c := range r.Checks {
		if c.Result == check.Failed {
			printFailed(o, w, c)
		}
	}
	printSkipped(output.To(w), r)
	count := r.Counts()
	output.To(w).Printf("\nOf %d checks, %d passed, %d failed and %d were skipped, in %.1f s.\n",
		len(r.Checks), count[check.Passed], count[check.Failed], count[check.Skipped], r.Seconds)
	return nil
}

// outcome returns the result of a check with its number of cases.
func outcome(c check.Check) string {
	switch c.Result {
	case check.Passed:
		return fmt.Sprintf("ok %d", len(c.WithResult(check.Passed)))
	case check.Failed:
		return fmt.Sprintf("FAILED %d/%d", len(c.WithResult(check.Failed)), len(c.Findings))
	}
	return "skipped"
}

// maxCases is the number of cases of a failed check that are printed without -o wide.
const maxCases = 2

// printFailed prints the failed cases of a check: sender, packet, receiver and response.
func printFailed(o *output.Format, w io.Writer, c check.Check) {
	failed := c.WithResult(check.Failed)
	output.To(w).Printf("\n%s, %s → %s: %d of %d failed\n", c.Name, c.From, c.To, len(failed), len(c.Findings))
	shown := lo.Ternary(o.Wide(), failed, failed[:min(maxCases, len(failed))])
	for _, one := range shown {
		output.To(w).Printf("  %s: %s\n", &one, one.Evidence)
	}
	if more := len(failed) - len(shown); more > 0 {
		output.To(w).Printf("  (and %d more; -o wide shows all)\n", more)
	}
	if c.Hint != "" {
		output.To(w).Printf("  %s\n", c.Hint)
	}
}

// printSkipped prints each reason for which checks were skipped, and the notes of the report.
func printSkipped(t output.Text, r *verify.Report) {
	var skipped []check.Finding
	for i, c := range r.Checks {
		name := c.Name
		if other := r.Checks[i^1]; other.Result != check.Skipped || other.Message != c.Message { // the check in the other direction
			name = fmt.Sprintf("%s → %s", c.Name, c.To)
		}
		if c.Result == check.Skipped {
			skipped = append(skipped, check.Finding{Check: name, Problem: c.Message})
		}
	}
	if len(skipped)+len(r.Notes) > 0 {
		t.Printf("\n")
	}
	printSkipReasons(skipped, func(why string, checks, _ []string) { t.Printf("Skipped %s: %s\n", strings.Join(checks, ", "), why) })
	t.PrintEach("%s\n", r.Notes)
}

func speed(value *float64, unit string) string {
	return orDash(value, func(v float64) string {
		return strings.TrimSpace(fmt.Sprintf("%.*f %s", lo.Ternary(v < 100, 2, 0), v, unit))
	})
}

func newDoctor(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor [CLUSTER…]",
		Short: "Find out what is wrong with clusters and peerings, and what to do",
		Long: `Find out what is wrong with the named clusters or, by default, with the cluster
of the current context and its peers, before and after peering. The output
begins with the cause and what to do about it, followed by the checks.

Pods read the kernel of each node for some seconds or, if there are more than
100 nodes, of a sample. Before pods start, stderr tells how many, where, and of
which image. Nothing else is changed. Checks for which you lack permissions are
skipped, which is not a failure.

-o wide lists all checks. The exit code is 11 if one has failed.

With --fix, leftovers of liqonet are removed, and objects of liqonet that were
changed are restored as peer does.`,
		Example: `  kubectl liqonet doctor
  kubectl liqonet doctor cluster-a cluster-b
  kubectl liqonet doctor cluster-a cluster-b -o wide
  kubectl liqonet doctor cluster-a cluster-b --fix`,
		Args: cobra.ArbitraryArgs,
	}
	out := output.AddFlag(cmd.Flags(), "junit")
	fix := cmd.Flags().Bool("fix", false, "remove leftovers of liqonet, and restore its objects as peer does")
	addContext(cmd.Flags(), &g.source)
	objectsOnly := cmd.Flags().Bool("objects-only", false, "run no pods: skip what only kernels and packets show")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return g.doctor(cmd.Context(), args, *fix, *objectsOnly, out)
	}
	return addTimeout(cmd, 2*time.Minute)
}

// doctorDocument is the output of doctor for programs.
type doctorDocument struct {
	*check.Report `json:",inline"`
	// Fixed lists the changes of --fix.
	Fixed []string `json:"fixed,omitempty"`
	// Locks describe the commands that are changing the clusters.
	Locks []string `json:"locks,omitempty"`
	// Identities tell which clusters are not the peer of another one, or could not prove it, as something may not be read.
	Identities []string `json:"identities,omitempty"`
}

func (g *globals) doctor(ctx context.Context, refs []string, fix, objectsOnly bool, out *output.Format) error {
	clusters, err := g.clustersToExamine(ctx, refs)
	if err != nil {
		return err
	}
	progress := newProgress(g)
	announce := func(sentence string) { g.err().Printf("%s\n", sentence) }
	if objectsOnly {
		announce = nil
	}
	facts, ended := diagnose.ReadFacts(ctx, clusters, announce, progress)
	doc := &doctorDocument{Report: doctor.Examine(facts)}
	if fix && ended == nil {
		if doc.Fixed, err = diagnose.Fix(ctx, clusters, facts, doc.Report, progress); err != nil {
			return err
		}
		if len(doc.Fixed) > 0 {
			if facts, err = diagnose.ReadFacts(ctx, clusters, announce, progress); err != nil {
				return err
			}
			doc.Report = doctor.Examine(facts)
		}
	}
	doc.Locks = lo.FlatMap(facts.Clusters, func(c *doctor.Cluster, _ int) []string {
		return locksOf(c.Name, lo.FilterMap(c.Locks, func(l doctor.Lock, _ int) (lock.Holder, bool) { return lock.Holder(l), !l.IsExpired }))
	})
	unverified, wrong := compareAll(ctx, clusters, func(a, b *kube.Cluster) bool {
		return ended == nil && a.SkipReason == nil && b.SkipReason == nil
	})
	doc.Identities = append(lo.Map(wrong, func(err error, _ int) string { return err.Error() }), unverified...)
	if err := printDiagnosis(out, g.streams.Out, doc); err != nil {
		return err
	}
	g.err().PrintEach("Warning: %s\n", doc.Identities)
	if ended != nil { // what was found until then may say why
		if e := (*kube.Error)(nil); !errors.As(ended, &e) {
			ended = &kube.Error{Kind: kube.NotReady, Op: "examine the clusters", Err: ended, Hint: "run the command again, with a longer --timeout, or without pods by --objects-only"}
		}
		return cmp.Or(interrupted(ctx, "examine the clusters"), ended)
	}
	if doc.Result == check.Failed {
		return exitError(ExitProblems)
	}
	return cmp.Or(wrong...)
}

// clustersToExamine returns the named clusters. By default, it returns the cluster of the current context, and those of its peers for which
// the kubeconfig has a context of the same name. The result includes clusters that do not respond. Whoever may write Peerings in one cluster
// chooses their names. So other clusters are left out unless they prove to be peers: doctor runs pods in clusters, and changes them.
func (g *globals) clustersToExamine(ctx context.Context, refs []string) ([]*kube.Cluster, error) {
	clusters, contexts, err := g.source.NamedOrCurrent(ctx, "doctor", refs)
	if err = cmp.Or(err, interrupted(ctx, "identify the clusters")); err != nil {
		return nil, err
	}
	if contexts != nil && clusters[0].SkipReason == nil {
		ids, _ := diagnose.Peers(ctx, clusters[0]) // if they cannot be read, only the cluster itself is examined
		names := lo.Filter(contexts, func(name string, _ int) bool { return ids[name] != "" && name != clusters[0].Name })
		slices.Sort(names)
		peers, err := g.source.Identify(ctx, names)
		if err != nil {
			return nil, err
		}
		for _, c := range peers {
			isPeer := c.SkipReason != nil
			why := errors.New("it does not prove to be the peer of that name")
			if !isPeer && c.ID == ids[c.Name] {
				isPeer, err = identity.ArePeers(ctx, clusters[0], c)
				why = cmp.Or(err, why)
			}
			if isPeer {
				clusters = append(clusters, c)
			} else {
				g.err().Printf("Note: context %s is not examined: %s; to examine it, name it: kubectl liqonet doctor %s %s\n", c.Name, why, failure.Quote(clusters[0].Name), failure.Quote(c.Name))
			}
		}
	}
	return clusters, kube.Distinct(identified(clusters)...)
}

// printDiagnosis prints the cause, then for each category a summary line and the checks that have not passed.
func printDiagnosis(o *output.Format, w io.Writer, d *doctorDocument) error {
	if !o.HumanReadable() {
		return printReport(o, w, "Diagnosis", junitSuite{Name: "doctor"}, d, d.Checks, check.Failed)
	}
	t := output.To(w)
	t.PrintEach("Fixed: %s\n", d.Fixed)
	counts := d.Counts()
	switch c := d.Cause; {
	case c == nil && counts[check.Skipped] > 0:
		t.Printf("No problems found: %d checks passed, %d were skipped\n", counts[check.Passed], counts[check.Skipped])
	case c == nil:
		t.Printf("No problems found: %d checks passed\n", counts[check.Passed])
	default:
		word := lo.Ternary(c.Result == check.Warning, "No failures. Warning", "Cause")
		t.Printf("%s: %s: %s\n", word, c.Cluster, c.Problem)
		printFinding(t, c, "  ")
	}
	t.PrintEach("In progress in %s\n", d.Locks)
	t.Printf("\n")
	for _, checks := range lo.PartitionBy(d.Checks, func(c check.Check) string { return c.Category }) {
		printCategory(o, t, checks)
	}
	return nil
}

// printCategory prints a category's summary line and its failed checks, or all checks with -o wide. It groups skipped checks by reason.
func printCategory(o *output.Format, t output.Text, checks []check.Check) {
	passed := lo.CountBy(checks, func(c check.Check) bool { return c.Result == check.Passed })
	t.Printf("%s: %d of %d checks passed\n", checks[0].Category, passed, len(checks))
	var skipped []check.Finding
	for i := range checks {
		c := &checks[i]
		if o.Wide() || c.Result.IsProblem() {
			printCheck(t, c)
		}
		skipped = append(skipped, c.WithResult(check.Skipped)...)
	}
	printSkipReasons(skipped, func(why string, checks, clusters []string) {
		what := lo.Ternary(len(checks) == 1, "check", "checks")
		t.Printf("  skipped: %d %s of %s: %s\n", len(checks), what, strings.Join(clusters, ", "), why)
	})
}

// printCheck prints one check. A finding that follows from another one takes one line.
func printCheck(t output.Text, c *check.Check) {
	t.Printf("%s\n", output.Lines(fmt.Sprintf("  %-9s%-23s%s", c.Result, c.Name, c.Description)))
	for k := range c.Findings {
		f := &c.Findings[k]
		switch {
		case !f.Result.IsProblem():
		case f.CausedBy != "":
			t.Printf("    %s: %s (follows from %s)\n", f.Cluster, f.Problem, f.CausedBy)
		default:
			t.Printf("    %s: %s\n", f.Cluster, f.Problem)
			printFinding(t, f, "      ")
		}
	}
	if c.Result.IsProblem() {
		t.Printf("    see %s\n", c.Anchor)
	}
}

// printFinding prints the evidence and the hint of a finding.
func printFinding(t output.Text, f *check.Finding, indent string) {
	for _, line := range []string{f.Evidence, f.Hint} {
		if line = strings.TrimSpace(line); line != "" {
			t.Printf("%s%s\n", output.Lines(indent), line)
		}
	}
}

// identified returns the clusters that have responded with their ID.
func identified(clusters []*kube.Cluster) []*kube.Cluster {
	return lo.Filter(clusters, func(c *kube.Cluster, _ int) bool { return c.ID != "" })
}
