package services

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/services"
	"github.com/liqonet/liqonet/test/kit"
)

// named returns the metadata of an object in the namespace shop, with labels as key and value.
func named(name string, labels ...string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{}}
	for i := 0; i < len(labels); i += 2 {
		m.Labels[labels[i]] = labels[i+1]
	}
	return m
}

// The labels of the Services and EndpointSlices that the controller makes.
var (
	ofDerived = []string{v1alpha1.LabelManagedBy, v1alpha1.FieldManager, mcs.LabelServiceName, "web"}
	ofMade    = []string{discoveryv1.LabelManagedBy, v1alpha1.ServicesManager, mcs.LabelServiceName, "web", discoveryv1.LabelServiceName, web.DerivedName()}
)

func TestServicesOfObjects(t *testing.T) {
	for name, tt := range map[string]struct {
		obj    client.Object
		want   services.Key
		source string
	}{
		"Service":             {&corev1.Service{ObjectMeta: named("web")}, web, ""},
		"derived Service":     {&corev1.Service{ObjectMeta: named(web.DerivedName(), ofDerived...)}, web, ""},
		"slice":               {&discoveryv1.EndpointSlice{ObjectMeta: named("web-abc", discoveryv1.LabelServiceName, "web")}, web, ""},
		"slice of an import":  {&discoveryv1.EndpointSlice{ObjectMeta: named(web.DerivedName()+"-b-x", ofMade...)}, web, ""},
		"slice of no service": {&discoveryv1.EndpointSlice{ObjectMeta: named("abc")}, services.Key{}, ""},
		"ServiceExport":       {&mcs.ServiceExport{ObjectMeta: named("web")}, web, ""},
		"ServiceImport":       {&mcs.ServiceImport{ObjectMeta: named("web")}, web, ""},
		"ExportedService":     {&v1alpha1.ExportedService{ObjectMeta: metav1.ObjectMeta{Name: "shop.web"}}, web, ""},
		"ReceivedService":     {&v1alpha1.ReceivedService{ObjectMeta: metav1.ObjectMeta{Name: "b.shop.web"}}, web, "b"},
		"another name":        {&v1alpha1.ReceivedService{ObjectMeta: metav1.ObjectMeta{Name: "b.web"}}, services.Key{}, ""},
		"Namespace":           {&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, services.Key{}, ""},
	} {
		k, source, is := keysOf(tt.obj)
		if want := tt.want != (services.Key{}); is != want || is && (k != tt.want || source != tt.source) {
			t.Errorf("%s: %v of %q, %v", name, k, source, is)
		}
	}
}

func TestIndex(t *testing.T) {
	x := newIndex()
	add := func(objs ...client.Object) {
		for _, obj := range objs {
			k, source, _ := keysOf(obj)
			x.add(obj, k, source)
		}
	}
	names := func(in map[services.Key]map[string]bool, gone ...string) (out []string) {
		x.get(in, web, func(name string) bool {
			out = append(out, name)
			return !slices.Contains(gone, name)
		})
		slices.Sort(out)
		return out
	}
	add(&corev1.Service{ObjectMeta: named("other")}, &discoveryv1.EndpointSlice{ObjectMeta: named("other-x", discoveryv1.LabelServiceName, "other")})
	kit.Check(t, "services of which there is nothing else", len(x.in("")), 0)
	add(&discoveryv1.EndpointSlice{ObjectMeta: named("web-abc", discoveryv1.LabelServiceName, "web")},
		&discoveryv1.EndpointSlice{ObjectMeta: named("web-def", discoveryv1.LabelServiceName, "web")},
		&discoveryv1.EndpointSlice{ObjectMeta: named("derived-b-x", ofMade...)},
		&v1alpha1.ReceivedService{ObjectMeta: metav1.ObjectMeta{Name: "b.shop.web"}}, &v1alpha1.ReceivedService{ObjectMeta: metav1.ObjectMeta{Name: "c.shop.web"}})
	kit.Check(t, "sources", names(x.sources), []string{"web-abc", "web-def"})
	kit.Check(t, "made", names(x.derived), []string{"derived-b-x"})
	kit.Check(t, "received", names(x.received), []string{"b", "c"})
	kit.Check(t, "in the namespace", x.in("shop"), []services.Key{web})
	kit.Check(t, "in another namespace", len(x.in("default")), 0)
	kit.Check(t, "of a peer", x.of("b"), []services.Key{web})
	// What is gone is forgotten.
	names(x.received, "b")
	kit.Check(t, "received from one peer", names(x.received, "c"), []string{"c"})
	kit.Check(t, "of a peer that tells nothing", len(x.of("b"))+len(x.of("c"))+len(x.received), 0)
	names(x.derived, "derived-b-x")
	x.forget(web)
	kit.Check(t, "namespaces", len(x.in(""))+len(x.namespaces), 0)
}
