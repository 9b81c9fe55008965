package attack_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	applymeta "k8s.io/client-go/applyconfigurations/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/test/apiserver"
	"github.com/liqonet/liqonet/test/kit"
)

// Attackers with a token.
const (
	nodeAgent    = "node agent"
	gatewayAgent = "gateway agent"
)

// cluster is what the product has in a cluster with two nodes and two peerings.
type cluster struct {
	*apiserver.Server
	// node is the agent of the first node, unbound one with a token of the same account and of
	// no pod. gateway is that of the first peering.
	node, unbound, gateway client.Client
}

const (
	firstNode, secondNode       = "node-1", "node-2"
	firstAddress, secondAddress = "10.80.0.1", "10.80.0.2"
	firstPeering, secondPeering = "b", "c"
)

// oneLeft is the status of the second peering, with the condition Redundant.
func oneLeft(redundant, reason, message string) string {
	return `{"conditions":[` + connected("False", "NoAnswer", "") + "," + condition(v1alpha1.ConditionDegraded, "True", "PartlyReached", "") + "," +
		condition(v1alpha1.ConditionRedundant, redundant, reason, message) + `]}`
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{Server: apiserver.Start(t)}
	create := func(objs ...client.Object) {
		t.Helper()
		for _, obj := range objs {
			apiserver.Wait(t, "create "+obj.GetName(), func() error { return client.IgnoreAlreadyExists(c.Admin.Create(t.Context(), obj)) })
		}
	}
	create(manifests.Namespace())
	definitions := manifests.CRDs()
	for _, d := range definitions {
		create(d)
	}
	account, _ := manifests.NodeAgent(manifests.Agents{Image: "image"}, []int32{1})
	for _, peering := range []string{firstPeering, secondPeering} {
		of, _ := manifests.Gateway{Peering: peering, Role: v1alpha1.Client, KeyGeneration: 1}.Objects()
		account = append(account, of...)
	}
	for _, obj := range account {
		create(obj.(client.Object))
	}
	create(manifests.OverlaySecret(1, []byte("secret")))
	for node, address := range map[string]string{firstNode: firstAddress, secondNode: secondAddress} {
		create(
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, network(node), claim(address, node),
			configMap(v1alpha1.NodeHistoryName(node)),
		)
	}
	for i, name := range []string{firstPeering, secondPeering} {
		create(newPeering(name, int32(i)))
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: "node-1"}}
	pod.Spec = corev1.PodSpec{NodeName: "node-1", ServiceAccountName: v1alpha1.NodeAgentName, Containers: []corev1.Container{{Name: "agent", Image: "image"}}}
	create(pod)
	c.node = client.WithFieldOwner(c.Agent(t, v1alpha1.NodeAgentName, pod), "liqonet-node-1")
	c.unbound = client.WithFieldOwner(c.Agent(t, v1alpha1.NodeAgentName, nil), "liqonet-node-1")
	c.gateway = client.WithFieldOwner(c.Agent(t, manifests.Gateway{Peering: firstPeering}.Name(), nil), v1alpha1.GatewayManager(0))
	// The real ones may do what they have to. When others are refused, the policy has come into force.
	apiserver.Wait(t, "a node agent reports", func() error { return patchStatus(t, c.node, network(firstNode), `{"underlayMTU":1400}`) })
	apiserver.Wait(t, "a gateway reports", func() error {
		return patchStatus(t, c.gateway, newPeering(firstPeering, 0), `{"planes":[{"index":0,"connected":true}]}`)
	})
	// The other gateway of the first peering has reported.
	kit.NoError(t, c.Admin.Status().Patch(t.Context(), newPeering(firstPeering, 0), client.RawPatch(types.ApplyPatchType, fmt.Appendf(nil,
		`{"apiVersion":%q,"kind":"Peering","metadata":{"name":%q},"status":{"planes":[{"index":1,"connected":true}]}}`, v1alpha1.GroupVersion, firstPeering)),
		client.ForceOwnership, client.FieldOwner(v1alpha1.GatewayManager(1))))
	for _, name := range []string{firstPeering, secondPeering} {
		of := newPeering(name, 0)
		kit.NoError(t, c.Admin.Status().Patch(t.Context(), of, merged(`{"status":%s}`, `{"conditions":[`+connected("False", "NoAnswer", "")+`,`+condition(v1alpha1.ConditionDegraded, "True", "PartlyReached", "")+`,`+condition(v1alpha1.ConditionKeysFresh, "True", "Young", "")+`]}`)))
	}
	kit.NoError(t, c.Admin.Status().Patch(t.Context(), newPeering(secondPeering, 0), merged(`{"status":%s}`, oneLeft("True", "SeveralPlanes", ""))))
	apiserver.Wait(t, "a node agent says that a peering is not redundant", func() error {
		return patchStatus(t, c.node, newPeering(secondPeering, 0), oneLeft("False", v1alpha1.ReasonGatewaysSilent, v1alpha1.MessageNotRedundant))
	})
	apiserver.Wait(t, "a node agent says that gateways are silent", func() error {
		const reason, message = v1alpha1.ReasonGatewaysSilent, v1alpha1.MessageGatewaysSilent
		return patchStatus(t, c.node, newPeering(firstPeering, 0), `{"conditions":[`+connected("Unknown", reason, message)+","+condition(v1alpha1.ConditionDegraded, "Unknown", reason, message)+","+condition(v1alpha1.ConditionKeysFresh, "True", "Young", "")+`]}`)
	})
	apiserver.Wait(t, "a node agent claims its address", func() error {
		_, err := (&loop.Lease{
			Client: c.node, Name: v1alpha1.NodeLeaseName(addr("10.80.0.7")), Holder: firstNode, Pod: "x", Manager: "liqonet-node-1", Owner: owner(firstNode),
		}).Claim(t.Context())
		return err
	})
	c.policy().restore(t)
	apiserver.Wait(t, "a gateway sends an Event", func() error { return c.gateway.Create(t.Context(), event(firstPeering, "Peering")) })
	c.gatewayPolicy().restore(t)
	apiserver.Wait(t, "a node agent writes its history", func() error {
		return c.node.Patch(t.Context(), configMap(v1alpha1.NodeHistoryName("node-1")), merged("%s", `{"data":{"001":"x"}}`))
	})
	return c
}

