package peering

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// Impostor returns a cluster that the user calls b, and that claims to be c.
func Impostor(t *testing.T, peer *Site, objs ...client.Object) *Site {
	t.Helper()
	b := NewSite(t, "c", "10.40.0.0/16", "172.18.4.11", objs...)
	b.Name, b.Peer, peer.Peer = "b", peer, b
	return b
}

func newKey(t *testing.T) wgtypes.Key {
	t.Helper()
	key := kit.Must(wgtypes.GeneratePrivateKey())(t)
	return key
}

// planError returns the error of a dry run.
func planError(t *testing.T, a, b *Site) error {
	t.Helper()
	return kit.Err(PlanAll(t.Context(), []Pair{{a.Cluster, b.Cluster}}, engine.Options{}, kube.Quiet{}))
}

// A cluster that returns the ID of another one gets neither its peering nor its ranges, and cannot have the peering
// removed.
func TestClusterSaysThatItIsAnother(t *testing.T) {
	kit.Play(t)
	a := NewSite(t, "a", "10.244.0.0/16", "172.18.1.11")
	c := a.PeeredWith(t, "c", "10.30.0.0/16", "172.18.3.11")
	public := kit.Must(wgtypes.ParseKey(kubetest.ReadLedger(t, a.Cluster).Spec.Peers[0].IdentityKey))(t)
	secret := Get(t, c, v1alpha1.Namespace, "gateway-a-0-1", &corev1.Secret{})
	gateway := secret.Data[v1alpha1.PrivateKeyFile] // a compromised gateway knows it
	own := newKey(t)
	hostile := manifests.Peering("a", c.peering(t).Spec)
	hostile.Spec.Planes[0].RemotePublicKey = newKey(t).PublicKey().String()
	before := a.contents(t)
	for name, tc := range map[string]struct {
		objs []client.Object
		has  string
	}{
		"nothing":               {nil, "has no peering with it"},
		"another key":           {[]client.Object{hostile, manifests.IdentitySecret(own[:])}, "has another key"},
		"the public key only":   {[]client.Object{hostile, manifests.IdentitySecret(public[:])}, "has another key"},
		"a key of wrong length": {[]client.Object{hostile, manifests.IdentitySecret(own[:7])}, "has another key"},
		"a gateway's key":       {[]client.Object{hostile, manifests.IdentitySecret(gateway)}, "has another key"},
	} {
		b := Impostor(t, a, tc.objs...)
		_, peerErr := Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{})
		_, otherErr := Peer(t.Context(), b.Cluster, a.Cluster, engine.Options{}, kube.Quiet{})
		_, _, unpeerErr := Unpeer(t.Context(), a.Cluster, b.Cluster, kube.Quiet{})
		for _, err := range []error{peerErr, otherErr, planError(t, a, b), unpeerErr} {
			kubetest.Fails(t, err, kube.Identity, "b claims to be the cluster that a knows as c, but "+tc.has)
		}
		kit.Check(t, fmt.Sprintf("%s: it changed a", name), a.contents(t), before)
	}
	// From its own side it removes only its own peering.
	b := Impostor(t, a, hostile)
	_, _, err := Unpeer(t.Context(), b.Cluster, a.Cluster, kube.Quiet{})
	kubetest.Fails(t, err, kube.OneSided)
	kit.Check(t, "unpeer from the other side changed a", a.contents(t), before)
	MustPeer(t, a, Impostor(t, a), engine.Options{Replace: true})
}

