package ipam

import (
	"fmt"
	"net/netip"
	"slices"
)

// Space is the address space of the cluster that receives: where ranges may be
// taken from, and what is in use there.
type Space struct {
	// Pools are searched where a range cannot be kept. Empty: DefaultPools.
	Pools []netip.Prefix
	// Used is everything that the cluster uses: pods, services, nodes, its
	// internal CIDR, routes of its nodes, ranges of other peers, what the user
	// reserved. The ranges that the very same peer has already must not be here:
	// they are the requests' Previous. Reserved need not be here.
	Used []Use
	// Avoid are ranges that are taken from the pools only where there is nothing
	// else. Nil: CommonRanges. They do not keep a wish from being met.
	Avoid []netip.Prefix
}

// Request asks for one range.
type Request struct {
	// What is to be given a range, as errors and reasons call it, e.g.
	// "pod range 10.244.0.0/16 of cluster b".
	What string
	// Key decides the order of candidates: cluster ID and purpose. The same key
	// has the same order, whatever else is asked for.
	Key string
	// Want is taken where it is free, also outside of the pools. The result has
	// its length and family.
	Want netip.Prefix
	// Bits is the length where Want is not valid: an IPv4 range by hash alone.
	Bits int
	// Previous is kept where it is still free and of the right length.
	Previous netip.Prefix
	// Wish is the user's: it is taken, or refused with an error.
	Wish netip.Prefix
}

// Allocation is the answer to a Request.
type Allocation struct {
	Prefix netip.Prefix
	// Reason says why it is this one, as a part of a sentence.
	Reason string
}

// Allocate answers all requests, in their order, or none. The results neither
// overlap each other nor anything in use. Their order does not matter,
// as none takes a range that is better for another one. They are looked at in this order:
//
//  1. those with a wish;
//  2. those that had a range before;
//  3. those that can be kept as they are;
//  4. the rest, the largest ones first.
//
// Errors are InvalidError, ConflictError (of a wish) and ExhaustedError.
func Allocate(s Space, requests ...Request) ([]Allocation, error) {
	a := &allocator{pools: s.Pools, avoid: s.Avoid}
	if len(s.Pools) == 0 {
		a.pools = DefaultPools()
	}
	if s.Avoid == nil {
		a.avoid = CommonRanges()
	}
	for _, p := range a.pools {
		if err := checkPrefix(p); err != nil {
			return nil, fmt.Errorf("configured pool: %w", err)
		}
	}
	a.grow(len(s.Used) + len(Reserved()) + len(a.avoid) + len(requests))
	for _, u := range Reserved() {
		a.use(&u)
	}
	for i := range s.Used {
		u := &s.Used[i]
		if err := checkPrefix(u.Prefix); err != nil {
			return nil, fmt.Errorf("range used by %s: %w", u.By, err)
		}
		a.use(u)
	}
	for _, r := range requests {
		if err := r.check(); err != nil {
			return nil, fmt.Errorf("allocate %s: %w", r.What, err)
		}
	}
	out := make([]Allocation, len(requests))
	for _, step := range []func(Request) (Allocation, error){a.wish, a.previous, a.keep, a.pool} {
		for _, i := range largestFirst(requests) {
			if out[i].Prefix.IsValid() {
				continue
			}
			got, err := step(requests[i])
			if err != nil {
				return nil, err
			}
			if out[i] = got; got.Prefix.IsValid() {
				a.use(&Use{got.Prefix, requests[i].What})
			}
		}
	}
	return out, nil
}

// Free says what in use or reserved overlaps p; nothing if p is free.
func (s Space) Free(p netip.Prefix) []Use {
	return slices.DeleteFunc(slices.Concat(Reserved(), s.Used), func(u Use) bool { return !u.Prefix.Overlaps(p) })
}

func (r Request) check() error {
	if !r.Want.IsValid() {
		if r.Bits < 1 || r.Bits > 32 {
			return &InvalidError{Reason: fmt.Sprintf("has neither a prefix nor a length from 1 to 32: %d", r.Bits)}
		}
	} else {
		if err := checkPrefix(r.Want); err != nil {
			return err
		}
		for _, n := range neverPods() {
			if n.Overlaps(r.Want) {
				return &InvalidError{Prefix: r.Want, Reason: fmt.Sprintf("overlaps %s, which cannot be routed", n)}
			}
		}
	}
	if !r.Wish.IsValid() {
		return nil
	}
	if err := checkPrefix(r.Wish); err != nil {
		return err
	}
	return sameShape(r.shape(), r.Wish)
}

// shape is a prefix of the family and length that the result must have.
func (r Request) shape() netip.Prefix {
	if r.Want.IsValid() {
		return r.Want
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), r.Bits)
}

// allocator is the state of one Allocate.
type allocator struct {
	pools, avoid []netip.Prefix
	v4, v6       family
}

