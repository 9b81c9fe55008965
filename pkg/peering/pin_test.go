package peering

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/identity"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

var exposed = netip.MustParseAddr("192.168.7.7")

// entryOf returns the ledger entry that a cluster has of another one.
func (w *Site) entryOf(t *testing.T, id string) v1alpha1.PeerAllocation {
	t.Helper()
	entry := plan.Allocation(kubetest.ReadLedger(t, w.Cluster), id)
	kit.FatalIf(t, entry == nil, "%s has no entry of %s", w.Name, id)
	return *entry
}

// fingerprint returns the fingerprint of a cluster's identity.
func (w *Site) fingerprint(t *testing.T) string {
	t.Helper()
	return manifests.IdentityFingerprint(kit.Must(identity.ReadKey(t.Context(), w.Cluster))(t))
}

// Each cluster's ledger has the public key of the other, whose fingerprint peer reports. Neither the next peer nor rotate-keys changes it,
// and the last unpeer deletes the key.
func TestIdentitiesArePinned(t *testing.T) {
	kit.Play(t)
	a, b := TwoSites(t)
	first := MustPeer(t, a, b, engine.Options{})
	want := [2]Identity{{"a", a.ID, a.fingerprint(t)}, {"b", b.ID, b.fingerprint(t)}}
	kit.Check(t, "the identities", first.Identities, want)
	pins := [2]string{a.entryOf(t, b.ID).IdentityKey, b.entryOf(t, a.ID).IdentityKey}
	for i, pin := range pins {
		if fingerprint := manifests.IdentityFingerprint(pin); fingerprint != want[1-i].Fingerprint || !strings.HasPrefix(fingerprint, "SHA256:") {
			t.Errorf("pinned is %s, want %s", fingerprint, want[1-i].Fingerprint)
		}
	}
	rotated := kit.Must(Rotate(t.Context(), a.Cluster, b.Cluster, Rotation{}, kube.Quiet{}))(t)
	again := MustPeer(t, a, b, engine.Options{})
	for _, r := range []Result{first, rotated, again} {
		kit.Check(t, "the identities", r.Identities, want)
		kit.ErrorIf(t, strings.Contains(strings.Join(r.Notes, "\n"), "identity key"), "the notes are %q", r.Notes)
	}
	kit.Check(t, "the pins", [2]string{a.entryOf(t, b.ID).IdentityKey, b.entryOf(t, a.ID).IdentityKey}, pins)
	MustUnpeer(t, a, b)
	for _, w := range []*Site{a, b} {
		kit.Check(t, "the key of "+w.Name, kit.Must(identity.ReadKey(t.Context(), w.Cluster))(t), "")
	}
}

