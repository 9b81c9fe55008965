package cli

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// watchPause is that between two looks.
const watchPause = 2 * time.Second

// watchStatus shows the status again and again, until it is interrupted. It fails if the first look does: later, a cluster that does not
// answer may answer again. On a terminal all is drawn in one place. Elsewhere what is amiss goes to stderr, as ever.
func (g *globals) watchStatus(cmd *cobra.Command, refs []string, timeout time.Duration, out *output) error {
	width, height := size(g.streams.Out)
	drawn, before := width > 0 && out.forPeople(), ""
	for first := true; ; first = false {
		var shown, amiss bytes.Buffer
		state := ""
		err := within(cmd, timeout, func(ctx context.Context) error {
			s, err := g.readStatus(ctx, refs)
			if err != nil {
				return err
			}
			state = s.state()
			s.warn(text{&amiss}, s.unread)
			w := newPage(&shown, g.streams.Out)
			return cmp.Or(out.printStatus(w, s), w.Flush())
		})
		switch {
		case cmd.Context().Err() != nil:
			return nil
		case err != nil && first:
			return err
		case err != nil:
			state = err.Error()
			text{&amiss}.printf("Error: %s\n", explain(err, "  "))
		}
		switch {
		case drawn:
			err = g.write(redrawn(shown.String()+wrap(amiss.String(), width), width, height))
		case state != before:
			g.err().printf("%s", lines(amiss.String()))
			err = g.write(shown.String())
		default:
			err = nil
		}
		if err != nil {
			return err
		}
		before = state
		select {
		case <-cmd.Context().Done():
			return nil
		case <-time.After(watchPause):
		}
	}
}

// write writes at once, and returns the error of the writer.
func (g *globals) write(s string) error {
	_, err := io.WriteString(g.streams.Out, s)
	if f, isBuffered := g.streams.Out.(interface{ Flush() error }); isBuffered {
		err = cmp.Or(err, f.Flush())
	}
	return err
}

// redrawn is a text in the place of the one before: each line is written over, and what is below is cleared. What does not fit is left
// out, since the terminal would scroll.
func redrawn(s string, width, height int) string {
	const home, clearLine, clearBelow = "\x1b[H", "\x1b[K\n", "\x1b[J"
	var out strings.Builder
	out.WriteString(home)
	rows := 0
	for line := range strings.Lines(s) {
		line = strings.TrimSuffix(line, "\n")
		if rows += max(1, (utf8.RuneCountInString(line)+width-1)/width); rows > height-2 {
			out.WriteString("…" + clearLine)
			break
		}
		out.WriteString(line + clearLine)
	}
	return out.String() + clearBelow
}

// state is what has to change until a watch is printed again where it is not drawn.
func (s *statusRead) state() string {
	var out []string
	for _, v := range s.doc.Peerings {
		out = append(out, v.Cluster, v.Peer, string(v.State), v.Message, fmt.Sprint(v.NodesReady, v.NodesTotal))
		for _, p := range v.Planes {
			out = append(out, fmt.Sprint(p.Index, p.Connected))
		}
	}
	return strings.Join(append(out, s.doc.Errors...), "\n")
}
