package output

import (
	"bufio"
	"cmp"
	"io"
	"os"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/pterm/pterm"
	"golang.org/x/term"
)

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
