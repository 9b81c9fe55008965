package discovery

import (
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// calicoPods returns Calico's IP pools. A pool that is disabled gives out no more
// addresses and counts as long as pods have some of it.
func (s *snapshot) calicoPods() prefixFacts {
	// With the IPAM host-local, addresses are from the nodes' podCIDR.
	if strings.Contains(strings.ReplaceAll(s.configMaps["kube-system/calico-config"]["cni_network_config"], " ", ""), `"type":"host-local"`) {
		return nil
	}
	pools := s.custom[kindIPPool]
	if len(pools) == 0 {
		pools = s.custom[kindIPPoolV3]
	}
	live := s.livePods()
	var out prefixFacts
	for _, pool := range pools {
		cidr, _, _ := unstructured.NestedString(pool.Object, "spec", "cidr")
		disabled, _, _ := unstructured.NestedBool(pool.Object, "spec", "disabled")
		uses, _, _ := unstructured.NestedStringSlice(pool.Object, "spec", "allowedUses")
		if len(uses) > 0 && !slices.Contains(uses, "Workload") {
			continue
		}
		source := "from Calico's IPPool " + pool.GetName()
		ps := parsePrefixes(cidr)
		if disabled {
			ps = slices.DeleteFunc(ps, func(p netip.Prefix) bool { return !slices.ContainsFunc(live, p.Contains) })
			source += ", which is disabled and still in use"
		}
		out = append(out, facts(ps, source, false)...)
	}
	return out
}
