package output

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/pterm/pterm"
	"github.com/samber/lo"
	"golang.org/x/term"
)

// Plugin is how commands are spelled in messages.
const Plugin = "kubectl liqonet"

// program is what users type to run this program: through kubectl, or the program itself by its other name.
var program = map[bool]string{true: standalone, false: Plugin}[strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe") == standalone]

const standalone = "liqonetctl"

// Named returns the text with the commands that it has in the spelling by which this program was called.
func Named(s string) string { return strings.ReplaceAll(s, Plugin, program) }

// Text prints all output except JSON and YAML, which have their own rules for escaping control characters.
//
// Values come from clusters: from agents, whose account may be compromised, from administrators of the other cluster, and from whatever
// responds instead of its API server. They must neither control the user's terminal nor start new lines.
type Text struct{ w io.Writer }

// To returns a Text for a writer.
func To(w io.Writer) Text { return Text{w} }

// Printf formats values, and wraps lines to the width of the terminal. Only the format can start new lines.
func (t Text) Printf(format string, values ...any) {
	columns := Width(t.w)
	for i, v := range values {
		values[i] = printable(v, columns > 0)
	}
	_, _ = io.WriteString(t.w, Wrap(Named(fmt.Sprintf(format, values...)), columns)) // the writer keeps the error
}

// PrintEach calls Printf for each of the values.
func (t Text) PrintEach(format string, values []string) {
	for _, value := range values {
		t.Printf(format, value)
	}
}

// Lines is text whose values have already been sanitized.
type Lines string

// Colored is a value that has a color on terminals, unless the user has turned off colors.
type Colored struct {
	Value any
	Color pterm.Color
}

// printable returns the value as one sanitized line if it is text, or else the value itself.
func printable(value any, onTerminal bool) any {
	switch v := value.(type) {
	case Colored:
		text := printable(v.Value, onTerminal)
		if onTerminal {
			text = v.Color.Sprint(text)
		}
		return text
	case Lines:
		return string(v)
	case error:
		return OneLine(v.Error())
	case fmt.Stringer:
		return OneLine(v.String())
	}
	if v := reflect.ValueOf(value); v.Kind() == reflect.String {
		return OneLine(v.String())
	}
	return value
}

// OneLine sanitizes a text and joins its lines, except empty ones.
func OneLine(s string) string {
	return strings.ReplaceAll(emptyLines.ReplaceAllString(sanitize(strings.Trim(s, "\n")), "; "), "\t", " ")
}

// emptyLines matches a newline with the empty lines that follow it.
var emptyLines = regexp.MustCompile(`\n(\s*\n)*`)

// sanitize replaces characters that control a terminal, except tabs and newlines.
func sanitize(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsGraphic(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}

// Page is the buffered output of a command, with the size of its terminal, or 0 and 0 if it is not a terminal.
type Page struct {
	*bufio.Writer
	Width, Height int
}

// NewPage returns a buffer before w, for a text that is shown on the terminal that to may be.
func NewPage(w, to io.Writer) Page {
	width, height := Size(to)
	return Page{bufio.NewWriter(w), width, height}
}

// Size returns the columns and rows of a terminal, or 0 and 0 if w is not a terminal.
func Size(w io.Writer) (width, height int) {
	switch w := w.(type) {
	case Page:
		return w.Width, w.Height
	case *os.File:
		if width, height, err := term.GetSize(int(w.Fd())); err == nil {
			return cmp.Or(width, 80), cmp.Or(height, 24) // some terminals report 0
		}
	}
	return 0, 0
}

// Width returns the columns of a terminal, or 0 if w is not a terminal: programs may read it, so nothing is wrapped or shortened.
func Width(w io.Writer) int {
	width, _ := Size(w)
	return width
}

// Visible returns how many columns of a terminal a text takes, without the sequences that set its color.
func Visible(s string) int { return utf8.RuneCountInString(pterm.RemoveColorFromString(s)) }

// word matches text that is never broken across lines. Commands and addresses stay on one line, so that they can be copied.
var word = regexp.MustCompile("see https://\\S+|\\(?`?kubectl [^;,()`]*[^;,()` ]`?[;,.)]*|\\S+")

// Wrap breaks lines that are longer than the given number of columns, and indents the continuation lines.
func Wrap(s string, columns int) string {
	if columns == 0 {
		return s
	}
	var out strings.Builder
	for line := range strings.Lines(s) {
		out.WriteString(wrapLine(line, columns, "  "))
	}
	return out.String()
}

// wrapLine breaks one line. Continuation lines have its indentation, followed by hang.
func wrapLine(line string, columns int, hang string) string {
	whole := strings.TrimSuffix(line, "\n")
	if Visible(whole) <= columns {
		return line
	}
	indent := whole[:len(whole)-len(strings.TrimLeft(whole, " "))]
	out, at, between := "", 0, indent
	for _, w := range word.FindAllString(whole, -1) {
		if length := Visible(between + w); out != "" && at+length > columns {
			between = "\n" + indent + hang
			at = -1 // the newline takes no column
		}
		out += between + w
		at += Visible(between + w)
		between = " "
	}
	return out + line[len(whole):]
}

// columnGap is the number of spaces between the columns of a table.
const columnGap = 3

// minCell is the minimum width of a shortened cell, minText that of a last column of sentences.
const minCell, minText = 9, 28

// fit fits the rows of a table into the given number of columns, if possible, or any number if it is 0. Sentences in the last column
// continue in additional rows. The longest of the other cells are shortened in the middle. It also returns the widths of the columns.
func fit(head []string, rows [][]string, columns int) (out [][]string, widths []int) {
	last := len(head) - 1
	widths = make([]int, len(head))
	for _, cells := range slices.Concat([][]string{head}, rows) {
		for i, cell := range cells {
			widths[i] = max(widths[i], Visible(cell))
		}
	}
	if columns == 0 {
		return rows, widths
	}
	total := columnGap*last + lo.Sum(widths)
	shortened := widths
	if slices.ContainsFunc(rows, func(cells []string) bool { return strings.Contains(cells[last], " ") }) {
		shortened = widths[:last]
		narrow := min(widths[last], max(minText, widths[last]-max(0, total-columns)))
		total, widths[last] = total-widths[last]+narrow, narrow
	}
	for ; total > columns; total-- {
		widest, i := lo.MaxIndex(shortened)
		if widest <= minCell {
			break
		}
		shortened[i]--
	}
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
	return out, widths
}

// shorten replaces the middle of a text that is longer than most characters. It keeps the color.
func shorten(s string, most int) string {
	plain := pterm.RemoveColorFromString(s)
	runes := []rune(plain)
	if len(runes) <= most {
		return s
	}
	head := most / 2
	return strings.Replace(s, plain, string(runes[:head])+"…"+string(runes[len(runes)-(most-1-head):]), 1)
}
