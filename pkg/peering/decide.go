package peering

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/discovery"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// gatewayPort is the UDP port of a gateway, in its pod and of its Service: that
// of pkg/tunnel, which the CLI does not link because it drives kernels.
const gatewayPort = 51840

// Options are what the user may overrule. The zero value decides by itself, and
// keeps what was decided before.
type Options struct {
	// Image of the agents. Empty: the one that the cluster's agents have already,
	// or else the Cluster's DefaultImage.
	Image string
	// Overlay, WireGuard and ServiceType are for clusters for which Clusters says
	// nothing.
	Overlay     string
	WireGuard   string
	ServiceType string
	// Server is the ID of the cluster whose gateway is called by the other's. Empty
	// to decide.
	Server string
	// Patience is how long one gateway calls the other in vain before it is tried
	// the other way round, where nobody has said who calls. 0 for the default.
	Patience time.Duration
	// Clusters are what is overruled for one cluster, by its ID.
	Clusters map[string]ClusterOptions
	// Facts are those that the user knows better, by the cluster's ID.
	Facts map[string]discovery.Overrides
}

// ClusterOptions are what the user may overrule for one cluster.
type ClusterOptions struct {
	// Overlay is "geneve", "vxlan" or "auto".
	Overlay string
	// WireGuard is "kernel", "userspace" or "auto".
	WireGuard string
	// ServiceType is "NodePort", "LoadBalancer", "ClusterIP" or "auto".
	ServiceType string
	// NodePort is the wished one, 0 for any.
	NodePort int32
	// Endpoints are where the gateway can be called, as host:port, where that is not
	// what the Service says: behind a NAT or a load balancer.
	Endpoints []string
	// AutoEndpoints takes back what Endpoints said in an earlier command.
	AutoEndpoints bool
	// Map are the ranges by which peers are to know this cluster's pods. Real may be
	// left out where the cluster has one pod range of that length.
	Map ipam.Mappings
	// MapNodes is the /18 by which peers are to know this cluster's nodes.
	MapNodes netip.Prefix
}

// of returns what is overruled for the cluster, "auto" where nothing is.
func (o Options) of(id string) ClusterOptions {
	c := o.Clusters[id]
	c.Overlay = cmp.Or(c.Overlay, o.Overlay, auto)
	c.WireGuard = cmp.Or(c.WireGuard, o.WireGuard, auto)
	c.ServiceType = cmp.Or(c.ServiceType, o.ServiceType, auto)
	return c
}

// auto is the wish to decide.
const auto = "auto"

// side is all that is known of one cluster when the plan is made.
type side struct {
	*Cluster
	facts discovery.Facts
	// internal is the internal CIDR for a cluster that has none yet.
	internal netip.Prefix
	// internalReason says why that one.
	internalReason string
	// nodes are the agents' reports.
	nodes []v1alpha1.NodeNetwork
	// wasEstablished says that the peering worked before this command.
	wasEstablished bool
	// ledger as it was written last, with the entry for the peer.
	ledger *v1alpha1.ClusterNetwork
	// existing is the Peering as it is in the cluster, nil if there is none.
	existing *v1alpha1.Peering
	// others are the Peerings with other peers.
	others []v1alpha1.Peering
	// apiServer are the addresses of the cluster's API server.
	apiServer []netip.Addr
	// publicKey of this side's gateway, empty as long as it is not known.
	publicKey string
	// overlayKey names the key of the cluster's overlay, empty as long as it is not
	// known.
	overlayKey manifests.OverlayKey
	// keyUnread says that the user may not read Secrets.
	keyUnread bool
	// image of the agents, and why that one.
	image, imageReason string
	// service is that of the gateway as it is, nil if there is none.
	service *corev1.Service
	// endpoints are those that the user gave, now or in an earlier command.
	endpoints []string
	// wish is what the user overrules for this cluster.
	wish ClusterOptions
	// journal has how things were before they were changed.
	journal journal
}

// chosen is a decision and its reason, which is a part of a sentence.
type chosen[T any] struct {
	is  T
	why string
	// assumed says that it may come out differently when all agents have reported.
	assumed bool
}