// connected is the condition of that name, and Ready, which is as well.
func connected(status, reason, message string) string {
	return condition(v1alpha1.ConditionConnected, status, reason, message) + "," + condition(v1alpha1.ConditionReady, status, reason, message)
}

func condition(of, status, reason, message string) string {
	return fmt.Sprintf(`{"type":%q,"status":%q,"reason":%q,"message":%q,"lastTransitionTime":"2026-01-01T00:00:00Z"}`, of, status, reason, message)
}

func newPeering(name string, index int32) *v1alpha1.Peering {
	mapped := fmt.Sprintf("10.%d.0.0/16", 30+index)
	p := manifests.Peering(name, v1alpha1.PeeringSpec{
		Index: index, Overlay: "VXLAN",
		Local: v1alpha1.LocalNetwork{
			Pods: []v1alpha1.CIDRMapping{kit.Mapping("10.244.0.0/16", "10.20.0.0/16")}, InternalCIDR: kit.CIDR("10.80.0.0/19"), ExternalCIDR: kit.CIDR("10.60.0.0/18"),
		},
		Remote: v1alpha1.RemoteNetwork{
			ClusterID: "id-of-" + name, Name: name, Pods: []v1alpha1.CIDRMapping{kit.Mapping("10.244.0.0/16", mapped)}, ExternalCIDR: kit.CIDR(fmt.Sprintf("10.%d.0.0/18", 70+index)),
		},
		Planes: []v1alpha1.Plane{{
			Role: v1alpha1.Client, WireGuard: "UserSpace", KeyGeneration: 1, RemotePublicKey: strings.Repeat("A", 43) + "=",
			RemoteAddress: v1alpha1.IP{Addr: addr(fmt.Sprintf("10.%d.31.254", 70+index))},
		}},
	})
	return p
}

