package plan

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/test/kit"
)

var compare = kit.Compare

// checkEntry returns an error if the ranges that a cluster allocated are wrong.
func checkEntry(s, peer *input, e *v1alpha1.PeerAllocation) error {
	used := s.facts.used(s.facts.Ledger, new(peer.offerTo(s)))
	ms := Mappings(e.Pods)
	for i, m := range ms {
		if err := m.Validate(); err != nil {
			return err
		}
		if slices.ContainsFunc(ms[:i], func(o ipam.Mapping) bool { return m.Real.Overlaps(o.Real) }) {
			return fmt.Errorf("%s is mapped twice", m.Real)
		}
	}
	if e.ExternalCIDR.Bits() != ipam.ExternalBits {
		return fmt.Errorf("external range %s is not a /%d", e.ExternalCIDR, ipam.ExternalBits)
	}
	ranges := append(ms.Mapped(), e.ExternalCIDR.Prefix)
	for i, p := range ranges {
		if err := overlapping(used, p); err != nil {
			return err
		}
		for _, o := range ranges[:i] {
			if p.Overlaps(o) {
				return fmt.Errorf("%s overlaps %s, both of the peer", p, o)
			}
		}
	}
	for _, f := range peer.facts.Network.PodCIDRs {
		if !slices.ContainsFunc(ms, func(m ipam.Mapping) bool { return m.Real.Overlaps(f.Value) && m.Real.Bits() <= f.Value.Bits() }) {
			return fmt.Errorf("pods %s have no mapping in %v", f.Value, ms)
		}
	}
	return nil
}

// had gives an allocation ranges of an earlier command.
func had(e *v1alpha1.PeerAllocation, real, mapped string) {
	e.Pods, e.ExternalCIDR = []v1alpha1.CIDRMapping{mapping(real, mapped)}, cidr("10.61.0.0/18")
}

// withRoutes gives the cluster a node that reports routes.
func (f *input) withRoutes(routes ...string) {
	n := report("n1", "10.80.0.1", nil)
	for _, r := range routes {
		n.Status.Routes = append(n.Status.Routes, cidr(r))
	}
	f.facts.Reports = []v1alpha1.NodeNetwork{n}
}

// withNodeIPs returns a Peering with a peer whose nodes have these addresses.
func withNodeIPs(addresses ...string) []v1alpha1.Peering {
	var p v1alpha1.Peering
	for _, a := range addresses {
		p.Spec.Remote.NodeIPs = append(p.Spec.Remote.NodeIPs, v1alpha1.IP{Addr: netip.MustParseAddr(a)})
	}
	return []v1alpha1.Peering{p}
}

