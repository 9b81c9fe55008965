package output

import (
	"bufio"
	"cmp"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/pterm/pterm"
	"github.com/samber/lo"
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
