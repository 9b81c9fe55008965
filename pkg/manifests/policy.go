package manifests

import (
	"fmt"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// accounts is how the user names of our accounts begin.
const accounts = "system:serviceaccount:" + v1alpha1.Namespace + ":"

// nodePolicy limits a node agent's writes to its own node's objects. All node agents have one account, whose permissions
// cannot distinguish nodes. The token can: it is bound to a pod, and the API server knows that pod's node (KEP-4193,
// since Kubernetes 1.30). A token without that information may write nothing. About Peerings, node agents may only report
// that the gateways are silent.
func nodePolicy(labels map[string]string) []Object {
	const create, update, remove = admissionv1.Create, admissionv1.Update, admissionv1.Delete
	const isAgent = "request.userInfo.username == '" + accounts + v1alpha1.NodeAgentName + "'"
	agents := []admissionv1.MatchCondition{{Name: "node-agents", Expression: isAgent}}
	policies := policy(v1alpha1.NodeAgentName, labels, admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: matchResources(
			rule(v1alpha1.GroupVersion.Group, "nodenetworks", create, update, remove),
			rule(v1alpha1.GroupVersion.Group, "nodenetworks/status", update),
			rule("coordination.k8s.io", "leases", create, update, remove),
			rule("", "configmaps", create, update, remove),
		),
		MatchConditions: agents,
		Variables: []admissionv1.Variable{
			{Name: "node", Expression: "request.userInfo.extra[?'authentication.kubernetes.io/node-name'][0].orValue('')"},
			{Name: "objects", Expression: "[object, oldObject].filter(o, o != null)"},
		},
		Validations: []admissionv1.Validation{{
			Expression: fmt.Sprintf("variables.node != '' && variables.objects.all(o, "+
				"request.resource.resource == 'leases' ? o.metadata.name.startsWith('%s') && o.?spec.?holderIdentity.orValue('') == variables.node : "+
				"request.resource.resource == 'configmaps' ? o.metadata.name == '%s' + variables.node : "+
				"o.metadata.name == variables.node)", v1alpha1.NodeLeasePrefix, v1alpha1.NodeHistoryName("")),
			MessageExpression: "'the node agent of \"' + variables.node + '\" may only write the objects of its own node'",
		}},
	})
	return append(policies, policy(peeringsPolicy, labels, admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: matchResources(rule(v1alpha1.GroupVersion.Group, "peerings/status", update)),
		MatchConditions:  agents,
		Variables: []admissionv1.Variable{
			{Name: "before", Expression: "oldObject.?status.conditions.orValue([])"},
			{Name: "after", Expression: "object.?status.conditions.orValue([])"},
			{Name: "changed", Expression: "variables.after.filter(c, !(c in variables.before))"},
		},
		Validations: []admissionv1.Validation{{
			Expression: fmt.Sprintf("'authentication.kubernetes.io/node-name' in request.userInfo.extra && "+
				"object.?status.planes == oldObject.?status.planes && object.?status.observedGeneration == oldObject.?status.observedGeneration && "+
				"variables.after.size() == variables.before.size() && variables.changed.all(c, "+
				"variables.before.exists(b, b.type == c.type) && c.status == 'Unknown' && c.reason == '%[1]s' && c.message == '%[2]s') && "+
				"(variables.changed.size() == 0 || variables.after.all(c, !(c.type in ['%[3]s', '%[4]s']) || c.reason == '%[1]s'))",
				v1alpha1.ReasonGatewaysSilent, v1alpha1.MessageGatewaysSilent, v1alpha1.ConditionConnected, v1alpha1.ConditionReady),
			Message: "a node agent may only report that a Peering's gateways are silent",
		}},
	})...)
}

// peeringsPolicy is the name of the policy for node agents' writes to Peerings.
const peeringsPolicy = v1alpha1.NodeAgentName + "-peerings"

// gatewayPolicy limits a gateway's Events to its own Peering. Events are in a namespace that belongs to others, and a
// role cannot restrict their subject.
func gatewayPolicy(labels map[string]string) []Object {
	const name = "liqonet-gateway"
	account := accounts + v1alpha1.GatewayServiceName("")
	return policy(name, labels, admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: matchResources(rule("", "events", admissionv1.Create, admissionv1.Update)),
		MatchConditions:  []admissionv1.MatchCondition{{Name: "gateways", Expression: "request.userInfo.username.startsWith('" + account + "')"}},
		Validations: []admissionv1.Validation{{
			Expression: fmt.Sprintf("object.involvedObject.kind == 'Peering' && object.involvedObject.apiVersion == '%s' && "+
				"object.source.component == '%s' && object.reportingComponent == '%s' && "+
				"request.userInfo.username in ['0', '1', '2', '3'].map(plane, '%s' + object.involvedObject.name + '-' + plane)", v1alpha1.GroupVersion, name, name, account),
			Message: "a gateway may send Events about its own Peering only",
		}},
	})
}

func rule(group, resource string, operations ...admissionv1.OperationType) admissionv1.NamedRuleWithOperations {
	return admissionv1.NamedRuleWithOperations{RuleWithOperations: admissionv1.RuleWithOperations{
		Operations: operations,
		Rule:       admissionv1.Rule{APIGroups: []string{group}, APIVersions: []string{"*"}, Resources: []string{resource}, Scope: new(admissionv1.AllScopes)},
	}}
}

// matchResources returns all objects of the kinds in the rules.
func matchResources(rules ...admissionv1.NamedRuleWithOperations) *admissionv1.MatchResources {
	return &admissionv1.MatchResources{
		ResourceRules: rules, MatchPolicy: new(admissionv1.Equivalent), NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{},
	}
}

// policy returns an admission policy that denies requests that its validation does not allow, with its binding.
func policy(name string, labels map[string]string, spec admissionv1.ValidatingAdmissionPolicySpec) []Object {
	spec.FailurePolicy = new(admissionv1.Fail)
	spec.Validations[0].Reason = new(metav1.StatusReasonForbidden)
	return []Object{
		object(admissionv1.SchemeGroupVersion, &admissionv1.ValidatingAdmissionPolicy{Spec: spec}, "", name, labels),
		object(admissionv1.SchemeGroupVersion, &admissionv1.ValidatingAdmissionPolicyBinding{
			Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
			},
		}, "", name, labels),
	}
}
