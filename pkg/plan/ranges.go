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

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// InternalCIDR returns the range of the overlay's addresses: the cluster's current one, or a free one.
func (f *Facts) InternalCIDR() (netip.Prefix, string, error) {
	if cn := f.ledger(); cn != nil {
		return cn.Spec.InternalCIDR.Prefix, "as before", nil
	}
	got, err := ipam.Allocate(append(f.ownRanges(), f.externalServers()...), ipam.InternalRequest(f.Network.ClusterID, f.Network.Name))
	if err != nil {
		err = &failure.Error{Kind: failure.Ranges, Cluster: f.Network.Name, Op: "find a range for the overlay", Err: err}
		return netip.Prefix{}, "", err
	}
	return got[0].Prefix, got[0].Reason, nil
}

// Allocate chooses the ranges by which the cluster own knows the peer, and writes them into the peer's ledger entry. It
// keeps earlier ranges as long as they have no conflicts.
func Allocate(cn *v1alpha1.ClusterNetwork, own Facts, peer Offer) (changed bool, err error) {
	entry := Allocation(cn, peer.ClusterID)
	if entry == nil {
		err := errors.New("the ledger no longer has an entry for the peer: the clusters are being unpeered")
		return false, own.wrapError("allocate ranges", err)
	}
	unknown := own.Network.PodsUnknown
	if unknown == nil && peer.PodsUnknown != "" {
		unknown = errors.New(peer.PodsUnknown)
	}
	if unknown != nil {
		return false, &failure.Error{Kind: failure.Ranges, Op: "find out the ranges", Err: unknown}
	}
	got, err := own.rangesFor(cn, entry, &peer)
	if err != nil {
		return false, err
	}
	return setRanges(entry, got), nil
}

