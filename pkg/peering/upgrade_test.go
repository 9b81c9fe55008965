package peering

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/version"
	"github.com/liqonet/liqonet/test/kit"
)

// v010 are agents of v0.1.0, from a mirror.
var v010 = manifests.Agents{Image: "mirror/agent:v0.1.0", Version: "v0.1.0", Level: version.First}

// install gives a cluster node agents, as if a command had installed them.
func (w *site) install(t *testing.T, a manifests.Agents) {
	t.Helper()
	_, daemonSet := manifests.NodeAgent(a, []int32{1})
	for _, obj := range []manifests.Object{manifests.Namespace(), daemonSet} {
		u, err := manifests.ToApply(obj)
		if err == nil {
			err = w.raw.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(v1alpha1.FieldManager))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.raw.Create(t.Context(), manifests.OverlaySecret(1, make([]byte, keyBytes))); err != nil {
		t.Fatal(err)
	}
}

// oldPair are two clusters with so many nodes, that are peered and have agents of v0.1.0.
func oldPair(t *testing.T, nodes, planes int) (a, b *site) {
	t.Helper()
	a, b = twoSites(t)
	for i, w := range []*site{a, b} {
		for n := 1; n < nodes; n++ {
			if err := w.raw.Create(t.Context(), node(fmt.Sprintf("%s-%d", w.Name, n+1), true, fmt.Sprintf("172.%d.1.%d", 18+i, 11+n))); err != nil {
				t.Fatal(err)
			}
		}
		w.install(t, v010)
	}
	mustPeer(t, a, b, Options{Planes: planes})
	return a, b
}

// quick are options with which nothing is waited for longer than a test may.
func quick(o UpgradeOptions) UpgradeOptions {
	o.calm, o.patience = time.Millisecond, time.Second
	return o
}

// newer are options for the agents of this version.
func newer() UpgradeOptions { return quick(UpgradeOptions{Image: "image:2"}) }

// older are options for those of v0.1.0.
func older() UpgradeOptions { return quick(UpgradeOptions{To: "v0.1.0", Image: v010.Image}) }

func upgradeThem(t *testing.T, o UpgradeOptions, sites ...*site) []Upgraded {
	t.Helper()
	out, err := UpgradeAll(t.Context(), clustersOf(sites), o, Silent{})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func clustersOf(sites []*site) (out []*Cluster) {
	for _, w := range sites {
		out = append(out, w.Cluster)
	}
	return out
}

// mustUpgrade fails the test if the agents of a cluster are not of the version.
func mustUpgrade(t *testing.T, o UpgradeOptions, sites ...*site) []Upgraded {
	t.Helper()
	out := upgradeThem(t, o, sites...)
	for _, u := range out {
		if u.Err != nil {
			t.Fatal(u.Err)
		}
	}
	return out
}

// agents are those of all that runs in the cluster, by the object's name.
func (w *site) agents(t *testing.T) map[string]manifests.Agents {
	t.Helper()
	out := map[string]manifests.Agents{}
	for _, ds := range list[appsv1.DaemonSetList](t, w).Items {
		out[ds.Name] = manifests.AgentsOf(&ds, &ds.Spec.Template.Spec)
	}
	for _, d := range list[appsv1.DeploymentList](t, w).Items {
		out[d.Name] = manifests.AgentsOf(&d, &d.Spec.Template.Spec)
	}
	return out
}

// checkAgents fails the test unless all that runs in the cluster is of these.
func (w *site) checkAgents(t *testing.T, planes int, want manifests.Agents) {
	t.Helper()
	got := w.agents(t)
	if len(got) != planes+1 {
		t.Errorf("%s runs %v", w.Name, got)
	}
	for name, a := range got {
		if a != want {
			t.Errorf("%s: %s runs %+v, want %+v", w.Name, name, a, want)
		}
	}
}

// Agents of v0.1.0 become those of this version, and go back. Nobody is told what it does not know: the played agents end then.
func TestUpgrade(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	for planes := 1; planes <= 2; planes++ {
		t.Run(fmt.Sprint(planes, " planes"), func(t *testing.T) {
			t.Parallel()
			a, b := oldPair(t, 3, planes)
			for _, w := range []*site{a, b} {
				w.checkAgents(t, planes, v010)
				w.did = nil
			}
			before := []map[string]any{a.contents(t), b.contents(t)}
			mustUpgrade(t, newer(), a, b)
			for _, w := range []*site{a, b} {
				w.checkAgents(t, planes, manifests.Agents{Image: "image:2", Version: version.String(), Level: version.Current})
				checkSteps(t, w, 3, planes)
			}
			if plan := dryRun(t, a, b, Options{}); plan.Changes() > 0 {
				t.Errorf("the next peer would change: %v", changesOf(plan))
			}
			if out := mustUpgrade(t, newer(), a, b); len(out[0].Changed)+len(out[1].Changed) > 0 {
				t.Errorf("again, it has changed %v", out)
			}
			mustUpgrade(t, older(), a, b)
			for i, w := range []*site{a, b} {
				w.checkAgents(t, planes, v010)
				if diff := cmp.Diff(before[i], w.contents(t), ignoreLowered); diff != "" {
					t.Errorf("%s is not as before:\n%s", w.Name, diff)
				}
			}
			if plan := dryRun(t, a, b, Options{}); plan.Changes() > 0 {
				t.Errorf("the next peer would change: %v", changesOf(plan))
			}
		})
	}
}

// ignoreLowered leaves out that an object was written for older agents on purpose.
var ignoreLowered = cmp.FilterPath(func(p cmp.Path) bool {
	return strings.Contains(p.GoString(), v1alpha1.AnnotationLowered)
}, cmp.Ignore())

// checkSteps looks at the order of what was done: one node, then a quarter at a time, then planes; and no gateway before the one of
// the plane before runs again.
func checkSteps(t *testing.T, w *site, nodes, planes int) {
	t.Helper()
	var pods, runs []string
	for _, did := range w.did {
		switch {
		case strings.Contains(did, "Pod liqonet-node"):
			pods = append(pods, did)
			if len(runs) > 0 {
				t.Errorf("%s: a node after a gateway: %v", w.Name, w.did)
			}
		case strings.HasPrefix(did, "run "):
			runs = append(runs, did)
		}
	}
	var want []string
	for plane := range planes {
		gateway := gatewayLease(w.peer.Name, int32(plane))
		want = append(want, "run 0 Deployment "+gateway, "run 1 Deployment "+gateway)
	}
	// A pod may be seen, and deleted, twice.
	if pods = slices.Compact(pods); len(pods) != nodes || len(slices.Compact(slices.Sorted(slices.Values(pods)))) != nodes {
		t.Errorf("%s: pods of nodes: %v", w.Name, pods)
	}
	if diff := cmp.Diff(want, runs); diff != "" {
		t.Errorf("%s: gateways: %s", w.Name, diff)
	}
}
