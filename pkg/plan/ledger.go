package plan

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/samber/lo"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// MaxPeers is the number of ledger entries for which there are interface names, VNIs and gateway addresses.
const MaxPeers = ipam.MaxPeering + 1

// NewLedger returns an empty ledger.
func NewLedger(internal netip.Prefix) *v1alpha1.ClusterNetwork {
	return manifests.ClusterNetwork(v1alpha1.ClusterNetworkSpec{InternalCIDR: v1alpha1.CIDR{Prefix: internal}})
}

// Allocation returns the peer's entry in the ledger, nil if there is none.
func Allocation(cn *v1alpha1.ClusterNetwork, peerID string) *v1alpha1.PeerAllocation {
	if i := slices.IndexFunc(cn.Spec.Peers, func(a v1alpha1.PeerAllocation) bool { return a.ClusterID == peerID }); i >= 0 {
		return &cn.Spec.Peers[i]
	}
	return nil
}

// NewAllocation returns an entry for a peer that has none, with the lowest free index and a unique name.
func NewAllocation(cn *v1alpha1.ClusterNetwork, peerID, peerName string) (v1alpha1.PeerAllocation, error) {
	names := sets.New(lo.Map(cn.Spec.Peers, func(a v1alpha1.PeerAllocation, _ int) string { return a.Name })...)
	index := lowestFree(lo.Map(cn.Spec.Peers, func(a v1alpha1.PeerAllocation, _ int) int32 { return a.Index }))
	if index >= MaxPeers {
		return v1alpha1.PeerAllocation{}, fmt.Errorf("all %d entries are taken: unpeer another cluster first", MaxPeers)
	}
	base := ObjectName(peerName)
	name := base
	for i := 2; names.Has(name); i++ {
		suffix := fmt.Sprintf("-%d", i)
		name = strings.TrimRight(base[:min(len(base), maxName-len(suffix))], "-") + suffix
	}
	return v1alpha1.PeerAllocation{ClusterID: peerID, Name: name, Index: index, Phase: v1alpha1.PeerReserved}, nil
}

// maxName leaves room in the names of a Deployment's pods (63) for "gateway-", the plane, and two hashes.
const maxName = 30

var notInName = regexp.MustCompile(`[^a-z0-9]+`)

// ObjectName turns the user's name of a cluster, e.g. "kubernetes-admin@kubernetes", into a DNS label.
func ObjectName(s string) string {
	s = strings.Trim(notInName.ReplaceAllString(strings.ToLower(s), "-"), "-")
	return cmp.Or(strings.TrimRight(s[:min(len(s), maxName)], "-"), "peer")
}

// Mappings converts the mappings of an API object to those of pkg/ipam.
func Mappings(in []v1alpha1.CIDRMapping) ipam.Mappings {
	return lo.Map(in, func(m v1alpha1.CIDRMapping, _ int) ipam.Mapping {
		return ipam.Mapping{Real: m.Real.Prefix, Mapped: m.Mapped.Prefix}
	})
}

// HostMappings returns the exposed hosts with the addresses by which the peer knows them.
func HostMappings(a *v1alpha1.PeerAllocation, external netip.Prefix) ([]v1alpha1.AddressMapping, error) {
	return lo.MapErr(a.Hosts, func(h v1alpha1.ExposedHost, _ int) (m v1alpha1.AddressMapping, err error) {
		mapped, err := ipam.HostAddr(external, int(h.Number))
		if err != nil {
			return m, fmt.Errorf("exposed host %s: %w", h.Address, err)
		}
		return v1alpha1.AddressMapping{Real: h.Address, Mapped: v1alpha1.IP{Addr: mapped}}, nil
	})
}

// planLedger plans the ledger, with an entry for the peer and the ranges by which this cluster knows it.
func (c *ClusterPlan) planLedger(own *input, peer *Offer) error {
	internal, internalReason, err := own.InternalCIDR()
	if err != nil {
		return err
	}
	cn := cmp.Or(own.ledger().DeepCopy(), NewLedger(internal))
	entry, reason, nameReason := Allocation(cn, peer.ClusterID), "as before", "as before"
	if entry == nil {
		a, err := NewAllocation(cn, peer.ClusterID, peer.Name)
		if err != nil {
			return own.fail("claim an entry of the ledger", err)
		}
		cn.Spec.Peers = append(cn.Spec.Peers, a)
		entry, reason, nameReason = &cn.Spec.Peers[len(cn.Spec.Peers)-1], "the lowest free one", "after the name of the peer"
	}
	got, err := own.rangesFor(cn, entry, peer)
	if err != nil {
		return err
	}
	setRanges(entry, got)
	entry.Phase = v1alpha1.PeerActive
	c.Ledger = cn
	c.planOverlayKey(own, cn)
	assumed := len(own.Unreported()) > 0
	pods := "pods of " + peer.Name
	c.Ranges = []RangePlan{{What: "overlay addresses of nodes and gateways", Real: internal, Mapped: internal, Reason: internalReason}}
	if peer.PodsUnknown != "" {
		c.Ranges = append(c.Ranges, RangePlan{What: pods, Reason: "reported by the agents of " + peer.Name, DuringRun: true})
	}
	for _, r := range got.Pods {
		c.Ranges = append(c.Ranges, RangePlan{What: pods, Real: r.Real, Mapped: r.Mapped, Reason: r.Reason, Assumed: assumed})
	}
	public := lo.FilterMap(got.Pods, func(r ipam.Range, _ int) (string, bool) { return r.Mapping.String(), !ipam.Private(r.Real) })
	if len(public) > 0 {
		c.note("%s knows pods of %s whose addresses are not private (RFC 1918, RFC 6598) as: %s; "+
			"such a range is mapped to a private one, unless --map %s=RANGE=RANGE says otherwise",
			own.Name, peer.Name, strings.Join(public, ", "), peer.Name)
	}
	c.Ranges = append(c.Ranges, RangePlan{
		What: "nodes and single addresses of " + peer.Name, Real: peer.InternalCIDR, Mapped: got.External,
		Reason: got.ExternalReason, Assumed: assumed,
	})
	c.Choices = append(c.Choices,
		known("name of the peering", entry.Name, nameReason),
		known("index of the peering", fmt.Sprint(entry.Index), reason+"; interface names, VNIs and gateways' addresses derive from it"),
	)
	return nil
}

