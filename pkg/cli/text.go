package cli

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"unicode"

	"github.com/liqonet/liqonet/pkg/kube"
)

// text is what people read: all that is printed goes through it, but json and yaml, which
// have their own way to write such characters.
//
// Values come from clusters: from agents, whose account somebody may have, from
// administrators of the other cluster, and from whatever answers in the place of its API.
// None of them must control the reader's terminal, or write lines of their own.
type text struct{ w io.Writer }

// printf prints values in a format, in lines that a terminal has room for. Only the format begins lines.
func (t text) printf(format string, values ...any) {
	for i, v := range values {
		values[i] = printable(v)
	}
	_, _ = io.WriteString(t.w, wrap(fmt.Sprintf(format, values...), columns(t.w))) // an error is the writer's
}

// printNotes prints what else is to be known.
func (t text) printNotes(notes []string) {
	for _, note := range notes {
		t.printf("Note: %s\n", note)
	}
}

// lines is a text whose values have been made printable already.
type lines string

// printable is a value without what controls a terminal. Numbers stay as they are.
func printable(value any) any {
	switch v := value.(type) {
	case lines:
		return string(v)
	case error:
		return oneLine(v.Error())
	case fmt.Stringer:
		return oneLine(v.String())
	}
	if v := reflect.ValueOf(value); v.Kind() == reflect.String {
		return oneLine(v.String())
	}
	return value
}

// oneLine makes a line of a text.
func oneLine(s string) string {
	return strings.NewReplacer("\n", "; ", "\t", " ").Replace(visible(strings.Trim(s, "\n")))
}

// visible replaces what controls a terminal, but for tabs and the ends of lines.
func visible(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsGraphic(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}

// explain is an error, and below it what the user can do, where it says so. The errors of
// several pairs have that already.
func explain(err error, indent string) lines {
	if p := (*pairsError)(nil); errors.As(err, &p) {
		return p.text
	}
	text := oneLine(err.Error())
	if e := (*kube.Error)(nil); errors.As(err, &e) && e.Hint != "" {
		text += "\n" + indent + oneLine(e.Hint)
	}
	return lines(text)
}
