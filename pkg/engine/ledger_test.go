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
					if err != nil || a.Phase != v1alpha1.PeerReserved {
						t.Errorf("claim %d: %+v, %v", i, a, err)
					}
					got[i] = a
				})
			}
			wg.Wait()
			cn := kubetest.ReadLedger(t, c)
			if want := n + len(objs); len(cn.Spec.Peers) != want {
				t.Errorf("want %d entries, got %d", want, len(cn.Spec.Peers))
			}
			names, indexes := map[string]bool{}, map[int32]bool{}
			for _, a := range cn.Spec.Peers {
				if names[a.Name] || indexes[a.Index] {
					t.Errorf("given out twice: %+v", a)
				}
				names[a.Name], indexes[a.Index] = true, true
			}
			for i, a := range got {
				if have := plan.Allocation(cn, fmt.Sprint("id-", i)); have == nil || !cmp.Equal(*have, a, kubetest.Compare) {
					t.Errorf("claim %d returned %+v, the ledger has %+v", i, a, have)
				}
			}
			// Claiming again returns the same entries.
			for i, want := range got {
				a, err := claimed(t.Context(), c, &kube.Cluster{Name: "renamed", ID: fmt.Sprint("id-", i)}, kubetest.Prefix("10.81.0.0/19"))
				if err != nil || !cmp.Equal(a, want, kubetest.Compare) {
					t.Errorf("claim %d again: %+v, %v", i, a, err)
				}
			}
			if after := kubetest.ReadLedger(t, c); after.ResourceVersion != cn.ResourceVersion {
				t.Error("the ledger was written though nothing changed")
			}
		})
	}
}

// TestConcurrentClaimsOfOnePeer: two commands for the same pair share an entry.
func TestConcurrentClaimsOfOnePeer(t *testing.T) {
	c := kubetest.NewCluster(t, "a", interceptor.Funcs{})
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if a, err := claimed(t.Context(), c, kubetest.PeerNamed("b"), ipam.DefaultInternal()); err != nil || a.Index != 0 || a.Name != "b" {
				t.Errorf("got %+v, %v", a, err)
			}
		})
	}
	wg.Wait()
	if cn := kubetest.ReadLedger(t, c); len(cn.Spec.Peers) != 1 {
		t.Errorf("the ledger has %+v", cn.Spec.Peers)
	}
}

var ledgerResource = schema.GroupResource{Group: "liqonet.io", Resource: "clusternetworks"}

func TestUpdateLedgerRetries(t *testing.T) {
	updates := 0
	c := kubetest.NewCluster(t, "a", interceptor.Funcs{
		Update: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.UpdateOption) error {
			if updates++; updates <= 3 {
				return apierrors.NewConflict(ledgerResource, "cluster", errors.New("somebody was faster"))
			}
			return c.Update(ctx, obj, opts...)
		},
	}, kubetest.LedgerOf("b"))
	calls := 0
	cn, err := UpdateLedger(t.Context(), c, func(cn *v1alpha1.ClusterNetwork) error {
		calls++
		if len(cn.Spec.Peers) != 1 {
			t.Errorf("a retry begins with what was not written: %+v", cn.Spec.Peers)
		}
		cn.Spec.Peers = nil
		return nil
	})
	if err != nil || updates != 4 || calls != 4 || len(cn.Spec.Peers) != 0 {
		t.Errorf("%d updates, %d calls, %+v, %v", updates, calls, cn, err)
	}
}

