package kit

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTooSteep(t *testing.T) {
	g := Growth{Steps: []int{100, 1000, 5000}, Floor: map[string]float64{"linear": 1, "n log n": 1, "square": 1, "noise": 10}}
	for _, n := range g.Steps {
		f := float64(n)
		g.Measured = append(g.Measured, map[string]float64{"linear": 1e6 + f, "n log n": f * math.Log(f), "square": 1e6 + f*f, "noise": math.Mod(f, 7)})
	}
	want := []string{"square grows faster than linearly: one more costs 1.1e+03 at 1000, and 6e+03 at 5000"}
	if diff := cmp.Diff(want, g.TooSteep()); diff != "" {
		t.Error(diff)
	}
}
