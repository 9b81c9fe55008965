package peering

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/pkg/manifests"
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
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// planError returns the error of a dry run.
func planError(t *testing.T, a, b *Site) error {
	t.Helper()
	_, err := PlanAll(t.Context(), []Pair{{a.Cluster, b.Cluster}}, engine.Options{}, kube.Quiet{})
	return err
}

// A cluster that returns the ID of another one gets neither its peering nor its ranges, and cannot have the peering
// removed.
func TestSecurity_03_ClusterSaysThatItIsAnother(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	a := NewSite(t, "a", "10.244.0.0/16", "172.18.1.11")
	c := NewSite(t, "c", "10.30.0.0/16", "172.18.3.11")
	a.Peer, c.Peer = c, a
	MustPeer(t, a, c, engine.Options{})
	public, err := wgtypes.ParseKey(kubetest.ReadLedger(t, a.Cluster).Spec.Peers[0].IdentityKey)
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{}
	if err := c.Raw.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.Namespace, Name: "gateway-a-0-1"}, secret); err != nil {
		t.Fatal(err)
	}
	gateway := secret.Data[v1alpha1.KeyFilePrivate] // a compromised gateway knows it
	own := newKey(t)
	hostile := manifests.Peering("a", c.peering(t).Spec)
	hostile.Spec.Planes[0].RemotePublicKey = newKey(t).PublicKey().String()
	before := a.contents(t)
	for name, tc := range map[string]struct {
		objs []client.Object
		has  string
	}{
		"nothing":               {nil, "has no peering with it"},
		"another key":           {[]client.Object{hostile, manifests.Identity(own[:])}, "has another key"},
		"the public key only":   {[]client.Object{hostile, manifests.Identity(public[:])}, "has another key"},
		"a key of wrong length": {[]client.Object{hostile, manifests.Identity(own[:7])}, "has another key"},
		"a gateway's key":       {[]client.Object{hostile, manifests.Identity(gateway)}, "has another key"},
	} {
		b := Impostor(t, a, tc.objs...)
		_, peerErr := Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{})
		_, otherErr := Peer(t.Context(), b.Cluster, a.Cluster, engine.Options{}, kube.Quiet{})
		_, _, unpeerErr := Unpeer(t.Context(), a.Cluster, b.Cluster, kube.Quiet{})
		for command, err := range map[string]error{"peer": peerErr, "peer, the other way round": otherErr, "dry run": planError(t, a, b), "unpeer": unpeerErr} {
			if kubetest.KindOf(t, err) != kube.Identity || !strings.Contains(err.Error(), "b claims to be the cluster that a knows as c, but "+tc.has) {
				t.Errorf("%s, %s: %v", name, command, err)
			}
		}
		if diff := cmp.Diff(before, a.contents(t)); diff != "" {
			t.Errorf("%s: it changed a:\n%s", name, diff)
		}
	}
	// From its own side it removes only its own peering.
	b := Impostor(t, a, hostile)
	if _, _, err := Unpeer(t.Context(), b.Cluster, a.Cluster, kube.Quiet{}); kubetest.KindOf(t, err) != kube.OneSided {
		t.Error(err)
	}
	if diff := cmp.Diff(before, a.contents(t)); diff != "" {
		t.Errorf("unpeer from the other side changed a:\n%s", diff)
	}
	MustPeer(t, a, Impostor(t, a), engine.Options{Replace: true})
}

// A cluster that does not prove its identity is not accepted.
func TestSecurity_03_SilentAboutItsKeys(t *testing.T) {
	t.Parallel()
	a := NewSite(t, "a", "10.244.0.0/16", "172.18.1.11")
	c := NewSite(t, "c", "10.30.0.0/16", "172.18.3.11")
	a.Peer, c.Peer = c, a
	MustPeer(t, a, c, engine.Options{})
	before := a.contents(t)
	b := Impostor(t, a)
	b.Client = interceptor.NewClient(b.Client, interceptor.Funcs{
		Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if kube.KindName(obj) == "Secret" {
				return apierrors.NewForbidden(corev1.Resource("secrets"), "", errors.New("no"))
			}
			return api.Get(ctx, key, obj, opts...)
		},
	})
	if _, err := Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{}); kubetest.KindOf(t, err) != kube.Forbidden {
		t.Error(err)
	}
	if _, _, err := Unpeer(t.Context(), a.Cluster, b.Cluster, kube.Quiet{}); kubetest.KindOf(t, err) != kube.Identity {
		t.Error(err)
	}
	if diff := cmp.Diff(before, a.contents(t)); diff != "" {
		t.Errorf("it changed a:\n%s", diff)
	}
	plans, err := PlanAll(t.Context(), []Pair{{a.Cluster, b.Cluster}}, engine.Options{}, kube.Quiet{})
	if err != nil || !slices.ContainsFunc(plans[0].Clusters[0].Warnings, func(w string) bool { return strings.Contains(w, "is not clear") }) {
		t.Errorf("the plan does not say that it is not clear: %v", err)
	}
}

