package peering

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/version"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// v010 are agents of an older version, from a mirror.
var v010 = manifests.Agents{Image: "mirror/agent:v0.1.0", Version: "v0.1.0"}

// install installs node agents in a cluster, as a command would.
func (w *Site) install(t *testing.T, a manifests.Agents) {
	t.Helper()
	_, daemonSet := manifests.NodeAgent(a, []int32{1})
	for _, obj := range []manifests.Object{manifests.Namespace(), daemonSet} {
		u := client.ApplyConfigurationFromUnstructured(manifests.ToApply(obj))
		kit.NoError(t, w.Raw.Apply(t.Context(), u, client.FieldOwner(v1alpha1.FieldManager)))
	}
	kit.NoError(t, w.Raw.Create(t.Context(), manifests.OverlaySecret(1, make([]byte, engine.KeyBytes))))
}

// oldPair returns two peered clusters with so many nodes, and agents of an older version.
func oldPair(t *testing.T, nodes, planes int) (a, b *Site) {
	t.Helper()
	a, b = unpeeredPair(t, nodes)
	a.install(t, v010)
	b.install(t, v010)
	MustPeer(t, a, b, engine.Options{Planes: planes})
	return a, b
}

// quick returns options with short timeouts.
func quick(o UpgradeOptions) UpgradeOptions {
	o.soak, o.lossTimeout = time.Millisecond, time.Second
	return o
}

// Newer returns options for the agents of this version.
func Newer() UpgradeOptions { return quick(UpgradeOptions{Image: "image:2"}) }

func upgradeThem(t *testing.T, o UpgradeOptions, sites ...*Site) []Upgraded {
	t.Helper()
	out := kit.Must(UpgradeAll(t.Context(), clustersOf(sites), o, kube.Quiet{}))(t)
	return out
}

func clustersOf(sites []*Site) (out []*kube.Cluster) {
	for _, w := range sites {
		out = append(out, w.Cluster)
	}
	return out
}

// mustUpgrade upgrades, and fails the test unless the agents then have this version.
func mustUpgrade(t *testing.T, o UpgradeOptions, sites ...*Site) []Upgraded {
	t.Helper()
	out := upgradeThem(t, o, sites...)
	for _, u := range out {
		kit.NoError(t, u.Err)
	}
	return out
}

// agents returns the agents of all workloads in the cluster, by name.
func (w *Site) agents(t *testing.T) map[string]manifests.Agents {
	t.Helper()
	out := map[string]manifests.Agents{}
	for _, ds := range List[appsv1.DaemonSetList](t, w).Items {
		out[ds.Name] = manifests.AgentsOf(&ds, &ds.Spec.Template.Spec)
	}
	for _, d := range List[appsv1.DeploymentList](t, w).Items {
		out[d.Name] = manifests.AgentsOf(&d, &d.Spec.Template.Spec)
	}
	return out
}

// checkAgents fails the test unless all workloads in the cluster have these agents.
func (w *Site) checkAgents(t *testing.T, planes int, want manifests.Agents) {
	t.Helper()
	got := w.agents(t)
	kit.ErrorIf(t, len(got) != planes+1, "%s runs %v", w.Name, got)
	for name, a := range got {
		kit.ErrorIf(t, a != want, "%s: %s runs %+v, want %+v", w.Name, name, a, want)
	}
}

// Agents of an older version are upgraded to this version.
func TestUpgrade(t *testing.T) {
	kit.Play(t)
	for planes := 1; planes <= 2; planes++ {
		t.Run(fmt.Sprint(planes, " planes"), func(t *testing.T) {
			t.Parallel()
			a, b := oldPair(t, 3, planes)
			for _, w := range []*Site{a, b} {
				w.checkAgents(t, planes, v010)
				w.did = nil
			}
			mustUpgrade(t, Newer(), a, b)
			for _, w := range []*Site{a, b} {
				w.checkAgents(t, planes, manifests.Agents{Image: "image:2", Version: version.String()})
				checkSteps(t, w, 3, planes)
			}
			Settled(t, a, b, engine.Options{})
			out := mustUpgrade(t, Newer(), a, b)
			kit.ErrorIf(t, len(out[0].Changed)+len(out[1].Changed) > 0, "again, it has changed %v", out)
		})
	}
}

