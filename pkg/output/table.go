package output

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/samber/lo"
)

// columnGap is the number of spaces between the columns of a table.
const columnGap = 3

// minCell is the minimum width of a shortened cell, minText that of a last column of sentences.
const minCell, minText = 9, 28

// fit fits the rows of a table into the given number of columns, if possible. Sentences in the last column continue in additional rows.
// The longest of the other cells are shortened in the middle.
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

// shorten replaces the middle of a text that is longer than most characters.
func shorten(s string, most int) string {
	runes := []rune(s)
	if len(runes) <= most {
		return s
	}
	head := most / 2
	return string(runes[:head]) + "…" + string(runes[len(runes)-(most-1-head):])
}
