package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/pterm/pterm"
	"golang.org/x/term"

	"github.com/liqonet/liqonet/pkg/peering"
)

// newProgress shows steps as they happen: with a spinner on a terminal, as plain lines
// elsewhere. Only this function asks whether it is a terminal.
func newProgress(w io.Writer) peering.Reporter {
	f, ok := w.(*os.File)
	if ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" {
		if os.Getenv("NO_COLOR") != "" {
			pterm.DisableColor()
		}
		return spinner{w}
	}
	return plain{w}
}

// plain writes a line when a step begins, and one if it fails.
type plain struct{ w io.Writer }

func (p plain) Step(ctx context.Context, name string, do func(context.Context) error) error {
	fmt.Fprintf(p.w, "%s ...\n", name)
	start := time.Now()
	err := do(ctx)
	if err != nil {
		fmt.Fprintf(p.w, "%s failed after %.1f s\n", name, time.Since(start).Seconds())
	}
	return err
}

// spinner turns while a step is under way, and then leaves one line.
type spinner struct{ w io.Writer }

func (s spinner) Step(ctx context.Context, name string, do func(context.Context) error) error {
	start := time.Now()
	p, err := pterm.DefaultSpinner.WithWriter(s.w).WithRemoveWhenDone(true).WithShowTimer(false).Start(name)
	if err != nil {
		return plain(s).Step(ctx, name, do)
	}
	err = do(ctx)
	_ = p.Stop()
	mark := pterm.Green("✓")
	if err != nil {
		mark = pterm.Red("✗")
	}
	fmt.Fprintf(s.w, " %s %s %s\n", mark, name, pterm.Gray(fmt.Sprintf("%.1f s", time.Since(start).Seconds())))
	return err
}

// prefixed writes a name before each line. Several of them may write to one place at the
// same time.
type prefixed struct {
	w      io.Writer
	prefix string
	mu     *sync.Mutex
}

// Write writes whole lines.
func (p prefixed) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err := io.WriteString(p.w, p.prefix+string(b))
	return len(b), err
}
