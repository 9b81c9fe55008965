package connect

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
)

func TestDistinguish(t *testing.T) {
	tests := []struct {
		name        string
		names, refs []string
		want        []string
	}{
		{"different", []string{"a", "b"}, []string{"a.conf", "b.conf"}, []string{"a", "b"}},
		{"same contexts in two files", []string{"k@k", "k@k"}, []string{"a.conf#k@k", "b.conf#k@k"}, []string{"a.conf#k@k", "b.conf#k@k"}},
		{"same base names", []string{"admin", "admin", "c"}, []string{"x/admin.conf", "y/admin.conf", "c"}, []string{"x/admin.conf", "y/admin.conf", "c"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var clusters []*kube.Cluster
			for _, n := range tt.names {
				clusters = append(clusters, &kube.Cluster{Name: n})
			}
			distinguish(clusters, tt.refs)
			var got []string
			for _, c := range clusters {
				got = append(got, c.Name)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The kinds that are not discovered from the API server match the definitions.
func TestKnownKinds(t *testing.T) {
	s, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	known := staticMapper(s)
	crds := manifests.CRDs()
	want := map[schema.GroupKind]string{
		{Kind: "Namespace"}: "namespaces", {Kind: "Node"}: "nodes", {Kind: "Pod"}: "pods", {Kind: "Service"}: "services", {Kind: "Secret"}: "secrets",
		{Kind: "ServiceAccount"}: "serviceaccounts", {Group: "apps", Kind: "DaemonSet"}: "daemonsets", {Group: "apps", Kind: "Deployment"}: "deployments",
		{Group: "rbac.authorization.k8s.io", Kind: "ClusterRole"}:         "clusterroles",
		{Group: "rbac.authorization.k8s.io", Kind: "ClusterRoleBinding"}:  "clusterrolebindings",
		{Group: "authorization.k8s.io", Kind: "SelfSubjectAccessReview"}:  "selfsubjectaccessreviews",
		{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}: "customresourcedefinitions",
	}
	for _, crd := range crds {
		want[schema.GroupKind{Group: crd.Spec.Group, Kind: crd.Spec.Names.Kind}] = crd.Spec.Names.Plural
	}
	for gk, resource := range want {
		m, err := known.RESTMapping(gk, "v1", "v1alpha1")
		if err != nil || m.Resource.Resource != resource {
			t.Errorf("%s: want %s, got %+v, %v", gk, resource, m, err)
			continue
		}
		namespaced := slices.Contains([]string{"pods", "services", "secrets", "serviceaccounts", "daemonsets", "deployments"}, resource)
		if (m.Scope.Name() == meta.RESTScopeNameNamespace) != namespaced {
			t.Errorf("%s: scope %s", gk, m.Scope.Name())
		}
	}
}

// An address in the kubeconfig is used as the API server's address, a name is not resolved.
func TestTheKubeconfigsAddress(t *testing.T) {
	for server, want := range map[string]string{
		"https://192.0.2.10:6443": "192.0.2.10", "https://192.0.2.10/k8s/clusters/c-1": "192.0.2.10", "192.0.2.10:6443": "192.0.2.10", "https://[2001:db8::1]:6443": "2001:db8::1",
		"https://localhost:6443": "", "https://api.example.com": "", "": "", "https://%zz": "",
	} {
		got := serverAddress(&rest.Config{Host: server})
		if want == "" && got.IsValid() && !got.IsLoopback() || want != "" && got != netip.MustParseAddr(want) {
			t.Errorf("%q: got %s, want %q", server, got, want)
		}
	}
}