// A cluster that does not prove its identity is not accepted.
func TestSilentAboutItsKeys(t *testing.T) {
	t.Parallel()
	a := NewSite(t, "a", "10.244.0.0/16", "172.18.1.11")
	a.PeeredWith(t, "c", "10.30.0.0/16", "172.18.3.11")
	before := a.contents(t)
	b := Impostor(t, a)
	b.Cluster = b.Through(func(ctx context.Context, r *fakeapi.Request) error {
		if r.Of("get", "Secret") {
			return apierrors.NewForbidden(corev1.Resource("secrets"), "", errors.New("no"))
		}
		return r.Send(ctx)
	})
	kubetest.Fails(t, kit.Err(Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{})), kube.Forbidden)
	if _, _, err := Unpeer(t.Context(), a.Cluster, b.Cluster, kube.Quiet{}); kubetest.KindOf(t, err) != kube.Identity {
		t.Error(err)
	}
	kit.Check(t, "it changed a", a.contents(t), before)
	plans, err := PlanAll(t.Context(), []Pair{{a.Cluster, b.Cluster}}, engine.Options{}, kube.Quiet{})
	if err != nil || !slices.ContainsFunc(plans[0].Clusters[0].Warnings, func(w string) bool { return strings.Contains(w, "is not clear") }) {
		t.Errorf("the plan does not say that it is not clear: %v", err)
	}
}

// A peer that lost or recreated objects is still the same cluster.
func TestTruePeers(t *testing.T) {
	t.Parallel()
	deleteAll := func(t *testing.T, w *Site, obj client.Object, opts ...client.DeleteAllOfOption) {
		t.Helper()
		kit.NoError(t, w.Raw.DeleteAllOf(t.Context(), obj, opts...))
	}
	for name, change := range map[string]func(t *testing.T, a, b *Site){
		"its Peering and its ledger are lost": func(t *testing.T, _, b *Site) {
			deleteAll(t, b, &v1alpha1.Peering{})
			cn := kubetest.ReadLedger(t, b.Cluster)
			cn.Finalizers = nil
			kit.NoError(t, b.Raw.Update(t.Context(), cn))
			deleteAll(t, b, &v1alpha1.ClusterNetwork{})
		},
		"its Peering is lost, and the keys of its gateways": func(t *testing.T, _, b *Site) {
			deleteAll(t, b, &v1alpha1.Peering{})
			deleteAll(t, b, &corev1.Secret{}, client.InNamespace(v1alpha1.Namespace), client.HasLabels{v1alpha1.LabelPeering})
		},
		"a peering that never worked": func(t *testing.T, a, b *Site) {
			for _, w := range []*Site{a, b} {
				cn := kubetest.ReadLedger(t, w.Cluster)
				cn.Spec.Peers[0].Phase, cn.Spec.Peers[0].IdentityKey = v1alpha1.PeerReserved, ""
				kit.NoError(t, w.Raw.Update(t.Context(), cn))
			}
			deleteAll(t, b, &corev1.Secret{}, client.InNamespace(v1alpha1.Namespace))
			deleteAll(t, b, &v1alpha1.Peering{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := Peered(t)
			change(t, a, b)
			MustPeer(t, b, a, engine.Options{})
			Settled(t, a, b, engine.Options{})
		})
	}
}

// Another command removes the peering after this one has read one of the clusters.
func TestUnpeerComesBetween(t *testing.T) {
	kit.Play(t)
	a, b := Peered(t)
	read := make(chan struct{}) // closed when a's evidence was read
	wasRead := sync.OnceFunc(func() { close(read) })
	first := a.afterIdentity(wasRead)
	c := tardy(b, read, func() { MustUnpeer(t, a, b) })
	kit.CheckNoError(t, kit.Err(Peer(t.Context(), first, c, engine.Options{}, kube.Quiet{})))
}

// After an unpeer in which any write failed, in either cluster, the clusters can be peered and unpeered.
func TestAfterHalfAnUnpeer(t *testing.T) {
	kit.NotShort(t)
	t.Parallel()
	writes := 12
	if !kit.Full() {
		writes = 3
	}
	for i := range 2 * writes {
		n, side := 1+i/2*11/(writes-1), i%2
		t.Run(fmt.Sprintf("write %d in %c", n, "ab"[side]), func(t *testing.T) {
			t.Parallel()
			a, b := Peered(t)
			w := []*Site{a, b}[side]
			w.Mu.Lock()
			w.Writes, w.failing = 0, n
			w.Mu.Unlock()
			_, _, err := Unpeer(t.Context(), a.Cluster, b.Cluster, kube.Quiet{})
			kit.FatalIf(t, !errors.Is(err, ErrInjected), "%v", err)
			if _, err := Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{}); n == 1 && w == b {
				// Nothing could be done in this cluster, and the other has nothing left.
				kubetest.Fails(t, err, kube.Identity)
			} else if err != nil {
				t.Fatal(err)
			}
			MustUnpeer(t, b, a)
			LeavesNothing(t, a, b)
		})
	}
}

