package lab

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/liqonet/liqonet/test/kit"
)

// completed is a specification as a lab has it.
func completed(t *testing.T, s ClusterSpec) ClusterSpec {
	t.Helper()
	got := kit.Must(complete([]ClusterSpec{s}, nil))(t)
	return got[0]
}

// Nodes have blocks of their own, which neither follow each other nor are what
// Kubernetes gave them.
func TestPodBlocks(t *testing.T) {
	for _, s := range []ClusterSpec{
		{Name: "a", Network: NetworkCalico, Workers: 3},
		{Name: "b", Network: NetworkCalico, Workers: 2, PodCIDR: netip.MustParsePrefix("10.244.128.0/24")},
		{Name: "c", Network: NetworkCalico, PodCIDR: netip.MustParsePrefix("10.0.0.0/10"), ServiceCIDR: netip.MustParsePrefix("172.30.0.0/16")},
	} {
		s = completed(t, s)
		blocks := s.podBlocks()
		seen := map[netip.Prefix]bool{}
		for n := range s.Workers {
			b := blocks[nth(s.NodeSubnet, firstWorker+n)]
			if b != b.Masked() || b.Bits() != blockBits || !s.PodCIDR.Contains(b.Addr()) || seen[b] {
				t.Errorf("%s: worker %d has %s of %s", s.Name, n, b, s.PodCIDR)
			}
			seen[b] = true
		}
		if u := s.unused(); u.Overlaps(s.PodCIDR) || u.Overlaps(s.ServiceCIDR) || u.Overlaps(s.NodeSubnet) {
			t.Errorf("%s: %s is called unused", s.Name, u)
		}
	}
}

// Where pods are in the nodes' subnet, no address is given out twice.
func TestSharedSubnet(t *testing.T) {
	for _, subnet := range []string{"10.1.0.0/22", "192.168.4.0/25", "172.20.0.0/16"} {
		s := completed(t, ClusterSpec{Name: "a", Network: NetworkEKS, Workers: 2, NodeSubnet: netip.MustParsePrefix(subnet)})
		taken := map[netip.Addr]bool{nth(s.NodeSubnet, 1): true, nth(s.NodeSubnet, 2): true}
		for n := range maxWorkers(s) {
			for _, a := range []netip.Addr{nth(s.NodeSubnet, firstWorker+n), s.eniAddress(nth(s.NodeSubnet, firstWorker+n))} {
				if taken[a] || s.sharedPods().Contains(a) || !s.NodeSubnet.Contains(a) {
					t.Errorf("%s: worker %d has %s", subnet, n, a)
				}
				taken[a] = true
			}
			if b := block(s.sharedPods(), sharedBits, n, false); !s.sharedPods().Contains(b.Addr()) || b != b.Masked() {
				t.Errorf("%s: pods of worker %d have %s", subnet, n, b)
			}
		}
	}
}

// What nodes and the API get is well-formed, with nothing left to fill in.
func TestPodNetworks(t *testing.T) {
	l := kit.Must(New(Options{}))(t)
	for _, network := range Networks() {
		s := completed(t, ClusterSpec{Name: "a", Network: network})
		n := l.podNetwork(s, "a-w1", nth(s.NodeSubnet, firstWorker))
		cni := n.CNITemplate + n.CNIConfig
		if !json.Valid([]byte(strings.ReplaceAll(cni, "{{.PodCIDR}}", "10.0.0.0/24"))) {
			t.Errorf("%s: CNI configuration: %s", network, cni)
		}
		text := cni
		for _, command := range n.Setup {
			text += strings.Join(command, " ") + "\n"
		}
		manifest, err := s.manifest()
		if err != nil || (manifest == nil) != (network == NetworkBridge || network == NetworkRouted) {
			t.Errorf("%s: manifest %q, %v", network, manifest, err)
		}
		if text += string(manifest); strings.Contains(text, "%!") || strings.Contains(text, "invalid") || strings.Contains(text, "<no value>") {
			t.Errorf("%s: %s", network, text)
		}
	}
}
