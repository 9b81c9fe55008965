package peering

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/test/kit"
)

// Ours returns our objects in a cluster, as a plan lists them.
func (w *Site) Ours(t *testing.T) []string {
	t.Helper()
	var out []string
	for name := range w.versions(t) {
		kind, rest, _ := strings.Cut(name, " ")
		if kind == "Node" || rest == "kube-system" || rest == "default/kubernetes" || strings.HasPrefix(rest, "kube-system/") {
			continue
		}
		if !strings.Contains(rest, "/") {
			rest = "/" + rest
		}
		out = append(out, kind+" "+rest)
	}
	slices.Sort(out)
	return out
}

func DryRun(t *testing.T, a, b *Site, o engine.Options) *plan.Plan {
	t.Helper()
	for _, w := range []*Site{a, b} {
		w.readOnly = true
		defer func() { w.readOnly = false }()
	}
	plans, err := PlanAll(t.Context(), []Pair{{a.Cluster, b.Cluster}}, o, kube.Quiet{})
	if err != nil {
		t.Fatal(err)
	}
	return plans[0]
}

// A dry run changes nothing, and peer then creates what it announced.
func TestDryRun(t *testing.T) {
	a, b := TwoSites(t)
	made := DryRun(t, a, b, engine.Options{Overlay: "VXLAN", WireGuard: "UserSpace"})
	for i, w := range []*Site{a, b} {
		if left := w.Ours(t); len(left) > 0 {
			t.Fatalf("the dry run made %v", left)
		}
		for _, o := range made.Clusters[i].Objects {
			if o.Action != plan.Create || o.Reason == "" {
				t.Errorf("%s %s: %q, because %q", o.Kind, o.Name, o.Action, o.Reason)
			}
		}
	}
	MustPeer(t, a, b, engine.Options{Overlay: "VXLAN", WireGuard: "UserSpace"})
	for i, w := range []*Site{a, b} {
		if diff := cmp.Diff(planned(&made.Clusters[i]), w.Ours(t)); diff != "" {
			t.Errorf("objects of %s, planned and made:\n%s", w.Name, diff)
		}
		checkMade(t, w, &made.Clusters[i])
	}

	t.Run("again", func(t *testing.T) {
		before := []map[string]string{a.versions(t), b.versions(t)}
		made := DryRun(t, a, b, engine.Options{})
		if n := made.Changes(); n != 0 {
			t.Errorf("%d changes of what is there already:", n)
			for _, c := range made.Clusters {
				for _, o := range c.Objects {
					if o.Action != plan.Keep {
						t.Errorf("%s: %s %s %s", c.Cluster, o.Action, o.Kind, o.Name)
					}
				}
			}
		}
		for i, w := range []*Site{a, b} {
			after := w.versions(t)
			// Agents write at any time.
			for _, m := range []map[string]string{before[i], after} {
				maps.DeleteFunc(m, func(k, _ string) bool {
					return strings.HasPrefix(k, "Peering ") || strings.HasPrefix(k, "NodeNetwork ") || strings.HasPrefix(k, "Lease ")
				})
			}
			if diff := cmp.Diff(before[i], after); diff != "" {
				t.Errorf("%s was changed:\n%s", w.Name, diff)
			}
		}
	})
	t.Run("a change", func(t *testing.T) {
		made := DryRun(t, a, b, engine.Options{Clusters: map[string]engine.ClusterOptions{"id-of-a": {ServiceType: "LoadBalancer"}}})
		var got []string
		for _, c := range made.Clusters {
			for _, o := range c.Objects {
				if o.Action != plan.Keep {
					got = append(got, c.Cluster+" "+string(o.Action)+" "+o.Kind)
				}
			}
		}
		if diff := cmp.Diff([]string{"a change Service", "b change Peering"}, got); diff != "" {
			t.Error(diff)
		}
	})
}

// checkMade compares the manifests of a plan with the live objects, except for values that the plan could not know.
func checkMade(t *testing.T, w *Site, c *plan.ClusterPlan) {
	t.Helper()
	for _, o := range c.Objects {
		if o.Kind == "NodeNetwork" || o.Kind == "Secret" {
			continue
		}
		live := &unstructured.Unstructured{}
		live.SetGroupVersionKind(schema.FromAPIVersionAndKind(o.APIVersion, o.Kind))
		if err := w.Raw.Get(t.Context(), types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, live); err != nil {
			t.Errorf("%s %s: %v", o.Kind, o.Name, err)
			continue
		}
		want := (&unstructured.Unstructured{Object: o.Manifest}).DeepCopy()
		copyLater(want.Object, live.Object)
		if !kube.Contains(live.Object, want.Object) {
			t.Errorf("%s %s is not as planned:\n%s", o.Kind, o.Name, cmp.Diff(want.Object, live.Object))
		}
	}
}

