package peering_test

import (
	"context"
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
	"github.com/liqonet/liqonet/pkg/diagnose"
	"github.com/liqonet/liqonet/pkg/doctor"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/peering"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/status"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// belongings returns the objects with the label of a peering except its Peering, and those of them that it does not own.
func belongings(w *peering.Site, t *testing.T) (all, ownerless []string) {
	t.Helper()
	var owner client.Object = &v1alpha1.Peering{}
	if peerings := peering.List[v1alpha1.PeeringList](t, w).Items; len(peerings) > 0 {
		owner = &peerings[0]
	}
	for _, of := range append(append(engine.Workloads(), engine.Accounts()...), &coordinationv1.LeaseList{}, &corev1.ConfigMapList{}) {
		kit.NoError(t, w.Raw.List(t.Context(), of, client.HasLabels{v1alpha1.LabelPeering}))
		objs := kube.Items(of)
		for _, o := range objs {
			all = append(all, kube.Describe(o))
			if !status.Owns(owner.GetUID(), o) {
				ownerless = append(ownerless, kube.Describe(o))
			}
			for _, ref := range o.GetOwnerReferences() {
				if ref.Kind != "Peering" || ref.Name != w.Peer.Name || ref.Controller != nil || ref.BlockOwnerDeletion != nil {
					t.Errorf("%s has the owner %+v", kube.Describe(o), ref)
				}
			}
		}
	}
	return all, ownerless
}

// collect does what the garbage collector eventually does.
func collect(w *peering.Site, t *testing.T) {
	t.Helper()
	kit.NoError(t, w.Raw.CollectGarbage())
}

// deleteByHand does what kubectl delete peering does, and reports whether there was one.
func deleteByHand(w *peering.Site, t *testing.T) bool {
	t.Helper()
	w.Mu.Lock()
	w.IsCollected = true
	w.Mu.Unlock()
	err := w.Raw.Delete(t.Context(), &v1alpha1.Peering{ObjectMeta: metav1.ObjectMeta{Name: w.Peer.Name}})
	kit.FatalIf(t, client.IgnoreNotFound(err) != nil && !kube.IsNotFound(err), "%v", err)
	collect(w, t)
	return err == nil
}

// Objects that were restored without owners, as Velero does, or with stale owners, are reported, and get owners again.
func TestOwnersAreSetAgain(t *testing.T) {
	kit.Slow(t)
	const dead = `[{"apiVersion":"liqonet.io/v1alpha1","kind":"Peering","name":"b","uid":"00000000-0000-0000-0000-000000000000"}]`
	for _, tt := range []struct {
		restored string
		engine.Options
	}{{"null", engine.Options{}}, {"null", engine.Options{Replace: true}}, {dead, engine.Options{Replace: true}}} {
		t.Run(fmt.Sprint(tt.restored, tt.Replace), func(t *testing.T) {
			t.Parallel()
			a, b := peering.Peered(t)
			for _, of := range append(append(engine.Workloads(), engine.Accounts()...), &coordinationv1.LeaseList{}, &corev1.ConfigMapList{}) {
				kit.NoError(t, a.Raw.List(t.Context(), of, client.HasLabels{v1alpha1.LabelPeering}))
				objs := kube.Items(of)
				for _, obj := range objs {
					patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"ownerReferences":`+tt.restored+`}}`))
					kit.NoError(t, a.Raw.Patch(t.Context(), obj, patch))
				}
			}
			views, err := status.Views(t.Context(), a.Cluster)
			if err != nil || len(views) != 1 || !strings.Contains(views[0].Message, "without their owner") || !strings.Contains(views[0].Message, "Secret gateway-b-0-1") {
				t.Errorf("%+v, %v", views, err)
			}
			if got := peering.Changes(peering.DryRun(t, a, b, engine.Options{})); !slices.Contains(got, "a change Deployment gateway-b-0") || !slices.Contains(got, "a change Secret gateway-b-0-1") {
				t.Errorf("a dry run shows %q", got)
			}
			peering.MustPeer(t, a, b, tt.Options)
			collect(a, t) // stale owners are removed if there is a live one
			all, ownerless := belongings(a, t)
			kit.ErrorIf(t, len(ownerless) > 0 || len(all) < 13, "of %q these have no owner: %q", all, ownerless)
			peering.Settled(t, a, b, engine.Options{})
		})
	}
}

// endings are a user's next commands.
var endings = []string{"peer", "unpeer", "doctor --fix"}

// fix is doctor --fix.
func fix(ctx context.Context, clusters ...*kube.Cluster) error {
	facts, err := diagnose.ReadFacts(ctx, clusters, nil, kube.Quiet{})
	if err == nil {
		_, err = diagnose.Fix(ctx, clusters, facts, doctor.Examine(facts), kube.Quiet{})
	}
	return err
}

// init adds the commands that depend on the package.
func init() {
	peering.Next["doctor --fix"] = func(ctx context.Context, a, b, _ *kube.Cluster) error { return fix(ctx, a, b) }
	peering.Next["doctor --fix of one cluster"] = func(ctx context.Context, a, _, _ *kube.Cluster) error { return fix(ctx, a) }
}

// asAfter fails unless the clusters are as they must be after a command.
func asAfter(t *testing.T, a, b *peering.Site, ending string) {
	t.Helper()
	if ending == "unpeer" {
		peering.LeavesNothing(t, a, b)
		return
	}
	for _, w := range []*peering.Site{a, b} {
		entry := plan.Allocation(kubetest.ReadLedger(t, w.Cluster), w.Peer.ID)
		_, ownerless := belongings(w, t)
		kit.ErrorIf(t, len(ownerless) > 0 || entry == nil || !entry.Active(), "%s: without owner: %q; entry %+v", w.Name, ownerless, entry)
		collect(w, t)
	}
	peering.Settled(t, a, b, engine.Options{})
}

// A user deletes a Peering that works. Only what belongs to it is deleted. The ledger keeps its ranges, status reports the
// deletion, and the next command reuses or releases the entry, although the keys of the gateways are gone.
func TestPeeringIsDeletedByHand(t *testing.T) {
	kit.Slow(t)
	for _, ending := range endings {
		t.Run(ending, func(t *testing.T) {
			t.Parallel()
			a, b := peering.Peered(t)
			ledger, all := kubetest.ReadLedger(t, a.Cluster).Spec, a.Ours(t)
			kit.FatalIf(t, !deleteByHand(a, t), "there was no Peering")
			if left, _ := belongings(a, t); len(left) > 0 {
				t.Errorf("the collector leaves %v", left)
			}
			left := a.Ours(t)
			for _, o := range all {
				isOfPeering := strings.Contains(o, "gateway-b") || o == "Peering /b"
				kit.ErrorIf(t, !isOfPeering && !slices.Contains(left, o), "the collector took %s", o)
			}
			entry := plan.Allocation(kubetest.ReadLedger(t, a.Cluster), b.ID)
			if want := ledger.Peers[0]; entry == nil || entry.Pods[0] != want.Pods[0] || entry.ExternalCIDR != want.ExternalCIDR || !entry.Active() {
				t.Errorf("the ledger has %+v, want %+v", entry, want)
			}
			views, err := status.Views(t.Context(), a.Cluster)
			if err != nil || len(views) != 1 || views[0].State != status.Disconnected || !strings.Contains(views[0].Message, "Peering b was deleted by hand") {
				t.Errorf("%+v, %v", views, err)
			}
			kit.CheckNoError(t, peering.Next[ending](t.Context(), a.Cluster, b.Cluster, nil))
			asAfter(t, a, b, ending)
			if now := plan.Allocation(&v1alpha1.ClusterNetwork{Spec: ledger}, b.ID); ending != "unpeer" && now.Index != kubetest.ReadLedger(t, a.Cluster).Spec.Peers[0].Index {
				t.Errorf("the entry was not used again: %+v", now)
			}
		})
	}
}

// Conversely, an unrecognized peer gets nothing of the rest.
func TestStrangerAfterPeeringIsDeletedByHand(t *testing.T) {
	kit.Play(t)
	a := peering.NewSite(t, "a", "10.244.0.0/16", "172.18.1.11")
	c := a.PeeredWith(t, "c", "10.30.0.0/16", "172.18.3.11")
	deleteByHand(a, t)
	b := peering.Impostor(t, a)
	kubetest.Fails(t, kit.Err(peering.Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{})), kube.Identity)
	// An unpeer was killed after its first write.
	kit.NoError(t, engine.Deactivate(t.Context(), a.Cluster, c.ID))
	host := v1alpha1.ExposedHost{Address: v1alpha1.IP{Addr: kubetest.Prefix("192.0.2.7/32").Addr()}, Number: 1}
	kit.Must(engine.UpdateLedger(t.Context(), a.Cluster, func(cn *v1alpha1.ClusterNetwork) error {
		cn.Spec.Peers[0].Hosts = append(cn.Spec.Peers[0].Hosts, host)
		return nil
	}))(t)
	peering.MustPeer(t, a, b, engine.Options{})
	entry := kubetest.ReadLedger(t, a.Cluster).Spec.Peers[0]
	kit.ErrorIf(t, len(entry.Hosts) > 0, "the stranger reaches what the peer was shown: %+v", entry)
}

// A Peering is deleted after each write of the command that creates it. The next command completes or removes
// everything.
func TestPeeringIsDeletedDuringCommand(t *testing.T) {
	kit.NotShort(t)
	t.Parallel()
	x, y := peering.TwoSites(t)
	peering.MustPeer(t, x, y, engine.Options{})
	step := 1
	if !kit.Full() {
		step = max(x.Writes/4, 1)
	}
	for n := 1; n <= x.Writes+1; n += step {
		for _, isKilled := range []bool{false, true} {
			for i, ending := range endings[:2] {
				if !kit.Full() && (n/step+i)%2 == 0 {
					continue
				}
				t.Run(fmt.Sprintf("before write %d, killed %t, %s", n, isKilled, ending), func(t *testing.T) {
					t.Parallel()
					a, b := peering.TwoSites(t)
					if isKilled {
						a.DeadFrom, b.DeadFrom = n, n
					} else {
						a.BeforeWriteAt, a.BeforeWrite = n, func() { deleteByHand(a, t) }
					}
					_, err := peering.Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{})
					kit.FatalIf(t, isKilled && n <= x.Writes && !errors.Is(err, peering.ErrInjected), "%v", err)
					a.Mu.Lock()
					a.DeadFrom, a.BeforeWrite = 0, nil
					a.Mu.Unlock()
					b.Mu.Lock()
					b.DeadFrom = 0
					b.Mu.Unlock()
					if isKilled {
						deleteByHand(a, t)
					}
					kit.CheckNoError(t, peering.Next[ending](t.Context(), a.Cluster, b.Cluster, nil))
					asAfter(t, a, b, ending)
				})
			}
		}
	}
}