// refusing returns the same cluster, whose API returns only its ID, or rejects changes.
func (w *Site) refusing(err error, changesOnly bool) *kube.Cluster {
	return w.Through(func(ctx context.Context, r *fakeapi.Request) error {
		refused := []string{"get", "list", "create"}
		if changesOnly {
			refused = []string{"update"}
		}
		if !slices.Contains(refused, r.Verb) {
			return r.Send(ctx)
		}
		if err == nil { // it hangs
			<-ctx.Done()
			return ctx.Err()
		}
		return err
	})
}

// The peer cannot keep its peering in this cluster by any response, nor by not responding.
func TestPeerRefuses(t *testing.T) {
	kit.Play(t)
	forbidden := apierrors.NewForbidden(corev1.Resource("things"), "", errors.New("no"))
	for name, tc := range map[string]struct {
		answer      error
		changesOnly bool
		within      time.Duration
	}{
		"it forbids everything": {forbidden, false, 5 * time.Second},
		"it hangs":              {nil, false, peerTimeout + 5*time.Second},
		"it forbids changes":    {forbidden, true, 5 * time.Second},
		"it hangs at changes":   {nil, true, time.Minute + lock.Expiry/2}, // includes releasing the lock
	} {
		kit.Bubble(t, name, func(t *testing.T) {
			a, b := Peered(t)
			start := time.Now()
			unpeer := func() (inA, inB engine.Removed, err error) {
				return Unpeer(kit.Timeout(t, time.Minute), a.Cluster, b.refusing(tc.answer, tc.changesOnly), kube.Quiet{})
			}
			inA, inB, err := unpeer()
			kit.ErrorIf(t, kubetest.KindOf(t, err) != kube.OneSided || !inA.Peering || !inA.Agents || inB.Peering, "%+v, %+v, %v", inA, inB, err)
			took := time.Since(start)
			kit.ErrorIf(t, took > tc.within, "it took %s", took)
			if e := (*kube.Error)(nil); !errors.As(err, &e) || !strings.HasSuffix(e.Hint, "kubectl liqonet unpeer b a") {
				t.Errorf("it does not say what to do in b: %+v", e)
			}
			left := a.Ours(t)
			kit.ErrorIf(t, len(left) > 0, "it leaves %v in a", left)
			kit.ErrorIf(t, b.peering(t) == nil, "the peering of b is gone")
			// Repeating it has the same result, and cleans b once it responds.
			_, _, err = unpeer()
			kit.ErrorIf(t, kubetest.KindOf(t, err) != kube.OneSided, "again: %v", err)
			_, err = Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{})
			kit.ErrorIf(t, kubetest.KindOf(t, err) != kube.Identity, "a has lost its keys, and is peered all the same: %v", err)
			_, inA, err = Unpeer(t.Context(), b.Cluster, a.Cluster, kube.Quiet{})
			kit.ErrorIf(t, err != nil || inA.Peering, "from b: %+v, %v", inA, err)
			left = b.Ours(t)
			kit.ErrorIf(t, len(left) > 0, "it leaves %v in b", left)
		})
	}
}