// A peer that lost or recreated objects is still the same cluster.
func TestSecurity_03_TruePeers(t *testing.T) {
	t.Parallel()
	deleteAll := func(t *testing.T, w *Site, obj client.Object, opts ...client.DeleteAllOfOption) {
		t.Helper()
		if err := w.Raw.DeleteAllOf(t.Context(), obj, opts...); err != nil {
			t.Fatal(err)
		}
	}
	for name, change := range map[string]func(t *testing.T, a, b *Site){
		"its Peering and its ledger are lost": func(t *testing.T, _, b *Site) {
			deleteAll(t, b, &v1alpha1.Peering{})
			cn := kubetest.ReadLedger(t, b.Cluster)
			cn.Finalizers = nil
			if err := b.Raw.Update(t.Context(), cn); err != nil {
				t.Fatal(err)
			}
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
				if err := w.Raw.Update(t.Context(), cn); err != nil {
					t.Fatal(err)
				}
			}
			deleteAll(t, b, &corev1.Secret{}, client.InNamespace(v1alpha1.Namespace))
			deleteAll(t, b, &v1alpha1.Peering{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := TwoSites(t)
			MustPeer(t, a, b, engine.Options{})
			change(t, a, b)
			MustPeer(t, b, a, engine.Options{})
			if p := DryRun(t, a, b, engine.Options{}); p.Changes() > 0 {
				t.Errorf("something is left to do: %v", Changes(p))
			}
		})
	}
}

// Another command removes the peering after this one has read one of the clusters.
func TestSecurity_03_UnpeerComesBetween(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	a, b := TwoSites(t)
	MustPeer(t, a, b, engine.Options{})
	read := make(chan struct{}) // closed when a's evidence was read
	wasRead := sync.OnceFunc(func() { close(read) })
	first := a.afterIdentity(wasRead)
	c, once := *b.Cluster, sync.Once{}
	c.Client = interceptor.NewClient(b.Client, interceptor.Funcs{
		Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if _, ok := obj.(*v1alpha1.ClusterNetwork); ok {
				once.Do(func() {
					<-read
					if _, _, err := Unpeer(t.Context(), a.Cluster, b.Cluster, kube.Quiet{}); err != nil {
						t.Error(err)
					}
				})
			}
			return api.Get(ctx, key, obj, opts...)
		},
	})
	if _, err := Peer(t.Context(), first, &c, engine.Options{}, kube.Quiet{}); err != nil {
		t.Error(err)
	}
}

// After an unpeer in which any write failed, in either cluster, the clusters can be peered and unpeered.
func TestSecurity_03_AfterHalfAnUnpeer(t *testing.T) {
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
			a, b := TwoSites(t)
			MustPeer(t, a, b, engine.Options{})
			w := []*Site{a, b}[side]
			w.Mu.Lock()
			w.Writes, w.failing = 0, n
			w.Mu.Unlock()
			if _, _, err := Unpeer(t.Context(), a.Cluster, b.Cluster, kube.Quiet{}); !errors.Is(err, ErrInjected) {
				t.Fatal(err)
			}
			if _, err := Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{}); n == 1 && w == b {
				// Nothing could be done in this cluster, and the other has nothing left.
				if kubetest.KindOf(t, err) != kube.Identity {
					t.Error(err)
				}
			} else if err != nil {
				t.Fatal(err)
			}
			if _, _, err := Unpeer(t.Context(), b.Cluster, a.Cluster, kube.Quiet{}); err != nil {
				t.Fatal(err)
			}
			if left := append(a.Ours(t), b.Ours(t)...); len(left) > 0 {
				t.Errorf("it leaves %v", left)
			}
		})
	}
}

// refusing returns the same cluster, whose API returns only its ID, or rejects changes.
func (w *Site) refusing(err error, changesOnly bool) *kube.Cluster {
	c := *w.Cluster
	answer := func(ctx context.Context) error {
		if err == nil { // it hangs
			<-ctx.Done()
			return ctx.Err()
		}
		return err
	}
	if changesOnly {
		c.Client = interceptor.NewClient(w.Client, interceptor.Funcs{
			Update: func(ctx context.Context, _ client.WithWatch, _ client.Object, _ ...client.UpdateOption) error {
				return answer(ctx)
			},
		})
		return &c
	}
	c.Client = interceptor.NewClient(w.Client, interceptor.Funcs{
		Get: func(ctx context.Context, _ client.WithWatch, _ client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
			return answer(ctx)
		},
		List: func(ctx context.Context, _ client.WithWatch, _ client.ObjectList, _ ...client.ListOption) error {
			return answer(ctx)
		},
		Create: func(ctx context.Context, _ client.WithWatch, _ client.Object, _ ...client.CreateOption) error {
			return answer(ctx)
		},
	})
	return &c
}

