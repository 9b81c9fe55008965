package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// defaultPlanes is the number of planes of a peering if both clusters have enough nodes: one plane may fail.
const defaultPlanes = 2

// choosePlanes decides how many planes the peering has, and their indexes. Gateways of one peering run on different
// nodes. An earlier decision stays, whatever nodes there are now.
func (f *input) choosePlanes(clusters [2]*Offer, d *decisions) error {
	given, single, reason := 0, "", "as before"
	var planes []int32
	for _, o := range clusters {
		planes, given, single = append(planes, o.Planes...), max(given, o.AsksPlanes), cmp.Or(single, o.OneGateway)
	}
	slices.Sort(planes)
	planes = slices.Compact(planes)
	if given == len(planes) && single == "" {
		given = 0 // the number stays, even while a node is down
	}
	few := lo.MinBy(clusters[:], func(a, b *Offer) bool { return a.Carriers < b.Carriers })
	first := func(n int) []int32 { return lo.RangeFrom(int32(0), n) }
	switch {
	case given > 0:
		if err := f.checkPlanes(given, d.placement, single); err != nil {
			return err
		}
		planes, reason = first(given), "given by --planes"
	case len(planes) > 0 && (single == "" || len(planes) == 1):
	case single != "":
		planes, reason = first(1), single
	case few.Carriers < defaultPlanes:
		planes, reason = first(1), few.Name+" has fewer than two nodes that can run a gateway; --planes 2 adds a plane later"
	default:
		planes, reason = first(defaultPlanes), "one may fail; --planes chooses another number"
	}
	d.permanent, d.planes, d.planesBy = planes, slices.Clone(planes), known("planes", strconv.Itoa(len(planes)), reason)
	if temporary := lowestFree(planes); (clusters[0].Temporary || clusters[1].Temporary) && temporary < ipam.Planes {
		d.planes = append(d.planes, temporary)
	}
	return nil
}

// lowestFree returns the lowest index that is not taken.
func lowestFree(taken []int32) (index int32) {
	for slices.Contains(taken, index) {
		index++
	}
	return index
}

// planesMode returns how many planes nodes use. Both clusters get the same mode: an interrupted command may have changed
// only one of them.
func planesMode(clusters [2]*Offer) v1alpha1.PlanesMode {
	spreads := slices.ContainsFunc(clusters[:], func(o *Offer) bool { return o.PlanesMode == v1alpha1.PlanesSpread })
	before := lo.Ternary(spreads, v1alpha1.PlanesSpread, v1alpha1.PlanesSingle)
	return cmp.Or(clusters[0].AsksPlanesMode, clusters[1].AsksPlanesMode, before)
}

// modeStatements describes how many planes nodes use, if the user chose it or it is not the default.
func modeStatements(mode, given v1alpha1.PlanesMode) []Statement {
	value := "one, and another one if that fails"
	if mode == v1alpha1.PlanesSpread {
		value = "all that work, chosen by pairs of addresses"
	} else if given == "" {
		return nil
	}
	return []Statement{known("planes that a node uses", value, byFlag(given != "", "--planes-mode"))}
}

// checkPlanes refuses a number of planes that is impossible in this cluster.
func (f *Facts) checkPlanes(n int, placement *v1alpha1.GatewayPlacement, single string) error {
	refused := func(kind failure.Kind, cluster string, err error, hint string) error {
		return &failure.Error{Kind: kind, Cluster: cluster, Doing: "choose the number of planes", Err: err, Hint: hint}
	}
	if n > ipam.Planes {
		return refused(failure.Usage, "", fmt.Errorf("a peering can have at most %d planes", ipam.Planes), "")
	}
	if n > 1 && single != "" {
		err := fmt.Errorf("%s, and %d planes need as many endpoints", single, n)
		return refused(failure.Usage, "", err, "leave out --planes, or the endpoint")
	}
	has := f.carriers(placement, true)
	if len(has) >= n || n == 1 {
		return nil
	}
	few := fmt.Errorf("%d planes need as many nodes for gateways, and there are %d: %s", n, len(has), strings.Join(has, ", "))
	if absent := f.carriers(placement, false); len(has)+len(absent) >= n {
		few = fmt.Errorf("%w; not ready: %s", few, strings.Join(absent, ", "))
		return refused(failure.NotReady, f.Name, few, "wait until they are ready, or give a smaller number with --planes")
	}
	return refused(failure.Usage, f.Name, few, "give a smaller number with --planes; "+
		"or let gateways run on more nodes, see --gateway-toleration and --gateway-node-selector")
}

// oneGateway returns why there can be only one gateway, because the user gave its endpoint or port. It is empty if there
// can be more.
func (f *input) oneGateway() string {
	if len(f.givenEndpoints()) > 0 {
		return "--endpoint names the endpoint of one gateway of " + f.Name
	}
	if f.Overrides.NodePort > 0 {
		return "--service-type names the port of one gateway of " + f.Name
	}
	return ""
}

