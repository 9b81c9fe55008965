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
	o.Keys = lo.FilterMap(lo.RangeFrom(int32(0), ipam.Planes), func(plane int32, _ int) (KeyOffer, bool) {
		k := KeyOffer{Plane: plane, PresharedKey: f.Planes[plane].PresharedKey, RenewPresharedKey: f.Renew[plane].PresharedKey}
		k.Named, k.IsNamed = f.NamedPresharedKey(plane)
		return k, k != KeyOffer{Plane: plane}
	})
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

const (
	// maxEndpoints is what a plane of a Peering has room for.
	maxEndpoints = 16
	// maxNodeIPs is how many a Peering has room for, which keeps it to a size that an
	// API server takes.
	maxNodeIPs = 4096
)

// ServiceEndpoints are where the gateway of a plane is called by the Service, as host:port in
// the order in which they should be tried.
func ServiceEndpoints(svc *corev1.Service, plane int32, nodes []Node) []string {
	hosts, port := serviceHosts(svc, plane, nodes)
	if port == 0 {
		return nil
	}
	return lo.Map(hosts, func(host string, _ int) string { return net.JoinHostPort(host, strconv.Itoa(int(port))) })
}

// serviceHosts are where a Service is called, as many as there is room for, and at
// which port of the plane, 0 while that is not known. Of many nodes, those that are left out are such
// that both internal and external addresses remain.
func serviceHosts(svc *corev1.Service, plane int32, nodes []Node) (hosts []string, port int32) {
	p := v1alpha1.ServicePort(svc, plane)
	if p == nil {
		return nil, 0 // somebody has changed it, or it was applied by a version with another name
	}
	port = p.Port
	switch svc.Spec.Type {
	case corev1.ServiceTypeLoadBalancer:
		hosts = lo.Map(svc.Status.LoadBalancer.Ingress, func(in corev1.LoadBalancerIngress, _ int) string { return cmp.Or(in.IP, in.Hostname) })
	case corev1.ServiceTypeNodePort:
		port = p.NodePort
		internal, external := nodeHosts(nodes)
		if n := len(internal); n > 0 {
			// No two planes begin by the same node: it could end both.
			first := int(plane) % n
			internal = slices.Concat(internal[first:], internal[:first])
		}
		room := maxEndpoints - min(len(external), maxEndpoints/2)
		addrs := slices.Concat(internal[:min(len(internal), room)], external)
		hosts = lo.Map(addrs, func(a netip.Addr, _ int) string { return a.String() })
	default:
		hosts = []string{svc.Spec.ClusterIP}
	}
	// What is no endpoint, such as an address with a zone, has no place in the peer's Peering.
	hosts = slices.DeleteFunc(hosts, func(h string) bool { return checkEndpoint(net.JoinHostPort(h, "1")) != nil })
	return hosts[:min(len(hosts), maxEndpoints)], port
}

func checkEndpoint(endpoint string) error {
	_, _, err := v1alpha1.SplitEndpoint(endpoint)
	return err
}

// checkEndpoints refuses what somebody else may have written into the annotation of a Service.
func (f *sheet) checkEndpoints() error {
	var tooMany error
	given := f.givenEndpoints()
	if len(given) > maxEndpoints {
		tooMany = fmt.Errorf("there are %d, and a Peering has room for %d", len(given), maxEndpoints)
	}
	wrong := errors.Join(lo.Map(given, func(e string, _ int) error { return checkEndpoint(e) })...)
	if err := errors.Join(tooMany, wrong); err != nil {
		return f.refuse("read the endpoints of its gateways",
			fmt.Sprintf("give others by --endpoint %s=ADDRESS:PORT,…, or --endpoint %s=auto", f.Name, f.Name), err)
	}
	return nil
}

// nodeHosts are the addresses at which a node port is called.
func nodeHosts(nodes []Node) (internal, external []netip.Addr) {
	for _, n := range nodes {
		if n.Ready {
			internal, external = append(internal, n.InternalIPs...), append(external, n.ExternalIPs...)
		}
	}
	return internal, external
}

// leftOut says which endpoints and addresses of nodes a peer is not told of, because
// a Peering has no room for them.
func (f *sheet) leftOut(svc *corev1.Service) (notes []string) {
	internal, external := nodeHosts(f.Nodes)
	n := len(internal) + len(external)
	if n > maxEndpoints && svc != nil && svc.Spec.Type == corev1.ServiceTypeNodePort && len(f.givenEndpoints()) == 0 {
		notes = append(notes, fmt.Sprintf("%d of %d endpoints of %s are left out, as a Peering has room for %d; "+
			"give the best ones by --endpoint %s=ADDRESS:PORT,…", n-maxEndpoints, n, f.Name, maxEndpoints, f.Name))
	}
	if n := len(nodeIPs(f.nodeOffers())); n > maxNodeIPs {
		notes = append(notes, fmt.Sprintf("%d of %d node addresses of %s are left out, as a Peering has room for %d: "+
			"peers may take them for addresses of pods", n-maxNodeIPs, n, f.Name, maxNodeIPs))
	}
	return notes
}

// plannedEndpoints are where the gateway of a plane will be called.
func (f *sheet) plannedEndpoints(plane int32, svc *corev1.Service) (out []Statement) {
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
		corev1.ServiceTypeNodePort: "address of a node that is ready", corev1.ServiceTypeLoadBalancer: "address of the load balancer",
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

// nodeIPs are the addresses of nodes, sorted. A Peering has room for maxNodeIPs of them.
func nodeIPs(nodes []NodeOffer) []v1alpha1.IP {
	addrs := lo.FlatMap(nodes, func(n NodeOffer, _ int) []netip.Addr { return n.Addresses })
	slices.SortFunc(addrs, netip.Addr.Compare)
	return lo.Map(slices.Compact(addrs), func(a netip.Addr, _ int) v1alpha1.IP { return v1alpha1.IP{Addr: a} })
}
