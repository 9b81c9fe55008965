package cli

import (
	"bufio"
	"cmp"
	"io"
	"os"
	"regexp"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

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
	widths := make([]int, len(head))
	total := gap * (len(head) - 1)
	last := len(head) - 1
	sentences := false
	for i, name := range head {
		widths[i] = utf8.RuneCountInString(name)
		for _, cells := range rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(cells[i]))
			sentences = sentences || i == last && strings.Contains(cells[i], " ")
		}
		total += widths[i]
	}
	if over := total - columns; sentences && over > 0 {
		narrow := max(min(widths[last], leastText), widths[last]-over)
		total, widths[last] = total-widths[last]+narrow, narrow
	}
	for ; total > columns; total-- {
		widest := -1
		for i, width := range widths {
			if width > leastCell && (i < last || !sentences) && (widest < 0 || width > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break
		}
		widths[widest]--
	}
	var out [][]string
	for _, cells := range rows {
		for i := range cells[:last] {
			cells[i] = shorten(cells[i], widths[i])
		}
		if !sentences {
			cells[last] = shorten(cells[last], widths[last])
			out = append(out, cells)
			continue
		}
		for i, line := range strings.Split(wrapLine(cells[last], widths[last], ""), "\n") {
			if i > 0 {
				cells = make([]string, len(head))
			}
			cells[last] = line
			out = append(out, cells)
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
