package peering

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/status"
	"github.com/liqonet/liqonet/pkg/wire"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// wrongKeys returns violations of these rules:
//   - Node agents mount the overlay keys that Peerings name, and no keys before the one that the ledger requires.
//   - The pre-shared keys that Peerings name exist. A gateway mounts one: while it is replaced, the next one.
//   - All Secrets that agents mount exist.
//   - The data of a Secret with a key never changes.
//
// At rest, a gateway mounts the named key. The caller has locked the site.
func (w *Site) wrongKeys(isAtRest bool) sets.Set[string] {
	wrong, there, byAgent := sets.New[string](), sets.New[string](), map[string]sets.Set[string]{}
	var peerings []*v1alpha1.Peering
	least := int32(1)
	w.Raw.Each(func(obj metav1.Object) {
		switch o := obj.(type) {
		case *corev1.Secret:
			if o.Namespace != v1alpha1.Namespace || strings.HasPrefix(o.Name, manifests.JournalSecret("").Name) {
				return
			}
			there.Insert(o.Name)
			if data, is := w.keyData[o.UID], fmt.Sprint(o.Data); data != "" && data != is {
				wrong.Insert(fmt.Sprintf("Secret %s has another key", o.Name))
			} else {
				w.keyData[o.UID] = is
			}
		case *appsv1.DaemonSet:
			if o.Namespace == v1alpha1.Namespace {
				byAgent[o.Name] = mounted(&o.Spec.Template.Spec)
			}
		case *appsv1.Deployment:
			if o.Namespace == v1alpha1.Namespace {
				byAgent[o.Name] = mounted(&o.Spec.Template.Spec)
			}
		case *v1alpha1.ClusterNetwork:
			least = plan.OverlayKey(o)
		case *v1alpha1.Peering:
			peerings = append(peerings, o)
		}
	})
	for agent, secrets := range byAgent {
		for _, missing := range sets.List(secrets.Difference(there)) {
			wrong.Insert(fmt.Sprintf("%s mounts Secret %s, which is not there", agent, missing))
		}
	}
	for _, p := range peerings {
		for _, plane := range p.Spec.Planes {
			if g := plane.OverlayKeyGeneration; g >= least && !byAgent[v1alpha1.NodeAgentName].Has(manifests.OverlaySecretName(g)) {
				wrong.Insert(fmt.Sprintf("Peering %s names key %d of the overlay, which node agents do not mount", p.Name, g))
			}
			g := manifests.Gateway{Peering: p.Name, Plane: plane.Index, PresharedKey: plane.PresharedKey.Generation}
			switch psk := g.PresharedSecretName(); {
			case g.PresharedKey == 0:
			case !there.Has(psk):
				wrong.Insert(fmt.Sprintf("Peering %s names Secret %s, which is not there", p.Name, psk))
			case isAtRest && !byAgent[g.Name()].Has(psk):
				wrong.Insert(fmt.Sprintf("Peering %s names Secret %s, which its gateway does not mount", p.Name, psk))
			}
		}
	}
	return wrong
}

// mounted returns the names of the Secrets that a pod mounts.
func mounted(pod *corev1.PodSpec) sets.Set[string] {
	out := sets.New[string]()
	for _, v := range pod.Volumes {
		if v.Secret != nil {
			out.Insert(v.Secret.SecretName)
		}
		if v.Projected == nil {
			continue
		}
		for _, source := range v.Projected.Sources {
			if source.Secret != nil {
				out.Insert(source.Secret.Name)
			}
		}
	}
	return out
}

// checkMounts fails the test if keys are wrong while no command replaces gateways.
func (w *Site) checkMounts(t *testing.T) {
	t.Helper()
	w.Mu.Lock()
	defer w.Mu.Unlock()
	for _, what := range sets.List(w.wrongKeys(true)) {
		t.Errorf("%s: %s", w.Name, what)
	}
}

// Wrong keys are found, whatever caused them.
func TestWrongKeysAreFound(t *testing.T) {
	kit.Play(t)
	a, b := Peered(t)
	a.checkMounts(t)
	for _, name := range []string{"gateway-b-0-1", "gateway-b-0-psk-1", "liqonet-overlay-1"} {
		kit.NoError(t, a.Raw.Delete(t.Context(), kube.SecretMetadata(name)))
		a.Mu.Lock()
		wrong := a.wrongKeys(false)
		kit.ErrorIf(t, !strings.Contains(fmt.Sprint(sets.List(wrong)), name+", which is not there"), "without Secret %s it finds %v", name, wrong)
		a.Mu.Unlock()
	}
	ds := Get(t, b, v1alpha1.Namespace, v1alpha1.NodeAgentName, &appsv1.DaemonSet{})
	kit.NoError(t, b.Raw.Delete(t.Context(), ds))
	b.Mu.Lock()
	defer b.Mu.Unlock()
	if wrong := b.wrongKeys(false); !wrong.Has("Peering a names key 1 of the overlay, which node agents do not mount") {
		t.Errorf("without node agents it finds %v", wrong)
	}
}

