package plan

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// maxPlacement is how many labels, and how many tolerations, a Peering has room for.
const maxPlacement = 16

// choosePlacement decides on which nodes the cluster's gateways run: nil where nobody has
// ever chosen. It keeps what was chosen before, and refuses what no node fulfils.
func choosePlacement(f *sheet) (p *v1alpha1.GatewayPlacement, out []Statement, err error) {
	p = &v1alpha1.GatewayPlacement{NodeSelector: map[string]string{}, Tolerations: []corev1.Toleration{}} // what is empty is written too
	nodes := known("nodes of the gateway", "any", "--gateway-node-selector chooses others")
	taints := Statement{What: "taint that the gateway tolerates", Reason: "as before"}
	isKept := f.Existing != nil && f.Existing.Spec.Gateways != nil
	if isKept {
		p, nodes.Reason = f.Existing.Spec.Gateways.DeepCopy(), "as before"
	}
	if given := f.Overrides.Gateways.NodeSelector; given != nil {
		p.NodeSelector, nodes.Reason = given, "given by --gateway-node-selector"
	}
	if given := f.Overrides.Gateways.Tolerations; given != nil {
		p.Tolerations, taints.Reason = given, "given by --gateway-toleration"
	}
	if len(p.NodeSelector) > 0 {
		nodes.Value = Known(selector(p))
	}
	out = append(out, nodes)
	for _, t := range p.Tolerations {
		taints.Value = Known(taint(t.Key, t.Value, t.Effect))
		out = append(out, taints)
	}
	if len(p.NodeSelector)+len(p.Tolerations) == 0 && !isKept {
		return nil, out, nil
	}
	return p, out, f.checkPlacement(p)
}

// checkPlacement fails where no node that runs agents has the labels, or where all that have
// them are kept free of gateways. The taints of Kubernetes itself come and go.
func (f *Facts) checkPlacement(p *v1alpha1.GatewayPlacement) error {
	const doing = "choose nodes for the gateway"
	switch {
	case max(len(p.NodeSelector), len(p.Tolerations)) > maxPlacement:
		return f.refuse(doing, "give fewer", fmt.Errorf("a Peering has room for %d labels and %d tolerations", maxPlacement, maxPlacement))
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
		hint := fmt.Sprintf("kubectl label node NODE %s; or choose others by --gateway-node-selector %s=KEY=VALUE, or any by --gateway-node-selector %s=",
			strings.ReplaceAll(selector(p), ",", " "), f.Name, f.Name)
		return f.refuse(doing, hint, fmt.Errorf("no node that runs agents has the labels %s", selector(p)))
	}
	text := taint(kept.Key, kept.Value, kept.Effect)
	return f.refuse(doing, "--gateway-toleration "+f.Name+"="+text,
		errors.New("all nodes with the labels "+selector(p)+" have taints that gateways do not tolerate, such as "+text))
}

// isChosen says whether the node has the labels that gateways need.
func (n *Node) isChosen(p *v1alpha1.GatewayPlacement) bool {
	return p == nil || labels.SelectorFromSet(p.NodeSelector).Matches(labels.Set(n.Labels))
}

// untolerated is a taint that keeps gateways off the node, nil if there is none.
func (n *Node) untolerated(tolerations []corev1.Toleration) *corev1.Taint {
	for i, t := range n.Taints {
		if t.Effect != corev1.TaintEffectPreferNoSchedule &&
			!slices.ContainsFunc(tolerations, func(o corev1.Toleration) bool { return o.ToleratesTaint(klog.Logger{}, &t, false) }) {
			return &n.Taints[i]
		}
	}
	return nil
}

// selector is the labels as the user writes them.
func selector(p *v1alpha1.GatewayPlacement) string { return labels.Set(p.NodeSelector).String() }

// taint is one as the user writes it.
func taint(key, value string, effect corev1.TaintEffect) string {
	if value != "" {
		key += "=" + value
	}
	if effect != "" {
		key += ":" + string(effect)
	}
	return key
}
