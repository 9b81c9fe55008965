package manifests

import (
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/history"
)

// accounts is how the user names of our accounts begin.
const accounts = "system:serviceaccount:" + v1alpha1.Namespace + ":"

// writer is a kind of agents in policies, as CEL expressions.
type writer struct {
	// condition matches the requests of these agents.
	condition admissionv1.MatchCondition
	variables []admissionv1.Variable
	// labels is a map of the labels of the objects that they create.
	labels string
	// owner is true for an owner reference o of these objects.
	owner string
	// manager is true for one of their field managers m.
	manager string
}

func node() writer {
	return writer{
		condition: admissionv1.MatchCondition{Name: "node-agents", Expression: "request.userInfo.username == '" + accounts + v1alpha1.NodeAgentName + "'"},
		variables: []admissionv1.Variable{
			{Name: "node", Expression: "request.userInfo.extra[?'authentication.kubernetes.io/node-name'][0].orValue('')"},
		},
		labels: fmt.Sprintf("{'%s': '%s'}", v1alpha1.LabelManagedBy, v1alpha1.FieldManager),
		owner: fmt.Sprintf("o.name == variables.node && (request.resource.resource == 'leases' ? o.kind == 'NodeNetwork' && o.apiVersion == '%s' : o.kind == 'Node' && o.apiVersion == 'v1') && "+
			"!o.?controller.orValue(false) && !o.?blockOwnerDeletion.orValue(false)", v1alpha1.GroupVersion),
		manager: "m.startsWith('" + v1alpha1.NodeAgentName + "-')",
	}
}

// gateway returns the gateways of all peerings. The names of their accounts end with peering and plane.
func gateway() writer {
	account := accounts + v1alpha1.GatewayServiceName("")
	return writer{
		condition: admissionv1.MatchCondition{Name: "gateways", Expression: "request.userInfo.username.startsWith('" + account + "')"},
		variables: []admissionv1.Variable{
			{Name: "peering", Expression: fmt.Sprintf("request.userInfo.username.substring(%d, request.userInfo.username.size() - 2)", len(account))},
			{Name: "plane", Expression: "request.userInfo.username.substring(request.userInfo.username.size() - 1)"},
		},
		labels:  fmt.Sprintf("{'%s': '%s', '%s': variables.peering}", v1alpha1.LabelManagedBy, v1alpha1.FieldManager, v1alpha1.LabelPeering),
		owner:   "false", // the CLI sets it
		manager: "m == '" + gatewayManager + "' + variables.plane",
	}
}

// gatewayManager is the prefix of the field managers of gateways.
var gatewayManager = strings.TrimSuffix(v1alpha1.GatewayManager(0), "0")

