package cli

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/liqonet/liqonet/pkg/diagnose"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/verify"
)

func newVerify(g *globals) *cobra.Command {
	var out *output
	var bench bool
	cmd := &cobra.Command{
		Use:   "verify A B",
		Short: "Try with packets whether a peering does what it promises",
		Long: `Try with packets whether the peering of two clusters does all that it promises:
pods and nodes reach pods, with full packets, by services and by each plane, and
nothing else is reached or leaves a node in plain.

It runs short-lived pods of the agents' image on some nodes of both clusters, in
the namespace liqonet-system, and removes them. They send to addresses of these
two clusters only.

The exit code is 10 if a check fails.`,
		Example: `  kubectl liqonet verify cluster-a cluster-b
  kubectl liqonet verify cluster-a cluster-b --bench
  kubectl liqonet verify cluster-a cluster-b -o junit`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: g.completeContexts(2),
		RunE:              func(cmd *cobra.Command, args []string) error { return g.verify(cmd, args, bench, out) },
	}
	out = addOutput(cmd.Flags(), "junit")
	cmd.Flags().BoolVar(&bench, "bench", false, "measure the speed, too: pod to pod, and beside it node to node without the tunnel")
	addTimeout(cmd, 3*time.Minute)
	return cmd
}

func (g *globals) verify(cmd *cobra.Command, args []string, bench bool, out *output) error {
	ctx := cmd.Context()
	clusters, err := g.clusters(ctx, args...)
	if err != nil {
		return err
	}
	report, err := diagnose.Verify(ctx, clusters[0], clusters[1], bench, newProgress(g.streams.Err))
	if err != nil {
		return err
	}
	if err := out.printReport(g.streams.Out, report); err != nil {
		return err
	}
	switch report.Result {
	case verify.Failed:
		return ending{ExitChecks, "a check has failed"}
	case verify.Skipped:
		return &kube.Error{
			Kind: kube.NotReady, Doing: "verify " + strings.Join(report.Clusters, " and "), Err: errors.New("pods could not be tried in both directions"),
			Hint: clusters[0].Kubectl + " -n liqonet-system get events",
		}
	}
	return nil
}

func (o *output) printReport(w io.Writer, r *verify.Report) error {
	switch {
	case o.format == "junit":
		return printJUnit(w, r)
	case !o.forPeople():
		var names []string
		for _, c := range r.Checks {
			names = append(names, string(c.Name))
		}
		names = slices.Compact(names) // each has two directions
		return o.print(w, "Verification", r, r.Checks, names)
	}
	o.printChecks(w, r)
	return nil
}

// printChecks prints a row for each check, with a column for each direction, and then what has failed.
func (o *output) printChecks(w io.Writer, r *verify.Report) {
	var rows [][]any
	for i := 0; i+1 < len(r.Checks); i += 2 {
		there, back := r.Checks[i], r.Checks[i+1]
		rows = append(rows, []any{there.Name, outcome(there), outcome(back), there.What})
	}
	o.printTable(w, []string{"check", "→ " + r.Clusters[1], "→ " + r.Clusters[0], "what"}, rows)
	if len(r.Bench) > 0 {
		text{w}.printf("\n")
		o.printSpeeds(w, r.Bench)
	}
	for _, c := range r.Checks {
		if c.Result == verify.Failed {
			o.printFailed(w, c)
		}
	}
	o.printSkipped(w, r)
	count := map[verify.Result]int{}
	for _, c := range r.Checks {
		count[c.Result]++
	}
	text{w}.printf("\nOf %d checks %d passed, %d failed and %d were skipped, in %.1f s.\n", len(r.Checks), count[verify.Passed], count[verify.Failed], count[verify.Skipped], r.Seconds)
}

// outcome is the result of a check, and of how many cases.
func outcome(c verify.Check) string {
	switch c.Result {
	case verify.Passed:
		return fmt.Sprintf("ok %d", c.Count(verify.Passed))
	case verify.Failed:
		return fmt.Sprintf("FAILED %d/%d", c.Count(verify.Failed), len(c.Cases))
	}
	return "skipped"
}

// mostCases is how many cases of a failed check are printed without -o wide.
const mostCases = 2

