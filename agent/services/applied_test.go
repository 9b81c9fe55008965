package services

import (
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/kit"
)

// Labels and annotations that others add to our objects stay, and do not make the controller write them all the time. Its own ones are removed
// when they are not wanted anymore.
func TestLabelsOfOthers(t *testing.T) {
	objs := append(exportOf(0), peer("b", v1alpha1.ImportAll), receivedOf("b", 1, "10.62.1.5"))
	objs[0].(*mcs.ServiceExport).Spec.ExportedLabels = map[string]string{"app": "web", "tier": "front"}
	p := play(t, objs...)
	defer p.end()
	p.settle()
	i := &mcs.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: web.DerivedName()}}
	add := func(obj client.Object) {
		kit.NoError(t, p.client.Get(t.Context(), client.ObjectKeyFromObject(obj), obj))
		obj.GetLabels()["team"] = "shop"
		obj.SetAnnotations(map[string]string{"team": "shop", "multicluster.kubernetes.io/derived-service": obj.GetAnnotations()["multicluster.kubernetes.io/derived-service"]})
		kit.NoError(t, p.client.Update(t.Context(), obj))
	}
	add(i)
	add(svc)
	p.settle()
	// Another process does not know who has added them.
	p.applied.Clear()
	p.settle()
	p.writes = 0
	kit.NoError(t, p.reconcile(t.Context(), web))
	kit.Check(t, "writes", p.writes, 0)
	kit.NoError(t, p.client.Get(t.Context(), client.ObjectKeyFromObject(i), i))
	kit.Check(t, "labels", []string{i.Labels["team"], i.Labels["app"], i.Labels["tier"]}, []string{"shop", "web", "front"})
	change(p, &mcs.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}, func(e *mcs.ServiceExport) { e.Spec.ExportedLabels = map[string]string{"app": "web"} })
	p.settle()
	kit.NoError(t, p.client.Get(t.Context(), client.ObjectKeyFromObject(i), i))
	kit.Check(t, "labels with one less", []string{i.Labels["team"], i.Labels["app"], i.Labels["tier"]}, []string{"shop", "web", ""})
}

// Objects of others that have the names of ours stay as they are.
func TestNamesOfOthers(t *testing.T) {
	foreign := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: web.DerivedName()}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 99}}}}
	p := play(t, append(exportOf(0), peer("b", v1alpha1.ImportAll), receivedOf("b", 1, "10.62.1.5"), foreign)...)
	defer p.end()
	kit.ErrorIf(t, p.reconcile(t.Context(), web) == nil, "a foreign Service is no error")
	kit.NoError(t, p.client.Get(t.Context(), client.ObjectKeyFromObject(foreign), foreign))
	kit.Check(t, "port", foreign.Spec.Ports[0].Port, 99)
	kit.Check(t, "the export, although the import fails", p.condition(string(mcs.ServiceExportConditionValid)), "True Valid")

	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: web.DerivedName() + "-id-b-x"}, AddressType: discoveryv1.AddressTypeIPv4}
	p = play(t, append(exportOf(0), peer("b", v1alpha1.ImportAll), receivedOf("b", 1, "10.62.1.5"), slice)...)
	defer p.end()
	kit.ErrorIf(t, p.reconcile(t.Context(), web) == nil, "a foreign slice is no error")
	kit.NoError(t, p.client.Get(t.Context(), client.ObjectKeyFromObject(slice), slice))
	kit.Check(t, "labels", len(slice.Labels), 0)
}

// An annotation that names no peer exports to none, and any text in it does no harm.
func TestPeersOfAnExport(t *testing.T) {
	for annotation, want := range map[string]string{
		"b": "b", " b , b,": "b", "b,Not a name,gone": "b", "": "none", "gone": "none", "!": "none", ",": "none",
	} {
		objs := append(exportOf(0), peer("b", v1alpha1.ImportAll), peer("c", v1alpha1.ImportAll))
		objs[0].SetAnnotations(map[string]string{v1alpha1.AnnotationPeers: annotation})
		p := play(t, objs...)
		p.settle()
		got := "none"
		e := &v1alpha1.ExportedService{}
		if p.client.Get(t.Context(), client.ObjectKey{Name: web.ObjectName()}, e) == nil {
			kit.Check(t, "number of peers", len(e.Spec.Peers), 1)
			got = e.Spec.Peers[0]
		}
		kit.Check(t, annotation, got, want)
		p.end()
	}
}