func TestAllocate(t *testing.T) {
	const own, services, nodes = "10.10.0.0/16", "10.96.0.0/12", "172.18.0.0/16"
	tests := []struct {
		name string
		// pods and nodes are the peer's.
		pods  []string
		nodes string
		setup func(s, peer *input)
		// want are the mapped ranges; "" means any free one.
		want     []string
		external string
	}{
		{name: "disjoint ranges are kept", pods: []string{"10.20.0.0/16"}, want: []string{"10.20.0.0/16"}},
		{name: "equal ranges", pods: []string{own}, want: []string{""}},
		{name: "inside of the services", pods: []string{"10.100.4.0/24"}, want: []string{""}},
		{name: "the overlay's internal range", pods: []string{"10.80.16.0/20"}, want: []string{""}},
		{
			name: "another peer's pods", pods: []string{"10.20.0.0/16"}, want: []string{""},
			setup: func(s, _ *input) {
				had(s.withEntry(newFacts("other", nil, "", ""), 9), "10.244.0.0/17", "10.20.128.0/17")
			},
		},
		{
			name: "another peer's nodes", pods: []string{"10.20.0.0/16"}, want: []string{"10.20.0.0/16"},
			setup: func(s, _ *input) { s.withEntry(newFacts("other", nil, "", ""), 9).ExternalCIDR = cidr("10.70.0.0/18") },
		},
		{
			name: "a node's route", pods: []string{"10.20.0.0/16"}, want: []string{""},
			setup: func(s, _ *input) { s.withRoutes("10.20.30.0/24", "10.70.1.0/24") },
		},
		{name: "the peer's nodes have addresses in its pods' range", pods: []string{"10.20.0.0/16"}, nodes: "10.20.0.0/24", want: []string{""}},
		{
			name: "the peer's nodes have external addresses in its pods' range", pods: []string{"10.20.0.0/16"}, want: []string{""},
			setup: func(_, peer *input) {
				peer.facts.Network.Nodes = []Node{{Name: "n", ExternalIPs: []netip.Addr{netip.MustParseAddr("10.20.3.4")}}}
			},
		},
		{
			name: "another peer's nodes have addresses in its pods' range", pods: []string{"10.20.0.0/16"}, want: []string{""},
			setup: func(s, _ *input) { s.facts.OtherPeerings = withNodeIPs("10.20.3.4") },
		},
		{
			name: "another peer's nodes have come to have addresses in its pods' range", pods: []string{"10.20.0.0/16"}, want: []string{"10.20.0.0/16"}, external: "10.61.0.0/18",
			setup: func(s, _ *input) {
				had(&s.facts.Ledger.Spec.Peers[0], "10.20.0.0/16", "10.20.0.0/16")
				s.facts.OtherPeerings = withNodeIPs("10.20.3.4", "10.61.1.1")
			},
		},
		{
			name: "an own node outside of all ranges", pods: []string{"10.20.0.0/16"}, want: []string{""},
			setup: func(s, _ *input) {
				s.facts.Network.Nodes = append(s.facts.Network.Nodes, Node{Name: "far", InternalIPs: []netip.Addr{netip.MustParseAddr("10.20.3.4")}})
			},
		},
		{
			name: "the previous one is kept, though it no longer needs to be mapped", pods: []string{"10.20.0.0/16"}, want: []string{"10.33.0.0/16"}, external: "10.61.0.0/18",
			setup: func(s, _ *input) { had(&s.facts.Ledger.Spec.Peers[0], "10.20.0.0/16", "10.33.0.0/16") },
		},
		{
			name: "the previous one has become a conflict", pods: []string{"10.10.0.0/16"}, want: []string{""}, external: "10.61.0.0/18",
			setup: func(s, _ *input) {
				had(&s.facts.Ledger.Spec.Peers[0], "10.10.0.0/16", "10.33.0.0/16")
				s.withRoutes("10.33.7.0/24")
			},
		},
		{
			name: "the peer has other pods than before", pods: []string{"10.25.0.0/16"}, want: []string{"10.25.0.0/16"}, external: "10.61.0.0/18",
			setup: func(s, _ *input) { had(&s.facts.Ledger.Spec.Peers[0], "10.20.0.0/16", "10.33.0.0/16") },
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, peer := newFacts("a", []string{own}, services, nodes), newFacts("b", tt.pods, "", tt.nodes)
			s.withEntry(peer, 3)
			if tt.setup != nil {
				tt.setup(s, peer)
			}
			others := slices.Clone(s.facts.Ledger.Spec.Peers[1:])
			kit.Must(allocate(s, peer))(t)
			got := s.facts.Ledger.Spec.Peers[0]
			kit.CheckNoError(t, checkEntry(s, peer, &got))
			kit.FatalIf(t, len(got.Pods) != len(tt.want), "want %d mappings, got %v", len(tt.want), got.Pods)
			for i, want := range tt.want {
				kit.ErrorIf(t, want != "" && got.Pods[i].Mapped != cidr(want),
					"want %s mapped to %s, got %s", got.Pods[i].Real, want, got.Pods[i].Mapped)
				kit.ErrorIf(t, want == "" && got.Pods[i].Mapped == got.Pods[i].Real, "%s is in conflict and was kept", got.Pods[i].Real)
			}
			kit.ErrorIf(t, tt.external != "" && got.ExternalCIDR != cidr(tt.external), "want external %s, got %s", tt.external, got.ExternalCIDR)
			kit.ErrorIf(t, got.Index != 3 || got.ClusterID != peer.facts.Network.ClusterID || got.Name != "b",
				"the entry is no longer the claimed one: %+v", got)
			kit.Check(t, "other entries were changed", s.facts.Ledger.Spec.Peers[1:], others, compare)
			// The second time, nothing changes.
			before := s.facts.Ledger.DeepCopy()
			changed, err := allocate(s, peer)
			kit.ErrorIf(t, changed || err != nil, "the second time: changed %t, %v", changed, err)
			kit.Check(t, "the second time it changed", s.facts.Ledger, before, compare)
		})
	}
}

