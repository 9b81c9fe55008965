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

func TestKeys(t *testing.T) {
	other := &discoveryv1.EndpointSlice{ObjectMeta: named("other-x", discoveryv1.LabelServiceName, "other")}
	in := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name}
	}
	p := play(t, &corev1.Service{ObjectMeta: named("other")}, other, receivedOf("b", 0, "10.62.1.5"), receivedOf("c", 0, "10.63.1.5"),
		&mcs.ServiceExport{ObjectMeta: in("shop", "exported")}, &mcs.ServiceImport{ObjectMeta: in("bank", "imported")},
		&v1alpha1.ExportedService{ObjectMeta: metav1.ObjectMeta{Name: "bank.told"}},
		&corev1.Service{ObjectMeta: named("derived-1", v1alpha1.LabelManagedBy, v1alpha1.FieldManager, mcs.LabelServiceName, "derived")},
		&discoveryv1.EndpointSlice{ObjectMeta: named("derived-2", discoveryv1.LabelManagedBy, v1alpha1.ServicesManager, mcs.LabelServiceName, "sliced")})
	defer p.end()
	names := func(keys []services.Key) (out []string) {
		for _, k := range keys {
			out = append(out, k.String())
		}
		slices.Sort(out)
		return out
	}
	inShop := []string{"shop/derived", "shop/exported", "shop/sliced", "shop/web"}
	kit.Check(t, "in all namespaces", names(p.keys("")), append([]string{"bank/imported", "bank/told"}, inShop...))
	kit.Check(t, "in one", names(p.keys("shop")), inShop)
	kit.Check(t, "in another one", names(p.keys("default")), nil, kit.Compare)
	kit.Check(t, "of a peer", names(p.keysFrom("b")), []string{"shop/web"})
	kit.Check(t, "of another one", names(p.keysFrom("d")), nil, kit.Compare)
}

// Services and slices of which nothing is exported are not looked at.
func TestServicesOfTheClusterItself(t *testing.T) {
	p := play(t, append(exportOf(0), peer("b", v1alpha1.ImportAll))...)
	defer p.end()
	p.drain()
	for _, obj := range []client.Object{&corev1.Service{ObjectMeta: named("other")}, &discoveryv1.EndpointSlice{ObjectMeta: named("other-x", discoveryv1.LabelServiceName, "other")}} {
		p.observe(obj)
	}
	kit.Check(t, "not exported", p.drain(), nil, kit.Compare)
	p.observe(&discoveryv1.EndpointSlice{ObjectMeta: named("web-new", discoveryv1.LabelServiceName, "web")})
	kit.Check(t, "exported", p.drain(), []string{":shop/web"})
}
