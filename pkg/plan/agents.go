package plan

import (
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/liqonet/liqonet/pkg/manifests"
)

// NodeAgents are the planned node agents of a cluster.
type NodeAgents struct {
	Agents manifests.Agents
	// NodeMetrics means that they serve their metrics at their nodes' own addresses.
	NodeMetrics bool
	// OverlayKeys are the generations of the overlay keys that they get.
	OverlayKeys []int32
	// Work means that the agents of all ready nodes have reported. They stay unchanged until the gateways run.
	Work bool
}

// agents returns the agents that will run, without their keys, and why. Existing agents stay unless another image is
// given: `upgrade` replaces them.
func (f *input) agents() (a NodeAgents, s Statement) {
	metrics := f.Overrides.NodeMetrics
	a.NodeMetrics = metrics == MetricsNode || metrics == "" && f.has.NodeMetrics
	a.Agents = manifests.Agents{Image: f.DefaultImage, Version: f.Version}
	s = Statement{What: "image of the agents", Reason: "the default of this version of the command"}
	switch has := f.has.Installed; {
	case f.Overrides.Image != "":
		a.Agents.Image, s.Reason = f.Overrides.Image, "given by --agent-image"
	case has.Image == "", f.Upgrade && has.Version != f.Version:
	case has.Version == "", has.Version == f.Version:
		a.Agents.Image, s.Reason = has.Image, "used by the existing node agents"
	default:
		a.Agents, s.Reason = has, fmt.Sprintf("used by the existing node agents, which have version %s; "+
			"upgrade brings them to %s", has.Version, f.Version)
	}
	s.Value = Known(a.Agents.Image)
	return a, s
}

// Objects returns the agents' account with its permissions, and their DaemonSet.
func (a *NodeAgents) Objects() (account []manifests.Object, daemonSet *appsv1.DaemonSet) {
	account, daemonSet = manifests.NodeAgent(a.Agents, a.OverlayKeys)
	if a.NodeMetrics {
		manifests.ShowNodeMetrics(daemonSet)
	}
	return account, daemonSet
}

// WithCurrent returns the agents updated to newer facts. What the user has not chosen follows the cluster's current
// state. They get the planned overlay keys, and all that they have by now.
func (a NodeAgents) WithCurrent(own Facts, intent Intent) NodeAgents {
	f := &input{own, intent}
	now, _ := f.agents()
	a.Agents, a.NodeMetrics = now.Agents, now.NodeMetrics
	a.OverlayKeys = union(a.OverlayKeys, f.overlayKeys(own.Ledger))
	return a
}

// NodeGroups returns the ready nodes that have agents, in groups whose agents are replaced one after the other.
func (f *Facts) NodeGroups() [][]string { return groups(f.Network.agentNodes(true), true) }

// groups splits items into groups of a quarter each, to be processed one after the other. If nothing of the kind was
// processed before, a group with a single item comes first.
func groups[T any](all []T, first bool) (out [][]T) {
	quarter := (len(all) + 3) / 4
	if first && len(all) > 0 {
		out, all = append(out, all[:1]), all[1:]
	}
	return slices.AppendSeq(out, slices.Chunk(all, max(quarter, 1)))
}