// Allocate chooses the ranges by which the cluster own knows the peer, and writes them into the peer's ledger entry. It
// keeps earlier ranges as long as they have no conflicts.
func Allocate(cn *v1alpha1.ClusterNetwork, own Facts, peer Offer) (changed bool, err error) {
	entry := Allocation(cn, peer.ClusterID)
	if entry == nil {
		err := errors.New("the ledger no longer has an entry for the peer: the clusters are being unpeered")
		return false, own.fail("allocate ranges", err)
	}
	unknown := own.PodsUnknown
	if unknown == nil && peer.PodsUnknown != "" {
		unknown = errors.New(peer.PodsUnknown)
	}
	if unknown != nil {
		return false, &failure.Error{Kind: failure.Ranges, Doing: "find out the ranges", Err: unknown}
	}
	got, err := own.rangesFor(cn, entry, &peer)
	if err != nil {
		return false, err
	}
	return setRanges(entry, got), nil
}

// setRanges writes the ranges into the ledger entry, and reports whether that changes it.
func setRanges(entry *v1alpha1.PeerAllocation, r ipam.PeerRanges) bool {
	if slices.Equal(r.Mappings(), Mappings(entry.Pods)) && r.External == entry.ExternalCIDR.Prefix {
		return false
	}
	if entry.Active() && entry.Previous == nil {
		entry.Previous = &v1alpha1.PeerRanges{Pods: entry.Pods, ExternalCIDR: entry.ExternalCIDR}
	}
	entry.Pods = nil // unlike an empty list, nil makes no statement while ranges are not known
	for _, m := range r.Pods {
		entry.Pods = append(entry.Pods, v1alpha1.CIDRMapping{Real: v1alpha1.CIDR{Prefix: m.Real}, Mapped: v1alpha1.CIDR{Prefix: m.Mapped}})
	}
	entry.ExternalCIDR = v1alpha1.CIDR{Prefix: r.External}
	return true
}

// rangesFor chooses the ranges by which the cluster knows the peer.
func (f *Facts) rangesFor(cn *v1alpha1.ClusterNetwork, entry *v1alpha1.PeerAllocation, peer *Offer) (ipam.PeerRanges, error) {
	previous := Mappings(entry.Pods)
	if !entry.Active() {
		// A range that is not private is kept only for an active peering. In any other entry it comes from an interrupted
		// command of a version that allocated such ranges.
		previous = slices.DeleteFunc(previous, func(m ipam.Mapping) bool { return !ipam.Private(m.Mapped) })
	}
	request := ipam.Peer{
		ID: peer.ClusterID, Name: peer.Name, Pods: peer.Pods,
		PreviousPods: previous, PreviousExternal: entry.ExternalCIDR.Prefix,
		Map: peer.Map, MapExternal: peer.MapNodes,
	}
	if peer.PodsUnknown != "" {
		request.Map = nil // there are no ranges to map yet
	}
	got, err := ipam.AllocatePeer(f.used(cn, peer), request)
	if err == nil {
		return got, nil
	}
	e := &failure.Error{
		Kind: failure.Ranges, Cluster: f.Name, Doing: fmt.Sprintf("find ranges for the pods and nodes of %q", peer.Name), Err: err,
		Hint: fmt.Sprintf("docs/ipam.md explains the choice; --map %s=… asks for a range, "+
			"--pod-cidr %s=… sets its pod ranges", peer.Name, peer.Name),
	}
	isGiven := len(peer.Map) > 0 || peer.MapNodes.IsValid()
	if isGiven && !errors.Is(err, ipam.ErrExhausted) && !errors.Is(err, ipam.ErrTooLarge) {
		e.Kind, e.Hint = failure.Usage, "give another range by --map, or none"
	}
	return got, e
}

