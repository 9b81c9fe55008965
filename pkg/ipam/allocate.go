// Package ipam decides which address ranges two clusters know each other by, and
// translates addresses between a range and its mapped one.
//
// Everything here is a pure function of its arguments: which ranges are in use,
// and by whom, is told by the caller (pkg/discovery and the ledger know it). The
// same input always gives the same output, on every machine and in every release;
// a test pins some results for that reason.
//
// How a range is chosen: a private range that is free in the receiving cluster is kept
// as it is. Otherwise each range of the pools has a number, a hash of the request's key
// and the range, and the free one with the highest number is taken. So the order in which
// candidates are tried depends on the key only, and every candidate is equally likely
// to be the first. It follows that
//
//   - releasing a range and asking again gives the same one, as long as the ranges
//     tried before it stay in use or there were none;
//   - two peers interfere, whichever comes first, only where both first choices
//     overlap. See docs/ipam.md for how likely that is.
//
// Out of scope: Kubernetes, storing allocations (the ledger, ClusterNetwork), and
// giving out single addresses.
package ipam

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"github.com/samber/lo"
	"go4.org/netipx"
)

// maxListed is how many uses an error or a reason lists.
const maxListed = 8

// Request asks for one range.
type Request struct {
	// What is to be given a range, as errors and reasons call it, e.g.
	// "pod range 10.244.0.0/16 of cluster b".
	What string
	// Key decides the order of candidates: cluster ID and purpose. The same key
	// has the same order, whatever else is asked for.
	Key string
	// Want is taken where it is free and private, also outside of the pools. The result
	// has its length and family.
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
// used is everything that the receiving cluster uses: pods, services, nodes, its internal
// CIDR, routes of its nodes, ranges of other peers, what the user reserved. The ranges
// that the very same peer has already must not be there. They are the requests' Previous.
// Reserved need not be there.
//
// Errors match ErrInvalid, ErrConflict (of a wish) or ErrExhausted.
func Allocate(used []Usage, requests ...Request) ([]Allocation, error) {
	for _, u := range used {
		if err := checkPrefix(u.Prefix); err != nil {
			return nil, fmt.Errorf("range used by %s: %w", u.Owner, err)
		}
	}
	for _, r := range requests {
		if err := r.check(); err != nil {
			return nil, fmt.Errorf("allocate %s: %w", r.What, err)
		}
	}
	a := &allocator{used: slices.Concat(Reserved(), used)}
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
				a.used = append(a.used, Usage{got.Prefix, requests[i].What})
			}
		}
	}
	return out, nil
}

func (r Request) check() error {
	if !r.Want.IsValid() {
		if r.Bits < 1 || r.Bits > 32 {
			return errorf(ErrInvalid, "the range given has neither a prefix nor a length from 1 to 32: %d", r.Bits)
		}
	} else if err := checkPrefix(r.Want); err != nil {
		return err
	} else if never, overlaps := lo.Find(neverPods(), r.Want.Overlaps); overlaps {
		return errorf(ErrInvalid, "%s overlaps %s, which cannot be routed", r.Want, never)
	}
	if !r.Wish.IsValid() {
		return nil
	}
	return Mapping{r.shape(), r.Wish}.Validate()
}

// shape is a prefix of the family and length that the result must have.
func (r Request) shape() netip.Prefix {
	if r.Want.IsValid() {
		return r.Want
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), r.Bits)
}

// largestFirst returns the requests' indexes, the largest ranges first, and those
// of one size in an order that does not depend on that of the requests.
func largestFirst(requests []Request) []int {
	out := lo.Range(len(requests))
	slices.SortStableFunc(out, func(i, j int) int {
		a, b := requests[i], requests[j]
		return cmp.Or(compareSize(a.shape(), b.shape()), strings.Compare(a.Key, b.Key))
	})
	return out
}

// compareSize orders prefixes, the largest first.
func compareSize(a, b netip.Prefix) int {
	return cmp.Or(a.Bits()-b.Bits(), a.Addr().Compare(b.Addr()))
}

