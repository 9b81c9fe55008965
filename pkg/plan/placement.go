package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// maxPlacement is how many labels, and how many tolerations, a Peering can hold.
const maxPlacement = 16

// choosePlacement decides on which nodes the cluster's gateways run. It returns nil if nobody has ever chosen. It keeps
// earlier choices, and refuses one that no node meets.
func choosePlacement(f *input) (p *v1alpha1.GatewayPlacement, out []Statement, err error) {
	p = &v1alpha1.GatewayPlacement{NodeSelector: map[string]string{}, Tolerations: []corev1.Toleration{}} // empty lists are written too
	whyNodes, whyTaints := "--gateway-node-selector chooses others", "as before"
	isKept := f.has.Existing != nil && f.has.Existing.Spec.Gateways != nil
	if isKept {
		p, whyNodes = f.has.Existing.Spec.Gateways.DeepCopy(), "as before"
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
func (f *input) checkPlacement(p *v1alpha1.GatewayPlacement) error {
	const doing = "choose nodes for the gateway"
	switch {
	case max(len(p.NodeSelector), len(p.Tolerations)) > maxPlacement:
		return f.has.refuse(doing, "give fewer", fmt.Errorf("a Peering can hold %d labels and %d tolerations", maxPlacement, maxPlacement))
	case len(p.NodeSelector) == 0:
		return nil
	}
	var kept *corev1.Taint
	tolerations := manifests.GatewayTolerations(p, 0)
	for _, n := range f.has.Network.Nodes {
		if !n.RunsAgents || !n.isChosen(p) {
			continue
		}
		n.Taints = lo.Reject(n.Taints, func(t corev1.Taint, _ int) bool { return strings.HasPrefix(t.Key, "node.kubernetes.io/") })
		if kept = n.untolerated(tolerations); kept == nil {
			return nil
		}
	}
	if kept == nil {
		hint := fmt.Sprintf("kubectl label node NODE %s; or choose others with --gateway-node-selector %s=KEY=VALUE, "+
			"or any with --gateway-node-selector %[2]s=", strings.ReplaceAll(selector(p), ",", " "), f.has.Network.Name)
		return f.has.refuse(doing, hint, fmt.Errorf("no node that runs agents has the labels %s", selector(p)))
	}
	text := taint(kept.Key, kept.Value, kept.Effect)
	return f.has.refuse(doing, "--gateway-toleration "+f.has.Network.Name+"="+text,
		errors.New("all nodes with the labels "+selector(p)+" have taints that gateways do not tolerate, such as "+text))
}

// carriers returns the nodes that can run a gateway now, or those that could if they were ready.
func (f *Network) carriers(p *v1alpha1.GatewayPlacement, ready bool) []string {
	tolerations := manifests.GatewayTolerations(p, 0)
	// Kubernetes removes these taints shortly after the node is ready.
	for _, taint := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		tolerations = append(tolerations, corev1.Toleration{Key: taint, Operator: corev1.TolerationOpExists})
	}
	return lo.FilterMap(f.Nodes, func(n Node, _ int) (string, bool) {
		return n.Name, n.Ready == ready && n.RunsAgents && n.isChosen(p) && n.untolerated(tolerations) == nil
	})
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
	t := corev1.Taint{Key: key, Value: value, Effect: effect}
	return strings.TrimSuffix(t.ToString(), ":")
}