// overlayKey returns the overlay's only key, which must be in the Secret of that name. It fails the test if an agent
// has another key.
func (w *Site) overlayKey(t *testing.T, name string) []byte {
	t.Helper()
	var secrets corev1.SecretList
	kit.NoError(t, w.Raw.List(t.Context(), &secrets, client.InNamespace(v1alpha1.Namespace)))
	var key []byte
	gateways := map[string]corev1.Secret{}
	for _, s := range secrets.Items {
		if manifests.OverlayGeneration(s.Name) == 0 {
			continue
		}
		if s.Labels[v1alpha1.LabelPlane] != "" {
			gateways[s.Name] = s
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
			keys, secrets := manifests.OverlayKeys(engine.PodSpecOf(obj)), mounted(engine.PodSpecOf(obj))
			if len(keys) != 1 || manifests.OverlaySecretName(keys[0]) != name {
				t.Errorf("%s of %s mounts the keys %v, want %s", kube.Describe(obj), w.Name, keys, name)
				continue
			}
			if obj.GetName() == v1alpha1.NodeAgentName {
				kit.ErrorIf(t, !secrets.Has(name), "node agents of %s mount %v", w.Name, secrets)
				continue
			}
			// Gateways mount only what is derived for them.
			own := gateways[fmt.Sprintf("%s-overlay-%d", obj.GetName(), keys[0])]
			derived := wire.GatewayKey(key, obj.GetName(), keys[0])
			kit.ErrorIf(t, secrets.Has(name) || !secrets.Has(own.Name) || !bytes.Equal(own.Data[v1alpha1.OverlayKeyFile], derived),
				"%s of %s mounts %v, and its key is not derived from %s", kube.Describe(obj), w.Name, secrets, name)
			delete(gateways, own.Name)
		}
	}
	kit.ErrorIf(t, len(gateways) > 0, "%s has keys that no gateway mounts: %v", w.Name, slices.Sorted(maps.Keys(gateways)))
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
	first, ofB := a.overlayKey(t, "liqonet-overlay-1"), b.overlayKey(t, "liqonet-overlay-1")
	g := manifests.Gateway{Peering: "c", Agents: manifests.Agents{Image: "image:1"}, KeyGeneration: 1, OverlayKey: 1} // of another peering
	_, other := g.Objects()
	kit.NoError(t, a.Raw.Create(t.Context(), other))
	kit.NoError(t, a.Raw.Create(t.Context(), g.OverlaySecret(wire.GatewayKey(first, g.Name(), 1))))
	kit.Check(t, "status", a.says(t), "")
	a.leave(t, "guest")
	if says := a.says(t); !strings.Contains(says, "nodes that have left know the overlay's key (1): kubectl liqonet peer a b creates another one") {
		t.Errorf("status says %q", says)
	}
	kit.Check(t, "of the other cluster, status", b.says(t), "")
	would := Changes(DryRun(t, a, b, engine.Options{}))
	slices.Sort(would)
	want := []string{
		"a change ClusterNetwork cluster", "a change DaemonSet liqonet-node", "a change Deployment gateway-b-0", "a change Peering b",
		"a create Secret gateway-b-0-overlay-2", "a create Secret liqonet-overlay-2", "a delete Secret liqonet-overlay-1", "b change Peering a",
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
	Settled(t, a, b, engine.Options{})
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
	b.Unreachable = true
	_, err := Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{Server: "id-of-b", Image: "image:2"}, &impatient{after: 1, Duration: time.Second})
	kubetest.Fails(t, err, kube.NotReady)
	b.Unreachable = false
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
	moments := []struct{ verb, object string }{
		{"patch", "Deployment liqonet-system/gateway-b-0"},
		{"patch", "DaemonSet liqonet-system/liqonet-node"},
		{"create", "Secret liqonet-system/liqonet-overlay-2"},
		{"update", "ClusterNetwork cluster"},
		{"delete", "Secret liqonet-system/liqonet-overlay-1"},
	}
	few := 2
	if testing.Short() {
		few = 1 // each takes seconds
	}
	for _, tt := range kubetest.Some(t, moments, few, len(moments)) {
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
	synctest.Test(t, func(t *testing.T) {
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
	})
}

// agentKeys returns the generations of the node agents' overlay keys.
func (w *Site) agentKeys(t *testing.T) []int32 {
	t.Helper()
	ds := Get(t, w, v1alpha1.Namespace, v1alpha1.NodeAgentName, &appsv1.DaemonSet{})
	return manifests.OverlayKeys(&ds.Spec.Template.Spec)
}

// checkKeys fails the test unless agents mount the keys that Peerings name, and these exist in Secrets.
func (w *Site) checkKeys(t *testing.T) {
	t.Helper()
	w.checkMounts(t)
	given := w.agentKeys(t)
	for _, p := range List[v1alpha1.PeeringList](t, w).Items {
		for _, plane := range p.Spec.Planes {
			if !slices.Contains(given, plane.OverlayKeyGeneration) {
				t.Errorf("%s: the links of Peering %s, plane %d, have key %d, and node agents have %v", w.Name, p.Name, plane.Index, plane.OverlayKeyGeneration, given)
			}
		}
	}
}

// Changes of the shared node agents by another command, before any write of peer for another pair, persist.
func TestPeerKeepsWhatOthersDidToNodeAgents(t *testing.T) {
	kit.Play(t)
	type command struct {
		// isAlone means that the cluster has no third peering, which always uses the first key; isExclusive that the command
		// waits for others, so it runs before the first one has its locks.
		isAlone, isExclusive bool
		run                  func(t *testing.T, a, b *Site)
		// image of node agents, and whether they show their metrics at the nodes' addresses, afterwards.
		image   string
		metrics bool
	}
	rotate := func(t *testing.T, a, b *Site) {
		kit.CheckNoError(t, verbs["rotate-keys"](t.Context(), a.Cluster, b.Cluster))
	}
	peer := func(o engine.Options) func(t *testing.T, a, b *Site) {
		return func(t *testing.T, a, b *Site) { MustPeer(t, a, b, o) }
	}
	for name, other := range kubetest.SomeOf(t, 2, map[string]command{
		"rotate-keys":                     {isExclusive: true, run: rotate, image: "image:1"},
		"rotate-keys of the only peering": {isAlone: true, isExclusive: true, run: rotate, image: "image:1"},
		"peer after a node has left": {image: "image:1", run: func(t *testing.T, a, b *Site) {
			a.leave(t, "a-2")
			MustPeer(t, a, b, engine.Options{})
		}},
		"upgrade":             {isExclusive: true, run: func(t *testing.T, a, _ *Site) { mustUpgrade(t, Newer(), a) }, image: "image:2"},
		"peer --agent-image":  {run: peer(engine.Options{Image: "image:3"}), image: "image:3"},
		"peer --node-metrics": {run: peer(engine.Options{NodeMetrics: "node"}), image: "image:1", metrics: true},
	}) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at, done := 0, true
			play := func(t *testing.T) {
				a, b := pairOf(t, 2)
				if !other.isAlone {
					a.PeeredWith(t, "d", "10.244.0.0/16", "172.18.4.11")
				}
				c := NewSite(t, "c", "10.244.0.0/16", "172.18.3.11")
				a.Peer, c.Peer = c, a
				done = false
				between := func() {
					a.Peer, b.Peer, done = b, a, true
					other.run(t, a, b)
					a.checkMounts(t)
					a.Peer = c
				}
				r := kube.Reporter(kube.Quiet{})
				if other.isExclusive {
					r = then{"Reading both clusters": between}
				} else {
					a.Writes, a.BeforeWriteAt, a.BeforeWrite = 0, at, between
				}
				kit.CheckNoError(t, kit.Err(Peer(t.Context(), a.Cluster, c.Cluster, engine.Options{}, r)))
				if !done {
					kit.ErrorIf(t, at < 5, "%d writes are none", at)
					return
				}
				ds, err := a.ReadNodeAgents(t.Context())
				kit.NoError(t, err)
				kit.Check(t, "the image of the node agents", a.image(t), other.image)
				kit.Check(t, "metrics at the nodes' addresses", manifests.ExposesNodeMetrics(ds), other.metrics)
				a.checkMounts(t)
				for _, p := range List[v1alpha1.PeeringList](t, a).Items {
					for _, plane := range p.Spec.Planes {
						// peer for their pair gives links with a retired key the next one.
						if key := plane.OverlayKeyGeneration; key >= plan.OverlayKey(kubetest.ReadLedger(t, a.Cluster)) && !slices.Contains(a.agentKeys(t), key) {
							t.Errorf("the links of Peering %s have key %d, and node agents have %v", p.Name, key, a.agentKeys(t))
						}
					}
				}
			}
			for done && !t.Failed() && (at == 0 || kit.Full() && !other.isExclusive) {
				at++
				t.Run(fmt.Sprint("before write ", at), play)
			}
		})
	}
}

