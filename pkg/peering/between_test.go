package peering

import (
	"context"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// stopAt suspends the process just before the nth deletion of the object. before runs outside of the process before each deletion.
func (p *process) stopAt(w *Site, kind, name string, nth int, before func(n int)) *kube.Cluster {
	var mu sync.Mutex
	n := 0
	c := p.of(w)
	c.Client = fakeapi.Intercept(c.Client, func(ctx context.Context, r *fakeapi.Request) error {
		if r.Of("delete", kind) && r.Name == name {
			mu.Lock()
			n++
			k := n
			mu.Unlock()
			before(k)
			if k == nth {
				p.mu.Lock()
				p.at = p.writes + 1
				p.mu.Unlock()
			}
		}
		return r.Send(ctx)
	})
	return c
}

// A peer that removes a plane is suspended before it retries a deletion. Another peer re-adds that plane: its gateway
// stays.
func TestSleepsBeforeASecondDeletion(t *testing.T) {
	kit.Play(t)
	synctest.Test(t, func(t *testing.T) {
		a, b := pairOf(t, 2)
		name := v1alpha1.GatewayName("b", 1)
		p := &process{}
		other := false
		p.others = func() {
			other = true
			_, err := Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{Planes: 2}, kube.Quiet{})
			kit.ErrorIf(t, err != nil, "the other one: %v", err)
		}
		ca := p.stopAt(a, "Deployment", name, 2, func(n int) {
			if n > 1 {
				return
			}
			// As its controller may do at any time, this changes the status, and so the resourceVersion.
			d := Get(t, a, v1alpha1.Namespace, name, &appsv1.Deployment{})
			d.Status.Conditions = append(d.Status.Conditions, appsv1.DeploymentCondition{Type: appsv1.DeploymentAvailable, Status: "True"})
			kit.NoError(t, a.Raw.Status().Update(t.Context(), d))
		})
		_, err := Peer(t.Context(), ca, p.of(b), engine.Options{Planes: 1}, kube.Quiet{})
		t.Logf("the one that slept: %v", err)
		kit.FatalIf(t, !other, "it never slept")
		left := a.Raw.Get(t.Context(), types.NamespacedName{Namespace: v1alpha1.Namespace, Name: name}, &appsv1.Deployment{})
		planes := a.planesTo(t, b)
		kit.ErrorIf(t, left != nil && len(planes) == 2,
			"the other command has decided for 2 planes, the Peering names %d, and gateway %s: %v", len(planes), name, left)
	})
}

// unpeer takes a lock from an upgrade that is suspended while rolling back. The upgrade does not delete what a later peer relies on.
func TestUnpeerChangesWhatTheOvertakenKnow(t *testing.T) {
	kit.Play(t)
	synctest.Test(t, func(t *testing.T) {
		w := NewCouple(t, true, false)
		a, b := w.A, w.b
		d := NewSite(t, "d", "10.70.0.0/16", "172.18.7.11")
		roles := List[rbacv1.ClusterRoleList](t, a)
		name := ""
		for _, r := range roles.Items {
			if r.Labels[v1alpha1.LabelPeering] == "" && r.Labels[v1alpha1.LabelManagedBy] == v1alpha1.FieldManager && strings.Contains(r.Name, "node") {
				name = r.Name
				if err := a.Raw.Delete(t.Context(), &r); err != nil { // the new version has another one
					t.Fatal(err)
				}
			}
		}
		kit.FatalIf(t, name == "", "%v", roles.Items)
		slept := false
		p := &process{}
		p.others = func() {
			slept = true
			MustUnpeer(t, a, b)
			a.lossy, a.Peer, d.Peer = "", d, a
			_, err := Peer(t.Context(), a.Cluster, d.Cluster, engine.Options{}, kube.Quiet{})
			kit.ErrorIf(t, err != nil, "peer: %v", err)
			err = a.Raw.Get(t.Context(), types.NamespacedName{Name: name}, &rbacv1.ClusterRole{})
			kit.ErrorIf(t, err != nil, "after peer: %v", err)
		}
		a.lossy = "image:2"
		out, err := UpgradeAll(t.Context(), []*kube.Cluster{p.stopAt(a, "ClusterRole", name, 1, func(int) {})}, Newer(), kube.Quiet{})
		t.Logf("the upgrade that slept: %v, %+v", err, out)
		kit.FatalIf(t, !slept, "it never slept")
		kit.CheckNoError(t, a.Raw.Get(t.Context(), types.NamespacedName{Name: name}, &rbacv1.ClusterRole{}))
	})
}

