package peering

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/status"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// overlayKey returns the overlay's only key, which must be in the Secret of that name. It fails the test if an agent
// has another key.
func (w *Site) overlayKey(t *testing.T, name string) []byte {
	t.Helper()
	var secrets corev1.SecretList
	kit.NoError(t, w.Raw.List(t.Context(), &secrets, client.InNamespace(v1alpha1.Namespace)))
	var key []byte
	for _, s := range secrets.Items {
		if manifests.OverlayGeneration(s.Name) == 0 {
			continue
		}
		if key = s.Data[v1alpha1.OverlayKeyFile]; s.Name != name || len(key) != engine.KeyBytes || s.Immutable == nil || !*s.Immutable {
			t.Errorf("%s has the Secret %s with %d bytes, want %s only", w.Name, s.Name, len(key), name)
		}
	}
	agents := 0
	for _, list := range []client.ObjectList{&appsv1.DaemonSetList{}, &appsv1.DeploymentList{}} {
		kit.NoError(t, w.Raw.List(t.Context(), list))
		objs := kube.Items(list)
		for _, obj := range objs {
			agents++
			if keys := manifests.OverlayKeys(engine.PodSpecOf(obj)); len(keys) != 1 || manifests.OverlaySecretName(keys[0]) != name {
				t.Errorf("%s of %s mounts the keys %v, want %s", kube.Describe(obj), w.Name, keys, name)
			}
		}
	}
	kit.FatalIf(t, key == nil || agents < 2, "%s has %d agents, and %d bytes of key in %s", w.Name, agents, len(key), name)
	return key
}

// leave deletes a node and the objects that it owns.
func (w *Site) leave(t *testing.T, name string) {
	t.Helper()
	err := w.Raw.Delete(t.Context(), kubetest.Node(name, true))
	for _, n := range List[v1alpha1.NodeNetworkList](t, w).Items {
		if n.Name == name {
			err = errors.Join(err, w.Raw.Delete(t.Context(), &n))
		}
	}
	kit.NoError(t, err)
}

// Get reads an object as the API has it.
func Get[O client.Object](t *testing.T, w *Site, namespace, name string, into O) O {
	t.Helper()
	kit.NoError(t, w.Raw.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, into))
	return into
}

func List[T any, L interface {
	*T
	client.ObjectList
}](t *testing.T, w *Site) L {
	t.Helper()
	out := L(new(T))
	kit.NoError(t, w.Raw.List(t.Context(), out))
	return out
}

// says returns the messages of status for the cluster, all of whose peerings must be connected.
func (w *Site) says(t *testing.T) string {
	t.Helper()
	views, err := status.Views(t.Context(), w.Cluster)
	kit.FatalIf(t, err != nil || len(views) == 0, "%v %v", views, err)
	for _, v := range views {
		kit.ErrorIf(t, v.State != status.Connected, "%s is %s: %s", v.Peer, v.State, v.Message)
	}
	return views[0].Message
}

// withGuest returns two clusters that are peered. The second node of a is to leave later.
func withGuest(t *testing.T) (a, b *Site) {
	t.Helper()
	a = NewSite(t, "a", "10.244.0.0/16", "172.18.1.11", kubetest.Node("guest", true, "172.18.1.12"))
	return a, a.PeeredWith(t, "b", "10.244.0.0/16", "172.18.2.11")
}

