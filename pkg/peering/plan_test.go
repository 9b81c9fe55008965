package peering

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
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
	plans := kit.Must(PlanAll(t.Context(), []Pair{{a.Cluster, b.Cluster}}, o, kube.Quiet{}))(t)
	return plans[0]
}

// A dry run changes nothing, and peer then creates what it announced.
func TestDryRun(t *testing.T) {
	a, b := TwoSites(t)
	made := DryRun(t, a, b, engine.Options{Overlay: "VXLAN", WireGuard: "UserSpace"})
	for i, w := range []*Site{a, b} {
		left := w.Ours(t)
		kit.FatalIf(t, len(left) > 0, "the dry run made %v", left)
		for _, o := range made.Clusters[i].Objects {
			kit.ErrorIf(t, o.Action != plan.Create || o.Reason == "", "%s %s: %q, because %q", o.Kind, o.Name, o.Action, o.Reason)
		}
	}
	MustPeer(t, a, b, engine.Options{Overlay: "VXLAN", WireGuard: "UserSpace"})
	for i, w := range []*Site{a, b} {
		kit.Check(t, fmt.Sprintf("objects of %s, planned and made", w.Name), w.Ours(t), planned(&made.Clusters[i]))
		checkMade(t, w, &made.Clusters[i])
	}

	t.Run("again", func(t *testing.T) {
		before := []map[string]string{a.versions(t), b.versions(t)}
		Settled(t, a, b, engine.Options{})
		for i, w := range []*Site{a, b} {
			after := w.versions(t)
			// Agents write at any time.
			for _, m := range []map[string]string{before[i], after} {
				maps.DeleteFunc(m, func(k, _ string) bool {
					return strings.HasPrefix(k, "Peering ") || strings.HasPrefix(k, "NodeNetwork ") || strings.HasPrefix(k, "Lease ")
				})
			}
			kit.Check(t, fmt.Sprintf("%s was changed", w.Name), after, before[i])
		}
	})
	t.Run("a change", func(t *testing.T) {
		made := DryRun(t, a, b, engine.Options{Clusters: map[string]engine.ClusterOptions{"id-of-a": {ServiceType: "LoadBalancer"}}})
		kit.Check(t, "result", Changes(made), []string{"a change Service gateway-b", "b change Peering a"})
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
	a, b := Peered(t)
	secret := Get(t, a, v1alpha1.Namespace, "gateway-b-0-1", &corev1.Secret{})
	raw := kit.Must(json.Marshal(DryRun(t, a, b, engine.Options{})))(t)
	var data struct{ Data map[string]string }
	text, err := json.Marshal(secret)
	kit.FatalIf(t, err != nil || json.Unmarshal(text, &data) != nil || len(data.Data) == 0, "the Secret has no data %v", err)
	for name, value := range data.Data {
		kit.ErrorIf(t, name != v1alpha1.PublicKeyFile && strings.Contains(string(raw), value), "the plan has %s of the Secret", name)
	}
	kit.ErrorIf(t, !strings.Contains(string(raw), "gateway-b-0-1"), "the plan does not name the Secret")
}

// Facts that only agents know are marked as assumptions as long as there are no agents.
func TestAssumedWithoutAgents(t *testing.T) {
	kit.Slow(t)
	a, b := TwoSites(t)
	assumed := func(p *plan.Plan) (out []string) {
		for _, s := range append(p.Clusters[0].Facts, p.Clusters[0].Choices...) {
			if s.Assumed {
				out = append(out, s.Subject)
			}
		}
		for _, r := range p.Clusters[0].Ranges {
			if r.Assumed {
				out = append(out, r.Subject)
			}
		}
		return out
	}
	want := []string{"node range", "routes and kernels of nodes", "overlay", "WireGuard by", "pods of b", "nodes and single addresses of b"}
	kit.Check(t, "assumed", assumed(DryRun(t, a, b, engine.Options{})), want)
	MustPeer(t, a, b, engine.Options{})
	kit.Check(t, "with agents", assumed(DryRun(t, a, b, engine.Options{})), []string{"node range"})
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
		kit.Check(t, tt.name, kube.Contains(tt.have, tt.want), tt.ok)
	}
}

// What a plan of unpeer lists is what unpeer then deletes, and the plan itself changes nothing: of one of two peerings,
// of the last one, and of both at once.
func TestPlanRemovals(t *testing.T) {
	kit.Play(t)
	for _, tt := range []struct {
		name   string
		others bool // a has a second peering
		both   bool // which is removed, too
	}{{"the last peering", false, false}, {"one of two peerings", true, false}, {"both peerings", true, true}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a, b := pairOf(t, 2)
			sites, pairs := []*Site{a, b}, []Pair{{a.Cluster, b.Cluster}}
			if tt.others {
				c := NewSite(t, "c", "10.60.0.0/16", "172.20.1.11")
				MustPeer(t, a, c, engine.Options{})
				sites = append(sites, c)
				if tt.both {
					pairs = append(pairs, Pair{a.Cluster, c.Cluster})
				}
			}
			before := map[string]map[string]any{}
			for _, w := range sites {
				before[w.Name] = w.contents(t)
			}
			removals := kit.Must(PlanRemovals(t.Context(), pairs))(t)
			for _, w := range sites {
				kit.Check(t, fmt.Sprintf("the plan has changed %s", w.Name), w.contents(t), before[w.Name])
			}
			for _, o := range UnpeerAll(t.Context(), pairs, func(Pair) kube.Reporter { return kube.Quiet{} }) {
				kit.NoError(t, o.Err)
			}
			for _, w := range sites {
				planned, _ := lo.Find(removals, func(r Removal) bool { return r.ClusterID == w.ID })
				want := lo.Map(planned.Objects, func(o plan.ObjectPlan, _ int) string {
					return o.Kind + " " + strings.TrimPrefix(fmt.Sprintf("%s/%s", o.Namespace, o.Name), "/")
				})
				now := w.contents(t)
				got := lo.Filter(lo.Keys(before[w.Name]), func(name string, _ int) bool { return now[name] == nil })
				// Agents write their reports and histories, and go with them.
				got = slices.DeleteFunc(got, func(name string) bool {
					return strings.HasPrefix(name, "NodeNetwork ") || strings.HasPrefix(name, "ConfigMap ")
				})
				slices.Sort(want)
				slices.Sort(got)
				// contents has no quotas, budgets, Roles and their bindings.
				want = slices.DeleteFunc(want, func(name string) bool {
					return lo.SomeBy([]string{"ResourceQuota ", "PodDisruptionBudget ", "Role ", "RoleBinding ", "ValidatingAdmissionPolicyBinding "}, func(kind string) bool { return strings.HasPrefix(name, kind) })
				})
				diff := cmp.Diff(got, want)
				kit.ErrorIf(t, diff != "" || (w == a || w == b) && len(want) == 0, "%s: deleted -, planned +:\n%s", w.Name, diff)
				if planned.Agents != (now["Namespace liqonet-system"] == nil && before[w.Name]["Namespace liqonet-system"] != nil) && planned.Cluster != "" {
					t.Errorf("%s: agents are removed: %t", w.Name, planned.Agents)
				}
			}
		})
	}
}