func TestAllocateErrors(t *testing.T) {
	t.Run("no room", func(t *testing.T) {
		messages := map[string]bool{}
		for range 20 {
			s, peer := newFacts("a", []string{"10.0.0.0/8", "172.16.0.0/12"}, "192.168.0.0/16", "203.0.113.0/24"), newFacts("b", []string{"10.1.0.0/16"}, "", "")
			s.withEntry(peer, 0)
			_, err := allocate(s, peer)
			kit.FatalIf(t, err == nil || kindOf(t, err) != failure.Ranges || !errors.Is(err, ipam.ErrExhausted),
				"want an error of kind Ranges that is ErrExhausted, got %v", err)
			e := s.facts.Ledger.Spec.Peers[0]
			kit.FatalIf(t, e.Pods != nil || e.ExternalCIDR.IsValid(), "the ledger was changed: %+v", e)
			messages[err.Error()] = true
		}
		kit.ErrorIf(t, len(messages) != 1, "the same input gives %d messages: %v", len(messages), messages)
	})
	t.Run("the entry is gone", func(t *testing.T) {
		s, peer := newFacts("a", []string{"10.1.0.0/16"}, "", ""), newFacts("b", []string{"10.2.0.0/16"}, "", "")
		_, err := allocate(s, peer)
		kit.FatalIf(t, err == nil, "no error")
	})
}

// randomFacts returns facts with random, often overlapping ranges.
func randomFacts(r *rand.Rand, name string) *input {
	random := func(minBits, maxBits int) string {
		bits := minBits + r.IntN(maxBits-minBits+1)
		p, _ := netip.AddrFrom4([4]byte{10, byte(r.IntN(24) * 8), byte(r.IntN(256)), 0}).Prefix(bits)
		return p.String()
	}
	pods := []string{random(14, 24)}
	for range r.IntN(3) {
		if p := random(18, 24); !prefix(p).Overlaps(prefix(pods[0])) {
			pods = append(pods, p)
		}
	}
	s := newFacts(name, pods, random(14, 22), random(16, 24))
	for i := range r.IntN(4) {
		kernel := &v1alpha1.KernelFacts{Geneve: r.IntN(4) > 0, VXLAN: true, WireGuard: r.IntN(4) > 0}
		n := report(fmt.Sprint("n", i), fmt.Sprintf("10.80.0.%d", i+1), kernel)
		n.Status.Routes = v1alpha1.NewCIDRs(prefix(random(16, 28)))
		s.facts.Reports = append(s.facts.Reports, n)
	}
	s.facts.Ledger = nil
	internal, _, err := s.facts.InternalCIDR()
	if err != nil {
		panic(err)
	}
	s.facts.Ledger = NewLedger("", internal)
	for i := range r.IntN(4) {
		o := newFacts(fmt.Sprint(name, "-other-", i), []string{random(16, 24)}, "", "")
		s.withEntry(o, int32(i))
		if _, err := allocate(s, o); err != nil {
			panic(err)
		}
	}
	lb := []string{Yes, No, ""}[r.IntN(3)]
	s.facts.Network.LoadBalancers.Value = lb
	return s
}

// TestPlanProperties plans random pairs of clusters and checks that both halves of the plan match.
func TestPlanProperties(t *testing.T) {
	rounds := 400
	if testing.Short() {
		rounds = 100
	}
	for seed := range rounds {
		r := rand.New(rand.NewPCG(uint64(seed), 1))
		a, b := randomFacts(r, "a"), randomFacts(r, "b")
		a.withEntry(b, int32(r.IntN(MaxPeers)))
		b.withEntry(a, int32(r.IntN(MaxPeers)))
		for _, x := range [][2]*input{{a, b}, {b, a}} {
			_, err := allocate(x[0], x[1])
			kit.FatalIf(t, err != nil, "seed %d: %v", seed, err)
			err = checkEntry(x[0], x[1], Allocation(x[0].facts.Ledger, x[1].facts.Network.ClusterID))
			kit.FatalIf(t, err != nil, "seed %d: %v", seed, err)
		}
		p, err := chooseBoth(a, b)
		kit.FatalIf(t, err != nil, "seed %d: %v", seed, err)
		sa, sb := p.Clusters[0].Peering.Spec, p.Clusters[1].Peering.Spec
		agree(t, seed, a, b, sa, sb)
		agree(t, seed, b, a, sb, sa)
		if t.Failed() {
			return
		}
	}
}

