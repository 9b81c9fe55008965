package peering

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/doctor"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
)

// belongings are what there is with the label of a peering but for its Peering, and of these what does not go with that.
func (w *site) belongings(t *testing.T) (all, ownerless []string) {
	t.Helper()
	var owner client.Object = &v1alpha1.Peering{}
	if peerings := list[v1alpha1.PeeringList](t, w).Items; len(peerings) > 0 {
		owner = &peerings[0]
	}
	for _, of := range append(append(workloads(), accounts()...), &coordinationv1.LeaseList{}, &corev1.ConfigMapList{}) {
		if err := w.raw.List(t.Context(), of, client.HasLabels{v1alpha1.LabelPeering}); err != nil {
			t.Fatal(err)
		}
		objs, err := items(of)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objs {
			all = append(all, describe(o))
			if !owns(owner.GetUID(), o) {
				ownerless = append(ownerless, describe(o))
			}
			for _, ref := range o.GetOwnerReferences() {
				if ref.Kind != "Peering" || ref.Name != w.peer.Name || ref.Controller != nil || ref.BlockOwnerDeletion != nil {
					t.Errorf("%s has the owner %+v", describe(o), ref)
				}
			}
		}
	}
	return all, ownerless
}

// collect does what the garbage collector does in the end.
func (w *site) collect(t *testing.T) {
	t.Helper()
	if err := w.raw.(*fakeapi.API).Collect(); err != nil {
		t.Fatal(err)
	}
}

// deleteByHand does what kubectl delete peering does, and says whether there was one.
func (w *site) deleteByHand(t *testing.T) bool {
	t.Helper()
	w.mu.Lock()
	w.isCollected = true
	w.mu.Unlock()
	err := w.raw.Delete(t.Context(), &v1alpha1.Peering{ObjectMeta: metav1.ObjectMeta{Name: w.peer.Name}})
	if client.IgnoreNotFound(err) != nil && !absent(err) {
		t.Fatal(err)
	}
	w.collect(t)
	return err == nil
}

// All that belongs to one peering has its Peering as its owner, from the first write on, and nothing else has.
func TestOwners(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	a, b := twoSites(t)
	mustPeer(t, a, b, Options{})
	for _, w := range []*site{a, b} {
		all, ownerless := w.belongings(t)
		if len(all) < 12 || len(ownerless) > 0 {
			t.Errorf("%s: of %q these have no owner: %q", w.Name, all, ownerless)
		}
		before := w.ours(t)
		w.collect(t)
		if after := w.ours(t); !slices.Equal(before, after) {
			t.Errorf("%s: the collector took something of a peering that is there: %q, %q", w.Name, before, after)
		}
	}
}

