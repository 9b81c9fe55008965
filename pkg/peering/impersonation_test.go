package peering

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// Public keys prove nothing. A cluster is peered with c and with m, and m claims to be c. It presents the public keys
// from its own peering, or those that anyone can read in custom resources, wherever a key could be.
func TestPublicKeysProveNothing(t *testing.T) {
	kit.Play(t)
	a := NewSite(t, "a", "10.244.0.0/16", "172.18.1.11")
	c := NewSite(t, "c", "10.30.0.0/16", "172.18.3.11")
	m := NewSite(t, "m", "10.50.0.0/16", "172.18.5.11")
	a.PeerAgain(t, c)
	a.PeerAgain(t, m)
	template := m.peering(t).Spec
	toC := kit.Must(kube.Get[v1alpha1.Peering](t.Context(), a.Cluster, "", "c"))(t)
	before := a.contents(t)
	for name, known := range map[string]string{
		"a's key for m":           m.peering(t).Spec.Planes[0].RemotePublicKey,
		"a's key for c, from c":   c.peering(t).Spec.Planes[0].RemotePublicKey,
		"c's own key, from a":     toC.Spec.Planes[0].RemotePublicKey,
		"m's own key, as a knows": a.peeringNamed(t, "m").Spec.Planes[0].RemotePublicKey,
		"c's identity, from a":    plan.Allocation(kubetest.ReadLedger(t, a.Cluster), c.ID).IdentityKey,
		"a's identity, from m":    kubetest.ReadLedger(t, m.Cluster).Spec.Peers[0].IdentityKey,
	} {
		t.Run(name, func(t *testing.T) {
			hostile := manifests.Peering("a", template)
			hostile.Spec.Remote.ClusterID = a.ID
			for i := range hostile.Spec.Planes {
				hostile.Spec.Planes[i].RemotePublicKey = known
			}
			hostile.Status.Planes = []v1alpha1.PlaneStatus{{PublicKey: known}}
			public := []byte(known)[:engine.KeyBytes]
			secret := manifests.Gateway{Peering: "a", KeyGeneration: 1}.Secret(map[string][]byte{v1alpha1.PrivateKeyFile: public, v1alpha1.PublicKeyFile: []byte(known)})
			b := Impostor(t, a, hostile, secret, manifests.IdentitySecret(public))
			_, peerErr := Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{})
			_, _, unpeerErr := Unpeer(t.Context(), a.Cluster, b.Cluster, kube.Quiet{})
			_, rotateErr := Rotate(t.Context(), a.Cluster, b.Cluster, Rotation{}, kube.Quiet{})
			_, hostErr := ExposeHost(t.Context(), a.Cluster, b.Cluster, netip.MustParseAddr("192.168.7.7"), kube.Quiet{})
			for command, err := range map[string]error{"peer": peerErr, "unpeer": unpeerErr, "expose-host": hostErr} {
				kit.ErrorIf(t, kubetest.KindOf(t, err) != kube.Identity, "%s: %v", command, err)
			}
			kit.ErrorIf(t, rotateErr == nil, "rotate-keys took it for c")
			kit.Check(t, "it changed a", a.contents(t), before)
		})
	}
}

// peeringNamed returns the Peering of that name.
func (w *Site) peeringNamed(t *testing.T, name string) *v1alpha1.Peering {
	t.Helper()
	p, err := kube.Get[v1alpha1.Peering](t.Context(), w.Cluster, "", name)
	kit.FatalIf(t, p == nil || err != nil, "Peering %s: %v", name, err)
	return p
}

// A peer that lost all of its private keys is not recognized automatically, whatever else it has.
func TestLostKeysNeedReplace(t *testing.T) {
	kit.Play(t)
	a, b := Peered(t)
	kit.NoError(t, b.Raw.DeleteAllOf(t.Context(), &corev1.Secret{}, client.InNamespace(v1alpha1.Namespace)))
	kubetest.Fails(t, kit.Err(Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{})), kube.Identity)
	MustPeer(t, a, b, engine.Options{Replace: true})
	Settled(t, a, b, engine.Options{})
}