// agree fails the test unless a's Peering matches b's.
func agree(t *testing.T, seed int, a, b *input, sa, sb v1alpha1.PeeringSpec) {
	t.Helper()
	if diff := cmp.Diff(sa.Remote.Pods, sb.Local.Pods, compare); diff != "" {
		t.Errorf("seed %d: what %s calls remote is not what %s calls local:\n%s", seed, a.facts.Network.Name, b.facts.Network.Name, diff)
	}
	kit.ErrorIf(t, sa.Remote.ExternalCIDR != sb.Local.ExternalCIDR,
		"seed %d: external ranges differ: %s, %s", seed, sa.Remote.ExternalCIDR, sb.Local.ExternalCIDR)
	if sa.Remote.ClusterID != b.facts.Network.ClusterID || sa.Remote.Name != b.facts.Network.Name || sa.Index != Allocation(a.facts.Ledger, b.facts.Network.ClusterID).Index {
		t.Errorf("seed %d: not the peer: %+v", seed, sa.Remote)
	}
	kit.ErrorIf(t, sa.Local.InternalCIDR != a.facts.Ledger.Spec.InternalCIDR,
		"seed %d: internal range is %s, want %s", seed, sa.Local.InternalCIDR, a.facts.Ledger.Spec.InternalCIDR)
	kit.ErrorIf(t, len(sa.Planes) != 1 || sa.Planes[0].Index != 0 || sa.Planes[0].RemotePublicKey != "public key of "+b.facts.Network.Name,
		"seed %d: plane is %+v", seed, sa.Planes)
	kit.ErrorIf(t, sa.Planes[0].Role == sb.Planes[0].Role, "seed %d: both are a %s", seed, sa.Planes[0].Role)
	// The address that b's gateway will use, as a knows it.
	number := kit.Must(ipam.GatewayNumber(int(sb.Index), 0))(t)
	own := kit.Must(ipam.GatewayAddr(sb.Local.InternalCIDR.Prefix, number))(t)
	m := kit.Must(ipam.ExternalMapping(sb.Local.InternalCIDR.Prefix, sb.Local.ExternalCIDR.Prefix))(t)
	if want, _ := m.Translate(own); sa.Planes[0].RemoteAddress.Addr != want {
		t.Errorf("seed %d: gateway of %s is known as %s, want %s", seed, b.facts.Network.Name, sa.Planes[0].RemoteAddress, want)
	}
	p := v1alpha1.Peering{Spec: sa}
	if !slices.ContainsFunc(p.RemoteRanges(), func(r netip.Prefix) bool { return r.Contains(sa.Planes[0].RemoteAddress.Addr) }) {
		t.Errorf("seed %d: %s is in none of %v", seed, sa.Planes[0].RemoteAddress, p.RemoteRanges())
	}
}

func TestPlanPeering(t *testing.T) {
	a, b := newFacts("a", []string{"10.1.0.0/16"}, "10.96.0.0/12", ""), newFacts("b", []string{"10.1.0.0/16"}, "", "")
	b.facts.Ledger.Spec.InternalCIDR = cidr("10.81.32.0/19")
	*a.withEntry(b, 7) = v1alpha1.PeerAllocation{
		ClusterID: b.facts.Network.ClusterID, Name: "b", Index: 7, Pods: []v1alpha1.CIDRMapping{mapping("10.1.0.0/16", "10.2.0.0/16")}, ExternalCIDR: cidr("10.70.64.0/18"),
	}
	*b.withEntry(a, 2) = v1alpha1.PeerAllocation{
		ClusterID: a.facts.Network.ClusterID, Name: "a", Index: 2, Pods: []v1alpha1.CIDRMapping{mapping("10.1.0.0/16", "10.3.0.0/16")}, ExternalCIDR: cidr("10.70.128.0/18"),
	}
	a.Overrides.WireGuard, b.Overrides.Endpoints = "UserSpace", []string{"192.0.2.1:51840"}
	a.Overrides.Overlay = "VXLAN"
	a.facts.Planes, b.facts.Planes = nil, nil
	plan := func() *ClusterPlan {
		t.Helper()
		p := kit.Must(chooseBoth(a, b))(t)
		return &p.Clusters[0]
	}
	want := v1alpha1.PeeringSpec{
		Index: 7,
		Local: v1alpha1.LocalNetwork{
			ClusterID: "id-of-a", Pods: []v1alpha1.CIDRMapping{mapping("10.1.0.0/16", "10.3.0.0/16")}, InternalCIDR: cidr("10.80.0.0/19"), ExternalCIDR: cidr("10.70.128.0/18"),
			ServiceCIDRs: []v1alpha1.CIDR{cidr("10.96.0.0/12")},
		},
		Remote: v1alpha1.RemoteNetwork{
			ClusterID: b.facts.Network.ClusterID, Name: "b", Pods: []v1alpha1.CIDRMapping{mapping("10.1.0.0/16", "10.2.0.0/16")}, ExternalCIDR: cidr("10.70.64.0/18"),
		},
		Overlay: "VXLAN", PlanesMode: v1alpha1.PlanesSingle,
		Planes: []v1alpha1.Plane{{
			Role: v1alpha1.Client, WireGuard: "UserSpace", KeyGeneration: 1, OverlayKeyGeneration: 1, PresharedKey: v1alpha1.PresharedKey{Generation: 1},
			// b's gateway 2*4+0 from the end of 10.81.32.0/19 is 10.81.63.246.
			RemoteAddress: v1alpha1.IP{Addr: netip.MustParseAddr("10.70.95.246")},
			Endpoints:     []string{"192.0.2.1:51840"},
		}},
	}
	c := plan()
	kit.Check(t, "Spec", c.Peering.Spec, want, compare)
	keys := []string{"fingerprint of plane 0: [(of the key in Secret liqonet-system/gateway-b-0-psk-1)]", "remotePublicKey of plane 0: [(public key in Secret liqonet-system/gateway-a-0-1 of b)]"}
	kit.Check(t, "Unknown", c.Unknown(), keys)
	t.Run("the name stays when the peer is renamed", func(t *testing.T) {
		a.facts.Existing = &v1alpha1.Peering{Spec: want}
		a.facts.Existing.Spec.Remote.Name = "once"
		kit.Check(t, "plan", plan().Peering.Spec.Remote.Name, "once")
	})
}

