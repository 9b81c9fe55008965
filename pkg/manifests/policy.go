package manifests

import (
	"cmp"
	"fmt"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/version"
)

// nodePolicy lets a node agent write only what is its own node's. All node agents have one
// account, whose permissions cannot tell nodes apart. The token can: it is bound to a pod,
// and the API server knows on which node that pod is (KEP-4193, since Kubernetes 1.30). A
// token without that knowledge may write nothing. Of Peerings they may say that the gateways are silent, and nothing else.
func nodePolicy(labels map[string]string, level version.Level) []Object {
	const create, update, remove = admissionv1.Create, admissionv1.Update, admissionv1.Delete
	agents := []admissionv1.MatchCondition{{
		Name: "node-agents", Expression: fmt.Sprintf("request.userInfo.username == 'system:serviceaccount:%s:%s'", v1alpha1.Namespace, v1alpha1.NodeAgentName),
	}}
	policies := policy(v1alpha1.NodeAgentName, labels, admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionv1.MatchResources{
			ResourceRules: []admissionv1.NamedRuleWithOperations{
				rule(v1alpha1.GroupVersion.Group, "nodenetworks", create, update, remove),
				rule(v1alpha1.GroupVersion.Group, "nodenetworks/status", update),
				rule("coordination.k8s.io", "leases", create, update, remove),
				rule("", "configmaps", create, update, remove),
			},
		},
		MatchConditions: agents,
		Variables: []admissionv1.Variable{
			{Name: "node", Expression: "request.userInfo.extra[?'authentication.kubernetes.io/node-name'][0].orValue('')"},
			{Name: "objects", Expression: "[object, oldObject].filter(o, o != null)"},
		},
		Validations: []admissionv1.Validation{{
			Expression: fmt.Sprintf("variables.node != '' && variables.objects.all(o, "+
				"request.resource.resource == 'leases' ? o.metadata.name == '%s' + variables.node : "+
				"request.resource.resource == 'configmaps' ? o.metadata.name == '%s' + variables.node : "+
				"o.spec.nodeName == variables.node)", v1alpha1.NodeLease(""), v1alpha1.NodeHistory("")),
			MessageExpression: "'the node agent of \"' + variables.node + '\" may write what belongs to its own node only'",
			Reason:            new(metav1.StatusReasonForbidden),
		}},
	})
	if level == version.First {
		return policies
	}
	return append(policies, policy(peeringsPolicy, labels, admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionv1.MatchResources{
			ResourceRules: []admissionv1.NamedRuleWithOperations{rule(v1alpha1.GroupVersion.Group, "peerings/status", update)},
		},
		MatchConditions: agents,
		Variables: []admissionv1.Variable{
			{Name: "before", Expression: "oldObject.?status.conditions.orValue([])"},
			{Name: "after", Expression: "object.?status.conditions.orValue([])"},
		},
		Validations: []admissionv1.Validation{{
			Expression: fmt.Sprintf("'authentication.kubernetes.io/node-name' in request.userInfo.extra && "+
				"object.?status.planes == oldObject.?status.planes && "+
				"variables.after.size() == variables.before.size() && variables.after.all(c, c in variables.before || "+
				"c.type == '%s' && c.status == 'Unknown' && c.reason == '%s' && c.message == '%s')",
				v1alpha1.ConditionConnected, v1alpha1.ReasonGatewaysSilent, v1alpha1.MessageGatewaysSilent),
			Message: "a node agent may say of a Peering only that its gateways are silent",
			Reason:  new(metav1.StatusReasonForbidden),
		}},
	})...)
}

// peeringsPolicy is the name of the policy about what node agents say of Peerings.
const peeringsPolicy = v1alpha1.NodeAgentName + "-peerings"

// gatewayPolicy lets a gateway send Events about its own Peering only. They are in a namespace of others, and a role
// cannot tell what they are about.
func gatewayPolicy(labels map[string]string) []Object {
	const name = "liqonet-gateway"
	account := fmt.Sprintf("system:serviceaccount:%s:%s", v1alpha1.Namespace, v1alpha1.GatewayService(""))
	return policy(name, labels, admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionv1.MatchResources{
			ResourceRules: []admissionv1.NamedRuleWithOperations{rule("", "events", admissionv1.Create, admissionv1.Update)},
		},
		MatchConditions: []admissionv1.MatchCondition{{Name: "gateways", Expression: fmt.Sprintf("request.userInfo.username.startsWith('%s')", account)}},
		Validations: []admissionv1.Validation{{
			Expression: fmt.Sprintf("object.involvedObject.kind == 'Peering' && object.involvedObject.apiVersion == '%s' && "+
				"object.source.component == '%s' && object.reportingComponent == '%s' && "+
				"request.userInfo.username in ['0', '1', '2', '3'].map(plane, '%s' + object.involvedObject.name + '-' + plane)", v1alpha1.GroupVersion, name, name, account),
			Message: "a gateway may send Events about its own Peering only",
			Reason:  new(metav1.StatusReasonForbidden),
		}},
	})
}

