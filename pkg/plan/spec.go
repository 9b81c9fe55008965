package plan

import (
	"fmt"
	"net/netip"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// planPeering is the cluster's Peering, with names in the place of what comes about
// during the run: the keys of the peer's gateways, and their endpoints. Both fact sheets
// have the ledger with the entry for the other.
func (c *ClusterPlan) planPeering(own, peer *FactSheet, overlay v1alpha1.OverlayKind, peerPlan *ClusterPlan) (*v1alpha1.Peering, error) {
	given, got := Allocation(own.Ledger, peer.ClusterID), Allocation(peer.Ledger, own.ClusterID)
	hosts, err := HostMappings(given, got.ExternalCIDR.Prefix)
	if err != nil {
		return nil, err
	}
	nodes, err := ipam.ExternalMapping(peer.Ledger.Spec.InternalCIDR.Prefix, given.ExternalCIDR.Prefix)
	if err != nil {
		return nil, err
	}
	spec := v1alpha1.PeeringSpec{
		Index: given.Index,
		Local: v1alpha1.LocalNetwork{
			Pods: got.Pods, InternalCIDR: own.Ledger.Spec.InternalCIDR, ExternalCIDR: got.ExternalCIDR, Hosts: hosts,
		},
		Remote:  v1alpha1.RemoteNetwork{ClusterID: peer.ClusterID, Name: peer.Name, Pods: given.Pods, ExternalCIDR: given.ExternalCIDR, NodeIPs: nodeIPs(peer.Nodes)},
		Overlay: overlay, Limits: own.limits(), PlanesMode: planesMode(own, peer),
	}
	if own.Existing != nil {
		spec.Remote.Name = own.Existing.Spec.Remote.Name
	}
	for i, g := range c.Gateways {
		spec.Gateways = g.Placement // the same for all
		remote := peerPlan.Gateways[i]
		address, err := gatewayAddress(peer.Ledger.Spec.InternalCIDR.Prefix, got.Index, g.Plane)
		if err != nil {
			return nil, err
		}
		address, _ = nodes.Translate(address)
		plane := v1alpha1.Plane{
			Index: g.Plane, Temporary: g.Temporary, Role: g.Role, WireGuard: g.WireGuard, KeyGeneration: g.KeyGeneration, OverlayKeyGeneration: g.OverlayKey, RemoteAddress: v1alpha1.IP{Addr: address},
			RemotePublicKey: fmt.Sprintf("<public key in Secret %s/%s of %s>", v1alpha1.Namespace, remote.SecretName(), peer.Name),
		}
		if plane.PresharedKey = g.Preshared; g.PresharedKey > 0 && g.Preshared.Fingerprint == "" {
			plane.PresharedKey.Fingerprint = fmt.Sprintf("<of the key in Secret %s/%s>", v1alpha1.Namespace, g.PresharedSecretName())
		}
		if made := own.Planes[g.Plane].KeyTime; !made.IsZero() {
			plane.KeyTime = &made
		}
		if c.Service != nil {
			plane.ServiceName = c.Service.Name
		}
		for _, e := range remote.endpoints {
			plane.Endpoints = append(plane.Endpoints, e.Value)
		}
		spec.Planes = append(spec.Planes, plane)
	}
	return manifests.Peering(given.Name, spec), nil
}

// gatewayAddress is the overlay address of a gateway.
func gatewayAddress(internal netip.Prefix, index, plane int32) (netip.Addr, error) {
	number, err := ipam.GatewayNumber(int(index), int(plane))
	if err != nil {
		return netip.Addr{}, err
	}
	return ipam.GatewayAddr(internal, number)
}
