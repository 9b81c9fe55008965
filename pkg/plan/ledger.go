package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/samber/lo"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// MaxPeers is the number of ledger entries for which there are interface names, VNIs and gateway addresses.
const MaxPeers = ipam.MaxPeering + 1

// NewLedger returns an empty ledger.
func NewLedger(internal netip.Prefix) *v1alpha1.ClusterNetwork {
	return manifests.ClusterNetwork(v1alpha1.ClusterNetworkSpec{InternalCIDR: v1alpha1.CIDR{Prefix: internal}})
}

// Allocation returns the peer's entry in the ledger, nil if there is none or no ledger.
func Allocation(cn *v1alpha1.ClusterNetwork, peerID string) *v1alpha1.PeerAllocation {
	peers := lo.FromPtr(cn).Spec.Peers
	if i := slices.IndexFunc(peers, func(a v1alpha1.PeerAllocation) bool { return a.ClusterID == peerID }); i >= 0 {
		return &peers[i]
	}
	return nil
}

// NewAllocation returns an entry for a peer that has none, with the lowest free index and a unique name.
func NewAllocation(cn *v1alpha1.ClusterNetwork, peerID, peerName string) (v1alpha1.PeerAllocation, error) {
	names := sets.New(lo.Map(cn.Spec.Peers, func(a v1alpha1.PeerAllocation, _ int) string { return a.Name })...)
	index := lowestFree(lo.Map(cn.Spec.Peers, func(a v1alpha1.PeerAllocation, _ int) int32 { return a.Index }))
	if index >= MaxPeers {
		return v1alpha1.PeerAllocation{}, fmt.Errorf("all %d entries are taken: unpeer another cluster first", MaxPeers)
	}
	base := ObjectName(peerName)
	name := base
	for i := 2; names.Has(name); i++ {
		suffix := fmt.Sprintf("-%d", i)
		name = strings.TrimRight(base[:min(len(base), maxName-len(suffix))], "-") + suffix
	}
	return v1alpha1.PeerAllocation{ClusterID: peerID, Name: name, Index: index, Phase: v1alpha1.PeerReserved}, nil
}

// lowestFree returns the lowest index that is not taken.
func lowestFree(taken []int32) (index int32) {
	for slices.Contains(taken, index) {
		index++
	}
	return index
}

// maxName leaves room in the names of a Deployment's pods (63) for "gateway-", the plane, and two hashes.
const maxName = 30

var notInName = regexp.MustCompile(`[^a-z0-9]+`)

// ObjectName turns the user's name of a cluster, e.g. "kubernetes-admin@kubernetes", into a DNS label.
func ObjectName(s string) string {
	s = strings.Trim(notInName.ReplaceAllString(strings.ToLower(s), "-"), "-")
	return cmp.Or(strings.TrimRight(s[:min(len(s), maxName)], "-"), "peer")
}

// Mappings converts the mappings of an API object to those of pkg/ipam.
func Mappings(in []v1alpha1.CIDRMapping) ipam.Mappings {
	return lo.Map(in, func(m v1alpha1.CIDRMapping, _ int) ipam.Mapping {
		return ipam.Mapping{Real: m.Real.Prefix, Mapped: m.Mapped.Prefix}
	})
}

// HostMappings returns the exposed hosts with the addresses by which the peer knows them.
func HostMappings(a *v1alpha1.PeerAllocation, external netip.Prefix) ([]v1alpha1.AddressMapping, error) {
	return lo.MapErr(a.Hosts, func(h v1alpha1.ExposedHost, _ int) (m v1alpha1.AddressMapping, err error) {
		mapped, err := ipam.HostAddr(external, int(h.Number))
		if err != nil {
			return m, fmt.Errorf("exposed host %s: %w", h.Address, err)
		}
		return v1alpha1.AddressMapping{Real: h.Address, Mapped: v1alpha1.IP{Addr: mapped}}, nil
	})
}

// setRanges writes the ranges into the ledger entry, and reports whether that changes it.
func setRanges(entry *v1alpha1.PeerAllocation, r ipam.PeerRanges) bool {
	if slices.Equal(r.Mappings(), Mappings(entry.Pods)) && r.External == entry.ExternalCIDR.Prefix {
		return false
	}
	if entry.Active() && entry.Previous == nil {
		entry.Previous = &v1alpha1.PeerRanges{Pods: entry.Pods, ExternalCIDR: entry.ExternalCIDR}
	}
	entry.Pods = nil // unlike an empty list, nil makes no statement while ranges are not known
	for _, m := range r.Pods {
		entry.Pods = append(entry.Pods, v1alpha1.CIDRMapping{Real: v1alpha1.CIDR{Prefix: m.Real}, Mapped: v1alpha1.CIDR{Prefix: m.Mapped}})
	}
	entry.ExternalCIDR = v1alpha1.CIDR{Prefix: r.External}
	return true
}