// then calls a function after a step of that name.
type then map[string]func()

func (s then) Step(ctx context.Context, name string, do func(context.Context) error) error {
	err := do(ctx)
	if f := s[name]; f != nil {
		f()
	}
	return err
}

// rotate-keys ends after another command has read the cluster, but before that has a lock. It does not use what it has read.
func TestWhatWasReadBeforeTheLockIsReadAgain(t *testing.T) {
	kit.Play(t)
	for name, do := range map[string]func(t *testing.T, a, b *Site, rotate func()){
		"upgrade": func(t *testing.T, a, _ *Site, rotate func()) {
			out, err := UpgradeAll(t.Context(), []*kube.Cluster{a.Cluster}, Newer(), then{"Reading the cluster": rotate})
			kit.ErrorIf(t, err != nil || out[0].Err != nil, "%v %v", out, err)
		},
		"peer": func(t *testing.T, a, b *Site, rotate func()) {
			r, err := Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{}, then{"Reading both clusters": rotate})
			kit.ErrorIf(t, err != nil || len(r.Changed) > 0, "%v %v", r.Changed, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := pairOf(t, 2)
			var after map[string]string
			do(t, a, b, sync.OnceFunc(func() {
				kit.CheckNoError(t, kit.Err(Rotate(t.Context(), a.Cluster, b.Cluster, Rotation{}, kube.Quiet{})))
				after = a.keysOf(t)
			}))
			a.checkKeys(t)
			b.checkKeys(t)
			kit.Check(t, "rotate-keys had given others", a.keysOf(t), after)
		})
	}
}