// decided is what the plan says for one cluster, keys and endpoints excepted.
type decided struct {
	role        chosen[v1alpha1.Role]
	overlay     chosen[v1alpha1.OverlayKind]
	wireguard   chosen[v1alpha1.WireGuardBackend]
	serviceType chosen[corev1.ServiceType]
}

// allocate decides by what ranges this cluster knows the peer. It is pure: same
// ledger and facts, same ranges. What was decided before is kept while it is
// free of conflicts.
func (s *side) allocate(cn *v1alpha1.ClusterNetwork, peer *side) error {
	entry := allocation(cn, peer.ID)
	if entry == nil {
		return s.fail("allocate ranges", errors.New("the ledger's entry is gone: the clusters are being unpeered"))
	}
	got, err := s.ranges(cn, entry, peer)
	if err != nil {
		return err
	}
	if !setRanges(entry, got) {
		return errUnchanged
	}
	return nil
}

// setRanges writes the ranges into the ledger's entry, and says whether that
// changes it.
func setRanges(entry *v1alpha1.PeerAllocation, r ipam.PeerRanges) bool {
	if slices.Equal(r.Mappings(), mappings(entry.Pods)) && r.External == entry.ExternalCIDR.Prefix {
		return false
	}
	entry.Pods = nil
	for _, m := range r.Mappings() {
		entry.Pods = append(entry.Pods, v1alpha1.CIDRMapping{Real: v1alpha1.CIDR{Prefix: m.Real}, Mapped: v1alpha1.CIDR{Prefix: m.Mapped}})
	}
	entry.ExternalCIDR = v1alpha1.CIDR{Prefix: r.External}
	return true
}

// ranges chooses those by which this cluster knows the peer.
func (s *side) ranges(cn *v1alpha1.ClusterNetwork, entry *v1alpha1.PeerAllocation, peer *side) (ipam.PeerRanges, error) {
	got, err := ipam.AllocatePeer(ipam.Space{Used: s.used(cn, peer)}, ipam.Peer{
		ID: peer.ID, Name: peer.Name, Pods: ipv4(discovery.Values(peer.facts.PodCIDRs)),
		PreviousPods: mappings(entry.Pods), PreviousExternal: entry.ExternalCIDR.Prefix,
		Map: peer.wish.Map, MapExternal: peer.wish.MapNodes,
	})
	if err == nil {
		return got, nil
	}
	e := &Error{
		Kind: Ranges, Cluster: s.Name, Doing: fmt.Sprintf("find ranges for the pods and nodes of %q", peer.Name), Err: err,
		Hint: fmt.Sprintf("docs/ipam.md explains the choice; --map %s=… wishes for a range, --pod-cidr %s=… says which pods there are", peer.Name, peer.Name),
	}
	if wished := len(peer.wish.Map) > 0 || peer.wish.MapNodes.IsValid(); wished && !errors.Is(err, ipam.ErrExhausted) {
		e.Kind, e.Hint = Usage, "give another range by --map, or none"
	}
	return got, e
}

// ipv4 leaves out the ranges of dual-stack clusters that the overlay does not
// carry yet.
func ipv4(prefixes []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(prefixes, func(p netip.Prefix) bool { return !p.Addr().Is4() })
}