func TestDecideRoles(t *testing.T) {
	as := func(r v1alpha1.Role) *v1alpha1.Peering {
		return &v1alpha1.Peering{Spec: v1alpha1.PeeringSpec{Overlay: "VXLAN", Planes: []v1alpha1.Plane{{Role: r, WireGuard: "Kernel"}}}}
	}
	tests := []struct {
		name                 string
		lbA, lbB             string
		existingA, existingB *v1alpha1.Peering
		aIsServer            bool
	}{
		{name: "by ID", aIsServer: true},
		{name: "a has load balancers", lbA: Yes, lbB: No, aIsServer: true},
		{name: "b has load balancers", lbA: "", lbB: Yes},
		{name: "a was the client, and has load balancers now", lbA: Yes, existingA: as(v1alpha1.Client), existingB: as(v1alpha1.Server)},
		{name: "b was the client, and has load balancers now", lbB: Yes, existingB: as(v1alpha1.Client), aIsServer: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, b := newFacts("a", nil, "", ""), newFacts("b", nil, "", "")
			a.facts.Network.LoadBalancers.Value, b.facts.Network.LoadBalancers.Value = tt.lbA, tt.lbB
			a.facts.Existing, b.facts.Existing = tt.existingA, tt.existingB
			got := kit.Must(decideBoth(a, b))(t)
			if is := got[0].roles[0].Value.String() == string(v1alpha1.Server); is != tt.aIsServer || got[0].roles[0].Value.String() == got[1].roles[0].Value.String() {
				t.Errorf("a is %s, b is %s", got[0].roles[0].Value.String(), got[1].roles[0].Value.String())
			}
		})
	}
}

// A cluster whose nodes are reachable from outside becomes the server, rather than one about which nothing is known.
func TestReachOfNodes(t *testing.T) {
	node := func(internal, external string) Node {
		n := Node{Name: "n", Ready: true, Schedulable: true, InternalIPs: []netip.Addr{netip.MustParseAddr(internal)}}
		if external != "" {
			n.ExternalIPs = []netip.Addr{netip.MustParseAddr(external)}
		}
		return n
	}
	cordoned, notReady := node("203.0.113.2", ""), node("203.0.113.2", "")
	cordoned.Schedulable, notReady.Ready = false, false
	for _, tt := range []struct {
		name   string
		node   Node
		reason string
	}{
		{"external", node("10.0.0.2", "203.0.113.2"), "node n has 203.0.113.2"},
		{"public", node("203.0.113.2", ""), "node n has 203.0.113.2"},
		{"private", node("10.0.0.2", ""), ""},
		{"shared (RFC 6598)", node("100.64.0.2", ""), ""},
		{"cordoned", cordoned, ""},
		{"not ready", notReady, ""},
	} {
		f := newFacts("a", nil, "", "")
		f.facts.Network.Nodes = []Node{tt.node}
		score, reason := f.facts.Network.reachability()
		kit.ErrorIf(t, reason != tt.reason || (score > 0) != (reason != ""), "%s: got %d, %q", tt.name, score, reason)
	}
}

func kernels(k ...v1alpha1.KernelFacts) []v1alpha1.NodeNetwork {
	var out []v1alpha1.NodeNetwork
	for i := range k {
		out = append(out, report(fmt.Sprint("n", i+1), fmt.Sprintf("10.80.0.%d", i+1), &k[i]))
	}
	return out
}

