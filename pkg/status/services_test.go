package status

import (
	"slices"
	"testing"

	"github.com/samber/lo"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/schema"
)

// imported returns the objects of one imported service.
func imported(name string) servicesRead {
	is := metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager, mcs.LabelServiceName: name}}
	slice := discoveryv1.EndpointSlice{ObjectMeta: is, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.62.1.5"}}}}
	received := v1alpha1.ReceivedService{ObjectMeta: metav1.ObjectMeta{Name: "b.shop." + name}}
	return servicesRead{
		exports: mcs.ServiceExportList{Items: []mcs.ServiceExport{{ObjectMeta: is}}},
		imports: mcs.ServiceImportList{Items: []mcs.ServiceImport{{
			ObjectMeta: is, Spec: mcs.ServiceImportSpec{Type: mcs.ClusterSetIP, IPs: []string{"10.96.0.7"}, Ports: []mcs.ServicePort{{Port: 80}}},
			Status: mcs.ServiceImportStatus{Clusters: []mcs.ClusterStatus{{Cluster: "id-b"}}},
		}}},
		slices:   discoveryv1.EndpointSliceList{Items: []discoveryv1.EndpointSlice{slice}},
		received: v1alpha1.ReceivedServiceList{Items: []v1alpha1.ReceivedService{received}},
		peerings: v1alpha1.PeeringList{Items: []v1alpha1.Peering{{
			ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: v1alpha1.PeeringSpec{Services: &v1alpha1.PeeringServices{RemoteID: "id-b"}},
		}}},
	}
}

func TestServiceViews(t *testing.T) {
	r := imported("web")
	r.received.Items = append(r.received.Items, v1alpha1.ReceivedService{ObjectMeta: metav1.ObjectMeta{Name: "b.elsewhere.db"}})
	r.index()
	views := r.views("a")
	kit.Check(t, "services", lo.Map(views, func(v ServiceView, _ int) string { return v.Cluster + " " + v.Namespace + "/" + v.Name }), []string{"a elsewhere/db", "a shop/web"})
	web := views[1]
	kit.Check(t, "endpoints", []int{web.Ready, web.Endpoints}, []int{1, 1})
	kit.Check(t, "where", slices.Concat(web.Clusters, web.Addresses, web.Ports), []string{"id-b", "10.96.0.7", "80"})
	kit.Check(t, "problems", web.Problems, []string{"nothing has exported it yet"})
	kit.ErrorIf(t, len(views[0].Problems) != 1 || views[0].Exported, "what is not imported: %+v", views[0])
	n := &ServicesView{RemoteID: "id-b"}
	r.count("b", n)
	kit.Check(t, "numbers", []int{n.Exported, n.Received, n.Imported, n.Withdrawn}, []int{0, 2, 1, 0})
}

// Whatever the controller of services writes into the objects of one service, another one is shown as before.
func TestHostileObjectsOfServices(t *testing.T) {
	kit.NotShort(t)
	one := imported("other")
	one.index()
	want := one.views("a")[0]
	try := func(field string, add func(r *servicesRead, name metav1.ObjectMeta)) {
		r := imported("other")
		add(&r, metav1.ObjectMeta{Namespace: "shop", Name: "web", Labels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager, mcs.LabelServiceName: "web"}})
		r.index()
		got, found := lo.Find(r.views("a"), func(v ServiceView) bool { return v.Name == "other" })
		kit.ErrorIf(t, !found, "%s: the other service is gone", field)
		kit.Check(t, field, got, want)
		n := &ServicesView{RemoteID: "id-b"}
		r.count("b", n)
		kit.ErrorIf(t, n.Imported != 1 || n.Received != 1, "%s: %+v", field, n)
	}
	schema.BuiltIn(t, 10, func(field string, hostile mcs.ServiceImport) {
		try(field, func(r *servicesRead, name metav1.ObjectMeta) {
			hostile.Name, hostile.Namespace = name.Name, name.Namespace
			r.imports.Items = append(r.imports.Items, hostile)
		})
	})
	schema.BuiltIn(t, 10, func(field string, hostile mcs.ServiceExport) {
		try(field, func(r *servicesRead, name metav1.ObjectMeta) {
			hostile.Name, hostile.Namespace = name.Name, name.Namespace
			r.exports.Items = append(r.exports.Items, hostile)
		})
	})
	schema.BuiltIn(t, 10, func(field string, hostile discoveryv1.EndpointSlice) {
		try(field, func(r *servicesRead, name metav1.ObjectMeta) {
			hostile.ObjectMeta = name // a policy fixes name and labels
			r.slices.Items = append(r.slices.Items, hostile)
		})
	})
}
