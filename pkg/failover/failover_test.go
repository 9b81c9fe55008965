package failover

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/kit"
)

var start = time.Unix(1_700_000_000, 0)

func up(index int32, clean time.Duration) Plane {
	return Plane{Index: index, Up: true, LossFree: clean}
}

func down(index int32, since time.Duration) Plane { return Plane{Index: index, Down: since} }

func TestNext(t *testing.T) {
	type look struct {
		at     time.Duration
		planes []Plane
		want   int32
	}
	leaving := up(0, time.Hour)
	leaving.Leaving = true
	for name, looks := range map[string][]look{
		"the preferred one": {{0, []Plane{up(1, 0), up(0, 0)}, 1}},
		"the first that works": {
			{0, []Plane{down(0, 0), down(1, 0)}, 0},
			{time.Second, []Plane{down(0, time.Second), up(1, 0)}, 1},
		},
		"a failure, and a return after at least five seconds": {
			{0, []Plane{up(0, time.Hour), up(1, time.Hour)}, 0},
			{time.Second, []Plane{down(0, 200*time.Millisecond), up(1, time.Hour)}, 1},
			{5 * time.Second, []Plane{up(0, 4*time.Second), up(1, time.Hour)}, 1},
			{9 * time.Second, []Plane{up(0, 8*time.Second), up(1, time.Hour)}, 0},
		},
		"each failure doubles the time": {
			{0, []Plane{up(0, time.Hour), up(1, time.Hour)}, 0},
			{time.Second, []Plane{down(0, 200*time.Millisecond), up(1, time.Hour)}, 1},
			{10 * time.Second, []Plane{up(0, 8*time.Second), up(1, time.Hour)}, 0},
			{11 * time.Second, []Plane{down(0, 200*time.Millisecond), up(1, time.Hour)}, 1},
			{20 * time.Second, []Plane{up(0, 8*time.Second), up(1, time.Hour)}, 1},
			{30 * time.Second, []Plane{up(0, 15*time.Second), up(1, time.Hour)}, 0},
		},
		"one that leaves is left while it works": {
			{0, []Plane{up(0, time.Hour), up(1, time.Hour)}, 0},
			{time.Second, []Plane{leaving, up(1, time.Hour)}, 1},
		},
		"one that leaves is kept if there is no other": {
			{0, []Plane{up(0, time.Hour), up(1, time.Hour)}, 0},
			{time.Second, []Plane{leaving, down(1, time.Hour)}, 0},
		},
		"none works: nothing changes, until one does": {
			{0, []Plane{up(0, time.Hour), up(1, time.Hour)}, 0},
			{time.Second, []Plane{down(0, 200*time.Millisecond), down(1, 200*time.Millisecond)}, 0},
			{20 * time.Second, []Plane{down(0, 20*time.Second), down(1, 20*time.Second)}, 0},
			{21 * time.Second, []Plane{down(0, 20*time.Second), up(1, 0)}, 1},
		},
		"of several others, the one that was clean for longest": {
			{0, []Plane{up(0, time.Hour), up(1, time.Hour), up(2, time.Hour)}, 0},
			{time.Second, []Plane{down(0, 200*time.Millisecond), up(1, time.Second), up(2, time.Hour)}, 2},
		},
		"another one that fails occasionally is no better": {
			{0, []Plane{up(0, time.Hour), up(1, time.Hour)}, 0},
			{time.Second, []Plane{up(0, time.Hour), down(1, 300*time.Millisecond)}, 0},
			{2 * time.Second, []Plane{down(0, 300*time.Millisecond), up(1, time.Second)}, 0},
			{3 * time.Second, []Plane{down(0, 450*time.Millisecond), up(1, time.Second)}, 1},
		},
		"the one in use is gone": {
			{0, []Plane{up(0, time.Hour), up(1, time.Hour)}, 0},
			{time.Second, []Plane{up(1, time.Hour)}, 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var c Choice
			for _, l := range looks {
				if got := c.Next(start.Add(l.at), l.planes); got != l.want {
					t.Errorf("after %s: %d, want %d", l.at, got, l.want)
				}
			}
		})
	}
}

