package manifests_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	celgo "github.com/google/cel-go/cel"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/test/kit"
	schematest "github.com/liqonet/liqonet/test/schema"
)

// expression is one of a policy.
type expression struct {
	name, text string
	returns    []*celgo.Type
}

func (e expression) GetName() string            { return e.name }
func (e expression) GetExpression() string      { return e.text }
func (e expression) ReturnTypes() []*celgo.Type { return e.returns }

// decision is what our policies say to a write: the messages of the validations that fail, and what could not be evaluated.
func decision(t *testing.T, by user.Info, resource, subresource string, before, after client.Object) (refused, failed []string) {
	t.Helper()
	tree := func(o client.Object) runtime.Object {
		u := &unstructured.Unstructured{}
		kit.NoError(t, json.Unmarshal(kit.Must(json.Marshal(o))(t), &u.Object))
		return u
	}
	var was, is runtime.Object
	op := admission.Update
	if before == nil {
		op = admission.Create
	} else {
		was = tree(before)
	}
	if after == nil {
		op = admission.Delete
	} else {
		is = tree(after)
	}
	group, name, _ := strings.Cut(resource, "/")
	gvr := schema.GroupVersionResource{Group: group, Version: "v1", Resource: name}
	attr := admission.NewAttributesRecord(is, was, schema.GroupVersionKind{}, "", "", gvr, subresource, op, nil, false, by)
	versioned := &admission.VersionedAttributes{Attributes: attr}
	versioned.VersionedObject.Set(is)
	versioned.VersionedOldObject.Set(was)
	account, _ := manifests.NodeAgent(manifests.Agents{Image: "image"}, []int32{1})
	for _, obj := range account {
		p, isOne := obj.(*admissionv1.ValidatingAdmissionPolicy)
		if !isOne || !slices.ContainsFunc(p.Spec.MatchConstraints.ResourceRules, func(r admissionv1.NamedRuleWithOperations) bool {
			of := strings.TrimSuffix(name+"/"+subresource, "/")
			return slices.Equal(r.APIGroups, []string{group}) && slices.Contains(r.Resources, of) && slices.Contains(r.Operations, admissionv1.OperationType(op))
		}) {
			continue
		}
		c := kit.Must(cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())))(t)
		for _, v := range p.Spec.Variables {
			c.CompileAndStoreVariable(expression{v.Name, v.Expression, []*celgo.Type{celgo.AnyType, celgo.DynType}}, cel.OptionalVariableDeclarations{}, environment.StoredExpressions)
		}
		evaluate := func(expressions ...string) []cel.EvaluationResult {
			var all []cel.ExpressionAccessor
			for _, e := range expressions {
				all = append(all, expression{"", e, []*celgo.Type{celgo.BoolType}})
			}
			request := cel.CreateAdmissionRequest(attr, metav1.GroupVersionResource(gvr), metav1.GroupVersionKind{})
			out, _, err := c.CompileCondition(all, cel.OptionalVariableDeclarations{}, environment.StoredExpressions).ForInput(
				t.Context(), versioned, request, cel.OptionalVariableBindings{}, nil, celconfig.RuntimeCELCostBudget)
			kit.NoError(t, err)
			return out
		}
		if r := evaluate(p.Spec.MatchConditions[0].Expression)[0]; r.Error != nil || r.EvalResult.Value() != true {
			kit.NoError(t, r.Error)
			continue
		}
		var all []string
		for _, v := range p.Spec.Validations {
			all = append(all, v.Expression)
		}
		for i, r := range evaluate(all...) {
			if v := p.Spec.Validations[i]; r.Error != nil {
				failed = append(failed, p.Name+": "+r.Error.Error())
			} else if r.EvalResult.Value() != true {
				refused = append(refused, p.Name+": "+v.Message+v.MessageExpression)
			}
		}
	}
	return refused, failed
}

// decided fails the test unless a write passes, or is refused with a message that contains want.
func decided(t *testing.T, by user.Info, resource, subresource string, before, after client.Object, want string) {
	t.Helper()
	refused, failed := decision(t, by, resource, subresource, before, after)
	kit.ErrorIf(t, len(failed) > 0, "not evaluated: %v", failed)
	kit.ErrorIf(t, (want == "") != (len(refused) == 0) || !strings.Contains(fmt.Sprint(refused), want), "want %q, got %v", want, refused)
}

