package peering

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/discovery"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/version"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// planesTo returns the planes of the Peering with a cluster.
func (w *Site) planesTo(t *testing.T, peer *Site) []v1alpha1.Plane {
	t.Helper()
	for _, p := range List[v1alpha1.PeeringList](t, w).Items {
		if p.Spec.Remote.ClusterID == peer.ID {
			return p.Spec.Planes
		}
	}
	return nil
}

// keysOf returns everything that identifies the keys of a cluster's planes.
func (w *Site) keysOf(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, p := range w.planesTo(t, w.Peer) {
		out[fmt.Sprint("key ", p.Index)] = p.RemotePublicKey
		out[fmt.Sprint("pre-shared ", p.Index)] = p.PresharedKey.Fingerprint
		out[fmt.Sprint("overlay ", p.Index)] = fmt.Sprint(p.OverlayKeyGeneration)
	}
	return out
}

// withoutGenerations returns the names of all objects, those of keys without generations.
func (w *Site) withoutGenerations(t *testing.T) (out []string) {
	t.Helper()
	for name := range w.contents(t) {
		if strings.HasPrefix(name, "Secret ") {
			name = strings.TrimRight(name, "0123456789")
		}
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// rotated fails the test unless exactly these keys differ from before.
func rotated(t *testing.T, before, after map[string]string, kinds ...string) {
	t.Helper()
	got, want := slices.Sorted(maps.Keys(after)), slices.Sorted(maps.Keys(before))
	kit.ErrorIf(t, !slices.Equal(got, want), "there are keys %v, before %v", got, want)
	for name := range before {
		kind, _, _ := strings.Cut(name, " ")
		kit.ErrorIf(t, (before[name] != after[name]) != slices.Contains(kinds, kind), "%s was %s, and is %s", name, before[name], after[name])
	}
}

// pairOf returns two peered clusters with so many nodes.
func pairOf(t *testing.T, nodes int) (a, b *Site) {
	t.Helper()
	a, b = unpeeredPair(t, nodes)
	MustPeer(t, a, b, engine.Options{})
	return a, b
}

func unpeeredPair(t *testing.T, nodes int) (a, b *Site) {
	t.Helper()
	a, b = TwoSites(t)
	for i, w := range []*Site{a, b} {
		for n := 1; n < nodes; n++ {
			kit.NoError(t, w.Raw.Create(t.Context(), kubetest.Node(fmt.Sprintf("%s-%d", w.Name, n+1), true, fmt.Sprintf("172.%d.1.%d", 18+i, 11+n))))
		}
	}
	return a, b
}

// All keys are replaced, the former ones deleted, and nothing else changes, with two planes as well as with one,
// which gets a temporary one.
func TestRotate(t *testing.T) {
	kit.Play(t)
	for planes := 1; planes <= 2; planes++ {
		for _, o := range []Rotation{{}, {PresharedOnly: true}} {
			t.Run(fmt.Sprintf("%d planes, %+v", planes, o), func(t *testing.T) {
				t.Parallel()
				a, b := pairOf(t, planes)
				var keys [2]map[string]string
				var names [2][]string
				for i, w := range []*Site{a, b} {
					keys[i], names[i] = w.keysOf(t), w.withoutGenerations(t)
				}
				kit.FatalIf(t, len(keys[0]) != 3*planes, "%v", keys)
				kit.Must(Rotate(t.Context(), a.Cluster, b.Cluster, o, kube.Quiet{}))(t)
				kinds := []string{"key", "pre-shared", "overlay"}
				if o.PresharedOnly {
					kinds = kinds[1:2]
				}
				for i, w := range []*Site{a, b} {
					rotated(t, keys[i], w.keysOf(t), kinds...)
					kit.Check(t, fmt.Sprintf("objects of %s", w.Name), w.withoutGenerations(t), names[i])
				}
				Settled(t, a, b, engine.Options{})
			})
		}
	}
}

// If a plane does not work with new keys, it gets its former keys back, and nothing of the new ones remains.
func TestRotateFails(t *testing.T) {
	kit.Play(t)
	a, b := pairOf(t, 2)
	before := []map[string]string{a.keysOf(t), b.keysOf(t)}
	names := [][]string{a.withoutGenerations(t), b.withoutGenerations(t)}
	_, err := Rotate(t.Context(), a.Cluster, b.Cluster, Rotation{PresharedOnly: true}, Steps{"Replacing the keys of plane 1": func() { a.failing = a.Writes + 8 }})
	kit.FatalIf(t, !errors.Is(err, ErrInjected), "%v", err)
	for i, w := range []*Site{a, b} {
		for name, key := range w.keysOf(t) {
			kit.ErrorIf(t, (key == before[i][name]) != !strings.HasPrefix(name, "pre-shared 0"), "%s: %s", w.Name, name)
		}
		kit.Check(t, fmt.Sprintf("objects of %s", w.Name), w.withoutGenerations(t), names[i])
	}
}

// A command is killed after any write. After an upgrade, all agents know their arguments. The next command completes it.
func TestKilledAtAnyWrite(t *testing.T) {
	kit.Play(t)
	rotate := func(planes int) killable {
		return killable{
			setup: func(t *testing.T) (a, b *Site) { return pairOf(t, planes) },
			run: func(ctx context.Context, a, b *Site) error {
				return kit.Err(Rotate(ctx, a.Cluster, b.Cluster, Rotation{}, kube.Quiet{}))
			},
			next: func(t *testing.T, a, b *Site) {
				MustPeer(t, a, b, engine.Options{})
				for _, w := range []*Site{a, b} {
					for _, left := range List[corev1.SecretList](t, w).Items {
						kit.ErrorIf(t, strings.HasPrefix(left.Name, manifests.JournalSecret("").Name), "%s: it has left Secret %s", w.Name, left.Name)
					}
				}
				kit.Must(Rotate(t.Context(), a.Cluster, b.Cluster, Rotation{}, kube.Quiet{}))(t)
			},
			check: func(t *testing.T, w *Site, before map[string]string) {
				rotated(t, before, w.keysOf(t), "key", "pre-shared", "overlay")
			},
		}
	}
	upgraded := rotate(1)
	upgraded.next = func(t *testing.T, a, b *Site) {
		mustUpgrade(t, Newer(), a, b)
		rotate(1).next(t, a, b)
	}
	for name, tt := range map[string]killable{
		"rotate-keys, 1 plane": rotate(1), "rotate-keys, 2 planes": rotate(2), "rotate-keys, then upgrade": upgraded,
		"upgrade": {
			setup: func(t *testing.T) (a, b *Site) { return oldPair(t, 2, 1) },
			run:   func(ctx context.Context, a, b *Site) error { return verbs["upgrade"](ctx, a.Cluster, b.Cluster) },
			next:  func(t *testing.T, a, b *Site) { mustUpgrade(t, Newer(), a, b) },
			check: func(t *testing.T, w *Site, _ map[string]string) {
				w.checkAgents(t, 1, manifests.Agents{Image: "image:2", Version: version.String()})
				w.IsRolledOut(t)
			},
		},
	} {
		var writes int
		synctest.Test(t, func(t *testing.T) {
			a, b := tt.setup(t)
			a.Writes, b.Writes = 0, 0
			kit.NoError(t, tt.run(t.Context(), a, b))
			writes = max(a.Writes, b.Writes)
		})
		for _, first := range kubetest.Moments(t, writes, 2) {
			t.Run(fmt.Sprintf("%s, at write %d", name, first), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { tt.kill(t, first) }) // a rollback waits for minutes
			})
		}
	}
}

