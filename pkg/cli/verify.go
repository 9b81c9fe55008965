package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/liqonet/liqonet/pkg/check"
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
nothing else is reached or leaves a node unencrypted.

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
	if err := out.printVerification(g.streams.Out, report); err != nil {
		return err
	}
	switch report.Result {
	case check.Failed:
		return ending{ExitChecks, "a check has failed"}
	case check.Skipped:
		return &kube.Error{
			Kind: kube.NotReady, Doing: "verify " + strings.Join(report.Clusters, " and "), Err: errors.New("pods could not be tried in both directions"),
			Hint: clusters[0].Kubectl + " -n liqonet-system get events",
		}
	}
	return nil
}

// printVerification prints for people a row for each check, with a column for each direction, and then what has failed.
func (o *output) printVerification(w io.Writer, r *verify.Report) error {
	if !o.forPeople() {
		suite := junitSuite{Name: "verify " + strings.Join(r.Clusters, " "), Time: fmt.Sprintf("%.1f", r.Seconds)}
		return o.printReport(w, "Verification", suite, r, r.Checks, check.Passed, check.Skipped, check.Failed)
	}
	var rows [][]any
	for i := 0; i+1 < len(r.Checks); i += 2 {
		there, back := r.Checks[i], r.Checks[i+1]
		rows = append(rows, []any{there.Name, outcome(there), outcome(back), there.About})
	}
	o.printTable(w, []string{"check", "→ " + r.Clusters[1], "→ " + r.Clusters[0], "what"}, rows)
	if len(r.Bench) > 0 {
		text{w}.printf("\n")
		o.printSpeeds(w, r.Bench)
	}
	for _, c := range r.Checks {
		if c.Result == check.Failed {
			o.printFailed(w, c)
		}
	}
	o.printSkipped(w, r)
	count := r.Counts()
	text{w}.printf("\nOf %d checks %d passed, %d failed and %d were skipped, in %.1f s.\n",
		len(r.Checks), count[check.Passed], count[check.Failed], count[check.Skipped], r.Seconds)
	return nil
}

// outcome is the result of a check, and of how many cases.
func outcome(c check.Check) string {
	switch c.Result {
	case check.Passed:
		return fmt.Sprintf("ok %d", c.Count(check.Passed))
	case check.Failed:
		return fmt.Sprintf("FAILED %d/%d", c.Count(check.Failed), len(c.Findings))
	}
	return "skipped"
}

// mostCases is how many cases of a failed check are printed without -o wide.
const mostCases = 2

// printFailed says what has failed: what was sent from where to where, and what came back.
func (o *output) printFailed(w io.Writer, c check.Check) {
	text{w}.printf("\n%s, %s → %s: %d of %d failed\n", c.Name, c.From, c.To, c.Count(check.Failed), len(c.Findings))
	said := 0
	for _, one := range c.Findings {
		if one.Result != check.Failed {
			continue
		}
		if said++; said > mostCases && !o.wide() {
			continue
		}
		text{w}.printf("  %s: %s\n", lines(saidOf(&one)), one.Evidence)
	}
	if more := said - mostCases; more > 0 && !o.wide() {
		text{w}.printf("  (and %d more; -o wide has all)\n", more)
	}
	if c.Hint != "" {
		text{w}.printf("  %s\n", c.Hint)
	}
}

// printSkipped says why checks were skipped, each reason once.
func (o *output) printSkipped(w io.Writer, r *verify.Report) {
	var all []unknown
	for i, c := range r.Checks {
		if c.Result != check.Skipped {
			continue
		}
		name := c.Name
		if other := r.Checks[i^1]; other.Result != check.Skipped || other.Message != c.Message { // that of the other direction
			name = fmt.Sprintf("%s → %s", c.Name, c.To)
		}
		all = addUnknown(all, c.Message, name, c.From)
	}
	if len(all)+len(r.Notes) > 0 {
		text{w}.printf("\n")
	}
	for _, u := range all {
		text{w}.printf("Skipped %s: %s\n", strings.Join(u.checks, ", "), u.why)
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
