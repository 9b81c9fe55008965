package attack_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/services"
	"github.com/liqonet/liqonet/test/apiserver"
	"github.com/liqonet/liqonet/test/kit"
)

// exchange is a cluster that exchanges services with two peers.
type exchange struct {
	*apiserver.Server
	// gateway is that of the first peering. The second one has a gateway without permissions for services.
	controller, gateway, without client.Client
	owner                        metav1.OwnerReference
}

// ledgerOf returns a ledger with peers, each with that number of ranges.
func ledgerOf(peers, ranges int) *v1alpha1.ClusterNetwork {
	cn := manifests.ClusterNetwork(v1alpha1.ClusterNetworkSpec{InternalCIDR: kit.CIDR("10.80.0.0/19"), Services: &v1alpha1.ClusterServices{ID: "own"}})
	for i := range peers {
		e := v1alpha1.PeerAllocation{
			ClusterID: fmt.Sprint("id-", i), Name: fmt.Sprint("p", i), ServicesID: fmt.Sprint("id", i), Index: int32(i), Phase: v1alpha1.PeerActive,
			ExternalCIDR: kit.CIDR(fmt.Sprintf("172.%d.%d.0/18", 16+i%16, i/16%4*64)),
		}
		for r := range ranges {
			e.Pods = append(e.Pods, kit.Mapping(fmt.Sprintf("10.244.%d.0/24", r), fmt.Sprintf("10.%d.%d.0/24", 100+i%100, r)))
		}
		cn.Spec.Peers = append(cn.Spec.Peers, e)
	}
	return cn
}

func newExchange(t *testing.T, ledger *v1alpha1.ClusterNetwork) *exchange {
	t.Helper()
	s := apiserver.Start(t)
	x := &exchange{Server: s}
	create := func(objs ...client.Object) {
		t.Helper()
		for _, obj := range objs {
			apiserver.Wait(t, "create "+obj.GetName(), func() error { return client.IgnoreAlreadyExists(s.Admin.Create(t.Context(), obj)) })
		}
	}
	create(manifests.Namespace(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	for _, crd := range slices.Concat(manifests.CRDs(), manifests.ServicesCRDs(), manifests.MultiClusterCRDs()) {
		create(crd)
	}
	create(ledger)
	account, _ := manifests.Services(manifests.Agents{Image: "image"})
	for _, peering := range []string{"p0", "p1"} {
		of, _ := manifests.Gateway{Peering: peering, Role: v1alpha1.Client, KeyGeneration: 1, Services: peering == "p0"}.Objects()
		account = append(account, of...)
	}
	for _, obj := range account {
		create(obj.(client.Object))
	}
	p := newPeering("p0", 0)
	create(p)
	x.owner = manifests.OwnerReferences("p0", p.UID)[0]
	x.controller = client.WithFieldOwner(s.Agent(t, v1alpha1.ServicesName, nil), v1alpha1.ServicesManager)
	x.gateway = client.WithFieldOwner(s.Agent(t, manifests.Gateway{Peering: "p0"}.Name(), nil), v1alpha1.FeedManager)
	x.without = client.WithFieldOwner(s.Agent(t, manifests.Gateway{Peering: "p1"}.Name(), nil), v1alpha1.FeedManager)
	// When what is not allowed is refused, the policies have come into force.
	for what, try := range map[string]func() error{
		"Services": func() error {
			return x.controller.Create(t.Context(), x.service(func(s *corev1.Service) { s.Spec.Selector = map[string]string{"a": "b"} }), client.DryRunAll)
		},
		"EndpointSlices": func() error { return x.controller.Create(t.Context(), x.slice("id0", "8.8.8.8"), client.DryRunAll) },
		"ReceivedServices of others": func() error {
			return x.gateway.Create(t.Context(), x.received("p1.shop.web", "10.100.0.1"), client.DryRunAll)
		},
		"ReceivedServices": func() error {
			return x.gateway.Create(t.Context(), x.received("p0.shop.web", "8.8.8.8"), client.DryRunAll)
		},
	} {
		apiserver.Wait(t, "refuse "+what, func() error {
			if err := try(); !apierrors.IsForbidden(err) {
				return fmt.Errorf("the answer is %w", err)
			}
			return nil
		})
	}
	return x
}

var web = services.Key{Namespace: "shop", Name: "web"}

func ourLabels() map[string]string {
	return map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager, mcs.LabelServiceName: "web"}
}

func (x *exchange) service(changes ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: web.DerivedName(), Labels: ourLabels()},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}
	for _, change := range changes {
		change(s)
	}
	return s
}

