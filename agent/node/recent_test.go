package node

import (
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/kit"
)

// Numbers count for an hour, whatever is added later.
func TestHour(t *testing.T) {
	var h hour
	start := time.Unix(1_800_000_000, 0)
	for _, step := range []struct {
		at   time.Duration
		n    uint64
		want uint64
	}{
		{0, 0, 0},
		{0, 5, 5},
		{time.Second, 1, 6},
		{30 * time.Minute, 2, 8},
		{59 * time.Minute, 0, 8},
		{61 * time.Minute, 1, 3},
		{91 * time.Minute, 0, 1},
		{72 * time.Hour, 4, 4},
		{2 * time.Hour, 1, 1}, // the clock was set back
		{3*time.Hour + time.Minute, 0, 0},
	} {
		kit.Check(t, step.at.String(), h.add(start.Add(step.at), step.n), step.want)
	}
}