// nodePolicy limits a node agent's writes to its own node's objects. All node agents have one account, whose permissions
// cannot distinguish nodes. The token can: it is bound to a pod, and the API server knows that pod's node (KEP-4193,
// since Kubernetes 1.30). A token without that information may write nothing. About Peerings, node agents may only report
// that the gateways are silent.
func nodePolicy(labels map[string]string) []Object {
	by := node()
	own := append([]admissionv1.Validation{{
		Expression: fmt.Sprintf("variables.node != '' && variables.objects.all(o, "+
			"request.resource.resource == 'leases' ? o.metadata.name.startsWith('%s') && isIP(o.metadata.name.substring(%d).replace('-', ':')) && o.?spec.?holderIdentity.orValue('') == variables.node : "+
			"request.resource.resource == 'configmaps' ? o.metadata.name == '%s' + variables.node : "+
			"o.metadata.name == variables.node)", v1alpha1.NodeLeasePrefix, len(v1alpha1.NodeLeasePrefix), v1alpha1.NodeHistoryName("")),
		MessageExpression: "'the node agent of \"' + variables.node + '\" may only write the objects of its own node'",
	}}, by.ownObjects()...)
	peerings := []admissionv1.Validation{
		{
			Expression: fmt.Sprintf("variables.node != '' && "+
				"object.?status.planes == oldObject.?status.planes && object.?status.observedGeneration == oldObject.?status.observedGeneration && "+
				"variables.after.size() == variables.before.size() && variables.changed.all(c, c.reason == '%[1]s' && (c.type == '%[5]s' ? "+
				"c.status == 'False' && c.message == '%[6]s' : c.status == 'Unknown' && c.message == '%[2]s') && "+
				// Another time alone is no news: each write is sent to all nodes.
				"variables.before.exists(b, b.type == c.type && b.?observedGeneration == c.?observedGeneration && !(b.status == c.status && b.reason == c.reason))) && "+
				"(variables.changed.all(c, c.type == '%[5]s') || variables.after.all(c, !(c.type in ['%[3]s', '%[4]s']) || c.reason == '%[1]s'))",
				v1alpha1.ReasonGatewaysSilent, v1alpha1.MessageGatewaysSilent, v1alpha1.ConditionConnected, v1alpha1.ConditionReady,
				v1alpha1.ConditionRedundant, v1alpha1.MessageNotRedundant),
			Message: "a node agent may only report that a Peering's gateways are silent",
		},
		{
			Expression: fmt.Sprintf("variables.changed.size() == 0 ? object.metadata.?managedFields == oldObject.metadata.?managedFields : "+ownersKept,
				fmt.Sprintf("a.id == '%s Update ' + object.apiVersion + ' status' && a.rest == [{}, {}, {}]", v1alpha1.NodeAgentName)),
			Message: "a node agent may not change who owns fields of a Peering",
		},
	}
	return policy(v1alpha1.NodeAgentName, labels, by,
		[]admissionv1.NamedRuleWithOperations{
			rule(v1alpha1.GroupVersion.Group, "nodenetworks", opCreate, opUpdate, opDelete),
			rule(v1alpha1.GroupVersion.Group, "nodenetworks/status", opUpdate),
			rule(v1alpha1.GroupVersion.Group, "peerings/status", opUpdate),
			rule("coordination.k8s.io", "leases", opCreate, opUpdate, opDelete),
			rule("", "configmaps", opCreate, opUpdate, opDelete),
		},
		[]admissionv1.Variable{
			{Name: "objects", Expression: "[object, oldObject].filter(o, o != null)"},
			{Name: "before", Expression: "oldObject.?status.conditions.orValue([])"},
			{Name: "after", Expression: "object.?status.conditions.orValue([])"},
			{Name: "changed", Expression: "variables.after.filter(c, !(c in variables.before))"},
		},
		slices.Concat(guard("!= 'peerings'", own), guard("== 'peerings'", peerings)))
}

const opCreate, opUpdate, opDelete = admissionv1.Create, admissionv1.Update, admissionv1.Delete

const (
	// fieldOwnersOf is a variable for ownersKept: an entry for each field manager, before or after the write.
	fieldOwnersOf = "%s.metadata.?managedFields.orValue([]).map(f, {'id': dyn([f.manager, f.operation, f.apiVersion, f.?subresource.orValue('')].join(' ')), " +
		"'rest': dyn([f.?fieldsV1[?'f:metadata'].orValue({}), f.?fieldsV1[?'f:spec'].orValue({}), f.?fieldsV1[?'f:status'][?'f:planes'].orValue({})]), " +
		"'conditions': dyn(f.?fieldsV1[?'f:status'][?'f:conditions'].orValue({}))})"
	// ownersKept is true if no other field manager gets a field, or loses one that is not in a condition. Otherwise an
	// agent could make another one's next apply remove fields. %s is true for the agent's own entry a.
	ownersKept = "(variables.owners.all(a, (%[1]s) || variables.ownersBefore.exists(b, a.id == b.id && a.rest == b.rest && " +
		"a.conditions.all(c, a.conditions[c].all(f, f in b.conditions[?c].orValue({}))))) && " +
		"variables.ownersBefore.all(b, b.rest == [{}, {}, {}] || variables.owners.exists(a, a.id == b.id && (a.rest == b.rest || %[1]s))) && " +
		"object.metadata.?managedFields.orValue([]).all(f, " + validTime + "))"
	// validTime is true if a time f.time can be read: Go cannot read the year 10000, and then no list with the object.
	validTime = "timestamp(f.?time.orValue('2000-01-01T00:00:00Z')) < timestamp('9999-01-01T00:00:00Z')"
)

