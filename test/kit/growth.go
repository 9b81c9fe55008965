package kit

import (
	"fmt"
	"maps"
	"slices"
	"testing"
)

// steeper is how much more one more object may cost at the next step than at the last one. With steps such as 100, 1,000 and
// 5,000 it is 1 if costs grow linearly, 1.3 if they grow by n log n, and 5 to 15 if they grow by the square.
const steeper = 2.5

// Growth is what was measured where there was more and more to do.
type Growth struct {
	// Steps are how many objects there were, and Measured has for each step what was measured, by unit.
	Steps    []int
	Measured []map[string]float64
	// Floor has the units that are compared, and how much of each is noise.
	Floor map[string]float64
}

// TooSteep says of what one more object costs much more where there are many than where there are few. What is there
// without any object is so left out.
func (g Growth) TooSteep() (out []string) {
	for _, unit := range slices.Sorted(maps.Keys(g.Floor)) {
		var each []float64
		for i := 1; i < len(g.Measured); i++ {
			more := max(g.Measured[i][unit]-g.Measured[i-1][unit], g.Floor[unit])
			each = append(each, more/float64(g.Steps[i]-g.Steps[i-1]))
		}
		for i := 1; i < len(each); i++ {
			if each[i] > steeper*each[i-1] {
				out = append(out, fmt.Sprintf("%s grows faster than linearly: one more costs %.3g at %d, and %.3g at %d", unit, each[i-1], g.Steps[i], each[i], g.Steps[i+1]))
			}
		}
	}
	return out
}

// Check fails the test if something grows faster than linearly. It says nothing if some steps were not measured.
func (g Growth) Check(t testing.TB) {
	t.Helper()
	if len(g.Measured) < len(g.Steps) {
		return
	}
	for _, unit := range g.TooSteep() {
		t.Error(unit)
	}
}