// killable is a command that is killed, and the next one.
type killable struct {
	setup func(t *testing.T) (a, b *Site)
	run   func(ctx context.Context, a, b *Site) error
	next  func(t *testing.T, a, b *Site)
	check func(t *testing.T, w *Site, before map[string]string)
}

func (k *killable) kill(t *testing.T, first int) {
	a, b := k.setup(t)
	before := []map[string]string{a.keysOf(t), b.keysOf(t)}
	for _, w := range []*Site{a, b} {
		w.Writes, w.DeadFrom = 0, first
	}
	err := k.run(t.Context(), a, b)
	a.DeadFrom, b.DeadFrom = 0, 0
	if err == nil {
		kit.ErrorIf(t, first < 20, "no write has failed") // their number varies
		return
	}
	k.next(t, a, b)
	for i, w := range []*Site{a, b} {
		k.check(t, w, before[i])
	}
	Settled(t, a, b, engine.Options{})
}

// A node that has left does not know the next key. It is then removed from the ledger, and the next command creates no key.
func TestRotateForgetsNodes(t *testing.T) {
	kit.Play(t)
	a, b := withGuest(t)
	first := a.overlayKey(t, "liqonet-overlay-1")
	a.leave(t, "guest")
	kit.Must(Rotate(t.Context(), a.Cluster, b.Cluster, Rotation{}, kube.Quiet{}))(t)
	second := a.overlayKey(t, "liqonet-overlay-2")
	kit.ErrorIf(t, bytes.Equal(first, second), "it knows the key still")
	kit.Check(t, "status", a.says(t), "")
	Settled(t, a, b, engine.Options{})
}

