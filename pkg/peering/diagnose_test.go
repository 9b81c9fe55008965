package peering_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/samber/lo"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/check"
	"github.com/liqonet/liqonet/pkg/diagnose"
	"github.com/liqonet/liqonet/pkg/doctor"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/peering"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// A compromised agent writes a journal where its token permits: into its own history, with any labels and
// annotations. No command may execute it with its user's permissions.
func TestAgentsGiveNoInstructions(t *testing.T) {
	kit.Play(t)
	gateway := manifests.Gateway{Peering: "b"}
	for _, planted := range []string{gateway.HistoryName(), v1alpha1.NodeHistoryName("a-1")} {
		for _, name := range []string{"peer", "unpeer", "rotate-keys", "upgrade"} {
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
				kit.CheckNoError(t, peering.Next[name](t.Context(), a.Cluster, b.Cluster, nil))
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

// doctor --fix removes the leftovers that it reports, whichever objects of a former peering are left.
func TestFixRemovesWhatItSays(t *testing.T) {
	kit.Play(t)
	gateway := manifests.Gateway{Peering: "gone", KeyGeneration: 1, PresharedKey: 1, Agents: manifests.Agents{Image: "image:1"}}
	former := func() []client.Object {
		objs, deployment := gateway.Objects()
		objs = append(
			objs, deployment, manifests.GatewayService("gone", corev1.ServiceTypeClusterIP, []int32{0}),
			gateway.Secret(map[string][]byte{v1alpha1.PrivateKeyFile: {1}}), gateway.PresharedSecret([]byte{1}),
		)
		return lo.Map(objs, func(o manifests.Object, _ int) client.Object { return o.(client.Object) })
	}
	// Agents write these, so alone they are no leftovers, but they go with the others of their peering.
	isOfAgents := func(o client.Object, _ int) bool {
		switch o.(type) {
		case *coordinationv1.Lease, *corev1.ConfigMap:
			return true
		}
		return false
	}
	rows := map[string][]client.Object{"all": former()}
	for _, o := range lo.Reject(former(), isOfAgents) {
		rows[kube.Describe(o)] = []client.Object{o}
	}
	a, b := peering.Peered(t)
	before := a.Ours(t)
	clusters := []*kube.Cluster{a.Cluster, b.Cluster}
	for name, left := range rows {
		var want []string
		for _, o := range left {
			if !isOfAgents(o, 0) {
				want = append(want, "a: removed "+kube.Describe(o))
			}
			kit.NoError(t, a.Raw.Create(t.Context(), o.DeepCopyObject().(client.Object)))
		}
		facts := kit.Must(diagnose.ReadFacts(t.Context(), clusters, nil, kube.Quiet{}))(t)
		fixed := kit.Must(diagnose.Fix(t.Context(), clusters, facts, &check.Report{}, kube.Quiet{}))(t)
		slices.Sort(want)
		slices.Sort(fixed)
		kit.Check(t, name+": what it says", fixed, want)
		kit.Check(t, name+": what is there", a.Ours(t), before)
	}
}

// Agents that a DaemonSet does not replace are found, and doctor --fix says that it has completed their rollout, which peer
// would do without a word.
func TestFixNamesACompletedRollout(t *testing.T) {
	kit.Play(t)
	a, b := peering.Peered(t)
	ds := peering.Get(t, a, v1alpha1.Namespace, v1alpha1.NodeAgentName, &appsv1.DaemonSet{})
	ds.Spec.UpdateStrategy.Type = appsv1.OnDeleteDaemonSetStrategyType
	kit.NoError(t, a.Raw.Update(t.Context(), ds))
	clusters := []*kube.Cluster{a.Cluster, b.Cluster}
	fix := func() []string {
		facts := kit.Must(diagnose.ReadFacts(t.Context(), clusters, nil, kube.Quiet{}))(t)
		return kit.Must(diagnose.Fix(t.Context(), clusters, facts, doctor.Examine(facts), kube.Quiet{}))(t)
	}
	kit.Check(t, "fixed", fix(), []string{"a: completed the rollout of node agents"})
	kit.Check(t, "fixed after that", fix(), nil, kit.Compare)
}

// waits are the steps in which a command waits for another's lock, and their durations.
type waits struct {
	mu  sync.Mutex
	all map[string]time.Duration
}

func (w *waits) Step(ctx context.Context, name string, do func(context.Context) error) error {
	began := time.Now()
	err := do(ctx)
	if strings.Contains(name, "waiting for") {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.all[name] += time.Since(began)
	}
	return err
}

// Commands on different peerings of one cluster wait at most a second for each other. A third peering stays, so none is the last one.
func TestPairsDoNotWaitForEachOther(t *testing.T) {
	kit.Play(t)
	a := peering.NewCouple(t, false, false).A
	peers := []*peering.Site{peering.NewSite(t, "d", "10.244.0.0/16", "172.18.4.11"), peering.NewSite(t, "e", "10.244.0.0/16", "172.18.5.11")}
	for _, p := range peers {
		p.Peer = a
	}
	all := func(do func(*kube.Cluster, kube.Reporter) error) {
		t.Helper()
		w := &waits{all: map[string]time.Duration{}}
		var commands sync.WaitGroup
		for _, p := range peers {
			commands.Go(func() {
				kit.CheckNoError(t, do(p.Cluster, w))
			})
		}
		commands.Wait()
		for name, took := range w.all {
			kit.ErrorIf(t, took > time.Second, "%s: %s", name, took)
		}
	}
	all(func(p *kube.Cluster, r kube.Reporter) error {
		return kit.Err(peering.Peer(t.Context(), a.Cluster, p, engine.Options{}, r))
	})
	all(func(p *kube.Cluster, r kube.Reporter) error {
		return kit.Err(peering.Rotate(t.Context(), a.Cluster, p, peering.Rotation{PresharedOnly: true}, r))
	})
	// On its other side, each is the last peering, which is ignored here: removing all of liqonet must wait.
	all(func(p *kube.Cluster, r kube.Reporter) error {
		peer := *p
		peer.SkipReason = kube.ErrSkipped
		_, _, err := peering.Unpeer(t.Context(), a.Cluster, &peer, r)
		return err
	})
	if entries := kubetest.ReadLedger(t, a.Cluster).Spec.Peers; len(entries) != 1 || slices.ContainsFunc(peers, func(p *peering.Site) bool { return p.ID == entries[0].ClusterID }) {
		t.Errorf("peers are left: %+v", entries)
	}
}

// Doctor reports a lock whose holder does not renew it, and which command works on a cluster. Neither is a failure.
func TestDoctorNamesLocks(t *testing.T) {
	kit.Play(t)
	a, b := peering.NewSite(t, "a", "10.244.0.0/16", "172.18.1.11"), peering.NewSite(t, "b", "10.30.0.0/16", "172.18.3.11")
	_, held, err := lock.Acquire(t.Context(), "peer", kube.Quiet{}.Step, engine.LockFor(b.Cluster, a.ID))
	kit.NoError(t, err)
	diagnose := func() (*doctor.Facts, *check.Report) {
		t.Helper()
		facts := kit.Must(diagnose.ReadFacts(t.Context(), []*kube.Cluster{a.Cluster, b.Cluster}, nil, kube.Quiet{}))(t)
		return facts, doctor.Examine(facts)
	}
	abandoned := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceSystem, Name: "liqonet-cluster",
			Labels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager}, Annotations: map[string]string{"liqonet.io/running": "3s"},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: new("upgrade of u@m (12345678)")},
	}
	kit.NoError(t, a.Raw.Create(t.Context(), abandoned))
	facts, report := diagnose()
	if l := facts.Clusters[1].Locks; len(l) != 1 || l[0].IsExpired || !strings.HasPrefix(l[0].Name, "peer of ") || !strings.Contains(lock.Holder(l[0]).String(), "(Lease kube-system/liqonet-peering-"+a.ID+")") {
		t.Errorf("of b it says %v", l)
	}
	l := facts.Clusters[0].Locks
	kit.ErrorIf(t, len(l) != 1 || !l[0].IsExpired, "of a it says %v", l)
	i := slices.IndexFunc(report.Checks, func(c check.Check) bool { return c.Name == "liqonet-lock-01" })
	found := report.Checks[i].Findings
	kit.FatalIf(t, len(found) != 1 || found[0].Cluster != "a" || found[0].Result != check.Warning, "it finds %+v", found)
	for got, want := range map[string]string{
		found[0].Problem:  "upgrade of u@m (12345678), which has run for 3s, does not renew its lock",
		found[0].Evidence: "Lease kube-system/liqonet-cluster was created ",
		found[0].Hint:     " -n kube-system delete lease liqonet-cluster",
	} {
		kit.ErrorIf(t, !strings.Contains(got, want), "it says %q, want %q", got, want)
	}

	// The next command takes it over.
	held.Release()
	a.PeerAgain(t, b)
	facts, report = diagnose()
	kit.ErrorIf(t, len(facts.Clusters[0].Locks)+len(facts.Clusters[1].Locks)+len(report.Checks[i].Findings) > 0,
		"afterwards: %+v", report.Checks[i])
}

