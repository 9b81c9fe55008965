package plan

import (
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/wire"
)

// Offer is all that a peer, its reader, may know of a cluster, and all that it needs to plan. It has no secret in it, and nothing about a
// third cluster. What both clusters have to decide alike is decided from both offers.
type Offer struct {
	ClusterID string `json:"clusterID"`
	Name      string `json:"name"`
	// Version is that of the command that has made the offer.
	Version string `json:"version,omitempty"`
	// InternalCIDR is the range of the overlay's addresses.
	InternalCIDR netip.Prefix `json:"internalCIDR"`
	// Pods are the ranges of its pods. Where there are none, PodsUnknown says why.
	Pods        []netip.Prefix `json:"pods,omitempty"`
	PodsUnknown string         `json:"podsUnknown,omitempty"`
	Nodes       []NodeOffer    `json:"nodes,omitempty"`
	// Map and MapNodes are the ranges by which the reader is asked to know its pods and nodes.
	Map      ipam.Mappings `json:"map,omitempty"`
	MapNodes netip.Prefix  `json:"mapNodes,omitzero"`
	// Endpoints are those that the user named for its gateway. EndpointsNow says that this was in this run.
	Endpoints    []string `json:"endpoints,omitempty"`
	EndpointsNow bool     `json:"endpointsNow,omitempty"`
	// OneGateway says why it can have one gateway only, empty if it can have several.
	OneGateway string `json:"oneGateway,omitempty"`
	// Server says that the user has decided that the cluster is called, Role what was decided before.
	Server bool          `json:"server,omitempty"`
	Role   v1alpha1.Role `json:"role,omitempty"`
	// AsksLoadBalancer says that the user asks for a Service of this type.
	AsksLoadBalancer bool `json:"asksLoadBalancer,omitempty"`
	// Reach says how likely the cluster can be called from outside, ReachReason why.
	Reach       int    `json:"reach,omitempty"`
	ReachReason string `json:"reachReason,omitempty"`
	// Established says that the peering has worked.
	Established bool `json:"established,omitempty"`
	// Carriers is how many nodes can carry a gateway.
	Carriers int `json:"carriers"`
	// Planes are those that there are, AsksPlanes is how many the user asks for, and Temporary that there is to be one more for a while.
	Planes     []int32 `json:"planes,omitempty"`
	AsksPlanes int     `json:"asksPlanes,omitempty"`
	Temporary  bool    `json:"temporary,omitempty"`
	// PlanesMode is the one before, AsksPlanesMode what the user asks for.
	PlanesMode     v1alpha1.PlanesMode `json:"planesMode,omitempty"`
	AsksPlanesMode v1alpha1.PlanesMode `json:"asksPlanesMode,omitempty"`
	// Keys are what is known of those of its gateways.
	Keys []KeyOffer `json:"keys,omitempty"`
	// Reader is what the cluster has decided about the reader, nil before it has read an offer of that.
	Reader *ReaderOffer `json:"reader,omitempty"`
}

// NodeOffer are the addresses of a node.
type NodeOffer struct {
	Name      string       `json:"name"`
	Addresses []netip.Addr `json:"addresses"`
}

// KeyOffer is what is known of the pre-shared key of a gateway.
type KeyOffer struct {
	Plane int32 `json:"plane"`
	// PresharedKey is the one that the gateway has, Named the one that the Peering names, if it has that plane.
	PresharedKey v1alpha1.PresharedKey `json:"presharedKey,omitzero"`
	Named        v1alpha1.PresharedKey `json:"named,omitzero"`
	IsNamed      bool                  `json:"isNamed,omitempty"`
	// RenewPresharedKey asks for another one.
	RenewPresharedKey bool `json:"renewPresharedKey,omitempty"`
}

// ReaderOffer is what a cluster has decided about the reader of its offer.
type ReaderOffer struct {
	// Index is that of the peering in the cluster.
	Index int32 `json:"index"`
	// Pods and ExternalCIDR are the ranges by which it knows the reader.
	Pods         []v1alpha1.CIDRMapping `json:"pods,omitempty"`
	ExternalCIDR netip.Prefix           `json:"externalCIDR"`
	Gateways     []GatewayOffer         `json:"gateways"`
}

// GatewayOffer is the gateway of a plane as the reader's one is told of it.
type GatewayOffer struct {
	Plane     int32 `json:"plane"`
	PublicKey Value `json:"publicKey"`
	// KeyUnreadable says that the public key is not known only because the user may not read it.
	KeyUnreadable bool `json:"keyUnreadable,omitempty"`
	// Endpoints are where it is called, if it is.
	Endpoints []Value `json:"endpoints,omitempty"`
}