// A plan of unpeer says why it lists no objects of a cluster that does not recognize the other, or does not respond.
func TestPlanRemovals_Refused(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	a := NewSite(t, "a", "10.244.0.0/16", "172.18.1.11")
	c := NewSite(t, "c", "10.30.0.0/16", "172.18.3.11")
	a.Peer, c.Peer = c, a
	MustPeer(t, a, c, engine.Options{})
	hostile := manifests.Peering("a", c.peering(t).Spec)
	key := newKey(t)
	impostor := Impostor(t, a, hostile, manifests.IdentitySecret(key[:]))
	silent := &kube.Cluster{Name: "silent", SkipReason: errors.New("no answer")}
	skipped := &kube.Cluster{Name: "skipped", SkipReason: kube.ErrSkipped}
	for peer, want := range map[*kube.Cluster]string{a.Cluster: "knows as c, but has another key", silent: "no answer", skipped: ""} {
		removals, err := PlanRemovals(t.Context(), []Pair{{impostor.Cluster, peer}})
		if err != nil {
			t.Fatal(err)
		}
		got := lo.LastOrEmpty(lo.Filter(removals, func(r Removal, _ int) bool { return r.Cluster == peer.Name }))
		if !strings.Contains(got.Refused, want) || (got.Refused == "") != (want == "") || len(got.Objects) > 0 {
			t.Errorf("%s: %+v", peer.Name, got)
		}
	}
}