// ipv4 drops the IPv6 ranges of dual-stack clusters, which the overlay does not carry yet.
func ipv4(r Ranges) []netip.Prefix {
	return slices.DeleteFunc(r.Prefixes(), func(p netip.Prefix) bool { return !p.Addr().Is4() })
}

// used returns everything in this cluster that a range of the peer must not overlap.
func (f *Facts) used(cn *v1alpha1.ClusterNetwork, peer *Offer) []ipam.Usage {
	used := append(f.ownRanges(), usages("the overlay's internal range", cn.Spec.InternalCIDR.Prefix)...)
	for _, a := range cn.Spec.Peers {
		if a.ClusterID == peer.ClusterID {
			continue
		}
		for _, g := range []v1alpha1.PeerRanges{{Pods: a.Pods, ExternalCIDR: a.ExternalCIDR}, lo.FromPtr(a.Previous)} {
			used = append(used, usages("pods of peer "+a.Name, Mappings(g.Pods).Mapped()...)...)
			if g.ExternalCIDR.IsValid() {
				used = append(used, usages("nodes of peer "+a.Name, g.ExternalCIDR.Prefix)...)
			}
		}
	}
	for _, n := range f.Reports {
		// An invalid prefix in an agent's report is no reason to refuse a peering: only valid ones count.
		used = append(used, usages("a route on node "+n.Name, v1alpha1.Prefixes(n.Status.Routes)...)...)
	}
	// The tunnel's own packets go to the peer's nodes. If one of their addresses were routed into the tunnel, the packets
	// would loop.
	for _, n := range peer.Nodes {
		used = append(used, addrUsages(fmt.Sprintf("node %s of %s, a tunnel endpoint", n.Name, peer.Name), n.Addresses...)...)
	}
	for _, e := range peer.Endpoints {
		if a, err := netip.ParseAddrPort(e); err == nil {
			used = append(used, addrUsages("the tunnel endpoint of "+peer.Name, a.Addr())...)
		}
	}
	// The same holds for the tunnels to other peers. Agents avoid that loop themselves, so earlier ranges stay, although
	// no pod can have these addresses then. A range may long have contained addresses that the cluster's nodes call, and
	// such an address may even be a pod of the peer.
	var given []netip.Prefix
	if e := Allocation(cn, peer.ClusterID); e != nil {
		given = append(Mappings(e.Pods).Mapped(), e.ExternalCIDR.Prefix)
	}
	others := f.externalServers()
	for _, a := range cn.Spec.Peers {
		hosts := lo.Map(a.Hosts, func(h v1alpha1.ExposedHost, _ int) netip.Addr { return h.Address.Addr })
		others = append(others, addrUsages("a host exposed to peer "+a.Name, hosts...)...)
	}
	for _, p := range f.OtherPeerings {
		others = append(others, addrUsages("a node of peer "+p.Spec.Remote.Name, addresses(p.Spec.Remote.NodeIPs)...)...)
	}
	return append(used, slices.DeleteFunc(others, func(u ipam.Usage) bool { return slices.ContainsFunc(given, u.Prefix.Overlaps) })...)
}

// externalServers returns addresses outside the cluster that its nodes call. A range of a peer that contains one would
// route these calls to the peer.
func (f *Facts) externalServers() (out []ipam.Usage) {
	out = addrUsages("the API server of "+f.Name+" in the kubeconfig", f.Kubeconfig)
	for _, n := range f.Reports {
		out = append(out, addrUsages("a name server of node "+n.Name, addresses(n.Status.Resolvers)...)...)
	}
	return out
}

// ownRanges returns the ranges that the cluster itself uses, according to its API.
func (f *Facts) ownRanges() []ipam.Usage {
	used := f.nearPods()
	for _, of := range f.ranges() {
		for _, r := range of.ranges {
			used = append(used, usages(of.by+" cluster "+f.Name+", "+r.Source, r.Value)...)
		}
	}
	for _, n := range f.Nodes {
		used = append(used, addrUsages("node "+n.Name, n.addresses()...)...)
	}
	return append(used, addrUsages("the API server of "+f.Name, f.APIServer...)...)
}

// usages returns prefixes as uses of one owner.
func usages(owner string, prefixes ...netip.Prefix) []ipam.Usage {
	return lo.Map(prefixes, func(p netip.Prefix, _ int) ipam.Usage { return ipam.Usage{Prefix: p, Owner: owner} })
}

// addrUsages returns the valid addresses as uses of one owner.
func addrUsages(owner string, addrs ...netip.Addr) []ipam.Usage {
	valid := lo.Filter(addrs, func(a netip.Addr, _ int) bool { return a.IsValid() })
	return usages(owner, lo.Map(valid, single)...)
}

// single returns the prefix that contains only the address.
func single(a netip.Addr, _ int) netip.Prefix { return netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()) }

func addresses(ips []v1alpha1.IP) []netip.Addr {
	return lo.Map(ips, func(ip v1alpha1.IP, _ int) netip.Addr { return ip.Addr })
}
