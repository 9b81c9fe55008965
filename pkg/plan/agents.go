package plan

import (
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/liqonet/liqonet/pkg/manifests"
)

// agents returns the agents that will run, and why. Existing agents stay unless another image is given: `upgrade`
// replaces them.
func (f *input) agents() (a manifests.Agents, s Statement) {
	a = manifests.Agents{Image: f.DefaultImage, Version: f.Version}
	s = Statement{What: "image of the agents", Reason: "the default of this version of the command"}
	switch has := f.Installed; {
	case f.Overrides.Image != "":
		a.Image, s.Reason = f.Overrides.Image, "given by --agent-image"
	case has.Image == "", f.Upgrade && has.Version != f.Version:
	case has.Version == "", has.Version == f.Version:
		a.Image, s.Reason = has.Image, "used by the existing node agents"
	default:
		a, s.Reason = has, fmt.Sprintf("used by the existing node agents, which have version %s; "+
			"upgrade brings them to %s", has.Version, f.Version)
	}
	s.Value = Known(a.Image)
	return a, s
}

// nodeMetrics reports whether node agents should serve their metrics at their nodes' own addresses.
func (f *input) nodeMetrics() bool {
	return f.Overrides.NodeMetrics == MetricsNode || f.Overrides.NodeMetrics == "" && f.NodeMetrics
}

// NodeAgents returns the node agents' account with its permissions, and their DaemonSet.
func (c *ClusterPlan) NodeAgents() (account []manifests.Object, daemonSet *appsv1.DaemonSet) {
	account, daemonSet = manifests.NodeAgent(c.Agents, c.OverlayKeys)
	if c.NodeMetrics {
		manifests.ShowNodeMetrics(daemonSet)
	}
	return account, daemonSet
}

// WithCurrent returns the plan with node agents updated to newer facts. What the user has not chosen follows the
// cluster's current state. The agents get the planned overlay keys, and all that they have by now.
func (c ClusterPlan) WithCurrent(own Facts, intent Intent) ClusterPlan {
	f := &input{own, intent}
	c.Agents, _ = f.agents()
	c.NodeMetrics, c.Ledger = f.nodeMetrics(), f.Ledger
	c.OverlayKeys = union(c.OverlayKeys, c.overlayKeys(&own))
	return c
}

// NodeGroups returns the ready nodes that have agents, in groups whose agents are replaced one after the other.
func (f *Facts) NodeGroups() [][]string { return groups(f.agentNodes(true), true) }

// groups splits items into groups of a quarter each, to be processed one after the other. If nothing of the kind was
// processed before, a group with a single item comes first.
func groups[T any](all []T, first bool) (out [][]T) {
	quarter := (len(all) + 3) / 4
	if first && len(all) > 0 {
		out, all = append(out, all[:1]), all[1:]
	}
	return slices.AppendSeq(out, slices.Chunk(all, max(quarter, 1)))
}
