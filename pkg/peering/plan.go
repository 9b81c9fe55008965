package peering

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

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
	// Overlay is "geneve", "vxlan" or "auto".
	Overlay string
	// WireGuard is "kernel", "userspace" or "auto".
	WireGuard string
	// ServiceType is "NodePort", "LoadBalancer", "ClusterIP" or "auto".
	ServiceType string
	// Facts are those that the user knows better, by the cluster's ID.
	Facts map[string]discovery.Overrides
}

// side is all that is known of one cluster when the plan is made.
type side struct {
	*Cluster
	facts discovery.Facts
	// internal is the internal CIDR for a cluster that has none yet.
	internal netip.Prefix
	// nodes are the agents' reports.
	nodes []v1alpha1.NodeNetwork
	// wasEstablished says that the peering worked before this command.
	wasEstablished bool
	// ledger as it was written last, with the entry for the peer.
	ledger *v1alpha1.ClusterNetwork
	// existing is the Peering as it is in the cluster, nil if there is none.
	existing *v1alpha1.Peering
	// apiServer are the addresses of the cluster's API server.
	apiServer []netip.Addr
	// publicKey of this side's gateway.
	publicKey string
	// overlayKey names the key of the cluster's overlay.
	overlayKey manifests.OverlayKey
	// image of the agents.
	image string
	// serviceType is that of the gateway's Service as it is, empty if there is
	// none.
	serviceType corev1.ServiceType
}

// decided is what the plan says for one cluster, keys and endpoints excepted.
type decided struct {
	role        v1alpha1.Role
	overlay     v1alpha1.OverlayKind
	wireguard   v1alpha1.WireGuardBackend
	serviceType corev1.ServiceType
}

// allocate decides by what ranges this cluster knows the peer. It is pure: same
// ledger and facts, same ranges. What was decided before is kept while it is
// free of conflicts.
func (s *side) allocate(cn *v1alpha1.ClusterNetwork, peer *side) error {
	entry := allocation(cn, peer.ID)
	if entry == nil {
		return s.fail("allocate ranges", errors.New("the ledger's entry is gone: the clusters are being unpeered"))
	}
	got, err := ipam.AllocatePeer(ipam.Space{Used: s.used(cn, peer)}, ipam.Peer{
		ID: peer.ID, Name: peer.Name, Pods: ipv4(discovery.Values(peer.facts.PodCIDRs)),
		PreviousPods: mappings(entry.Pods), PreviousExternal: entry.ExternalCIDR.Prefix,
	})
	if err != nil {
		return &Error{
			Kind: Ranges, Cluster: s.Name, Doing: fmt.Sprintf("find ranges for the pods and nodes of %q", peer.Name), Err: err,
		}
	}
	if slices.Equal(got.Mappings(), mappings(entry.Pods)) && got.External == entry.ExternalCIDR.Prefix {
		return errUnchanged
	}
	entry.Pods = nil
	for _, m := range got.Mappings() {
		entry.Pods = append(entry.Pods, v1alpha1.CIDRMapping{Real: v1alpha1.CIDR{Prefix: m.Real}, Mapped: v1alpha1.CIDR{Prefix: m.Mapped}})
	}
	entry.ExternalCIDR = v1alpha1.CIDR{Prefix: got.External}
	return nil
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
	for _, wish := range []*string{&o.Overlay, &o.WireGuard, &o.ServiceType} {
		*wish = cmp.Or(*wish, "auto")
	}
	for _, x := range []struct {
		s *side
		d *decided
	}{{a, &forA}, {b, &forB}} {
		if x.d.overlay, err = chooseOverlay(x.s, o.Overlay); err != nil {
			return forA, forB, err
		}
		if x.d.wireguard, err = chooseWireGuard(x.s, o.WireGuard); err != nil {
			return forA, forB, err
		}
		x.d.serviceType = chooseServiceType(x.s, o.ServiceType)
	}
	forA.role, forB.role = v1alpha1.Client, v1alpha1.Server
	if aIsServer(a, b) {
		forA.role, forB.role = v1alpha1.Server, v1alpha1.Client
	}
	return forA, forB, nil
}