// rangesFor chooses the ranges by which the cluster knows the peer.
func (f *Facts) rangesFor(cn *v1alpha1.ClusterNetwork, entry *v1alpha1.PeerAllocation, peer *Offer) (ipam.PeerRanges, error) {
	previous := Mappings(entry.Pods)
	if !entry.Active() {
		// A range that is not private is kept only for an active peering. In any other entry it comes from an interrupted
		// command of a version that allocated such ranges.
		previous = slices.DeleteFunc(previous, func(m ipam.Mapping) bool { return !ipam.IsPrivate(m.Mapped) })
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
		Kind: failure.Ranges, Cluster: f.Network.Name, Op: fmt.Sprintf("find ranges for the pods and nodes of %q", peer.Name), Err: err,
		Hint: fmt.Sprintf("docs/ipam.md explains the choice; --map %s=… asks for a range, "+
			"--pod-cidr %s=… sets its pod ranges", failure.Quote(peer.Name), failure.Quote(peer.Name)),
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
		routes, _ := NodeRoutes(&n)
		used = append(used, usages("a route on node "+n.Name, routes...)...)
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
	out = addrUsages("the API server of "+f.Network.Name+" in the kubeconfig", f.Kubeconfig)
	for _, n := range f.Reports {
		out = append(out, addrUsages("a name server of node "+n.Name, addresses(n.Status.Resolvers)...)...)
	}
	return out
}

// ownRanges returns the ranges that the cluster itself uses, according to its API.
func (f *Facts) ownRanges() []ipam.Usage {
	var used []ipam.Usage
	if f.Network.PodsUnknown != nil {
		avoid := slices.Concat(f.Network.ServiceCIDRs, f.Network.NodeCIDRs).Prefixes()
		near := ipam.Estimate(lo.Map(f.Network.PodAddrs, singleAddress), avoid)
		used = usages("near pods of cluster "+f.Network.Name+", whose range is not known yet", near...)
	}
	for _, of := range f.Network.ranges() {
		for _, r := range of.ranges {
			used = append(used, usages(of.owner+" cluster "+f.Network.Name+", "+r.Source, r.Value)...)
		}
	}
	for _, n := range f.Network.Nodes {
		used = append(used, addrUsages("node "+n.Name, n.addresses()...)...)
	}
	return append(used, addrUsages("the API server of "+f.Network.Name, f.APIServer...)...)
}

// usages returns prefixes as uses of one owner.
func usages(owner string, prefixes ...netip.Prefix) []ipam.Usage {
	return lo.Map(prefixes, func(p netip.Prefix, _ int) ipam.Usage { return ipam.Usage{Prefix: p, Owner: owner} })
}

// addrUsages returns the valid addresses as uses of one owner.
func addrUsages(owner string, addrs ...netip.Addr) []ipam.Usage {
	valid := lo.Filter(addrs, func(a netip.Addr, _ int) bool { return a.IsValid() })
	return usages(owner, lo.Map(valid, singleAddress)...)
}

const (
	// minBlockBits is the length of the largest prefix that counts as a block of pods: a shorter one, such as
	// 10.0.0.0/8, covers much more than pods.
	minBlockBits = 12
	// maxRangeBits is the length of the smallest range to infer. If other addresses are so close to the pods' that less
	// remains, the user has to give the ranges.
	maxRangeBits = 24
)

// InferPods infers the ranges of the pods from the node agents' reports, if no object of the cluster names them. It
// returns the facts with the ranges, or unchanged while agents have not reported. It returns an error if the ranges
// cannot be inferred.
//
// The reports cover every pod: the ranges of the nodes, the routes to blocks of pods, and the addresses of pods outside
// of these. Of each running pod, the narrowest one counts. Together they are rounded up to a usual length, unless that
// conflicts with something else. Ranges that were inferred before are kept while there are pods in them.
func (f Facts) InferPods() (Facts, error) {
	if f.Network.PodsUnknown == nil || len(f.Network.agentNodes(true)) == 0 || len(f.Unreported()) > 0 {
		return f, nil
	}
	const doing = "infer the ranges of the pods from the node agents' reports"
	refused := &failure.Error{Kind: failure.Ranges, Op: doing, Err: f.Network.PodsUnknown}
	previous, blocks := f.previousPods(), reportedBlocks(f.Reports)
	held := slices.Clone(previous)
	for _, a := range f.Network.PodAddrs {
		if !a.Is4() || slices.ContainsFunc(previous, func(p netip.Prefix) bool { return p.Contains(a) }) {
			continue
		}
		block, isReported := lo.Find(blocks, func(b netip.Prefix) bool { return b.Contains(a) })
		if !isReported {
			return f, refused
		}
		held = append(held, block)
	}
	remote := lo.FlatMap(f.peerings(), func(p v1alpha1.Peering, _ int) []netip.Prefix { return p.RemoteRanges() })
	avoid := append(slices.Concat(f.Network.ServiceCIDRs, f.Network.NodeCIDRs).Prefixes(), remote...)
	if cn := f.ledger(); cn != nil {
		avoid = append(avoid, cn.Spec.InternalCIDR.Prefix)
	}
	ranges := ipam.Estimate(held, avoid)
	if len(ranges) == 0 || slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Bits() > maxRangeBits }) {
		return f, refused
	}
	agents := len(f.Network.agentNodes(true))
	source := fmt.Sprintf("inferred from blocks and routes that %d node agents report, rounded up; --pod-cidr %s=RANGE overrides it",
		agents, f.Network.Name)
	f.Network.PodCIDRs = lo.Map(ranges, func(r netip.Prefix, _ int) Range { return Range{Value: r, Assumed: true, Source: source} })
	names := lo.Map(ranges, func(r netip.Prefix, _ int) string { return r.String() })
	f.PodsInferred = fmt.Sprintf("the ranges of the pods of %s, %s, are inferred from the reports of %d node agents, "+
		"as no object of the cluster names them; give --pod-cidr %[1]s=RANGE[,RANGE] if they are wrong",
		f.Network.Name, strings.Join(names, ", "), agents)
	f.Network.PodsUnknown = nil
	return f, nil
}

// reportedBlocks returns the reported prefixes that may be blocks of pods, the most specific first. Single addresses come
// last, as they show no block.
func reportedBlocks(reports []v1alpha1.NodeNetwork) []netip.Prefix {
	out := lo.FlatMap(reports, func(r v1alpha1.NodeNetwork, _ int) []netip.Prefix {
		blocks := v1alpha1.Prefixes(slices.Concat(r.Status.PodCIDRs, r.Status.Routes))
		pods := lo.Map(addresses(r.Status.PodIPs), singleAddress)
		return append(lo.Filter(blocks, func(p netip.Prefix, _ int) bool { return p.Bits() >= minBlockBits }), pods...)
	})
	length := func(p netip.Prefix) int { return lo.Ternary(p.IsSingleIP(), 0, p.Bits()) }
	slices.SortFunc(out, func(a, b netip.Prefix) int { return length(b) - length(a) })
	return out
}

// previousPods returns the ranges by which peers know this cluster already, if there are pods in them.
func (f *Facts) previousPods() []netip.Prefix {
	known := lo.FlatMap(f.peerings(), func(p v1alpha1.Peering, _ int) []v1alpha1.CIDRMapping { return p.Spec.Local.Pods })
	return lo.FilterMap(known, func(m v1alpha1.CIDRMapping, _ int) (netip.Prefix, bool) {
		return m.Real.Prefix, slices.ContainsFunc(f.Network.PodAddrs, m.Real.Contains)
	})
}

