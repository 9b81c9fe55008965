package engine

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// TestConcurrentClaims: concurrent commands never share an index or a name.
func TestConcurrentClaims(t *testing.T) {
	const n = 20
	for name, objs := range map[string][]client.Object{"no ledger yet": nil, "a ledger": {kubetest.LedgerOf("dev")}} {
		t.Run(name, func(t *testing.T) {
			c := kubetest.NewCluster(t, "a", interceptor.Funcs{}, objs...)
			got := make([]v1alpha1.PeerAllocation, n)
			var wg sync.WaitGroup
			for i := range n {
				wg.Go(func() {
					// Each name is used by two clusters.
					a, err := claimed(t.Context(), c, &kube.Cluster{Name: fmt.Sprint("dev-", i/2), ID: fmt.Sprint("id-", i)}, ipam.DefaultInternal())
					kit.ErrorIf(t, err != nil || a.Phase != v1alpha1.PeerReserved, "claim %d: %+v, %v", i, a, err)
					got[i] = a
				})
			}
			wg.Wait()
			cn := kubetest.ReadLedger(t, c)
			kit.Check(t, "len(cn.Spec.Peers)", len(cn.Spec.Peers), n+len(objs))
			names, indexes := map[string]bool{}, map[int32]bool{}
			for _, a := range cn.Spec.Peers {
				kit.ErrorIf(t, names[a.Name] || indexes[a.Index], "given out twice: %+v", a)
				names[a.Name], indexes[a.Index] = true, true
			}
			for i, a := range got {
				have := plan.Allocation(cn, fmt.Sprint("id-", i))
				kit.ErrorIf(t, have == nil || !cmp.Equal(*have, a, kit.Compare), "claim %d returned %+v, the ledger has %+v", i, a, have)
			}
			// Claiming again returns the same entries.
			for i, want := range got {
				a, err := claimed(t.Context(), c, &kube.Cluster{Name: "renamed", ID: fmt.Sprint("id-", i)}, kubetest.Prefix("10.81.0.0/19"))
				kit.ErrorIf(t, err != nil || !cmp.Equal(a, want, kit.Compare), "claim %d again: %+v, %v", i, a, err)
			}
			after := kubetest.ReadLedger(t, c)
			kit.ErrorIf(t, after.ResourceVersion != cn.ResourceVersion, "the ledger was written though nothing changed")
		})
	}
}

var ledgerResource = schema.GroupResource{Group: "liqonet.io", Resource: "clusternetworks"}

// Conflicts are retried, each time with what the API has by then, and with different pauses.
func TestUpdateLedgerRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Time
		c := kubetest.NewCluster(t, "a", interceptor.Funcs{
			Update: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.UpdateOption) error {
				if at = append(at, time.Now()); len(at) < 6 {
					return apierrors.NewConflict(ledgerResource, obj.GetName(), errors.New("somebody was first"))
				}
				return c.Update(ctx, obj, opts...)
			},
		}, kubetest.LedgerOf("b"))
		cn, err := UpdateLedger(t.Context(), c, func(cn *v1alpha1.ClusterNetwork) error {
			kit.ErrorIf(t, len(cn.Spec.Peers) != 1, "a retry begins with what was not written: %+v", cn.Spec.Peers)
			cn.Spec.Peers = nil
			return nil
		})
		kit.ErrorIf(t, err != nil || len(cn.Spec.Peers) != 0, "%+v, %v", cn, err)
		pauses := map[time.Duration]bool{}
		for i := range at[1:] {
			pauses[at[i+1].Sub(at[i])] = true
		}
		kit.ErrorIf(t, len(at) != 6 || pauses[0] || len(pauses) < 2, "%d attempts, with pauses of %v", len(at), pauses)
	})
}

func TestUpdateLedgerErrors(t *testing.T) {
	failing := errors.New("broken")
	there := []client.Object{kubetest.LedgerOf("b")}
	refuses := interceptor.Funcs{Update: func(context.Context, client.WithWatch, client.Object, ...client.UpdateOption) error { return failing }}
	removes := interceptor.Funcs{Update: func(ctx context.Context, c client.WithWatch, obj client.Object, _ ...client.UpdateOption) error {
		obj.SetFinalizers(nil)
		return errors.Join(c.Update(ctx, obj), c.Delete(ctx, obj), apierrors.NewNotFound(ledgerResource, "cluster"))
	}}
	tests := []struct {
		name     string
		funcs    interceptor.Funcs
		objs     []client.Object
		keepsAll bool
		change   error
		want     error
	}{
		{name: "no ledger", want: kube.ErrUninstalling},
		{name: "the change fails", objs: there, change: failing, want: failing},
		{name: "nothing to change", objs: there, keepsAll: true, funcs: refuses},
		{name: "the update fails", objs: there, want: failing, funcs: refuses},
		{name: "the ledger is removed between", objs: there, want: kube.ErrUninstalling, funcs: removes},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := kubetest.NewCluster(t, "a", tt.funcs, tt.objs...) // which copies them
			_, err := UpdateLedger(t.Context(), c, func(cn *v1alpha1.ClusterNetwork) error {
				if !tt.keepsAll {
					cn.Spec.Peers = nil
				}
				return tt.change
			})
			kit.ErrorIf(t, !errors.Is(err, tt.want), "want %v, got %v", tt.want, err)
		})
	}
}

