package plan

import (
	"fmt"
	"net/netip"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
)

// Offer is all that a peer, its reader, may know of a cluster, and all that it needs to plan. It contains no secrets, and
// nothing about a third cluster. Decisions that both clusters must make alike follow from both offers.
type Offer struct {
	ClusterID string `json:"clusterID"`
	Name      string `json:"name"`
	// InternalCIDR is the range of the overlay's addresses.
	InternalCIDR netip.Prefix `json:"internalCIDR"`
	// Pods are the ranges of the cluster's pods. If there are none, PodsUnknown is the reason.
	Pods        []netip.Prefix `json:"pods,omitempty"`
	PodsUnknown string         `json:"podsUnknown,omitempty"`
	Nodes       []NodeOffer    `json:"nodes,omitempty"`
	// Map and MapNodes are the requested ranges by which the reader knows the cluster's pods and nodes.
	Map      ipam.Mappings `json:"map,omitempty"`
	MapNodes netip.Prefix  `json:"mapNodes,omitzero"`
	// Endpoints are the endpoints that the user gave for the gateway. EndpointsNow means that they were given in this
	// run.
	Endpoints    []string `json:"endpoints,omitempty"`
	EndpointsNow bool     `json:"endpointsNow,omitempty"`
	// Role and Planes are for the decisions about roles and planes.
	Role   RoleOffer   `json:"role,omitzero"`
	Planes PlanesOffer `json:"planes"`
	// Keys describe the pre-shared keys of the cluster's gateways.
	Keys []KeyOffer `json:"keys,omitempty"`
	// Reader holds the decisions about the reader, nil before the cluster has read an offer of the reader.
	Reader *ReaderOffer `json:"reader,omitempty"`
}

// RoleOffer is what decides which gateway is the server.
type RoleOffer struct {
	// Asked means that the user chose the cluster as the server. Before is the role decided before.
	Asked  bool          `json:"asked,omitempty"`
	Before v1alpha1.Role `json:"before,omitempty"`
	// AsksLoadBalancer means that the user requests a Service of this type.
	AsksLoadBalancer bool `json:"asksLoadBalancer,omitempty"`
	// Reach is how likely the cluster is reachable from outside, ReachReason is why.
	Reach       int    `json:"reach,omitempty"`
	ReachReason string `json:"reachReason,omitempty"`
	// Established means that the peering has worked.
	Established bool `json:"established,omitempty"`
}

// PlanesOffer is what decides about the planes of the peering.
type PlanesOffer struct {
	// OneGateway is why the cluster can have only one gateway, empty if it can have several.
	OneGateway string `json:"oneGateway,omitempty"`
	// Carriers is the number of nodes that can run a gateway.
	Carriers int `json:"carriers"`
	// Existing are the existing planes. Asked is the number that the user requests. Temporary requests one more for a
	// while.
	Existing  []int32 `json:"existing,omitempty"`
	Asked     int     `json:"asked,omitempty"`
	Temporary bool    `json:"temporary,omitempty"`
	// Mode is the current mode, AskedMode the one that the user requests.
	Mode      v1alpha1.PlanesMode `json:"mode,omitempty"`
	AskedMode v1alpha1.PlanesMode `json:"askedMode,omitempty"`
}

// NodeOffer holds the addresses of a node.
type NodeOffer struct {
	Name      string       `json:"name"`
	Addresses []netip.Addr `json:"addresses"`
}

// KeyOffer describes the pre-shared key of a gateway.
type KeyOffer struct {
	Plane int32 `json:"plane"`
	// PresharedKey is the gateway's key. Named is the key in the Peering, and IsNamed means that the Peering has the
	// plane.
	PresharedKey v1alpha1.PresharedKey `json:"presharedKey,omitzero"`
	Named        v1alpha1.PresharedKey `json:"named,omitzero"`
	IsNamed      bool                  `json:"isNamed,omitempty"`
	// RenewPresharedKey requests a new key.
	RenewPresharedKey bool `json:"renewPresharedKey,omitempty"`
}