// MaxPeers is the number of ledger entries for which there are interface names, VNIs and gateway addresses.
const MaxPeers = ipam.MaxPeering + 1

// NewLedger returns an empty ledger of the cluster with an ID.
func NewLedger(id string, internal netip.Prefix) *v1alpha1.ClusterNetwork {
	return manifests.ClusterNetwork(v1alpha1.ClusterNetworkSpec{ClusterID: id, InternalCIDR: v1alpha1.CIDR{Prefix: internal}})
}

// Allocation returns the peer's entry in the ledger, nil if there is none or no ledger.
func Allocation(cn *v1alpha1.ClusterNetwork, peerID string) *v1alpha1.PeerAllocation {
	peers := lo.ToSlicePtr(lo.FromPtr(cn).Spec.Peers)
	entry, _ := lo.Find(peers, func(a *v1alpha1.PeerAllocation) bool { return a.ClusterID == peerID })
	return entry
}

// NewAllocation returns an entry for a peer that has none, with the lowest free index and a unique name.
func NewAllocation(cn *v1alpha1.ClusterNetwork, peerID, peerName string) (v1alpha1.PeerAllocation, error) {
	names := lo.Map(cn.Spec.Peers, func(a v1alpha1.PeerAllocation, _ int) string { return a.Name })
	index := lowestFree(lo.Map(cn.Spec.Peers, func(a v1alpha1.PeerAllocation, _ int) int32 { return a.Index }))
	if index >= MaxPeers {
		return v1alpha1.PeerAllocation{}, fmt.Errorf("all %d entries are taken: unpeer another cluster first", MaxPeers)
	}
	base := ObjectName(peerName)
	if slices.Contains(names, base) { // a cluster of the same name, in another region or project
		base = ObjectName(placeInContext.ReplaceAllString(peerName, "$3$6-$2$4-$1$5"))
	}
	name := base
	for i := 2; slices.Contains(names, name); i++ {
		suffix := fmt.Sprintf("-%d", i)
		name = strings.TrimRight(base[:min(len(base), maxName-len(suffix))], "-") + suffix
	}
	return v1alpha1.PeerAllocation{ClusterID: peerID, Name: name, Index: index, Phase: v1alpha1.PeerReserved}, nil
}

// lowestFree returns the lowest index that is not taken.
func lowestFree(taken []int32) (index int32) {
	for slices.Contains(taken, index) {
		index++
	}
	return index
}

// maxName leaves room in the names of a Deployment's pods (63) for "gateway-", the plane, and two hashes.
const maxName = 30

var invalidNameChars = regexp.MustCompile(`[^a-z0-9]+`)

// contextOfProvider matches contexts that EKS, GKE, eksctl and OpenShift name. Only the groups tell the clusters of a user apart.
var contextOfProvider = regexp.MustCompile(`^(?:arn:.*/(.+)|gke_.*_([^_]+)|[^/@]*@(.+)\.eksctl\.io|[^/]+/([^/:]+):[0-9]+/[^/]*)$`)

// placeInContext matches the same contexts of EKS and GKE, with the region, the account, the project and the zone.
var placeInContext = regexp.MustCompile(`^(?:arn:[^:]*:[^:]*:([^:]*):([^:]*):.*/(.+)|gke_(.*)_([^_]*)_([^_]+))$`)

// ObjectName turns the user's name of a cluster, e.g. "kubernetes-admin@kubernetes", into a DNS label. It keeps the part by which
// clusters of one provider differ, and the beginning and the end of other long names.
func ObjectName(s string) string {
	s = contextOfProvider.ReplaceAllString(s, "$1$2$3$4")
	s = strings.Trim(invalidNameChars.ReplaceAllString(strings.ToLower(s), "-"), "-")
	if len(s) > maxName {
		const head = maxName / 3
		s = strings.TrimRight(s[:head], "-") + "-" + strings.TrimLeft(s[len(s)-(maxName-head-1):], "-")
	}
	return cmp.Or(s, "peer")
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

// ReplacePeer writes the identity of another cluster into a peer's active entry, and takes away the hosts that were exposed to the one before.
// The entry keeps both for a rollback. It reports whether that changes it.
func ReplacePeer(cn *v1alpha1.ClusterNetwork, peerID, identityKey string) bool {
	entry := Allocation(cn, peerID)
	if entry == nil || !entry.Active() || entry.IdentityKey == identityKey {
		return false
	}
	if entry.Previous == nil {
		entry.Previous = &v1alpha1.PeerRanges{Pods: entry.Pods, ExternalCIDR: entry.ExternalCIDR}
	}
	entry.Previous.IdentityKey, entry.Previous.Hosts = entry.IdentityKey, entry.Hosts
	entry.IdentityKey, entry.Hosts = identityKey, nil
	return true
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