func TestUpdateLedgerErrors(t *testing.T) {
	failing := errors.New("broken")
	tests := []struct {
		name     string
		funcs    interceptor.Funcs
		objs     []client.Object
		keepsAll bool
		change   error
		want     error
	}{
		{name: "no ledger", want: kube.ErrUninstalling},
		{name: "the change fails", objs: []client.Object{kubetest.LedgerOf("b")}, change: failing, want: failing},
		{name: "nothing to change", objs: []client.Object{kubetest.LedgerOf("b")}, keepsAll: true, funcs: interceptor.Funcs{
			Update: func(context.Context, client.WithWatch, client.Object, ...client.UpdateOption) error { return failing },
		}},
		{name: "the update fails", objs: []client.Object{kubetest.LedgerOf("b")}, want: failing, funcs: interceptor.Funcs{
			Update: func(context.Context, client.WithWatch, client.Object, ...client.UpdateOption) error { return failing },
		}},
		{name: "the ledger is removed between", objs: []client.Object{kubetest.LedgerOf("b")}, want: kube.ErrUninstalling, funcs: interceptor.Funcs{
			Update: func(ctx context.Context, c client.WithWatch, obj client.Object, _ ...client.UpdateOption) error {
				obj.SetFinalizers(nil)
				return errors.Join(c.Update(ctx, obj), c.Delete(ctx, obj), apierrors.NewNotFound(ledgerResource, "cluster"))
			},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := kubetest.NewCluster(t, "a", tt.funcs, tt.objs...)
			_, err := UpdateLedger(t.Context(), c, func(cn *v1alpha1.ClusterNetwork) error {
				if !tt.keepsAll {
					cn.Spec.Peers = nil
				}
				return tt.change
			})
			if !errors.Is(err, tt.want) {
				t.Errorf("want %v, got %v", tt.want, err)
			}
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
		if _, err := claimed(t.Context(), c, kubetest.PeerNamed(peer), ipam.DefaultInternal()); !errors.Is(err, kube.ErrUninstalling) {
			t.Errorf("%s: want errUninstalling, got %v", peer, err)
		}
	}
	if diff := cmp.Diff(before, kubetest.ReadLedger(t, c), kubetest.Compare); diff != "" {
		t.Errorf("the ledger was changed:\n%s", diff)
	}
}

func TestClaimWhenFull(t *testing.T) {
	cn := plan.NewLedger(ipam.DefaultInternal())
	for i := range plan.MaxPeers {
		cn.Spec.Peers = append(cn.Spec.Peers, v1alpha1.PeerAllocation{ClusterID: fmt.Sprint(i), Name: fmt.Sprint("p", i), Index: int32(i)})
	}
	c := kubetest.NewCluster(t, "a", interceptor.Funcs{}, cn)
	if _, err := claimed(t.Context(), c, kubetest.PeerNamed("b"), ipam.DefaultInternal()); err == nil || !strings.Contains(err.Error(), "unpeer another") {
		t.Errorf("got %v", err)
	}
	if got := len(kubetest.ReadLedger(t, c).Spec.Peers); got != plan.MaxPeers {
		t.Errorf("the ledger has %d entries", got)
	}
}

// A ledger that the API server rejects does not count as one that another command created.
func TestLedgerIsRefused(t *testing.T) {
	refuse := interceptor.Funcs{Apply: func(context.Context, client.WithWatch, runtime.ApplyConfiguration, ...client.ApplyOption) error {
		return apierrors.NewInvalid(schema.GroupKind{Kind: "ClusterNetwork"}, "cluster", nil)
	}}
	a, b := kubetest.NewCluster(t, "a", refuse), kubetest.NewCluster(t, "b", interceptor.Funcs{})
	if _, err := claimed(t.Context(), a, b, ipam.DefaultInternal()); err == nil || !strings.Contains(err.Error(), "create ClusterNetwork") {
		t.Errorf("got %v", err)
	}
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
				if err := Release(t.Context(), c, "id-of-b"); err != nil {
					t.Fatal(err)
				}
				var after []string
				for _, a := range kubetest.ReadLedger(t, c).Spec.Peers {
					after = append(after, a.Name)
				}
				if diff := cmp.Diff(tt.after, after, kubetest.Compare); diff != "" {
					t.Errorf("entries:\n%s", diff)
				}
			}
		})
	}
	if err := Release(t.Context(), kubetest.NewCluster(t, "a", interceptor.Funcs{}), "id-of-b"); err != nil {
		t.Errorf("without a ledger: %v", err)
	}
}

func TestDefect1_24_ConflictsAreRetriedWithPauses(t *testing.T) {
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
		if _, err := UpdateLedger(t.Context(), c, func(cn *v1alpha1.ClusterNetwork) error {
			cn.Spec.Peers[0].Phase = v1alpha1.PeerActive
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		pauses := map[time.Duration]bool{}
		for i := range at[1:] {
			pauses[at[i+1].Sub(at[i])] = true
		}
		if len(at) != 6 || pauses[0] || len(pauses) < 2 {
			t.Errorf("%d attempts, with pauses of %v", len(at), pauses)
		}
	})
}