// The peer cannot keep its peering in this cluster by any response, nor by not responding.
func TestSecurity_12_PeerRefuses(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	forbidden := apierrors.NewForbidden(corev1.Resource("things"), "", errors.New("no"))
	for name, tc := range map[string]struct {
		answer      error
		changesOnly bool
		within      time.Duration
	}{
		"it forbids everything": {forbidden, false, 5 * time.Second},
		"it hangs":              {nil, false, answerTimeout + 5*time.Second},
		"it forbids changes":    {forbidden, true, 5 * time.Second},
		"it hangs at changes":   {nil, true, time.Minute + lock.Expiry/2}, // includes releasing the lock
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := TwoSites(t)
				MustPeer(t, a, b, engine.Options{})
				start := time.Now()
				unpeer := func() (inA, inB engine.Removed, err error) {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					return Unpeer(ctx, a.Cluster, b.refusing(tc.answer, tc.changesOnly), kube.Quiet{})
				}
				inA, inB, err := unpeer()
				if kubetest.KindOf(t, err) != kube.OneSided || !inA.Peering || !inA.Agents || inB.Peering {
					t.Errorf("%+v, %+v, %v", inA, inB, err)
				}
				if took := time.Since(start); took > tc.within {
					t.Errorf("it took %s", took)
				}
				if e := (*kube.Error)(nil); !errors.As(err, &e) || !strings.HasSuffix(e.Hint, "kubectl liqonet unpeer b a") {
					t.Errorf("it does not say what to do in b: %+v", e)
				}
				if left := a.Ours(t); len(left) > 0 {
					t.Errorf("it leaves %v in a", left)
				}
				if b.peering(t) == nil {
					t.Error("the peering of b is gone")
				}
				// Repeating it has the same result, and cleans b once it responds.
				if _, _, err := unpeer(); kubetest.KindOf(t, err) != kube.OneSided {
					t.Errorf("again: %v", err)
				}
				if _, err := Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{}); kubetest.KindOf(t, err) != kube.Identity {
					t.Errorf("a has lost its keys, and is peered all the same: %v", err)
				}
				if _, inA, err := Unpeer(t.Context(), b.Cluster, a.Cluster, kube.Quiet{}); err != nil || inA.Peering {
					t.Errorf("from b: %+v, %v", inA, err)
				}
				if left := b.Ours(t); len(left) > 0 {
					t.Errorf("it leaves %v in b", left)
				}
			})
		})
	}
}

// One side is removed by the peer's name. Two peers of the same name are distinguished by their IDs.
func TestSecurity_12_PeerIsNotAsked(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
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
	if diff := cmp.Diff(engine.Removed{PeerNames: []string{"c", "c-2"}}, inA); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	if diff := cmp.Diff(before, a.contents(t)); diff != "" {
		t.Errorf("it changed a:\n%s", diff)
	}
	for _, name := range []string{"id-of-d", "c"} {
		inA, _, err := Unpeer(t.Context(), a.Cluster, unasked(name), kube.Quiet{})
		if err != nil || !inA.Peering {
			t.Errorf("%s: %+v, %v", name, inA, err)
		}
	}
	if left := a.Ours(t); len(left) > 0 {
		t.Errorf("it leaves %v", left)
	}
	for _, w := range []*Site{c, d} {
		if len(w.Ours(t)) == 0 {
			t.Errorf("%s was changed", w.ID)
		}
	}
}

// A namespace and Secrets of someone else are not used.
func TestSecurity_19_NamespaceOfSomebodyElse(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	foreign := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.Namespace, Labels: map[string]string{"team": "x"}}}
	a, b := TwoSites(t, foreign)
	before := a.contents(t)
	_, err := Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{})
	for command, err := range map[string]error{"peer": err, "dry run": planError(t, a, b)} {
		if kubetest.KindOf(t, err) != kube.Usage || !strings.Contains(err.Error(), "is not managed by liqonet") {
			t.Errorf("%s: %v", command, err)
		}
	}
	// Nor is it removed.
	if _, _, err := Unpeer(t.Context(), a.Cluster, b.Cluster, kube.Quiet{}); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(before, a.contents(t)); diff != "" {
		t.Errorf("it was changed:\n%s", diff)
	}
	MustPeer(t, a, b, engine.Options{AdoptNamespace: true})
	MustPeer(t, a, b, engine.Options{})
}

func TestSecurity_19_SecretsOfSomebodyElse(t *testing.T) {
	t.Parallel()
	key := newKey(t)
	gateway := manifests.Gateway{Peering: "b", KeyGeneration: 1}.Secret(map[string][]byte{v1alpha1.KeyFilePrivate: key[:]})
	for _, good := range []*corev1.Secret{gateway, manifests.OverlaySecret(1, key[:])} {
		for what, spoil := range map[string]func(*corev1.Secret){
			"without a label":     func(s *corev1.Secret) { s.Labels = nil },
			"that can be changed": func(s *corev1.Secret) { s.Immutable = nil },
			"of another length": func(s *corev1.Secret) {
				s.Data = map[string][]byte{v1alpha1.KeyFilePrivate: key[:31], v1alpha1.OverlayKeyFile: make([]byte, 33)}
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
				if err := a.Raw.Create(t.Context(), secret); err != nil {
					t.Fatal(err)
				}
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
	c := *w.Cluster
	c.Client = interceptor.NewClient(w.Client, interceptor.Funcs{
		Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			err := api.Get(ctx, key, obj, opts...)
			if key.Name == manifests.IdentityName {
				read()
			}
			return err
		},
	})
	return &c
}
