package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// Thousands of nodes have a Lease each. They are deleted in parallel, up to a limit.
func TestDeletesAtOnce(t *testing.T) {
	ours := map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager}
	var leases []client.Object
	for i := range 3 * failure.MaxParallel {
		leases = append(leases, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: fmt.Sprint(v1alpha1.NodeLeasePrefix, i), Labels: ours}})
	}
	var now, most atomic.Int32
	all := make(chan struct{}) // closed when the limit is reached
	enough := sync.OnceFunc(func() { close(all) })
	c := kubetest.NewCluster(t, "a", interceptor.Funcs{Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		if n == failure.MaxParallel {
			enough()
		}
		select {
		case <-all:
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Second):
			return errors.New("nobody deletes another one")
		}
		return c.Delete(ctx, obj, opts...)
	}}, leases...)
	kit.NoError(t, deleteLists(t.Context(), c, client.MatchingLabels{}, &coordinationv1.LeaseList{}))
	var left coordinationv1.LeaseList
	if err := c.Client.List(t.Context(), &left); err != nil || len(left.Items) > 0 || most.Load() != failure.MaxParallel {
		t.Errorf("%d at most at once, %d are left, %v", most.Load(), len(left.Items), err)
	}
}