// With --replace, another cluster gets the place of the peer, but not its exposed hosts, and the result says so. If that fails, everything is
// as before.
func TestReplaceAPeer(t *testing.T) {
	kit.Play(t)
	replaced := func(t *testing.T) (a, b *Site, before v1alpha1.PeerAllocation) {
		t.Helper()
		a = NewSite(t, "a", "10.244.0.0/16", "172.18.1.11")
		c := a.PeeredWith(t, "c", "10.30.0.0/16", "172.18.3.11")
		kit.Must(ExposeHost(t.Context(), a.Cluster, c.Cluster, exposed, kube.Quiet{}))(t)
		return a, Impostor(t, a), a.entryOf(t, c.ID)
	}
	t.Run("succeeds", func(t *testing.T) {
		t.Parallel()
		a, b, before := replaced(t)
		planned := kit.Must(PlanAll(t.Context(), []Pair{{a.Cluster, b.Cluster}}, engine.Options{Replace: true}, kube.Quiet{}))(t)
		kit.CheckContains(t, "the plan", strings.Join(planned[0].Clusters[0].Notes, "\n"), "another identity key", exposed.String())
		r := MustPeer(t, a, b, engine.Options{Replace: true})
		kit.CheckContains(t, "the notes", strings.Join(r.Notes, "\n"), "a knows b by another identity key: "+b.fingerprint(t)+" instead of "+
			manifests.IdentityFingerprint(before.IdentityKey), exposed.String())
		now := a.entryOf(t, b.ID)
		kit.Check(t, "the pin", manifests.IdentityFingerprint(now.IdentityKey), b.fingerprint(t))
		kit.ErrorIf(t, len(now.Hosts)+len(a.peeringNamed(t, "c").Spec.Local.Hosts) > 0 || now.Previous != nil, "the entry is %+v", now)
		kit.NoError(t, identity.Check(t.Context(), a.Cluster, b.Cluster))
	})
	for name, at := range map[string]string{"fails": "Waiting until packets pass", "fails before": "Pushing ranges, keys and gateways"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b, before := replaced(t)
			hosts := a.peeringNamed(t, "c").Spec.Local.Hosts
			ctx, cancel := context.WithCancel(t.Context())
			_, err := Peer(ctx, a.Cluster, b.Cluster, engine.Options{Replace: true}, Steps{at: cancel})
			kit.FatalIf(t, err == nil, "it succeeds")
			kit.Check(t, "the entry", a.entryOf(t, b.ID), before, kit.Compare)
			kit.Check(t, "the hosts", a.peeringNamed(t, "c").Spec.Local.Hosts, hosts, kit.Compare)
		})
	}
	// One cluster records the success, and the write of the other one fails.
	t.Run("fails at the end", func(t *testing.T) {
		t.Parallel()
		a, b, before := replaced(t)
		hosts := a.peeringNamed(t, "c").Spec.Local.Hosts
		refusing := b.Through(func(ctx context.Context, r *fakeapi.Request) error {
			if cn, is := r.Object.(*v1alpha1.ClusterNetwork); is && r.Verb == "update" && slices.ContainsFunc(cn.Spec.Peers, func(e v1alpha1.PeerAllocation) bool { return e.Active() }) {
				return ErrInjected
			}
			return r.Send(ctx)
		})
		kit.FailsWith(t, kit.Err(Peer(t.Context(), a.Cluster, refusing, engine.Options{Replace: true}, kube.Quiet{})), ErrInjected)
		kit.Check(t, "the entry", a.entryOf(t, b.ID), before, kit.Compare)
		kit.Check(t, "the hosts", a.peeringNamed(t, "c").Spec.Local.Hosts, hosts, kit.Compare)
	})
	// A killed command is rolled back by the next one, which does not accept the new cluster by itself.
	kit.Bubble(t, "is killed", func(t *testing.T) {
		a, b, before := replaced(t)
		reporter := Steps{"Waiting until packets pass": func() {
			for _, w := range []*Site{a, b} {
				w.Mu.Lock()
				w.DeadFrom = 1
				w.Mu.Unlock()
			}
		}}
		kit.FatalIf(t, kit.Err(Peer(kit.Timeout(t, time.Minute), a.Cluster, b.Cluster, engine.Options{Replace: true}, reporter)) == nil, "it succeeds")
		for _, w := range []*Site{a, b} {
			w.DeadFrom = 0
		}
		now := a.entryOf(t, b.ID)
		kit.ErrorIf(t, now.IdentityKey == before.IdentityKey || now.Previous == nil, "there is a path to a cluster that is not pinned: %+v", now)
		kit.NoError(t, engine.RevertInterrupted(t.Context(), a.Cluster, b.ID, "c", false))
		kit.Check(t, "the entry", a.entryOf(t, b.ID), before, kit.Compare)
		kit.Check(t, "the hosts", len(a.peeringNamed(t, "c").Spec.Local.Hosts), 1)
	})
}

// The user requires fingerprints. Nothing is changed if a cluster has another key, or none.
func TestRequiredFingerprints(t *testing.T) {
	kit.Play(t)
	a, b := TwoSites(t)
	for name, required := range map[string]map[string]string{
		"no key yet": {b.ID: "SHA256:" + strings.Repeat("A", 43)},
	} {
		o := engine.Options{Fingerprints: required}
		err := kit.Err(Peer(t.Context(), a.Cluster, b.Cluster, o, kube.Quiet{}))
		kubetest.Fails(t, err, kube.Identity, "b must have the identity key", "but has no identity key yet")
		checkHint(t, err, true)
		e, _ := errors.AsType[*kube.Error](err)
		kit.CheckContains(t, "the hint", e.Hint, "peer once without this --fingerprint")
		kubetest.Fails(t, kit.Err(PlanAll(t.Context(), []Pair{{a.Cluster, b.Cluster}}, o, kube.Quiet{})), kube.Identity)
		kit.ErrorIf(t, len(a.Ours(t))+len(b.Ours(t)) > 0, "%s: it leaves %v, %v", name, a.Ours(t), b.Ours(t))
	}
	MustPeer(t, a, b, engine.Options{})
	before := contentsOf(t, a, b)
	for _, replace := range []bool{false, true} {
		wrong := engine.Options{Replace: replace, Fingerprints: map[string]string{b.ID: a.fingerprint(t)}}
		err := kit.Err(Peer(t.Context(), a.Cluster, b.Cluster, wrong, kube.Quiet{}))
		kubetest.Fails(t, err, kube.Identity, "b must have the identity key with the fingerprint "+a.fingerprint(t)+", but has the fingerprint "+b.fingerprint(t))
		checkHint(t, err, true)
	}
	unchanged(t, before, a, b)
	MustPeer(t, a, b, engine.Options{Fingerprints: map[string]string{a.ID: a.fingerprint(t), b.ID: b.fingerprint(t)}})
}