const (
	ofNode    = "node-1"
	ofGateway = "system:serviceaccount:liqonet-system:gateway-b-1"
)

func nodeAgent(node string) user.Info {
	return &user.DefaultInfo{Name: "system:serviceaccount:liqonet-system:liqonet-node", Extra: map[string][]string{"authentication.kubernetes.io/node-name": {node}}}
}

// entry is who owns fields.
func entry(manager string, op metav1.ManagedFieldsOperationType, version, subresource, fields string) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{
		Manager: manager, Operation: op, APIVersion: version, Subresource: subresource, FieldsType: "FieldsV1",
		FieldsV1: &metav1.FieldsV1{Raw: []byte(fields)}, Time: new(metav1.Now()),
	}
}

func with[T any, P interface {
	*T
	client.Object
	DeepCopy() P
}](of P, change func(P)) P {
	if change == nil {
		return of
	}
	of = of.DeepCopy()
	change(of)
	return of
}

// What agents write passes our policies, and nothing else in the same objects does.
func TestPolicies(t *testing.T) {
	const ours, leases = "liqonet.io/v1alpha1", "coordination.k8s.io/v1"
	managed := map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager}
	owner := []metav1.OwnerReference{{APIVersion: ours, Kind: "NodeNetwork", Name: ofNode, UID: "u"}}
	lease := &coordinationv1.Lease{
		TypeMeta: metav1.TypeMeta{APIVersion: leases, Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{
			Name: "node-10.80.0.7", Labels: managed, OwnerReferences: owner, Annotations: map[string]string{v1alpha1.AnnotationVersion: "v1"},
			ManagedFields: []metav1.ManagedFieldsEntry{entry("liqonet-node-u", "Apply", leases, "", `{"f:spec":{}}`)},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: new(ofNode), RenewTime: new(metav1.NowMicro())},
	}
	touched := with(lease, func(l *coordinationv1.Lease) {
		l.Finalizers, l.Labels, l.Annotations = []string{"foreground"}, map[string]string{"a": "b"}, map[string]string{"c": "d"}
		l.OwnerReferences[0].UID = "other"
		l.ManagedFields = append(l.ManagedFields, entry("kubectl", "Update", leases, "", `{"f:metadata":{}}`))
	})
	owned := func(l *coordinationv1.Lease) {
		l.OwnerReferences = append(l.OwnerReferences, touched.OwnerReferences...)
	}
	check := func(what string, by user.Info, resource, sub string, before, after client.Object, want string) {
		t.Run(what, func(t *testing.T) { decided(t, by, resource, sub, before, after, want) })
	}
	for what, tt := range map[string]struct {
		before *coordinationv1.Lease
		change func(*coordinationv1.Lease)
		want   string
	}{
		"claims":                          {},
		"renews":                          {before: lease},
		"renews what others have changed": {before: touched, change: func(l *coordinationv1.Lease) { *l = *touched.DeepCopy(); l.Annotations[v1alpha1.AnnotationPod] = "p" }},
		"sets its labels and owner again": {before: touched, change: func(l *coordinationv1.Lease) {
			own := l.OwnerReferences
			*l = *touched.DeepCopy()
			l.Labels[v1alpha1.LabelManagedBy] = "liqonet"
			l.OwnerReferences = own
		}},
		"has another owner as well": {before: with(lease, owned), change: owned},
		"claims by another name":    {change: func(l *coordinationv1.Lease) { l.Name = "xode-10.80.0.7" }, want: "own node"},
		"is owned by another node":  {change: func(l *coordinationv1.Lease) { l.OwnerReferences[0].Name = "node-2" }, want: "owners"},
		"is controlled":             {change: func(l *coordinationv1.Lease) { l.OwnerReferences[0].Controller = new(true) }, want: "owners"},
		"is owned by another API":   {change: func(l *coordinationv1.Lease) { l.OwnerReferences[0].APIVersion = "x/v1" }, want: "owners"},
		"is owned by a Node":        {change: func(l *coordinationv1.Lease) { l.OwnerReferences[0].Kind = "Node" }, want: "owners"},
		"changes how another manager writes": {before: touched, change: func(l *coordinationv1.Lease) {
			*l = *touched.DeepCopy()
			l.ManagedFields[1].Operation = "Apply"
		}, want: "managers"},
		"has two owners": {change: func(l *coordinationv1.Lease) {
			l.OwnerReferences = append(l.OwnerReferences, touched.OwnerReferences...)
		}, want: "owners"},
		"claims in the year 9999": {change: func(l *coordinationv1.Lease) {
			l.Spec.AcquireTime = new(metav1.NewMicroTime(time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)))
		}, want: "the Lease"},
		"claims what is no address": {change: func(l *coordinationv1.Lease) { l.Name = "node-x" }, want: "own node"},
		"puts a finalizer":          {before: lease, change: func(l *coordinationv1.Lease) { l.Finalizers = []string{"x"} }, want: "finalizer"},
		"creates with a finalizer":  {change: func(l *coordinationv1.Lease) { l.Finalizers = []string{"x"} }, want: "finalizer"},
		"adds a label":              {before: lease, change: func(l *coordinationv1.Lease) { l.Labels["x"] = "" }, want: "labels"},
		"takes a label":             {before: lease, change: func(l *coordinationv1.Lease) { l.Labels = nil }, want: "labels"},
		"creates without a label":   {change: func(l *coordinationv1.Lease) { l.Labels = nil }, want: "labels"},
		"changes a label":           {before: touched, change: func(l *coordinationv1.Lease) { *l = *touched.DeepCopy(); l.Labels["a"] = "c" }, want: "labels"},
		"adds an annotation":        {before: lease, change: func(l *coordinationv1.Lease) { l.Annotations["liqonet.io/claim"] = "x" }, want: "annotation"},
		"writes a long annotation":  {before: lease, change: func(l *coordinationv1.Lease) { l.Annotations[v1alpha1.AnnotationPod] = strings.Repeat("x", 1025) }, want: "annotation"},
		"adds an owner": {before: lease, change: func(l *coordinationv1.Lease) {
			l.OwnerReferences = append(l.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: "node-2", UID: "x"})
		}, want: "owners"},
		"blocks an owner":          {before: lease, change: func(l *coordinationv1.Lease) { l.OwnerReferences[0].BlockOwnerDeletion = new(true) }, want: "owners"},
		"takes the owner":          {before: lease, change: func(l *coordinationv1.Lease) { l.OwnerReferences = nil }, want: "owners"},
		"creates without an owner": {change: func(l *coordinationv1.Lease) { l.OwnerReferences = nil }, want: "owners"},
		"forges a foreign manager": {before: lease, change: func(l *coordinationv1.Lease) { l.ManagedFields[0].Manager = "liqonet" }, want: "managers"},
		"forges a version":         {before: lease, change: func(l *coordinationv1.Lease) { l.ManagedFields[0].APIVersion = "x/y/z" }, want: "managers"},
		"forges a year": {before: lease, change: func(l *coordinationv1.Lease) {
			l.ManagedFields[0].Time = &metav1.Time{Time: time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)}
		}, want: "managers"},
		"is many managers": {before: lease, change: func(l *coordinationv1.Lease) {
			l.ManagedFields = append(l.ManagedFields, l.ManagedFields[0], l.ManagedFields[0])
		}, want: "managers"},
		"renews in the year 9999":         {before: lease, change: func(l *coordinationv1.Lease) { l.Spec.RenewTime.Time = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC) }, want: "the Lease"},
		"gives its Lease to another node": {before: lease, change: func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("node-2") }, want: "own node"},
	} {
		var before client.Object
		if tt.before != nil {
			before = tt.before
		}
		check("node/Lease/"+what, nodeAgent(ofNode), "coordination.k8s.io/leases", "", before, with(lease, tt.change), tt.want)
	}
	check("node/Lease/with a token of no pod", nodeAgent(""), "coordination.k8s.io/leases", "", nil, lease, "own node")
	check("node/Lease/of nobody, with a token of no pod", nodeAgent(""), "coordination.k8s.io/leases", "", nil, with(lease, func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = nil }), "own node")
	check("node/Lease/of another node", nodeAgent("node-2"), "coordination.k8s.io/leases", "", lease, lease, "own node")
	check("node/Lease/deletes", nodeAgent(ofNode), "coordination.k8s.io/leases", "", lease, nil, "")
	check("node/Lease/a person puts a finalizer", &user.DefaultInfo{Name: "admin"}, "coordination.k8s.io/leases", "", nil, with(lease, func(l *coordinationv1.Lease) { l.Finalizers = []string{"x"} }), "")

	report := &v1alpha1.NodeNetwork{
		TypeMeta: metav1.TypeMeta{APIVersion: ours, Kind: "NodeNetwork"},
		ObjectMeta: metav1.ObjectMeta{
			Name: ofNode, Labels: managed, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: ofNode, UID: "u"}},
			ManagedFields: []metav1.ManagedFieldsEntry{entry("liqonet-node-u", "Apply", ours, "", `{"f:metadata":{}}`)},
		},
	}
	const reports = "liqonet.io/nodenetworks"
	check("node/NodeNetwork/creates", nodeAgent(ofNode), reports, "", nil, report, "")
	check("node/NodeNetwork/reports", nodeAgent(ofNode), reports, "status", report, with(report, func(n *v1alpha1.NodeNetwork) {
		n.Status = schematest.Examples()["NodeNetwork"].(*v1alpha1.NodeNetwork).Status
		n.ManagedFields = append(n.ManagedFields, entry("liqonet-node-u", "Apply", ours, "status", `{"f:status":{}}`))
	}), "")
	check("node/NodeNetwork/reports as another one", nodeAgent(ofNode), reports, "status", report, with(report, func(n *v1alpha1.NodeNetwork) { n.ManagedFields[0].Manager = "x" }), "managers")
	check("node/NodeNetwork/is owned by a Lease", nodeAgent(ofNode), reports, "", report, with(report, func(n *v1alpha1.NodeNetwork) { n.OwnerReferences[0].Kind = "NodeNetwork" }), "owners")
	check("node/NodeNetwork/is owned by another API", nodeAgent(ofNode), reports, "", nil, with(report, func(n *v1alpha1.NodeNetwork) { n.OwnerReferences[0].APIVersion = "x/v1" }), "owners")
	check("node/NodeNetwork/puts a finalizer", nodeAgent(ofNode), reports, "", report, with(report, func(n *v1alpha1.NodeNetwork) { n.Finalizers = []string{"x"} }), "finalizer")
	check("node/NodeNetwork/annotates", nodeAgent(ofNode), reports, "", report, with(report, func(n *v1alpha1.NodeNetwork) { n.Annotations = map[string]string{v1alpha1.AnnotationVersion: "x"} }), "annotation")
	check("node/NodeNetwork/deletes another one", nodeAgent("node-2"), reports, "", report, nil, "own node")

	record := &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: "history-node-node-1", Labels: managed, OwnerReferences: report.OwnerReferences},
		Data:       map[string]string{"000": "x", "255": strings.Repeat("x", 2048), "clock": "now"},
	}
	ofPlane := with(record, func(c *corev1.ConfigMap) {
		c.Name, c.OwnerReferences = "history-gateway-b-1", []metav1.OwnerReference{{APIVersion: ours, Kind: "Peering", Name: "b", UID: "p"}}
		c.Labels[v1alpha1.LabelPeering] = "b"
	})
	gateway := &user.DefaultInfo{Name: ofGateway}
	check("node/ConfigMap/of another node", nodeAgent("node-2"), "/configmaps", "", record, record, "own node")
	check("node/ConfigMap/creates", nodeAgent(ofNode), "/configmaps", "", nil, record, "")
	check("gateway/ConfigMap/records", gateway, "/configmaps", "", with(ofPlane, func(c *corev1.ConfigMap) { c.Data = nil }), ofPlane, "")
	for what, tt := range map[string]struct {
		change func(*corev1.ConfigMap)
		want   string
	}{
		"another key":       {func(c *corev1.ConfigMap) { c.Data["changes.json"] = "x" }, "history"},
		"a large value":     {func(c *corev1.ConfigMap) { c.Data["000"] = strings.Repeat("x", 2049) }, "history"},
		"bytes":             {func(c *corev1.ConfigMap) { c.BinaryData = map[string][]byte{"x": {0}} }, "history"},
		"cannot be changed": {func(c *corev1.ConfigMap) { c.Immutable = new(true) }, "history"},
		"finalizer":         {func(c *corev1.ConfigMap) { c.Finalizers = []string{"x"} }, "finalizer"},
		"claim":             {func(c *corev1.ConfigMap) { c.Annotations = map[string]string{"liqonet.io/claim": "x"} }, "annotation"},
		"a version":         {func(c *corev1.ConfigMap) { c.Annotations = map[string]string{v1alpha1.AnnotationVersion: "x"} }, "annotation"},
		"another label":     {func(c *corev1.ConfigMap) { c.Labels = map[string]string{"liqonet.io/peering": "c"} }, "labels"},
		"no owner":          {func(c *corev1.ConfigMap) { c.OwnerReferences = nil }, "owners"},
		"another owner":     {func(c *corev1.ConfigMap) { c.OwnerReferences[0].UID, c.OwnerReferences[0].Name = "y", "y" }, "owners"},
	} {
		check("node/ConfigMap/"+what, nodeAgent(ofNode), "/configmaps", "", record, with(record, tt.change), tt.want)
		check("gateway/ConfigMap/"+what, gateway, "/configmaps", "", ofPlane, with(ofPlane, tt.change), tt.want)
	}
	beat := with(lease, func(l *coordinationv1.Lease) {
		l.Name, l.OwnerReferences, l.ManagedFields[0].Manager, l.Annotations = "gateway-b-1", ofPlane.OwnerReferences, "liqonet", nil
	})
	renewed := func(l *coordinationv1.Lease) {
		*l = *beat.DeepCopy()
		l.ManagedFields = append(l.ManagedFields, entry("liqonet-gateway-1", "Apply", leases, "", `{"f:spec":{}}`))
	}
	check("gateway/Lease/renews", gateway, "coordination.k8s.io/leases", "", beat, with(lease, renewed), "")
	check("gateway/Lease/puts a finalizer", gateway, "coordination.k8s.io/leases", "", beat, with(beat, func(l *coordinationv1.Lease) { l.Finalizers = []string{"x"} }), "finalizer")
	check("gateway/Lease/has a long holder", gateway, "coordination.k8s.io/leases", "", beat, with(beat, func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new(strings.Repeat("x", 254)) }), "the Lease")
	check("gateway/Lease/as another plane", gateway, "coordination.k8s.io/leases", "", beat, with(lease, func(l *coordinationv1.Lease) { renewed(l); l.ManagedFields[1].Manager = "liqonet-gateway-0" }), "managers")
}