// used is all that a range of the peer must not overlap with in this cluster.
func (s *side) used(cn *v1alpha1.ClusterNetwork, peer *side) []ipam.Use {
	used := s.ownRanges()
	used = append(used, ipam.Use{Prefix: cn.Spec.InternalCIDR.Prefix, By: "the overlay's internal range"})
	for _, a := range cn.Spec.Peers {
		if a.ClusterID == peer.ID {
			continue
		}
		for _, m := range a.Pods {
			used = append(used, ipam.Use{Prefix: m.Mapped.Prefix, By: "pods of peer " + a.Name})
		}
		if a.ExternalCIDR.IsValid() {
			used = append(used, ipam.Use{Prefix: a.ExternalCIDR.Prefix, By: "nodes of peer " + a.Name})
		}
	}
	for _, n := range s.nodes {
		for _, r := range n.Status.Routes {
			used = append(used, ipam.Use{Prefix: r.Prefix, By: "a route on node " + n.Spec.NodeName})
		}
	}
	// The tunnel's own packets go to the peer's nodes: an address of theirs inside
	// a range that leads into the tunnel would be a circle.
	for _, n := range peer.facts.Nodes {
		for _, a := range slices.Concat(n.InternalIPs, n.ExternalIPs) {
			used = append(used, ipam.Use{Prefix: netip.PrefixFrom(a, a.BitLen()), By: fmt.Sprintf("node %s of %s, where the tunnel leads to", n.Name, peer.Name)})
		}
	}
	// So it would be for the tunnels to other peers. Agents do without a circle, so
	// ranges that were given out before stay; but these addresses are no pods' then.
	var given []netip.Prefix
	if e := allocation(cn, peer.ID); e != nil {
		given = append(mappings(e.Pods).Mapped(), e.ExternalCIDR.Prefix)
	}
	for _, p := range s.others {
		for _, a := range p.Spec.Remote.NodeIPs {
			if slices.ContainsFunc(given, func(r netip.Prefix) bool { return r.Contains(a.Addr) }) {
				continue
			}
			used = append(used, ipam.Use{Prefix: netip.PrefixFrom(a.Addr, a.BitLen()), By: "a node of peer " + p.Spec.Remote.Name})
		}
	}
	for _, e := range peer.endpoints {
		if a, err := netip.ParseAddrPort(e); err == nil {
			used = append(used, ipam.Use{Prefix: netip.PrefixFrom(a.Addr(), a.Addr().BitLen()), By: "the endpoint of " + peer.Name + ", where the tunnel leads to"})
		}
	}
	return used
}

// ownRanges are those that the cluster itself uses, as far as its API tells.
func (s *side) ownRanges() []ipam.Use {
	used := s.facts.Uses()
	for _, n := range s.facts.Nodes {
		for _, a := range slices.Concat(n.InternalIPs, n.ExternalIPs) {
			used = append(used, ipam.Use{Prefix: netip.PrefixFrom(a, a.BitLen()), By: "node " + n.Name})
		}
	}
	for _, a := range s.apiServer {
		used = append(used, ipam.Use{Prefix: netip.PrefixFrom(a, a.BitLen()), By: "the API server of " + s.Name})
	}
	return used
}

// decide chooses roles and backends. It is pure and does not depend on which
// cluster was named first.
func decide(a, b *side, o Options) (forA, forB decided, err error) {
	for _, x := range []struct {
		s *side
		d *decided
	}{{a, &forA}, {b, &forB}} {
		wish := o.of(x.s.ID)
		if x.d.overlay, err = chooseOverlay(x.s, wish.Overlay); err != nil {
			return forA, forB, err
		}
		if x.d.wireguard, err = chooseWireGuard(x.s, wish.WireGuard); err != nil {
			return forA, forB, err
		}
		x.d.serviceType = chooseServiceType(x.s, wish.ServiceType)
	}
	isServer, why, err := aIsServer(a, b, o)
	if err != nil {
		return forA, forB, err
	}
	forA.role.is, forB.role.is = v1alpha1.Client, v1alpha1.Server
	if isServer {
		forA.role.is, forB.role.is = v1alpha1.Server, v1alpha1.Client
	}
	forA.role.why, forB.role.why = why, why
	return forA, forB, nil
}