// A command that is older than a cluster's agents or definitions writes nothing, not even to roll back an interrupted
// command, except for unpeer. A command whose version cannot be compared may write.
func TestVersionSkew(t *testing.T) {
	kit.NotShort(t)
	t.Parallel()
	a, b := peering.Peered(t)
	killed := peering.Steps{"Waiting until packets pass": func() { a.DeadFrom, b.DeadFrom = 1, 1 }}
	_, err := peering.Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{Image: "image:2"}, killed)
	kit.FatalIf(t, err == nil, "a command that cannot write has succeeded")
	a.DeadFrom, b.DeadFrom = 0, 0
	if !slices.ContainsFunc(peering.List[corev1.SecretList](t, b).Items, func(m corev1.Secret) bool { return strings.HasPrefix(m.Name, "journal-") }) {
		t.Fatal("there is nothing to undo")
	}

	agents := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: v1alpha1.NodeAgentName}}
	definition := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "peerings." + v1alpha1.GroupVersion.Group}}
	ofVersion := func(obj client.Object, version string) {
		t.Helper()
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.AnnotationVersion, version)
		kit.NoError(t, b.Raw.Patch(t.Context(), obj, client.RawPatch(types.MergePatchType, patch)))
	}
	commands := map[string]func(ctx context.Context) error{
		"peer --dry-run": func(ctx context.Context) error {
			return kit.Err(peering.PlanAll(ctx, []peering.Pair{{a.Cluster, b.Cluster}}, engine.Options{}, kube.Quiet{}))
		},
		"upgrade --dry-run": func(ctx context.Context) error {
			return kit.Err(peering.PlanUpgrades(ctx, []*kube.Cluster{b.Cluster}, peering.Newer(), kube.Quiet{}))
		},
		"upgrade": func(ctx context.Context) error {
			return kit.Err(peering.UpgradeAll(ctx, []*kube.Cluster{b.Cluster}, peering.Newer(), kube.Quiet{}))
		},
		"doctor --fix": func(ctx context.Context) error {
			facts := &doctor.Facts{Clusters: []*doctor.Cluster{{Own: doctor.Objects{Leftovers: []string{"Deployment gateway-gone-0"}}}}}
			return kit.Err(diagnose.Fix(ctx, []*kube.Cluster{b.Cluster}, facts, &check.Report{}, kube.Quiet{}))
		},
	}
	for _, name := range []string{"peer", "rotate-keys", "expose-host", "expose-host --remove"} {
		commands[name] = func(ctx context.Context) error { return peering.Next[name](ctx, b.Cluster, a.Cluster, nil) }
	}
	a.Version, b.Version = "v0.2.0", "v0.2.0"
	for what, obj := range map[string]client.Object{"agents": agents, "definitions": definition} {
		ofVersion(obj, "v0.3.0")
		a.Writes, b.Writes = 0, 0
		for _, name := range slices.Sorted(maps.Keys(commands)) {
			err := commands[name](t.Context())
			if e := (*kube.Error)(nil); !errors.As(err, &e) || e.Kind != kube.Usage || e.Cluster != "b" || !strings.Contains(err.Error(), "has version v0.3.0, and this command the older v0.2.0") {
				t.Errorf("newer %s: %s: got %v", what, name, err)
			}
			kit.FatalIf(t, a.Writes+b.Writes > 0, "newer %s: %s has written", what, name)
		}
		for _, development := range []string{"dev", "076aa63-dirty"} {
			b.Version = development
			err := engine.CheckInstallation(t.Context(), b.Cluster)
			kit.ErrorIf(t, err != nil, "newer %s: a command of version %s: %v", what, development, err)
		}
		b.Version = "v0.2.0"
		ofVersion(obj, "v0.1.9") // the previous version is accepted
		err := engine.CheckInstallation(t.Context(), b.Cluster)
		kit.ErrorIf(t, err != nil, "older %s: %v", what, err)
	}
	ofVersion(agents, "v0.3.0")
	ofVersion(definition, "v0.3.0")
	if _, _, err := peering.Unpeer(t.Context(), a.Cluster, b.Cluster, kube.Quiet{}); err != nil {
		t.Fatal(err)
	}
	left := b.Ours(t)
	kit.ErrorIf(t, len(left) > 0, "unpeer of an older version has left %v", left)
}
