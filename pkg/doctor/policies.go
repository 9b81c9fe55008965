package doctor

import (
	"slices"
	"strings"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// ClusterPolicyKinds returns the kinds of cluster-wide network policies.
func ClusterPolicyKinds() []schema.GroupVersionKind {
	return []schema.GroupVersionKind{
		{Group: "crd.projectcalico.org", Version: "v1", Kind: "GlobalNetworkPolicy"},
		{Group: "policy.networking.k8s.io", Version: "v1alpha1", Kind: "AdminNetworkPolicy"},
		{Group: "policy.networking.k8s.io", Version: "v1alpha1", Kind: "BaselineAdminNetworkPolicy"},
		{Group: "policy.networking.k8s.io", Version: "v1alpha2", Kind: "ClusterNetworkPolicy"},
		{Group: "cilium.io", Version: "v2", Kind: "CiliumClusterwideNetworkPolicy"},
		{Group: "crd.antrea.io", Version: "v1beta1", Kind: "ClusterNetworkPolicy"},
	}
}

// clusterPolicies names policies that may block packets of gateways, if a gateway or a node does not reach the peer. If
// all do, the policies evidently do not.
func clusterPolicies(x *examination) {
	reached := func(g gateway) bool { return g.status != nil && g.status.Connected && !g.isSilent() }
	isReached := func(r *v1alpha1.NodeNetwork) bool {
		return !slices.ContainsFunc(r.Status.Gateways, func(g v1alpha1.NodeGateway) bool { return !g.Ready })
	}
	if lo.EveryBy(x.gateways(), reached) && lo.EveryBy(lo.Values(x.Reports), isReached) {
		return
	}
	if suspects := x.suspectPolicies(); suspects != "" {
		x.fail("", "cluster-wide policies may block packets of gateways: "+suspects,
			"they apply to all pods, or to all except those of some namespaces, and deny packets; gateways or nodes do not reach the peer",
			exemptFromPolicies).Pairs = x.allPairs()
	}
}

const exemptFromPolicies = "exempt the namespace " + v1alpha1.Namespace + " from them, or allow the ports of docs/ports-and-permissions.md"

// suspectPolicies names the cluster-wide policies that may block packets of our pods, empty if there are none.
func (c *Cluster) suspectPolicies() string {
	return joinFirst(lo.FilterMap(c.Own.ClusterPolicies, func(p unstructured.Unstructured, _ int) (string, bool) {
		spec, _, _ := unstructured.NestedMap(p.Object, "spec") // without one, it denies nothing
		return p.GetKind() + " " + p.GetName(), len(spec) > 0 && mayDenyGateways(p.GetKind(), spec)
	}))
}

// mayDenyGateways reports whether a policy may apply to gateways, and denies something.
func mayDenyGateways(kind string, spec map[string]any) bool {
	switch kind {
	case "GlobalNetworkPolicy":
		text := func(key string) string { return strings.TrimSpace(lo.CoalesceOrEmpty(asString(spec[key]), "all()")) }
		return selectsGateways(text("selector")) && selectsGateways(text("namespaceSelector")) && calicoDenies(spec)
	case "CiliumClusterwideNetworkPolicy":
		denies := slices.ContainsFunc([]string{"ingress", "egress", "ingressDeny", "egressDeny"}, func(key string) bool { return spec[key] != nil })
		const namespace = "io.kubernetes.pod.namespace"
		return denies && spec["endpointSelector"] != nil && matches(spec["endpointSelector"], labels.Set{
			namespace: v1alpha1.Namespace, "k8s:" + namespace: v1alpha1.Namespace, "k8s:app.kubernetes.io/component": "gateway",
		})
	}
	if to, isAntrea := spec["appliedTo"].([]any); isAntrea {
		return slices.ContainsFunc(to, appliesToOurs) && slices.ContainsFunc(rulesOf(spec), isDeny)
	}
	subject, _ := spec["subject"].(map[string]any)
	selector := subject["namespaces"]
	if pods, is := subject["pods"].(map[string]any); is {
		selector = pods["namespaceSelector"]
	}
	return selector != nil && matches(selector, labels.Set{corev1.LabelMetadataName: v1alpha1.Namespace}) && slices.ContainsFunc(rulesOf(spec), isDeny)
}

// appliesToOurs reports whether an entry of Antrea's appliedTo may select pods of our namespace. It does not read groups.
func appliesToOurs(entry any) bool {
	to, _ := entry.(map[string]any)
	if selector, has := to["namespaceSelector"]; has {
		return matches(selector, labels.Set{corev1.LabelMetadataName: v1alpha1.Namespace})
	}
	pods, _ := to["podSelector"].(map[string]any) // alone, it selects pods of all namespaces
	return to["podSelector"] != nil && len(pods) == 0
}

// selectsGateways reports whether one of Calico's selectors may select gateways: all(), everything except something else,
// or everything that has a name.
func selectsGateways(selector string) bool {
	contains := func(part string) bool { return strings.Contains(selector, part) }
	excludes := slices.ContainsFunc([]string{"!", "not in", "has(projectcalico.org/name)", "has(" + corev1.LabelMetadataName + ")"}, contains)
	return selector == "all()" || excludes != contains(v1alpha1.Namespace)
}

// calicoDenies reports whether one of Calico's policies denies anything: it has a rule that denies, or no rule that
// allows everything in a direction that it applies to.
func calicoDenies(spec map[string]any) bool {
	types, _ := spec["types"].([]any)
	if len(types) == 0 {
		types = []any{lo.Ternary(spec["egress"] != nil && spec["ingress"] == nil, "Egress", "Ingress")}
	}
	return slices.ContainsFunc(types, func(direction any) bool {
		rules, _ := spec[strings.ToLower(asString(direction))].([]any)
		allowsAll := slices.ContainsFunc(rules, func(rule any) bool {
			r, _ := rule.(map[string]any)
			return len(r) == 1 && r["action"] == "Allow"
		})
		return !allowsAll || slices.ContainsFunc(rules, isDeny)
	})
}

// rulesOf returns the rules of both directions.
func rulesOf(spec map[string]any) []any {
	ingress, _ := spec["ingress"].([]any)
	egress, _ := spec["egress"].([]any)
	return slices.Concat(ingress, egress)
}

func isDeny(rule any) bool {
	r, _ := rule.(map[string]any)
	return slices.Contains([]string{"Deny", "Drop", "Reject"}, asString(r["action"]))
}

// matches reports whether a label selector matches. An invalid one matches nothing.
func matches(selector any, set labels.Set) bool {
	raw, _ := selector.(map[string]any)
	var s metav1.LabelSelector
	if runtime.DefaultUnstructuredConverter.FromUnstructured(raw, &s) != nil {
		return false
	}
	parsed, err := metav1.LabelSelectorAsSelector(&s)
	return err == nil && parsed.Matches(set)
}

func asString(v any) string {
	s, _ := v.(string)
	return s
}
