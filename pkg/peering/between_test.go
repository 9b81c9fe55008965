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
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// stopAt suspends the process just before the nth deletion of the object. before runs outside of the process before each deletion.
func (p *process) stopAt(w *Site, kind, name string, nth int, before func(n int)) *kube.Cluster {
	c := p.of(w)
	var mu sync.Mutex
	n := 0
	c.Client = interceptor.NewClient(c.Client, interceptor.Funcs{
		Delete: func(ctx context.Context, api client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			if kube.KindName(obj) == kind && obj.GetName() == name {
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
			return api.Delete(ctx, obj, opts...)
		},
	})
	return c
}

// A peer that removes a plane is suspended before it retries a deletion. Another peer re-adds that plane: its gateway
// stays.
func TestSleepsBeforeASecondDeletion(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := pairOf(t, 2)
		name := v1alpha1.GatewayName("b", 1)
		p := &process{}
		other := false
		p.others = func() {
			other = true
			if _, err := Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{Planes: 2}, kube.Quiet{}); err != nil {
				t.Errorf("the other one: %v", err)
			}
		}
		ca := p.stopAt(a, "Deployment", name, 2, func(n int) {
			if n > 1 {
				return
			}
			// As its controller may do at any time, this changes the status, and so the resourceVersion.
			d := &appsv1.Deployment{}
			if err := a.Raw.Get(t.Context(), types.NamespacedName{Namespace: v1alpha1.Namespace, Name: name}, d); err != nil {
				t.Fatal(err)
			}
			d.Status.Conditions = append(d.Status.Conditions, appsv1.DeploymentCondition{Type: appsv1.DeploymentAvailable, Status: "True"})
			if err := a.Raw.Status().Update(t.Context(), d); err != nil {
				t.Fatal(err)
			}
		})
		_, err := Peer(t.Context(), ca, p.of(b), engine.Options{Planes: 1}, kube.Quiet{})
		t.Logf("the one that slept: %v", err)
		if !other {
			t.Fatal("it never slept")
		}
		left := a.Raw.Get(t.Context(), types.NamespacedName{Namespace: v1alpha1.Namespace, Name: name}, &appsv1.Deployment{})
		planes := a.planesTo(t, b)
		if left != nil && len(planes) == 2 {
			t.Errorf("the other command has decided for 2 planes, the Peering names %d, and gateway %s: %v", len(planes), name, left)
		}
	})
}

// unpeer takes a lock from an upgrade that is suspended while rolling back. The upgrade does not delete what a later peer relies on.
func TestUnpeerChangesWhatTheOvertakenKnow(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := NewCouple(t, true, false)
		a, b := w.A, w.b
		d := NewSite(t, "d", "10.70.0.0/16", "172.18.7.11")
		var roles rbacv1.ClusterRoleList
		if err := a.Raw.List(t.Context(), &roles); err != nil {
			t.Fatal(err)
		}
		name := ""
		for _, r := range roles.Items {
			if r.Labels[v1alpha1.LabelPeering] == "" && r.Labels[v1alpha1.LabelManagedBy] == v1alpha1.FieldManager && strings.Contains(r.Name, "node") {
				name = r.Name
				if err := a.Raw.Delete(t.Context(), &r); err != nil { // the new version has another one
					t.Fatal(err)
				}
			}
		}
		if name == "" {
			t.Fatal(roles.Items)
		}
		slept := false
		p := &process{}
		p.others = func() {
			slept = true
			if _, _, err := Unpeer(t.Context(), a.Cluster, b.Cluster, kube.Quiet{}); err != nil {
				t.Errorf("unpeer: %v", err)
			}
			a.lossy, a.Peer, d.Peer = "", d, a
			if _, err := Peer(t.Context(), a.Cluster, d.Cluster, engine.Options{}, kube.Quiet{}); err != nil {
				t.Errorf("peer: %v", err)
			}
			if err := a.Raw.Get(t.Context(), types.NamespacedName{Name: name}, &rbacv1.ClusterRole{}); err != nil {
				t.Errorf("after peer: %v", err)
			}
		}
		a.lossy = "image:2"
		out, err := UpgradeAll(t.Context(), []*kube.Cluster{p.stopAt(a, "ClusterRole", name, 1, func(int) {})}, Newer(), kube.Quiet{})
		t.Logf("the upgrade that slept: %v, %+v", err, out)
		if !slept {
			t.Fatal("it never slept")
		}
		if err := a.Raw.Get(t.Context(), types.NamespacedName{Name: name}, &rbacv1.ClusterRole{}); err != nil {
			t.Errorf("%v", err)
		}
	})
}