func TestChooseOverlay(t *testing.T) {
	type kernel = v1alpha1.KernelFacts
	both, geneve, vxlan, none := kernel{Geneve: true, VXLAN: true}, kernel{Geneve: true}, kernel{VXLAN: true}, kernel{}
	tests := []struct {
		name  string
		nodes []kernel
		// Results by requested kind; "" means an error that names the nodes.
		auto, geneve, vxlan v1alpha1.OverlayKind
		// bad are the nodes that errors name.
		bad string
	}{
		{name: "no reports", auto: "Geneve", geneve: "Geneve", vxlan: "VXLAN"},
		{name: "vxlan only", nodes: []kernel{vxlan}, auto: "VXLAN", vxlan: "VXLAN", bad: "n1"},
		{name: "one node cannot do geneve", nodes: []kernel{both, vxlan}, auto: "VXLAN", vxlan: "VXLAN", bad: "n2"},
		{name: "nothing in common", nodes: []kernel{geneve, vxlan}, bad: ""},
		{name: "none can do either", nodes: []kernel{none, none}, bad: "n1, n2"},
	}
	for _, tt := range tests {
		for wish, want := range map[string]v1alpha1.OverlayKind{"auto": tt.auto, "Geneve": tt.geneve, "VXLAN": tt.vxlan} {
			t.Run(tt.name+"/"+wish, func(t *testing.T) {
				s := newFacts("a", nil, "", "")
				s.facts.Reports = kernels(tt.nodes...)
				s.Overrides.Overlay = wish
				got, err := chooseOverlay(s)
				checkChoice(t, string(want), got.Value.String(), err, tt.bad)
			})
		}
	}
}

// Links of both kinds would need the same port of the nodes, so the other peerings decide the kind.
func TestChooseOverlayOfOthers(t *testing.T) {
	geneve, vxlan := v1alpha1.OverlayKind("Geneve"), v1alpha1.OverlayKind("VXLAN")
	both, old := v1alpha1.KernelFacts{Geneve: true, VXLAN: true}, v1alpha1.KernelFacts{VXLAN: true}
	for _, tt := range []struct {
		name, wish string
		nodes      []v1alpha1.NodeNetwork
		existing   v1alpha1.OverlayKind
		others     v1alpha1.OverlayKind
		want, bad  string
	}{
		{name: "not the preferred one", wish: "auto", nodes: kernels(both), others: vxlan, want: "VXLAN"},
		{name: "nothing reported", wish: "auto", others: vxlan, want: "VXLAN"},
		{name: "given otherwise", wish: "Geneve", nodes: kernels(both), others: vxlan, bad: "other"},
		{name: "of two, one given otherwise", wish: "VXLAN", nodes: kernels(both), existing: geneve, others: geneve, bad: "other"},
		{name: "a node that cannot do it", wish: "auto", nodes: kernels(both, old), others: geneve, bad: "n2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newFacts("a", nil, "", "")
			s.facts.Reports = tt.nodes
			if tt.existing != "" {
				s.facts.Existing = &v1alpha1.Peering{Spec: v1alpha1.PeeringSpec{Overlay: tt.existing}}
			}
			s.facts.OtherPeerings = []v1alpha1.Peering{{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Spec: v1alpha1.PeeringSpec{Overlay: tt.others}}}
			s.Overrides.Overlay = tt.wish
			got, err := chooseOverlay(s)
			checkChoice(t, tt.want, got.Value.String(), err, tt.bad)
		})
	}
}

func TestChooseWireGuard(t *testing.T) {
	yes, no := v1alpha1.KernelFacts{WireGuard: true}, v1alpha1.KernelFacts{}
	tests := []struct {
		name         string
		nodes        []v1alpha1.KernelFacts
		auto, kernel v1alpha1.WireGuardBackend
	}{
		{name: "no reports", auto: "Kernel", kernel: "Kernel"},
		{name: "all", nodes: []v1alpha1.KernelFacts{yes, yes}, auto: "Kernel", kernel: "Kernel"},
		{name: "one of two", nodes: []v1alpha1.KernelFacts{yes, no}, auto: "UserSpace"},
		{name: "none", nodes: []v1alpha1.KernelFacts{no}, auto: "UserSpace"},
	}
	for _, tt := range tests {
		for wish, want := range map[string]v1alpha1.WireGuardBackend{"auto": tt.auto, "Kernel": tt.kernel, "UserSpace": "UserSpace"} {
			t.Run(tt.name+"/"+wish, func(t *testing.T) {
				s := newFacts("a", nil, "", "")
				s.facts.Reports = kernels(tt.nodes...)
				s.Overrides.WireGuard = wish
				got, err := chooseWireGuard(s)
				checkChoice(t, string(want), got.Value.String(), err, fmt.Sprint("n", len(tt.nodes)))
			})
		}
	}
}

