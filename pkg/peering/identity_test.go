package peering

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
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
// removed. Public keys prove nothing: a is peered with c and with m, and m claims to be c. It presents the public keys from
// its own peering, or those that anyone can read in custom resources, wherever a key could be.
func TestClusterSaysThatItIsAnother(t *testing.T) {
	kit.Play(t)
	a, c, m := peeredWithTwo(t)
	own, toC, byA := newKey(t), a.peeringNamed(t, "c").Spec.Planes[0], plan.Allocation(kubetest.ReadLedger(t, a.Cluster), c.ID).IdentityKey
	// A compromised gateway knows its key.
	gateway := Get(t, c, v1alpha1.Namespace, "gateway-a-0-1", &corev1.Secret{}).Data[v1alpha1.PrivateKeyFile]
	hostile := manifests.Peering("a", c.peering(t).Spec)
	hostile.Spec.Planes[0].RemotePublicKey = newKey(t).PublicKey().String()
	public := kit.Must(wgtypes.ParseKey(byA))(t)
	rows := map[string][]client.Object{
		"nothing":               nil,
		"another key":           {hostile, manifests.IdentitySecret(own[:])},
		"the public key only":   {hostile, manifests.IdentitySecret(public[:])},
		"a key of wrong length": {hostile, manifests.IdentitySecret(own[:7])},
		"a gateway's key":       {hostile, manifests.IdentitySecret(gateway)},
	}
	for name, known := range map[string]string{
		"a's key for m":           m.peering(t).Spec.Planes[0].RemotePublicKey,
		"a's key for c, from c":   c.peering(t).Spec.Planes[0].RemotePublicKey,
		"c's own key, from a":     toC.RemotePublicKey,
		"m's own key, as a knows": a.peeringNamed(t, "m").Spec.Planes[0].RemotePublicKey,
		"c's identity, from a":    byA,
		"a's identity, from m":    kubetest.ReadLedger(t, m.Cluster).Spec.Peers[0].IdentityKey,
	} {
		p := manifests.Peering("a", m.peering(t).Spec)
		p.Spec.Remote.ClusterID = a.ID
		for i := range p.Spec.Planes {
			p.Spec.Planes[i].RemotePublicKey = known
		}
		p.Status.Planes = []v1alpha1.PlaneStatus{{PublicKey: known}}
		bytes := []byte(known)[:engine.KeyBytes]
		secret := manifests.Gateway{Peering: "a", KeyGeneration: 1}.Secret(map[string][]byte{v1alpha1.PrivateKeyFile: bytes, v1alpha1.PublicKeyFile: []byte(known)})
		rows[name] = []client.Object{p, secret, manifests.IdentitySecret(bytes)}
	}
	before := a.contents(t)
	for name, objs := range rows {
		has := "has another key"
		if objs == nil {
			has = "has no peering with it"
		}
		b := Impostor(t, a, objs...)
		_, peerErr := Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{})
		_, otherErr := Peer(t.Context(), b.Cluster, a.Cluster, engine.Options{}, kube.Quiet{})
		_, _, unpeerErr := Unpeer(t.Context(), a.Cluster, b.Cluster, kube.Quiet{})
		_, hostErr := ExposeHost(t.Context(), a.Cluster, b.Cluster, netip.MustParseAddr("192.168.7.7"), kube.Quiet{})
		for _, err := range []error{peerErr, otherErr, planError(t, a, b), unpeerErr, hostErr} {
			kubetest.Fails(t, err, kube.Identity, "b claims to be the cluster that a knows as c, but "+has)
		}
		_, err := Rotate(t.Context(), a.Cluster, b.Cluster, Rotation{}, kube.Quiet{})
		kit.ErrorIf(t, err == nil, "%s: rotate-keys took it for c", name)
		kit.Check(t, fmt.Sprintf("%s: it changed a", name), a.contents(t), before)
	}
	// From its own side it removes only its own peering.
	b := Impostor(t, a, hostile)
	_, _, err := Unpeer(t.Context(), b.Cluster, a.Cluster, kube.Quiet{})
	kubetest.Fails(t, err, kube.OneSided)
	kit.Check(t, "unpeer from the other side changed a", a.contents(t), before)
	MustPeer(t, a, Impostor(t, a), engine.Options{Replace: true})
}