// tardy is a cluster that, once, runs a function before it returns its ledger, when wait has ended.
func tardy(w *Site, wait <-chan struct{}, do func()) *kube.Cluster {
	once := sync.Once{}
	return w.Through(func(ctx context.Context, r *fakeapi.Request) error {
		if r.Of("get", "ClusterNetwork") {
			once.Do(func() {
				<-wait
				do()
			})
		}
		return r.Send(ctx)
	})
}

// withLiar returns a and c, which are not peered yet, and m, which claims to be c.
func withLiar(t *testing.T) (a, c, m *Site) {
	t.Helper()
	a, c = NewSite(t, "a", "10.244.0.0/16", "172.18.1.11"), NewSite(t, "c", "10.30.0.0/16", "172.18.3.11")
	m = NewSite(t, "c", "10.40.0.0/16", "172.18.4.11")
	m.Name = "m"
	a.Peer, c.Peer, m.Peer = c, a, a
	return a, c, m
}

// A cluster that claims to be c responds only after a was peered with c. It is not accepted as c.
func TestPeerComparesIdentitiesUnderTheLock(t *testing.T) {
	kit.Play(t)
	a, c, m := withLiar(t)
	read := make(chan struct{})
	wasRead := sync.OnceFunc(func() { close(read) })
	first := a.afterIdentity(wasRead)
	var before *v1alpha1.Peering
	identity := ""
	liar := tardy(m, read, func() {
		MustPeer(t, a, c, engine.Options{})
		before, identity = a.peeringNamed(t, "c"), kubetest.ReadLedger(t, a.Cluster).Spec.Peers[0].IdentityKey
	})
	_, err := Peer(t.Context(), first, liar, engine.Options{}, kube.Quiet{})
	kit.ErrorIf(t, err == nil, "m was taken for c")
	after := a.peeringNamed(t, "c")
	kit.FatalIf(t, before == nil, "c was not peered")
	if cmp.Diff(before.Spec, after.Spec, kit.Compare) != "" || kubetest.ReadLedger(t, a.Cluster).Spec.Peers[0].IdentityKey != identity {
		t.Errorf("key of c's gateway %s, now %s; c's pods %v, now %v; identity in the ledger %s, now %s",
			before.Spec.Planes[0].RemotePublicKey, after.Spec.Planes[0].RemotePublicKey, before.Spec.Remote.Pods, after.Spec.Remote.Pods, identity, kubetest.ReadLedger(t, a.Cluster).Spec.Peers[0].IdentityKey)
	}
}

// The same for unpeer.
func TestUnpeerComparesIdentitiesUnderTheLock(t *testing.T) {
	kit.Play(t)
	a, c, m := withLiar(t)
	wait := make(chan struct{})
	close(wait)
	was := false
	liar := tardy(m, wait, func() {
		MustPeer(t, a, c, engine.Options{})
		was = true
	})
	_, _, err := Unpeer(t.Context(), a.Cluster, liar, kube.Quiet{})
	kit.ErrorIf(t, err == nil, "m was taken for c")
	cn, readErr := a.ReadLedger(t.Context())
	kit.ErrorIf(t, !was || readErr != nil || cn == nil || len(cn.Spec.Peers) == 0, "the peering of a and c is gone (%v)", err)
}

// While a is being peered with c, a host is to be exposed to a cluster that claims to be c. It is exposed to neither.
func TestExposeHostComparesIdentitiesUnderTheLock(t *testing.T) {
	kit.Play(t)
	synctest.Test(t, func(t *testing.T) {
		a, c, m := withLiar(t)
		var exposed error
		done := make(chan struct{})
		kit.Must(Peer(t.Context(), a.Cluster, c.Cluster, engine.Options{}, Steps{"Waiting until packets pass": func() {
			go func() {
				defer close(done)
				_, exposed = ExposeHost(kit.Timeout(t, time.Minute), a.Cluster, m.Cluster, netip.MustParseAddr("192.0.2.7"), kube.Quiet{})
			}()
			synctest.Wait()
		}}))(t)
		<-done
		kit.ErrorIf(t, exposed == nil, "m was taken for c")
		hosts := a.peeringNamed(t, "c").Spec.Local.Hosts
		kit.ErrorIf(t, len(hosts) > 0, "c reaches %v", hosts)
	})
}