// plainly is a decision without its reasons.
type plainly struct{ role, overlay, wireguard, service string }

func (d decisions) plainly() plainly {
	return plainly{d.roles[0].Value.String(), d.overlay.Value.String(), d.wireguard.Value.String(), d.serviceType.Value.String()}
}

// TestChooseAgain checks that earlier decisions are kept if still possible.
func TestChooseAgain(t *testing.T) {
	type kernel = v1alpha1.KernelFacts
	tests := []struct {
		name      string
		kernel    kernel
		overlay   v1alpha1.OverlayKind
		wireguard v1alpha1.WireGuardBackend
		service   corev1.ServiceType
		options   Overrides
		want      plainly
	}{
		{
			name: "kept, though another would be chosen now", kernel: kernel{Geneve: true, VXLAN: true, WireGuard: true},
			overlay: "VXLAN", wireguard: "UserSpace", service: "ClusterIP", want: plainly{"Client", "VXLAN", "UserSpace", "ClusterIP"},
		},
		{
			name: "no longer possible", kernel: kernel{Geneve: true},
			overlay: "VXLAN", wireguard: "Kernel", service: "LoadBalancer", want: plainly{"Client", "Geneve", "UserSpace", "LoadBalancer"},
		},
		{
			name: "overridden", kernel: kernel{Geneve: true, VXLAN: true, WireGuard: true}, overlay: "VXLAN", wireguard: "UserSpace", service: "ClusterIP",
			options: Overrides{Overlay: "Geneve", WireGuard: "Kernel", ServiceType: "NodePort"}, want: plainly{"Client", "Geneve", "Kernel", "NodePort"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, b := newFacts("a", nil, "", ""), newFacts("b", nil, "", "")
			a.facts.Reports, a.Overrides = kernels(tt.kernel), tt.options
			a.facts.Service = &corev1.Service{Spec: corev1.ServiceSpec{Type: tt.service}}
			b.facts.Reports = kernels(kernel{Geneve: true, VXLAN: true, WireGuard: true})
			a.facts.Existing = &v1alpha1.Peering{Spec: v1alpha1.PeeringSpec{Overlay: tt.overlay, Planes: []v1alpha1.Plane{{Role: "Client", WireGuard: tt.wireguard}}}}
			got, err := decideBoth(a, b)
			kit.ErrorIf(t, err != nil || got[0].plainly() != tt.want, "want %+v, got %+v, %v", tt.want, got, err)
		})
	}
}

// A backend that a kernel is known to lack is refused for either cluster, with an error that names the cluster.
func TestCheck(t *testing.T) {
	for wish, o := range map[string]Overrides{"geneve": {Overlay: "Geneve"}, "wireguard": {WireGuard: "Kernel"}} {
		for i, name := range []string{"a", "b"} {
			both := [2]*input{newFacts("a", nil, "", ""), newFacts("b", nil, "", "")}
			both[0].Overrides, both[1].Overrides = o, o
			both[i].facts.Reports = kernels(v1alpha1.KernelFacts{Geneve: true, VXLAN: true, WireGuard: true}, v1alpha1.KernelFacts{VXLAN: true})
			err := check(both[0], both[1])
			e := (*failure.Error)(nil)
			kit.ErrorIf(t, !errors.As(err, &e) || e.Kind != failure.Usage || e.Cluster != name || !strings.Contains(err.Error(), wish+" on nodes n2"),
				"%s, which node n2 of %s lacks: %v", wish, name, err)
		}
	}
}

func checkChoice(t *testing.T, want, got string, err error, bad string) {
	t.Helper()
	kit.FatalIf(t, want != got || (err != nil) != (want == ""), "want %q, got %q, %v", want, got, err)
	if err == nil {
		return
	}
	e := (*failure.Error)(nil)
	kit.ErrorIf(t, !errors.As(err, &e) || e.Kind != failure.Usage || e.Hint == "" || e.Cluster != "a" || !strings.Contains(err.Error(), bad),
		"want a usage error with a hint that names %q, got %#v", bad, err)
}

func TestChooseServiceType(t *testing.T) {
	tests := []struct {
		wish string
		lb   string
		want corev1.ServiceType
	}{
		{"auto", "", corev1.ServiceTypeNodePort},
		{"auto", Yes, corev1.ServiceTypeLoadBalancer},
		{"LoadBalancer", No, corev1.ServiceTypeLoadBalancer},
		{"ClusterIP", Yes, corev1.ServiceTypeClusterIP},
	}
	for _, tt := range tests {
		s := newFacts("a", nil, "", "")
		s.facts.Network.LoadBalancers = Fact[string]{Value: tt.lb, Source: "the test"}
		s.Overrides.ServiceType = tt.wish
		if got := chooseServiceType(s); got.Value.String() != string(tt.want) || got.Reason == "" {
			t.Errorf("wish %q, load balancers %q: want %s, got %+v", tt.wish, tt.lb, tt.want, got)
		}
	}
}

