package plan

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
)

// roomBits is the length of a range that the routes of one node have to leave free.
const roomBits = 16

// NodeRoutes returns the routes that a node reports, and those of them that are left out because they claim everything.
// These are routes wider than /8, or all if they leave no room for a peer. Otherwise one node would prevent all peerings.
func NodeRoutes(n *v1alpha1.NodeNetwork) (routes, leftOut []netip.Prefix) {
	wide := false
	for _, r := range v1alpha1.Prefixes(n.Status.Routes) {
		if r.Bits() < ipam.MinRouteBits {
			leftOut = append(leftOut, r)
			continue
		}
		routes, wide = append(routes, r), wide || r.Bits() < roomBits
	}
	if wide && !ipam.LeaveRoom(routes, roomBits) {
		return nil, append(leftOut, routes...)
	}
	return routes, leftOut
}

// leftOutRoutes says which routes of a node are left out, "" if there are none.
func leftOutRoutes(n *v1alpha1.NodeNetwork) string {
	_, out := NodeRoutes(n)
	if len(out) == 0 {
		return ""
	}
	names := lo.Map(out[:min(len(out), 3)], func(r netip.Prefix, _ int) string { return r.String() })
	return fmt.Sprintf("node %s reports routes to %s%s, which leave no room for peers: they are left out, and ranges of peers may overlap with them; --reserve keeps ranges free",
		n.Name, strings.Join(names, ", "), lo.Ternary(len(out) > len(names), " and more", ""))
}

func (f *Facts) leftOutRoutes() []string {
	return lo.Compact(lo.Map(f.Reports, func(n v1alpha1.NodeNetwork, _ int) string { return leftOutRoutes(&n) }))
}

// RouteConflicts lists a node's routes that overlap ranges of the peering. The node got them after the ranges were
// chosen, and cannot reach their destinations. It also lists those that are left out.
func RouteConflicts(n *v1alpha1.NodeNetwork, s *v1alpha1.PeeringSpec) (out []string) {
	const again = "peer again for another range"
	routes, _ := NodeRoutes(n)
	check := func(used v1alpha1.CIDR, what, advice string) {
		for _, r := range routes {
			if r.Overlaps(used.Prefix) {
				out = append(out, fmt.Sprintf("node %s has a route to %s, but %s is %s: %s", n.Name, r, used, what, advice))
			}
		}
	}
	check(s.Local.InternalCIDR, "the overlay's own range", "unpeer this cluster from all, and peer again, for another one")
	check(s.Remote.ExternalCIDR, "the range of the peer's nodes", again)
	for _, m := range s.Remote.Pods {
		check(m.Mapped, "a range of the peer's pods", again)
	}
	return append(out, lo.Compact([]string{leftOutRoutes(n)})...)
}
