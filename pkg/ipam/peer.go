package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/samber/lo"
)

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

// tooLarge refuses ranges that have too many addresses, unless all of them were given out
// before.
func (p Peer) tooLarge(pods []netip.Prefix) error {
	sum := uint64(0)
	var names []string
	isNew := false
	for _, pod := range pods {
		if pod.Addr().Is4() {
			sum += 1 << (32 - pod.Bits())
		}
		names = append(names, pod.String())
		isNew = isNew || !slices.ContainsFunc(p.PreviousPods, func(m Mapping) bool { return m.Real == pod })
	}
	if sum <= maxAddresses || !isNew {
		return nil
	}
	more := ""
	if n := len(names) - maxListed; n > 0 {
		names, more = names[:maxListed], fmt.Sprintf(" and %d more", n)
	}
	return errorf(ErrTooLarge, "the pod ranges of cluster %s, %s%s, have more addresses together than a /8; give those that have pods: --pod-cidr %s=RANGE[,RANGE]",
		p.Name, strings.Join(names, ", "), more, p.Name)
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
	if err := p.tooLarge(pods); err != nil {
		return PeerRanges{}, err
	}
	wishes, err := p.wishes(pods)
	if err != nil {
		return PeerRanges{}, err
	}
	previous := lo.SliceToMap(p.PreviousPods, func(m Mapping) (real, mapped netip.Prefix) { return m.Real, m.Mapped })
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