// allocator is the state of one Allocate: what is in use or given out.
type allocator struct{ used []Usage }

// overlapping names what of the uses overlaps one of the prefixes, the largest first, and
// counts the others: there may be thousands. It is empty if nothing does.
func (a *allocator) overlapping(ps ...netip.Prefix) string {
	found := lo.Filter(a.used, func(u Usage, _ int) bool { return slices.ContainsFunc(ps, u.Prefix.Overlaps) })
	slices.SortFunc(found, func(a, b Usage) int {
		return cmp.Or(compareSize(a.Prefix, b.Prefix), strings.Compare(a.Owner, b.Owner))
	})
	found = slices.Compact(found)
	parts := lo.Map(found[:min(maxListed, len(found))], func(u Usage, _ int) string { return u.String() })
	if more := len(found) - maxListed; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, ", ")
}

// The steps return the zero Allocation where they do not apply.

func (a *allocator) wish(r Request) (Allocation, error) {
	if !r.Wish.IsValid() {
		return Allocation{}, nil
	}
	if with := a.overlapping(r.Wish); with != "" {
		return Allocation{}, errorf(ErrConflict, "%s cannot be %s: it overlaps %s", r.What, r.Wish, with)
	}
	return Allocation{r.Wish, "as wished"}, nil
}

func (a *allocator) previous(r Request) (Allocation, error) {
	if (Mapping{r.shape(), r.Previous}).Validate() != nil || a.overlapping(r.Previous) != "" {
		return Allocation{}, nil
	}
	return Allocation{r.Previous, "as before"}, nil
}

func (a *allocator) keep(r Request) (Allocation, error) {
	if !r.Want.IsValid() || !Private(r.Want) || a.overlapping(r.Want) != "" {
		return Allocation{}, nil
	}
	return Allocation{r.Want, "free, so kept as it is"}, nil
}

// inTheWay completes "<range> …": why it is not kept.
func (a *allocator) inTheWay(p netip.Prefix) string {
	if with := a.overlapping(p); with != "" {
		return "overlaps " + with
	}
	return "is neither private (RFC 1918) nor shared (RFC 6598)"
}

func (a *allocator) pool(r Request) (Allocation, error) {
	p, ok := a.choose(r, CommonRanges())
	if !ok {
		p, ok = a.choose(r, nil)
	}
	if !ok {
		return Allocation{}, a.exhausted(r)
	}
	reason := "chosen from the pools"
	if r.Want.IsValid() {
		reason += ": " + r.Want.String() + " " + a.inTheWay(r.Want)
	}
	if r.Previous.IsValid() {
		if with := a.overlapping(r.Previous); with != "" {
			reason += "; " + r.Previous.String() + ", which it was before, overlaps " + with
		}
	}
	return Allocation{p, reason}, nil
}

// choose returns the free range of the pools that has the highest number by the request's
// key (rendezvous hashing), without those that overlap what is to be avoided. The numbers
// must never change: allocations of all users depend on them.
func (a *allocator) choose(r Request, avoid []netip.Prefix) (best netip.Prefix, ok bool) {
	shape := r.shape()
	if !shape.Addr().Is4() {
		return best, false // there is no pool of IPv6
	}
	hash := fnv.New64a()
	hash.Write([]byte(r.Key))
	if r.Want.IsValid() {
		// Several ranges of one peer have one key, and each needs its own order.
		hash.Write([]byte(" " + r.Want.String()))
	}
	seed, highest := hash.Sum64(), uint64(0)
	for _, block := range a.free(avoid) {
		if block.Bits() > shape.Bits() {
			continue
		}
		first := binary.BigEndian.Uint32(block.Addr().AsSlice())
		for i := range uint32(1) << (shape.Bits() - block.Bits()) {
			n := first + i<<(32-shape.Bits())
			if score := rand.NewPCG(seed, uint64(n)).Uint64(); !ok || score > highest {
				addr := netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, n)))
				best, highest, ok = netip.PrefixFrom(addr, shape.Bits()), score, true
			}
		}
	}
	return best, ok
}

