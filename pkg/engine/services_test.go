package engine

import (
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// Definitions of others are used if they serve the version that is needed. A program that exchanges services itself is named.
func TestForeignDefinitions(t *testing.T) {
	definitions := func(change func(*apiextensionsv1.CustomResourceDefinition)) (out []client.Object) {
		for _, d := range manifests.MultiClusterCRDs() {
			change(d)
			out = append(out, d)
		}
		return out
	}
	foreign := func(d *apiextensionsv1.CustomResourceDefinition) { d.Labels = nil }
	imported := func(labels map[string]string) client.Object {
		return &mcs.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Labels: labels}}
	}
	submariner := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "brokers.submariner.io"}}
	for name, tt := range map[string]struct {
		objs    []client.Object
		foreign int
		says    string
	}{
		"none":                              {nil, 0, ""},
		"ours":                              {definitions(func(*apiextensionsv1.CustomResourceDefinition) {}), 0, ""},
		"ours, next to another program":     {append(definitions(func(*apiextensionsv1.CustomResourceDefinition) {}), submariner), 0, ""},
		"of others":                         {definitions(foreign), 2, ""},
		"of others, with an import of ours": {append(definitions(foreign), imported(map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager})), 2, ""},
		"of others, with their import":      {append(definitions(foreign), imported(nil)), 2, "ServiceImport shop/web"},
		"of Submariner":                     {append(definitions(foreign), submariner), 2, "Submariner"},
		"of others, without the version": {definitions(func(d *apiextensionsv1.CustomResourceDefinition) {
			foreign(d)
			d.Spec.Versions[0].Name = "v1alpha1"
		}), 1, "does not serve version v1beta1"},
		"of others, which do not serve the version": {definitions(func(d *apiextensionsv1.CustomResourceDefinition) {
			foreign(d)
			for i := range d.Spec.Versions {
				d.Spec.Versions[i].Served = d.Spec.Versions[i].Name != mcs.GroupVersion.Version
			}
		}), 1, "does not serve version v1beta1"},
	} {
		f, err := ReadServices(t.Context(), kubetest.NewCluster(t, "a", interceptor.Funcs{}, tt.objs...))
		kit.NoError(t, err)
		kit.Check(t, name+": of others", len(f.Foreign), tt.foreign)
		said := ""
		if f.Refused != nil {
			said = f.Refused.Error()
		}
		kit.ErrorIf(t, (tt.says == "") != (said == "") || !strings.Contains(said, tt.says), "%s: it says %q, want %q", name, said, tt.says)
	}
}
