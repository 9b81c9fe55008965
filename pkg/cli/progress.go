package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/pterm/pterm"
	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/output"
)

// newProgress returns a reporter that shows steps as they happen: with a spinner on a terminal, or else as plain lines.
func newProgress(w io.Writer) kube.Reporter {
	if output.Width(w) > 0 && os.Getenv("TERM") != "dumb" {
		return spinner{w}
	}
	return plain{w: w}
}

// plain prints a line when a step begins, and another one if it fails.
type plain struct {
	w io.Writer
	// prefix begins each line.
	prefix string
}

func (p plain) Step(ctx context.Context, name string, do func(context.Context) error) error {
	output.To(p.w).Printf("%s%s ...\n", p.prefix, name)
	start := time.Now()
	err := do(ctx)
	if err != nil {
		output.To(p.w).Printf("%s%s failed after %.1f s\n", p.prefix, name, time.Since(start).Seconds())
	}
	return err
}

// spinner shows a spinner during a step, and then a line.
type spinner struct{ w io.Writer }

func (s spinner) Step(ctx context.Context, name string, do func(context.Context) error) error {
	start, name := time.Now(), output.OneLine(name)
	running, _ := pterm.DefaultSpinner.WithWriter(s.w).WithRemoveWhenDone(true).WithShowTimer(false).Start(name) // it never fails
	err := do(ctx)
	_ = running.Stop()
	mark := output.Colored{Value: "✓", Color: pterm.FgGreen}
	if err != nil {
		mark = output.Colored{Value: "✗", Color: pterm.FgRed}
	}
	took := output.Colored{Value: fmt.Sprintf("%.1f s", time.Since(start).Seconds()), Color: pterm.FgGray}
	output.To(s.w).Printf(" %s %s %s\n", mark, name, took)
	return err
}

// minShown is the duration below which a wait is omitted from the timeline. Tests reduce it, to see all waits.
var minShown = 10 * time.Millisecond

// printTimeline prints each wait with its start and end, in seconds since the command started.
func (g *globals) printTimeline(waits []kube.Wait) {
	at := func(t time.Time) string { return fmt.Sprintf("%.2f s", t.Sub(g.began).Seconds()) }
	shown := lo.Filter(waits, func(w kube.Wait, _ int) bool { return w.To.Sub(w.From) >= minShown })
	rows := lo.Map(shown, func(w kube.Wait, _ int) []any {
		what := w.What
		if w.Missing != "" {
			what += ": " + w.Missing
		}
		return []any{at(w.From), at(w.To), w.Where, what}
	})
	(&output.Format{}).Table(g.streams.Err, []string{"from", "to", "where", "what"}, rows)
}