// copyLater replaces values that become known during the run. The host of an endpoint with a node port is known before.
func copyLater(want, live any) {
	isLater := func(want, live any) bool {
		later, _ := want.(map[string]any)
		what, is := later["duringRun"].(string)
		host, _, atPort := strings.Cut(what, ", node port ")
		return is && (!atPort || strings.HasPrefix(live.(string), host+":"))
	}
	switch want := want.(type) {
	case map[string]any:
		for k, v := range want {
			got, ok := live.(map[string]any)[k]
			switch {
			case !ok: // which is the difference
			case isLater(v, got):
				want[k] = got
			default:
				copyLater(v, got)
			}
		}
	case []any:
		for i, v := range want {
			if got := live.([]any)[i]; isLater(v, got) {
				want[i] = got
			} else {
				copyLater(v, got)
			}
		}
	}
}

// A plan contains no keys, even of an existing peering, except public ones in Peerings.
func TestPlanHasNoKey(t *testing.T) {
	a, b := TwoSites(t)
	MustPeer(t, a, b, engine.Options{})
	secret := &corev1.Secret{}
	if err := a.Raw.Get(t.Context(), types.NamespacedName{Namespace: v1alpha1.Namespace, Name: "gateway-b-0-1"}, secret); err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(DryRun(t, a, b, engine.Options{}))
	if err != nil {
		t.Fatal(err)
	}
	var data struct{ Data map[string]string }
	text, err := json.Marshal(secret)
	if err != nil || json.Unmarshal(text, &data) != nil || len(data.Data) == 0 {
		t.Fatal("the Secret has no data", err)
	}
	for name, value := range data.Data {
		if name != v1alpha1.KeyFilePublic && strings.Contains(string(raw), value) {
			t.Errorf("the plan has %s of the Secret", name)
		}
	}
	if !strings.Contains(string(raw), "gateway-b-0-1") {
		t.Error("the plan does not name the Secret")
	}
}

// Facts that only agents know are marked as assumptions as long as there are no agents.
func TestAssumedWithoutAgents(t *testing.T) {
	kit.Slow(t)
	a, b := TwoSites(t)
	assumed := func(p *plan.Plan) (out []string) {
		for _, s := range append(p.Clusters[0].Facts, p.Clusters[0].Choices...) {
			if s.Assumed {
				out = append(out, s.What)
			}
		}
		for _, r := range p.Clusters[0].Ranges {
			if r.Assumed {
				out = append(out, r.What)
			}
		}
		return out
	}
	want := []string{"node range", "routes and kernels of nodes", "overlay", "WireGuard by", "pods of b", "nodes and single addresses of b"}
	if diff := cmp.Diff(want, assumed(DryRun(t, a, b, engine.Options{}))); diff != "" {
		t.Error(diff)
	}
	MustPeer(t, a, b, engine.Options{})
	if diff := cmp.Diff([]string{"node range"}, assumed(DryRun(t, a, b, engine.Options{}))); diff != "" {
		t.Errorf("with agents:\n%s", diff)
	}
}

func TestContains(t *testing.T) {
	type m = map[string]any
	tests := []struct {
		name       string
		have, want any
		ok         bool
	}{
		{"a field of the server", m{"a": "x", "b": "y"}, m{"a": "x"}, true},
		{"another value", m{"a": "x"}, m{"a": "y"}, false},
		{"missing", m{}, m{"a": "y"}, false},
		{"empty and missing", m{}, m{"a": m{}, "b": []any{}, "c": nil}, true},
		{"numbers", m{"a": int64(3)}, m{"a": float64(3)}, true},
		{"a longer list", m{"a": []any{"x", "y"}}, m{"a": []any{"x"}}, false},
		{"a list", m{"a": []any{m{"x": "1", "y": "2"}}}, m{"a": []any{m{"x": "1"}}}, true},
		{"a label more", m{"nodeSelector": m{"a": "x", "b": "y"}}, m{"nodeSelector": m{"a": "x"}}, false},
		{"no label any more", m{"nodeSelector": m{"a": "x"}}, m{"nodeSelector": m{}}, false},
		{"the same labels", m{"nodeSelector": m{"a": "x"}}, m{"nodeSelector": m{"a": "x"}}, true},
		{"all effects", m{"tolerations": []any{m{"key": "a", "effect": "NoExecute"}}}, m{"tolerations": []any{m{"key": "a"}}}, false},
		{"the same tolerations", m{"tolerations": []any{m{"key": "a", "tolerationSeconds": int64(5)}}}, m{"tolerations": []any{m{"key": "a", "tolerationSeconds": float64(5)}}}, true},
		{"another kind", m{"a": "x"}, m{"a": m{"b": "c"}}, false},
	}
	for _, tt := range tests {
		if got := kube.Contains(tt.have, tt.want); got != tt.ok {
			t.Errorf("%s: got %t", tt.name, got)
		}
	}
}