// checkHint reports whether the hint of an error says that nothing was changed.
func checkHint(t *testing.T, err error, unchanged bool) {
	t.Helper()
	e, is := errors.AsType[*kube.Error](err)
	kit.FatalIf(t, !is, "%v", err)
	kit.ErrorIf(t, strings.Contains(e.Hint, "nothing was changed") != unchanged, "the hint is %q", e.Hint)
}

// An API server shows the true key once, and then another one. Its key is not pinned, and the error does not say that nothing was changed.
func TestKeyDiffersAtTheSecondRead(t *testing.T) {
	kit.Play(t)
	own := newKey(t)
	for name, tt := range map[string]struct {
		isPeered bool
		o        func(b *Site) engine.Options
	}{
		"a peer": {true, func(*Site) engine.Options { return engine.Options{} }},
		"a required fingerprint": {true, func(b *Site) engine.Options {
			return engine.Options{Replace: true, Fingerprints: map[string]string{b.ID: b.fingerprint(t)}}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := Peered(t)
			before, o := a.entryOf(t, b.ID), tt.o(b)
			var reads atomic.Int32
			liar := b.Through(func(ctx context.Context, r *fakeapi.Request) error {
				err := r.Send(ctx)
				if s, is := r.Object.(*corev1.Secret); is && r.Verb == "get" && r.Name == manifests.IdentitySecretName && reads.Add(1) > 1 {
					s.Data[v1alpha1.PrivateKeyFile] = own[:]
				}
				return err
			})
			err := kit.Err(Peer(t.Context(), a.Cluster, liar, o, kube.Quiet{}))
			kubetest.Fails(t, err, kube.Identity)
			checkHint(t, err, false)
			kit.Check(t, "the entry", a.entryOf(t, b.ID), before, kit.Compare)
		})
	}
}

// A cluster that has lost its key gets another one with any peer, which its other peers do not know. The command says so.
func TestLostKeyIsReplaced(t *testing.T) {
	kit.Play(t)
	a, b := Peered(t)
	c := NewSite(t, "c", "10.244.0.0/16", "172.18.3.11")
	peerWithC := func() []string {
		a.Peer, c.Peer = c, a
		defer func() { a.Peer = b }()
		return MustPeer(t, a, c, engine.Options{}).Notes
	}
	const note = "a has lost its identity key, and a new one is created; for each other peer (b): kubectl liqonet peer a PEER --replace"
	kit.NoError(t, a.Raw.Delete(t.Context(), Get(t, a, v1alpha1.Namespace, manifests.IdentitySecretName, &corev1.Secret{})))
	plans := kit.Must(PlanAll(t.Context(), []Pair{{a.Cluster, c.Cluster}}, engine.Options{}, kube.Quiet{}))(t)
	kit.ErrorIf(t, !slices.Contains(plans[0].Clusters[0].Notes, note), "the plan has the notes %q", plans[0].Clusters[0].Notes)
	got := peerWithC()
	kit.ErrorIf(t, !slices.Contains(got, note), "notes: %q", got)
	kubetest.Fails(t, kit.Err(Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{})), kube.Identity, "has another key")
	MustPeer(t, a, b, engine.Options{Replace: true})
	got = peerWithC()
	kit.ErrorIf(t, slices.Contains(got, note), "again: %q", got)
}

// Commands that change something end if the key may not be read, except that unpeer removes its own side.
func TestKeyMayNotBeRead(t *testing.T) {
	kit.Play(t)
	a, b := Peered(t)
	before, muted := contentsOf(t, a, b), mute(b)
	_, err := Rotate(t.Context(), a.Cluster, muted, Rotation{}, kube.Quiet{})
	for _, err := range []error{
		err,
		kit.Err(Peer(t.Context(), a.Cluster, muted, engine.Options{}, kube.Quiet{})),
		kit.Err(ExposeHost(t.Context(), a.Cluster, muted, exposed, kube.Quiet{})),
		kit.Err(UnexposeHost(t.Context(), a.Cluster, muted, exposed, kube.Quiet{})),
	} {
		kubetest.Fails(t, err, kube.Identity, "its keys may not be read")
		checkHint(t, err, true)
	}
	unchanged(t, before, a, b)
	inA, _, err := Unpeer(t.Context(), a.Cluster, muted, kube.Quiet{})
	kit.ErrorIf(t, err != nil || !inA.Peering || len(a.Ours(t)) > 0, "%+v, %v; a has %v", inA, err, a.Ours(t))
}

