package plan

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/version"
	"github.com/liqonet/liqonet/test/kit"
)

// withNodes gives the cluster n ready nodes.
func (f *input) withNodes(n int) *input {
	f.facts.Network.Nodes = nil
	for i := range n {
		f.facts.Network.Nodes = append(f.facts.Network.Nodes, Node{
			Name: fmt.Sprint("n", i), Ready: true, RunsAgents: true, InternalIPs: []netip.Addr{netip.AddrFrom4([4]byte{172, 18, byte(i >> 8), byte(i)})},
		})
	}
	return f
}

// The plan, and so the result, has notes about everything that does not fit into a Peering.
func TestWhatIsLeftOutIsSaid(t *testing.T) {
	for _, tt := range []struct {
		nodes int
		want  []string
	}{
		{maxEndpoints, nil},
		{maxEndpoints + 4, []string{"4 of 20 endpoints of a are left out"}},
		{maxNodeIPs + 1, []string{"4081 of 4097 endpoints of a are left out", "1 of 4097 node addresses of a are left out"}},
	} {
		a, b := newFacts("a", []string{"10.1.0.0/16"}, "", "").withNodes(tt.nodes), newFacts("b", []string{"10.2.0.0/16"}, "", "")
		a.Overrides.Server = true
		p := kit.Must(chooseBoth(a, b))(t)
		got := p.Clusters[0].Notes
		kit.FatalIf(t, len(got) != len(tt.want), "%d nodes: got %q, want %q", tt.nodes, got, tt.want)
		for i := range got {
			kit.ErrorIf(t, !strings.Contains(got[i], tt.want[i]), "%d nodes: got %q, want %q in it", tt.nodes, got[i], tt.want[i])
		}
	}
}

// A cluster whose pods have only IPv6 addresses is refused during planning, before anything is installed.
func TestIPv6Only(t *testing.T) {
	for _, v6 := range []string{"a", "b"} {
		a, b := newFacts("a", []string{"10.1.0.0/16"}, "", ""), newFacts("b", []string{"10.2.0.0/16"}, "", "")
		for _, f := range []*input{a, b} {
			if f.facts.Network.Name == v6 {
				f.facts.Network.PodCIDRs = facts("fd00:10:244::/56")
			}
		}
		_, err := makeBoth(a, b)
		if e := (*failure.Error)(nil); !errors.As(err, &e) || e.Kind != failure.Usage || e.Cluster != v6 || !strings.Contains(err.Error(), "IPv6 addresses only") {
			t.Errorf("got %v", err)
		}
	}
	dual, b := newFacts("a", []string{"10.1.0.0/16", "fd00:10:244::/56"}, "", ""), newFacts("b", []string{"10.2.0.0/16"}, "", "")
	_, err := chooseBoth(dual, b)
	kit.ErrorIf(t, err != nil, "a dual-stack cluster is refused: %v", err)
}

// The ledger, the gateways' numbers and the schema have the same limit of peerings.
func TestOneLimitOfPeerings(t *testing.T) {
	crds := manifests.CRDs()
	for _, crd := range crds {
		spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
		switch crd.Spec.Names.Kind {
		case "ClusterNetwork":
			peers := spec.Properties["peers"]
			if *peers.MaxItems != MaxPeers || *peers.Items.Schema.Properties["index"].Maximum != ipam.MaxPeering {
				t.Errorf("the ledger's schema has %d entries, and indexes up to %v", *peers.MaxItems, *peers.Items.Schema.Properties["index"].Maximum)
			}
		case "Peering":
			kit.Check(t, "the schema of a Peering has indexes up to", *spec.Properties["index"].Maximum, ipam.MaxPeering)
		}
	}
	kit.ErrorIf(t, MaxPeers != 511 || ipam.MaxPeering != 510, "%d peerings, with indexes up to %d", MaxPeers, ipam.MaxPeering)
	_, err := ipam.GatewayNumber(ipam.MaxPeering+1, 0)
	kit.ErrorIf(t, err == nil, "an index beyond the limit has a gateway's number")
	n, err := ipam.GatewayNumber(ipam.MaxPeering, ipam.Planes-1)
	kit.ErrorIf(t, err != nil || n > ipam.MaxGateway, "the last index has the gateway's number %d, %v", n, err)
}

func TestVersionsAreNotMixed(t *testing.T) {
	digest := "mirror/agent@sha256:" + strings.Repeat("0", 64)
	for _, tt := range []struct {
		name, command, installed, image, given, want string
	}{
		{name: "nothing is installed", command: "v0.2.0", want: version.AgentImage("v0.2.0")},
		{name: "the same version keeps its image", command: "v0.2.0", installed: "v0.2.0", image: "mirror/agent:1", want: "mirror/agent:1"},
		{name: "another digest of the same version", command: "v0.2.0", installed: "v0.2.0", image: version.AgentImage("v0.2.0"), given: digest, want: digest},
		{name: "agents of an older version from a mirror stay", command: "v0.2.0", installed: "v0.1.0", image: "mirror/agent:1", want: "mirror/agent:1"},
		{name: "another image replaces agents of an older version", command: "v0.2.0", installed: "v0.1.0", image: "mirror/agent:1", given: "mirror/agent:2", want: "mirror/agent:2"},
		{name: "a build whose age is not known", command: "0123abc", installed: "456def0", image: version.AgentImage("456def0"), want: version.AgentImage("456def0")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := newFacts("a", []string{"10.1.0.0/16"}, "", ""), newFacts("b", []string{"10.2.0.0/16"}, "", "")
			b.Version, b.DefaultImage, b.Overrides.Image = tt.command, version.AgentImage(tt.command), tt.given
			b.facts.Installed = manifests.Agents{Image: tt.image, Version: tt.installed}
			p, err := chooseBoth(a, b)
			kit.FatalIf(t, err != nil || p.Clusters[1].NodeAgents.Agents.Image != tt.want, "got image %v, %v", p, err)
		})
	}
}
