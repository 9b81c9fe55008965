package v1alpha1

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// PodOutside says that the peer does not reach a pod of this cluster, and what to
// run. The pod's address is outside of the ranges by which the peer knows this
// cluster's pods. It is empty if there is no such pod. It is for the condition
// Degraded of the Peering.
func (p *Peering) PodOutside(nodes []NodeNetwork) string {
	var pods []netip.Prefix
	for _, m := range p.Spec.Local.Pods {
		pods = append(pods, m.Real.Prefix)
	}
	inside := SetOf(pods).ContainsPrefix
	// Network plugins that give out addresses by themselves leave the nodes' ranges
	// unused. They count if there is one in the ranges of the pods.
	used := slices.ContainsFunc(nodes, func(n NodeNetwork) bool {
		return slices.ContainsFunc(n.Status.PodCIDRs, func(c CIDR) bool { return inside(c.Prefix) })
	})
	outside := func(prefix netip.Prefix) bool {
		return prefix.IsValid() && p.Carries(prefix.Addr()) && !inside(prefix)
	}
	for _, n := range nodes {
		for _, ip := range n.Status.PodIPs {
			if outside(netip.PrefixFrom(ip.Addr, ip.BitLen())) {
				return p.outside("pod", ip.String(), n.Name)
			}
		}
		for _, c := range n.Status.PodCIDRs {
			if used && outside(c.Prefix) {
				return p.outside("the range", c.String(), n.Name)
			}
		}
	}
	return ""
}

func (p *Peering) outside(kind, where, node string) string {
	var known []string
	for _, m := range p.Spec.Local.Pods {
		known = append(known, m.Real.String())
	}
	ranges := strings.Join(known, ",")
	return fmt.Sprintf("%s %s of node %s is outside of %s, by which %s knows the pods of this cluster: run kubectl liqonet peer THIS-CLUSTER %s --pod-cidr THIS-CLUSTER=%s,RANGE-OF-%s",
		kind, where, node, ranges, p.Spec.Remote.Name, p.Spec.Remote.Name, ranges, where)
}
