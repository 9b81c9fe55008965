package plan

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/test/kit"
)

// A peer whose nodes claim to have public addresses gets none of these. The plan says so, and so does the result, which
// includes the plan's notes.
func TestPublicRangesAreMapped(t *testing.T) {
	a, b := newFacts("a", []string{"10.1.0.0/16"}, "", ""), newFacts("b", []string{"8.8.0.0/16", "10.2.0.0/16"}, "", "")
	mapped := func(p *Plan) netip.Prefix {
		for _, m := range p.Clusters[0].Peering.Spec.Remote.Pods {
			if m.Real == cidr("8.8.0.0/16") {
				return m.Mapped.Prefix
			}
		}
		t.Fatalf("8.8.0.0/16 is not in %v", p.Clusters[0].Peering.Spec.Remote.Pods)
		return netip.Prefix{}
	}
	p, err := chooseBoth(a, b)
	kit.NoError(t, err)
	got := mapped(p)
	kit.ErrorIf(t, !ipam.IsPrivate(got), "8.8.0.0/16 of the peer is %s", got)
	i := slices.IndexFunc(p.Clusters[0].Ranges, func(r RangePlan) bool { return r.Real == prefix("8.8.0.0/16") })
	kit.ErrorIf(t, !strings.Contains(p.Clusters[0].Ranges[i].Reason, "8.8.0.0/16 is neither private"),
		"the reason is %q", p.Clusters[0].Ranges[i].Reason)
	notes := p.Clusters[0].Notes
	if len(notes) != 1 || !strings.Contains(notes[0], "8.8.0.0/16 -> ") || !strings.Contains(notes[0], "--map b=") || strings.Contains(notes[0], "10.2.0.0/16") || len(p.Clusters[1].Notes) > 0 {
		t.Errorf("the notes are %q and %q", notes, p.Clusters[1].Notes)
	}
	// A user who wants them anyway can ask for them.
	b.Overrides.Map = ipam.Mappings{{Real: prefix("8.8.0.0/16"), Mapped: prefix("8.8.0.0/16")}}
	p, err = chooseBoth(a, b)
	kit.ErrorIf(t, err != nil || mapped(p) != prefix("8.8.0.0/16") || len(p.Clusters[0].Notes) != 1, "with --map: %v, %v", p, err)
	b.Overrides.Map = nil
	// A working peering keeps its ranges; those of an interrupted older command are chosen again.
	for established, phase := range map[bool]v1alpha1.PeerPhase{true: v1alpha1.PeerActive, false: v1alpha1.PeerReserved} {
		a.facts.Ledger = NewLedger("", ipam.DefaultInternal())
		e := a.withEntry(b, 0)
		had(e, "8.8.0.0/16", "8.8.0.0/16")
		e.Phase = phase
		if p, err = chooseBoth(a, b); err != nil || (mapped(p) == prefix("8.8.0.0/16")) != established {
			t.Errorf("established %t: %s, %v", established, mapped(p), err)
		}
	}
}

func TestAPeerHasASlash8AtMost(t *testing.T) {
	a, b := newFacts("a", []string{"192.168.0.0/16"}, "", ""), newFacts("b", []string{"10.0.0.0/8", "172.16.0.0/12"}, "", "")
	_, err := chooseBoth(a, b)
	e := (*failure.Error)(nil)
	kit.FatalIf(t, !errors.As(err, &e) || e.Kind != failure.Ranges || e.Cluster != "a", "got %v", err)
	for _, want := range []string{"10.0.0.0/8, 172.16.0.0/12", "a /8", "--pod-cidr b="} {
		kit.ErrorIf(t, !strings.Contains(err.Error(), want), "%q is not in %q", want, err)
	}
	b.Overrides.Map = ipam.Mappings{{Real: prefix("172.16.0.0/12"), Mapped: prefix("172.16.0.0/12")}}
	_, err = chooseBoth(a, b)
	kit.ErrorIf(t, !errors.As(err, &e) || e.Kind != failure.Ranges, "with --map: %v", err)
}

// Addresses that the cluster's nodes call are not routed to a peer that is added later. A peer that has the range already
// keeps it.
func TestWhatNodesCallIsInUse(t *testing.T) {
	addr := netip.MustParseAddr("10.20.3.4")
	for what, setup := range map[string]func(f *input){
		"the API server":            func(f *input) { f.facts.APIServer = []netip.Addr{addr} },
		"the kubeconfig's server":   func(f *input) { f.facts.Kubeconfig = addr },
		"the same, written as IPv6": func(f *input) { f.facts.Kubeconfig = netip.AddrFrom16(addr.As16()) },
		"a name server": func(f *input) {
			n := report("n1", "10.80.0.1", nil)
			n.Status.Resolvers = []v1alpha1.IP{{}, {Addr: netip.MustParseAddr("192.0.2.53")}, {Addr: addr}}
			n.Status.Routes = []v1alpha1.CIDR{{}} // an unreadable value
			f.facts.Reports = []v1alpha1.NodeNetwork{n}
		},
	} {
		t.Run(what, func(t *testing.T) {
			a, b := newFacts("a", []string{"10.1.0.0/16"}, "", ""), newFacts("b", []string{"10.20.0.0/16"}, "", "")
			setup(a)
			e := a.withEntry(b, 0)
			_, err := allocate(a, b)
			kit.ErrorIf(t, err != nil || e.Pods[0].Mapped.Contains(addr), "b has %v, %v", e.Pods, err)
			if what == "the API server" {
				return // no command works if its API server is routed to the peer
			}
			had(e, "10.20.0.0/16", "10.20.0.0/16")
			changed, err := allocate(a, b)
			kit.ErrorIf(t, changed || err != nil, "the range of a peer has moved to %v, %v", e.Pods, err)
		})
	}
	a := newFacts("a", []string{"10.1.0.0/16"}, "", "")
	a.facts.Ledger, a.facts.Kubeconfig = nil, ipam.DefaultInternal().Addr().Next()
	internal, _, err := a.facts.InternalCIDR()
	kit.ErrorIf(t, err != nil || internal.Contains(a.facts.Kubeconfig), "the overlay has %s, %v", internal, err)
}

func TestExposedHostsAreInUse(t *testing.T) {
	for _, exposedTo := range []string{"b", "c"} {
		a, b := newFacts("a", []string{"10.1.0.0/16"}, "", ""), newFacts("b", []string{"10.20.0.0/16"}, "", "")
		host := v1alpha1.ExposedHost{Address: v1alpha1.IP{Addr: netip.MustParseAddr("10.20.3.4")}, Number: 7}
		a.withEntry(newFacts("c", nil, "", ""), 1)
		a.withEntry(b, 0)
		Allocation(a.facts.Ledger, "id-of-"+exposedTo).Hosts = []v1alpha1.ExposedHost{host}
		e := Allocation(a.facts.Ledger, b.facts.Network.ClusterID)
		_, err := allocate(a, b)
		kit.ErrorIf(t, err != nil || e.Pods[0].Mapped.Contains(host.Address.Addr), "exposed to %s: b has %v, %v", exposedTo, e.Pods, err)
		had(e, "10.20.0.0/16", "10.20.0.0/16")
		changed, err := allocate(a, b)
		kit.ErrorIf(t, changed || err != nil, "exposed to %s: the range of a peer has moved to %v, %v", exposedTo, e.Pods, err)
	}
}
