// Package ipam decides which address ranges two clusters know each other by, and translates addresses between a range and
// its mapped range.
//
// Everything here is a pure function of its arguments: the caller passes the ranges in use and their users (pkg/discovery
// and the ledger know them). The same input always gives the same output, on every machine and in every release; a test
// pins some results for that reason.
//
// A private range that is free in the receiving cluster is kept. Otherwise each range of the pools gets a number, a hash
// of the request's key and the range, and the free range with the highest number is chosen. So the order of candidates
// depends only on the key, and every candidate is equally likely to be the first. It follows that
//
//   - releasing a range and requesting it again returns the same one, as long as the ranges tried before it stay in use or
//     there were none;
//   - two peers interfere, in either order, only if their first choices overlap. See docs/ipam.md for how likely that is.
//
// Out of scope: Kubernetes, storing allocations (the ledger, ClusterNetwork), and allocating single addresses.
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

// Request requests one range.
type Request struct {
	// Recipient names the recipient of the range in errors and reasons, e.g. "pod range 10.244.0.0/16 of cluster b".
	Recipient string
	// Key determines the order of candidates: cluster ID and purpose. The order for a key does not depend on other
	// requests.
	Key string
	// Preferred is used if it is free and private, even outside of the pools. The result has its length and family.
	Preferred netip.Prefix
	// Bits is the length if Preferred is not valid: an IPv4 range chosen only by hash.
	Bits int
	// Previous is kept if it is still free and has the right length.
	Previous netip.Prefix
	// Required is the user's choice: it is used, or refused with an error.
	Required netip.Prefix
}

// Allocation is the answer to a Request.
type Allocation struct {
	Prefix netip.Prefix
	// Reason is why this range was chosen, as a part of a sentence.
	Reason string
}

// Allocate answers all requests in order, or none. The results neither overlap each other nor anything in use. The order
// of the requests does not matter, as none takes a range that suits another one better. Allocate processes them in this
// order:
//
//  1. those with a wish;
//  2. those that had a range before;
//  3. those whose range can be kept;
//  4. the rest, the largest first.
//
// used is everything that the receiving cluster uses: pods, services, nodes, its internal CIDR, routes of its nodes,
// ranges of other peers, and the user's reserved ranges. It must not contain the current ranges of the same peer, which
// are the requests' Previous. It need not contain Reserved.
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
			return nil, fmt.Errorf("allocate %s: %w", r.Recipient, err)
		}
	}
	a := &allocator{used: slices.Concat(Reserved(), used)}
	out := make([]Allocation, len(requests))
	for _, step := range []func(Request) (Allocation, error){a.required, a.previous, a.preferred, a.fromPool} {
		for _, i := range largestFirst(requests) {
			if out[i].Prefix.IsValid() {
				continue
			}
			got, err := step(requests[i])
			if err != nil {
				return nil, err
			}
			if out[i] = got; got.Prefix.IsValid() {
				a.used = append(a.used, Usage{got.Prefix, requests[i].Recipient})
			}
		}
	}
	return out, nil
}

func (r Request) check() error {
	if !r.Preferred.IsValid() {
		if r.Bits < 1 || r.Bits > 32 {
			return errorf(ErrInvalid, "the range given has neither a prefix nor a length from 1 to 32: %d", r.Bits)
		}
	} else if err := checkPrefix(r.Preferred); err != nil {
		return err
	} else if never, overlaps := lo.Find(unroutable(), r.Preferred.Overlaps); overlaps {
		return errorf(ErrInvalid, "%s overlaps %s, which cannot be routed", r.Preferred, never)
	}
	if !r.Required.IsValid() {
		return nil
	}
	return Mapping{r.shape(), r.Required}.Validate()
}

// shape returns a prefix with the family and length of the result.
func (r Request) shape() netip.Prefix {
	return lo.Ternary(r.Preferred.IsValid(), r.Preferred, netip.PrefixFrom(netip.IPv4Unspecified(), r.Bits))
}

// largestFirst returns the requests' indexes, sorted by size with the largest ranges first, and then by key.
func largestFirst(requests []Request) []int {
	out := lo.Range(len(requests))
	slices.SortStableFunc(out, func(i, j int) int {
		a, b := requests[i], requests[j]
		return cmp.Or(compareSize(a.shape(), b.shape()), strings.Compare(a.Key, b.Key))
	})
	return out
}

// compareSize orders prefixes, the largest first.
func compareSize(a, b netip.Prefix) int { return cmp.Or(a.Bits()-b.Bits(), a.Addr().Compare(b.Addr())) }