// Root on a node knows the overlay's key. After the node has left, status reports it, and the next command replaces
// the key in all agents, including those of other peerings.
func TestFormerNodeKnowsNoKey(t *testing.T) {
	kit.Play(t)
	a, b := withGuest(t)
	_, other := manifests.Gateway{Peering: "c", Agents: manifests.Agents{Image: "image:1"}, KeyGeneration: 1, OverlayKey: 1}.Objects() // of another peering
	kit.NoError(t, a.Raw.Create(t.Context(), other))
	first, ofB := a.overlayKey(t, "liqonet-overlay-1"), b.overlayKey(t, "liqonet-overlay-1")
	kit.Check(t, "status", a.says(t), "")
	a.leave(t, "guest")
	if says := a.says(t); !strings.Contains(says, "nodes that have left know the overlay's key (1): kubectl liqonet peer a b creates another one") {
		t.Errorf("status says %q", says)
	}
	kit.Check(t, "of the other cluster, status", b.says(t), "")
	var would []string
	for _, o := range DryRun(t, a, b, engine.Options{}).Clusters[0].Objects {
		if o.Action != plan.Keep {
			would = append(would, string(o.Action)+" "+o.Kind+" "+o.Name)
		}
	}
	slices.Sort(would)
	want := []string{
		"change ClusterNetwork cluster", "change DaemonSet liqonet-node", "change Deployment gateway-b-0", "change Peering b",
		"create Secret liqonet-overlay-2", "delete Secret liqonet-overlay-1",
	}
	kit.Check(t, "the plan", would, want)
	a.overlayKey(t, "liqonet-overlay-1")
	r := MustPeer(t, a, b, engine.Options{})
	second := a.overlayKey(t, "liqonet-overlay-2")
	kit.ErrorIf(t, bytes.Equal(first, second) || !bytes.Equal(ofB, b.overlayKey(t, "liqonet-overlay-1")),
		"the key is the one before, or the other cluster's has changed as well")
	if !slices.Contains(r.Changed, "a: key of the overlay") || a.says(t) != "" {
		t.Errorf("changed was %v, and status says %q", r.Changed, a.says(t))
	}
	n := DryRun(t, a, b, engine.Options{}).Changes()
	kit.ErrorIf(t, n > 0, "the second time there would be %d changes", n)
	// Deleting the Secret also leads to a new key.
	kit.NoError(t, a.Raw.Delete(t.Context(), manifests.OverlaySecret(2, nil)))
	keys := DryRun(t, a, b, engine.Options{}).Clusters[0].Keys
	kit.ErrorIf(t, keys[0].Value.String() != "Secret liqonet-system/liqonet-overlay-3", "without the Secret, the plan says %+v", keys)
}

// A new node gets the current key, and the next command records it.
func TestNodeThatCameLater(t *testing.T) {
	kit.Play(t)
	a, b := Peered(t)
	first := a.overlayKey(t, "liqonet-overlay-1")
	kit.NoError(t, a.Raw.Create(t.Context(), kubetest.Node("guest", true, "172.18.1.12")))
	if r := MustPeer(t, a, b, engine.Options{}); !slices.Contains(r.Changed, "a: the ledger") || slices.Contains(r.Changed, "a: key of the overlay") || !bytes.Equal(first, a.overlayKey(t, "liqonet-overlay-1")) {
		t.Errorf("changed was %v", r.Changed)
	}
	// A command that fails for another reason keeps the new key: all agents have it.
	a.leave(t, "guest")
	b.unreachable = true
	_, err := Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{Server: "id-of-b", Image: "image:2"}, &impatient{1, time.Second})
	kubetest.Fails(t, err, kube.NotReady)
	b.unreachable = false
	if got := a.image(t); got != "image:1" || bytes.Equal(first, a.overlayKey(t, "liqonet-overlay-2")) || a.says(t) != "" {
		t.Errorf("the node agents have the image %s, and status says %q", got, a.says(t))
	}
}

// killed returns the cluster for a command that is killed before a write to the object.
func (w *Site) killed(verb, object string) *kube.Cluster {
	var dead atomic.Bool
	return w.Through(func(ctx context.Context, r *fakeapi.Request) error {
		if r.String() == verb+" "+object {
			dead.Store(true)
		}
		if dead.Load() && !r.Reads() && r.Review() == nil {
			return ErrInjected
		}
		return r.Send(ctx)
	})
}

