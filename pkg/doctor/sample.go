package doctor

import (
	"slices"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// maxSample limits on how many nodes of a cluster pods read kernels, as creating and removing pods is work for the cluster. At most maxUnwell
// of them are unwell, so that there are others to compare with.
const maxSample, maxUnwell = 100, 80

// Choice is the nodes of a cluster on which pods read kernels.
type Choice struct {
	Nodes []string
	// Of is the number of nodes to choose from. It is larger than that of Nodes if these are a sample.
	Of int
	// Unwell is how many of all are unwell, and LeftOut how many of those are not in the sample.
	Unwell, LeftOut int
}

// IsSample reports whether there are nodes that were not chosen.
func (c *Choice) IsSample() bool { return len(c.Nodes) < c.Of }

// ChooseNodes chooses all nodes, or a sample if there are too many. The sample has the unwell nodes, up to a limit. The others are evenly
// distributed over the sorted names. In both groups, nodes with gateways are first: what is wrong there affects all nodes.
func ChooseNodes(names []string, isUnwell, hasGateway func(node string) bool) Choice {
	names = slices.Sorted(slices.Values(names))
	if len(names) <= maxSample {
		return Choice{Nodes: names, Of: len(names)}
	}
	unwell, well := lo.FilterReject(names, func(n string, _ int) bool { return isUnwell(n) })
	c := Choice{Of: len(names), Unwell: len(unwell), LeftOut: max(0, len(unwell)-maxUnwell)}
	add := func(from []string, most int) {
		first, rest := lo.FilterReject(from, func(n string, _ int) bool { return hasGateway(n) })
		first = spread(first, most)
		c.Nodes = slices.Concat(c.Nodes, first, spread(rest, most-len(first)))
	}
	add(unwell, maxUnwell)
	add(well, maxSample-len(c.Nodes))
	slices.Sort(c.Nodes)
	return c
}

// spread returns at most so many of the names, evenly distributed.
func spread(names []string, most int) []string {
	n := min(len(names), most)
	return lo.Times(n, func(i int) string { return names[i*len(names)/n] })
}

// Choose chooses from nodes of the cluster.
func (c *Cluster) Choose(names []string) Choice {
	return ChooseNodes(names, c.isUnwell, func(node string) bool {
		return slices.ContainsFunc(c.Peerings, func(p v1alpha1.Peering) bool {
			return slices.ContainsFunc(p.Status.Planes, func(s v1alpha1.PlaneStatus) bool { return s.NodeName == node })
		})
	})
}

// isUnwell reports whether the agent of a node is missing or silent, or reports a problem or a gateway that it does not reach. Without data,
// no node is.
func (c *Cluster) isUnwell(node string) bool {
	if c.Ours.DaemonSet == nil || c.Unseen[Peerings]+c.Unseen[Leases] != "" {
		return false
	}
	r := c.Reports[node]
	return r == nil || c.silent(r.Lease()) || r.Problem() != "" ||
		slices.ContainsFunc(r.Status.Gateways, func(g v1alpha1.NodeGateway) bool { return !g.Ready })
}