// aIsServer decides which gateway is called by the other: the one that can be
// reached, as far as that is known. A role that was decided before is kept.
func aIsServer(a, b *side, o Options) (is bool, why string, err error) {
	for _, x := range [][2]*side{{a, b}, {b, a}} {
		s, peer := x[0], x[1]
		if o.Server == s.ID && len(o.Clusters[peer.ID].Endpoints) > 0 && len(o.Clusters[s.ID].Endpoints) == 0 {
			return false, "", &Error{
				Kind: Usage, Cluster: peer.Name, Doing: "choose roles",
				Err:  fmt.Errorf("--endpoint says where the gateway of %q can be called, but --server makes it the one that calls", peer.Name),
				Hint: "give --endpoint for the cluster of --server",
			}
		}
	}
	if o.Server == a.ID || o.Server == b.ID {
		return o.Server == a.ID, "given by --server", nil
	}
	switch onA, onB := len(o.Clusters[a.ID].Endpoints) > 0, len(o.Clusters[b.ID].Endpoints) > 0; {
	case onA && !onB:
		return true, fmt.Sprintf("--endpoint says where %s can be called", a.Name), nil
	case onB && !onA:
		return false, fmt.Sprintf("--endpoint says where %s can be called", b.Name), nil
	}
	roleA, roleB := a.role(), b.role()
	switch {
	case roleA != "" && roleA == roleB:
		// They contradict each other: as if there were none.
	case roleA != "":
		return roleA == v1alpha1.Server, "as before", nil
	case roleB != "":
		return roleB == v1alpha1.Client, "as before", nil
	}
	reachA, whyA := reach(a)
	reachB, whyB := reach(b)
	switch {
	case reachA > reachB:
		return true, a.Name + ": " + whyA, nil
	case reachB > reachA:
		return false, b.Name + ": " + whyB, nil
	}
	server := b
	if a.ID < b.ID {
		server = a
	}
	return server == a, fmt.Sprintf("nothing says that one can be reached better than the other, and %s has the lower ID; if it cannot be called the roles are exchanged", server.Name), nil
}

// reach says how likely a cluster can be called from outside, and why.
func reach(s *side) (int, string) {
	lb, public, external := s.facts.Exposure.LoadBalancer, s.facts.Exposure.NodePublicIPs, s.facts.Exposure.NodeExternalIPs
	switch {
	case len(s.endpoints) > 0:
		return 3, "it has an endpoint that was given by --endpoint"
	case s.wish.ServiceType == string(corev1.ServiceTypeLoadBalancer):
		return 2, "--service-type says that it has load balancers"
	case lb.Value == discovery.Yes:
		return 2, "it has load balancers, " + lb.Source
	case external.Value == discovery.Yes:
		return 1, external.Source
	case public.Value == discovery.Yes:
		return 1, public.Source
	default:
		return 0, ""
	}
}

// role is what was decided before, empty if nothing was.
func (s *side) role() v1alpha1.Role {
	if s.existing == nil {
		return ""
	}
	return s.existing.Spec.Planes[0].Role
}

// unreported are the nodes whose agents have not said what their kernels can do.
func (s *side) unreported() []string {
	var out []string
	for _, n := range s.facts.Nodes {
		if r := reportOf(s.nodes, n.Name); n.Ready && n.OS != "windows" && (r == nil || r.Status.Kernel == nil) {
			out = append(out, n.Name)
		}
	}
	return out
}

// ofKernels completes a choice that depends on what all kernels can do.
func ofKernels[T any](s *side, is T, known, assumed string) chosen[T] {
	if n := len(s.unreported()); n > 0 {
		return chosen[T]{is, fmt.Sprintf("%s, as %d of %d node agents have not reported yet", assumed, n, len(s.facts.Nodes)), true}
	}
	return chosen[T]{is: is, why: known}
}