// Wherever a command is killed, status still reports that a departed node knows a key in use, and the next command
// creates one that the node does not know.
func TestInterruptedChangeOfKeys(t *testing.T) {
	t.Parallel()
	for i, tt := range []struct{ verb, object string }{
		{"patch", "Deployment liqonet-system/gateway-b-0"},
		{"patch", "DaemonSet liqonet-system/liqonet-node"},
		{"create", "Secret liqonet-system/liqonet-overlay-2"},
		{"update", "ClusterNetwork cluster"},
		{"delete", "Secret liqonet-system/liqonet-overlay-1"},
	} {
		if testing.Short() && i > 0 {
			return // each takes seconds
		}
		t.Run(tt.verb+" "+tt.object, func(t *testing.T) {
			t.Parallel()
			a, b := withGuest(t)
			first := a.overlayKey(t, "liqonet-overlay-1")
			a.leave(t, "guest")
			kit.FailsWith(t, kit.Err(Peer(t.Context(), a.killed(tt.verb, tt.object), b.Cluster, engine.Options{}, kube.Quiet{})), ErrInjected)
			says := a.says(t)
			kit.ErrorIf(t, says == "", "status says nothing of the former node")
			MustPeer(t, a, b, engine.Options{})
			if key := a.overlayKey(t, manifests.OverlaySecretName(plan.OverlayKey(kubetest.ReadLedger(t, a.Cluster)))); bytes.Equal(first, key) || a.says(t) != "" {
				t.Errorf("the former node knows the key: %t; status says %q", bytes.Equal(first, key), a.says(t))
			}
		})
	}
}

// Agents that unpeer reinstalls to clean the nodes have the same key as the others.
func TestReinstalledAgentsHaveTheKey(t *testing.T) {
	ledger, left := kubetest.LedgerOf("c"), kubetest.Report("n1", "10.80.0.1", nil)
	ledger.Spec.OverlayKey = v1alpha1.OverlayKey{Generation: 5, Nodes: []string{"gone"}}
	left.Status.Gateways = []v1alpha1.NodeGateway{{PeeringName: "b"}}
	ctx, cancel := context.WithCancel(t.Context())
	var secrets []string
	c := kubetest.NewCluster(t, "a", interceptor.Funcs{}, ledger, kubetest.Node("n1", true), &left)
	c.Client = fakeapi.Intercept(c.Client, func(ctx context.Context, r *fakeapi.Request) error {
		raw, err := json.Marshal(r.Object)
		if secret := regexp.MustCompile(`"name":"(liqonet-overlay-[^"]*)"`).FindSubmatch(raw); secret != nil && r.Verb == "apply" {
			secrets = append(secrets, string(secret[1]))
			cancel()
		}
		return errors.Join(err, r.Send(ctx))
	})
	_, err := engine.AwaitNodesClean(ctx, c, "b")
	kit.ErrorIf(t, !errors.Is(err, context.Canceled), "%v", err)
	kit.ErrorIf(t, !slices.Equal(slices.Compact(secrets), []string{"liqonet-overlay-5"}), "they have %v", secrets)
}

