package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
)

// peeringSpec is what the Peering in a cluster says. Both fact sheets have the
// ledger with the entry for the other.
func peeringSpec(own, peer *FactSheet, d decisions, planes []v1alpha1.Plane) (v1alpha1.PeeringSpec, error) {
	given, got := Allocation(own.Ledger, peer.ClusterID), Allocation(peer.Ledger, own.ClusterID)
	if given == nil || got == nil {
		return v1alpha1.PeeringSpec{}, own.entryIsGone("plan")
	}
	nodes, err := ipam.ExternalMapping(peer.Ledger.Spec.InternalCIDR.Prefix, given.ExternalCIDR.Prefix)
	if err != nil {
		return v1alpha1.PeeringSpec{}, err
	}
	for i := range planes {
		remote, err := gatewayAddress(peer.Ledger.Spec.InternalCIDR.Prefix, got.Index, planes[i].Index)
		if err != nil {
			return v1alpha1.PeeringSpec{}, err
		}
		translated, ok := nodes.Translate(remote)
		if !ok {
			return v1alpha1.PeeringSpec{}, fmt.Errorf("gateway address %s of %q is not in its internal range", remote, peer.Name)
		}
		planes[i].RemoteAddress = v1alpha1.IP{Addr: translated}
	}
	name := peer.Name
	if own.Existing != nil {
		name = own.Existing.Spec.Remote.Name
	}
	hosts, err := HostMappings(given, got.ExternalCIDR.Prefix)
	if err != nil {
		return v1alpha1.PeeringSpec{}, err
	}
	return v1alpha1.PeeringSpec{
		Index: given.Index,
		Local: v1alpha1.LocalNetwork{
			Pods: got.Pods, InternalCIDR: own.Ledger.Spec.InternalCIDR, ExternalCIDR: got.ExternalCIDR, Hosts: hosts,
		},
		Remote:  v1alpha1.RemoteNetwork{ClusterID: peer.ClusterID, Name: name, Pods: given.Pods, ExternalCIDR: given.ExternalCIDR, NodeIPs: nodeIPs(peer.Nodes)},
		Overlay: d.overlay.value,
		Planes:  planes,
	}, nil
}

// translation is by which ranges both clusters know each other.
func translation(own, peer *FactSheet) (*v1alpha1.Translation, error) {
	known := func(of, by *FactSheet) ([]v1alpha1.CIDRMapping, error) {
		entry := Allocation(by.Ledger, of.ClusterID)
		nodes, err := ipam.ExternalMapping(of.Ledger.Spec.InternalCIDR.Prefix, entry.ExternalCIDR.Prefix)
		if err != nil {
			return nil, err
		}
		return append(slices.Clone(entry.Pods), v1alpha1.CIDRMapping{
			Real: v1alpha1.CIDR{Prefix: nodes.Real}, Mapped: v1alpha1.CIDR{Prefix: nodes.Mapped},
		}), nil
	}
	local, err := known(own, peer)
	if err != nil {
		return nil, err
	}
	remote, err := known(peer, own)
	return &v1alpha1.Translation{Local: local, Remote: remote}, err
}

// gatewayAddress is the overlay address of a gateway.
func gatewayAddress(internal netip.Prefix, index, plane int32) (netip.Addr, error) {
	number, err := ipam.GatewayNumber(int(index), int(plane))
	if err != nil {
		return netip.Addr{}, err
	}
	return ipam.GatewayAddr(internal, number)
}