// One side is removed by the peer's name. Two peers of the same name are distinguished by their IDs.
func TestPeerIsNotAsked(t *testing.T) {
	kit.Play(t)
	a, _, c := threeSites(t)
	d := NewSite(t, "d", "10.50.0.0/16", "172.18.5.11")
	d.Name, d.Peer, a.Peer = "c", a, d
	MustPeer(t, a, d, engine.Options{})
	unasked := func(name string) *kube.Cluster { return &kube.Cluster{Name: name, SkipReason: kube.ErrSkipped} }
	before := a.contents(t)
	if _, _, err := Unpeer(t.Context(), a.Cluster, unasked("c"), kube.Quiet{}); kubetest.KindOf(t, err) != kube.Usage || !strings.Contains(err.Error(), "several peers have this name") {
		t.Error(err)
	}
	inA, _, err := Unpeer(t.Context(), a.Cluster, unasked("nobody"), kube.Quiet{})
	diff := cmp.Diff(engine.Removed{PeerNames: []string{"c", "c-2"}}, inA)
	kit.ErrorIf(t, err != nil || diff != "", "%v\n%s", err, diff)
	kit.Check(t, "it changed a", a.contents(t), before)
	for _, name := range []string{"id-of-d", "c"} {
		inA, _, err := Unpeer(t.Context(), a.Cluster, unasked(name), kube.Quiet{})
		kit.ErrorIf(t, err != nil || !inA.Peering, "%s: %+v, %v", name, inA, err)
	}
	left := a.Ours(t)
	kit.ErrorIf(t, len(left) > 0, "it leaves %v", left)
	for _, w := range []*Site{c, d} {
		kit.ErrorIf(t, len(w.Ours(t)) == 0, "%s was changed", w.ID)
	}
}

// A namespace and Secrets of someone else are not used.
func TestNamespaceOfSomebodyElse(t *testing.T) {
	kit.Play(t)
	foreign := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.Namespace, Labels: map[string]string{"team": "x"}}}
	a, b := TwoSites(t, foreign)
	before := a.contents(t)
	_, err := Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{})
	kubetest.Fails(t, err, kube.Usage, "is not managed by liqonet")
	kubetest.Fails(t, planError(t, a, b), kube.Usage, "is not managed by liqonet")
	// Nor is it removed.
	MustUnpeer(t, a, b)
	kit.Check(t, "it was changed", a.contents(t), before)
	MustPeer(t, a, b, engine.Options{AdoptNamespace: true})
	MustPeer(t, a, b, engine.Options{})
}

func TestSecretsOfSomebodyElse(t *testing.T) {
	t.Parallel()
	key := newKey(t)
	gateway := manifests.Gateway{Peering: "b", KeyGeneration: 1}.Secret(map[string][]byte{v1alpha1.PrivateKeyFile: key[:]})
	for _, good := range []*corev1.Secret{gateway, manifests.OverlaySecret(1, key[:])} {
		for what, spoil := range map[string]func(*corev1.Secret){
			"without a label":     func(s *corev1.Secret) { s.Labels = nil },
			"that can be changed": func(s *corev1.Secret) { s.Immutable = nil },
			"of another length": func(s *corev1.Secret) {
				s.Data = map[string][]byte{v1alpha1.PrivateKeyFile: key[:31], v1alpha1.OverlayKeyFile: make([]byte, 33)}
			},
			"without anything":      func(s *corev1.Secret) { s.Data = nil },
			"that is as we make it": nil,
		} {
			t.Run(good.Name+" "+what, func(t *testing.T) {
				t.Parallel()
				secret := good.DeepCopy()
				if spoil != nil {
					spoil(secret)
				}
				a, b := TwoSites(t, manifests.Namespace())
				kit.NoError(t, a.Raw.Create(t.Context(), secret))
				if spoil == nil {
					MustPeer(t, a, b, engine.Options{})
					return
				}
				_, err := Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{})
				if kubetest.KindOf(t, err) != kube.Usage || !strings.Contains(err.Error(), secret.Name) || strings.Contains(err.Error(), string(key[:31])) {
					t.Errorf("peer: %v", err)
				}
			})
		}
	}
}

// afterIdentity returns the cluster, and calls read after each read of its identity.
func (w *Site) afterIdentity(read func()) *kube.Cluster {
	return w.Through(func(ctx context.Context, r *fakeapi.Request) error {
		err := r.Send(ctx)
		if r.Verb == "get" && r.Name == manifests.IdentitySecretName {
			read()
		}
		return err
	})
}
