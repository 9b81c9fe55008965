package discovery_test

import (
	"cmp"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/liqonet/liqonet/pkg/discovery"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/test/kit"
)

var pfx = netip.MustParsePrefix

// load reads a fixture's objects.
func load(t *testing.T, row string) []client.Object {
	t.Helper()
	raw := kit.Must(os.ReadFile(filepath.Join("testdata", row, "cluster.yaml")))(t)
	var out []client.Object
	for _, doc := range strings.Split(string(raw), "\n---\n") {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &o.Object); err != nil {
			t.Fatalf("%s: %v in\n%s", row, err, doc)
		}
		if len(o.Object) == 0 {
			continue
		}
		typed, err := clientgoscheme.Scheme.New(o.GroupVersionKind())
		if err != nil {
			out = append(out, o)
			continue
		}
		err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, typed, true)
		kit.FatalIf(t, err != nil, "%s: %v in\n%s", row, err, doc)
		out = append(out, typed.(client.Object))
	}
	return out
}

// cluster returns a client for a fixture. intercept can inject errors.
func cluster(t *testing.T, objects []client.Object, intercept interceptor.Funcs) client.Reader {
	t.Helper()
	scheme := runtime.NewScheme()
	kit.NoError(t, clientgoscheme.AddToScheme(scheme))
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(intercept).Build()
}

// ranges returns facts as strings for a table: "prefix", or "prefix?" if it is assumed.
func ranges(facts plan.Ranges) []string {
	var out []string
	for _, f := range facts {
		s := f.Value.String()
		if f.Assumed {
			s += "?"
		}
		out = append(out, s)
	}
	return out
}

var update = flag.Bool("update", false, "write the golden files")

// described returns the facts about a cluster, a line for each, with "?" after those that were inferred.
func described(n plan.Network) string {
	var out strings.Builder
	line := func(what string, f plan.Fact[string]) {
		assumed := map[bool]string{true: "?"}[f.Assumed]
		fmt.Fprintf(&out, "%-14s %s%s %s\n", what, cmp.Or(f.Value, "-"), assumed, f.Source)
	}
	line("plugin", n.CNI)
	line("provider", n.Provider)
	line("load balancers", n.LoadBalancers)
	for i, ranges := range []plan.Ranges{n.PodCIDRs, n.ServiceCIDRs, n.NodeCIDRs} {
		for _, r := range ranges {
			line([]string{"pods", "services", "nodes"}[i], plan.Fact[string]{Value: r.Value.String(), Source: r.Source, Assumed: r.Assumed})
		}
	}
	return out.String()
}

// Discovery finds the facts about each fixture. A fixture names its documentation, and has a running pod that confirms the ranges.
func TestMatrix(t *testing.T) {
	rows, err := filepath.Glob("testdata/*/cluster.yaml")
	kit.FatalIf(t, err != nil || len(rows) < 20, "%v %v", rows, err)
	for _, row := range rows {
		dir := filepath.Dir(row)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			raw := kit.Must(os.ReadFile(row))(t)
			head, _, _ := strings.Cut(string(raw), "\napiVersion")
			kit.ErrorIf(t, !strings.Contains(head, "# https://"), "it does not say where its shape is documented")
			kit.ErrorIf(t, !strings.Contains(string(raw), "podIPs: [{ip: "), "it has no pod")
			golden := filepath.Join(dir, "facts.txt")
			for range 3 { // with the same result each time
				f := kit.Must(discover(t, discovery.Overrides{}, filepath.Base(dir)))(t)
				kit.FatalIf(t, f.ClusterID == "" || len(f.Nodes) == 0 || len(f.Warnings) > 0 || f.PodsUnknown != nil, "incomplete: %+v", f)
				if *update {
					kit.NoError(t, os.WriteFile(golden, []byte(described(f)), 0o644))
				}
				kit.MustBe(t, golden, described(f), string(kit.Must(os.ReadFile(golden))(t)))
			}
		})
	}
}
