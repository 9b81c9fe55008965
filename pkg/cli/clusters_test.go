package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/connect"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/test/kit"
)

func TestResolve(t *testing.T) {
	home := isolate(t)
	t.Chdir(home)
	main := kubeconfig(t, filepath.Join(home, "main"), "one", "two", "broken", "file-too")
	// A context whose cluster is missing, in a file that has the name of another context.
	write(t, filepath.Join(home, "broken"), "apiVersion: v1\nkind: Config\ncontexts:\n- {name: no-cluster, context: {cluster: gone, user: u}}\ncurrent-context: no-cluster\n")
	kit.NoError(t, os.Mkdir(filepath.Join(home, "dir"), 0o755))
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
		{ref: "./a.conf", name: "a"},
		{ref: "./a.conf#other", name: "other"},
		{ref: "dir/../a.conf#admin@x", name: "admin@x"},
		{ref: "file-too", name: "file-too"}, // the context takes precedence over the file
		{ref: "./file-too", name: "file-too"},
		{ref: "./file-too#inside", name: "inside"},
		{ref: "./.kubeconfig", name: "kubeconfig"},
		{ref: "three", err: `"three" is neither a context`, hint: "known contexts: broken, file-too, one, two"},
		{ref: "", err: `"" is neither`, hint: "known contexts"},
		{ref: "./a.conf#none", err: `has no context "none"`, hint: "admin@x, other"},
		{ref: "./gone.conf#one", err: "is neither", hint: "known contexts"},
		{ref: "./empty.conf", err: "no kubeconfig with a context found (looked at: ./empty.conf)"},
		{ref: "./garbage.conf", err: "read kubeconfig ./garbage.conf", hint: "check that the file is a kubeconfig"},
		// A word is no file, with or without a context.
		{ref: "a.conf", err: `"a.conf" is neither`, hint: "for the file, give its path, such as ./a.conf"},
		{ref: "a.conf#other", err: `"a.conf#other" is neither`, hint: "./a.conf"},
		{ref: "a.conf#x/y", err: `is neither`, hint: "./a.conf"},
		{ref: ".kubeconfig", err: "is neither", hint: "./.kubeconfig"},
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
}

// Commands survive a short outage of an API server.
func TestRequestsOutlastABlip(t *testing.T) {
	s := startCluster(t, "a")
	useContexts(t, "a="+s.URL)
	clusters := kit.Must((&globals{}).clusters(t.Context(), "a"))(t)
	s.FailFor(200 * time.Millisecond)
	var nodes corev1.NodeList
	kit.NoError(t, clusters[0].Client.List(t.Context(), &nodes))
	kit.Check(t, "nodes", len(nodes.Items), 1)
}