// mute makes a cluster hide its identity. It still lists the names of Secrets.
func mute(w *Site) *kube.Cluster {
	return w.Through(func(ctx context.Context, r *fakeapi.Request) error {
		if _, ok := r.Object.(*corev1.Secret); ok && r.Verb == "get" && r.Name == manifests.IdentitySecretName {
			return apierrors.NewForbidden(corev1.Resource("secrets"), r.Name, errors.New("no"))
		}
		return r.Send(ctx)
	})
}

// replaceKeys replaces the keys of all gateways. The cluster then stands for another one, which copied the custom resources.
func replaceKeys(t *testing.T, w *Site) {
	t.Helper()
	for _, s := range List[corev1.SecretList](t, w).Items {
		if s.Labels[v1alpha1.LabelPeering] == "" && s.Name != manifests.IdentitySecretName {
			continue
		}
		kit.NoError(t, w.Raw.Delete(t.Context(), s.DeepCopy()))
		next := s.DeepCopy()
		next.ResourceVersion, next.UID = "", ""
		for file := range next.Data {
			key := newKey(t)
			next.Data[file] = key[:]
		}
		kit.NoError(t, w.Raw.Create(t.Context(), next))
	}
}

// Nor does upgrade, which adds a plane for both clusters, accept a cluster that does not prove its identity.
func TestUpgradeOfAnImpostor(t *testing.T) {
	kit.Play(t)
	a, c := TwoSites(t)
	MustPeer(t, a, c, engine.Options{Planes: 1})
	before := a.peering(t).Spec
	replaceKeys(t, c)
	out, err := UpgradeAll(t.Context(), []*kube.Cluster{a.Cluster, mute(c)}, Newer(), kube.Quiet{})
	kit.ErrorIf(t, err != nil || len(out) != 2 || kubetest.KindOf(t, out[0].Err) != kube.Forbidden, "%+v, %v", out, err)
	kit.Check(t, "it changed the planes of a", a.peering(t).Spec.Planes, before.Planes, kit.Compare)
}

// A peer that claims to be another one cannot have that one's host removed.
func TestHideHostFromAnImpostor(t *testing.T) {
	kit.Play(t)
	a := NewSite(t, "a", "10.244.0.0/16", "172.18.1.11")
	c := NewSite(t, "c", "10.30.0.0/16", "172.18.3.11")
	m := NewSite(t, "m", "10.50.0.0/16", "172.18.5.11")
	host := netip.MustParseAddr("192.168.7.7")
	for _, w := range []*Site{c, m} {
		a.PeerAgain(t, w)
		kit.Must(ExposeHost(t.Context(), a.Cluster, w.Cluster, host, kube.Quiet{}))(t)
	}
	liar := *m.Cluster
	liar.ID = c.ID
	kubetest.Fails(t, kit.Err(UnexposeHost(t.Context(), a.Cluster, &liar, host, kube.Quiet{})), kube.Identity)
	hosts := a.peeringNamed(t, "c").Spec.Local.Hosts
	kit.ErrorIf(t, len(hosts) != 1, "c reaches %v", hosts)
}

// The name that the user gives also belongs to another peer. A mute peer that claims to be that one cannot have anything removed.
func TestUnpeerByAnAmbiguousName(t *testing.T) {
	kit.Play(t)
	a := NewSite(t, "a", "10.244.0.0/16", "172.18.1.11")
	c := NewSite(t, "c", "10.30.0.0/16", "172.18.3.11")
	m := NewSite(t, "m", "10.50.0.0/16", "172.18.5.11")
	c.Name, m.Name = "admin@prod", "admin-prod" // Peerings admin-prod and admin-prod-2
	for _, w := range []*Site{c, m} {
		a.PeerAgain(t, w)
	}
	liar := mute(m)
	liar.ID = c.ID
	_, _, err := Unpeer(t.Context(), a.Cluster, liar, kube.Quiet{})
	kubetest.Fails(t, err, kube.Usage)
	peers := kubetest.ReadLedger(t, a.Cluster).Spec.Peers
	kit.ErrorIf(t, len(peers) != 2, "the peers are %v", peers)
}