// Commands that replace keys of a cluster run one at a time: one would delete the overlay key that another has
// created, and which no link uses yet.
func TestRotateTogether(t *testing.T) {
	kit.Play(t)
	a, b := pairOf(t, 2)
	c := NewSite(t, "c", "10.244.0.0/16", "172.18.3.11")
	kit.NoError(t, c.Raw.Create(t.Context(), kubetest.Node("c-2", true, "172.18.3.12")))
	a.PeerAgain(t, c)
	a.checkMounts(t)
	second := make(chan error, 1)
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("interrupted"))
	defer cancel()
	kit.Must(Rotate(t.Context(), a.Cluster, b.Cluster, Rotation{}, Steps{
		"Replacing the keys of plane 0": func() {
			_, err := Rotate(ctx, c.Cluster, a.Cluster, Rotation{}, kube.Quiet{})
			second <- err
			a.checkMounts(t)
		},
		"Replacing the keys of plane 1": func() { a.checkMounts(t) },
	}))(t)
	err := <-second
	kubetest.Fails(t, err, kube.Busy, "rotate-keys of ")
	a.checkMounts(t)
	_, err = Rotate(t.Context(), c.Cluster, a.Cluster, Rotation{}, kube.Quiet{})
	kit.ErrorIf(t, err != nil, "%v", err)
	a.checkMounts(t)
}

// preshared returns the pre-shared keys in a cluster, by the names of their Secrets.
func (w *Site) preshared(t *testing.T) map[string][]byte {
	t.Helper()
	var list corev1.SecretList
	kit.NoError(t, w.Raw.List(t.Context(), &list, client.InNamespace(v1alpha1.Namespace)))
	out := map[string][]byte{}
	for _, s := range list.Items {
		if key := s.Data[v1alpha1.PresharedKeyFile]; key != nil {
			out[s.Name] = key
			kit.ErrorIf(t, s.Immutable == nil || !*s.Immutable || s.Labels[v1alpha1.LabelPeering] == "" || len(s.Data) != 1,
				"Secret %s is %+v with %d files", s.Name, s.ObjectMeta, len(s.Data))
		}
	}
	return out
}