// If packets are sent through all planes that work, a plane that fails is left immediately and used again later.
func TestAll(t *testing.T) {
	type look struct {
		at     time.Duration
		planes []Plane
		want   []int32
	}
	leaving := func(index int32) Plane {
		p := up(index, time.Hour)
		p.Leaving = true
		return p
	}
	for name, looks := range map[string][]look{
		"all that work, from the first look on": {{0, []Plane{up(1, time.Hour), up(0, time.Hour), down(2, time.Hour)}, []int32{1, 0}}},
		"the first one, until others have worked for a second": {
			{0, []Plane{down(0, 0), down(1, 0)}, []int32{0}},
			{time.Second, []Plane{up(0, 0), up(1, 0)}, []int32{0}},
			{2 * time.Second, []Plane{up(0, time.Second), up(1, time.Second)}, []int32{0, 1}},
		},
		"a failure, and a return after at least five seconds": {
			{0, []Plane{up(0, time.Hour), up(1, time.Hour), up(2, time.Hour)}, []int32{0, 1, 2}},
			{time.Second, []Plane{up(0, time.Hour), down(1, 200*time.Millisecond), up(2, time.Hour)}, []int32{0, 2}},
			{5 * time.Second, []Plane{up(0, time.Hour), up(1, 4*time.Second), up(2, time.Hour)}, []int32{0, 2}},
			{9 * time.Second, []Plane{up(0, time.Hour), up(1, 8*time.Second), up(2, time.Hour)}, []int32{0, 1, 2}},
		},
		"one that leaves is left while it works": {
			{0, []Plane{up(0, time.Hour), up(1, time.Hour)}, []int32{0, 1}},
			{time.Second, []Plane{leaving(0), up(1, time.Hour)}, []int32{1}},
			{2 * time.Second, []Plane{up(0, time.Hour), up(1, time.Hour)}, []int32{1}},
			{3 * time.Second, []Plane{up(0, time.Hour), up(1, time.Hour)}, []int32{0, 1}},
		},
		"those that leave are kept if there is no other": {
			{0, []Plane{up(0, time.Hour), up(1, time.Hour)}, []int32{0, 1}},
			{time.Second, []Plane{leaving(0), leaving(1)}, []int32{0, 1}},
		},
		"none works: nothing changes, until one does": {
			{0, []Plane{up(0, time.Hour), up(1, time.Hour)}, []int32{0, 1}},
			{time.Second, []Plane{down(0, 200*time.Millisecond), down(1, 200*time.Millisecond)}, []int32{0, 1}},
			{20 * time.Second, []Plane{down(0, 20*time.Second), down(1, 20*time.Second)}, []int32{0, 1}},
			{21 * time.Second, []Plane{down(0, 20*time.Second), up(1, 0)}, []int32{1}},
		},
		"the only one in use fails before the other has worked for long": {
			{0, []Plane{up(0, time.Hour), down(1, time.Hour)}, []int32{0}},
			{time.Second, []Plane{down(0, 200*time.Millisecond), up(1, 0)}, []int32{1}},
		},
		"one that fails is kept while the other is no better": {
			{0, []Plane{up(0, time.Hour), up(1, time.Hour)}, []int32{0, 1}},
			{time.Second, []Plane{up(0, time.Hour), down(1, 200*time.Millisecond)}, []int32{0}},
			{30 * time.Second, []Plane{up(0, time.Hour), up(1, time.Minute)}, []int32{0, 1}},
			{40 * time.Second, []Plane{down(0, 300*time.Millisecond), up(1, time.Second)}, []int32{0, 1}},
			{41 * time.Second, []Plane{down(0, 450*time.Millisecond), up(1, time.Second)}, []int32{1}},
		},
		"those in use are gone": {
			{0, []Plane{up(0, time.Hour), up(1, time.Hour)}, []int32{0, 1}},
			{time.Second, []Plane{down(2, 0), down(3, 0)}, []int32{2}},
		},
		"one plane": {{0, []Plane{down(0, time.Hour)}, []int32{0}}, {time.Second, []Plane{up(0, 0)}, []int32{0}}},
	} {
		t.Run(name, func(t *testing.T) {
			var c Choice
			var used []int32
			for _, l := range looks {
				one, got := c.NextAll(start.Add(l.at), l.planes, used)
				used = got
				kit.Check(t, fmt.Sprintf("after %s", l.at), got, l.want)
				kit.ErrorIf(t, !slices.Contains(got, one), "after %s: %d is none of %d", l.at, one, got)
			}
		})
	}
}

