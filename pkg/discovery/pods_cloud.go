package discovery

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/liqonet/liqonet/pkg/ipam"
)

// awsPods concludes the pods' ranges where these have addresses of the VPC's
// subnets. The API does not tell the subnets. But no block of a VPC is larger than a
// /16, so the /16 around an address contains the block that it is from.
// (https://docs.aws.amazon.com/vpc/latest/userguide/vpc-cidr-blocks.html)
func (s *snapshot) awsPods(f Facts) (prefixFacts, error) {
	addrs, of := s.livePods(), "pods' addresses"
	custom := ""
	if ds := s.daemonSet(func(name string) bool { return name == "aws-node" }); ds != nil {
		custom, _ = env(ds.Spec.Template.Spec, "AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG")
	}
	// With custom networking pods are in other subnets than nodes are.
	if custom != "true" {
		of = "nodes' and pods' addresses"
		for _, n := range f.Nodes {
			addrs = append(addrs, n.InternalIPs...)
		}
	} else if len(s.custom[kindENIConfig]) > 0 {
		of += " (custom networking by ENIConfigs)"
	}
	// IPv6 clusters give each node a /80 of a subnet, which is a /64.
	blocks := map[netip.Prefix]netip.Prefix{}
	for _, a := range addrs {
		block, one := around(a, 16, 64), netip.PrefixFrom(a, a.BitLen())
		if old, ok := blocks[block]; ok {
			one = ipam.Cover(old, one)
		}
		blocks[block] = one
	}
	if len(blocks) == 0 {
		return nil, s.podsUnknown(f, "pods have addresses of the VPC's subnets, of which the API has none, and no pod runs yet")
	}
	var out prefixFacts
	for block, seen := range blocks {
		out = append(out, Fact[netip.Prefix]{
			ipam.Widen(seen, block.Bits(), valuesOf(f.ServiceCIDRs)),
			"from " + of + ": a VPC's block is never larger than a /16 (IPv6: a subnet is a /64); give --pod-cidr " + f.Name + "=RANGE for the exact subnets",
			true,
		})
	}
	return out, nil
}

// azurePods asks Azure's CNI. With an overlay or a subnet for pods there is a
// NodeNetworkConfig for each node. With the nodes' subnet the API has the VNet, as what
// must not be masqueraded.
func (s *snapshot) azurePods(f Facts) (prefixFacts, error) {
	var out prefixFacts
	for _, nnc := range s.custom[kindNodeNetwork] {
		list, _, _ := unstructured.NestedSlice(nnc.Object, "status", "networkContainers")
		for _, e := range list {
			nc, _ := e.(map[string]any)
			space, _ := nc["subnetAddressSpace"].(string)
			out = append(out, facts(parsePrefixes(space), "from subnetAddressSpace of NodeNetworkConfig "+nnc.GetNamespace()+"/"+nnc.GetName(), false)...)
		}
	}
	if len(out) > 0 {
		return distinct(out), nil
	}
	if out = s.masquerade(f); len(out) > 0 {
		return out, nil
	}
	if slices.ContainsFunc(f.Nodes, func(n Node) bool { return len(n.PodCIDRs) > 0 }) {
		return nil, nil
	}
	return nil, s.podsUnknown(f, "pods have addresses of the VNet's subnets, of which the API has none")
}

// masquerade returns those ranges that AKS's ip-masq-agent leaves as they are and
// that have pods, or nodes where no pod runs yet.
func (s *snapshot) masquerade(f Facts) prefixFacts {
	seen := s.livePods()
	if len(seen) == 0 {
		for _, n := range f.Nodes {
			seen = append(seen, n.InternalIPs...)
		}
	}
	for _, name := range masqConfigMaps() {
		docs := s.configMaps[name.String()]
		for _, key := range slices.Sorted(maps.Keys(docs)) {
			var c struct {
				NonMasqueradeCIDRs []string `json:"nonMasqueradeCIDRs"`
			}
			if yaml.Unmarshal([]byte(docs[key]), &c) != nil {
				continue
			}
			ps := slices.DeleteFunc(parsePrefixes(strings.Join(c.NonMasqueradeCIDRs, ",")), func(p netip.Prefix) bool {
				return !slices.ContainsFunc(seen, p.Contains)
			})
			if len(ps) > 0 {
				return facts(ps, "from nonMasqueradeCIDRs of ConfigMap "+name.String()+" that have pods", false)
			}
		}
	}
	return nil
}

// gkePods asks GKE's default network. Without it, the nodes' podCIDR are used.
func (s *snapshot) gkePods() prefixFacts {
	for _, o := range s.custom[kindGKEParams] {
		if o.GetName() != "default" {
			continue
		}
		list, _, _ := unstructured.NestedStringSlice(o.Object, "status", "podCIDRs", "cidrBlocks")
		ps := parsePrefixes(strings.Join(list, ","))
		if containAll(ps, s.nodePodRanges()) {
			return facts(ps, "from GKENetworkParamSet default", false)
		}
	}
	return nil
}

func (s *snapshot) nodePodRanges() []netip.Prefix {
	var out []netip.Prefix
	for _, n := range s.nodes {
		out = append(out, nodePodCIDRs(n)...)
	}
	return out
}

// sharedSpace says that an address is of RFC 6598, which is not public.
func sharedSpace(a netip.Addr) bool {
	return netip.MustParsePrefix("100.64.0.0/10").Contains(a)
}