// Gateways report about their own plane, and node agents that gateways are silent. Neither changes who owns fields of others.
func TestPoliciesOfPeerings(t *testing.T) {
	const ours = "liqonet.io/v1alpha1"
	const planes0, planes1, conditions = `"f:planes":{"k:{\"index\":0}":{"f:mtu":{}}}`, `"f:planes":{"k:{\"index\":1}":{"f:mtu":{}}}`, `"f:conditions":{"k:{\"type\":\"Connected\"}":{".":{},"f:status":{}}}`
	p := &v1alpha1.Peering{
		TypeMeta: metav1.TypeMeta{APIVersion: ours, Kind: "Peering"},
		ObjectMeta: metav1.ObjectMeta{Name: "b", ManagedFields: []metav1.ManagedFieldsEntry{
			entry("liqonet", "Apply", ours, "", `{"f:spec":{"f:index":{}}}`),
			entry("liqonet-gateway-0", "Apply", ours, "status", `{"f:status":{`+planes0+`,`+conditions+`}}`),
			entry("liqonet-gateway-1", "Apply", ours, "status", `{"f:status":{`+planes1+`}}`),
		}},
		Status: v1alpha1.PeeringStatus{Planes: []v1alpha1.PlaneStatus{{Index: 0, MTU: 1400}, {Index: 1, MTU: 1400}}, Conditions: []metav1.Condition{
			{Type: "Connected", Status: "True", Reason: "ProbesAnswered"}, {Type: "Ready", Status: "True", Reason: "Ready"},
		}},
	}
	silent := func(p *v1alpha1.Peering) {
		for i := range p.Status.Conditions {
			c := &p.Status.Conditions[i]
			c.Status, c.Reason, c.Message, c.LastTransitionTime = "Unknown", v1alpha1.ReasonGatewaysSilent, v1alpha1.MessageGatewaysSilent, metav1.Now()
		}
		p.ManagedFields[1].FieldsV1.Raw = []byte(`{"f:status":{` + planes0 + `,"f:conditions":{"k:{\"type\":\"Connected\"}":{".":{}}}}}`)
		p.ManagedFields = append(p.ManagedFields, entry("liqonet-node", "Update", ours, "status", `{"f:status":{`+conditions+`}}`))
	}
	was := with(p, silent)
	owns := func(i int, fields string) func(*v1alpha1.Peering) {
		return func(p *v1alpha1.Peering) { silent(p); p.ManagedFields[i].FieldsV1.Raw = []byte(fields) }
	}
	// more has a third condition.
	more := func(condition, status string) func(*v1alpha1.Peering) {
		return func(p *v1alpha1.Peering) {
			p.Status.Conditions = append(p.Status.Conditions, metav1.Condition{Type: condition, Status: metav1.ConditionStatus(status), Reason: "Before"})
		}
	}
	changed := func(condition, status string, change func(*metav1.Condition)) func(*v1alpha1.Peering) {
		return func(p *v1alpha1.Peering) { more(condition, status)(p); silent(p); change(&p.Status.Conditions[2]) }
	}
	const degraded, redundant = "Degraded", v1alpha1.ConditionRedundant
	last := changed(redundant, "True", func(c *metav1.Condition) { c.Status, c.Message = "False", v1alpha1.MessageNotRedundant })
	for what, tt := range map[string]struct {
		before *v1alpha1.Peering
		change func(*v1alpha1.Peering)
		want   string
	}{
		"the last plane":              {with(p, more(redundant, "True")), last, ""},
		"several planes":              {with(p, more(redundant, "False")), changed(redundant, "False", func(c *metav1.Condition) { c.Status, c.Message = "True", v1alpha1.MessageNotRedundant }), "only report"},
		"other words of a plane":      {with(p, more(redundant, "True")), changed(redundant, "True", func(c *metav1.Condition) { c.Status, c.Message = "False", "x" }), "only report"},
		"another reason":              {with(p, more(degraded, "False")), changed(degraded, "False", func(c *metav1.Condition) { c.Reason = "x" }), "only report"},
		"other words":                 {with(p, more(degraded, "False")), changed(degraded, "False", func(c *metav1.Condition) { c.Message = "x" }), "only report"},
		"another type":                {with(p, more(degraded, "False")), changed(degraded, "False", func(c *metav1.Condition) { c.Type = "x" }), "only report"},
		"that it is connected":        {p, func(p *v1alpha1.Peering) { silent(p); p.Status.Conditions[0].Status = "True" }, "only report"},
		"one condition less":          {p, func(p *v1alpha1.Peering) { silent(p); p.Status.Conditions = p.Status.Conditions[:1] }, "only report"},
		"what gateways have observed": {p, func(p *v1alpha1.Peering) { silent(p); p.Status.ObservedGeneration = 9 }, "only report"},
		"silent":                      {p, silent, ""},
		"nothing":                     {p, nil, ""},
		"another time": {was, func(p *v1alpha1.Peering) {
			silent(p)
			p.ManagedFields = was.ManagedFields
			p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(time.Unix(1, 0))
		}, "only report"},
		"another generation":           {p, func(p *v1alpha1.Peering) { silent(p); p.Status.Conditions[0].ObservedGeneration = 7 }, "only report"},
		"a plane":                      {p, func(p *v1alpha1.Peering) { silent(p); p.Status.Planes[0].MTU = 576 }, "only report"},
		"no plane":                     {p, func(p *v1alpha1.Peering) { silent(p); p.Status.Planes = p.Status.Planes[:1] }, "only report"},
		"a gateway's plane as its own": {p, owns(3, `{"f:status":{`+planes0+`}}`), "owns"},
		"a plane as another gateway's": {p, owns(2, `{"f:status":{`+planes0+`}}`), "owns"},
		"more for another gateway":     {p, owns(2, `{"f:status":{`+planes1+`,`+conditions+`}}`), "owns"},
		"a spec for a gateway":         {p, owns(2, `{"f:spec":{"f:index":{}},"f:status":{`+planes1+`}}`), "owns"},
		"no owner":                     {p, func(p *v1alpha1.Peering) { silent(p); p.ManagedFields = nil }, "owns"},
		"no spec's owner":              {p, func(p *v1alpha1.Peering) { silent(p); p.ManagedFields = p.ManagedFields[1:] }, "owns"},
		"only owners":                  {p, func(p *v1alpha1.Peering) { p.ManagedFields = append(p.ManagedFields, was.ManagedFields[3]) }, "owns"},
		"another manager":              {p, func(p *v1alpha1.Peering) { silent(p); p.ManagedFields[3].Manager = "x" }, "owns"},
		"an apply":                     {p, func(p *v1alpha1.Peering) { silent(p); p.ManagedFields[3].Operation = "Apply" }, "owns"},
		"the year 9999": {p, func(p *v1alpha1.Peering) {
			silent(p)
			p.ManagedFields[3].Time = &metav1.Time{Time: time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)}
		}, "owns"},
	} {
		t.Run("node/"+what, func(t *testing.T) {
			decided(t, nodeAgent(ofNode), "liqonet.io/peerings", "status", tt.before, with(p, tt.change), tt.want)
		})
	}
	reports := func(p *v1alpha1.Peering) {
		p.Status.Planes[1].MTU, p.Status.Conditions[0].Status = 1300, "False"
		p.ManagedFields[1].FieldsV1.Raw = []byte(`{"f:status":{` + planes0 + `}}`)
		p.ManagedFields[2].FieldsV1.Raw = []byte(`{"f:status":{` + planes1 + `,` + conditions + `}}`)
	}
	for what, tt := range map[string]struct {
		change func(*v1alpha1.Peering)
		want   string
	}{
		"reports":          {reports, ""},
		"in another order": {func(p *v1alpha1.Peering) { reports(p); slices.Reverse(p.Status.Planes) }, ""},
		"another plane":    {func(p *v1alpha1.Peering) { reports(p); p.Status.Planes[0].MTU = 576 }, "own plane"},
		"no other plane":   {func(p *v1alpha1.Peering) { reports(p); p.Status.Planes = p.Status.Planes[1:] }, "own plane"},
		"one plane more": {func(p *v1alpha1.Peering) {
			reports(p)
			p.Status.Planes = append(p.Status.Planes, v1alpha1.PlaneStatus{Index: 2})
		}, "own plane"},
		"a plane as another's": {func(p *v1alpha1.Peering) {
			reports(p)
			p.ManagedFields[1].FieldsV1.Raw = []byte(`{"f:status":{` + planes1 + `}}`)
		}, "owns"},
		"another gateway is removed": {func(p *v1alpha1.Peering) { reports(p); p.ManagedFields = slices.Delete(p.ManagedFields, 1, 2) }, "owns"},
		"as another gateway": {func(p *v1alpha1.Peering) {
			reports(p)
			p.ManagedFields = append(p.ManagedFields, entry("liqonet-gateway-2", "Apply", ours, "status", `{}`))
		}, "owns"},
	} {
		t.Run("gateway/"+what, func(t *testing.T) {
			decided(t, &user.DefaultInfo{Name: ofGateway}, "liqonet.io/peerings", "status", p, with(p, tt.change), tt.want)
		})
	}
	full := with(p, func(p *v1alpha1.Peering) {
		p.Status.Planes = slices.Repeat([]v1alpha1.PlaneStatus{{Remote: &v1alpha1.RemoteAnnouncement{NodeIPs: slices.Repeat([]v1alpha1.IP{{Addr: netip.MustParseAddr("192.0.2.1")}}, 4096)}}}, 4)
		for i := range p.Status.Planes {
			p.Status.Planes[i].Index = int32(i)
		}
	})
	decided(t, nodeAgent(ofNode), "liqonet.io/peerings", "status", full, with(full, silent), "")
	decided(t, &user.DefaultInfo{Name: ofGateway}, "liqonet.io/peerings", "status", full, with(full, reports), "")
}