// aIsServer keeps a role that was decided before; otherwise the cluster whose
// services get addresses from outside waits for the other one.
func aIsServer(a, b *side) bool {
	roleA, roleB := a.role(), b.role()
	switch {
	case roleA != "" && roleA == roleB:
		// They contradict each other: as if there were none.
	case roleA != "":
		return roleA == v1alpha1.Server
	case roleB != "":
		return roleB == v1alpha1.Client
	}
	if balancer := hasLoadBalancer(a); balancer != hasLoadBalancer(b) {
		return balancer
	}
	return a.ID < b.ID
}

// role is what was decided before, empty if nothing was.
func (s *side) role() v1alpha1.Role {
	if s.existing == nil {
		return ""
	}
	return s.existing.Spec.Planes[0].Role
}

func hasLoadBalancer(s *side) bool { return s.facts.Exposure.LoadBalancer.Value == discovery.Yes }

// chooseOverlay prefers what is there already, then Geneve.
func chooseOverlay(s *side, wish string) (v1alpha1.OverlayKind, error) {
	lacking := map[v1alpha1.OverlayKind][]string{
		"geneve": without(s.nodes, func(k v1alpha1.KernelFacts) bool { return k.Geneve }),
		"vxlan":  without(s.nodes, func(k v1alpha1.KernelFacts) bool { return k.VXLAN }),
	}
	if wish != "auto" {
		kind := v1alpha1.OverlayKind(wish)
		if len(lacking[kind]) > 0 {
			return "", cannot(s, wish, lacking[kind], "use --overlay auto")
		}
		return kind, nil
	}
	candidates := []v1alpha1.OverlayKind{"geneve", "vxlan"}
	if s.existing != nil {
		candidates = append([]v1alpha1.OverlayKind{s.existing.Spec.Overlay}, candidates...)
	}
	for _, kind := range candidates {
		if len(lacking[kind]) == 0 {
			return kind, nil
		}
	}
	return "", cannot(s, "geneve or vxlan", append(lacking["geneve"], lacking["vxlan"]...), "load the kernel module geneve or vxlan on these nodes")
}

func chooseWireGuard(s *side, wish string) (v1alpha1.WireGuardBackend, error) {
	missing := without(s.nodes, func(k v1alpha1.KernelFacts) bool { return k.WireGuard })
	switch {
	case wish == "kernel" && len(missing) > 0:
		return "", cannot(s, "wireguard", missing, "use --wireguard auto or userspace")
	case wish == "auto" && s.existing != nil && (s.existing.Spec.Planes[0].WireGuard == "userspace" || len(missing) == 0):
		return s.existing.Spec.Planes[0].WireGuard, nil
	case wish != "userspace" && len(missing) == 0:
		return "kernel", nil
	default:
		return "userspace", nil
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

func chooseServiceType(s *side, wish string) corev1.ServiceType {
	switch {
	case wish != "auto":
		return corev1.ServiceType(wish)
	case s.serviceType != "":
		return s.serviceType
	case hasLoadBalancer(s):
		return corev1.ServiceTypeLoadBalancer
	default:
		return corev1.ServiceTypeNodePort
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
		Remote:  v1alpha1.RemoteNetwork{ClusterID: peer.ID, Name: name, Pods: given.Pods, ExternalCIDR: given.ExternalCIDR},
		Overlay: d.overlay,
		Planes: []v1alpha1.Plane{{
			Index: 0, Role: d.role, WireGuard: d.wireguard, RemotePublicKey: peer.publicKey,
			RemoteAddress: v1alpha1.IP{Addr: remote}, Endpoints: endpoints,
		}},
	}, nil
}

// gatewayAddress is the overlay address of a gateway.
func gatewayAddress(internal netip.Prefix, index, plane int32) (netip.Addr, error) {
	number, err := ipam.GatewayNumber(int(index), int(plane))
	if err != nil {
		return netip.Addr{}, err
	}
	return ipam.GatewayAddr(internal, number)
}
