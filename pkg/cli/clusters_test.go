package cli

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/connect"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
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
		{ref: "empty.conf", err: "no kubeconfig with a context found (looked at: empty.conf)"},
		{ref: "garbage.conf", err: "read kubeconfig garbage.conf", hint: "check that the file is a kubeconfig"},
		{ref: "./broken", err: `context "no-cluster" names cluster "gone", which the kubeconfig does not have`},
	}
	for _, tt := range tests {
		t.Run(tt.ref, func(t *testing.T) {
			c, err := (&connect.Source{}).Resolve(tt.ref)
			if tt.err == "" {
				kit.NoError(t, err)
				kit.ErrorIf(t, c.Name != tt.name || c.Client == nil || c.Discovery == nil, "want name %q, got %+v", tt.name, c)
				return
			}
			e := (*kube.Error)(nil)
			kit.FatalIf(t, !errors.As(err, &e) || e.Kind != kube.Usage, "want a usage error, got %v", err)
			kit.ErrorIf(t, !strings.Contains(err.Error(), tt.err) || !strings.Contains(e.Hint, tt.hint) || e.Hint == "",
				"got %q, hint %q", err, e.Hint)
		})
	}
	t.Run("a context wins over a file", func(t *testing.T) {
		_, raw, err := connect.Kubeconfig("")
		kit.FatalIf(t, err != nil || raw.Contexts["file-too"] == nil, "%v", err)
		// The context's server and the file's one differ in nothing that can be
		// seen from here but the name of the context: that of the file is "inside".
		_, err = (&connect.Source{}).Resolve("file-too#inside")
		kit.ErrorIf(t, err != nil, "the file is not reached: %v", err)
	})
	t.Run("--kubeconfig", func(t *testing.T) {
		g := &globals{source: connect.Source{Kubeconfig: filepath.Join(home, "b.conf")}}
		if c, err := g.source.Resolve("admin@x"); err != nil || c.Name != "admin@x" {
			t.Errorf("got %v, %v", c, err)
		} else if want := "kubectl --kubeconfig " + g.source.Kubeconfig + " --context admin@x"; c.Kubectl != want {
			t.Errorf("the hint would be %q, want %q", c.Kubectl, want)
		}
		if _, err := g.source.Resolve("one"); err == nil {
			t.Error("a context of $KUBECONFIG was found")
		}
		_, err := (&connect.Source{Kubeconfig: filepath.Join(home, "missing")}).Resolve("one")
		e := (*kube.Error)(nil)
		kit.ErrorIf(t, !errors.As(err, &e) || e.Kind != kube.Usage || !strings.Contains(err.Error(), "missing"), "got %v", err)
	})
	t.Run("no kubeconfig at all", func(t *testing.T) {
		t.Setenv("KUBECONFIG", filepath.Join(home, "missing"))
		_, err := (&connect.Source{}).Resolve("one")
		if e := (*kube.Error)(nil); !errors.As(err, &e) || e.Hint == "" || !strings.Contains(err.Error(), "no kubeconfig with a context found (looked at: "+filepath.Join(home, "missing")) {
			t.Errorf("got %#v", err)
		}
		c, err := (&connect.Source{}).Resolve(filepath.Join(home, "b.conf"))
		kit.ErrorIf(t, err != nil || c.Name != "b", "the named file is not used: %v, %v", c, err)
	})
	t.Run("a kubeconfig that cannot be read, and a file", func(t *testing.T) {
		t.Setenv("KUBECONFIG", filepath.Join(home, "garbage.conf"))
		c, err := (&connect.Source{}).Resolve(filepath.Join(home, "b.conf"))
		kit.ErrorIf(t, err != nil || c.Name != "b", "the named file is not used: %v, %v", c, err)
	})
	t.Run("a context without its cluster", func(t *testing.T) {
		file := filepath.Join(home, "incomplete")
		write(t, file, "contexts:\n- name: x\n  context: {cluster: gone, user: u}\ncurrent-context: x\n")
		_, err := (&connect.Source{}).Resolve(file)
		want := `context "x" names cluster "gone"`
		kit.ErrorIf(t, err == nil || !strings.Contains(err.Error(), want), "want %q, got %v", want, err)
	})
}

// Commands survive a short outage of an API server.
func TestRequestsOutlastABlip(t *testing.T) {
	s := kit.Must(fakeapi.New(fakeapi.Objects("id-of-a", "n1", "172.18.0.11", "10.244.0.0/16")...))(t)
	t.Cleanup(s.Close)
	clusters, err := (&globals{source: connect.Source{Kubeconfig: kubeconfig(t, filepath.Join(isolate(t), "kubeconfig"), "a="+s.URL)}}).clusters(t.Context(), "a")
	kit.NoError(t, err)
	s.FailFor(200 * time.Millisecond)
	var nodes corev1.NodeList
	err = clusters[0].Client.List(t.Context(), &nodes)
	kit.ErrorIf(t, err != nil || len(nodes.Items) != 1, "got %d nodes, %v", len(nodes.Items), err)
}
