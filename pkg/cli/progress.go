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
)

// newProgress shows steps as they happen: with a spinner on a terminal, as plain lines
// elsewhere.
func newProgress(w io.Writer) kube.Reporter {
	if columns(w) > 0 && os.Getenv("TERM") != "dumb" {
		return spinner{w}
	}
	return plain{w: w}
}

// plain writes a line when a step begins, and one if it fails.
type plain struct {
	w io.Writer
	// prefix is in front of each line.
	prefix string
}

func (p plain) Step(ctx context.Context, name string, do func(context.Context) error) error {
	text{p.w}.printf("%s%s ...\n", p.prefix, name)
	start := time.Now()
	err := do(ctx)
	if err != nil {
		text{p.w}.printf("%s%s failed after %.1f s\n", p.prefix, name, time.Since(start).Seconds())
	}
	return err
}

// spinner turns during a step, and then leaves one line.
type spinner struct{ w io.Writer }

func (s spinner) Step(ctx context.Context, name string, do func(context.Context) error) error {
	start, name := time.Now(), oneLine(name)
	turning, _ := pterm.DefaultSpinner.WithWriter(s.w).WithRemoveWhenDone(true).WithShowTimer(false).Start(name) // it never fails
	err := do(ctx)
	_ = turning.Stop()
	mark := pterm.Green("✓")
	if err != nil {
		mark = pterm.Red("✗")
	}
	text(s).printf(" %s %s %s\n", lines(mark), name, lines(pterm.Gray(fmt.Sprintf("%.1f s", time.Since(start).Seconds()))))
	return err
}

// timed records the steps of a pair of clusters in the time line.
type timed struct {
	kube.Reporter
	where string
}

func (t timed) Step(ctx context.Context, name string, do func(context.Context) error) error {
	return t.Reporter.Step(ctx, name, func(ctx context.Context) error {
		defer kube.StartWait(ctx, t.where, name, "")()
		return do(ctx)
	})
}

// leastShown is how long something took that is part of a time line. Tests want to see all.
var leastShown = 10 * time.Millisecond

// printTimeline shows what waited for what, in seconds after the command.
func (g *globals) printTimeline(waits []kube.Wait) {
	at := func(t time.Time) string { return fmt.Sprintf("%.2f s", t.Sub(g.began).Seconds()) }
	shown := lo.Filter(waits, func(w kube.Wait, _ int) bool { return w.To.Sub(w.From) >= leastShown })
	rows := lo.Map(shown, func(w kube.Wait, _ int) []any {
		what := w.What
		if w.Missing != "" {
			what += ": " + w.Missing
		}
		return []any{at(w.From), at(w.To), w.Where, what}
	})
	(&output{}).printTable(g.streams.Err, []string{"from", "to", "where", "what"}, rows)
}
