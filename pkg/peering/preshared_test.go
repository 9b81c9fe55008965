package peering

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/test/kit"
)

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

// Concurrent commands, and a command after an interrupted one, arrive at the same key.
func TestOneOfSeveralPresharedKeys(t *testing.T) {
	kit.Play(t)
	a, b := TwoSites(t)
	results := make(chan error)
	for range 3 {
		go func() {
			_, err := Peer(context.WithoutCancel(t.Context()), a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{})
			results <- err
		}()
	}
	for range 3 {
		kit.CheckNoError(t, <-results)
	}
	SamePreshared(t, a, b, 1, 1)
}
