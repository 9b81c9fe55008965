package plan

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// MaxPeers is the number of ledger entries that interface names, VNIs and gateway
// addresses have room for.
const MaxPeers = ipam.MaxPeering + 1

// NewLedger is an empty ledger.
func NewLedger(internal netip.Prefix) *v1alpha1.ClusterNetwork {
	return manifests.ClusterNetwork(v1alpha1.ClusterNetworkSpec{InternalCIDR: v1alpha1.CIDR{Prefix: internal}})
}

// Allocation returns the peer's entry in the ledger, nil if there is none.
func Allocation(cn *v1alpha1.ClusterNetwork, peerID string) *v1alpha1.PeerAllocation {
	for i := range cn.Spec.Peers {
		if cn.Spec.Peers[i].ClusterID == peerID {
			return &cn.Spec.Peers[i]
		}
	}
	return nil
}

// NewAllocation is an entry for a peer that has none: with the lowest index that is
// free, and a name that nobody has.
func NewAllocation(cn *v1alpha1.ClusterNetwork, peerID, peerName string) (v1alpha1.PeerAllocation, error) {
	names, indexes := map[string]bool{}, []int32(nil)
	for _, a := range cn.Spec.Peers {
		names[a.Name], indexes = true, append(indexes, a.Index)
	}
	index := lowestFree(indexes)
	if index >= MaxPeers {
		return v1alpha1.PeerAllocation{}, fmt.Errorf("all %d entries are taken: unpeer another cluster first", MaxPeers)
	}
	base := ObjectName(peerName)
	name := base
	for i := 2; names[name]; i++ {
		suffix := fmt.Sprintf("-%d", i)
		name = strings.TrimRight(base[:min(len(base), maxName-len(suffix))], "-") + suffix
	}
	return v1alpha1.PeerAllocation{ClusterID: peerID, Name: name, Index: index, Phase: v1alpha1.PeerReserved}, nil
}

// maxName leaves room in a Deployment's pods' names (63) for "gateway-", the
// plane, and two hashes.
const maxName = 30

var notInName = regexp.MustCompile(`[^a-z0-9]+`)

// ObjectName turns what a user calls a cluster, e.g.
// "kubernetes-admin@kubernetes", into a DNS label.
func ObjectName(s string) string {
	s = strings.Trim(notInName.ReplaceAllString(strings.ToLower(s), "-"), "-")
	s = strings.TrimRight(s[:min(len(s), maxName)], "-")
	if s == "" {
		return "peer"
	}
	return s
}

// Mappings are those of an API object as pkg/ipam has them.
func Mappings(in []v1alpha1.CIDRMapping) ipam.Mappings {
	out := make(ipam.Mappings, 0, len(in))
	for _, m := range in {
		out = append(out, ipam.Mapping{Real: m.Real.Prefix, Mapped: m.Mapped.Prefix})
	}
	return out
}

// HostMappings are the exposed hosts as the peer knows them.
func HostMappings(a *v1alpha1.PeerAllocation, external netip.Prefix) ([]v1alpha1.AddressMapping, error) {
	var out []v1alpha1.AddressMapping
	for _, h := range a.Hosts {
		mapped, err := ipam.HostAddr(external, int(h.Number))
		if err != nil {
			return nil, fmt.Errorf("exposed host %s: %w", h.Address, err)
		}
		out = append(out, v1alpha1.AddressMapping{Real: h.Address, Mapped: v1alpha1.IP{Addr: mapped}})
	}
	return out, nil
}