// SamePreshared fails unless the two gateways have one and the same key, which is the only one, and which both
// Peerings name. It returns the key.
func SamePreshared(t *testing.T, a, b *Site, ofA, ofB int32) []byte {
	t.Helper()
	var keys [][]byte
	for _, of := range []struct {
		*Site
		peer       string
		generation int32
	}{{a, b.Name, ofA}, {b, a.Name, ofB}} {
		name := fmt.Sprintf("gateway-%s-0-psk-%d", of.peer, of.generation)
		all := of.preshared(t)
		if key := all[name]; len(all) != 1 || len(key) != 32 || bytes.Equal(key, make([]byte, 32)) {
			t.Fatalf("%s has %d pre-shared keys; of %s there are %d bytes", of.Name, len(all), name, len(key))
		}
		keys = append(keys, all[name])
		if got, want := of.peering(t).Spec.Planes[0].PresharedKey, (v1alpha1.PresharedKey{Generation: of.generation, Fingerprint: manifests.Fingerprint(all[name])}); got != want {
			t.Errorf("the Peering of %s names %+v, want %+v", of.Name, got, want)
		}
		d := Get(t, of.Site, v1alpha1.Namespace, "gateway-"+of.peer+"-0", &appsv1.Deployment{})
		if !slices.ContainsFunc(d.Spec.Template.Spec.Volumes, func(v corev1.Volume) bool { return v.Secret != nil && v.Secret.SecretName == name }) {
			t.Errorf("the gateway of %s does not mount %s", of.Name, name)
		}
	}
	kit.ErrorIf(t, !bytes.Equal(keys[0], keys[1]), "the two clusters have different pre-shared keys")
	return keys[0]
}

func TestANewPeeringHasAPresharedKey(t *testing.T) {
	kit.Play(t)
	a, b := TwoSites(t)
	for _, object := range DryRun(t, a, b, engine.Options{}).Clusters[0].Objects {
		kit.ErrorIf(t, strings.Contains(object.Name, "-psk-") && (object.Action != plan.Create || object.Manifest["data"] != nil),
			"planned is %+v", object)
	}
	MustPeer(t, a, b, engine.Options{})
	key := SamePreshared(t, a, b, 1, 1)
	r := MustPeer(t, a, b, engine.Options{})
	again := SamePreshared(t, a, b, 1, 1)
	kit.ErrorIf(t, len(r.Changed) > 0 || !bytes.Equal(key, again), "the second time it changed %v", r.Changed)
	// It is only in the Secrets.
	said := kit.Must(json.Marshal([]any{r, DryRun(t, a, b, engine.Options{})}))(t)
	places := []string{string(said)}
	for _, w := range []*Site{a, b} {
		for _, list := range append(append(engine.Workloads(), engine.Accounts()...), &corev1.ConfigMapList{}, &corev1.PodList{}, &v1alpha1.ClusterNetworkList{}, &v1alpha1.PeeringList{}, &v1alpha1.NodeNetworkList{}) {
			kit.NoError(t, w.Raw.List(t.Context(), list))
			text := kit.Must(json.Marshal(list))(t)
			places = append(places, string(text))
		}
	}
	for _, place := range places {
		for _, form := range []string{base64.StdEncoding.EncodeToString(key), hex.EncodeToString(key), fmt.Sprint(key)} {
			kit.ErrorIf(t, strings.Contains(place, form), "the pre-shared key is in %.80s", place)
		}
	}
	MustUnpeer(t, a, b)
	left := len(a.preshared(t)) + len(b.preshared(t))
	kit.ErrorIf(t, left > 0, "unpeer leaves %d pre-shared keys", left)
}

// A peering of an older version continues without: a gateway that has a key cannot talk to one that has none, so both
// would have to restart.
func TestAPeeringWithoutPresharedKeyIsLeftAlone(t *testing.T) {
	kit.Play(t)
	a, b := Peered(t)
	for _, w := range []*Site{a, b} {
		w.change(t, func(p *v1alpha1.Plane) { p.PresharedKey = v1alpha1.PresharedKey{} })
		kit.NoError(t, w.Raw.Delete(t.Context(), manifests.Gateway{Peering: w.Peer.Name, PresharedKey: 1}.PresharedSecret(nil)))
	}
	MustPeer(t, a, b, engine.Options{})
	n := len(a.preshared(t)) + len(b.preshared(t))
	kit.ErrorIf(t, n > 0 || a.peering(t).Spec.Planes[0].PresharedKey.Generation > 0, "it has %d pre-shared keys", n)
	p := DryRun(t, a, b, engine.Options{})
	if p.Changes() > 0 {
		t.Errorf("the next peer would make %d changes", p.Changes())
	}
	keys := p.Clusters[0].Keys
	if !slices.ContainsFunc(keys, func(s plan.Statement) bool {
		return s.Value.String() == "none" && strings.Contains(s.Reason, "rotate-keys")
	}) {
		t.Errorf("the plan says %v", keys)
	}
}

