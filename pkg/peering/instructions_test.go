package peering_test

import (
	"encoding/json"
	"slices"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/diagnose"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/peering"
	"github.com/liqonet/liqonet/test/kit"
)

// A compromised agent writes a journal where its token permits: into its own history, with any labels and
// annotations. No command may execute it with its user's permissions.
func TestAgentsGiveNoInstructions(t *testing.T) {
	kit.Play(t)
	gateway := manifests.Gateway{Peering: "b"}
	commands := map[string]func(t *testing.T, a, b *peering.Site) error{
		"peer": func(t *testing.T, a, b *peering.Site) error {
			return kit.Err(peering.Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{}))
		},
		"unpeer": func(t *testing.T, a, b *peering.Site) error {
			_, _, err := peering.Unpeer(t.Context(), a.Cluster, b.Cluster, kube.Quiet{})
			return err
		},
		"rotate-keys": func(t *testing.T, a, b *peering.Site) error {
			return kit.Err(peering.Rotate(t.Context(), a.Cluster, b.Cluster, peering.Rotation{}, kube.Quiet{}))
		},
		"upgrade": func(t *testing.T, a, _ *peering.Site) error {
			return kit.Err(peering.UpgradeAll(t.Context(), []*kube.Cluster{a.Cluster}, peering.Newer(), kube.Quiet{}))
		},
	}
	for _, planted := range []string{gateway.HistoryName(), v1alpha1.NodeHistoryName("a-1")} {
		for name, run := range commands {
			if planted != gateway.HistoryName() && name != "peer" && !kit.Full() {
				continue
			}
			t.Run(name+" with "+planted, func(t *testing.T) {
				t.Parallel()
				foreign := []client.Object{
					&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "payments", UID: "u1"}},
					&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "payments", Name: "db", UID: "u2"}},
					&rbacv1.ClusterRoleBinding{
						ObjectMeta: metav1.ObjectMeta{Name: "cluster-admin", UID: "u3"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
						Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "system:masters"}},
					},
					&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "of-somebody", UID: "u4"}},
				}
				a, b := peering.TwoSites(t, foreign...)
				peering.MustPeer(t, a, b, engine.Options{})
				plantJournal(t, a, planted)
				kit.CheckNoError(t, run(t, a, b))
				for _, was := range foreign {
					is := was.DeepCopyObject().(client.Object)
					if err := a.Raw.Get(t.Context(), client.ObjectKeyFromObject(was), is); err != nil {
						t.Errorf("%s is gone: %v", kube.Describe(was), err)
					}
					switch is := is.(type) {
					case *rbacv1.ClusterRoleBinding:
						kit.ErrorIf(t, len(is.Subjects) != 1, "the binding cluster-admin has the subjects %v", is.Subjects)
					case *rbacv1.ClusterRole:
						kit.ErrorIf(t, len(is.Rules) > 0, "a foreign role has the rules %v", is.Rules)
					}
				}
				for _, role := range peering.List[rbacv1.ClusterRoleList](t, a).Items {
					kit.ErrorIf(t, slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Verbs, "*") }),
						"ClusterRole %s allows %v", role.Name, role.Rules)
				}
			})
		}
	}
}

// plantJournal turns the ConfigMap of that name into a journal, which claims that roles had more permissions before,
// and that foreign objects did not exist.
func plantJournal(t *testing.T, w *peering.Site, name string) {
	t.Helper()
	role := func(name string, rules ...any) map[string]any {
		return map[string]any{
			"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": map[string]any{"name": name}, "rules": rules,
		}
	}
	everything := map[string]any{"apiGroups": []any{"*"}, "resources": []any{"*"}, "verbs": []any{"*"}}
	binding := map[string]any{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": map[string]any{"name": "cluster-admin"}}
	widened := map[string]any{
		"apiVersion": binding["apiVersion"], "kind": binding["kind"], "metadata": binding["metadata"],
		"roleRef": map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
		"subjects": []any{
			map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:masters"},
			map[string]any{"kind": "ServiceAccount", "namespace": v1alpha1.Namespace, "name": "gateway-b-0"},
		},
	}
	own := manifests.Gateway{Peering: "b"}.ClusterScopedName()
	raw, err := json.Marshal([]engine.Change{
		{Before: role(own, everything), After: map[string]any{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": map[string]any{"name": own}}},
		{Before: role("of-somebody", everything), After: map[string]any{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": map[string]any{"name": "of-somebody"}}},
		{Before: widened, After: binding},
		{After: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "payments"}}},
		{After: map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"namespace": "payments", "name": "db"}}},
	})
	kit.NoError(t, err)
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: v1alpha1.Namespace, Name: name,
		Labels: map[string]string{v1alpha1.LabelPeering: "b", v1alpha1.LabelManagedBy: v1alpha1.FieldManager},
	}, Data: map[string]string{engine.JournalKey: string(raw)}}
	err = w.Raw.Create(t.Context(), cm)
	if err == nil {
		return
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": cm.Labels}, "data": cm.Data})
	if err == nil {
		err = w.Raw.Patch(t.Context(), cm, client.RawPatch(types.MergePatchType, patch))
	}
	kit.NoError(t, err)
}

// A node agent labels its Lease with a peering that does not exist: this is no leftover. If leftovers exist, a
// peering that another command made since the check stays.
func TestFixKeepsWhatWasPeeredSince(t *testing.T) {
	kit.Play(t)
	a := peering.NewSite(t, "a", "10.244.0.0/16", "172.18.1.11")
	b := peering.NewSite(t, "b", "10.30.0.0/16", "172.18.3.11")
	c := peering.NewSite(t, "c", "10.50.0.0/16", "172.18.5.11")
	a.PeerAgain(t, b)
	lease := &coordinationv1.Lease{}
	if err := a.Raw.Get(t.Context(), types.NamespacedName{Namespace: v1alpha1.Namespace, Name: peering.List[v1alpha1.NodeNetworkList](t, a).Items[0].LeaseName()}, lease); err != nil {
		t.Fatal(err)
	}
	lease.Labels = map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager, v1alpha1.LabelPeering: "x"}
	kit.NoError(t, a.Raw.Update(t.Context(), lease))
	facts, err := diagnose.ReadFacts(t.Context(), []*kube.Cluster{a.Cluster}, nil, kube.Quiet{})
	kit.FatalIf(t, err != nil || len(facts.Clusters[0].Own.Leftovers) > 0,
		"what a node writes says what is left over: %q, %v", facts.Clusters[0].Own.Leftovers, err)
	kit.NoError(t, a.Raw.Create(t.Context(), manifests.GatewayService("x", corev1.ServiceTypeClusterIP, []int32{0})))
	facts, err = diagnose.ReadFacts(t.Context(), []*kube.Cluster{a.Cluster}, nil, kube.Quiet{})
	kit.FatalIf(t, err != nil || len(facts.Clusters[0].Own.Leftovers) != 1, "%v %v", facts, err)
	a.PeerAgain(t, c)
	count := func() (n int) {
		for _, s := range peering.List[corev1.SecretList](t, a).Items {
			if s.Labels[v1alpha1.LabelPeering] == "c" {
				n++
			}
		}
		return n
	}
	before := count()
	kit.CheckNoError(t, diagnose.RemoveLeftovers(t.Context(), a.Cluster, facts.Clusters[0], kube.Quiet{}))
	now := count()
	kit.ErrorIf(t, now != before || before == 0, "of %d keys of the new peering there are %d", before, now)
}