// keys are what is known of those of a plane.
func (o *Offer) keys(plane int32) KeyOffer {
	keys, _ := lo.Find(o.Keys, func(k KeyOffer) bool { return k.Plane == plane })
	return keys
}

// gateway is what is offered of that of a plane.
func (r *ReaderOffer) gateway(plane int32) (GatewayOffer, error) {
	g, isOffered := lo.Find(r.Gateways, func(g GatewayOffer) bool { return g.Plane == plane })
	if !isOffered {
		return g, fmt.Errorf("the peer offers no gateway of plane %d", plane)
	}
	return g, nil
}

// Introduce makes the offer of a cluster that knows nothing of the reader but its ID.
func Introduce(own Facts, intent Intent, readerID string) (Offer, error) {
	f := &sheet{own, intent}
	d, err := f.decideAlone()
	if err != nil {
		return Offer{}, err
	}
	return f.offer(readerID, &d)
}

// Answer makes the offer of a cluster that has read the peer's one: with what it has decided about the peer.
func Answer(own Facts, intent Intent, peer Offer) (Offer, error) {
	d, err := begin(own, intent, &peer)
	if err != nil {
		return Offer{}, err
	}
	entry := Allocation(d.plan.Ledger, peer.ClusterID)
	reader := &ReaderOffer{Index: entry.Index, Pods: entry.Pods, ExternalCIDR: entry.ExternalCIDR.Prefix}
	service := d.service(entry.Name, d.planes)
	for _, plane := range d.planes {
		has := own.Planes[plane]
		g := GatewayOffer{Plane: plane, PublicKey: Known(has.PublicKey), KeyUnreadable: has.KeyUnreadable}
		if has.PublicKey == "" {
			g.PublicKey = Later("public key in " + secret(own.Gateway(entry.Name, plane).SecretName()) + " of " + own.Name)
		}
		g.Endpoints = lo.Map(d.plannedEndpoints(plane, service), func(e Statement, _ int) Value { return e.Value })
		reader.Gateways = append(reader.Gateways, g)
	}
	d.mine.Reader = reader
	return d.mine, nil
}

// offer is the first one, without what is decided about the reader.
func (f *sheet) offer(readerID string, d *decisions) (Offer, error) {
	internal, _, err := f.InternalCIDR()
	if err != nil {
		return Offer{}, err
	}
	o := Offer{
		ClusterID: f.ClusterID, Name: f.Name, Version: f.Version, InternalCIDR: internal, Pods: ipv4(f.PodCIDRs), Nodes: f.nodeOffers(),
		Map: f.Overrides.Map, MapNodes: f.Overrides.MapNodes, Endpoints: f.givenEndpoints(), EndpointsNow: len(f.Overrides.Endpoints) > 0,
		OneGateway: f.oneGateway(), Carriers: len(f.carriers(d.placement, true)), AsksPlanes: f.Overrides.Planes, Temporary: f.Temporary,
		Server: f.Overrides.Server, Role: f.role(), AsksLoadBalancer: f.Overrides.ServiceType == string(corev1.ServiceTypeLoadBalancer),
		AsksPlanesMode: f.Overrides.PlanesMode,
	}
	if f.PodsUnknown != nil {
		o.PodsUnknown = f.PodsUnknown.Error()
	}
	o.Reach, o.ReachReason = f.reach()
	if cn := f.ledger(); cn != nil {
		entry := Allocation(cn, readerID)
		o.Established = entry != nil && entry.Active()
	}
	if f.Existing != nil {
		o.Planes, o.PlanesMode = f.PlaneIndexes(), f.Existing.Spec.PlanesMode
	}
	for plane := range int32(ipam.Planes) {
		k := KeyOffer{Plane: plane, PresharedKey: f.Planes[plane].PresharedKey, RenewPresharedKey: f.Renew[plane].PresharedKey}
		k.Named, k.IsNamed = f.NamedPresharedKey(plane)
		if k != (KeyOffer{Plane: plane}) {
			o.Keys = append(o.Keys, k)
		}
	}
	return o, nil
}

// nodeOffers are the addresses of all nodes.
func (f *Facts) nodeOffers() []NodeOffer {
	return lo.Map(f.Nodes, func(n Node, _ int) NodeOffer { return NodeOffer{n.Name, n.addresses()} })
}

// service exposes the cluster's gateways where they are called.
func (f *sheet) service(peering string, planes []int32) *corev1.Service {
	kind := corev1.ServiceType(chooseServiceType(f).Value.String())
	s := manifests.Owned(manifests.GatewayService(peering, kind, wire.TunnelPort, planes), peering, f.Owner)
	s.Spec.Ports[0].NodePort = f.Overrides.NodePort
	s.Annotations[AnnotationEndpoints] = strings.Join(f.givenEndpoints(), ",")
	return s
}