// The placement of gateways is kept until the user changes it.
func TestPlacementStays(t *testing.T) {
	kit.Play(t)
	a, b := TwoSites(t)
	n := Get(t, a, "", "a-1", &corev1.Node{})
	n.Labels["pool"] = "gateways"
	n.Spec.Taints = []corev1.Taint{{Key: "dedicated", Value: "gateways", Effect: corev1.TaintEffectNoSchedule}}
	kit.NoError(t, a.Raw.Update(t.Context(), n))
	// required are the labels that a gateway's node needs, in addition to those of nodes with agents, and tolerated the
	// taints that it tolerates.
	placed := func(w *Site) (required, tolerated []string) {
		for _, d := range List[appsv1.DeploymentList](t, w).Items {
			spec := d.Spec.Template.Spec
			for _, e := range spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchExpressions {
				if e.Key == "pool" {
					required = append(required, e.Values...)
				}
			}
			for _, o := range spec.Tolerations {
				if o.Key == "dedicated" {
					tolerated = append(tolerated, o.Value+":"+string(o.Effect))
				}
			}
		}
		return required, tolerated
	}
	check := func(what string, wantRequired, wantTolerated string) {
		t.Helper()
		required, tolerated := placed(a)
		kit.ErrorIf(t, strings.Join(required, " ") != wantRequired || strings.Join(tolerated, " ") != wantTolerated,
			"%s: the gateway needs %v and tolerates %v", what, required, tolerated)
		if required, tolerated := placed(b); len(required)+len(tolerated) > 0 {
			t.Errorf("%s: in the other cluster, the gateway needs %v and tolerates %v", what, required, tolerated)
		}
	}
	chosen := v1alpha1.GatewayPlacement{
		NodeSelector: map[string]string{"pool": "gateways"},
		Tolerations:  []corev1.Toleration{{Key: "dedicated", Operator: "Equal", Value: "gateways", Effect: "NoSchedule"}},
	}
	before := contentsOf(t, a, b)
	for _, wrong := range []v1alpha1.GatewayPlacement{{NodeSelector: map[string]string{"pool": "gateway"}}, {NodeSelector: chosen.NodeSelector}} {
		_, err := Peer(t.Context(), a.Cluster, b.Cluster, wishFor("id-of-a", engine.ClusterOptions{Gateways: wrong}), kube.Quiet{})
		kubetest.Fails(t, err, kube.Usage)
	}
	for i, w := range []*Site{a, b} {
		diff := cmp.Diff(before[i], w.contents(t))
		kit.ErrorIf(t, diff != "" || w.Writes > 0, "a choice that is refused changes %s:\n%s", w.Name, diff)
	}
	MustPeer(t, a, b, wishFor("id-of-a", engine.ClusterOptions{Gateways: chosen}))
	check("chosen", "gateways", "gateways:NoSchedule")
	Settled(t, a, b, engine.Options{})
	d := List[appsv1.DeploymentList](t, a).Items[0]
	kit.NoError(t, a.Raw.Delete(t.Context(), &d))
	chosen.Tolerations[0].Effect = ""
	r := MustPeer(t, a, b, wishFor("id-of-a", engine.ClusterOptions{Gateways: v1alpha1.GatewayPlacement{Tolerations: chosen.Tolerations}}))
	kit.ErrorIf(t, !slices.Contains(r.Changed, "a: Deployment liqonet-system/gateway-b-0"), "changed was %v", r.Changed)
	check("somebody has deleted the gateway, and there is another toleration", "gateways", "gateways:")
	none := v1alpha1.GatewayPlacement{NodeSelector: map[string]string{}, Tolerations: []corev1.Toleration{}}
	var would []string
	for _, o := range DryRun(t, a, b, wishFor("id-of-a", engine.ClusterOptions{Gateways: none})).Clusters[0].Objects {
		if o.Action != plan.Keep {
			would = append(would, o.Kind)
		}
	}
	kit.Check(t, "the plan to take it back changes", would, []string{"Deployment", "Peering"})
	MustPeer(t, a, b, wishFor("id-of-a", engine.ClusterOptions{Gateways: none}))
	check("taken back", "", "")
	Settled(t, a, b, engine.Options{})
}

// A setting for one cluster takes precedence over a setting for all, even if it is the explicit default.
func TestPlacementOfOneCluster(t *testing.T) {
	all := v1alpha1.GatewayPlacement{NodeSelector: map[string]string{"pool": "gateways"}, Tolerations: []corev1.Toleration{{Key: "spot", Operator: "Exists"}}}
	none := v1alpha1.GatewayPlacement{NodeSelector: map[string]string{}, Tolerations: []corev1.Toleration{}}
	o := engine.Options{Gateways: all, Clusters: map[string]engine.ClusterOptions{"none": {Gateways: none}, "other": {Image: "image"}}}
	for id, want := range map[string]v1alpha1.GatewayPlacement{"none": none, "other": all, "unnamed": all} {
		kit.Check(t, id, o.For(id).Gateways, want)
	}
}

// A user has deleted the namespace, and a node has left. So the next command creates another overlay key, which the
// ledger must record before any agent gets it, and there is no namespace yet for its journal.
func TestNamespaceIsGone(t *testing.T) {
	kit.Play(t)
	a, b := withGuest(t)
	a.leave(t, "guest")
	for _, kind := range []client.Object{
		&appsv1.DaemonSet{}, &appsv1.Deployment{}, &corev1.Pod{}, &corev1.Secret{}, &corev1.ConfigMap{}, &corev1.ServiceAccount{},
	} {
		kit.NoError(t, a.Raw.DeleteAllOf(t.Context(), kind, client.InNamespace(v1alpha1.Namespace)))
	}
	kit.NoError(t, a.Raw.Delete(t.Context(), manifests.Namespace()))
	kit.Must(Peer(kit.Timeout(t, 30*time.Second), a.Cluster, b.Cluster, engine.Options{Replace: true}, kube.Quiet{}))(t)
	a.overlayKey(t, "liqonet-overlay-2")
}