// printFailed says what has failed: what was sent from where to where, and what came back.
func (o *output) printFailed(w io.Writer, c verify.Check) {
	text{w}.printf("\n%s, %s → %s: %d of %d failed\n", c.Name, c.From, c.To, c.Count(verify.Failed), len(c.Cases))
	said := 0
	for _, one := range c.Cases {
		if one.Result != verify.Failed {
			continue
		}
		if said++; said > mostCases && !o.wide() {
			continue
		}
		text{w}.printf("  %s: %s\n", lines(sentOf(one)), one.Got)
	}
	if more := said - mostCases; more > 0 && !o.wide() {
		text{w}.printf("  (and %d more; -o wide has all)\n", more)
	}
	if c.Hint != "" {
		text{w}.printf("  %s\n", c.Hint)
	}
}

// sentOf says who has sent what to whom.
func sentOf(c verify.Case) string {
	out := oneLine(c.From)
	if c.Sent != "" {
		out += ", " + oneLine(c.Sent)
	}
	if c.To != "" {
		out += " (" + oneLine(c.To) + ")"
	}
	return out
}

// printSkipped says why checks were skipped, each reason once.
func (o *output) printSkipped(w io.Writer, r *verify.Report) {
	var reasons []string
	names := map[string][]string{}
	for i, c := range r.Checks {
		if c.Result != verify.Skipped {
			continue
		}
		name := fmt.Sprintf("%s → %s", c.Name, c.To)
		if other := r.Checks[i^1]; other.Result == verify.Skipped && other.Message == c.Message { // that of the other direction
			if i%2 > 0 {
				continue
			}
			name = string(c.Name)
		}
		if names[c.Message] == nil {
			reasons = append(reasons, c.Message)
		}
		names[c.Message] = append(names[c.Message], name)
	}
	if len(reasons)+len(r.Notes) > 0 {
		text{w}.printf("\n")
	}
	for _, reason := range reasons {
		text{w}.printf("Skipped %s: %s\n", strings.Join(names[reason], ", "), reason)
	}
	for _, note := range r.Notes {
		text{w}.printf("%s\n", note)
	}
}

func (o *output) printSpeeds(w io.Writer, speeds []verify.Speed) {
	var rows [][]any
	for _, s := range speeds {
		rows = append(rows, []any{s.What, s.From, s.To, speed(s.Tunnel, s.Unit), speed(s.Bare, s.Unit), speed(s.Ratio, "")})
	}
	o.printTable(w, []string{"speed", "from", "to", "pods", "nodes", "ratio"}, rows)
}

func speed(value *float64, unit string) string {
	return orDash(value, func(v float64) string {
		digits := 0
		if v < 100 {
			digits = 2
		}
		return strings.TrimSpace(fmt.Sprintf("%.*f %s", digits, v, unit))
	})
}

// The following is what programs for continuous integration read as JUnit's XML. Nobody has defined it: these are the elements
// and attributes that all of them know.
type junitSuites struct {
	XMLName xml.Name     `xml:"testsuites"`
	Suites  []junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Time     string      `xml:"time,attr"`
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

func printJUnit(w io.Writer, r *verify.Report) error {
	suite := junitSuite{Name: "verify " + strings.Join(r.Clusters, " "), Tests: len(r.Checks), Time: fmt.Sprintf("%.1f", r.Seconds)}
	for _, c := range r.Checks {
		one := junitCase{Class: "verify." + string(c.Name), Name: fmt.Sprintf("%s: %s → %s", c.What, c.From, c.To)}
		switch c.Result {
		case verify.Failed:
			suite.Failures++
			one.Failure = &junitOutcome{Message: fmt.Sprintf("%d of %d failed", c.Count(verify.Failed), len(c.Cases))}
			for _, k := range c.Cases {
				if k.Result == verify.Failed {
					one.Failure.Text += fmt.Sprintf("%s: %s\n", sentOf(k), oneLine(k.Got))
				}
			}
			one.Failure.Text += c.Hint + "\n"
		case verify.Skipped:
			suite.Skipped++
			one.Skipped = &junitOutcome{Message: c.Message}
		}
		suite.Cases = append(suite.Cases, one)
	}
	raw, err := xml.MarshalIndent(junitSuites{Suites: []junitSuite{suite}}, "", "  ")
	if err == nil {
		_, err = io.WriteString(w, xml.Header+string(raw)+"\n")
	}
	return err
}