// gatewayPolicy limits what a gateway may write into its own objects, and its Events to its own Peering. Events are in
// a namespace that belongs to others. A role cannot restrict their subject, nor a part of a Peering's status.
func gatewayPolicy(labels map[string]string) []Object {
	const name = "liqonet-gateway"
	by := gateway()
	events := []admissionv1.Validation{
		{
			Expression: fmt.Sprintf("object.involvedObject.kind == 'Peering' && object.involvedObject.apiVersion == '%s' && object.involvedObject.name == variables.peering && "+
				"!has(object.involvedObject.fieldPath) && !has(object.involvedObject.namespace) && "+
				"object.source.component == '%s' && object.reportingComponent == '%s' && object.metadata.name.startsWith(variables.peering + '.')", v1alpha1.GroupVersion, name, name),
			Message: "a gateway may send Events about its own Peering only",
		},
		{
			Expression: fmt.Sprintf("object.type in ['Normal', 'Warning'] && object.reason.matches('^[A-Za-z]{1,64}$') && object.?message.orValue('').size() <= %d && object.?count.orValue(1) == 1 && "+
				"[object.?source.host, object.?reportingInstance].all(s, s.orValue('').size() <= 253) && !has(object.series) && !has(object.related) && !has(object.action) && "+
				"[object.?firstTimestamp, object.?lastTimestamp, object.?eventTime].all(t, t.orValue(null) == null || timestamp(t.value()) < timestamp('9999-01-01T00:00:00Z'))", v1alpha1.MaxMessageLength),
			Message: "an Event has fields that gateways do not write",
		},
	}
	peerings := []admissionv1.Validation{
		{
			Expression: "variables.before.all(p, p in variables.after) && variables.after.all(p, p in variables.before)",
			Message:    "a gateway may report about its own plane only",
		},
		{
			Expression: fmt.Sprintf(ownersKept, "a.id in ['Apply', 'Update'].map(o, '"+gatewayManager+"' + variables.plane + ' ' + o + ' ' + object.apiVersion + ' status')"),
			Message:    "a gateway may not change who owns fields of a Peering",
		},
	}
	return policy(name, labels, by,
		[]admissionv1.NamedRuleWithOperations{
			rule(v1alpha1.GroupVersion.Group, "peerings/status", opUpdate),
			rule("coordination.k8s.io", "leases", opUpdate),
			rule("", "configmaps", opUpdate),
			rule("", "events", opCreate, opUpdate),
		},
		[]admissionv1.Variable{
			{Name: "before", Expression: "oldObject.?status.planes.orValue([]).filter(p, string(p.index) != variables.plane)"},
			{Name: "after", Expression: "object.?status.planes.orValue([]).filter(p, string(p.index) != variables.plane)"},
		},
		slices.Concat(guard("!= 'peerings'", by.ownObjects()), guard("== 'events'", events), guard("== 'peerings'", peerings)))
}

// guard lets validations concern only requests for one resource, or for all but one. An API server compiles one policy
// with a condition in each validation in less time than a policy for each resource.
func guard(resource string, validations []admissionv1.Validation) []admissionv1.Validation {
	for i := range validations {
		validations[i].Expression = fmt.Sprintf("!(request.resource.resource %s) || (%s)", resource, validations[i].Expression)
	}
	return validations
}

// Policies returns the admission policies of the agents, with their bindings.
func Policies() []Object {
	labels := componentLabels("node")
	return slices.Concat(gatewayPolicy(labels), nodePolicy(labels))
}

// ownObjects limits what agents may write into the objects that they own. Others may have added to the metadata, and
// that stays.
func (w writer) ownObjects() []admissionv1.Validation {
	kept := func(of, key, value, known string) string {
		return fmt.Sprintf("object == null || object.metadata.?%[1]s.orValue({}).all(%[2]s, variables.was.?%[1]s[?%[2]s] == optional.of(%[3]s) || %[4]s)", of, key, value, known)
	}
	const labelsKept = " && variables.was.?labels.orValue({}).all(k, k in object.metadata.?labels.orValue({})) && (oldObject != null || variables.labels.all(k, k in object.metadata.?labels.orValue({})))"
	annotations := fmt.Sprintf("request.resource.resource == 'leases' && k in ['%s'] && object.metadata.annotations[k].size() <= 1024",
		strings.Join([]string{v1alpha1.AnnotationVersion, v1alpha1.AnnotationMeasurements, v1alpha1.AnnotationStarved, v1alpha1.AnnotationPod}, "', '"))
	return []admissionv1.Validation{
		{
			Expression: "object == null || object.metadata.?finalizers.orValue([]).all(f, f in variables.was.?finalizers.orValue([]))",
			Message:    "an agent may add no finalizer",
		},
		{
			Expression: kept("labels", "k", "object.metadata.labels[k]", "variables.labels[?k] == optional.of(object.metadata.labels[k])") + labelsKept,
			Message:    "an agent may not change labels",
		},
		{Expression: kept("annotations", "k", "object.metadata.annotations[k]", annotations), Message: "an agent may not write this annotation"},
		{
			Expression: fmt.Sprintf("object == null || (request.resource.resource == 'events' ? variables.owned.size() == 0 : "+
				"(variables.owned.size() > 0 || variables.ownedBefore.size() == 0 && oldObject != null) && variables.owned.size() <= variables.ownedBefore.size() + 1 && "+
				"variables.owned.all(o, o in variables.ownedBefore || %s))", w.owner),
			Message: "an agent may not change owners",
		},
		{
			Expression: fmt.Sprintf("object == null || variables.managers.size() <= variables.managersBefore.size() + 1 && "+
				"variables.managers.all(f, %s && f.apiVersion == object.apiVersion && ([f.manager].all(m, %s) || variables.managersBefore.exists(b, b.manager == f.manager && b.operation == f.operation)))", validTime, w.manager),
			Message: "an agent may not write the entries of other field managers",
		},
		{
			Expression: "object == null || request.resource.resource != 'leases' || [object.spec.?renewTime, object.spec.?acquireTime].all(t, " +
				"t.orValue(null) == null || timestamp(t.value()) < timestamp('9999-01-01T00:00:00Z')) && object.spec.?holderIdentity.orValue('').size() <= 253",
			Message: "the Lease has values that agents do not write",
		},
		{
			Expression: fmt.Sprintf("object == null || request.resource.resource != 'configmaps' || !has(object.binaryData) && !object.?immutable.orValue(false) && "+
				"object.?data.orValue({}).all(k, k.matches('^([0-9]{3}|%s)$') && object.data[k].size() <= %d || oldObject != null && oldObject.?data[?k] == optional.of(object.data[k]))", history.ClockKey, history.MaxValue),
			Message: "the history has values that agents do not write",
		},
	}
}

