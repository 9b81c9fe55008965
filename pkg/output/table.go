package output

import (
	"slices"
	"strings"

	"github.com/pterm/pterm"
	"github.com/samber/lo"
)

// columnGap is the number of spaces between the columns of a table.
const columnGap = 3

// minCell is the minimum width of a shortened cell, minText that of a last column of sentences.
const minCell, minText = 9, 28

// fit fits the rows of a table into the given number of columns, if possible, or any number if it is 0. Sentences in the last column continue
// in additional rows. The longest of the other cells are shortened in the middle. It also returns the widths of the columns.
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