// change modifies the Peering's plane without the command's knowledge.
func (w *Site) change(t *testing.T, change func(*v1alpha1.Plane)) {
	t.Helper()
	p := w.peering(t)
	change(&p.Spec.Planes[0])
	kit.NoError(t, w.Raw.Update(t.Context(), p))
}

func TestDifferentPresharedKeysAreReplaced(t *testing.T) {
	t.Parallel()
	secret := func(w *Site, generation int32) *corev1.Secret {
		return manifests.Gateway{Peering: w.Peer.Name, PresharedKey: generation}.PresharedSecret(make([]byte, engine.KeyBytes))
	}
	for name, tt := range map[string]struct {
		damage   func(t *testing.T, a, b *Site) error
		ofA, ofB int32
	}{
		"another fingerprint": {func(t *testing.T, _, b *Site) error {
			b.change(t, func(p *v1alpha1.Plane) { p.PresharedKey.Fingerprint = manifests.Fingerprint([]byte("other")) })
			return nil
		}, 2, 2},
		"none is named": {func(t *testing.T, a, _ *Site) error {
			a.change(t, func(p *v1alpha1.Plane) { p.PresharedKey = v1alpha1.PresharedKey{} })
			return nil
		}, 2, 2},
		"an interrupted command left another one": {func(t *testing.T, a, b *Site) error {
			return errors.Join(b.Raw.Create(t.Context(), secret(b, 2)), a.Raw.Delete(t.Context(), secret(a, 1)))
		}, 2, 3},
		"a Secret is gone": {func(t *testing.T, a, _ *Site) error { return a.Raw.Delete(t.Context(), secret(a, 1)) }, 2, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := Peered(t)
			before := SamePreshared(t, a, b, 1, 1)
			kit.NoError(t, tt.damage(t, a, b))
			MustPeer(t, a, b, engine.Options{})
			after := SamePreshared(t, a, b, tt.ofA, tt.ofB)
			kit.ErrorIf(t, bytes.Equal(before, after), "the key is the old one")
		})
	}
}

// rotateRole is the manifest in docs/cli.md for a job that replaces keys. PEERING stands for the name of the Peering.
const rotateRole = "../../docs/rotate-keys-role.yaml"

var update = flag.Bool("update", false, "write "+rotateRole)

// asRules converts permissions of one namespace, or of all, to the rules of a role.
func asRules(all []kube.Permission, namespace string) string {
	type key struct{ group, resource, names string }
	verbs := map[key][]string{} // by resource and name
	var keys []key
	names := map[key][]string{} // of objects, by resource and verbs
	for _, p := range all {
		if k := (key{p.Group, p.Resource, p.Name}); p.Namespace == namespace {
			if verbs[k] == nil {
				keys = append(keys, k)
			}
			if !slices.Contains(verbs[k], p.Verb) {
				verbs[k] = append(verbs[k], p.Verb)
			}
		}
	}
	rule := func(k key) key { return key{k.group, k.resource, strings.Join(verbs[k], ", ")} }
	for _, k := range keys {
		if k.names != "" {
			names[rule(k)] = append(names[rule(k)], k.names)
		}
	}
	var lines, done []string
	for _, k := range keys {
		name := ""
		if k.names != "" {
			name = "resourceNames: [" + strings.Join(names[rule(k)], ", ") + "], "
		}
		if id := fmt.Sprint(rule(k), name); !slices.Contains(done, id) {
			done = append(done, id)
			lines = append(lines, fmt.Sprintf("- {apiGroups: [%q], resources: [%s], %sverbs: [%s]}\n", k.group, k.resource, name, rule(k).names))
		}
	}
	return strings.Join(lines, "")
}