// commonVariables are those of ownObjects and ownersKept.
func (w writer) commonVariables() []admissionv1.Variable {
	return []admissionv1.Variable{
		{Name: "was", Expression: "oldObject == null ? {} : oldObject.metadata"},
		{Name: "labels", Expression: w.labels},
		{Name: "owned", Expression: "object.metadata.?ownerReferences.orValue([])"},
		{Name: "ownedBefore", Expression: "variables.was.?ownerReferences.orValue([])"},
		{Name: "managers", Expression: "object.metadata.?managedFields.orValue([])"},
		{Name: "managersBefore", Expression: "variables.was.?managedFields.orValue([])"},
		{Name: "owners", Expression: fmt.Sprintf(fieldOwnersOf, "object")},
		{Name: "ownersBefore", Expression: fmt.Sprintf(fieldOwnersOf, "oldObject")},
	}
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

// policy returns an admission policy that denies agents' requests that its validations do not allow, with its binding.
func policy(name string, labels map[string]string, by writer, rules []admissionv1.NamedRuleWithOperations, variables []admissionv1.Variable, validations []admissionv1.Validation) []Object {
	p, binding := policyObjects(name, labels, by.condition, rules, slices.Concat(by.variables, by.commonVariables(), variables), validations)
	return []Object{p, binding}
}

// policyObjects returns an admission policy for the requests that a condition matches, with its binding.
func policyObjects(
	name string, labels map[string]string, condition admissionv1.MatchCondition, rules []admissionv1.NamedRuleWithOperations, variables []admissionv1.Variable, validations []admissionv1.Validation,
) (*admissionv1.ValidatingAdmissionPolicy, *admissionv1.ValidatingAdmissionPolicyBinding) {
	for i := range validations {
		validations[i].Reason = new(metav1.StatusReasonForbidden)
	}
	return object(admissionv1.SchemeGroupVersion, &admissionv1.ValidatingAdmissionPolicy{Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: matchResources(rules...), MatchConditions: []admissionv1.MatchCondition{condition},
			Variables: variables, FailurePolicy: new(admissionv1.Fail), Validations: validations,
		}}, "", name, labels),
		object(admissionv1.SchemeGroupVersion, &admissionv1.ValidatingAdmissionPolicyBinding{
			Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
			},
		}, "", name, labels)
}

// withLedger gives a policy the ledger as its parameter. Without a ledger, it denies everything.
func withLedger(p *admissionv1.ValidatingAdmissionPolicy, binding *admissionv1.ValidatingAdmissionPolicyBinding) []Object {
	p.Spec.ParamKind = &admissionv1.ParamKind{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ClusterNetwork"}
	binding.Spec.ParamRef = &admissionv1.ParamRef{Name: v1alpha1.ClusterNetworkName, ParameterNotFoundAction: new(admissionv1.DenyAction)}
	return []Object{p, binding}
}
