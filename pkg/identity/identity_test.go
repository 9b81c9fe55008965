package identity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// keyOf returns the Secret with the identity of a cluster, and its public key.
func keyOf(name string) (*corev1.Secret, string) {
	secret := manifests.IdentitySecret(bytes.Repeat([]byte(name), 32))
	return secret, manifests.IdentityKey(secret)
}

// clusterOf returns a cluster, where has is the Secret of its identity, nil for none, and knows the peer's entry in its ledger, nil for none.
// If hides is set, the user may not read Secrets.
func clusterOf(t *testing.T, name string, has *corev1.Secret, knows *v1alpha1.PeerAllocation, hides bool) *kube.Cluster {
	t.Helper()
	spec := v1alpha1.ClusterNetworkSpec{InternalCIDR: kit.CIDR("10.80.0.0/19")}
	if knows != nil {
		spec.Peers = append(spec.Peers, *knows)
	}
	objs := []client.Object{manifests.Namespace(), manifests.ClusterNetwork(spec)}
	if has != nil {
		objs = append(objs, has)
	}
	return kubetest.NewCluster(t, name, interceptor.Funcs{Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
		if _, is := obj.(*corev1.Secret); is && hides {
			return apierrors.NewForbidden(corev1.Resource("secrets"), key.Name, nil)
		}
		return w.Get(ctx, key, obj, opts...)
	}}, objs...)
}

// A peer is recognized only by its private key, unless the peering has not worked yet, or is being removed, also since the ledger was read.
func TestRecognized(t *testing.T) {
	entry := func(phase v1alpha1.PeerPhase, key string) *v1alpha1.PeerAllocation {
		return &v1alpha1.PeerAllocation{ClusterID: "id-of-b", Name: "b", Phase: phase, IdentityKey: key}
	}
	active, reserved := v1alpha1.PeerActive, v1alpha1.PeerReserved
	for name, tt := range map[string]struct {
		read, now *v1alpha1.PeerAllocation
		key       string
		want      bool
	}{
		"no peering":                     {nil, nil, "other", true},
		"never worked, or being removed": {entry(reserved, "key"), entry(reserved, "key"), "other", true},
		"the same key":                   {entry(active, "key"), entry(active, "key"), "key", true},
		"another key":                    {entry(active, "key"), entry(active, "key"), "other", false},
		"no key":                         {entry(active, "key"), entry(active, "key"), "", false},
		"neither has a key":              {entry(active, ""), entry(active, ""), "", false},
		"removed since":                  {entry(active, "key"), nil, "other", true},
		"being removed since":            {entry(active, "key"), entry(reserved, "key"), "other", true},
	} {
		got, err := IsRecognized(t.Context(), clusterOf(t, "a", nil, tt.now, false), kubetest.PeerNamed("b"), Evidence{Entry: tt.read}, Evidence{Key: tt.key})
		kit.NoError(t, err)
		kit.Check(t, name, got, tt.want)
	}
}

// Clusters are peers only if each has proved to be the one that the other was peered with. Without the right to read the key, that is not
// known: a command that changes something ends, and one that reads says so.
func TestBothProveThatTheyArePeers(t *testing.T) {
	secretOfA, keyOfA := keyOf("a")
	secretOfB, keyOfB := keyOf("b")
	imitation, _ := keyOf("c")
	changeable := secretOfB.DeepCopy()
	changeable.Immutable = new(false)
	knows := func(name, key string, phase v1alpha1.PeerPhase) *v1alpha1.PeerAllocation {
		return &v1alpha1.PeerAllocation{ClusterID: "id-of-" + name, Name: name, Phase: phase, IdentityKey: key}
	}
	a, b := knows("a", keyOfA, v1alpha1.PeerActive), knows("b", keyOfB, v1alpha1.PeerActive)
	for name, tt := range map[string]struct {
		hasB             *corev1.Secret
		knowsB, knowsA   *v1alpha1.PeerAllocation
		hides            bool
		peers            bool
		checked, compare string
	}{
		"both do":                           {secretOfB, b, a, false, true, "ok", "ok"},
		"one has another key":               {imitation, b, a, false, false, "fails", "fails"},
		"one has a key that can be changed": {changeable, b, a, false, false, "fails", "fails"},
		"one has no key":                    {nil, b, a, false, false, "fails", "fails"},
		"the other is not in its ledger":    {secretOfB, b, nil, false, false, "ok", "ok"},
		"it knows another key":              {secretOfB, b, knows("a", "other", v1alpha1.PeerActive), false, false, "ok", "fails"},
		"it has not worked yet":             {secretOfB, knows("b", keyOfB, v1alpha1.PeerReserved), a, false, false, "ok", "ok"},
		"its key may not be read":           {secretOfB, b, a, true, false, "fails", "unverified"},
	} {
		one, other := clusterOf(t, "a", secretOfA, tt.knowsB, false), clusterOf(t, "b", tt.hasB, tt.knowsA, tt.hides)
		arePeers, err := ArePeers(t.Context(), one, other)
		kit.ErrorIf(t, arePeers != tt.peers || (err != nil) != tt.hides, "%s: peers: %t, %v", name, arePeers, err)
		reversed, _ := ArePeers(t.Context(), other, one)
		kit.Check(t, name+": in the other order", reversed, tt.peers)
		err = Check(t.Context(), one, other)
		kit.Check(t, fmt.Sprintf("%s: check: %v", name, err), lo.Ternary(err == nil, "ok", "fails"), tt.checked)
		if e := (*kube.Error)(nil); err != nil && (!errors.As(err, &e) || e.Kind != kube.Identity) {
			t.Errorf("%s: %v is no error about the identity", name, err)
		}
		for _, pair := range [][2]*kube.Cluster{{one, other}, {other, one}} {
			unverified, err := Compare(t.Context(), pair[0], pair[1])
			got := lo.Ternary(err != nil, "fails", lo.Ternary(len(unverified) > 0, "unverified", "ok"))
			kit.Check(t, fmt.Sprintf("%s: compare: %v %v", name, unverified, err), got, tt.compare)
		}
	}
}