func network(name string) *v1alpha1.NodeNetwork {
	return &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// claim is the Lease by which a node holds an address.
func claim(address, node string) *coordinationv1.Lease {
	l := lease(v1alpha1.NodeLeaseName(addr(address)))
	l.Spec.HolderIdentity = &node
	return l
}

// owner is the NodeNetwork that owns a node's Leases.
func owner(node string) *applymeta.OwnerReferenceApplyConfiguration {
	return applymeta.OwnerReference().WithAPIVersion(v1alpha1.GroupVersion.String()).WithKind("NodeNetwork").WithName(node).WithUID("u")
}

func lease(name string) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: name}}
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: name}}
}

// merged is a patch that merges what is given.
func merged(format string, values ...any) client.Patch {
	return client.RawPatch(types.MergePatchType, fmt.Appendf(nil, format, values...))
}

// status writes a part of a status, as a dry run, which is admitted or refused as others are.
func patchStatus(t *testing.T, by client.Client, of client.Object, part string) error {
	opts := []client.SubResourcePatchOption{client.DryRunAll}
	if _, isPeering := of.(*v1alpha1.Peering); isPeering && strings.Contains(part, v1alpha1.ReasonGatewaysSilent) { // as the agents do
		opts = append(opts, client.FieldOwner(v1alpha1.NodeAgentName))
	}
	return by.Status().Patch(t.Context(), of, merged(`{"status":%s}`, part), opts...)
}

// got says whether a request was granted. It fails the test for an error that is no refusal.
func got(t *testing.T, err error) bool {
	t.Helper()
	if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
		t.Fatal(err)
	}
	return err == nil
}

// policy lets node agents write what is their own, and say of a Peering that its gateways are silent.
func (c *cluster) policy() *defence {
	return c.policyNamed(v1alpha1.NodeAgentName, "node agents", func(t *testing.T) bool {
		return got(t, patchStatus(t, c.node, network(secondNode), `{"underlayMTU":1500}`))
	})
}

// policyNamed is a policy that everybody has in addition to the permissions. Where it is in force, an attempt is not granted.
func (c *cluster) policyNamed(name, whose string, attempt func(t *testing.T) bool) *defence {
	binding := func() *admissionv1.ValidatingAdmissionPolicyBinding {
		account, _ := manifests.NodeAgent(manifests.Agents{Image: "image"}, []int32{1})
		i := slices.IndexFunc(account, func(o manifests.Object) bool {
			b, isOne := o.(*admissionv1.ValidatingAdmissionPolicyBinding)
			return isOne && b.Name == name
		})
		return account[i].(*admissionv1.ValidatingAdmissionPolicyBinding)
	}
	return &defence{
		name:   "ValidatingAdmissionPolicy of " + whose,
		remove: func(t *testing.T) { kit.NoError(t, c.Admin.Delete(t.Context(), binding())) },
		restore: func(t *testing.T) {
			kit.NoError(t, client.IgnoreAlreadyExists(c.Admin.Create(t.Context(), binding())))
			apiserver.Wait(t, "the policy is in force", func() error { return granted(attempt(t)) })
		},
	}
}

// gatewayPolicy lets gateways write into their own objects what belongs there, and send Events about their own Peering.
func (c *cluster) gatewayPolicy() *defence {
	return c.policyNamed("liqonet-gateway", "gateways", func(t *testing.T) bool {
		return got(t, c.gateway.Create(t.Context(), event(secondPeering, "Peering"), client.DryRunAll))
	})
}

const (
	finalizer  = `{"metadata":{"finalizers":["example.com/never"]}}`
	journal    = `{"metadata":{"annotations":{"liqonet.io/claim":"x"}},"data":{"changes.json":"[]"}}`
	otherPlane = `{"planes":[{"index":0,"connected":true},{"index":1,"connected":true,"podIP":"10.244.0.66"}]}`
)