func (x *exchange) slice(source, address string, changes ...func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: web.DerivedName() + "-" + source + "-x", Labels: ourLabels()},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}}},
	}
	s.Labels[discoveryv1.LabelManagedBy], s.Labels[discoveryv1.LabelServiceName], s.Labels[mcs.LabelSourceCluster] = v1alpha1.ServicesManager, web.DerivedName(), source
	for _, change := range changes {
		change(s)
	}
	return s
}

func (x *exchange) received(name, address string, changes ...func(*v1alpha1.ReceivedService)) *v1alpha1.ReceivedService {
	r := &v1alpha1.ReceivedService{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager, v1alpha1.LabelPeering: "p0"}, OwnerReferences: []metav1.OwnerReference{x.owner},
		},
		Spec: v1alpha1.ReceivedServiceSpec{Hash: "abc", ServiceRecord: v1alpha1.ServiceRecord{
			Created: metav1.NewTime(time.Unix(1e9, 0)), Type: v1alpha1.ClusterSetIP, Ports: []v1alpha1.RecordPort{{Protocol: "TCP", Port: 80}},
			Slices: []v1alpha1.RecordSlice{{ID: "x", Endpoints: []v1alpha1.RecordEndpoint{{Address: v1alpha1.IP{Addr: addr(address)}, Ready: true}}}},
		}},
	}
	for _, change := range changes {
		change(r)
	}
	return r
}

func (x *exchange) serviceImport(changes ...func(*mcs.ServiceImport)) *mcs.ServiceImport {
	i := &mcs.ServiceImport{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Labels: ourLabels()},
		Spec:       mcs.ServiceImportSpec{Type: mcs.ClusterSetIP, Ports: []mcs.ServicePort{{Port: 80}}},
	}
	for _, change := range changes {
		change(i)
	}
	return i
}