// An Event of a gateway has what gateways write, and is about its Peering.
func TestPolicyOfEvents(t *testing.T) {
	e := &corev1.Event{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "b.x1", Labels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager, v1alpha1.LabelPeering: "b"},
			ManagedFields: []metav1.ManagedFieldsEntry{entry("liqonet-gateway-1", "Update", "v1", "", `{}`)},
		},
		InvolvedObject: corev1.ObjectReference{APIVersion: "liqonet.io/v1alpha1", Kind: "Peering", Name: "b", UID: "u"},
		Type:           "Warning", Reason: "PlaneDown", Message: strings.Repeat("x", 4096), FirstTimestamp: metav1.Now(), LastTimestamp: metav1.Now(), Count: 1,
		Source: corev1.EventSource{Component: "liqonet-gateway", Host: "node-1"}, ReportingController: "liqonet-gateway", ReportingInstance: "pod",
	}
	for what, tt := range map[string]struct {
		change func(*corev1.Event)
		want   string
	}{
		"a gateway's":       {nil, ""},
		"another Peering":   {func(e *corev1.Event) { e.InvolvedObject.Name = "c" }, "own Peering"},
		"a Node":            {func(e *corev1.Event) { e.InvolvedObject.Kind = "Node" }, "own Peering"},
		"another namespace": {func(e *corev1.Event) { e.InvolvedObject.Namespace = "kube-system" }, "own Peering"},
		"another API":       {func(e *corev1.Event) { e.InvolvedObject.APIVersion = "x/v1" }, "own Peering"},
		"a field":           {func(e *corev1.Event) { e.InvolvedObject.FieldPath = "x" }, "own Peering"},
		"a scheduler's":     {func(e *corev1.Event) { e.ReportingController = "scheduler" }, "own Peering"},
		"an action":         {func(e *corev1.Event) { e.Action = "x" }, "fields"},
		"a long instance":   {func(e *corev1.Event) { e.ReportingInstance = strings.Repeat("x", 254) }, "fields"},
		"another name":      {func(e *corev1.Event) { e.Name = "x" }, "own Peering"},
		"a kubelet's":       {func(e *corev1.Event) { e.Source.Component = "kubelet" }, "own Peering"},
		"a long message":    {func(e *corev1.Event) { e.Message += "x" }, "fields"},
		"an odd reason":     {func(e *corev1.Event) { e.Reason = "\x1b[2J" }, "fields"},
		"an odd type":       {func(e *corev1.Event) { e.Type = "x" }, "fields"},
		"a million of them": {func(e *corev1.Event) { e.Count = 1e6 }, "fields"},
		"a series":          {func(e *corev1.Event) { e.Series = &corev1.EventSeries{Count: 5} }, "fields"},
		"a related object":  {func(e *corev1.Event) { e.Related = &e.InvolvedObject }, "fields"},
		"a long host":       {func(e *corev1.Event) { e.Source.Host = strings.Repeat("x", 254) }, "fields"},
		"a finalizer":       {func(e *corev1.Event) { e.Finalizers = []string{"x"} }, "finalizer"},
		"an annotation":     {func(e *corev1.Event) { e.Annotations = map[string]string{"x": "y"} }, "annotation"},
		"a label":           {func(e *corev1.Event) { e.Labels["x"] = "y" }, "labels"},
		"an owner":          {func(e *corev1.Event) { e.OwnerReferences = []metav1.OwnerReference{{Name: "x"}} }, "owners"},
		"the year 9999":     {func(e *corev1.Event) { e.LastTimestamp.Time = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC) }, "fields"},
	} {
		t.Run(what, func(t *testing.T) {
			decided(t, &user.DefaultInfo{Name: ofGateway}, "/events", "", nil, with(e, tt.change), tt.want)
		})
	}
}