// free is what of the pools is neither in use nor to be avoided.
func (a *allocator) free(avoid []netip.Prefix) []netip.Prefix {
	var free netipx.IPSetBuilder
	for _, p := range DefaultPools() {
		free.AddPrefix(p)
	}
	for _, u := range a.used {
		free.RemovePrefix(u.Prefix)
	}
	for _, p := range avoid {
		free.RemovePrefix(p)
	}
	set, _ := free.IPSet() // all prefixes were checked
	return set.Prefixes()
}

func (a *allocator) exhausted(r Request) error {
	what, bits := r.What, r.shape().Bits()
	if r.Want.IsValid() {
		what += fmt.Sprintf(" cannot stay %s, which %s, and", r.Want, a.inTheWay(r.Want))
	}
	var pools []string
	for _, p := range DefaultPools() {
		pool := p.String()
		if p.Bits() > bits {
			pool += " (too small)"
		}
		pools = append(pools, pool)
	}
	return errorf(ErrExhausted, "%s finds no free /%d in the pools %s: in use are %s",
		what, bits, strings.Join(pools, ", "), a.overlapping(DefaultPools()...))
}

// Peer is a cluster that another one is to know.
type Peer struct {
	// ID is the cluster's ID: ranges depend on it, and not on its name.
	ID string
	// Name is for errors and reasons.
	Name string
	// Pods are its own pod ranges.
	Pods []netip.Prefix
	// PreviousPods and PreviousExternal are what the ledger has for it already. They are
	// kept where they are free, also if they are not private.
	PreviousPods     Mappings
	PreviousExternal netip.Prefix
	// Map are the user's wishes. Real may be left out where the peer has one pod
	// range of that length.
	Map Mappings
	// MapExternal is the user's wish for the external CIDR.
	MapExternal netip.Prefix
}

// Range is one range of a peer, and why it was chosen.
type Range struct {
	Mapping
	Reason string
}

// PeerRanges are the ranges by which a cluster knows a peer.
type PeerRanges struct {
	// Pods are sorted by the real range.
	Pods []Range
	// External is the /18 for nodes and single addresses, see SplitExternal.
	External       netip.Prefix
	ExternalReason string
}

// Mappings returns the pods' ranges without the reasons.
func (r PeerRanges) Mappings() Mappings {
	return lo.Map(r.Pods, func(p Range, _ int) Mapping { return p.Mapping })
}

// maxAddresses is how many addresses all pod ranges of a peer may have: those of a /8. The
// peer says which ranges it has, and this cluster routes them to it.
const maxAddresses = 1 << 24

// tooLarge refuses ranges that have too many addresses together.
func (p Peer) tooLarge(pods []netip.Prefix) error {
	ipv4 := lo.Filter(pods, func(pod netip.Prefix, _ int) bool { return pod.Addr().Is4() })
	if lo.SumBy(ipv4, func(pod netip.Prefix) uint64 { return 1 << (32 - pod.Bits()) }) <= maxAddresses {
		return nil
	}
	names, more := lo.Map(pods, func(pod netip.Prefix, _ int) string { return pod.String() }), ""
	if n := len(names) - maxListed; n > 0 {
		names, more = names[:maxListed], fmt.Sprintf(" and %d more", n)
	}
	return errorf(ErrTooLarge, "the pod ranges of cluster %s, %s%s, have more addresses together than a /8; "+
		"give those that have pods: --pod-cidr %[1]s=RANGE[,RANGE]", p.Name, strings.Join(names, ", "), more)
}