// What the tokens of the controller of services, and of a gateway, can write: the API server's answers.
func TestAttackServices(t *testing.T) {
	kit.NotShort(t)
	t.Parallel()
	x := newExchange(t, ledgerOf(2, 1))
	foreign := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "foreign"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	foreignSlice := x.slice("id0", "10.100.0.1", func(s *discoveryv1.EndpointSlice) { s.Name, s.Labels = "foreign", nil })
	foreignImport := x.serviceImport(func(i *mcs.ServiceImport) { i.Name, i.Labels = "foreign", nil })
	export := &mcs.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
	foreignReceived := x.received("p1.shop.own", "10.101.0.1", func(r *v1alpha1.ReceivedService) { r.Labels[v1alpha1.LabelPeering] = "p1" })
	exported := &v1alpha1.ExportedService{ObjectMeta: metav1.ObjectMeta{Name: "shop.own"}, Spec: v1alpha1.ExportedServiceSpec{ServiceRecord: x.received("p0.a.b", "10.1.1.1").Spec.ServiceRecord}}
	own := []client.Object{x.service(), x.slice("id0", "10.100.0.1"), x.serviceImport(), x.received("p0.shop.own", "10.100.0.1")}
	for _, obj := range append(own, foreign, foreignSlice, foreignImport, foreignReceived, export, exported) {
		kit.NoError(t, x.Admin.Create(t.Context(), obj.DeepCopyObject().(client.Object)))
	}
	// Others may label our objects, and an agent's next write is admitted.
	for _, obj := range own {
		kit.NoError(t, x.Admin.Patch(t.Context(), obj, merged("%s", `{"metadata":{"labels":{"team":"shop"},"annotations":{"team":"shop"}}}`)))
	}
	other := func(name string) func(*corev1.Service) { return func(s *corev1.Service) { s.Name = name } }
	create := func(by client.Client, obj client.Object) func(context.Context) error {
		return func(ctx context.Context) error { return by.Create(ctx, obj, client.DryRunAll) }
	}
	remove := func(by client.Client, obj client.Object) func(context.Context) error {
		return func(ctx context.Context) error { return by.Delete(ctx, obj, client.DryRunAll) }
	}
	patch := func(by client.Client, obj client.Object, body string) func(context.Context) error {
		return func(ctx context.Context) error { return by.Patch(ctx, obj, merged("%s", body), client.DryRunAll) }
	}
	// apply is a write of an object that need not exist, as the agents write.
	apply := func(by client.Client, obj client.Object, format string, values ...any) func(context.Context) error {
		return func(ctx context.Context) error {
			return by.Patch(ctx, obj, client.RawPatch(types.ApplyPatchType, fmt.Appendf(nil, format, values...)), client.ForceOwnership, client.DryRunAll)
		}
	}
	status := func(by client.Client, obj client.Object, part string) func(context.Context) error {
		return func(context.Context) error { return patchStatus(t, by, obj, part) }
	}
	renew := func(by client.Client, name string) func(context.Context) error {
		return func(ctx context.Context) error {
			l := lease(name)
			if err := by.Get(ctx, client.ObjectKeyFromObject(l), l); err != nil {
				return err
			}
			l.Spec.HolderIdentity = ptr.To("x")
			return by.Update(ctx, l, client.DryRunAll)
		}
	}
	list := func(by client.Client, of client.ObjectList) func(context.Context) error {
		return func(ctx context.Context) error { return by.List(ctx, of) }
	}
	unreadable := func(version string) string {
		return fmt.Sprintf(`{"metadata":{"managedFields":[{"manager":"x","operation":"Update","apiVersion":%q,"time":"9999-12-31T23:59:59Z","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{}}}]}}`, version)
	}
	second := other("derived-0123456789")
	const finalizer, owner, annotation = `{"metadata":{"finalizers":["a/b"]}}`, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n","uid":"u"}]}}`, `{"metadata":{"annotations":{"a/b":"c"}}}`
	const ours = `"app.kubernetes.io/managed-by":"liqonet","multicluster.kubernetes.io/service-name":"web"`
	const adopt = `{"metadata":{"labels":{"app.kubernetes.io/managed-by":"liqonet","multicluster.kubernetes.io/service-name":"web","endpointslice.kubernetes.io/managed-by":"services.liqonet.io"}}}`
	c, g := x.controller, x.gateway
	for _, tt := range []struct {
		what   string
		passes bool
		try    func(context.Context) error
	}{
		{"a derived Service", true, create(c, x.service(second))},
		{"an update of its ports", true, patch(c, x.service(), `{"spec":{"ports":[{"port":81}]}}`)},
		{"its deletion", true, remove(c, x.service())},
		{"a selector", false, create(c, x.service(second, func(s *corev1.Service) { s.Spec.Selector = map[string]string{"a": "b"} }))},
		{"a selector, later", false, patch(c, x.service(), `{"spec":{"selector":{"a":"b"}}}`)},
		{"an external IP", false, create(c, x.service(second, func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"192.0.2.1"} }))},
		{"a load balancer", false, create(c, x.service(second, func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer }))},
		{"a node port", false, create(c, x.service(second, func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort }))},
		{"an external name", false, create(c, x.service(second, func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.com"
		}))},
		{"no cluster IP", false, create(c, x.service(second, func(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone }))},
		{"another name", false, create(c, x.service(other("web")))},
		{"no labels", false, create(c, x.service(second, func(s *corev1.Service) { s.Labels = nil }))},
		{"a reserved namespace", false, create(c, x.service(func(s *corev1.Service) { s.Namespace = metav1.NamespaceSystem }))},
		{"our namespace", false, create(c, x.service(func(s *corev1.Service) { s.Namespace = v1alpha1.Namespace }))},
		{"an annotation of a Service", false, patch(c, x.service(), annotation)},
		{"a finalizer of a Service", false, patch(c, x.service(), finalizer)},
		{"an owner of a Service", false, patch(c, x.service(), owner)},
		{"a foreign Service", false, patch(c, foreign, `{"spec":{"ports":[{"port":81}]}}`)},
		{"a foreign Service, with our labels", false, patch(c, foreign, adopt)},
		{"the deletion of a foreign Service", false, remove(c, foreign)},
		{"a foreign Service, as its own", false, apply(c, foreign, `{"apiVersion":"v1","kind":"Service","metadata":{"name":"foreign","namespace":"shop","labels":{%s}}}`, ours)},
		{"a generated name", false, create(c, x.service(func(s *corev1.Service) { s.Name, s.GenerateName = "", "derived-" }))},
		{"a time that nobody can read, on a Service", false, patch(c, x.service(), unreadable("v1"))},
		{"the labels of our Service", false, patch(c, x.service(), `{"metadata":{"labels":{"app.kubernetes.io/managed-by":null}}}`)},

		{"a slice of a peer", true, create(c, x.slice("id1", "10.101.0.7"))},
		{"a slice with an exposed host", true, create(c, x.slice("id1", "172.17.0.9"))},
		{"a slice of this cluster", true, create(c, x.slice("own", "10.9.9.9", func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].NodeName = ptr.To("n") }))},
		{"a headless slice", true, create(c, x.slice("id1", "10.101.0.7", func(s *discoveryv1.EndpointSlice) { delete(s.Labels, discoveryv1.LabelServiceName) }))},
		{"its deletion", true, remove(c, x.slice("id0", "10.100.0.1"))},
		{"an address of another peer", false, create(c, x.slice("id1", "10.100.0.7"))},
		{"an address of nobody", false, create(c, x.slice("id1", "8.8.8.8"))},
		{"an unknown cluster", false, create(c, x.slice("id9", "10.100.0.7"))},
		{"no cluster", false, create(c, x.slice("id1", "10.101.0.7", func(s *discoveryv1.EndpointSlice) { delete(s.Labels, mcs.LabelSourceCluster) }))},
		{"a peer's endpoint on a node", false, create(c, x.slice("id1", "10.101.0.7", func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].NodeName = ptr.To("n") }))},
		{"a slice of a foreign Service", false, create(c, x.slice("id1", "10.101.0.7", func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelServiceName] = "foreign" }))},
		{"a slice without endpoints", true, apply(c, x.slice("id1", ""), `{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"name":%q,"namespace":"shop","labels":{
			"multicluster.kubernetes.io/source-cluster":"id1","endpointslice.kubernetes.io/managed-by":"services.liqonet.io",%s}},"addressType":"IPv4","endpoints":[],"ports":[]}`, x.slice("id1", "").Name, ours)},
		{"a slice with a list of endpoints that is null", true, create(c, x.slice("id1", "", func(s *discoveryv1.EndpointSlice) { s.Endpoints = nil }))},
		{"a peer's endpoint with a name", false, create(c, x.slice("id1", "example.com", func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeFQDN }))},
		{"an endpoint that refers to a pod", false, create(c, x.slice("own", "10.9.9.9", func(s *discoveryv1.EndpointSlice) {
			s.Endpoints[0].TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "x"}
		}))},
		{"a slice in a reserved namespace", false, create(c, x.slice("own", "10.9.9.9", func(s *discoveryv1.EndpointSlice) { s.Namespace = metav1.NamespaceSystem }))},
		{"another peer's ID, later", false, patch(c, x.slice("id0", ""), `{"metadata":{"labels":{"multicluster.kubernetes.io/source-cluster":"id1"}}}`)},
		{"a time that nobody can read, on a slice", false, patch(c, x.slice("id0", ""), unreadable("discovery.k8s.io/v1"))},
		{"another manager", false, create(c, x.slice("id1", "10.101.0.7", func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelManagedBy] = "x" }))},
		{"a foreign slice", false, patch(c, foreignSlice, adopt)},
		{"the deletion of a foreign slice", false, remove(c, foreignSlice)},
		{"a finalizer of a slice", false, patch(c, x.slice("id0", "10.100.0.1"), finalizer)},

		{"a ServiceImport", true, create(c, x.serviceImport(func(i *mcs.ServiceImport) { i.Name = "other" }))},
		{"a ServiceImport without our labels", false, create(c, x.serviceImport(func(i *mcs.ServiceImport) { i.Name, i.Labels = "other", nil }))},
		{"a foreign ServiceImport", false, patch(c, foreignImport, adopt)},
		{"the deletion of a foreign ServiceImport", false, remove(c, foreignImport)},
		{"the status of a ServiceImport", true, status(c, x.serviceImport(), `{"clusters":[{"cluster":"id0"}]}`)},
		{"the status of a foreign ServiceImport", false, status(c, foreignImport, `{"clusters":[{"cluster":"id0"}]}`)},
		{"a ServiceImport in a reserved namespace", false, create(c, x.serviceImport(func(i *mcs.ServiceImport) { i.Namespace = metav1.NamespaceSystem }))},
		{"a finalizer of a ServiceImport", false, patch(c, x.serviceImport(), finalizer)},
		{"the conditions of a ServiceExport, in a user's name", false, func(ctx context.Context) error {
			raw := fmt.Appendf(nil, `{"apiVersion":%q,"kind":"ServiceExport","metadata":{"name":"web","namespace":"shop"},"status":{"conditions":[%s]}}`, mcs.GroupVersion.String(), condition("Valid", "True", "Valid", ""))
			return c.Status().Patch(ctx, export, client.RawPatch(types.ApplyPatchType, raw), client.ForceOwnership, client.DryRunAll, client.FieldOwner("user"))
		}},
		{"a condition with a time that nobody can read", false, status(c, export, `{"conditions":[`+strings.Replace(condition("Valid", "True", "Valid", ""), "2026-01-01", "9999-12-31", 1)+`]}`)},
		{"the conditions of a ServiceExport", true, status(c, export, `{"conditions":[`+condition("Valid", "True", "Valid", "")+`]}`)},
		{"a ServiceExport", false, patch(c, export, annotation)},
		{"the spec of a ServiceExport", false, patch(c, export, `{"spec":{"exportedLabels":{"a":"b"}}}`)},
		{"the deletion of a ServiceExport", false, remove(c, export)},
		{"an ExportedService", true, create(c, &v1alpha1.ExportedService{ObjectMeta: metav1.ObjectMeta{Name: "shop.web"}, Spec: v1alpha1.ExportedServiceSpec{ServiceRecord: x.received("p0.a.b", "10.1.1.1").Spec.ServiceRecord}})},
		{"a finalizer of an ExportedService", false, create(c, &v1alpha1.ExportedService{ObjectMeta: metav1.ObjectMeta{Name: "shop.web", Finalizers: []string{"a/b"}}, Spec: v1alpha1.ExportedServiceSpec{ServiceRecord: x.received("p0.a.b", "10.1.1.1").Spec.ServiceRecord}})},
		{"the deletion of an ExportedService", true, remove(c, exported)},
		{"its Lease", true, renew(c, v1alpha1.ServicesName)},
		{"a gateway's Lease", false, renew(c, manifests.Gateway{Peering: "p0"}.Name())},
		{"all Secrets", false, list(c, &corev1.SecretList{})},
		{"a peer's service", false, create(c, x.received("p0.shop.web", "10.100.0.1"))},
		{"the ledger", false, patch(c, ledgerOf(0, 0), annotation)},
		{"a Secret", false, create(c, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "x"}})},
		{"a pod", false, create(c, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "x"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "x", Image: "x"}}}})},

		{"a service of the gateway's peer", true, create(g, x.received("p0.shop.web", "10.100.0.1"))},
		{"its update", true, patch(g, x.received("p0.shop.own", "10.100.0.1"), `{"spec":{"hash":"xyz"}}`)},
		{"its deletion", true, remove(g, x.received("p0.shop.own", "10.100.0.1"))},
		{"a service of another peering", false, create(g, x.received("p1.shop.web", "10.101.0.1"))},
		{"a service of nobody", false, create(g, x.received("p0x.shop.web", "10.100.0.1"))},
		{"a service in a reserved namespace", false, create(g, x.received("p0.kube-system.web", "10.100.0.1"))},
		{"a service in our namespace", false, create(g, x.received("p0.liqonet-system.web", "10.100.0.1"))},
		{"the API server's service", false, create(g, x.received("p0.default.kubernetes", "10.100.0.1"))},
		{"an endpoint of another peer", false, create(g, x.received("p0.shop.web", "10.101.0.1"))},
		{"an endpoint of this cluster", false, create(g, x.received("p0.shop.web", "10.244.0.1"))},
		{"an endpoint later", false, patch(g, x.received("p0.shop.own", "10.100.0.1"), `{"spec":{"slices":[{"id":"x","endpoints":[{"address":"8.8.8.8"}]}]}}`)},
		{"another label", false, create(g, x.received("p0.shop.web", "10.100.0.1", func(r *v1alpha1.ReceivedService) { r.Labels["a"] = "b" }))},
		{"no owner", false, create(g, x.received("p0.shop.web", "10.100.0.1", func(r *v1alpha1.ReceivedService) { r.OwnerReferences = nil }))},
		{"a second owner", false, create(g, x.received("p0.shop.web", "10.100.0.1", func(r *v1alpha1.ReceivedService) {
			r.OwnerReferences = append(r.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: "n", UID: "u"})
		}))},
		{"another owner", false, create(g, x.received("p0.shop.web", "10.100.0.1", func(r *v1alpha1.ReceivedService) { r.OwnerReferences[0].Name = "p1" }))},
		{"a finalizer", false, create(g, x.received("p0.shop.web", "10.100.0.1", func(r *v1alpha1.ReceivedService) { r.Finalizers = []string{"a/b"} }))},
		{"an annotation", false, patch(g, x.received("p0.shop.own", "10.100.0.1"), annotation)},
		{"a time that nobody can read, on a peer's service", false, patch(g, x.received("p0.shop.own", "10.100.0.1"), unreadable(v1alpha1.GroupVersion.String()))},
		{"a label of others", false, patch(g, x.received("p0.shop.own", "10.100.0.1"), `{"metadata":{"labels":{"team":null}}}`)},
		{"no label", false, patch(g, x.received("p0.shop.own", "10.100.0.1"), `{"metadata":{"labels":null}}`)},
		{"a service of another peering, later", false, patch(g, foreignReceived, `{"spec":{"hash":"xyz"}}`)},
		{"the deletion of another peering's service", false, remove(g, foreignReceived)},
		{"a service with a generated name", false, create(g, x.received("", "10.100.0.1", func(r *v1alpha1.ReceivedService) { r.GenerateName = "p1.shop." }))},
		{"an exposed host of another peer", false, create(g, x.received("p0.shop.web", "172.17.32.1"))},
		{"a ServiceImport of a gateway", false, create(g, x.serviceImport(func(i *mcs.ServiceImport) { i.Name = "other" }))},
		{"the conditions of a ServiceExport, by a gateway", false, status(g, export, `{"conditions":[]}`)},
		{"a service, by a gateway that exchanges none", false, create(x.without, foreignReceived)},
		{"what peers export, by a gateway that exchanges no services", false, list(x.without, &v1alpha1.ReceivedServiceList{})},
		{"what is exported, by a gateway that exchanges no services", false, list(x.without, &v1alpha1.ExportedServiceList{})},
		{"a Service", false, create(g, x.service(second))},
		{"an EndpointSlice", false, create(g, x.slice("id1", "10.101.0.7"))},
		{"an ExportedService of a gateway", false, create(g, &v1alpha1.ExportedService{ObjectMeta: metav1.ObjectMeta{Name: "shop.web"}})},
	} {
		err := tt.try(t.Context())
		refused := apierrors.IsForbidden(err) || apierrors.IsInvalid(err)
		kit.ErrorIf(t, tt.passes && err != nil || !tt.passes && !refused, "%s: the answer is %v", tt.what, err)
	}
	// A cluster that exchanges no services has no endpoints of its own.
	kit.NoError(t, x.Admin.Patch(t.Context(), ledgerOf(0, 0), merged("%s", `{"spec":{"services":null}}`)))
	apiserver.Wait(t, "refuse slices of a cluster without an ID", func() error {
		if create(c, x.slice("own", "10.9.9.9"))(t.Context()) == nil {
			return errors.New("it is admitted")
		}
		return nil
	})
	err := create(c, x.slice("own", "10.9.9.9", func(s *discoveryv1.EndpointSlice) { delete(s.Labels, mcs.LabelSourceCluster) }))(t.Context())
	kit.ErrorIf(t, !apierrors.IsForbidden(err), "a slice of no cluster: the answer is %v", err)
	// Without the ledger, policies that have it as their parameter deny everything.
	kit.NoError(t, x.Admin.Patch(t.Context(), ledgerOf(0, 0), merged("%s", `{"metadata":{"finalizers":null}}`)))
	kit.NoError(t, x.Admin.Delete(t.Context(), ledgerOf(0, 0)))
	for what, try := range map[string]func(context.Context) error{
		"a slice": create(c, x.slice("id1", "10.101.0.7")), "a service of a peer": create(g, x.received("p0.shop.web", "10.100.0.1")),
	} {
		apiserver.Wait(t, "refuse "+what+" without the ledger", func() error {
			if err := try(t.Context()); err == nil {
				return fmt.Errorf("%s is admitted", what)
			}
			return nil
		})
	}
	// Others are not concerned: their slices are written, and all of ours can be deleted, as with a namespace or a Peering.
	for what, try := range map[string]func(context.Context) error{
		"a slice of another controller": create(x.Admin, x.slice("id0", "10.100.0.1", func(s *discoveryv1.EndpointSlice) { s.Name, s.Labels = "another", nil })),
		"the deletion of our slice":     remove(x.Admin, x.slice("id0", "")), "the deletion of a peer's service": remove(x.Admin, foreignReceived),
	} {
		kit.CheckNoError(t, try(t.Context()), "%s, without the ledger", what)
	}
	// The second column: without the policies, the same attacks succeed.
	for _, obj := range manifests.ServicesPolicies() {
		if _, is := obj.(*admissionv1.ValidatingAdmissionPolicyBinding); is {
			kit.NoError(t, x.Admin.Delete(t.Context(), obj.(client.Object)))
		}
	}
	for what, try := range map[string]func(context.Context) error{
		"a selector":        create(c, x.service(second, func(s *corev1.Service) { s.Spec.Selector = map[string]string{"a": "b"} })),
		"a foreign Service": patch(c, foreign, adopt), "an address of nobody": create(c, x.slice("id1", "8.8.8.8")),
		"an endpoint of another peer": create(g, x.received("p0.shop.web", "10.101.0.1")),
	} {
		apiserver.Wait(t, what+" succeeds without the policy", func() error { return try(t.Context()) })
	}
}

