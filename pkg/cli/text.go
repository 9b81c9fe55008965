package cli

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/samber/lo"
	"golang.org/x/term"

	"github.com/liqonet/liqonet/pkg/kube"
)

// text is what people read: all that is printed goes through it, but json and yaml, which
// write such characters by rules of their own.
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

// printEach prints each of some values in a format.
func (t text) printEach(format string, values []string) {
	for _, value := range values {
		t.printf(format, value)
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

// page is the output of a command, which is as wide and high as a terminal; 0 and 0 where it is none.
type page struct {
	*bufio.Writer
	width, height int
}

func newPage(w, to io.Writer) page {
	width, height := size(to)
	return page{bufio.NewWriter(w), width, height}
}

// size is how many characters a line has, and how many lines there are.
func size(w io.Writer) (width, height int) {
	switch w := w.(type) {
	case page:
		return w.width, w.height
	case *os.File:
		if width, height, err := term.GetSize(int(w.Fd())); err == nil {
			return cmp.Or(width, 80), cmp.Or(height, 24) // some terminals do not say it
		}
	}
	return 0, 0
}

// columns is how many characters a line of w may have, 0 where it is no terminal: then nothing is wrapped or shortened, since programs
// read it.
func columns(w io.Writer) int {
	width, _ := size(w)
	return width
}

// word is what no line ends within: a command can be copied as it is, with what is around it.
var word = regexp.MustCompile("\\(?`?kubectl [^;,()`]*[^;,()` ]`?[;,.)]*|\\S+")

// wrap breaks lines that are longer than a terminal is wide. What follows is indented.
func wrap(s string, columns int) string {
	if columns == 0 {
		return s
	}
	var out strings.Builder
	for line := range strings.Lines(s) {
		out.WriteString(wrapLine(line, columns, "  "))
	}
	return out.String()
}

// wrapLine breaks one line. Those that follow are indented as it is, and by hang.
func wrapLine(line string, columns int, hang string) string {
	whole := strings.TrimSuffix(line, "\n")
	if utf8.RuneCountInString(whole) <= columns {
		return line
	}
	indent := whole[:len(whole)-len(strings.TrimLeft(whole, " "))]
	out, at, between := "", 0, indent
	for _, w := range word.FindAllString(whole, -1) {
		if length := utf8.RuneCountInString(between + w); out != "" && at+length > columns {
			between = "\n" + indent + hang
			at = -1 // the end of the line before has no column
		}
		out += between + w
		at += utf8.RuneCountInString(between + w)
		between = " "
	}
	return out + line[len(whole):]
}

// gap is what is between the columns of a table.
const gap = 3

// leastCell is how short a cell may become, and leastText how narrow a last column of sentences.
const leastCell, leastText = 9, 28

// fit makes the rows of a table not longer than a terminal is wide, if that can be. Sentences, in the last column, go on in rows of their
// own. The longest of the other cells are shortened in their middle.
func fit(head []string, rows [][]string, columns int) [][]string {
	if columns == 0 {
		return rows
	}
	last := len(head) - 1
	widths := make([]int, len(head))
	for _, cells := range slices.Concat([][]string{head}, rows) {
		for i, cell := range cells {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	total := gap*last + lo.Sum(widths)
	shortened := widths
	if slices.ContainsFunc(rows, func(cells []string) bool { return strings.Contains(cells[last], " ") }) {
		shortened = widths[:last]
		narrow := min(widths[last], max(leastText, widths[last]-max(0, total-columns)))
		total, widths[last] = total-widths[last]+narrow, narrow
	}
	for ; total > columns; total-- {
		widest, i := lo.MaxIndex(shortened)
		if widest <= leastCell {
			break
		}
		shortened[i]--
	}
	var out [][]string
	for _, cells := range rows {
		for i := range shortened {
			cells[i] = shorten(cells[i], widths[i])
		}
		for _, line := range strings.Split(wrapLine(cells[last], widths[last], ""), "\n") {
			cells[last] = line
			out = append(out, cells)
			cells = make([]string, len(head))
		}
	}
	return out
}

// shorten replaces what is in the middle of a text that is longer than that.
func shorten(s string, most int) string {
	runes := []rune(s)
	if len(runes) <= most {
		return s
	}
	head := most / 2
	return string(runes[:head]) + "…" + string(runes[len(runes)-(most-1-head):])
}