// chooseOverlay prefers what is there already, then Geneve. All peerings of a cluster
// have one kind: both would need the same UDP port of the nodes.
func chooseOverlay(s *side, wish string) (chosen[v1alpha1.OverlayKind], error) {
	none := chosen[v1alpha1.OverlayKind]{}
	lacking := map[v1alpha1.OverlayKind][]string{
		"geneve": without(s.nodes, func(k v1alpha1.KernelFacts) bool { return k.Geneve }),
		"vxlan":  without(s.nodes, func(k v1alpha1.KernelFacts) bool { return k.VXLAN }),
	}
	if len(s.others) > 0 {
		other, kind := s.others[0].Name, s.others[0].Spec.Overlay
		if wish != auto && wish != string(kind) {
			return none, &Error{
				Kind: Usage, Cluster: s.Name, Doing: "choose the overlay",
				Err:  fmt.Errorf("its nodes have links of kind %s for the peering with %q, and cannot have links of kind %s as well", kind, other, wish),
				Hint: fmt.Sprintf("use --overlay auto or %s=%s, or first unpeer %s from all others", s.Name, kind, s.Name),
			}
		}
		if len(lacking[kind]) > 0 {
			return none, cannot(s, string(kind), lacking[kind], fmt.Sprintf(
				"load the kernel module %s on these nodes, as the peering with %q needs it too, or first unpeer %s from all others", kind, other, s.Name))
		}
		return chosen[v1alpha1.OverlayKind]{is: kind, why: fmt.Sprintf("as for the peering with %q", other)}, nil
	}
	if wish != auto {
		kind := v1alpha1.OverlayKind(wish)
		if len(lacking[kind]) > 0 {
			return none, cannot(s, wish, lacking[kind], "use --overlay auto")
		}
		return ofKernels(s, kind, "given by --overlay", "given by --overlay; all kernels are taken to have it"), nil
	}
	if s.existing != nil && len(lacking[s.existing.Spec.Overlay]) == 0 {
		return chosen[v1alpha1.OverlayKind]{is: s.existing.Spec.Overlay, why: "as before"}, nil
	}
	if len(lacking["geneve"]) == 0 {
		return ofKernels(s, v1alpha1.OverlayKind("geneve"), "the kernels of all nodes have it", "all kernels are taken to have it, otherwise it is vxlan"), nil
	}
	if len(lacking["vxlan"]) == 0 {
		return ofKernels(s, v1alpha1.OverlayKind("vxlan"), "there is no Geneve on "+strings.Join(lacking["geneve"], ", "), "all kernels are taken to have it"), nil
	}
	return none, cannot(s, "geneve or vxlan", append(lacking["geneve"], lacking["vxlan"]...), "load the kernel module geneve or vxlan on these nodes")
}

func chooseWireGuard(s *side, wish string) (chosen[v1alpha1.WireGuardBackend], error) {
	type backend = v1alpha1.WireGuardBackend
	missing := without(s.nodes, func(k v1alpha1.KernelFacts) bool { return k.WireGuard })
	switch {
	case wish == "kernel" && len(missing) > 0:
		return chosen[backend]{}, cannot(s, "wireguard", missing, "use --wireguard auto or userspace")
	case wish == "kernel":
		return ofKernels(s, backend("kernel"), "given by --wireguard", "given by --wireguard; all kernels are taken to have it"), nil
	case wish == auto && s.existing != nil && (s.existing.Spec.Planes[0].WireGuard == "userspace" || len(missing) == 0):
		return chosen[backend]{is: s.existing.Spec.Planes[0].WireGuard, why: "as before"}, nil
	case wish == auto && len(missing) == 0:
		return ofKernels(s, backend("kernel"), "the kernels of all nodes have it", "all kernels are taken to have it, otherwise it is userspace"), nil
	case wish == auto:
		return chosen[backend]{is: "userspace", why: "there is no WireGuard in the kernel of " + strings.Join(missing, ", ")}, nil
	default:
		return chosen[backend]{is: "userspace", why: "given by --wireguard"}, nil
	}
}

// without returns the nodes whose kernel lacks something.
func without(nodes []v1alpha1.NodeNetwork, has func(v1alpha1.KernelFacts) bool) []string {
	var out []string
	for _, n := range nodes {
		if k := n.Status.Kernel; k != nil && !has(*k) {
			out = append(out, n.Spec.NodeName)
		}
	}
	return out
}

func cannot(s *side, kind string, nodes []string, hint string) error {
	slices.Sort(nodes)
	return &Error{
		Kind: Usage, Cluster: s.Name, Doing: "choose what the kernels can do",
		Err: fmt.Errorf("no links of kind %s on nodes %s", kind, strings.Join(slices.Compact(nodes), ", ")), Hint: hint,
	}
}

