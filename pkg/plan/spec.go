package plan

import (
	"net/netip"
	"slices"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
)

// peeringSpec is what the Peering in a cluster says. Both fact sheets have the
// ledger with the entry for the other.
func peeringSpec(own, peer *FactSheet, overlay v1alpha1.OverlayKind, planes []v1alpha1.Plane) (v1alpha1.PeeringSpec, error) {
	given, got := Allocation(own.Ledger, peer.ClusterID), Allocation(peer.Ledger, own.ClusterID)
	nodes, err := ipam.ExternalMapping(peer.Ledger.Spec.InternalCIDR.Prefix, given.ExternalCIDR.Prefix)
	if err != nil {
		return v1alpha1.PeeringSpec{}, err
	}
	for i := range planes {
		remote, err := gatewayAddress(peer.Ledger.Spec.InternalCIDR.Prefix, got.Index, planes[i].Index)
		if err != nil {
			return v1alpha1.PeeringSpec{}, err
		}
		translated, _ := nodes.Translate(remote)
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
		Overlay: overlay,
		Planes:  planes,
	}, nil
}

// seenAs are by which ranges a peer knows a cluster: its pods, and its nodes and
// gateways.
func seenAs(n v1alpha1.LocalNetwork) ([]v1alpha1.CIDRMapping, error) {
	nodes, err := ipam.ExternalMapping(n.InternalCIDR.Prefix, n.ExternalCIDR.Prefix)
	return append(slices.Clone(n.Pods), v1alpha1.CIDRMapping{Real: v1alpha1.CIDR{Prefix: nodes.Real}, Mapped: v1alpha1.CIDR{Prefix: nodes.Mapped}}), err
}

// gatewayAddress is the overlay address of a gateway.
func gatewayAddress(internal netip.Prefix, index, plane int32) (netip.Addr, error) {
	number, err := ipam.GatewayNumber(int(index), int(plane))
	if err != nil {
		return netip.Addr{}, err
	}
	return ipam.GatewayAddr(internal, number)
}