// An overlay key is deleted with the last link that uses it, whichever command removes that link.
func TestUnusedOverlayKeysGo(t *testing.T) {
	kit.Play(t)
	keys := func(w *Site) (out []int32) {
		for _, s := range List[corev1.SecretList](t, w).Items {
			if g := manifests.OverlayGeneration(s.Name); g > 0 {
				out = append(out, g)
			}
		}
		slices.Sort(out)
		return slices.Compact(out) // gateways have keys of the same generations
	}
	a, b := pairOf(t, 2)
	d := a.PeeredWith(t, "d", "10.244.0.0/16", "172.18.4.11")
	others := []*Site{b, d}
	want := func(after string, generations ...int32) {
		t.Helper()
		if got, given := keys(a), a.agentKeys(t); !slices.Equal(got, generations) || !slices.Equal(given, generations) {
			t.Errorf("after %s there are the keys %v, agents have %v, want %v", after, got, given, generations)
		}
		a.checkKeys(t)
		for _, peer := range others {
			a.Peer = peer
			Settled(t, a, peer, engine.Options{})
		}
	}
	rotate := func(peer *Site) {
		t.Helper()
		a.Peer = peer
		kit.CheckNoError(t, kit.Err(Rotate(t.Context(), a.Cluster, peer.Cluster, Rotation{}, kube.Quiet{})))
	}
	unpeer := func(peer *Site) {
		t.Helper()
		a.Peer = peer
		MustUnpeer(t, a, peer)
	}
	want("peer", 1)
	rotate(b)
	want("rotate-keys a b", 1, 2)
	rotate(b)
	want("rotate-keys a b, again", 1, 3)
	rotate(d)
	want("rotate-keys a d", 3, 4)
	unpeer(b)
	others = []*Site{d}
	want("unpeer a b", 4)
	a.PeerAgain(t, b)
	rotate(b)
	others = []*Site{b, d}
	want("rotate-keys a b after peer", 4, 5)
	unpeer(d)
	others = []*Site{b}
	want("unpeer a d", 5)
	rotate(b)
	want("rotate-keys a b, with one peering", 6)
}

// Commands that end at the same time leave no key behind: each leaves it to the other while that runs.
func TestUnusedOverlayKeysGoWhenCommandsEndTogether(t *testing.T) {
	kit.Play(t)
	writes := []int{3, 8}
	if kit.Full() {
		writes = []int{1, 2, 3, 4, 5, 6, 7, 8}
	}
	for _, ends := range writes {
		t.Run(fmt.Sprint(ends), func(t *testing.T) {
			t.Parallel()
			a, b := pairOf(t, 2)
			d := a.PeeredWith(t, "d", "10.244.0.0/16", "172.18.4.11")
			a.Peer = b
			kit.Must(Rotate(t.Context(), a.Cluster, b.Cluster, Rotation{}, kube.Quiet{}))(t)
			// unpeer a b runs completely during unpeer a d. Both leave a without peerings that use a key.
			a.PeeredWith(t, "c", "10.244.0.0/16", "172.18.3.11")
			a.Peer = b
			a.Writes, a.BeforeWriteAt, a.BeforeWrite = 0, ends, func() {
				MustUnpeer(t, a, b)
			}
			MustUnpeer(t, a, d)
			left := a.UnusedKeys(t)
			kit.ErrorIf(t, len(left) > 0, "there are keys that no link has: %v", left)
			a.checkKeys(t)
		})
	}
}