// The role in the documentation has exactly the permissions that the command checks.
func TestRotateRole(t *testing.T) {
	const head = `# What kubectl liqonet rotate-keys needs in one of its two clusters, of a Peering called PEERING, and no more.
# TestRotateRole compares it with what the command asks for, TestRotateWithRole with what it does.
apiVersion: v1
kind: Namespace
metadata: {name: liqonet-rotate-keys}
---
apiVersion: v1
kind: ServiceAccount
metadata: {namespace: liqonet-rotate-keys, name: rotate-keys}
automountServiceAccountToken: false
`
	all := rotatePermissions("PEERING")
	want := head
	for _, namespace := range []string{"", "default", "kube-system", v1alpha1.Namespace} {
		kind, where := "ClusterRole", ""
		if namespace != "" {
			kind, where = "Role", "namespace: "+namespace+", "
		}
		want += fmt.Sprintf(`---
apiVersion: rbac.authorization.k8s.io/v1
kind: %[1]s
metadata: {%[2]sname: rotate-keys}
rules:
%[3]s---
apiVersion: rbac.authorization.k8s.io/v1
kind: %[1]sBinding
metadata: {%[2]sname: rotate-keys}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: %[1]s, name: rotate-keys}
subjects:
- {kind: ServiceAccount, namespace: liqonet-rotate-keys, name: rotate-keys}
`, kind, where, asRules(all, namespace))
	}
	if *update {
		kit.NoError(t, os.WriteFile(rotateRole, []byte(want), 0o644))
	}
	got := kit.Must(os.ReadFile(rotateRole))(t)
	kit.Check(t, fmt.Sprintf("%s, which -update writes", rotateRole), string(got), want)
}

// readRules returns the rules of the roles, by namespace.
func readRules(t *testing.T, peering string) map[string][]rbacv1.PolicyRule {
	t.Helper()
	text := kit.Must(os.ReadFile(rotateRole))(t)
	rules := map[string][]rbacv1.PolicyRule{}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(bytes.ReplaceAll(text, []byte("PEERING"), []byte(peering))), 4096)
	for {
		var role rbacv1.Role // a ClusterRole has the same fields
		if err := decoder.Decode(&role); errors.Is(err, io.EOF) {
			return rules
		} else if err != nil {
			t.Fatal(err)
		}
		if len(role.Rules) > 0 {
			rules[role.Namespace] = append(rules[role.Namespace], role.Rules...)
		}
	}
}

// allows decides as an API server with RBAC does.
func allows(rules map[string][]rbacv1.PolicyRule, namespace, group, resource, name, verb string) bool {
	of := rules[""]
	if namespace != "" {
		of = slices.Concat(of, rules[namespace])
	}
	return slices.ContainsFunc(of, func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.APIGroups, group) && slices.Contains(r.Resources, resource) && slices.Contains(r.Verbs, verb) &&
			(len(r.ResourceNames) == 0 || slices.Contains(r.ResourceNames, name))
	})
}

