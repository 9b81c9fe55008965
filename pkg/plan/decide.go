package plan

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/ipam"
)

// decisions are the choices for one cluster, the same for all planes.
type decisions struct {
	overlay, wireguard, serviceType, planesStatement Statement
	// roles are the gateway's possible roles, in the order to try them: one if it is final.
	roles []Statement
	// permanent are the indexes of the planes, the same in both clusters. planes are these, and the temporary one if the
	// intent asks for it.
	permanent, planes   []int32
	placement           *v1alpha1.GatewayPlacement
	placementStatements []Statement
	mode                v1alpha1.PlanesMode
	// services is set if services are exchanged.
	services bool
}

// decideLocal makes the choices that do not depend on the peer.
func (f *input) decideLocal() (d decisions, err error) {
	if f.facts.Network.PodsUnknown == nil && len(ipv4(f.facts.Network.PodCIDRs)) == 0 {
		return d, f.facts.usageError("find out the ranges",
			"a dual-stack cluster can be peered with its IPv4 addresses; if there is an IPv4 range, name it: "+
				"--pod-cidr "+f.facts.Network.Name+"=RANGE",
			errors.New("its pods have IPv6 addresses only, and liqonet carries IPv4 only"))
	}
	if err := f.checkEndpoints(); err != nil {
		return d, err
	}
	if d.overlay, err = chooseOverlay(f); err != nil {
		return d, err
	}
	if d.wireguard, err = chooseWireGuard(f); err != nil {
		return d, err
	}
	d.serviceType = chooseServiceType(f)
	d.placement, d.placementStatements, err = choosePlacement(f)
	return d, err
}

// decide makes the choices that both clusters must make alike: each from both offers, in the order of their IDs.
func (f *input) decide(offer, peer *Offer, d *decisions) (err error) {
	both := [2]*Offer{offer, peer}
	if peer.ClusterID < offer.ClusterID {
		both = [2]*Offer{peer, offer}
	}
	if err := f.choosePlanes(both, d); err != nil {
		return err
	}
	d.mode, d.services = planesMode(both), chooseServices(both)
	server, reason, isFinal, err := chooseServer(both)
	if err != nil {
		return err
	}
	role := func(server *Offer, reason string) Statement {
		own := lo.Ternary(server == offer, v1alpha1.Server, v1alpha1.Client)
		return statement("role of the gateway", string(own), reason)
	}
	d.roles = []Statement{role(both[server], reason)}
	if !isFinal {
		d.roles = append(d.roles, role(both[1-server], both[server].Name+" cannot be reached"))
	}
	return nil
}

// chooseServer decides which gateway is the server: the one that can be reached, as far as that is known. It keeps a role
// that was decided before. The decision is final if it comes from the user or from a peering that has worked.
func chooseServer(clusters [2]*Offer) (server int, reason string, isFinal bool, err error) {
	for i, f := range clusters {
		switch peer := clusters[1-i]; {
		case f.Role.Requested && peer.EndpointsGiven && !f.EndpointsGiven:
			return 0, "", true, &failure.Error{
				Kind: failure.Usage, Cluster: peer.Name, Op: "choose roles",
				Err:  fmt.Errorf("--endpoint says where the gateway of %q can be reached, but --server makes it the client", peer.Name),
				Hint: "give --endpoint for the cluster of --server",
			}
		case f.Role.Requested:
			return i, "given by --server", true, nil
		}
	}
	for i, f := range clusters {
		if f.EndpointsGiven && !clusters[1-i].EndpointsGiven {
			return i, fmt.Sprintf("--endpoint says where %s can be reached", f.Name), true, nil
		}
	}
	isFinal = slices.ContainsFunc(clusters[:], func(o *Offer) bool { return o.Role.Established || len(o.Endpoints) > 0 })
	for i, f := range clusters {
		// Two equal roles contradict each other, and are ignored.
		own, peer := f.Role.Previous, clusters[1-i].Role.Previous
		if own != peer && (own == v1alpha1.Server || peer == v1alpha1.Client) {
			return i, "as before", isFinal, nil
		}
	}
	for i, f := range clusters {
		own, why := f.reachability(clusters[1-i])
		if peer, _ := clusters[1-i].reachability(f); own > peer {
			return i, f.Name + ": " + why, isFinal, nil
		}
	}
	reason = fmt.Sprintf("neither is known to be easier to reach, and %s has the lower ID; "+
		"if it cannot be reached, the roles are exchanged", clusters[0].Name)
	return 0, reason, isFinal, nil
}

// reachability returns how likely the cluster is reachable from outside, and why.
func (o *Offer) reachability(peer *Offer) (int, string) {
	switch {
	case len(o.Endpoints) > 0:
		return 3, "it has an endpoint given by --endpoint"
	case o.Role.RequestsLoadBalancer && !peer.Role.RequestsLoadBalancer:
		return 2, "--service-type requests a load balancer"
	}
	return o.Role.Reachability, o.Role.ReachabilityReason
}

