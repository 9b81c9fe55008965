package discovery

import (
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/liqonet/liqonet/pkg/ipam"
)

// ciliumPods asks Cilium by the kind of its IPAM.
func (s *snapshot) ciliumPods(f Facts) (prefixFacts, error) {
	const of = "ConfigMap kube-system/cilium-config"
	config := s.configMaps["kube-system/cilium-config"]
	switch config["ipam"] {
	case "kubernetes":
		return nil, nil
	case "multi-pool":
		return s.ciliumPools(), nil
	case "eni":
		if out := s.ciliumVPCs(); len(out) > 0 {
			return out, nil
		}
		return s.awsPods(f)
	case "azure", "alibabacloud", "delegated-plugin", "crd":
		return nil, s.podsUnknown(f, "Cilium takes the pods' addresses from "+config["ipam"])
	}
	if len(config) == 0 {
		return nil, nil
	}
	pools := parsePrefixes(config["cluster-pool-ipv4-cidr"] + "," + config["cluster-pool-ipv6-cidr"])
	source := "from cluster-pool-ipv4-cidr of " + of
	if len(pools) == 0 {
		pools, source = parsePrefixes("10.0.0.0/8"), "Cilium's default"
	}
	nodes := s.ciliumNodes()
	avoid := valuesOf(f.ServiceCIDRs, f.NodeCIDRs)
	var out prefixFacts
	for _, pool := range pools {
		inside := slices.DeleteFunc(slices.Clone(nodes), func(n netip.Prefix) bool { return !contains(pool, n) })
		// Cilium's default is the whole of 10/8, in which services and nodes are,
		// too, and which fits nowhere. Nodes get their parts in order from the start,
		// so what is near the nodes' is enough.
		if !slices.ContainsFunc(avoid, pool.Overlaps) && (!pool.Addr().Is4() || pool.Bits() > 8) || len(inside) == 0 {
			out = append(out, facts([]netip.Prefix{pool}, source, false)...)
			continue
		}
		for _, p := range ipam.Estimate(inside, avoid) {
			if !contains(pool, p) {
				p = pool
			}
			out = append(out, Fact[netip.Prefix]{p, fmt.Sprintf("from the CiliumNodes' podCIDRs (%s), rounded up; the whole pool %s, %s, is too large to be mapped or overlaps services or nodes",
				some(ipam.Merge(inside)), pool, source), true})
		}
	}
	return out, nil
}

// ciliumNodes returns the nodes' ranges that Cilium gives out itself.
func (s *snapshot) ciliumNodes() []netip.Prefix {
	var out []netip.Prefix
	for _, n := range s.custom[kindCiliumNode] {
		list, _, _ := unstructured.NestedStringSlice(n.Object, "spec", "ipam", "podCIDRs")
		for _, c := range list {
			out = append(out, parsePrefixes(c)...)
		}
	}
	return out
}

// ciliumPools returns the pools of the IPAM multi-pool.
func (s *snapshot) ciliumPools() prefixFacts {
	var out prefixFacts
	for _, pool := range s.custom[kindCiliumPool] {
		for _, family := range []string{"ipv4", "ipv6"} {
			list, _, _ := unstructured.NestedStringSlice(pool.Object, "spec", family, "cidrs")
			for _, c := range list {
				out = append(out, facts(parsePrefixes(c), "from CiliumPodIPPool "+pool.GetName(), false)...)
			}
		}
	}
	return out
}

// ciliumVPCs returns the VPCs' blocks, which the IPAM eni writes down.
func (s *snapshot) ciliumVPCs() prefixFacts {
	var out prefixFacts
	for _, n := range s.custom[kindCiliumNode] {
		enis, _, _ := unstructured.NestedMap(n.Object, "status", "eni", "enis")
		for _, e := range enis {
			eni, _ := e.(map[string]any)
			primary, _, _ := unstructured.NestedString(eni, "vpc", "primary-cidr")
			more, _, _ := unstructured.NestedStringSlice(eni, "vpc", "cidrs")
			for _, c := range append(more, primary) {
				out = append(out, facts(parsePrefixes(c), "from the VPC of CiliumNode "+n.GetName()+"'s interfaces", false)...)
			}
		}
	}
	return distinct(out)
}