// tardy is a cluster that, once, runs a function before it returns its ledger, when wait has ended.
func tardy(w *Site, wait <-chan struct{}, do func()) *kube.Cluster {
	c, once := *w.Cluster, sync.Once{}
	c.Client = interceptor.NewClient(w.Client, interceptor.Funcs{
		Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if kube.KindName(obj) == "ClusterNetwork" {
				once.Do(func() {
					<-wait
					do()
				})
			}
			return api.Get(ctx, key, obj, opts...)
		},
	})
	return &c
}

// A cluster that claims to be c responds only after a was peered with c. It is not accepted as c.
func TestPeerComparesIdentitiesUnderTheLock(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	a := NewSite(t, "a", "10.244.0.0/16", "172.18.1.11")
	c := NewSite(t, "c", "10.30.0.0/16", "172.18.3.11")
	m := NewSite(t, "c", "10.40.0.0/16", "172.18.4.11")
	m.Name = "m"
	a.Peer, c.Peer, m.Peer = c, a, a
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
	if err == nil {
		t.Error("m was taken for c")
	}
	after := a.peeringNamed(t, "c")
	if before == nil {
		t.Fatal("c was not peered")
	}
	if cmp.Diff(before.Spec, after.Spec, kubetest.Compare) != "" || kubetest.ReadLedger(t, a.Cluster).Spec.Peers[0].IdentityKey != identity {
		t.Errorf("key of c's gateway %s, now %s; c's pods %v, now %v; identity in the ledger %s, now %s",
			before.Spec.Planes[0].RemotePublicKey, after.Spec.Planes[0].RemotePublicKey, before.Spec.Remote.Pods, after.Spec.Remote.Pods, identity, kubetest.ReadLedger(t, a.Cluster).Spec.Peers[0].IdentityKey)
	}
}

// The same for unpeer.
func TestUnpeerComparesIdentitiesUnderTheLock(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	a := NewSite(t, "a", "10.244.0.0/16", "172.18.1.11")
	c := NewSite(t, "c", "10.30.0.0/16", "172.18.3.11")
	m := NewSite(t, "c", "10.40.0.0/16", "172.18.4.11")
	m.Name = "m"
	a.Peer, c.Peer, m.Peer = c, a, a
	wait := make(chan struct{})
	close(wait)
	was := false
	liar := tardy(m, wait, func() {
		MustPeer(t, a, c, engine.Options{})
		was = true
	})
	_, _, err := Unpeer(t.Context(), a.Cluster, liar, kube.Quiet{})
	if err == nil {
		t.Error("m was taken for c")
	}
	if cn, readErr := a.Ledger(t.Context()); !was || readErr != nil || cn == nil || len(cn.Spec.Peers) == 0 {
		t.Errorf("the peering of a and c is gone (%v)", err)
	}
}

// While a is being peered with c, a host is to be exposed to a cluster that claims to be c. It is exposed to neither.
func TestExposeHostComparesIdentitiesUnderTheLock(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := NewSite(t, "a", "10.244.0.0/16", "172.18.1.11")
		c := NewSite(t, "c", "10.244.0.0/16", "172.18.3.11")
		m := NewSite(t, "c", "10.244.0.0/16", "172.18.4.11")
		m.Name = "m"
		a.Peer, c.Peer, m.Peer = c, a, a
		var exposed error
		done := make(chan struct{})
		_, err := Peer(t.Context(), a.Cluster, c.Cluster, engine.Options{}, Steps{"Waiting until packets pass": func() {
			go func() {
				defer close(done)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				_, exposed = ExposeHost(ctx, a.Cluster, m.Cluster, netip.MustParseAddr("192.0.2.7"), kube.Quiet{})
			}()
			synctest.Wait()
		}})
		if err != nil {
			t.Fatal(err)
		}
		<-done
		if exposed == nil {
			t.Error("m was taken for c")
		}
		if hosts := a.peeringNamed(t, "c").Spec.Local.Hosts; len(hosts) > 0 {
			t.Errorf("c reaches %v", hosts)
		}
	})
}
