// Package failover decides by which plane packets are sent. It is pure: what is known of the planes
// and the time in, an index out.
//
//   - A plane that fails is left at once, for one that works.
//   - It is returned to slowly: when nothing was lost on it for some time, which doubles with each failure.
//   - One that says that it is leaving is left while it still works. After that it is as one that has not worked.
//   - If none works, nothing is changed. Packets go on by the one before, or by the first that answers.
//
// Packets may also be sent by all planes that work. Then each of them is left and returned to in the same way.
package failover

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	// firstHold is for how long nothing may have been lost on a plane before it is returned to, after
	// its first failure. It doubles with each one, up to lastHold. After calm without a failure it
	// begins again.
	firstHold, lastHold, calm = 5 * time.Second, 5 * time.Minute, 10 * time.Minute
	// A plane that has failed lately, and has lost packets within shaky, is no better than another one
	// that fails now and then. It is taken only if the other one has been down for hopeless.
	lately, shaky, hopeless = time.Minute, 2 * time.Second, 400 * time.Millisecond
	// jitter is the part of a hold that is random, so that not all nodes return at once.
	jitter = 0.4
)

// Plane is what is known of one plane.
type Plane struct {
	Index int32
	// Up says that it carries packets, Leaving that it will not for much longer.
	Up, Leaving bool
	// Down is for how long it has not carried packets, Clean for how long nothing was lost.
	Down, Clean time.Duration
}

func (p Plane) usable() bool { return p.Up && !p.Leaving }

// Choice is the plane in use. The zero value has not chosen yet.
type Choice struct {
	chosen  bool
	active  int32
	records map[int32]record
}

// record is what a plane has done.
type record struct {
	up       bool
	failures int
	failed   time.Time
	random   float64
	// leaving says that it was, and stays when it was seen to be no more: long ago if it never was.
	leaving bool
	stays   time.Time
}

// hold is for how long a plane has to be clean before it is returned to.
func (r record) hold() time.Duration {
	if r.failures == 0 {
		return time.Second
	}
	d := min(firstHold<<min(r.failures-1, 10), lastHold)
	return d + time.Duration(float64(d)*jitter*r.random)
}

// Begin says by which plane packets are sent already.
func (c *Choice) Begin(plane int32) { c.active, c.chosen = plane, true }

// Next says which of the planes is used from now on: they are in the order in which they are
// preferred, at least one. It has to be called whenever one comes up or goes down, and often while the
// one in use is down.
func (c *Choice) Next(now time.Time, planes []Plane) int32 {
	for _, p := range planes {
		c.note(now, p)
	}
	current := slices.IndexFunc(planes, func(p Plane) bool { return c.chosen && p.Index == c.active })
	if current < 0 {
		current = max(0, slices.IndexFunc(planes, Plane.usable))
	}
	c.active, c.chosen = c.better(now, planes[current], planes).Index, true
	return c.active
}

// note records failures.
func (c *Choice) note(now time.Time, p Plane) {
	if c.records == nil {
		c.records = map[int32]record{}
	}
	r := c.records[p.Index] // one that is not known yet was neither up nor leaving
	if r.up && !p.Up {
		if now.Sub(r.failed) > calm {
			r.failures = 0
		}
		r.failures, r.failed, r.random = r.failures+1, now, rand.Float64()
	}
	if r.leaving && !p.Leaving {
		r.stays = now
	}
	r.up, r.leaving = p.Up, p.Leaving
	c.records[p.Index] = r
}

// isProven says that a plane works and stays, and that nothing was lost on it for long enough.
func (c *Choice) isProven(now time.Time, p Plane) bool {
	r := c.records[p.Index]
	return p.usable() && min(p.Clean, now.Sub(r.stays)) >= r.hold()
}

// better is the plane to be used instead of the present one, or that one.
func (c *Choice) better(now time.Time, current Plane, planes []Plane) Plane {
	if current.usable() {
		for _, p := range planes {
			if p.Index == current.Index {
				return current
			}
			if c.isProven(now, p) {
				return p // it is preferred
			}
		}
	}
	if best, ok := c.other(now, current, planes); ok {
		return best
	}
	return current
}

// other is the plane that takes the place of one that does not work, if there is such.
func (c *Choice) other(now time.Time, current Plane, planes []Plane) (best Plane, ok bool) {
	others := slices.DeleteFunc(slices.Clone(planes), func(p Plane) bool { return p.Index == current.Index || !p.usable() })
	if len(others) == 0 {
		return best, false
	}
	best = slices.MaxFunc(others, func(a, b Plane) int { return cmp.Compare(a.Clean, b.Clean) })
	r := c.records[best.Index]
	isNoBetter := r.failures > 0 && now.Sub(r.failed) < lately && best.Clean < shaky
	return best, !isNoBetter || current.Leaving || current.Down >= hopeless
}

// All says which of the planes are used from now on where packets are sent by all that work. Those used until now are none
// where packets were sent by one. The result is as in planes, at least one. What cannot be sent by several of them is sent
// by one, which is that of Next. It is called instead of Next.
func (c *Choice) All(now time.Time, planes []Plane, used []int32) (one int32, all []int32) {
	one = c.Next(now, planes)
	if len(used) == 0 {
		used = []int32{one}
	}
	for _, p := range planes {
		stays := slices.Contains(used, p.Index) || c.isProven(now, p)
		if !p.usable() && stays {
			_, isReplaced := c.other(now, p, planes)
			stays = !isReplaced
		}
		if stays {
			all = append(all, p.Index)
		}
	}
	if len(all) == 0 {
		all = []int32{one}
	}
	return one, all
}
