package manifests

import (
	"fmt"
	"slices"
	"sync"

	"github.com/samber/lo"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/mcs-api/config/crd"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/nodes"
)

// servicesMemory is the controller's memory limit, in bytes.
const servicesMemory = 512 << 20

// ServicesLabels are on all objects of the controller of services.
func ServicesLabels() map[string]string { return componentLabels("services") }

// isForServices reports whether only clusters that exchange services need a definition.
func isForServices(crd *apiextensionsv1.CustomResourceDefinition) bool {
	return slices.Contains([]string{"ExportedService", "ReceivedService"}, crd.Spec.Names.Kind)
}

// ServicesCRDs returns the custom resource definitions of this project that only clusters need which exchange services.
func ServicesCRDs() []*apiextensionsv1.CustomResourceDefinition {
	return lo.FilterMap(decodedCRDs(), func(crd *apiextensionsv1.CustomResourceDefinition, _ int) (*apiextensionsv1.CustomResourceDefinition, bool) {
		return crd.DeepCopy(), isForServices(crd)
	})
}

// MultiClusterCRDs returns the definitions of the Multi-Cluster Services API. Another program may have installed them already.
func MultiClusterCRDs() []*apiextensionsv1.CustomResourceDefinition {
	return lo.Map(decodedMultiCluster(), func(crd *apiextensionsv1.CustomResourceDefinition, _ int) *apiextensionsv1.CustomResourceDefinition {
		return crd.DeepCopy()
	})
}

var decodedMultiCluster = sync.OnceValue(func() []*apiextensionsv1.CustomResourceDefinition {
	return lo.Map([][]byte{crd.ServiceExportCRD, crd.ServiceImportCRD}, func(raw []byte, _ int) *apiextensionsv1.CustomResourceDefinition {
		out := &apiextensionsv1.CustomResourceDefinition{}
		lo.Must0(yaml.Unmarshal(raw, out)) // it is embedded
		labels, annotations := out.Labels, out.Annotations
		object(apiextensionsv1.SchemeGroupVersion, out, "", out.Name, lo.Assign(labels, commonLabels()))
		out.Annotations = lo.Assign(annotations, out.Annotations)
		out.Status = apiextensionsv1.CustomResourceDefinitionStatus{}
		return out
	})
})

// gatewayServicesRules are the permissions of a gateway that exchanges services.
func gatewayServicesRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		policyRule("list,watch", "liqonet.io", "exportedservices"),
		policyRule("list,watch,create,patch,delete", "liqonet.io", "receivedservices"),
	}
}

// Services returns the account of the controller of services, with its permissions and policies, and its Deployment, which needs
// them.
func Services(a Agents) (account []Object, workload []Object) {
	labels := ServicesLabels()
	name := v1alpha1.ServicesName
	account = accountObjects(name, name, labels,
		[]rbacv1.PolicyRule{
			policyRule("list,watch", "", "services,namespaces"),
			policyRule("list,watch", "discovery.k8s.io", "endpointslices"),
			policyRule("list,watch", mcs.GroupName, "serviceexports,serviceimports"),
			policyRule("list,watch", "liqonet.io", "peerings,clusternetworks,nodenetworks,exportedservices,receivedservices"),
			// ServicesPolicies limit these to what this controller makes.
			policyRule("create,patch,delete", "", "services"),
			policyRule("create,patch,delete", "discovery.k8s.io", "endpointslices"),
			// Without it, OpenShift refuses EndpointSlices with addresses of its own pods.
			policyRule("create", "discovery.k8s.io", "endpointslices/restricted"),
			policyRule("create,patch,delete", mcs.GroupName, "serviceimports"),
			policyRule("patch", mcs.GroupName, "serviceimports/status,serviceexports/status"),
			policyRule("create,patch,delete", "liqonet.io", "exportedservices"),
			policyRule("get", "", "namespaces", metav1.NamespaceSystem),
		},
		[]rbacv1.PolicyRule{policyRule("get,update", "coordination.k8s.io", "leases", name)})
	lease := object(coordinationv1.SchemeGroupVersion, &coordinationv1.Lease{}, v1alpha1.Namespace, name, labels)
	lease.Annotations = nil // the controller fills it
	account = slices.Concat(account, []Object{lease}, ServicesPolicies(), userRoles(labels))
	return account, []Object{servicesBudget(labels), servicesDeployment(a, labels)}
}