// The largest slice and the largest ledger are within the API server's budget for expressions.
func TestPoliciesAreAffordable(t *testing.T) {
	kit.NotShort(t)
	t.Parallel()
	ledger := ledgerOf(511, 2)
	ledger.Spec.Peers[510].Pods = ledgerOf(511, 64).Spec.Peers[510].Pods
	x := newExchange(t, ledger)
	full := x.slice("id510", "10.110.63.1", func(s *discoveryv1.EndpointSlice) {
		for i := range v1alpha1.MaxSliceEndpoints - 1 {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.110.63.%d", 2+i)}})
		}
	})
	begin := time.Now()
	const rounds = 20
	for range rounds {
		kit.NoError(t, x.controller.Create(t.Context(), full.DeepCopy(), client.DryRunAll))
	}
	took := time.Since(begin) / rounds
	begin = time.Now()
	for range rounds {
		kit.NoError(t, x.Admin.Create(t.Context(), full.DeepCopy(), client.DryRunAll))
	}
	t.Logf("a slice with %d endpoints, and a ledger with 511 peers, of which this one has 64 ranges: %s, without the policy %s", len(full.Endpoints), took, time.Since(begin)/rounds)
	kit.ErrorIf(t, strings.Contains(fmt.Sprint(x.controller.Create(t.Context(), x.slice("id510", "8.8.8.8"), client.DryRunAll)), "budget"), "the budget is exceeded")
}
