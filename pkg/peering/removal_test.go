package peering

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/test/kit"
)

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