func chooseServiceType(s *side, wish string) chosen[corev1.ServiceType] {
	lb := s.facts.Exposure.LoadBalancer
	switch {
	case wish != auto:
		return chosen[corev1.ServiceType]{is: corev1.ServiceType(wish), why: "given by --service-type"}
	case s.service != nil:
		return chosen[corev1.ServiceType]{is: s.service.Spec.Type, why: "as before"}
	case lb.Value == discovery.Yes && len(s.endpoints) == 0:
		return chosen[corev1.ServiceType]{is: corev1.ServiceTypeLoadBalancer, why: lb.Source, assumed: lb.Assumed}
	default:
		return chosen[corev1.ServiceType]{is: corev1.ServiceTypeNodePort, why: "it is not known to have load balancers: " + lb.Source}
	}
}

// peeringSpec is what this side's Peering says. It is pure.
func peeringSpec(s, peer *side, d decided, endpoints []string) (v1alpha1.PeeringSpec, error) {
	given, got := allocation(s.ledger, peer.ID), allocation(peer.ledger, s.ID)
	if given == nil || got == nil {
		return v1alpha1.PeeringSpec{}, s.fail("plan", errors.New("the ledger's entry is gone: the clusters are being unpeered"))
	}
	remote, err := gatewayAddress(peer.ledger.Spec.InternalCIDR.Prefix, got.Index, 0)
	if err != nil {
		return v1alpha1.PeeringSpec{}, err
	}
	nodes, err := ipam.ExternalMapping(peer.ledger.Spec.InternalCIDR.Prefix, given.ExternalCIDR.Prefix)
	if err != nil {
		return v1alpha1.PeeringSpec{}, err
	}
	remote, ok := nodes.Translate(remote)
	if !ok {
		return v1alpha1.PeeringSpec{}, fmt.Errorf("gateway address %s of %q is not in its internal range", remote, peer.Name)
	}
	name := peer.Name
	if s.existing != nil {
		name = s.existing.Spec.Remote.Name
	}
	hosts, err := hostMappings(given, got.ExternalCIDR.Prefix)
	if err != nil {
		return v1alpha1.PeeringSpec{}, err
	}
	return v1alpha1.PeeringSpec{
		Index: given.Index,
		Local: v1alpha1.LocalNetwork{
			Pods: got.Pods, InternalCIDR: s.ledger.Spec.InternalCIDR, ExternalCIDR: got.ExternalCIDR, Hosts: hosts,
		},
		Remote:  v1alpha1.RemoteNetwork{ClusterID: peer.ID, Name: name, Pods: given.Pods, ExternalCIDR: given.ExternalCIDR, NodeIPs: nodeIPs(peer.facts.Nodes)},
		Overlay: d.overlay.is,
		Planes: []v1alpha1.Plane{{
			Index: 0, Role: d.role.is, WireGuard: d.wireguard.is, KeyGeneration: 1, RemotePublicKey: peer.publicKey,
			RemoteAddress: v1alpha1.IP{Addr: remote}, Endpoints: endpoints,
		}},
	}, nil
}

// maxNodeIPs is how many the CRD takes, which keeps a Peering to a size that an API
// server takes.
const maxNodeIPs = 4096

// nodeIPs are all addresses of nodes, sorted.
func nodeIPs(nodes []discovery.Node) []v1alpha1.IP {
	var out []v1alpha1.IP
	for _, n := range nodes {
		for _, a := range slices.Concat(n.InternalIPs, n.ExternalIPs) {
			out = append(out, v1alpha1.IP{Addr: a})
		}
	}
	slices.SortFunc(out, func(a, b v1alpha1.IP) int { return a.Compare(b.Addr) })
	out = slices.Compact(out)
	return out[:min(len(out), maxNodeIPs)]
}

// gatewayAddress is the overlay address of a gateway.
func gatewayAddress(internal netip.Prefix, index, plane int32) (netip.Addr, error) {
	number, err := ipam.GatewayNumber(int(index), int(plane))
	if err != nil {
		return netip.Addr{}, err
	}
	return ipam.GatewayAddr(internal, number)
}