// claimed claims an entry in a cluster without nodes.
func claimed(ctx context.Context, c *kube.Cluster, peer *kube.Cluster, internal netip.Prefix) (a v1alpha1.PeerAllocation, err error) {
	cn, _, err := ensureAllocation(ctx, c, peer, v1alpha1.ClusterNetworkSpec{InternalCIDR: v1alpha1.CIDR{Prefix: internal}})
	if err == nil {
		a = *plan.Allocation(cn, peer.ID)
	}
	return a, err
}

func TestClaimOnTerminatingLedger(t *testing.T) {
	c := kubetest.NewCluster(t, "a", interceptor.Funcs{}, kubetest.LedgerOf("b"))
	kubetest.Mark(t, c)
	before := kubetest.ReadLedger(t, c)
	for _, peer := range []string{"b", "c"} {
		_, err := claimed(t.Context(), c, kubetest.PeerNamed(peer), ipam.DefaultInternal())
		kit.ErrorIf(t, !errors.Is(err, kube.ErrUninstalling), "%s: want errUninstalling, got %v", peer, err)
	}
	kit.Check(t, "the ledger was changed", kubetest.ReadLedger(t, c), before, kit.Compare)
}

func TestClaimWhenFull(t *testing.T) {
	cn := plan.NewLedger("", ipam.DefaultInternal())
	for i := range plan.MaxPeers {
		cn.Spec.Peers = append(cn.Spec.Peers, v1alpha1.PeerAllocation{ClusterID: fmt.Sprint(i), Name: fmt.Sprint("p", i), Index: int32(i)})
	}
	c := kubetest.NewCluster(t, "a", interceptor.Funcs{}, cn)
	_, err := claimed(t.Context(), c, kubetest.PeerNamed("b"), ipam.DefaultInternal())
	kit.ErrorIf(t, err == nil || !strings.Contains(err.Error(), "unpeer another"), "got %v", err)
	kit.Check(t, "the ledger", len(kubetest.ReadLedger(t, c).Spec.Peers), plan.MaxPeers)
}

// A ledger that the API server rejects does not count as one that another command created.
func TestLedgerIsRefused(t *testing.T) {
	refuse := interceptor.Funcs{Apply: func(context.Context, client.WithWatch, runtime.ApplyConfiguration, ...client.ApplyOption) error {
		return apierrors.NewInvalid(schema.GroupKind{Kind: "ClusterNetwork"}, "cluster", nil)
	}}
	a, b := kubetest.NewCluster(t, "a", refuse), kubetest.NewCluster(t, "b", interceptor.Funcs{})
	_, err := claimed(t.Context(), a, b, ipam.DefaultInternal())
	kit.ErrorIf(t, err == nil || !strings.Contains(err.Error(), "create ClusterNetwork"), "got %v", err)
}

func TestRelease(t *testing.T) {
	for name, tt := range map[string]struct{ have, after []string }{
		"one of two":            {[]string{"b", "c"}, []string{"c"}},
		"the last one":          {[]string{"b"}, nil},
		"not there, others are": {[]string{"c"}, []string{"c"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := kubetest.NewCluster(t, "a", interceptor.Funcs{}, kubetest.LedgerOf(tt.have...))
			for range 2 {
				kit.NoError(t, ReleaseEntry(t.Context(), c, "id-of-b"))
				var after []string
				for _, a := range kubetest.ReadLedger(t, c).Spec.Peers {
					after = append(after, a.Name)
				}
				kit.Check(t, "entries", after, tt.after, kit.Compare)
			}
		})
	}
	err := ReleaseEntry(t.Context(), kubetest.NewCluster(t, "a", interceptor.Funcs{}), "id-of-b")
	kit.ErrorIf(t, err != nil, "without a ledger: %v", err)
}
