package output

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/pterm/pterm"
	"github.com/samber/lo"
)

// Progress shows the steps of a command.
type Progress interface {
	// Step shows a step while do runs, and returns its error.
	Step(ctx context.Context, name string, do func(context.Context) error) error
}

// NewProgress returns a Progress that shows steps as they happen: with a spinner on a terminal, or else as plain lines. While isPaused, the
// spinner draws nothing: others may have asked the user something on the same terminal.
func NewProgress(w io.Writer, isPaused func() bool) Progress {
	return lo.Ternary[Progress](Width(w) > 0 && os.Getenv("TERM") != "dumb", spinner{w, frames{w, isPaused}}, PlainProgress{W: w})
}

// PlainProgress prints a line when a step begins, and another one if it fails.
type PlainProgress struct {
	W io.Writer
	// Prefix begins each line.
	Prefix string
}

// Step implements Progress.
func (p PlainProgress) Step(ctx context.Context, name string, do func(context.Context) error) error {
	To(p.W).Printf("%s%s ...\n", p.Prefix, name)
	start := time.Now()
	err := do(ctx)
	if err != nil {
		To(p.W).Printf("%s%s failed after %.1f s\n", p.Prefix, name, time.Since(start).Seconds())
	}
	return err
}

// spinner shows a spinner during a step, and then a line.
type spinner struct {
	w      io.Writer
	frames frames
}

// Step implements Progress.
func (s spinner) Step(ctx context.Context, name string, do func(context.Context) error) error {
	start, name := time.Now(), OneLine(name)
	running, _ := pterm.DefaultSpinner.WithWriter(s.frames).WithRemoveWhenDone(true).WithShowTimer(false).Start(name) // it never fails
	err := do(ctx)
	_ = running.Stop()
	mark := lo.Ternary(err == nil, Colored{Value: "✓", Color: pterm.FgGreen}, Colored{Value: "✗", Color: pterm.FgRed})
	took := Colored{Value: fmt.Sprintf("%.1f s", time.Since(start).Seconds()), Color: pterm.FgGray}
	To(s.w).Printf(" %s %s %s\n", mark, name, took)
	return err
}

// frames writes the frames of a spinner unless it is paused.
type frames struct {
	w        io.Writer
	isPaused func() bool
}

// Write implements io.Writer.
func (f frames) Write(p []byte) (int, error) {
	if f.isPaused() {
		return len(p), nil
	}
	return f.w.Write(p)
}
