package plan

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/wire"
)

// Offer is all that a peer, its reader, may know of a cluster, and all that it needs to plan. It contains no secrets, and
// nothing about a third cluster. Decisions that both clusters must make alike follow from both offers.
type Offer struct {
	ClusterID string `json:"clusterID"`
	Name      string `json:"name"`
	// Version is the version of the command that made the offer.
	Version string `json:"version,omitempty"`
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
	// OneGateway is why the cluster can have only one gateway, empty if it can have several.
	OneGateway string `json:"oneGateway,omitempty"`
	// Server means that the user chose the cluster as the server. Role is the role decided before.
	Server bool          `json:"server,omitempty"`
	Role   v1alpha1.Role `json:"role,omitempty"`
	// AsksLoadBalancer means that the user requests a Service of this type.
	AsksLoadBalancer bool `json:"asksLoadBalancer,omitempty"`
	// Reach is how likely the cluster is reachable from outside, ReachReason is why.
	Reach       int    `json:"reach,omitempty"`
	ReachReason string `json:"reachReason,omitempty"`
	// Established means that the peering has worked.
	Established bool `json:"established,omitempty"`
	// Carriers is the number of nodes that can run a gateway.
	Carriers int `json:"carriers"`
	// Planes are the existing planes. AsksPlanes is the number that the user requests. Temporary requests one more for a
	// while.
	Planes     []int32 `json:"planes,omitempty"`
	AsksPlanes int     `json:"asksPlanes,omitempty"`
	Temporary  bool    `json:"temporary,omitempty"`
	// PlanesMode is the current mode, AsksPlanesMode the one that the user requests.
	PlanesMode     v1alpha1.PlanesMode `json:"planesMode,omitempty"`
	AsksPlanesMode v1alpha1.PlanesMode `json:"asksPlanesMode,omitempty"`
	// Keys describe the pre-shared keys of the cluster's gateways.
	Keys []KeyOffer `json:"keys,omitempty"`
	// Reader holds the decisions about the reader, nil before the cluster has read an offer of the reader.
	Reader *ReaderOffer `json:"reader,omitempty"`
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

// keys returns the description of the pre-shared key of a plane.
func (o *Offer) keys(plane int32) KeyOffer {
	keys, _ := lo.Find(o.Keys, func(k KeyOffer) bool { return k.Plane == plane })
	return keys
}

// gateway returns the offered gateway of a plane.
func (r *ReaderOffer) gateway(plane int32) (GatewayOffer, error) {
	g, isOffered := lo.Find(r.Gateways, func(g GatewayOffer) bool { return g.Plane == plane })
	if !isOffered {
		return g, fmt.Errorf("the peer offers no gateway of plane %d", plane)
	}
	return g, nil
}

// Introduce makes the offer of a cluster that knows only the ID of the reader.
func Introduce(own Facts, intent Intent, readerID string) (Offer, error) {
	f := &input{own, intent}
	d, err := f.decideLocal()
	if err != nil {
		return Offer{}, err
	}
	return f.offer(readerID, &d)
}

// Answer makes the offer of a cluster that has read the peer's offer. It includes the decisions about the peer.
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

// offer returns the first offer, without the decisions about the reader.
func (f *input) offer(readerID string, d *decisions) (Offer, error) {
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
	o.Keys = lo.FilterMap(lo.RangeFrom(int32(0), ipam.Planes), func(plane int32, _ int) (KeyOffer, bool) {
		k := KeyOffer{Plane: plane, PresharedKey: f.Planes[plane].PresharedKey, RenewPresharedKey: f.Renew[plane].PresharedKey}
		k.Named, k.IsNamed = f.NamedPresharedKey(plane)
		return k, k != KeyOffer{Plane: plane}
	})
	return o, nil
}

// nodeOffers returns the addresses of all nodes.
func (f *Facts) nodeOffers() []NodeOffer {
	return lo.Map(f.Nodes, func(n Node, _ int) NodeOffer { return NodeOffer{n.Name, n.addresses()} })
}

// service returns the Service that exposes the cluster's gateways.
func (f *input) service(peering string, planes []int32) *corev1.Service {
	kind := corev1.ServiceType(chooseServiceType(f).Value.String())
	s := manifests.Owned(manifests.GatewayService(peering, kind, wire.TunnelPort, planes), peering, f.Owner)
	s.Spec.Ports[0].NodePort = f.Overrides.NodePort
	s.Annotations[AnnotationEndpoints] = strings.Join(f.givenEndpoints(), ",")
	return s
}

const (
	// maxEndpoints is how many endpoints a plane of a Peering can hold.
	maxEndpoints = 16
	// maxNodeIPs is how many node addresses a Peering can hold. It keeps the object small enough for the API server.
	maxNodeIPs = 4096
)

// ServiceEndpoints returns where the Service exposes the gateway of a plane, as host:port in the order to try them.
func ServiceEndpoints(svc *corev1.Service, plane int32, nodes []Node) []string {
	hosts, port := serviceHosts(svc, plane, nodes)
	if port == 0 {
		return nil
	}
	return lo.Map(hosts, func(host string, _ int) string { return net.JoinHostPort(host, strconv.Itoa(int(port))) })
}

// serviceHosts returns the hosts at which a Service can be reached, up to maxEndpoints, and the port for the plane, 0
// while it is not known. If there are too many nodes, both internal and external addresses remain.
func serviceHosts(svc *corev1.Service, plane int32, nodes []Node) (hosts []string, port int32) {
	p := v1alpha1.ServicePort(svc, plane)
	if p == nil {
		return nil, 0 // someone has changed it, or another version with other names applied it
	}
	port = p.Port
	switch svc.Spec.Type {
	case corev1.ServiceTypeLoadBalancer:
		hosts = lo.Map(svc.Status.LoadBalancer.Ingress, func(in corev1.LoadBalancerIngress, _ int) string { return cmp.Or(in.IP, in.Hostname) })
	case corev1.ServiceTypeNodePort:
		port = p.NodePort
		internal, external := nodeHosts(nodes)
		if n := len(internal); n > 0 {
			// Each plane begins with another node, because the failure of one node must not stop two planes.
			first := int(plane) % n
			internal = slices.Concat(internal[first:], internal[:first])
		}
		room := maxEndpoints - min(len(external), maxEndpoints/2)
		addrs := slices.Concat(internal[:min(len(internal), room)], external)
		hosts = lo.Map(addrs, func(a netip.Addr, _ int) string { return a.String() })
	default:
		hosts = []string{svc.Spec.ClusterIP}
	}
	// Hosts that are not valid endpoints, such as an address with a zone, are dropped: the peer's Peering cannot hold
	// them.
	hosts = slices.DeleteFunc(hosts, func(h string) bool { return checkEndpoint(net.JoinHostPort(h, "1")) != nil })
	return hosts[:min(len(hosts), maxEndpoints)], port
}

func checkEndpoint(endpoint string) error {
	_, _, err := v1alpha1.SplitEndpoint(endpoint)
	return err
}

// checkEndpoints validates the endpoints, as someone else may have changed the annotation of the Service.
func (f *input) checkEndpoints() error {
	var tooMany error
	given := f.givenEndpoints()
	if len(given) > maxEndpoints {
		tooMany = fmt.Errorf("there are %d, and a Peering can hold %d", len(given), maxEndpoints)
	}
	wrong := errors.Join(lo.Map(given, func(e string, _ int) error { return checkEndpoint(e) })...)
	if err := errors.Join(tooMany, wrong); err != nil {
		return f.refuse("read the endpoints of its gateways",
			fmt.Sprintf("give others with --endpoint %s=ADDRESS:PORT,…, or --endpoint %s=auto", f.Name, f.Name), err)
	}
	return nil
}

// nodeHosts returns the addresses at which a node port can be reached.
func nodeHosts(nodes []Node) (internal, external []netip.Addr) {
	for _, n := range nodes {
		if n.Ready {
			internal, external = append(internal, n.InternalIPs...), append(external, n.ExternalIPs...)
		}
	}
	return internal, external
}

// omitted returns notes about endpoints and node addresses that a peer does not get, because a Peering cannot hold them.
func (f *input) omitted(svc *corev1.Service) (notes []string) {
	internal, external := nodeHosts(f.Nodes)
	n := len(internal) + len(external)
	if n > maxEndpoints && svc != nil && svc.Spec.Type == corev1.ServiceTypeNodePort && len(f.givenEndpoints()) == 0 {
		notes = append(notes, fmt.Sprintf("%d of %d endpoints of %s are left out, as a Peering can hold %d; "+
			"give the best ones with --endpoint %s=ADDRESS:PORT,…", n-maxEndpoints, n, f.Name, maxEndpoints, f.Name))
	}
	if n := len(nodeIPs(f.nodeOffers())); n > maxNodeIPs {
		notes = append(notes, fmt.Sprintf("%d of %d node addresses of %s are left out, as a Peering can hold %d: "+
			"peers may mistake them for pods", n-maxNodeIPs, n, f.Name, maxNodeIPs))
	}
	return notes
}

// plannedEndpoints returns where the gateway of a plane will be reachable.
func (f *input) plannedEndpoints(plane int32, svc *corev1.Service) (out []Statement) {
	if given := f.givenEndpoints(); len(given) > 0 {
		return lo.Map(given, func(e string, _ int) Statement { return known("endpoint", e, "given by --endpoint") })
	}
	want := svc.DeepCopy()
	if live := f.Service; live != nil && live.Spec.Type == svc.Spec.Type {
		want.Spec.ClusterIP, want.Status = live.Spec.ClusterIP, live.Status
		if has := v1alpha1.ServicePort(live, plane); has != nil {
			port := v1alpha1.ServicePort(want, plane)
			port.NodePort = cmp.Or(port.NodePort, has.NodePort)
		}
	}
	reason := map[corev1.ServiceType]string{
		corev1.ServiceTypeNodePort: "address of a ready node", corev1.ServiceTypeLoadBalancer: "address of the load balancer",
		corev1.ServiceTypeClusterIP: "cluster IP of the Service",
	}[svc.Spec.Type]
	hosts, port := serviceHosts(want, plane, f.Nodes)
	name := fmt.Sprintf("of Service %s/%s in %s", svc.Namespace, svc.Name, f.Name)
	for _, host := range hosts {
		s := known("endpoint", net.JoinHostPort(host, strconv.Itoa(int(port))), reason)
		if port == 0 {
			s = later("endpoint", fmt.Sprintf("%s, node port %s %s", host, v1alpha1.PlanePort(plane), name), reason)
		}
		out = append(out, s)
	}
	if len(out) == 0 && svc.Spec.Type != corev1.ServiceTypeNodePort {
		out = append(out, later("endpoint", "address "+name, reason))
	}
	return out
}

// nodeIPs returns the addresses of nodes, sorted. A Peering can hold maxNodeIPs of them.
func nodeIPs(nodes []NodeOffer) []v1alpha1.IP {
	addrs := lo.FlatMap(nodes, func(n NodeOffer, _ int) []netip.Addr { return n.Addresses })
	slices.SortFunc(addrs, netip.Addr.Compare)
	return lo.Map(slices.Compact(addrs), func(a netip.Addr, _ int) v1alpha1.IP { return v1alpha1.IP{Addr: a} })
}