// peeredWithTwo returns a, which is peered with c and with m.
func peeredWithTwo(t *testing.T) (a, c, m *Site) {
	t.Helper()
	a = NewSite(t, "a", "10.244.0.0/16", "172.18.1.11")
	c = a.PeeredWith(t, "c", "10.30.0.0/16", "172.18.3.11")
	return a, c, a.PeeredWith(t, "m", "10.50.0.0/16", "172.18.5.11")
}

// A cluster that does not prove its identity is not accepted.
func TestSilentAboutItsKeys(t *testing.T) {
	t.Parallel()
	a := NewSite(t, "a", "10.244.0.0/16", "172.18.1.11")
	a.PeeredWith(t, "c", "10.30.0.0/16", "172.18.3.11")
	before := a.contents(t)
	b := Impostor(t, a)
	b.Cluster = mute(b)
	kubetest.Fails(t, kit.Err(Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{})), kube.Identity)
	if _, _, err := Unpeer(t.Context(), a.Cluster, b.Cluster, kube.Quiet{}); kubetest.KindOf(t, err) != kube.Identity {
		t.Error(err)
	}
	kit.Check(t, "it changed a", a.contents(t), before)
	plans, err := PlanAll(t.Context(), []Pair{{a.Cluster, b.Cluster}}, engine.Options{}, kube.Quiet{})
	if err != nil || !slices.ContainsFunc(plans[0].Clusters[0].Warnings, func(w string) bool { return strings.Contains(w, "unverified: ") }) {
		t.Errorf("the plan does not say that it is unverified: %v", err)
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

// After an unpeer in which any write failed, in either cluster, the clusters can be peered and unpeered. One that fails after it
// has marked the ledger leaves running agents.
func TestAfterHalfAnUnpeer(t *testing.T) {
	kit.NotShort(t)
	t.Parallel()
	for _, i := range kubetest.Moments(t, 24, 3) {
		n, side := (i+1)/2, i%2
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

// peeringNamed returns the Peering of that name.
func (w *Site) peeringNamed(t *testing.T, name string) *v1alpha1.Peering {
	t.Helper()
	p, err := kube.Get[v1alpha1.Peering](t.Context(), w.Cluster, "", name)
	kit.FatalIf(t, p == nil || err != nil, "Peering %s: %v", name, err)
	return p
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
	for _, claimed := range []*kube.Cluster{mute(c), c.Cluster} {
		kubetest.Fails(t, kit.Err(UpgradeAll(t.Context(), []*kube.Cluster{a.Cluster, claimed}, Newer(), kube.Quiet{})), kube.Identity)
	}
	plans := kit.Must(PlanUpgrades(t.Context(), []*kube.Cluster{a.Cluster, mute(c)}, Newer(), kube.Quiet{}))(t)
	kit.CheckContains(t, "the plan", strings.Join(plans.Clusters[0].Notes, "\n"), "unverified: ")
	removals := kit.Must(PlanRemovals(t.Context(), []Pair{{a.Cluster, mute(c)}}))(t)
	kit.CheckContains(t, "the plan of unpeer", strings.Join(removals[0].Notes, "\n"), "unverified: ")
	kit.Check(t, "it changed the planes of a", a.peering(t).Spec.Planes, before.Planes, kit.Compare)
}

// A peer that claims to be another one cannot have that one's host removed.
func TestHideHostFromAnImpostor(t *testing.T) {
	kit.Play(t)
	a, c, m := peeredWithTwo(t)
	host := netip.MustParseAddr("192.168.7.7")
	for _, w := range []*Site{c, m} {
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

// The administrator of b adds a Node with public addresses. a routes none of them to b, and the result of peer says
// so.
func TestPeerDoesNotAttractPublicAddresses(t *testing.T) {
	kit.Play(t)
	a, b := TwoSites(t)
	hostile := kubetest.Node("hostile", false, "172.18.2.66")
	hostile.Spec.PodCIDR, hostile.Spec.PodCIDRs = "8.8.8.0/24", []string{"8.8.8.0/24"}
	kit.NoError(t, b.Raw.Create(t.Context(), hostile))
	r := MustPeer(t, a, b, engine.Options{})
	pods := a.peering(t).Spec.Remote.Pods
	for _, m := range pods {
		kit.ErrorIf(t, !ipam.IsPrivate(m.Mapped.Prefix), "a knows %s as %s", m.Real, m.Mapped)
	}
	kit.FatalIf(t, pods[0].Real != kubetest.Cidr("8.8.0.0/16"), "b has %v", pods)
	notes := strings.Join(r.Notes, "\n")
	kit.ErrorIf(t, !strings.Contains(notes, "8.8.0.0/16 -> "), "the notes are %q", r.Notes)
	wish := ipam.Mappings{{Real: kubetest.Prefix("8.8.0.0/16"), Mapped: kubetest.Prefix("8.8.0.0/16")}}
	MustPeer(t, a, b, wishFor(b.ID, engine.ClusterOptions{Map: wish}))
	if r := MustPeer(t, a, b, engine.Options{}); len(r.Changed) > 0 || a.peering(t).Spec.Remote.Pods[0].Mapped != kubetest.Cidr("8.8.0.0/16") {
		t.Errorf("without --map it changed %v", r.Changed)
	}
}

// The API server of the kubeconfig is not routed into a tunnel, if its URL has an IP address.
func TestTheKubeconfigsServerIsInUse(t *testing.T) {
	kit.Play(t)
	a, b := NewSite(t, "a", "10.244.0.0/16", "172.18.1.11"), NewSite(t, "b", "10.20.0.0/16", "172.18.2.11")
	a.Peer, b.Peer, a.Server = b, a, netip.MustParseAddr("10.20.3.4")
	MustPeer(t, a, b, engine.Options{})
	m := a.peering(t).Spec.Remote.Pods[0].Mapped
	kit.ErrorIf(t, m.Contains(a.Server), "a leads %s to b", m)
}

func TestNoServiceAndNoAPIServerIsExposed(t *testing.T) {
	kit.Play(t)
	outside := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "elsewhere"}, Spec: corev1.ServiceSpec{ClusterIP: "10.50.0.9", ClusterIPs: []string{"10.50.0.9"}},
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: new(int32(6443))}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.10"}}},
	}
	a, b := TwoSites(t, slice)
	a.Server = netip.MustParseAddr("192.0.2.11")
	MustPeer(t, a, b, engine.Options{})
	for _, tt := range []struct{ host, want string }{
		{"10.96.0.1", "cluster IP of service default/kubernetes"},
		{"10.96.7.7", "range of the services, 10.96.0.0/16"},
		{"192.0.2.10", "the API server of a"},
		{"192.0.2.11", "the API server of a"},
		{"10.50.0.9", "cluster IP of service default/elsewhere"},
	} {
		if tt.host == "10.50.0.9" { // it contradicts the range, so peer gets the range
			kit.NoError(t, a.Raw.Create(t.Context(), outside))
		}
		_, err := ExposeHost(t.Context(), a.Cluster, b.Cluster, netip.MustParseAddr(tt.host), kube.Quiet{})
		kit.ErrorIf(t, err == nil || kubetest.KindOf(t, err) != kube.Usage || !strings.Contains(err.Error(), tt.want),
			"%s: got %v, want %q", tt.host, err, tt.want)
	}
	_, err := ExposeHost(t.Context(), a.Cluster, b.Cluster, netip.MustParseAddr("192.0.2.12"), kube.Quiet{})
	kit.ErrorIf(t, err != nil, "a host outside cannot be exposed: %v", err)
	hosts := a.peering(t).Spec.Local.Hosts
	kit.ErrorIf(t, len(hosts) != 1 || hosts[0].Real != (v1alpha1.IP{Addr: netip.MustParseAddr("192.0.2.12")}), "exposed are %v", hosts)
}