// checkSteps checks the order of steps: one node, then a quarter of the nodes at a time, then planes, each after the
// gateway of the previous one runs again.
func checkSteps(t *testing.T, w *Site, nodes, planes int) {
	t.Helper()
	var pods, runs []string
	for _, did := range w.did {
		switch {
		case strings.Contains(did, "Pod liqonet-node"):
			pods = append(pods, did)
			kit.ErrorIf(t, len(runs) > 0, "%s: a node after a gateway: %v", w.Name, w.did)
		case strings.HasPrefix(did, "run "):
			runs = append(runs, did)
		}
	}
	var want []string
	if planes == 1 {
		want = append(want, "run 1 Deployment "+v1alpha1.GatewayName(w.Peer.Name, 1)) // the temporary plane
	}
	for plane := range planes {
		gateway := v1alpha1.GatewayName(w.Peer.Name, int32(plane))
		want = append(want, "run 0 Deployment "+gateway, "run 1 Deployment "+gateway)
	}
	// A pod may be seen, and deleted, twice.
	if pods = slices.Compact(pods); len(pods) != nodes || len(slices.Compact(slices.Sorted(slices.Values(pods)))) != nodes {
		t.Errorf("%s: pods of nodes: %v", w.Name, pods)
	}
	kit.Check(t, fmt.Sprintf("%s: gateways", w.Name), runs, want)
}

// If an agent does not start, or packets are lost, changes are rolled back, except definitions and changes in other clusters.
func TestUpgradeGoesBack(t *testing.T) {
	kit.Play(t)
	for name, tt := range map[string]struct {
		o    UpgradeOptions
		make func(t *testing.T, a *Site)
		want string
		kind kube.Kind
	}{
		"the image is not there":        {Newer(), nil, "cannot be pulled", kube.NotReady},
		"agents of nodes lose packets":  {Newer(), func(_ *testing.T, a *Site) { a.Lossy = "image:2" }, "packets do not pass to b through plane 0 from a-1", kube.NotReady},
		"a write fails, among gateways": {Newer(), func(_ *testing.T, a *Site) { a.fails = "Deployment gateway-b-1" }, "injected", kube.Unexpected},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := oldPair(t, 2, 2)
			if tt.want == "cannot be pulled" {
				tt.o.Image = fakeapi.MissingImage
			}
			before := a.contents(t)
			if tt.make != nil {
				tt.make(t, a)
			}
			err := upgradeThem(t, tt.o, a)[0].Err
			kit.FatalIf(t, err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "the rollback is incomplete"),
				"got %v, want %q", err, tt.want)
			e := (*kube.Error)(nil)
			kit.ErrorIf(t, tt.kind != kube.Unexpected && (!errors.As(err, &e) || e.Kind != tt.kind), "got %v", err)
			after := a.contents(t)
			for _, contents := range []map[string]any{before, after} {
				maps.DeleteFunc(contents, func(name string, _ any) bool { return strings.HasPrefix(name, "CustomResourceDefinition") })
			}
			kit.Check(t, "it is not as before", after, before)
			a.Lossy, a.fails = "", ""
			o := tt.o
			if o.Image == fakeapi.MissingImage {
				o.Image = "image:2"
			}
			mustUpgrade(t, o, a, b)
		})
	}
}

// Upgrading one of two clusters does not touch the other, which keeps its agents, and both can be peered again.
func TestUpgradeOne(t *testing.T) {
	kit.Play(t)
	a, b := oldPair(t, 2, 2)
	before := b.contents(t)
	mustUpgrade(t, Newer(), a)
	kit.Check(t, "the other cluster was changed", b.contents(t), before)
	limited := engine.Options{Clusters: map[string]engine.ClusterOptions{a.ID: {LimitNew: new(int64(100))}, b.ID: {LimitNew: new(int64(100))}}}
	MustPeer(t, a, b, limited)
	a.checkAgents(t, 2, manifests.Agents{Image: "image:2", Version: version.String()})
	b.checkAgents(t, 2, v010)
	// With one plane, and without its peer, packets are lost. A note says so.
	c, d := oldPair(t, 1, 1)
	plans, err := PlanUpgrades(t.Context(), clustersOf([]*Site{c}), Newer(), kube.Quiet{})
	kit.FatalIf(t, err != nil || len(plans.Clusters[0].Notes) != 1 || !strings.Contains(plans.Clusters[0].Notes[0], "upgrade a b"),
		"%v %v", plans.Clusters[0].Notes, err)
	c.did = nil
	mustUpgrade(t, Newer(), c)
	kit.ErrorIf(t, slices.Contains(c.did, "run 0 Deployment gateway-b-0"), "%v: the next gateway has waited for the one before", c.did)
	d.checkAgents(t, 1, v010)
}