// guarded is a cluster whose API server rejects what the rules do not allow. It records the requests.
func (w *Site) guarded(rules map[string][]rbacv1.PolicyRule, done *sync.Map) *kube.Cluster {
	check := func(r *fakeapi.Request, verb string) error {
		kind := r.Object.GetObjectKind().GroupVersionKind()
		if kind.Empty() {
			kinds, _, err := w.Client.Scheme().ObjectKinds(r.Object)
			if err != nil {
				return err
			}
			kind = kinds[0]
		}
		plural, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Group: kind.Group, Kind: r.Kind})
		resource, name := strings.Trim(plural.Resource+"/"+r.Sub, "/"), r.Name
		if r.Verb == "create" {
			name = ""
		}
		if !allows(rules, r.Namespace, kind.Group, resource, name, verb) {
			return apierrors.NewForbidden(schema.GroupResource{Group: kind.Group, Resource: resource}, r.Namespace+"/"+name, fmt.Errorf("may not %s", verb))
		}
		done.Store(kube.Permission{Group: kind.Group, Resource: resource, Namespace: r.Namespace, Verb: verb, Name: name}, true)
		return nil
	}
	return w.Through(func(ctx context.Context, r *fakeapi.Request) error {
		if review := r.Review(); review != nil { // every user may
			a := review.Spec.ResourceAttributes
			review.Status.Allowed = allows(rules, a.Namespace, a.Group, strings.Trim(a.Resource+"/"+a.Subresource, "/"), a.Name, a.Verb)
			return nil
		}
		verb := r.Verb
		if verb == "apply" {
			verb = "patch"
		}
		err := check(r, verb)
		if u, isApplied := r.Object.(*unstructured.Unstructured); isApplied && r.Verb == "apply" && err == nil {
			live := &unstructured.Unstructured{}
			live.SetGroupVersionKind(u.GroupVersionKind())
			if w.Raw.Get(ctx, client.ObjectKeyFromObject(u), live) != nil {
				err = check(r, "create")
			}
		}
		if err != nil {
			return err
		}
		return r.Send(ctx)
	})
}

// With the role alone, the keys of a peering with one plane and with two can be replaced, whichever cluster is the
// server. This also works if another command has written to the lock, which must then be read.
func TestRotateWithRole(t *testing.T) {
	kit.Play(t)
	done := &sync.Map{}
	for _, planes := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			a, b := TwoSites(t, kubetest.Node("other", true, "172.18.9.11"))
			MustPeer(t, a, b, engine.Options{Planes: planes})
			a.Tls, b.Tls = kube.Hybrid, kube.Hybrid
			for _, presharedOnly := range []bool{true, false} {
				touch := then{"Replacing the keys of plane 0": func() { a.touchLock(t) }}
				r, err := Rotate(t.Context(), a.guarded(readRules(t, "b"), done), b.guarded(readRules(t, "a"), done), Rotation{PresharedOnly: presharedOnly}, touch)
				kit.FatalIf(t, err != nil, "%d planes: %v", planes, err)
				if len(r.Views[0].Planes) != planes || r.Views[0].PresharedKeyExchange != kube.Hybrid || r.Views[1].PresharedKeyExchange != kube.Hybrid {
					t.Errorf("%d planes: got %+v", planes, r.Views)
				}
			}
		})
	}
	// All permissions are used, except those that depend on the network plugin or are only granted.
	_, kinds := discovery.PluginSources()
	var idle []string
	for _, p := range append(rotatePermissions("a"), rotatePermissions("b")...) {
		if slices.ContainsFunc(kinds, func(k schema.GroupVersionKind) bool { return k.Group == p.Group }) {
			continue
		}
		used := false
		done.Range(func(k, _ any) bool {
			d := k.(kube.Permission)
			used = d.Group == p.Group && d.Resource == p.Resource && d.Verb == p.Verb && (p.Namespace == "" || d.Namespace == p.Namespace)
			return !used
		})
		if what := p.Verb + " " + p.Resource; !used && !slices.Contains(idle, what) {
			idle = append(idle, what)
		}
	}
	kit.Check(t, "what is not used", idle, []string{"create events"})
}

// touchLock changes the lock of the only peering, and returns when it was then renewed.
func (w *Site) touchLock(t *testing.T) {
	t.Helper()
	held := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "liqonet-peering-" + w.Peer.ID}}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"somebody":"was here"}}}`))
	kit.NoError(t, w.Raw.Patch(t.Context(), held, patch))
	touched := held.Spec.RenewTime.Time
	kit.Within(t, 2*lock.RenewInterval, "the lock to be renewed", func() string {
		if err := w.Raw.Get(t.Context(), client.ObjectKeyFromObject(held), held); err != nil {
			return err.Error()
		}
		if !held.Spec.RenewTime.After(touched) {
			return "it was not"
		}
		return ""
	})
}