// Whatever the planes do, the choice is one of them. It is one that works if the plane in use has been down for long.
func TestNextProperties(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var c Choice
		now := start
		var used []int32
		for range 500 {
			now = now.Add(time.Duration(r.IntN(int(2 * time.Second))))
			var planes []Plane
			var working []int32
			for i := range int32(1 + r.IntN(4)) {
				p := down(i, time.Duration(r.IntN(int(3*time.Second))))
				if r.IntN(3) > 0 {
					p = up(i, time.Duration(r.IntN(int(time.Minute))))
					working = append(working, i)
				}
				planes = append(planes, p)
			}
			r.Shuffle(len(planes), func(i, j int) { planes[i], planes[j] = planes[j], planes[i] })
			got, all := c.NextAll(now, planes, used)
			used = all
			var chosen *Plane
			for i := range planes {
				if planes[i].Index == got {
					chosen = &planes[i]
				}
			}
			kit.FatalIf(t, chosen == nil, "%d is none of %+v", got, planes)
			kit.FatalIf(t, !chosen.Up && chosen.Down >= longOutage && len(working) > 0, "%d does not work, of %+v", got, planes)
			kit.FatalIf(t, len(all) == 0, "none is used of %+v", planes)
			for _, p := range planes {
				kit.FatalIf(t, slices.Contains(all, p.Index) && !p.Up && p.Down >= longOutage && len(working) > 0,
					"%d does not work, of %+v, and is among %d", p.Index, planes, all)
				all = slices.DeleteFunc(slices.Clone(all), func(i int32) bool { return i == p.Index })
			}
			kit.FatalIf(t, len(all) > 0, "%d are none of %+v", all, planes)
		}
	}
}

// Packets continue to use the current plane, although another one is preferred and it is not known yet whether the
// current one works.
func TestBegin(t *testing.T) {
	var c Choice
	c.SetCurrent(1)
	now := time.Now()
	if got := c.Next(now, []Plane{{Index: 0}, {Index: 1}}); got != 1 {
		t.Errorf("before anything is known, packets are sent by plane %d", got)
	}
	if got := c.Next(now, []Plane{{Index: 0}, {Index: 1, Up: true}}); got != 1 {
		t.Errorf("when plane 1 works, they are sent by plane %d", got)
	}
	if got := c.Next(now.Add(time.Second), []Plane{{Index: 0, Up: true, LossFree: time.Hour}, {Index: 1, Up: true}}); got != 0 {
		t.Errorf("when plane 0 has worked for long, they are sent by plane %d", got)
	}
}

// The same applies if several planes are in use.
func TestBeginWithSeveral(t *testing.T) {
	var c Choice
	_, got := c.NextAll(start, []Plane{{Index: 0}, {Index: 1}, {Index: 2}}, []int32{1, 2})
	kit.Check(t, "before anything is known", got, []int32{1, 2})
}

// A plane that was leaving and works again through another gateway is used again after some time.
func TestLeft(t *testing.T) {
	var c Choice
	now := time.Now()
	usable := Plane{Up: true, LossFree: time.Hour}
	left, other := usable, usable
	left.Leaving, other.Index = true, 1
	for i, tt := range []struct {
		after time.Duration
		first Plane
		want  int32
	}{{0, usable, 0}, {time.Second, left, 1}, {5 * time.Second, usable, 1}, {6*time.Second - 1, usable, 1}, {6 * time.Second, usable, 0}} {
		if got := c.Next(now.Add(tt.after), []Plane{tt.first, other}); got != tt.want {
			t.Errorf("look %d: plane %d, want %d", i, got, tt.want)
		}
	}
}