// Changes by an administrator are kept or reported.
func TestUpgradeKeepsWhatOthersHaveChanged(t *testing.T) {
	kit.NotShort(t)
	t.Parallel()
	a, _ := oldPair(t, 2, 2)
	edit := func(change func(*appsv1.DaemonSet)) {
		ds := &appsv1.DaemonSet{}
		key := client.ObjectKey{Namespace: v1alpha1.Namespace, Name: v1alpha1.NodeAgentName}
		kit.NoError(t, a.Raw.Get(t.Context(), key, ds))
		change(ds)
		kit.NoError(t, a.Raw.Update(t.Context(), ds, client.FieldOwner("kubectl-edit")))
	}
	edit(func(ds *appsv1.DaemonSet) {
		c := &ds.Spec.Template.Spec.Containers[0]
		c.Resources.Limits[corev1.ResourceMemory] = resource.MustParse("3Gi")
		c.ImagePullPolicy = corev1.PullAlways
		ds.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Key: "mine", Operator: corev1.TolerationOpExists}}
		ds.Spec.Template.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "mirror"}}
	})
	before := a.contents(t)
	plans := kit.Must(PlanUpgrades(t.Context(), clustersOf([]*Site{a}), Newer(), kube.Quiet{}))(t)
	kit.Check(t, "a dry run has changed", a.contents(t), before)
	out := mustUpgrade(t, Newer(), a)
	kit.Check(t, "the dry run has said something else", out[0].Notes, plans.Clusters[0].Notes)
	said := strings.Join(out[0].Notes, "\n")
	for _, want := range []string{`limits.memory was changed by "kubectl-edit", and is kept`, `tolerations was changed by "kubectl-edit", and is kept`, `imagePullPolicy was changed by "kubectl-edit", and is set`} {
		kit.ErrorIf(t, !strings.Contains(said, want), "it does not say %q, but\n%s", want, said)
	}
	for _, ds := range List[appsv1.DaemonSetList](t, a).Items {
		pod := ds.Spec.Template.Spec
		c := pod.Containers[0]
		if c.Image != "image:2" || c.Resources.Limits.Memory().String() != "3Gi" || c.ImagePullPolicy != corev1.PullIfNotPresent || pod.Tolerations[0].Key != "mine" || len(pod.ImagePullSecrets) != 1 {
			t.Errorf("the pods are %+v", pod)
		}
	}
}

// Two commands do not upgrade one cluster at the same time: the second one waits, and says for which.
func TestUpgradeNextToAnother(t *testing.T) {
	kit.NotShort(t)
	t.Parallel()
	a, _ := oldPair(t, 1, 1)
	mustUpgradeWith := func(ctx context.Context, r kube.Reporter) error {
		out, err := UpgradeAll(ctx, clustersOf([]*Site{a}), Newer(), r)
		if err == nil {
			err = out[0].Err
		}
		return err
	}
	err := mustUpgradeWith(t.Context(), Steps{"a: definitions and permissions": func() {
		err := mustUpgradeWith(kit.Timeout(t, time.Second), kube.Quiet{})
		kubetest.Fails(t, err, kube.Busy, "upgrade of ")
	}})
	kit.ErrorIf(t, err != nil, "%v", err)
}

// Ctrl-C keeps what was done, and the next command continues.
func TestUpgradeInterrupted(t *testing.T) {
	kit.NotShort(t)
	t.Parallel()
	a, b := oldPair(t, 2, 2)
	ctx, cancel := context.WithCancelCause(t.Context())
	out, err := UpgradeAll(ctx, clustersOf([]*Site{a, b}), Newer(), Steps{"b: gateways of plane 1 (a)": func() { cancel(errors.New("interrupted")) }})
	kit.NoError(t, err)
	for _, u := range out {
		if e := (*kube.Error)(nil); !errors.As(u.Err, &e) || !strings.Contains(u.Err.Error(), "interrupted") || !strings.Contains(e.Hint, "again") {
			t.Errorf("%s: %v", u.Cluster, u.Err)
		}
	}
	for _, w := range []*Site{a, b} {
		for _, d := range List[appsv1.DeploymentList](t, w).Items {
			kit.ErrorIf(t, *d.Spec.Replicas != 1, "%s: %s has no gateway", w.Name, d.Name)
		}
	}
	mustUpgrade(t, Newer(), a, b)
}

// Agents of a command that installs them, or was killed, wait for the ledger. An upgrade does not wait with them.
func TestUpgradeWithoutLedger(t *testing.T) {
	kit.NotShort(t)
	t.Parallel()
	a, _ := TwoSites(t)
	a.install(t, v010)
	a.did = nil
	_, err := UpgradeAll(t.Context(), clustersOf([]*Site{a}), Newer(), kube.Quiet{})
	kit.ErrorIf(t, kubetest.KindOf(t, err) != kube.Usage || !doesNotFit(err) || len(a.did) > 0, "got %v after %v", err, a.did)
}
