// Package failover decides through which plane packets are sent. It is pure: it takes the state of the planes and the
// time, and returns an index.
//
//   - A plane that fails is left immediately, for one that works.
//   - A plane that has failed is used again once it has lost nothing for some time, which doubles with each failure.
//   - A plane that announces that it is leaving is left while it still works. After that it counts as one that has
//     not worked.
//   - If no plane works, nothing changes. Packets continue to use the previous plane, or the first one that answers.
//
// Packets may also be sent through all planes that work. Then each plane is left and returned to in the same way.
package failover

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/samber/lo"
)

const (
	// firstHold is how long a plane must lose nothing before it is used again after its first failure. It doubles with
	// each failure, up to lastHold. After failureReset without a failure it starts again.
	firstHold, lastHold, failureReset = 5 * time.Second, 5 * time.Minute, 10 * time.Minute
	// A plane that has failed within recentFailure and lost packets within recentLoss is no better than another one that
	// fails occasionally. It replaces that one only after an outage of longOutage.
	recentFailure, recentLoss, longOutage = time.Minute, 2 * time.Second, 400 * time.Millisecond
	// jitter is the random part of a hold, so that not all nodes return at the same time.
	jitter = 0.4
)

// Plane is the state of one plane.
type Plane struct {
	Index int32
	// Up is set if it carries packets, and Leaving if it is about to stop.
	Up, Leaving bool
	// Down is how long it has carried no packets, and LossFree how long it has lost nothing.
	Down, LossFree time.Duration
}

func (p Plane) isUsable() bool { return p.Up && !p.Leaving }

// Choice is the plane in use. The zero value has made no choice yet.
type Choice struct {
	chosen  bool
	active  int32
	records map[int32]record
}

// record is the history of a plane.
type record struct {
	up       bool
	failures int
	failed   time.Time
	random   float64
	// leaving is set while the plane is leaving. returnedAt is when it stopped leaving, the zero time if it never left.
	leaving    bool
	returnedAt time.Time
}

// hold returns how long a plane must be clean before it is used again.
func (r record) hold() time.Duration {
	if r.failures == 0 {
		return time.Second
	}
	d := min(firstHold<<min(r.failures-1, 10), lastHold)
	return d + time.Duration(float64(d)*jitter*r.random)
}

// SetCurrent sets the plane that is already in use.
func (c *Choice) SetCurrent(plane int32) { c.active, c.chosen = plane, true }

// Next returns the plane to use from now on. planes are in order of preference, at least one. It must be called
// whenever a plane comes up or goes down, and frequently while the one in use is down.
func (c *Choice) Next(now time.Time, planes []Plane) int32 {
	for _, p := range planes {
		c.observe(now, p)
	}
	current := slices.IndexFunc(planes, func(p Plane) bool { return c.chosen && p.Index == c.active })
	if current < 0 {
		current = max(0, slices.IndexFunc(planes, Plane.isUsable))
	}
	c.active, c.chosen = c.better(now, planes[current], planes).Index, true
	return c.active
}

// observe records failures.
func (c *Choice) observe(now time.Time, p Plane) {
	if c.records == nil {
		c.records = map[int32]record{}
	}
	r := c.records[p.Index] // a new plane was neither up nor leaving
	if r.up && !p.Up {
		if now.Sub(r.failed) > failureReset {
			r.failures = 0
		}
		r.failures, r.failed, r.random = r.failures+1, now, rand.Float64()
	}
	if r.leaving && !p.Leaving {
		r.returnedAt = now
	}
	r.up, r.leaving = p.Up, p.Leaving
	c.records[p.Index] = r
}

// isProven reports whether a plane works, stays, and has lost nothing for long enough.
func (c *Choice) isProven(now time.Time, p Plane) bool {
	r := c.records[p.Index]
	return p.isUsable() && min(p.LossFree, now.Sub(r.returnedAt)) >= r.hold()
}

// better returns the plane to use instead of the current one, or the current one.
func (c *Choice) better(now time.Time, current Plane, planes []Plane) Plane {
	if current.isUsable() {
		for _, p := range planes {
			if p.Index == current.Index {
				return current
			}
			if c.isProven(now, p) {
				return p // it is preferred
			}
		}
	}
	return c.other(now, current, planes)
}

// other returns the plane that replaces one that does not work, or that one if there is no better one.
func (c *Choice) other(now time.Time, current Plane, planes []Plane) Plane {
	others := slices.DeleteFunc(slices.Clone(planes), func(p Plane) bool { return p.Index == current.Index || !p.isUsable() })
	if len(others) == 0 {
		return current
	}
	best := slices.MaxFunc(others, func(a, b Plane) int { return cmp.Compare(a.LossFree, b.LossFree) })
	r := c.records[best.Index]
	isNoBetter := r.failures > 0 && now.Sub(r.failed) < recentFailure && best.LossFree < recentLoss
	return lo.Ternary(isNoBetter && !current.Leaving && current.Down < longOutage, current, best)
}

// NextAll returns the planes to use from now on if packets are sent through all planes that work. It is called instead
// of Next. used are the planes in use so far, empty if packets were sent through one. The result has the order of
// planes, and at least one element. Packets that cannot be spread use the plane one, which is the result of Next.
func (c *Choice) NextAll(now time.Time, planes []Plane, used []int32) (one int32, all []int32) {
	one = c.Next(now, planes)
	if len(used) == 0 {
		used = []int32{one}
	}
	for _, p := range planes {
		stays := slices.Contains(used, p.Index) || c.isProven(now, p)
		if stays && (p.isUsable() || c.other(now, p, planes).Index == p.Index) {
			all = append(all, p.Index)
		}
	}
	if len(all) == 0 {
		all = []int32{one}
	}
	return one, all
}