// ReaderOffer holds a cluster's decisions about the reader of its offer.
type ReaderOffer struct {
	// Index is the index of the peering in the cluster.
	Index int32 `json:"index"`
	// Pods and ExternalCIDR are the ranges by which the cluster knows the reader.
	Pods         []v1alpha1.CIDRMapping `json:"pods,omitempty"`
	ExternalCIDR netip.Prefix           `json:"externalCIDR"`
	Gateways     []GatewayOffer         `json:"gateways"`
}

// GatewayOffer describes the gateway of a plane to the reader's gateway.
type GatewayOffer struct {
	Plane     int32 `json:"plane"`
	PublicKey Value `json:"publicKey"`
	// KeyUnreadable means that the public key is unknown only because the user may not read it.
	KeyUnreadable bool `json:"keyUnreadable,omitempty"`
	// Endpoints are where the gateway can be reached, if it is a server.
	Endpoints []Value `json:"endpoints,omitempty"`
}

// gateway returns the offered gateway of a plane.
func (r *ReaderOffer) gateway(plane int32) (GatewayOffer, error) {
	g, isOffered := lo.Find(r.Gateways, func(g GatewayOffer) bool { return g.Plane == plane })
	if !isOffered {
		return g, fmt.Errorf("the peer offers no gateway of plane %d", plane)
	}
	return g, nil
}

// offer returns the first offer, without the decisions about the reader.
func (f *input) offer(readerID string, d *decisions) (Offer, error) {
	internal, _, err := f.has.InternalCIDR()
	if err != nil {
		return Offer{}, err
	}
	o := Offer{
		ClusterID: f.has.Network.ClusterID, Name: f.has.Network.Name, InternalCIDR: internal,
		Pods: ipv4(f.has.Network.PodCIDRs), Nodes: f.has.Network.nodeOffers(),
		Map: f.Overrides.Map, MapNodes: f.Overrides.MapNodes, Endpoints: f.givenEndpoints(), EndpointsNow: len(f.Overrides.Endpoints) > 0,
		Role: RoleOffer{
			Asked: f.Overrides.Server, Before: f.has.role(),
			AsksLoadBalancer: f.Overrides.ServiceType == string(corev1.ServiceTypeLoadBalancer),
		},
		Planes: PlanesOffer{
			OneGateway: f.oneGateway(), Carriers: len(f.has.Network.carriers(d.placement, true)),
			Asked: f.Overrides.Planes, Temporary: f.Temporary, AskedMode: f.Overrides.PlanesMode,
		},
	}
	if f.has.Network.PodsUnknown != nil {
		o.PodsUnknown = f.has.Network.PodsUnknown.Error()
	}
	o.Role.Reach, o.Role.ReachReason = f.has.Network.reach()
	entry := Allocation(f.has.ledger(), readerID)
	o.Role.Established = entry != nil && entry.Active()
	if f.has.Existing != nil {
		o.Planes.Existing, o.Planes.Mode = f.has.PlaneIndexes(), f.has.Existing.Spec.PlanesMode
	}
	o.Keys = lo.FilterMap(lo.RangeFrom(int32(0), ipam.Planes), func(plane int32, _ int) (KeyOffer, bool) {
		k := KeyOffer{Plane: plane, PresharedKey: f.has.Planes[plane].PresharedKey, RenewPresharedKey: f.Renew[plane].PresharedKey}
		k.Named, k.IsNamed = f.has.NamedPresharedKey(plane)
		return k, k != KeyOffer{Plane: plane}
	})
	return o, nil
}

// nodeOffers returns the addresses of all nodes.
func (f *Network) nodeOffers() []NodeOffer {
	return lo.Map(f.Nodes, func(n Node, _ int) NodeOffer { return NodeOffer{n.Name, n.addresses()} })
}
