package cli

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/test/fakeapi"
)

func TestResolve(t *testing.T) {
	home := isolate(t)
	t.Chdir(home)
	main := kubeconfig(t, filepath.Join(home, "main"), "one", "two", "broken", "file-too")
	// A context whose cluster is missing, in a file that has the name of another context.
	write(t, filepath.Join(home, "broken"), "apiVersion: v1\nkind: Config\ncontexts:\n- {name: no-cluster, context: {cluster: gone, user: u}}\ncurrent-context: no-cluster\n")
	kubeconfig(t, filepath.Join(home, "a.conf"), "admin@x", "other")
	kubeconfig(t, filepath.Join(home, "b.conf"), "admin@x")
	kubeconfig(t, filepath.Join(home, "file-too"), "inside")
	kubeconfig(t, filepath.Join(home, ".kubeconfig"), "hidden")
	write(t, filepath.Join(home, "empty.conf"), "")
	write(t, filepath.Join(home, "garbage.conf"), "{{{ not YAML")
	t.Setenv("KUBECONFIG", main+string(filepath.ListSeparator)+filepath.Join(home, "missing"))
	tests := []struct {
		ref, name string
		// err and hint are parts of the error.
		err, hint string
	}{
		{ref: "one", name: "one"},
		{ref: "two", name: "two"},
		{ref: "a.conf", name: "a"},
		{ref: filepath.Join(home, "a.conf"), name: "a"},
		{ref: "a.conf#other", name: "other"},
		{ref: "a.conf#admin@x", name: "admin@x"},
		{ref: "b.conf#admin@x", name: "admin@x"},
		{ref: "file-too", name: "file-too"},
		{ref: "./file-too", name: "file-too"},
		{ref: "./file-too#inside", name: "inside"},
		{ref: ".kubeconfig", name: "kubeconfig"},
		{ref: "three", err: `"three" is neither a context`, hint: "known contexts: broken, file-too, one, two"},
		{ref: "", err: `"" is neither`, hint: "known contexts"},
		{ref: home, err: "is neither", hint: "known contexts"},
		{ref: "a.conf#none", err: `has no context "none"`, hint: "admin@x, other"},
		{ref: "gone.conf#one", err: "is neither", hint: "known contexts"},
		{ref: "empty.conf", err: `has no context ""`},
		{ref: "garbage.conf", err: "read kubeconfig garbage.conf", hint: "is it a kubeconfig"},
		{ref: "./broken", err: `read context "no-cluster"`, hint: "kubectl --kubeconfig ./broken --context no-cluster"},
	}
	for _, tt := range tests {
		t.Run(tt.ref, func(t *testing.T) {
			c, err := (&globals{}).resolve(tt.ref)
			if tt.err == "" {
				if err != nil {
					t.Fatal(err)
				}
				if c.Name != tt.name || c.Client == nil || c.Discovery == nil {
					t.Errorf("want name %q, got %+v", tt.name, c)
				}
				return
			}
			e := (*kube.Error)(nil)
			if !errors.As(err, &e) || e.Kind != kube.Usage {
				t.Fatalf("want a usage error, got %v", err)
			}
			if !strings.Contains(err.Error(), tt.err) || !strings.Contains(e.Hint, tt.hint) || e.Hint == "" {
				t.Errorf("got %q, hint %q", err, e.Hint)
			}
		})
	}
	t.Run("a context wins over a file", func(t *testing.T) {
		_, raw, err := loadKubeconfig("")
		if err != nil || raw.Contexts["file-too"] == nil {
			t.Fatal(err)
		}
		// The context's server and the file's one differ in nothing that can be
		// seen from here but the name of the context: that of the file is "inside".
		if _, err := (&globals{}).resolve("file-too#inside"); err != nil {
			t.Errorf("the file is not reached: %v", err)
		}
	})
	t.Run("--kubeconfig", func(t *testing.T) {
		g := &globals{kubeconfig: filepath.Join(home, "b.conf")}
		if c, err := g.resolve("admin@x"); err != nil || c.Name != "admin@x" {
			t.Errorf("got %v, %v", c, err)
		} else if want := "kubectl --kubeconfig " + g.kubeconfig + " --context admin@x"; c.Kubectl != want {
			t.Errorf("the hint would be %q, want %q", c.Kubectl, want)
		}
		if _, err := g.resolve("one"); err == nil {
			t.Error("a context of $KUBECONFIG was found")
		}
		_, err := (&globals{kubeconfig: filepath.Join(home, "missing")}).resolve("one")
		if e := (*kube.Error)(nil); !errors.As(err, &e) || e.Kind != kube.Usage || !strings.Contains(err.Error(), "missing") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("no kubeconfig at all", func(t *testing.T) {
		t.Setenv("KUBECONFIG", filepath.Join(home, "missing"))
		_, err := (&globals{}).resolve("one")
		if e := (*kube.Error)(nil); !errors.As(err, &e) || !strings.Contains(e.Hint, "none in") || !strings.Contains(e.Hint, "missing") {
			t.Errorf("got %#v", err)
		}
	})
}

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
	known := knownKinds(s)
	crds, err := manifests.CRDs()
	if err != nil {
		t.Fatal(err)
	}
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

// Commands survive a short outage of an API server.
func TestDefect1_09_RequestsOutlastABlip(t *testing.T) {
	s, err := fakeapi.New(fakeapi.Objects("id-of-a", "n1", "172.18.0.11", "10.244.0.0/16")...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	clusters, err := (&globals{kubeconfig: kubeconfig(t, filepath.Join(isolate(t), "kubeconfig"), "a="+s.URL)}).clusters(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	s.Fail(200 * time.Millisecond)
	var nodes corev1.NodeList
	if err := clusters[0].Client.List(t.Context(), &nodes); err != nil || len(nodes.Items) != 1 {
		t.Errorf("got %d nodes, %v", len(nodes.Items), err)
	}
}