// allocator is the state of one Allocate: the ranges in use or allocated.
type allocator struct{ used []Usage }

// overlapping lists the uses that overlap one of the prefixes, the largest first. It only counts those after maxListed,
// as there may be thousands. It returns an empty string if there are none.
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

// The steps return the zero Allocation if they do not apply.

func (a *allocator) required(r Request) (Allocation, error) {
	if !r.Required.IsValid() {
		return Allocation{}, nil
	}
	if with := a.overlapping(r.Required); with != "" {
		return Allocation{}, errorf(ErrConflict, "%s cannot be %s: it overlaps %s", r.Recipient, r.Required, with)
	}
	return Allocation{r.Required, "as requested"}, nil
}

func (a *allocator) previous(r Request) (Allocation, error) {
	if (Mapping{r.shape(), r.Previous}).Validate() != nil || a.overlapping(r.Previous) != "" {
		return Allocation{}, nil
	}
	return Allocation{r.Previous, "as before"}, nil
}

func (a *allocator) preferred(r Request) (Allocation, error) {
	if !r.Preferred.IsValid() || !IsPrivate(r.Preferred) || a.overlapping(r.Preferred) != "" {
		return Allocation{}, nil
	}
	return Allocation{r.Preferred, "free, so kept"}, nil
}

// conflictReason completes "<range> …" with the reason why it is not kept.
func (a *allocator) conflictReason(p netip.Prefix) string {
	if with := a.overlapping(p); with != "" {
		return "overlaps " + with
	}
	return "is neither private (RFC 1918) nor shared (RFC 6598)"
}

func (a *allocator) fromPool(r Request) (Allocation, error) {
	p, ok := a.choose(r, CommonRanges())
	if !ok {
		p, ok = a.choose(r, nil)
	}
	if !ok {
		return Allocation{}, a.exhausted(r)
	}
	reason := "chosen from the pools"
	if r.Preferred.IsValid() {
		reason += ": " + r.Preferred.String() + " " + a.conflictReason(r.Preferred)
	}
	if r.Previous.IsValid() {
		if with := a.overlapping(r.Previous); with != "" {
			reason += "; " + r.Previous.String() + ", the previous range, overlaps " + with
		}
	}
	return Allocation{p, reason}, nil
}