// userRoles let those who may change a namespace's objects export its services, and all who may read them see imports.
func userRoles(labels map[string]string) []Object {
	role := func(name, aggregate string, rules ...rbacv1.PolicyRule) Object {
		to := lo.Assign(labels, map[string]string{"rbac.authorization.k8s.io/aggregate-to-" + aggregate: "true"})
		return object(rbacv1.SchemeGroupVersion, &rbacv1.ClusterRole{Rules: rules}, "", name, to)
	}
	return []Object{
		role("liqonet-services-admin", "admin", policyRule("get,list,watch,create,update,patch,delete", mcs.GroupName, "serviceexports")),
		role("liqonet-services-view", "view", policyRule("get,list,watch", mcs.GroupName, "serviceexports,serviceimports")),
	}
}

// servicesBudget keeps one controller while nodes are drained.
func servicesBudget(labels map[string]string) *policyv1.PodDisruptionBudget {
	return object(policyv1.SchemeGroupVersion, &policyv1.PodDisruptionBudget{
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{labelComponent: "services"}},
			UnhealthyPodEvictionPolicy: new(policyv1.AlwaysAllow),
		},
	}, v1alpha1.Namespace, v1alpha1.ServicesName, labels)
}

// servicesDeployment runs two controllers, of which one works.
func servicesDeployment(a Agents, labels map[string]string) *appsv1.Deployment {
	c := agentContainer(a.Image, "10m", servicesMemory, "", "services")
	c.SecurityContext = restrictedContext(65532)
	c.SecurityContext.RunAsNonRoot = new(true)
	c.Env = append(c.Env, fieldEnv("POD_IPS", "status.podIPs"))
	c.Ports = []corev1.ContainerPort{metricsPort()}
	selector := map[string]string{labelComponent: "services"}
	pod := corev1.PodSpec{
		ServiceAccountName: v1alpha1.ServicesName, PriorityClassName: clusterCritical, TerminationGracePeriodSeconds: new(int64(10)),
		Affinity: nodes.Affinity(), Tolerations: servicesTolerations(), Containers: []corev1.Container{c},
	}
	pod.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{
		Weight: 100, PodAffinityTerm: corev1.PodAffinityTerm{LabelSelector: &metav1.LabelSelector{MatchLabels: selector}, TopologyKey: corev1.LabelHostname},
	}}}
	mountAccount(&pod)
	pod.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(65532))} // to read the token
	return withVersion(a, object(appsv1.SchemeGroupVersion, &appsv1.Deployment{
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: selector},
			Template: corev1.PodTemplateSpec{ObjectMeta: withoutMesh(metav1.ObjectMeta{Labels: labels}), Spec: pod},
		},
	}, v1alpha1.Namespace, v1alpha1.ServicesName, labels))
}

// servicesTolerations let the controller move soon from a node that is lost.
func servicesTolerations() []corev1.Toleration { return GatewayTolerations(nil, 1) }

// reservedNamespace is true for a namespace n that takes part in no exchange: see services.IsReserved.
const reservedNamespace = "(n.startsWith('kube-') || n == '" + v1alpha1.Namespace + "')"

// ServicesPolicies limit what the controller of services, and gateways that exchange services, may write. RBAC cannot distinguish the
// Services that the controller makes from all others.
//
// A policy that reads the ledger fails for everybody's writes while there is none: the API server finds its parameter before it looks at
// who writes. So these policies do nothing but compare addresses, and concern only objects of ours.
func ServicesPolicies() []Object {
	labels := ServicesLabels()
	return slices.Concat(controllerPolicy(labels), sliceRangesPolicy(labels), receivedPolicy(labels), receivedRangesPolicy(labels))
}

func byController() admissionv1.MatchCondition {
	return admissionv1.MatchCondition{Name: "services-controller", Expression: "request.userInfo.username == '" + accounts + v1alpha1.ServicesName + "'"}
}