func TestServiceEndpoints(t *testing.T) {
	addr := netip.MustParseAddr
	nodes := []Node{
		{Name: "n1", Ready: true, InternalIPs: []netip.Addr{addr("172.18.0.2"), addr("fd00::2")}, ExternalIPs: []netip.Addr{addr("203.0.113.2")}},
		{Name: "n2", InternalIPs: []netip.Addr{addr("172.18.0.3")}},
		{Name: "n3", Ready: true, InternalIPs: []netip.Addr{addr("172.18.0.4")}},
	}
	service := func(kind corev1.ServiceType, nodePort int32, ingress ...corev1.LoadBalancerIngress) *corev1.Service {
		return &corev1.Service{
			Spec:   corev1.ServiceSpec{Type: kind, ClusterIP: "10.96.0.7", Ports: []corev1.ServicePort{{Name: v1alpha1.PlanePortName(0), Port: 51840, NodePort: nodePort}, {Name: v1alpha1.PlanePortName(1), Port: 51841}}},
			Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: ingress}},
		}
	}
	noIP := service(corev1.ServiceTypeClusterIP, 0)
	noIP.Spec.ClusterIP = ""
	tests := []struct {
		name  string
		svc   *corev1.Service
		nodes []Node
		want  []string
	}{
		{
			name: "node port: ready nodes, internal addresses first", svc: service(corev1.ServiceTypeNodePort, 30001), nodes: nodes,
			want: []string{"172.18.0.2:30001", "[fd00::2]:30001", "172.18.0.4:30001", "203.0.113.2:30001"},
		},
		{name: "node port that is not given yet", svc: service(corev1.ServiceTypeNodePort, 0), nodes: nodes},
		{name: "no node is ready", svc: service(corev1.ServiceTypeNodePort, 30001), nodes: nodes[1:2]},
		{name: "load balancer without an address", svc: service(corev1.ServiceTypeLoadBalancer, 30001), nodes: nodes},
		{
			name: "load balancer", svc: service(corev1.ServiceTypeLoadBalancer, 30001, corev1.LoadBalancerIngress{IP: "203.0.113.9"},
				corev1.LoadBalancerIngress{Hostname: "lb.example.com"}, corev1.LoadBalancerIngress{IP: "2001:db8::9"}), nodes: nodes,
			want: []string{"203.0.113.9:51840", "lb.example.com:51840", "[2001:db8::9]:51840"},
		},
		{name: "cluster IP", svc: service(corev1.ServiceTypeClusterIP, 0), nodes: nodes, want: []string{"10.96.0.7:51840"}},
		{name: "cluster IP that is not given yet", svc: noIP, nodes: nodes},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			kit.Check(t, "ServiceEndpoints", ServiceEndpoints(tt.svc, 0, tt.nodes), tt.want, compare)
		})
	}
	t.Run("of many nodes, external addresses are among them", func(t *testing.T) {
		many := newFacts("a", nil, "", "").withNodes(16).facts.Network.Nodes
		for i := range many {
			many[i].ExternalIPs = nodes[0].ExternalIPs
		}
		got := ServiceEndpoints(service(corev1.ServiceTypeNodePort, 30001), 0, many)
		kit.ErrorIf(t, !slices.Contains(got, "203.0.113.2:30001"), "only %v", got)
	})
}

// Nodes without agents do not count as unreported, and no NodeNetwork is planned for them.
func TestNothingIsPlannedForNodesWithoutAgents(t *testing.T) {
	f := newFacts("a", []string{"10.1.0.0/16"}, "", "172.18.0.0/16")
	f.facts.Network.Nodes = append(f.facts.Network.Nodes, Node{Name: "fargate", Ready: true})
	got := f.facts.Unreported()
	kit.ErrorIf(t, !slices.Equal(got, []string{"a-1"}), "unreported are %v", got)
	var nodes []string
	for _, o := range nodeAgentObjects(&f.facts, ipam.DefaultInternal()) {
		nodes = append(nodes, o.Kind+" by "+o.Creator)
	}
	kit.ErrorIf(t, !slices.Equal(nodes, []string{"NodeNetwork by the agent of node a-1", "Lease by the agent of node a-1"}),
		"planned are %v", nodes)
}