// reachability returns how likely the cluster is reachable from outside according to its facts, and why.
func (f *Network) reachability() (int, string) {
	if f.LoadBalancers.Value == Yes {
		return 2, "it has load balancers, " + f.LoadBalancers.Source
	}
	reachable := func(n Node) bool { return n.Ready && n.Schedulable && n.publicAddress().IsValid() }
	if n, isThere := lo.Find(f.Nodes, reachable); isThere {
		return 1, fmt.Sprintf("node %s has %s", n.Name, n.publicAddress())
	}
	return 0, ""
}

// defaultPlanes is the number of planes of a peering if both clusters have enough nodes: one plane may fail.
const defaultPlanes = 2

// choosePlanes decides how many planes the peering has, and their indexes. Gateways of one peering run on different
// nodes. An earlier decision stays, whatever nodes there are now.
func (f *input) choosePlanes(clusters [2]*Offer, d *decisions) error {
	a, b := clusters[0].Planes, clusters[1].Planes
	planes, reason := union(a.Existing, b.Existing), "as before"
	given, single := max(a.Requested, b.Requested), cmp.Or(a.SingleGatewayReason, b.SingleGatewayReason)
	if given == len(planes) && single == "" {
		given = 0 // the number stays, even while a node is down
	}
	few := lo.MinBy(clusters[:], func(a, b *Offer) bool { return a.Planes.EligibleNodes < b.Planes.EligibleNodes })
	first := func(n int) []int32 { return lo.RangeFrom(int32(0), n) }
	switch {
	case given > 0:
		if err := f.checkPlanes(given, d.placement, single); err != nil {
			return err
		}
		planes, reason = first(given), "given by --planes"
	case single == "" && len(planes) > 0:
	case single != "":
		reason = single
		if len(planes) != 1 {
			planes = first(1)
		}
	case few.Planes.EligibleNodes < defaultPlanes:
		planes, reason = first(1), few.Name+" has fewer than two nodes that can run a gateway; --planes 2 adds a plane later"
	default:
		planes, reason = first(defaultPlanes), "one may fail; --planes chooses another number"
	}
	d.permanent, d.planes, d.planesStatement = planes, slices.Clone(planes), statement("planes", strconv.Itoa(len(planes)), reason)
	if temporary := lowestFree(planes); (a.Temporary || b.Temporary) && temporary < ipam.Planes {
		d.planes = append(d.planes, temporary)
	}
	return nil
}

// checkPlanes refuses a number of planes that is impossible in this cluster.
func (f *input) checkPlanes(n int, placement *v1alpha1.GatewayPlacement, single string) error {
	refused := func(kind failure.Kind, cluster string, err error, hint string) error {
		return &failure.Error{Kind: kind, Cluster: cluster, Op: "choose the number of planes", Err: err, Hint: hint}
	}
	if n > ipam.Planes {
		return refused(failure.Usage, "", fmt.Errorf("a peering can have at most %d planes", ipam.Planes), "")
	}
	if n > 1 && single != "" {
		err := fmt.Errorf("%s, and %d planes need as many endpoints", single, n)
		return refused(failure.Usage, "", err, "leave out --planes, or the endpoint")
	}
	has := f.facts.Network.eligibleNodes(placement, true)
	if len(has) >= n || n == 1 {
		return nil
	}
	few := fmt.Errorf("%d planes need as many nodes for gateways, and there are %d: %s", n, len(has), strings.Join(has, ", "))
	if absent := f.facts.Network.eligibleNodes(placement, false); len(has)+len(absent) >= n {
		few = fmt.Errorf("%w; not ready: %s", few, strings.Join(absent, ", "))
		return refused(failure.NotReady, f.facts.Network.Name, few, "wait until they are ready, or give a smaller number with --planes")
	}
	return refused(failure.Usage, f.facts.Network.Name, few, "give a smaller number with --planes; "+
		"or let gateways run on more nodes, see --gateway-toleration and --gateway-node-selector")
}

// planesMode returns how many planes nodes use. Both clusters get the same mode: an interrupted command may have changed
// only one of them.
func planesMode(clusters [2]*Offer) v1alpha1.PlanesMode {
	spreads := slices.ContainsFunc(clusters[:], func(o *Offer) bool { return o.Planes.Mode == v1alpha1.PlanesSpread })
	before := lo.Ternary(spreads, v1alpha1.PlanesSpread, v1alpha1.PlanesSingle)
	return cmp.Or(clusters[0].Planes.RequestedMode, clusters[1].Planes.RequestedMode, before)
}