// AllocatePeer chooses all ranges by which a cluster, of which used is what Allocate
// needs, knows the peer. Pod ranges inside of others are dropped. The errors are those
// of Allocate, and ErrTooLarge where the pod ranges are more than a /8 in sum.
func AllocatePeer(used []Usage, p Peer) (PeerRanges, error) {
	for _, pod := range p.Pods {
		if err := checkPrefix(pod); err != nil {
			return PeerRanges{}, fmt.Errorf("pod ranges of cluster %s: %w", p.Name, err)
		}
	}
	pods := Outermost(p.Pods, netip.Prefix.Masked)
	previous := lo.SliceToMap(p.PreviousPods, func(m Mapping) (real, mapped netip.Prefix) { return m.Real, m.Mapped })
	isNew := func(pod netip.Prefix) bool { return !lo.HasKey(previous, pod) } // what was given out before stays
	if err := p.tooLarge(pods); err != nil && slices.ContainsFunc(pods, isNew) {
		return PeerRanges{}, err
	}
	wishes, err := p.wishes(pods)
	if err != nil {
		return PeerRanges{}, err
	}
	requests := lo.Map(pods, func(pod netip.Prefix, _ int) Request {
		return Request{
			What: fmt.Sprintf("pod range %s of cluster %s", pod, p.Name), Key: p.ID + " pods",
			Want: pod, Wish: wishes[pod], Previous: previous[pod],
		}
	})
	// There is no range that everybody wishes for: the first peer would get it, and
	// which one is the first may change.
	requests = append(requests, Request{
		What: "external range of cluster " + p.Name, Key: p.ID + " external", Bits: ExternalBits,
		Previous: p.PreviousExternal, Wish: p.MapExternal,
	})
	got, err := Allocate(used, requests...)
	if err != nil {
		return PeerRanges{}, err
	}
	ranges := lo.Map(pods, func(pod netip.Prefix, i int) Range { return Range{Mapping{pod, got[i].Prefix}, got[i].Reason} })
	external := got[len(pods)]
	return PeerRanges{Pods: ranges, External: external.Prefix, ExternalReason: external.Reason}, nil
}

// InternalRequest asks for a cluster's own internal CIDR. It is asked for once,
// before its first peering.
func InternalRequest(clusterID, clusterName string) Request {
	return Request{What: "internal range of cluster " + clusterName, Key: clusterID + " internal", Want: DefaultInternal()}
}

// wishes assigns the user's wishes to the pod ranges.
func (p Peer) wishes(pods []netip.Prefix) (map[netip.Prefix]netip.Prefix, error) {
	out := map[netip.Prefix]netip.Prefix{}
	for _, m := range p.Map {
		real := m.Real
		if !real.IsValid() {
			fitting := lo.Filter(pods, func(pod netip.Prefix, _ int) bool { return sameShape(pod, m.Mapped) == nil })
			if len(fitting) != 1 {
				return nil, errorf(ErrInvalid,
					"%s does not say which range of cluster %s it is for: its pod ranges are %v, and %d of them are a /%d",
					m.Mapped, p.Name, pods, len(fitting), m.Mapped.Bits())
			}
			real = fitting[0]
		}
		if !slices.Contains(pods, real) {
			return nil, errorf(ErrInvalid, "%s is not a pod range of cluster %s, whose ranges are %v", real, p.Name, pods)
		}
		if old, ok := out[real]; ok && old != m.Mapped {
			return nil, errorf(ErrInvalid, "%s cannot be mapped to both %s and %s", real, old, m.Mapped)
		}
		out[real] = m.Mapped
	}
	return out, nil
}

// Outermost sorts ranges by their prefix, IPv4 first, and drops those that are inside of others. Of equal ones, the first one stays.
func Outermost[T any](ranges []T, prefix func(T) netip.Prefix) (out []T) {
	sorted := slices.SortedStableFunc(slices.Values(ranges), func(a, b T) int { return prefix(a).Compare(prefix(b)) })
	for _, r := range sorted {
		if len(out) == 0 || !prefix(out[len(out)-1]).Overlaps(prefix(r)) {
			out = append(out, r)
		}
	}
	return out
}
