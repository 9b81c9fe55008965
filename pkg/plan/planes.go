package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// defaultPlanes is how many planes a peering has where both clusters have nodes for as many: one may fail.
const defaultPlanes = 2

// choosePlanes decides how many planes the peering has, by their indexes. Gateways of one peering run
// on different nodes. What was decided before stays, whatever nodes there are now.
func choosePlanes(clusters [2]*FactSheet, placements [2]*v1alpha1.GatewayPlacement) (planes []int32, s Statement, err error) {
	s.What = "planes"
	var carriers [2][]string
	for i, f := range clusters {
		carriers[i] = f.carriers(placements[i], true)
	}
	n, single := 1, OneEndpoint(clusters[0], clusters[1])
	for _, f := range clusters {
		if f.Existing != nil {
			planes = append(planes, f.PlaneIndexes()...)
		}
	}
	slices.Sort(planes)
	planes = slices.Compact(planes)
	given := max(clusters[0].Overrides.Planes, clusters[1].Overrides.Planes)
	if given == len(planes) && single == "" {
		given = 0 // it is so already, also while a node is down
	}
	switch {
	case given > 0:
		if err := checkPlanes(given, clusters, carriers, placements, single); err != nil {
			return nil, s, err
		}
		n, s.Reason = given, "given by --planes"
	case len(planes) > 0 && (single == "" || len(planes) == 1):
		s.Value, s.Reason = strconv.Itoa(len(planes)), "as before"
		return planes, s, nil
	case single != "":
		s.Reason = single
	case min(len(carriers[0]), len(carriers[1])) < defaultPlanes:
		few := clusters[0]
		if len(carriers[1]) < len(carriers[0]) || len(carriers[1]) == len(carriers[0]) && clusters[1].ClusterID < few.ClusterID {
			few = clusters[1]
		}
		s.Reason = few.Name + " has fewer than two nodes that can carry a gateway; --planes 2 adds a plane when it has"
	default:
		n, s.Reason = defaultPlanes, "one may fail; --planes chooses another number"
	}
	planes = nil
	for i := range n {
		planes = append(planes, int32(i))
	}
	s.Value = strconv.Itoa(n)
	return planes, s, nil
}

// planesMode says by how many planes nodes send. Both clusters have the same: a command that was interrupted may have told
// one of them only.
func planesMode(own, peer *FactSheet) v1alpha1.PlanesMode {
	if given := own.Overrides.PlanesMode; given != "" {
		return given
	}
	for _, f := range []*FactSheet{own, peer} {
		if f.Existing != nil && f.Existing.Spec.PlanesMode == v1alpha1.PlanesSpread {
			return v1alpha1.PlanesSpread
		}
	}
	return v1alpha1.PlanesSingle
}

// modeStatements say by how many planes nodes send, if that is said or is not the usual.
func modeStatements(own, peer *FactSheet) []Statement {
	s := Statement{What: "planes by which a node sends", Value: "one, another one if that fails", Reason: "as before"}
	if own.Overrides.PlanesMode != "" {
		s.Reason = "given by --planes-mode"
	}
	switch mode := planesMode(own, peer); {
	case mode == v1alpha1.PlanesSpread:
		s.Value = "all that work, by pairs of addresses"
	case own.Overrides.PlanesMode == "":
		return nil
	}
	return []Statement{s}
}

// checkPlanes refuses a number of planes that there cannot be.
func checkPlanes(n int, clusters [2]*FactSheet, carriers [2][]string, placements [2]*v1alpha1.GatewayPlacement, single string) error {
	refused := func(cluster string, err error, hint string) error {
		return &failure.Error{Kind: failure.Usage, Cluster: cluster, Doing: "choose the number of planes", Err: err, Hint: hint}
	}
	if n > ipam.Planes {
		return refused("", fmt.Errorf("a peering has %d planes at most", ipam.Planes), "")
	}
	if n > 1 && single != "" {
		return refused("", fmt.Errorf("%s, and %d planes need as many endpoints", single, n), "leave out --planes, or the endpoint")
	}
	for i, f := range clusters {
		has := len(carriers[i])
		if has >= n || n == 1 {
			continue
		}
		few := fmt.Errorf("%d planes need as many nodes for gateways, and there are %d: %s", n, has, strings.Join(carriers[i], ", "))
		if absent := f.carriers(placements[i], false); has+len(absent) >= n {
			return &failure.Error{
				Kind: failure.NotReady, Cluster: f.Name, Doing: "choose the number of planes", Err: fmt.Errorf("%w; not ready: %s", few, strings.Join(absent, ", ")),
				Hint: "wait until they are ready, or give a smaller number by --planes",
			}
		}
		return refused(f.Name, few, "give a smaller number by --planes; or have more nodes that gateways tolerate, see --gateway-toleration and --gateway-node-selector")
	}
	return nil
}

// OneEndpoint says why there can be one gateway only: the user names where it is called. Otherwise it is empty.
func OneEndpoint(a, b *FactSheet) string {
	for _, f := range []*FactSheet{a, b} {
		if len(f.GivenEndpoints()) > 0 {
			return "--endpoint names where one gateway of " + f.Name + " is called"
		}
		if f.Overrides.NodePort > 0 {
			return "--service-type names the port of one gateway of " + f.Name
		}
	}
	return ""
}

// carriers are the nodes that can carry a gateway now, or those that could if they were ready.
func (f *FactSheet) carriers(p *v1alpha1.GatewayPlacement, ready bool) (out []string) {
	tolerations := manifests.GatewayTolerations(p, 0)
	// Kubernetes takes these from a node a moment after the node is ready.
	for _, taint := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		tolerations = append(tolerations, corev1.Toleration{Key: taint, Operator: corev1.TolerationOpExists})
	}
	for _, n := range f.Nodes {
		if n.Ready == ready && n.RunsAgents && n.isChosen(p) && n.untolerated(tolerations) == nil {
			out = append(out, n.Name)
		}
	}
	return out
}

// temporary is the index of a plane that packets take while the gateways of others are replaced, if
// there is to be one: the lowest that is free.
func (d *decisions) temporary(own *FactSheet) (plane int32, is bool) {
	if !own.AddTemporary {
		return 0, false
	}
	for slices.Contains(d.planes, plane) {
		plane++
	}
	return plane, plane < ipam.Planes
}