// carriers returns the nodes that can run a gateway now, or those that could if they were ready.
func (f *Facts) carriers(p *v1alpha1.GatewayPlacement, ready bool) []string {
	tolerations := manifests.GatewayTolerations(p, 0)
	// Kubernetes removes these taints shortly after the node is ready.
	for _, taint := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		tolerations = append(tolerations, corev1.Toleration{Key: taint, Operator: corev1.TolerationOpExists})
	}
	return lo.FilterMap(f.Nodes, func(n Node, _ int) (string, bool) {
		return n.Name, n.Ready == ready && n.RunsAgents && n.isChosen(p) && n.untolerated(tolerations) == nil
	})
}

// maxPlacement is how many labels, and how many tolerations, a Peering can hold.
const maxPlacement = 16

// choosePlacement decides on which nodes the cluster's gateways run. It returns nil if nobody has ever chosen. It keeps
// earlier choices, and refuses one that no node meets.
func choosePlacement(f *input) (p *v1alpha1.GatewayPlacement, out []Statement, err error) {
	p = &v1alpha1.GatewayPlacement{NodeSelector: map[string]string{}, Tolerations: []corev1.Toleration{}} // empty lists are written too
	whyNodes, whyTaints := "--gateway-node-selector chooses others", "as before"
	isKept := f.Existing != nil && f.Existing.Spec.Gateways != nil
	if isKept {
		p, whyNodes = f.Existing.Spec.Gateways.DeepCopy(), "as before"
	}
	if given := f.Overrides.Gateways.NodeSelector; given != nil {
		p.NodeSelector, whyNodes = given, "given by --gateway-node-selector"
	}
	if given := f.Overrides.Gateways.Tolerations; given != nil {
		p.Tolerations, whyTaints = given, "given by --gateway-toleration"
	}
	out = append(out, known("nodes of the gateway", cmp.Or(selector(p), "any"), whyNodes))
	for _, t := range p.Tolerations {
		out = append(out, known("taint that the gateway tolerates", taint(t.Key, t.Value, t.Effect), whyTaints))
	}
	if len(p.NodeSelector)+len(p.Tolerations) == 0 && !isKept {
		return nil, out, nil
	}
	return p, out, f.checkPlacement(p)
}

// checkPlacement fails if no node that runs agents has the labels, or if all that have them have taints that gateways do
// not tolerate. It ignores Kubernetes' own taints, which come and go.
func (f *Facts) checkPlacement(p *v1alpha1.GatewayPlacement) error {
	const doing = "choose nodes for the gateway"
	switch {
	case max(len(p.NodeSelector), len(p.Tolerations)) > maxPlacement:
		return f.refuse(doing, "give fewer", fmt.Errorf("a Peering can hold %d labels and %d tolerations", maxPlacement, maxPlacement))
	case len(p.NodeSelector) == 0:
		return nil
	}
	var kept *corev1.Taint
	tolerations := manifests.GatewayTolerations(p, 0)
	for _, n := range f.Nodes {
		if !n.RunsAgents || !n.isChosen(p) {
			continue
		}
		n.Taints = lo.Reject(n.Taints, func(t corev1.Taint, _ int) bool { return strings.HasPrefix(t.Key, "node.kubernetes.io/") })
		if kept = n.untolerated(tolerations); kept == nil {
			return nil
		}
	}
	if kept == nil {
		hint := fmt.Sprintf("kubectl label node NODE %s; or choose others with --gateway-node-selector %s=KEY=VALUE, or any with --gateway-node-selector %s=",
			strings.ReplaceAll(selector(p), ",", " "), f.Name, f.Name)
		return f.refuse(doing, hint, fmt.Errorf("no node that runs agents has the labels %s", selector(p)))
	}
	text := taint(kept.Key, kept.Value, kept.Effect)
	return f.refuse(doing, "--gateway-toleration "+f.Name+"="+text,
		errors.New("all nodes with the labels "+selector(p)+" have taints that gateways do not tolerate, such as "+text))
}

// isChosen reports whether the node has the labels that gateways need.
func (n *Node) isChosen(p *v1alpha1.GatewayPlacement) bool {
	return p == nil || labels.SelectorFromSet(p.NodeSelector).Matches(labels.Set(n.Labels))
}

// untolerated returns a taint that keeps gateways off the node, nil if there is none.
func (n *Node) untolerated(tolerations []corev1.Toleration) *corev1.Taint {
	for i, t := range n.Taints {
		if t.Effect != corev1.TaintEffectPreferNoSchedule &&
			!slices.ContainsFunc(tolerations, func(o corev1.Toleration) bool { return o.ToleratesTaint(klog.Logger{}, &t, false) }) {
			return &n.Taints[i]
		}
	}
	return nil
}

// selector returns the labels in the syntax of the flag.
func selector(p *v1alpha1.GatewayPlacement) string { return labels.Set(p.NodeSelector).String() }

// taint returns a taint in the syntax of the flag.
func taint(key, value string, effect corev1.TaintEffect) string {
	if value != "" {
		key += "=" + value
	}
	if effect != "" {
		key += ":" + string(effect)
	}
	return key
}