// controllerPolicy limits the controller's objects to those that it makes.
func controllerPolicy(labels map[string]string) []Object {
	variables := []admissionv1.Variable{
		{Name: "both", Expression: "[object, oldObject].filter(o, o != null)"},
		{Name: "was", Expression: "oldObject == null ? {} : oldObject.metadata"},
		{Name: "owners", Expression: fmt.Sprintf(fieldOwnersOf, "object")},
		{Name: "ownersBefore", Expression: fmt.Sprintf(fieldOwnersOf, "oldObject")},
	}
	isOurs := fmt.Sprintf("variables.both.all(o, o.metadata.?labels[?'%s'].orValue('') == '%s' && o.metadata.?labels[?'%s'].orValue('') != '')", v1alpha1.LabelManagedBy, v1alpha1.FieldManager, mcs.LabelServiceName)
	exports := guard("== 'serviceexports'", []admissionv1.Validation{{
		Expression: fmt.Sprintf(ownersKept, "a.id in ['Apply', 'Update'].map(o, '"+v1alpha1.ServicesManager+" ' + o + ' ' + object.apiVersion + ' status')"),
		Message:    "the controller of services may not change who owns fields of a ServiceExport",
	}})
	own := guard("!= 'serviceexports'", []admissionv1.Validation{
		{Expression: "[request.?namespace.orValue('')].all(n, !" + reservedNamespace + ")", Message: "the controller of services writes nothing in this namespace"},
		{
			Expression: "object == null || object.metadata.?finalizers.orValue([]).all(f, f in variables.was.?finalizers.orValue([])) && " +
				"object.metadata.?ownerReferences.orValue([]).all(o, o in variables.was.?ownerReferences.orValue([])) && object.metadata.?managedFields.orValue([]).all(f, " + validTime + ")",
			Message: "the controller of services may add no finalizer or owner",
		},
	})
	conditions := []admissionv1.Validation{{
		Expression: "request.?subResource.orValue('') != 'status' || object.?status.conditions.orValue([]).all(c, timestamp(c.lastTransitionTime) < timestamp('9999-01-01T00:00:00Z'))",
		Message:    "a condition has a time that nobody can read",
	}}
	imports := guard("== 'serviceimports'", []admissionv1.Validation{
		{Expression: isOurs, Message: "the controller of services may write only ServiceImports that it has made"},
	})
	endpoints := guard("== 'endpointslices'", []admissionv1.Validation{
		{
			Expression: fmt.Sprintf("variables.both.all(o, o.metadata.name.startsWith('derived-') && o.metadata.?labels[?'%s'].orValue('') == '%s' && "+
				"o.metadata.?labels[?'%s'].orValue('derived-0000000000').matches('^derived-[a-z0-9]{10}$'))", discoveryv1.LabelManagedBy, v1alpha1.ServicesManager, discoveryv1.LabelServiceName),
			Message: "the controller of services may write only EndpointSlices that it has made",
		},
		{Expression: "object == null || " + endpointsOfSlice + ".all(e, !has(e.targetRef))", Message: "the endpoints refer to no objects"},
	})
	services := guard("== 'services'", []admissionv1.Validation{
		{
			Expression: isOurs + " && variables.both.all(o, o.metadata.name.matches('^derived-[a-z0-9]{10}$'))",
			Message:    "the controller of services may write only Services that it has made",
		},
		{
			Expression: "object == null || object.spec.?type.orValue('ClusterIP') == 'ClusterIP' && object.spec.?selector.orValue({}).size() == 0 && object.spec.?clusterIP.orValue('') != 'None' && " +
				"object.spec.?externalIPs.orValue([]).size() == 0 && !has(object.spec.loadBalancerIP) && !has(object.spec.loadBalancerClass) && !has(object.spec.externalName)",
			Message: "a Service that stands for an imported one has no selector and no external address",
		},
		{
			Expression: "object == null || object.metadata.?annotations.orValue({}).all(k, variables.was.?annotations[?k] == optional.of(object.metadata.annotations[k]))",
			Message:    "the controller of services writes no annotations of Services",
		},
	})
	p, binding := policyObjects("liqonet-services", labels, byController(), []admissionv1.NamedRuleWithOperations{
		rule("", "services", opCreate, opUpdate, opDelete),
		rule(discoveryv1.GroupName, "endpointslices", opCreate, opUpdate, opDelete),
		rule(mcs.GroupName, "serviceimports", opCreate, opUpdate, opDelete),
		rule(mcs.GroupName, "serviceimports/status", opUpdate),
		rule(mcs.GroupName, "serviceexports/status", opUpdate),
		rule(v1alpha1.GroupVersion.Group, "exportedservices", opCreate, opUpdate, opDelete),
	}, variables, slices.Concat(own, conditions, exports, imports, endpoints, services))
	return []Object{p, binding}
}

// endpointsOfSlice are the endpoints of an EndpointSlice. The list may be null.
const endpointsOfSlice = "(has(object.endpoints) && dyn(object.endpoints) != null ? object.endpoints : [])"