// family is what is in use of one family: blocks[i] is uses[i]'s prefix, since
// comparing numbers is much faster.
type family struct {
	blocks []block
	uses   []*Use
}

// grow makes room for n uses in all; mostly they are of IPv4.
func (a *allocator) grow(n int) {
	a.v4 = family{make([]block, 0, n), make([]*Use, 0, n)}
}

func (a *allocator) family(p netip.Prefix) *family {
	if p.Addr().Is4() {
		return &a.v4
	}
	return &a.v6
}

// use notes what is in use. The pointer is kept, and only read.
func (a *allocator) use(u *Use) {
	f := a.family(u.Prefix)
	f.blocks, f.uses = append(f.blocks, blockOf(u.Prefix)), append(f.uses, u)
}

// overlapping returns what of the uses overlaps p.
func (a *allocator) overlapping(ps ...netip.Prefix) largest {
	var out largest
	for _, p := range ps {
		f, b := a.family(p), blockOf(p)
		for i, u := range f.blocks {
			if u.overlaps(b) {
				out.add(*f.uses[i])
			}
		}
	}
	return out
}

func (a *allocator) taken(p netip.Prefix) bool {
	return slices.ContainsFunc(a.family(p).blocks, blockOf(p).overlaps)
}

// The steps return the zero Allocation where they do not apply.

func (a *allocator) wish(r Request) (Allocation, error) {
	if !r.Wish.IsValid() {
		return Allocation{}, nil
	}
	if with := a.overlapping(r.Wish); len(with.uses) > 0 {
		return Allocation{}, &ConflictError{What: r.What, Wish: r.Wish, With: with.uses, More: with.more}
	}
	return Allocation{r.Wish, "as wished"}, nil
}

func (a *allocator) previous(r Request) (Allocation, error) {
	if checkPrefix(r.Previous) != nil || sameShape(r.shape(), r.Previous) != nil || a.taken(r.Previous) {
		return Allocation{}, nil
	}
	return Allocation{r.Previous, "as before"}, nil
}

func (a *allocator) keep(r Request) (Allocation, error) {
	if !r.Want.IsValid() || a.taken(r.Want) {
		return Allocation{}, nil
	}
	return Allocation{r.Want, "free, so kept as it is"}, nil
}

func (a *allocator) pool(r Request) (Allocation, error) {
	shape := r.shape()
	is4, bits := shape.Addr().Is4(), shape.Bits()
	hard := a.family(shape).blocks
	soft := hard // appending leaves hard as it is, and the next use overwrites it
	for _, p := range a.avoid {
		if p.IsValid() && p.Addr().Is4() == is4 {
			soft = append(soft, blockOf(p))
		}
	}
	key := r.Key
	if r.Want.IsValid() {
		// Several ranges of one peer have one key, and each needs its own order.
		key += " " + r.Want.String()
	}
	o := orderOf(key)
	p, ok := o.search(a.pools, soft, is4, bits)
	if !ok {
		p, ok = o.search(a.pools, hard, is4, bits)
	}
	if !ok {
		return Allocation{}, a.exhausted(r, is4, bits)
	}
	reason := "chosen from the pools"
	if r.Want.IsValid() {
		reason += ": " + r.Want.String() + " overlaps " + a.overlapping(r.Want).String()
	}
	if r.Previous.IsValid() {
		if with := a.overlapping(r.Previous); len(with.uses) > 0 {
			reason += "; " + r.Previous.String() + ", which it was before, overlaps " + with.String()
		}
	}
	return Allocation{p, reason}, nil
}

func (a *allocator) exhausted(r Request, is4 bool, bits int) error {
	e := &ExhaustedError{What: r.What, Wanted: r.Want, Bits: bits}
	if r.Want.IsValid() {
		with := a.overlapping(r.Want)
		e.With, e.WithMore = with.uses, with.more
	}
	for _, p := range a.pools {
		if p.Addr().Is4() == is4 {
			e.Pools = append(e.Pools, p)
		}
	}
	used := a.overlapping(e.Pools...)
	e.Used, e.UsedMore = used.uses, used.more
	return e
}

// largestFirst returns the requests' indexes, the largest ranges first, and those
// of one size in an order that does not depend on that of the requests.
func largestFirst(requests []Request) []int {
	out := make([]int, len(requests))
	for i := range out {
		out[i] = i
	}
	slices.SortStableFunc(out, func(i, j int) int {
		a, b := requests[i], requests[j]
		if c := a.shape().Bits() - b.shape().Bits(); c != 0 {
			return c
		}
		if c := a.shape().Addr().Compare(b.shape().Addr()); c != 0 {
			return c
		}
		if a.Key < b.Key {
			return -1
		} else if a.Key > b.Key {
			return 1
		}
		return 0
	})
	return out
}
