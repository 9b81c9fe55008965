package doctor

import (
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/liqonet/liqonet/test/kit"
)

// A cluster-wide policy is suspected if it may select gateways and denies something.
func TestClusterPolicies(t *testing.T) {
	for name, test := range map[string]struct {
		kind, spec string
		want       bool
	}{
		"Calico, everything":              {"GlobalNetworkPolicy", `{types: [Ingress, Egress]}`, true},
		"Calico, other namespaces":        {"GlobalNetworkPolicy", `{namespaceSelector: "kubernetes.io/metadata.name not in {'kube-system'}", types: [Ingress]}`, true},
		"Calico, except ours":             {"GlobalNetworkPolicy", `{namespaceSelector: "kubernetes.io/metadata.name not in {'kube-system', 'liqonet-system'}", types: [Ingress]}`, false},
		"Calico, one namespace":           {"GlobalNetworkPolicy", `{namespaceSelector: "team == 'a'", types: [Ingress]}`, false},
		"Calico, ours":                    {"GlobalNetworkPolicy", `{namespaceSelector: "projectcalico.org/name == 'liqonet-system'", ingress: [{action: Deny}]}`, true},
		"Calico, allows everything":       {"GlobalNetworkPolicy", `{selector: all(), types: [Ingress], ingress: [{action: Allow}]}`, false},
		"Calico, allows DNS only":         {"GlobalNetworkPolicy", `{selector: all(), egress: [{action: Allow, protocol: UDP, destination: {ports: [53]}}]}`, true},
		"Calico, allows all egress":       {"GlobalNetworkPolicy", `{egress: [{action: Allow}]}`, false},
		"Calico, denies some":             {"GlobalNetworkPolicy", `{types: [Ingress], ingress: [{action: Deny, source: {nets: [192.0.2.0/24]}}, {action: Allow}]}`, true},
		"Calico, not some namespaces":     {"GlobalNetworkPolicy", `{namespaceSelector: "!(projectcalico.org/name in {'kube-system'})", types: [Ingress]}`, true},
		"Calico, not ours":                {"GlobalNetworkPolicy", `{namespaceSelector: "!(projectcalico.org/name in {'liqonet-system'})", types: [Ingress]}`, false},
		"Calico, all pods of namespaces":  {"GlobalNetworkPolicy", `{namespaceSelector: "has(projectcalico.org/name)", types: [Egress]}`, true},
		"Calico, a label":                 {"GlobalNetworkPolicy", `{selector: "has(team)", types: [Egress]}`, false},
		"Antrea, everything":              {"ClusterNetworkPolicy", `{appliedTo: [{namespaceSelector: {}}], ingress: [{action: Drop}]}`, true},
		"Antrea, all pods":                {"ClusterNetworkPolicy", `{appliedTo: [{podSelector: {}}], egress: [{action: Reject}]}`, true},
		"Antrea, some pods":               {"ClusterNetworkPolicy", `{appliedTo: [{podSelector: {matchLabels: {app: a}}}], egress: [{action: Drop}]}`, false},
		"Antrea, not ours":                {"ClusterNetworkPolicy", `{appliedTo: [{namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: NotIn, values: [liqonet-system]}]}}], ingress: [{action: Drop}]}`, false},
		"Antrea, allows":                  {"ClusterNetworkPolicy", `{appliedTo: [{namespaceSelector: {}}], ingress: [{action: Allow}]}`, false},
		"Antrea, fields of other types":   {"ClusterNetworkPolicy", `{appliedTo: [1, {namespaceSelector: 1}], ingress: [1]}`, false},
		"admin policy, everything":        {"AdminNetworkPolicy", `{subject: {namespaces: {}}, ingress: [{action: Deny, from: []}]}`, true},
		"admin policy, allows":            {"AdminNetworkPolicy", `{subject: {namespaces: {}}, ingress: [{action: Allow}], egress: [{action: Pass}]}`, false},
		"admin policy, pods of others":    {"AdminNetworkPolicy", `{subject: {pods: {namespaceSelector: {matchLabels: {team: a}}, podSelector: {}}}, egress: [{action: Deny}]}`, false},
		"admin policy, pods":              {"AdminNetworkPolicy", `{subject: {pods: {namespaceSelector: {}, podSelector: {}}}, egress: [{action: Deny}]}`, true},
		"baseline, not kube-system":       {"BaselineAdminNetworkPolicy", `{subject: {namespaces: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: NotIn, values: [kube-system]}]}}, egress: [{action: Deny}]}`, true},
		"Cilium, everything":              {"CiliumClusterwideNetworkPolicy", `{endpointSelector: {}, ingress: [{}]}`, true},
		"Cilium, no rules":                {"CiliumClusterwideNetworkPolicy", `{endpointSelector: {}}`, false},
		"Cilium, another namespace":       {"CiliumClusterwideNetworkPolicy", `{endpointSelector: {matchLabels: {"k8s:io.kubernetes.pod.namespace": a}}, ingress: [{}]}`, false},
		"Cilium, not ours":                {"CiliumClusterwideNetworkPolicy", `{endpointSelector: {matchExpressions: [{key: "k8s:io.kubernetes.pod.namespace", operator: NotIn, values: [liqonet-system]}]}, egressDeny: [{}]}`, false},
		"Cilium, nodes":                   {"CiliumClusterwideNetworkPolicy", `{nodeSelector: {}, ingress: [{}]}`, false},
		"fields of other types":           {"GlobalNetworkPolicy", `{selector: 1, types: {}, ingress: a}`, true},
		"admin, fields of other types":    {"AdminNetworkPolicy", `{subject: {namespaces: 1}, ingress: {a: 1}}`, false},
		"Cilium, selector of other types": {"CiliumClusterwideNetworkPolicy", `{endpointSelector: {matchLabels: 1}, ingress: 1}`, false},
	} {
		var spec map[string]any
		kit.NoError(t, yaml.Unmarshal([]byte(test.spec), &spec))
		kit.Check(t, name, mayDenyGateways(test.kind, spec), test.want)
	}
}