func rule(group, resource string, operations ...admissionv1.OperationType) admissionv1.NamedRuleWithOperations {
	return admissionv1.NamedRuleWithOperations{RuleWithOperations: admissionv1.RuleWithOperations{
		Operations: operations,
		Rule:       admissionv1.Rule{APIGroups: []string{group}, APIVersions: []string{"*"}, Resources: []string{resource}, Scope: new(admissionv1.AllScopes)},
	}}
}

// policy is an admission policy that is in force, and denies what its validations do not allow. Where it says nothing of namespaces and
// labels, it is for all objects of its kinds.
func policy(name string, labels map[string]string, spec admissionv1.ValidatingAdmissionPolicySpec) []Object {
	spec.FailurePolicy = new(admissionv1.Fail)
	match := spec.MatchConstraints
	match.MatchPolicy = new(admissionv1.Equivalent)
	match.NamespaceSelector = cmp.Or(match.NamespaceSelector, &metav1.LabelSelector{})
	match.ObjectSelector = cmp.Or(match.ObjectSelector, &metav1.LabelSelector{})
	return []Object{
		&admissionv1.ValidatingAdmissionPolicy{
			TypeMeta:   metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "ValidatingAdmissionPolicy"},
			ObjectMeta: objectMeta("", name, labels),
			Spec:       spec,
		},
		&admissionv1.ValidatingAdmissionPolicyBinding{
			TypeMeta:   metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "ValidatingAdmissionPolicyBinding"},
			ObjectMeta: objectMeta("", name, labels),
			Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
			},
		},
	}
}

// LevelPolicy is the name of the policy that refuses older commands.
const LevelPolicy = "liqonet-level"

// levelPolicy refuses commands of an older version, which would take from objects what they do not know. None may write one
// for agents of a lower compatibility level than it was, unless it says that it wants to. What removes a definition
// marks it, and is let through.
func levelPolicy(labels map[string]string) []Object {
	has := func(obj, annotation string) string {
		return fmt.Sprintf("%s.metadata.?annotations[?'%s'].orValue('')", obj, annotation)
	}
	return policy(LevelPolicy, labels, admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionv1.MatchResources{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": v1alpha1.Namespace}},
			ObjectSelector:    &metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager}},
			ResourceRules: []admissionv1.NamedRuleWithOperations{
				rule("apiextensions.k8s.io", "customresourcedefinitions", admissionv1.Update),
				rule(v1alpha1.GroupVersion.Group, "peerings", admissionv1.Update),
				rule("apps", "daemonsets", admissionv1.Update),
				rule("apps", "deployments", admissionv1.Update),
			},
		},
		MatchConditions: []admissionv1.MatchCondition{
			{Name: "has-a-level", Expression: has("oldObject", v1alpha1.AnnotationLevel) + " != ''"},
			{Name: "stays", Expression: has("object", v1alpha1.AnnotationVersion) + " != '" + BeingRemoved + "'"},
		},
		Variables: []admissionv1.Variable{
			{Name: "before", Expression: has("oldObject", v1alpha1.AnnotationLevel)},
			{Name: "after", Expression: has("object", v1alpha1.AnnotationLevel)},
		},
		Validations: []admissionv1.Validation{{
			Expression: fmt.Sprintf("(variables.after != '' && int(variables.after) >= int(variables.before)) || %s == variables.before", has("object", v1alpha1.AnnotationLowered)),
			MessageExpression: fmt.Sprintf("'this command is older than liqonet in the cluster, which is of version ' + %s + ': use the command of that version, or a newer one'",
				has("oldObject", v1alpha1.AnnotationVersion)),
			Reason: new(metav1.StatusReasonInvalid),
		}},
	})
}

// BeingRemoved is in place of the version on a definition that is about to be deleted.
// Whoever applies the definition takes it away.
const BeingRemoved = "being-removed"