// Who lacks all permissions in the peer gets the exit code of identity, too, and of permissions only for a new peering.
func TestPermissionsAndIdentity(t *testing.T) {
	kit.Play(t)
	a, b := TwoSites(t)
	denied := b.Through(func(ctx context.Context, r *fakeapi.Request) error {
		if review := r.Review(); review != nil {
			return nil // not allowed
		}
		return r.SendTo(ctx, mute(b).Client)
	})
	kubetest.Fails(t, kit.Err(Peer(t.Context(), a.Cluster, denied, engine.Options{}, kube.Quiet{})), kube.Forbidden)
	MustPeer(t, a, b, engine.Options{})
	kubetest.Fails(t, kit.Err(Peer(t.Context(), a.Cluster, denied, engine.Options{}, kube.Quiet{})), kube.Identity)
	kubetest.Fails(t, kit.Err(Rotate(t.Context(), a.Cluster, denied, Rotation{}, kube.Quiet{})), kube.Identity)
}

// A first peer fails because of the peer, whatever its ledger says and whoever takes its lock. Nothing is left in the user's own cluster.
func TestFirstPeerFailsInAHostileCluster(t *testing.T) {
	kit.Play(t)
	const overtaking = "another command holds its lock"
	for name, hostile := range map[string]func(t *testing.T, a, b *Site, lies *atomic.Bool, reads *atomic.Int32) (*kube.Cluster, Steps){
		"its ledger says that the peering works": func(_ *testing.T, _, b *Site, lies *atomic.Bool, _ *atomic.Int32) (*kube.Cluster, Steps) {
			b.Unreachable = true
			return b.Through(func(ctx context.Context, r *fakeapi.Request) error {
				err := r.Send(ctx)
				if cn, is := r.Object.(*v1alpha1.ClusterNetwork); is && r.Reads() && lies.Load() {
					for i := range cn.Spec.Peers {
						cn.Spec.Peers[i].Phase, cn.Spec.Peers[i].IdentityKey = v1alpha1.PeerActive, strings.Repeat("A", 43)+"="
					}
				}
				return err
			}), Steps{"Waiting until packets pass": func() { lies.Store(true) }}
		},
		overtaking: func(t *testing.T, a, b *Site, _ *atomic.Bool, _ *atomic.Int32) (*kube.Cluster, Steps) {
			t.Helper()
			a.Late = "gateway-b-0"
			return b.Cluster, Steps{"Waiting until packets pass": func() { takeLocks(t, b) }}
		},
	} {
		kit.Bubble(t, name, func(t *testing.T) {
			a, b := TwoSites(t)
			a.Unreachable = true
			var lies atomic.Bool
			var reads atomic.Int32
			c, steps := hostile(t, a, b, &lies, &reads)
			_, err := Peer(kit.Timeout(t, time.Minute), a.Cluster, c, engine.Options{ConnectTimeout: time.Hour}, steps)
			kit.FatalIf(t, err == nil || name == overtaking && !strings.Contains(err.Error(), "overtaken by "), "got %v", err)
			left := a.Ours(t)
			kit.ErrorIf(t, len(left) > 0, "after %q, it leaves %v", err, left)
		})
	}
}

// takeLocks replaces the holders of all locks in a cluster.
func takeLocks(t *testing.T, w *Site) {
	t.Helper()
	var leases coordinationv1.LeaseList
	kit.NoError(t, w.Raw.List(t.Context(), &leases, client.InNamespace(metav1.NamespaceSystem)))
	kit.ErrorIf(t, len(leases.Items) == 0, "no lock is held")
	for _, l := range leases.Items {
		taken := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: l.Namespace, Name: l.Name, Labels: l.Labels}, Spec: l.Spec}
		taken.Spec.HolderIdentity = new("peer of somebody else")
		kit.NoError(t, w.Raw.Delete(t.Context(), &l))
		kit.NoError(t, w.Raw.Create(t.Context(), taken))
	}
}

// Fingerprints are those of the public halves, and differ.
func TestFingerprintOfAnIdentity(t *testing.T) {
	t.Parallel()
	seed := make([]byte, engine.KeyBytes)
	key := manifests.IdentityKey(manifests.IdentitySecret(seed))
	// The public key is that of libsodium for this seed.
	diff := cmp.Diff("O2onvM62pC1io6jQKm8Nc2UyFXcd4kOmOsBIoYtZ2ik=", key)
	kit.ErrorIf(t, diff != "", "%s", diff)
	kit.Check(t, "the fingerprint", manifests.IdentityFingerprint(key), "SHA256:E545QOZLVJFyIIjZoNdBYo/IJuCUddNBp4Cs3jxLgHA")
	kit.Check(t, "without a key", manifests.IdentityFingerprint(""), "")
}
