package overlay_test

import (
	"slices"
	"strings"
)

func sortLines(lines []string) string {
	lines = slices.Clone(lines)
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