// event is one of a gateway, about an object.
func event(about, kind string) *corev1.Event {
	const component = "liqonet-gateway"
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, GenerateName: firstPeering + ".", Labels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager, v1alpha1.LabelPeering: firstPeering}},
		InvolvedObject: corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: kind, Name: about},
		Source:         corev1.EventSource{Component: component}, ReportingController: component, Reason: "PlaneDown", Type: corev1.EventTypeWarning,
	}
}

// granted is an error if something was.
func granted(yes bool) error {
	if yes {
		return errors.New("it is granted")
	}
	return nil
}

// schemas are what an API server takes of the custom resources.
func (c *cluster) schemas() *defence {
	var kept []*apiextensionsv1.CustomResourceDefinition
	return &defence{
		name: "schemas of the custom resources",
		remove: func(t *testing.T) {
			var list apiextensionsv1.CustomResourceDefinitionList
			kit.NoError(t, c.Admin.List(t.Context(), &list))
			for i := range list.Items {
				d := &list.Items[i]
				kept = append(kept, d.DeepCopy())
				v := &d.Spec.Versions[0]
				v.Schema.OpenAPIV3Schema = &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)}
				v.SelectableFields = nil // they have to be in the schema
				kit.NoError(t, c.Admin.Update(t.Context(), d))
			}
		},
		restore: func(t *testing.T) {
			for _, d := range kept {
				d.ResourceVersion = ""
				kit.NoError(t, c.Admin.Patch(t.Context(), d, client.Merge))
			}
			apiserver.Wait(t, "the schemas are in force", func() error {
				return granted(got(t, patchStatus(t, c.node, network(firstNode), `{"podIPs":["..."]}`)))
			})
		},
	}
}

// permissions are that an account has no more than it needs.
func (c *cluster) permissions(account string) *defence {
	more := func() *rbacv1.ClusterRoleBinding {
		return &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "more-for-" + account},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: v1alpha1.Namespace, Name: account}},
		}
	}
	return &defence{
		name:    "the account's RBAC rules",
		remove:  func(t *testing.T) { kit.NoError(t, c.Admin.Create(t.Context(), more())) },
		restore: func(t *testing.T) { kit.NoError(t, c.Admin.Delete(t.Context(), more())) },
	}
}