// What was restored without owners, as Velero does, or with owners that are dead, is named, and gets them again.
func TestOwnersAreSetAgain(t *testing.T) {
	kit.Slow(t)
	const dead = `[{"apiVersion":"liqonet.io/v1alpha1","kind":"Peering","name":"b","uid":"00000000-0000-0000-0000-000000000000"}]`
	for _, tt := range []struct {
		restored string
		Options
	}{{"null", Options{}}, {"null", Options{Replace: true}}, {dead, Options{Replace: true}}} {
		t.Run(fmt.Sprint(tt.restored, tt.Replace), func(t *testing.T) {
			t.Parallel()
			a, b := twoSites(t)
			mustPeer(t, a, b, Options{})
			for _, of := range append(append(workloads(), accounts()...), &coordinationv1.LeaseList{}, &corev1.ConfigMapList{}) {
				if err := a.raw.List(t.Context(), of, client.HasLabels{v1alpha1.LabelPeering}); err != nil {
					t.Fatal(err)
				}
				objs, _ := items(of)
				for _, obj := range objs {
					patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"ownerReferences":`+tt.restored+`}}`))
					if err := a.raw.Patch(t.Context(), obj, patch); err != nil {
						t.Fatal(err)
					}
				}
			}
			views, err := a.Views(t.Context())
			if err != nil || len(views) != 1 || !strings.Contains(views[0].Message, "without their owner") || !strings.Contains(views[0].Message, "Secret gateway-b-0-1") {
				t.Errorf("%+v, %v", views, err)
			}
			if got := changes(dryRun(t, a, b, Options{})); !slices.Contains(got, "a change Deployment gateway-b-0") || !slices.Contains(got, "a change Secret gateway-b-0-1") {
				t.Errorf("a dry run shows %q", got)
			}
			mustPeer(t, a, b, tt.Options)
			a.collect(t) // owners that are dead go when there is one that lives
			if all, ownerless := a.belongings(t); len(ownerless) > 0 || len(all) < 13 {
				t.Errorf("of %q these have no owner: %q", all, ownerless)
			}
			if p := dryRun(t, a, b, Options{}); p.Changes() > 0 {
				t.Errorf("something is left to do: %v", changes(p))
			}
		})
	}
}

// endings are what a user may do next.
var endings = []struct {
	name string
	do   func(t *testing.T, a, b *site) error
}{
	{"peer", func(t *testing.T, a, b *site) error {
		_, err := Peer(t.Context(), a.Cluster, b.Cluster, Options{}, Silent{})
		return err
	}},
	{"unpeer", func(t *testing.T, a, b *site) error {
		_, _, err := Unpeer(t.Context(), a.Cluster, b.Cluster, Silent{})
		return err
	}},
	{"doctor --fix", func(t *testing.T, a, b *site) error {
		clusters := []*Cluster{a.Cluster, b.Cluster}
		facts, err := ReadFacts(t.Context(), clusters, make([]error, 2), DoctorOptions{ObjectsOnly: true}, Silent{})
		if err == nil {
			_, err = Fix(t.Context(), clusters, facts, doctor.Examine(facts), Silent{})
		}
		return err
	}},
}

// asAfter fails unless the clusters are as they have to be after a command.
func asAfter(t *testing.T, a, b *site, ending string) {
	t.Helper()
	if ending == "unpeer" {
		if left := append(a.ours(t), b.ours(t)...); len(left) > 0 {
			t.Errorf("it leaves %v", left)
		}
		return
	}
	for _, w := range []*site{a, b} {
		entry := plan.Allocation(readLedger(t, w.Cluster), w.peer.ID)
		if _, ownerless := w.belongings(t); len(ownerless) > 0 || entry == nil || !entry.Active() {
			t.Errorf("%s: without owner: %q; entry %+v", w.Name, ownerless, entry)
		}
		w.collect(t)
	}
	if p := dryRun(t, a, b, Options{}); p.Changes() > 0 {
		t.Errorf("something is left to do: %v", changes(p))
	}
}

// Somebody deletes a Peering that works. All that belongs to it goes, and nothing else. The ledger keeps its ranges, status says what
// happened, and the next command uses the entry again, or releases it, though the keys of the gateways are gone.
func TestPeeringIsDeletedByHand(t *testing.T) {
	kit.Slow(t)
	for _, ending := range endings {
		t.Run(ending.name, func(t *testing.T) {
			t.Parallel()
			a, b := twoSites(t)
			mustPeer(t, a, b, Options{})
			ledger, all := readLedger(t, a.Cluster).Spec, a.ours(t)
			if !a.deleteByHand(t) {
				t.Fatal("there was no Peering")
			}
			if left, _ := a.belongings(t); len(left) > 0 {
				t.Errorf("the collector leaves %v", left)
			}
			left := a.ours(t)
			for _, o := range all {
				isOfPeering := strings.Contains(o, "gateway-b") || o == "Peering /b"
				if !isOfPeering && !slices.Contains(left, o) {
					t.Errorf("the collector took %s", o)
				}
			}
			entry := plan.Allocation(readLedger(t, a.Cluster), b.ID)
			if want := ledger.Peers[0]; entry == nil || entry.Pods[0] != want.Pods[0] || entry.ExternalCIDR != want.ExternalCIDR || !entry.Active() {
				t.Errorf("the ledger has %+v, want %+v", entry, want)
			}
			views, err := a.Views(t.Context())
			if err != nil || len(views) != 1 || views[0].State != Disconnected || !strings.Contains(views[0].Message, "Peering b was deleted by hand") {
				t.Errorf("%+v, %v", views, err)
			}
			if err := ending.do(t, a, b); err != nil {
				t.Error(err)
			}
			asAfter(t, a, b, ending.name)
			if now := plan.Allocation(&v1alpha1.ClusterNetwork{Spec: ledger}, b.ID); ending.name != "unpeer" && now.Index != readLedger(t, a.Cluster).Spec.Peers[0].Index {
				t.Errorf("the entry was not used again: %+v", now)
			}
		})
	}
}

// The other way round, a stranger gets nothing of what is left.
func TestStrangerAfterPeeringIsDeletedByHand(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	a := newSite(t, "a", "10.244.0.0/16", "172.18.1.11")
	c := newSite(t, "c", "10.30.0.0/16", "172.18.3.11")
	a.peer, c.peer = c, a
	mustPeer(t, a, c, Options{})
	a.deleteByHand(t)
	b := impostor(t, a)
	if _, err := Peer(t.Context(), a.Cluster, b.Cluster, Options{}, Silent{}); kindOf(t, err) != Identity {
		t.Error(err)
	}
	// An unpeer was killed after its first write.
	if err := a.unestablish(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	host := v1alpha1.ExposedHost{Address: v1alpha1.IP{Addr: prefix("192.0.2.7/32").Addr()}, Number: 1}
	if _, err := a.updateLedger(t.Context(), func(cn *v1alpha1.ClusterNetwork) error {
		cn.Spec.Peers[0].Hosts = append(cn.Spec.Peers[0].Hosts, host)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	mustPeer(t, a, b, Options{})
	if entry := readLedger(t, a.Cluster).Spec.Peers[0]; len(entry.Hosts) > 0 {
		t.Errorf("the stranger reaches what the peer was shown: %+v", entry)
	}
}

// A Peering is deleted after each write of the command that makes it, which goes on or is killed. The next command completes or removes all.
func TestPeeringIsDeletedByHandMeanwhile(t *testing.T) {
	kit.NotShort(t)
	t.Parallel()
	x, y := twoSites(t)
	mustPeer(t, x, y, Options{})
	step := 1
	if !kit.Full() {
		step = max(x.writes/4, 1)
	}
	for n := 1; n <= x.writes+1; n += step {
		for _, isKilled := range []bool{false, true} {
			for i, ending := range endings[:2] {
				if !kit.Full() && (n/step+i)%2 == 0 {
					continue
				}
				t.Run(fmt.Sprintf("before write %d, killed %t, %s", n, isKilled, ending.name), func(t *testing.T) {
					t.Parallel()
					a, b := twoSites(t)
					if isKilled {
						a.deadFrom, b.deadFrom = n, n
					} else {
						a.meanwhileAt, a.meanwhile = n, func() { a.deleteByHand(t) }
					}
					_, err := Peer(t.Context(), a.Cluster, b.Cluster, Options{}, Silent{})
					if isKilled && n <= x.writes && !errors.Is(err, errInjected) {
						t.Fatal(err)
					}
					a.mu.Lock()
					a.deadFrom, a.meanwhile = 0, nil
					a.mu.Unlock()
					b.mu.Lock()
					b.deadFrom = 0
					b.mu.Unlock()
					if isKilled {
						a.deleteByHand(t)
					}
					if err := ending.do(t, a, b); err != nil {
						t.Error(err)
					}
					asAfter(t, a, b, ending.name)
				})
			}
		}
	}
}