// choose returns the free range of the pools with the highest number for the request's key (rendezvous hashing), except
// those that overlap avoid. The numbers must never change: all users' allocations depend on them.
func (a *allocator) choose(r Request, avoid []netip.Prefix) (best netip.Prefix, ok bool) {
	shape := r.shape()
	if !shape.Addr().Is4() {
		return best, false // there is no pool of IPv6
	}
	hash := fnv.New64a()
	hash.Write([]byte(r.Key))
	if r.Preferred.IsValid() {
		// All ranges of one peer have the same key, and each needs its own order.
		hash.Write([]byte(" " + r.Preferred.String()))
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

// free returns the parts of the pools that are neither in use nor in avoid.
func (a *allocator) free(avoid []netip.Prefix) []netip.Prefix {
	var free netipx.IPSetBuilder
	free.AddSet(Set(DefaultPools()))
	free.RemoveSet(Set(avoid))
	for _, u := range a.used {
		free.RemovePrefix(u.Prefix)
	}
	set, _ := free.IPSet() // all prefixes were checked
	return set.Prefixes()
}

// LeaveRoom reports whether ranges in use leave a free range of a length in the pools.
func LeaveRoom(used []netip.Prefix, bits int) bool {
	a := &allocator{}
	return slices.ContainsFunc(a.free(used), func(p netip.Prefix) bool { return p.Bits() <= bits })
}

func (a *allocator) exhausted(r Request) error {
	what, bits := r.Recipient, r.shape().Bits()
	if r.Preferred.IsValid() {
		what += fmt.Sprintf(" cannot stay %s, which %s, and", r.Preferred, a.conflictReason(r.Preferred))
	}
	pools := lo.Map(DefaultPools(), func(p netip.Prefix, _ int) string {
		return p.String() + lo.Ternary(p.Bits() > bits, " (too small)", "")
	})
	return errorf(ErrExhausted, "%s finds no free /%d in the pools %s: in use are %s",
		what, bits, strings.Join(pools, ", "), a.overlapping(DefaultPools()...))
}

// Peer is a cluster for which another one needs ranges.
type Peer struct {
	// ID is the cluster's ID: the ranges depend on it, and not on the name.
	ID string
	// Name is for errors and reasons.
	Name string
	// Pods are the cluster's own pod ranges.
	Pods []netip.Prefix
	// PreviousPods and PreviousExternal are the ranges in the ledger. They are kept if they are free, even if they are
	// not private.
	PreviousPods     Mappings
	PreviousExternal netip.Prefix
	// Map are the user's wishes. Real may be omitted if the peer has one pod range of that length.
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

// maxAddresses is how many addresses all pod ranges of a peer may have together: those of a /8. The peer names the
// ranges, and this cluster routes them to it.
const maxAddresses = 1 << 24

// checkSize refuses ranges that have too many addresses together.
func (p Peer) checkSize(pods []netip.Prefix) error {
	ipv4 := lo.Filter(pods, func(pod netip.Prefix, _ int) bool { return pod.Addr().Is4() })
	if lo.SumBy(ipv4, func(pod netip.Prefix) uint64 { return 1 << (32 - pod.Bits()) }) <= maxAddresses {
		return nil
	}
	names, more := lo.Map(pods, func(pod netip.Prefix, _ int) string { return pod.String() }), ""
	if n := len(names) - maxListed; n > 0 {
		names, more = names[:maxListed], fmt.Sprintf(" and %d more", n)
	}
	return errorf(ErrTooLarge, "the pod ranges of cluster %s, %s%s, have more addresses together than a /8; "+
		"give those that contain pods: --pod-cidr %[1]s=RANGE[,RANGE]", p.Name, strings.Join(names, ", "), more)
}

// AllocatePeer chooses all ranges by which a cluster knows the peer. used is as for Allocate. Pod ranges inside others
// are dropped. The errors are those of Allocate, and ErrTooLarge if the pod ranges together exceed a /8.
func AllocatePeer(used []Usage, p Peer) (PeerRanges, error) {
	for _, pod := range p.Pods {
		if err := checkPrefix(pod); err != nil {
			return PeerRanges{}, fmt.Errorf("pod ranges of cluster %s: %w", p.Name, err)
		}
	}
	pods := Outermost(p.Pods, netip.Prefix.Masked)
	previous := lo.SliceToMap(p.PreviousPods, func(m Mapping) (real, mapped netip.Prefix) { return m.Real, m.Mapped })
	isNew := func(pod netip.Prefix) bool { return !lo.HasKey(previous, pod) } // earlier allocations stay
	if err := p.checkSize(pods); err != nil && slices.ContainsFunc(pods, isNew) {
		return PeerRanges{}, err
	}
	wishes, err := p.requiredRanges(pods)
	if err != nil {
		return PeerRanges{}, err
	}
	requests := lo.Map(pods, func(pod netip.Prefix, _ int) Request {
		return Request{
			Recipient: fmt.Sprintf("pod range %s of cluster %s", pod, p.Name), Key: p.ID + " pods",
			Preferred: pod, Required: wishes[pod], Previous: previous[pod],
		}
	})
	// There is no default for the external range: the first peer would get it, and which one is first may change.
	requests = append(requests, Request{
		Recipient: "external range of cluster " + p.Name, Key: p.ID + " external", Bits: ExternalBits,
		Previous: p.PreviousExternal, Required: p.MapExternal,
	})
	got, err := Allocate(used, requests...)
	if err != nil {
		return PeerRanges{}, err
	}
	ranges := lo.Map(pods, func(pod netip.Prefix, i int) Range { return Range{Mapping{pod, got[i].Prefix}, got[i].Reason} })
	external := got[len(pods)]
	return PeerRanges{Pods: ranges, External: external.Prefix, ExternalReason: external.Reason}, nil
}

// InternalRequest returns the request for a cluster's own internal CIDR. It is made once, before the cluster's first
// peering.
func InternalRequest(clusterID, clusterName string) Request {
	return Request{Recipient: "internal range of cluster " + clusterName, Key: clusterID + " internal", Preferred: DefaultInternal()}
}

// requiredRanges assigns the user's wishes to the pod ranges.
func (p Peer) requiredRanges(pods []netip.Prefix) (map[netip.Prefix]netip.Prefix, error) {
	out := map[netip.Prefix]netip.Prefix{}
	for _, m := range p.Map {
		real := m.Real
		if !real.IsValid() {
			fitting := lo.Filter(pods, func(pod netip.Prefix, _ int) bool { return sameShape(pod, m.Mapped) == nil })
			if len(fitting) != 1 {
				return nil, errorf(ErrInvalid,
					"%s does not match exactly one range of cluster %s: its pod ranges are %v, and %d of them are a /%d",
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

// Outermost sorts ranges by their prefix, IPv4 first, and drops those inside others. Of equal ones, it keeps the first.
func Outermost[T any](ranges []T, prefix func(T) netip.Prefix) (out []T) {
	sorted := slices.SortedStableFunc(slices.Values(ranges), func(a, b T) int { return prefix(a).Compare(prefix(b)) })
	for _, r := range sorted {
		if len(out) == 0 || !prefix(out[len(out)-1]).Overlaps(prefix(r)) {
			out = append(out, r)
		}
	}
	return out
}

// If only the nodes' own ranges are known, the cluster's range must be inferred from them, as nodes that join later get
// other parts of it. The kube-controller-manager assigns the parts in order, from the start of the range. So a cluster's
// range begins at the lowest node's, or below it. Where it ends is unknown.
//
// A range that is too large does little harm: its free part is not allocated to a peer. One that is too small leaves
// later pods unreachable. So the range is rounded up to a usual length, unless that conflicts with something else.

// usualLengths returns the usual lengths of clusters' ranges, from small to large ranges.
func usualLengths(is4 bool) []int {
	if is4 {
		return []int{16, 14, 12, 10, 8}
	}
	// kube-controller-manager refuses more than 16 bits between the cluster's and the nodes' lengths, and nodes have a
	// /64 unless configured otherwise.
	return []int{56, 48}
}

// Estimate infers the cluster's ranges from its nodes' ranges. The result contains all of them, does not depend on their
// order, and overlaps avoid only if the nodes' ranges themselves do.
func Estimate(nodes, avoid []netip.Prefix) []netip.Prefix {
	var groups []netip.Prefix
	for _, p := range slices.SortedFunc(slices.Values(nodes), netip.Prefix.Compare) {
		// The joined range may be close to the previous group in turn.
		for n := len(groups); n > 0; n-- {
			c, ok := join(groups[n-1], p, avoid)
			if !ok {
				break
			}
			groups, p = groups[:n-1], c
		}
		groups = append(groups, p)
	}
	return Merge(lo.Map(groups, func(g netip.Prefix, _ int) netip.Prefix { return roundUp(g, avoid) }))
}

// join returns the cover of two neighboring ranges that belong together. They do if both are in one range of the smallest
// usual size, or if the cover is at most four times as large as one of them. A cluster with several separate ranges (GKE)
// must not look like one huge range.
func join(a, b netip.Prefix, avoid []netip.Prefix) (netip.Prefix, bool) {
	if a.Addr().Is4() != b.Addr().Is4() {
		return netip.Prefix{}, false
	}
	c := Cover(a, b)
	if c == a {
		return c, true
	}
	smallest := usualLengths(a.Addr().Is4())[0]
	return c, min(a.Bits(), b.Bits(), smallest)-c.Bits() <= 2 && !slices.ContainsFunc(avoid, c.Overlaps)
}

// roundUp returns the range of a usual size around p, or as much of it as has no overlaps.
func roundUp(p netip.Prefix, avoid []netip.Prefix) netip.Prefix {
	usual := lo.FindOrElse(usualLengths(p.Addr().Is4()), p.Bits(), func(bits int) bool { return bits <= p.Bits() })
	return Widen(p, usual, avoid)
}

// Widen returns the largest prefix around p, no shorter than bits, that does not overlap avoid. If there is none, it
// returns p.
func Widen(p netip.Prefix, bits int, avoid []netip.Prefix) netip.Prefix {
	for ; bits < p.Bits(); bits++ {
		w := netip.PrefixFrom(p.Addr(), bits).Masked()
		if !slices.ContainsFunc(avoid, w.Overlaps) {
			return w
		}
	}
	return p
}

// Cover returns the smallest prefix that contains two prefixes of one family.
func Cover(a, b netip.Prefix) netip.Prefix {
	c := netip.PrefixFrom(a.Addr(), min(a.Bits(), b.Bits())).Masked()
	for c.Bits() > 0 && !c.Contains(b.Addr()) {
		c = netip.PrefixFrom(a.Addr(), c.Bits()-1).Masked()
	}
	return c
}

// Merge joins prefixes that together form a larger one, and drops invalid ones and those inside others.
func Merge(prefixes []netip.Prefix) []netip.Prefix { return Set(prefixes).Prefixes() }

// Set returns the addresses in the valid prefixes. The time to look up an address hardly depends on the number of prefixes.
func Set(prefixes []netip.Prefix) *netipx.IPSet {
	var b netipx.IPSetBuilder
	for _, p := range prefixes {
		b.AddPrefix(p)
	}
	set, _ := b.IPSet() // the error is about prefixes that are not valid
	return set
}