// ledgerRanges are the variables of policies that compare addresses with the ledger: the ranges by which this cluster knows a peer, which
// is the entry e for which isPeer is true.
func ledgerRanges(isPeer string) []admissionv1.Variable {
	return []admissionv1.Variable{
		{Name: "peers", Expression: "params.spec.?peers.orValue([]).filter(e, " + isPeer + ")"},
		{Name: "ranges", Expression: "variables.peers.size() != 1 ? [] : " +
			"variables.peers[0].?pods.orValue([]).map(m, cidr(m.mapped)) + (has(variables.peers[0].externalCIDR) ? [cidr(variables.peers[0].externalCIDR)] : [])"},
	}
}

// sliceRangesPolicy limits the addresses in the controller's EndpointSlices to those of the cluster from which they come.
func sliceRangesPolicy(labels map[string]string) []Object {
	variables := append([]admissionv1.Variable{
		{Name: "source", Expression: fmt.Sprintf("object.metadata.?labels[?'%s'].orValue('')", mcs.LabelSourceCluster)},
		{Name: "isOwn", Expression: "variables.source != '' && variables.source == params.spec.?services.?id.orValue('')"},
	}, ledgerRanges("e.?servicesID.orValue('') == variables.source && variables.source != ''")...)
	p, binding := policyObjects("liqonet-services-ranges", labels, byController(), []admissionv1.NamedRuleWithOperations{
		rule(discoveryv1.GroupName, "endpointslices", opCreate, opUpdate),
	}, variables, []admissionv1.Validation{{
		Expression: "variables.isOwn || " + endpointsOfSlice + ".all(e, !has(e.nodeName) && e.addresses.all(a, isIP(a) && variables.ranges.exists(r, r.containsIP(a))))",
		Message:    "an endpoint of a peer has an address that is not in the peer's ranges, or is on a node of this cluster",
	}})
	// The controller writes no others: see controllerPolicy.
	p.Spec.MatchConstraints.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{discoveryv1.LabelManagedBy: v1alpha1.ServicesManager}}
	return withLedger(p, binding)
}

// feeding returns the gateways of all peerings as writers of ReceivedServices.
func feeding() writer {
	by := gateway()
	by.owner = fmt.Sprintf("o.kind == 'Peering' && o.apiVersion == '%s' && o.name == variables.peering && !o.?controller.orValue(false) && !o.?blockOwnerDeletion.orValue(false)", v1alpha1.GroupVersion)
	by.manager = "m == '" + v1alpha1.FeedManager + "'"
	return by
}

// receivedPolicy limits gateways' ReceivedServices to those of their own Peering.
func receivedPolicy(labels map[string]string) []Object {
	by := feeding()
	return policy("liqonet-gateway-services", labels, by, []admissionv1.NamedRuleWithOperations{
		rule(v1alpha1.GroupVersion.Group, "receivedservices", opCreate, opUpdate, opDelete),
	}, []admissionv1.Variable{
		{Name: "name", Expression: "(object == null ? oldObject : object).metadata.name"},
		{Name: "importedTo", Expression: "variables.name.substring(variables.name.indexOf('.') + 1).split('.')[0]"},
	}, append([]admissionv1.Validation{
		{
			Expression: "variables.name.matches('^[^.]+[.][a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?[.][a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$') && variables.name.startsWith(variables.peering + '.')",
			Message:    "a gateway may write only the services of its own Peering",
		},
		{
			Expression: "object == null || [variables.importedTo].all(n, !" + reservedNamespace + ") && !variables.name.endsWith('.default.kubernetes')",
			Message:    "no service is imported into this namespace",
		},
	}, by.ownObjects()...))
}

// receivedRangesPolicy limits the addresses in gateways' ReceivedServices to those of their own peer.
func receivedRangesPolicy(labels map[string]string) []Object {
	by := feeding()
	return withLedger(policyObjects("liqonet-gateway-ranges", labels, by.condition, []admissionv1.NamedRuleWithOperations{
		rule(v1alpha1.GroupVersion.Group, "receivedservices", opCreate, opUpdate),
	}, slices.Concat(by.variables, ledgerRanges("e.name == variables.peering")), []admissionv1.Validation{{
		Expression: "object.spec.?slices.orValue([]).all(s, s.?endpoints.orValue([]).all(e, isIP(e.address) && variables.ranges.exists(r, r.containsIP(e.address))))",
		Message:    "an endpoint has an address that is not in the peer's ranges",
	}}))
}