// modeStatements describes how many planes nodes use, if the user chose it or it is not the default.
func modeStatements(mode, given v1alpha1.PlanesMode) []Statement {
	value := "one, and another one if that fails"
	if mode == v1alpha1.PlanesSpread {
		value = "all that work, chosen by pairs of addresses"
	} else if given == "" {
		return nil
	}
	return []Statement{statement("planes that a node uses", value, flagReason(given != "", "--planes-mode"))}
}

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
	// Endpoints are the endpoints that the user gave for the gateway. EndpointsGiven means that they were given in this
	// run.
	Endpoints      []string `json:"endpoints,omitempty"`
	EndpointsGiven bool     `json:"endpointsNow,omitempty"`
	// Role and Planes are for the decisions about roles and planes.
	Role   RoleOffer   `json:"role,omitzero"`
	Planes PlanesOffer `json:"planes"`
	// Services is for the decision about the exchange of services.
	Services ServicesOffer `json:"services"`
	// Keys describe the pre-shared keys of the cluster's gateways.
	Keys []KeyOffer `json:"keys,omitempty"`
	// Reader holds the decisions about the reader, nil before the cluster has read an offer of the reader.
	Reader *ReaderOffer `json:"reader,omitempty"`
}

// RoleOffer is what decides which gateway is the server.
type RoleOffer struct {
	// Requested means that the user chose the cluster as the server. Previous is the role decided before.
	Requested bool          `json:"asked,omitempty"`
	Previous  v1alpha1.Role `json:"before,omitempty"`
	// RequestsLoadBalancer means that the user requests a Service of this type.
	RequestsLoadBalancer bool `json:"asksLoadBalancer,omitempty"`
	// Reachability is how likely the cluster is reachable from outside, ReachabilityReason is why.
	Reachability       int    `json:"reach,omitempty"`
	ReachabilityReason string `json:"reachReason,omitempty"`
	// Established means that the peering has worked.
	Established bool `json:"established,omitempty"`
}

// PlanesOffer is what decides about the planes of the peering.
type PlanesOffer struct {
	// SingleGatewayReason is why the cluster can have only one gateway, empty if it can have several.
	SingleGatewayReason string `json:"oneGateway,omitempty"`
	// EligibleNodes is the number of nodes that can run a gateway.
	EligibleNodes int `json:"carriers"`
	// Existing are the existing planes. Requested is the number that the user requests. Temporary requests one more for
	// a while.
	Existing  []int32 `json:"existing,omitempty"`
	Requested int     `json:"asked,omitempty"`
	Temporary bool    `json:"temporary,omitempty"`
	// Mode is the current mode, RequestedMode the one that the user requests.
	Mode          v1alpha1.PlanesMode `json:"mode,omitempty"`
	RequestedMode v1alpha1.PlanesMode `json:"askedMode,omitempty"`
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

// offer returns the first offer, without the decisions about the reader.
func (f *input) offer(readerID string, d *decisions) (Offer, error) {
	internal, _, err := f.facts.InternalCIDR()
	if err != nil {
		return Offer{}, err
	}
	o := Offer{
		ClusterID: f.facts.Network.ClusterID, Name: f.facts.Network.Name, InternalCIDR: internal,
		Pods: ipv4(f.facts.Network.PodCIDRs), Nodes: f.facts.Network.nodeOffers(),
		Map: f.Overrides.Map, MapNodes: f.Overrides.MapNodes, Endpoints: f.givenEndpoints(), EndpointsGiven: len(f.Overrides.Endpoints) > 0,
		Role: RoleOffer{
			Requested: f.Overrides.Server, Previous: f.facts.role(),
			RequestsLoadBalancer: f.Overrides.ServiceType == string(corev1.ServiceTypeLoadBalancer),
		},
		Planes: PlanesOffer{
			SingleGatewayReason: f.singleGatewayReason(), EligibleNodes: len(f.facts.Network.eligibleNodes(d.placement, true)),
			Requested: f.Overrides.Planes, Temporary: f.Temporary, RequestedMode: f.Overrides.PlanesMode,
		},
	}
	o.Services = f.servicesOffer()
	if f.facts.Network.PodsUnknown != nil {
		o.PodsUnknown = f.facts.Network.PodsUnknown.Error()
	}
	o.Role.Reachability, o.Role.ReachabilityReason = f.facts.Network.reachability()
	entry := Allocation(f.facts.ledger(), readerID)
	o.Role.Established = entry != nil && entry.Active()
	if f.facts.Existing != nil {
		o.Planes.Existing, o.Planes.Mode = f.facts.PlaneIndexes(), f.facts.Existing.Spec.PlanesMode
	}
	o.Keys = lo.FilterMap(lo.RangeFrom(int32(0), ipam.Planes), func(plane int32, _ int) (KeyOffer, bool) {
		existing, exists := f.facts.ExistingPlane(plane)
		k := KeyOffer{
			Plane: plane, PresharedKey: f.facts.Planes[plane].PresharedKey, RenewPresharedKey: f.Renew[plane].PresharedKey,
			Named: existing.PresharedKey, IsNamed: exists,
		}
		return k, k != KeyOffer{Plane: plane}
	})
	return o, nil
}

// nodeOffers returns the addresses of all nodes.
func (f *Network) nodeOffers() []NodeOffer {
	return lo.Map(f.Nodes, func(n Node, _ int) NodeOffer { return NodeOffer{n.Name, n.addresses()} })
}