func (c *cluster) attacks() []attack {
	policy, ofGateways, schemas := c.policy(), c.gatewayPolicy(), c.schemas()
	sends := func(e *corev1.Event) func(*testing.T) bool {
		return func(t *testing.T) bool { return got(t, c.gateway.Create(t.Context(), e.DeepCopy(), client.DryRunAll)) }
	}
	disguised := event(firstPeering, "Peering")
	disguised.Source.Component, disguised.ReportingController = "kubelet", "kubelet"
	record := func(name string) func() client.Object { return func() client.Object { return configMap(name) } }
	creates := func(obj func() client.Object) func(*testing.T) bool {
		return func(t *testing.T) bool { return got(t, c.node.Create(t.Context(), obj(), client.DryRunAll)) }
	}
	ofGateway0 := record(manifests.Gateway{Peering: firstPeering}.HistoryName())
	ofNode, ofGateway := c.permissions(v1alpha1.NodeAgentName), c.permissions(manifests.Gateway{Peering: firstPeering}.Name())
	readsSecrets := func(by client.Client) func(*testing.T) bool {
		return func(t *testing.T) bool {
			return got(t, by.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.Namespace, Name: manifests.OverlaySecretName(1)}, &corev1.Secret{}))
		}
	}
	writes := func(by client.Client, obj func() client.Object, part string) func(*testing.T) bool {
		return func(t *testing.T) bool { return got(t, patchStatus(t, by, obj(), part)) }
	}
	patches := func(by client.Client, obj func() client.Object, part string) func(*testing.T) bool {
		return func(t *testing.T) bool {
			return got(t, by.Patch(t.Context(), obj(), merged("%s", part), client.DryRunAll))
		}
	}
	long, marked := event(firstPeering, "Peering"), event(firstPeering, "Peering")
	long.Message, marked.Finalizers = strings.Repeat("a", 1<<19), []string{"example.com/never"}
	beat, ofNode0 := func() client.Object { return lease(manifests.Gateway{Peering: firstPeering}.Name()) }, record(v1alpha1.NodeHistoryName(firstNode))
	held := func() client.Object { return claim(firstAddress, firstNode) }
	owners := func(manager, version, fields string) string {
		return fmt.Sprintf(`{"metadata":{"managedFields":[{"manager":%q,"operation":"Apply","apiVersion":%q,"fieldsType":"FieldsV1","fieldsV1":%s}]}}`, manager, version, fields)
	}
	applies := func(by client.Client, manager, status string) func(*testing.T) bool {
		return func(t *testing.T) bool {
			raw := client.RawPatch(types.ApplyPatchType, fmt.Appendf(nil, `{"apiVersion":%q,"kind":"Peering","metadata":{"name":%q},"status":%s}`, v1alpha1.GroupVersion, firstPeering, status))
			return got(t, by.Status().Patch(t.Context(), newPeering(firstPeering, 0), raw, client.DryRunAll, client.ForceOwnership, client.FieldOwner(manager)))
		}
	}
	own := func() client.Object { return network(firstNode) }
	other := func() client.Object { return network(secondNode) }
	ownPeering := func() client.Object { return newPeering(firstPeering, 0) }
	otherPeering := func() client.Object { return newPeering(secondPeering, 1) }
	// The metadata of each object that they may write.
	var metadata []attack
	for _, o := range []struct {
		attacker, name, version string
		defence                 *defence
		by                      client.Client
		obj                     func() client.Object
	}{
		{nodeAgent, "report", v1alpha1.GroupVersion.String(), policy, c.node, own},
		{nodeAgent, "Lease", "coordination.k8s.io/v1", policy, c.node, held},
		{nodeAgent, "history", "v1", policy, c.node, ofNode0},
		{gatewayAgent, "Lease", "coordination.k8s.io/v1", ofGateways, c.gateway, beat},
		{gatewayAgent, "history", "v1", ofGateways, c.gateway, ofGateway0},
	} {
		for what, part := range map[string]string{
			"puts a finalizer on":                                  finalizer,
			"puts an annotation on":                                `{"metadata":{"annotations":{"example.com/x":"y"}}}`,
			"puts annotations of a quarter of a megabyte on":       `{"metadata":{"annotations":{"liqonet.io/measurements":"` + strings.Repeat("a", 250<<10) + `"}}}`,
			"puts an annotation that controls a terminal on":       `{"metadata":{"annotations":{"x":"\u001b[2J\u009b\u202e"}}}`,
			"puts the label of a peering on":                       `{"metadata":{"labels":{"liqonet.io/peering":"zz"}}}`,
			"gives an owner of another node to":                    `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"node-2","uid":"x"}]}}`,
			"makes deletions in the foreground wait for":           `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"node-1","uid":"x","controller":true}]}}`,
			"forges who has written":                               owners("liqonet", o.version, `{"f:spec":{}}`),
			"forges who has written, in the year 9999, a field of": strings.Replace(owners("liqonet", o.version, `{"f:spec":{}}`), `"operation"`, `"time":"9999-12-31T23:59:59Z","operation"`, 1),
		} {
			metadata = append(metadata, attack{o.attacker, what + " its " + o.name, o.defence, patches(o.by, o.obj, part)})
		}
	}
	return append(metadata, []attack{
		{nodeAgent, "writes another node's report", policy, writes(c.node, other, `{"podCIDRs":["10.244.7.0/24"]}`)},
		{nodeAgent, "deletes another node's report", policy, func(t *testing.T) bool { return got(t, c.node.Delete(t.Context(), other(), client.DryRunAll)) }},
		{nodeAgent, "claims an address for another node", policy, creates(func() client.Object { return claim("10.80.0.9", secondNode) })},
		{nodeAgent, "takes another node's address", policy, patches(c.node, func() client.Object { return claim(secondAddress, "") }, `{"spec":{"holderIdentity":"node-1"}}`)},
		{nodeAgent, "renews another node's heartbeat", policy, patches(c.node, func() client.Object { return claim(secondAddress, "") }, `{"metadata":{"annotations":{"x":"y"}}}`)},
		{nodeAgent, "makes a report of another node", policy, creates(func() client.Object { return network("node-3") })},
		{nodeAgent, "makes a Lease that is no claim", policy, creates(func() client.Object {
			l := claim("10.80.0.9", firstNode)
			l.Name = "x"
			return l
		})},
		{nodeAgent, "renews a gateway's heartbeat", policy, patches(c.node, func() client.Object { return lease(manifests.Gateway{Peering: firstPeering}.Name()) }, `{"spec":{"holderIdentity":"x"}}`)},
		{nodeAgent, "writes another node's history", policy, patches(c.node, record(v1alpha1.NodeHistoryName("node-2")), `{"data":{"001":"x"}}`)},
		{nodeAgent, "writes a gateway's history", policy, patches(c.node, ofGateway0, `{"data":{"001":"x"}}`)},
		{nodeAgent, "makes a ConfigMap of a command", policy, creates(record("journal-b-1"))},
		{nodeAgent, "writes a journal for commands into its history", policy, patches(c.node, ofNode0, journal)},
		{nodeAgent, "makes its history unchangeable", policy, patches(c.node, ofNode0, `{"immutable":true}`)},
		{nodeAgent, "claims a Lease that is no address", policy, creates(func() client.Object {
			l := claim("10.80.0.9", firstNode)
			l.Name = v1alpha1.NodeLeasePrefix + "x"
			return l
		})},
		{nodeAgent, "renews its Lease in a year that Go cannot read", policy, patches(c.node, held, `{"spec":{"renewTime":"9999-12-31T23:59:59.000000-23:00"}}`)},
		{nodeAgent, "rewrites a peering by applying the same as another field manager", policy, applies(c.node, "x", `{"conditions":[`+condition(v1alpha1.ConditionKeysFresh, "True", "Young", "")+`]}`)},
		{nodeAgent, "removes a gateway's report in its name", policy, applies(c.node, v1alpha1.GatewayManager(1), `{}`)},
		{gatewayAgent, "writes a journal for commands into its history", ofGateways, patches(c.gateway, ofGateway0, journal)},
		{gatewayAgent, "takes the label of its history", ofGateways, patches(c.gateway, ofGateway0, `{"metadata":{"labels":null}}`)},
		{gatewayAgent, "reports about another plane", ofGateways, writes(c.gateway, ownPeering, otherPlane)},
		{gatewayAgent, "removes another gateway's report in its name", ofGateways, applies(c.gateway, v1alpha1.GatewayManager(1), `{}`)},
		{gatewayAgent, "sends an Event of half a megabyte", ofGateways, sends(long)},
		{gatewayAgent, "puts a finalizer on an Event", ofGateways, sends(marked)},
		{gatewayAgent, "sends an Event about another Peering", ofGateways, sends(event(secondPeering, "Peering"))},
		{gatewayAgent, "sends an Event about a Node", ofGateways, sends(event("node-1", "Node"))},
		{gatewayAgent, "sends an Event as a kubelet", ofGateways, sends(disguised)},
		{gatewayAgent, "writes a node's history", ofGateway, patches(c.gateway, record(v1alpha1.NodeHistoryName("node-1")), `{"data":{"001":"x"}}`)},
		{nodeAgent, "writes a report with a token of no pod", policy, writes(c.unbound, own, `{"underlayMTU":1400}`)},
		{nodeAgent, "stores what no agent can read", schemas, writes(c.node, own, `{"podIPs":["1.2.3.4.5"]}`)},
		{nodeAgent, "stores a megabyte", schemas, writes(c.node, own, `{"conditions":[`+condition(v1alpha1.ConditionReady, "True", "Applied", strings.Repeat("a", 1<<20))+`]}`)},
		{nodeAgent, "reads the overlay's key", ofNode, readsSecrets(c.node)},
		{nodeAgent, "leads a peering's packets elsewhere", ofNode, patches(c.node, ownPeering, `{"spec":{"remote":{"nodeIPs":["192.0.2.1"]}}}`)},
		{nodeAgent, "says that a peering is connected", policy, writes(c.node, ownPeering, `{"conditions":[`+connected("True", "ProbesAnswered", "")+`]}`)},
		{nodeAgent, "says of a peering what it wants to", policy, writes(c.node, ownPeering, `{"conditions":[`+connected("Unknown", v1alpha1.ReasonGatewaysSilent, "call 555")+`]}`)},
		{nodeAgent, "says that a peering is connected and not ready", policy, writes(c.node, ownPeering, `{"conditions":[`+
			condition(v1alpha1.ConditionConnected, "False", "NoAnswer", "")+","+condition(v1alpha1.ConditionReady, "Unknown", v1alpha1.ReasonGatewaysSilent, v1alpha1.MessageGatewaysSilent)+`]}`)},
		{nodeAgent, "says why a peering is not redundant", policy, writes(c.node, otherPeering, oneLeft("False", v1alpha1.ReasonGatewaysSilent, "call 555"))},
		{nodeAgent, "says that a peering without gateways is redundant", policy, writes(c.node, otherPeering, oneLeft("True", v1alpha1.ReasonGatewaysSilent, v1alpha1.MessageNotRedundant))},
		{nodeAgent, "says that gateways are silent, with a token of no pod", policy, writes(c.unbound, otherPeering, `{"conditions":[`+connected("Unknown", v1alpha1.ReasonGatewaysSilent, v1alpha1.MessageGatewaysSilent)+`]}`)},
		{nodeAgent, "writes a gateway's report", policy, writes(c.node, ownPeering, `{"planes":[{"index":0,"connected":true,"podIP":"10.244.0.66"}]}`)},
		{gatewayAgent, "writes another gateway's report", ofGateway, writes(c.gateway, otherPeering, `{"planes":[{"index":0,"connected":true,"podIP":"10.244.0.66"}]}`)},
		{gatewayAgent, "leads its peering's packets elsewhere", ofGateway, patches(c.gateway, ownPeering, `{"spec":{"remote":{"nodeIPs":["192.0.2.1"]}}}`)},
		{gatewayAgent, "writes a node's report", ofGateway, writes(c.gateway, own, `{"underlayMTU":1400}`)},
		{gatewayAgent, "renews another gateway's heartbeat", ofGateway, patches(c.gateway, func() client.Object { return lease(manifests.Gateway{Peering: secondPeering}.Name()) }, `{"spec":{"holderIdentity":"x"}}`)},
		{gatewayAgent, "reads the overlay's key", ofGateway, readsSecrets(c.gateway)},
		{gatewayAgent, "stores what no agent can read", schemas, writes(c.gateway, ownPeering, `{"planes":[{"index":0,"connected":true,"podIP":"1.2.3.4.5"},{"index":1,"connected":true}]}`)},
		{gatewayAgent, "stores 5000 planes", schemas, writes(c.gateway, ownPeering, `{"planes":[`+strings.Repeat(`{"index":0,"connected":true},`, 5000)+`{"index":1,"connected":true}]}`)},
	}...)
}

// Requests to an API server, with the tokens of agents.
func TestAttackAPI(t *testing.T) {
	kit.NotShort(t)
	t.Parallel()
	c := newCluster(t)
	run(t, c.attacks())
}
