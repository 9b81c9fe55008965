package engine

import (
	"context"
	"net/netip"
	"reflect"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
)

// Deactivate records in the ledger that the peering is being removed. A peering made from then on counts as new: the
// identities of its clusters are not compared.
func Deactivate(ctx context.Context, c *kube.Cluster, peerID string) error {
	_, err := UpdateEntry(ctx, c, peerID, func(entry *v1alpha1.PeerAllocation) error {
		if entry.Active() {
			entry.Phase = v1alpha1.PeerReserved
		}
		return nil
	})
	return ignoreRemoved(err)
}

// RestoreRanges restores the peer's former ranges, which were kept free.
func RestoreRanges(ctx context.Context, c *kube.Cluster, peerID string) error {
	_, err := UpdateEntry(ctx, c, peerID, func(entry *v1alpha1.PeerAllocation) error {
		if entry.Previous != nil {
			entry.Pods, entry.ExternalCIDR, entry.Previous = entry.Previous.Pods, entry.Previous.ExternalCIDR, nil
		}
		return nil
	})
	return ignoreRemoved(err)
}

// UpdateEntry is UpdateLedger for the peer's entry. If there is none, the error is ErrUnpeered.
func UpdateEntry(
	ctx context.Context, c *kube.Cluster, peerID string, change func(*v1alpha1.PeerAllocation) error,
) (entry *v1alpha1.PeerAllocation, err error) {
	_, err = UpdateLedger(ctx, c, func(cn *v1alpha1.ClusterNetwork) error {
		if entry = plan.Allocation(cn, peerID); entry == nil {
			return kube.ErrUnpeered
		}
		return change(entry)
	})
	return entry, err
}

// Release removes the peer's entry from the ledger.
func Release(ctx context.Context, c *kube.Cluster, peerID string) error {
	_, err := UpdateLedger(ctx, c, func(cn *v1alpha1.ClusterNetwork) error {
		cn.Spec.Peers = slices.DeleteFunc(cn.Spec.Peers, func(a v1alpha1.PeerAllocation) bool { return a.ClusterID == peerID })
		return nil
	})
	return ignoreRemoved(err)
}

// ignoreRemoved ignores the error that another command removes the peering, or all of liqonet, including the ledger and keys.
func ignoreRemoved(err error) error {
	return lo.Ternary(kube.IsRemoved(kube.UninstallingIfTerminating(err)), nil, err)
}

// UpdateLedger reads, modifies and writes the ledger, unless nothing changes, and retries on conflicts. It returns what is there then.
func UpdateLedger(ctx context.Context, c *kube.Cluster, do func(*v1alpha1.ClusterNetwork) error) (cn *v1alpha1.ClusterNetwork, err error) {
	err = kube.RetryOnConflict(func() error {
		if cn, err = c.Ledger(ctx); err != nil {
			return err
		}
		if cn == nil || !cn.DeletionTimestamp.IsZero() {
			return kube.ErrUninstalling
		}
		before := cn.DeepCopy()
		if err := do(cn); err != nil || reflect.DeepEqual(before, cn) {
			return err
		}
		err := c.Client.Update(ctx, cn, client.FieldOwner(v1alpha1.FieldManager))
		if kube.Absent(err) {
			return kube.ErrUninstalling
		}
		return c.Fail("update ClusterNetwork "+cn.Name, err)
	})
	return cn, err
}

// ensureAllocation ensures that the ledger exists, has an entry for the peer, and records which nodes will know the overlay's
// key. The custom resource definitions must exist. changed reports whether it wrote anything.
func ensureAllocation(ctx context.Context, c *kube.Cluster, peer *kube.Cluster, planned v1alpha1.ClusterNetworkSpec) (cn *v1alpha1.ClusterNetwork, changed bool, err error) {
	if cn, err = c.Ledger(ctx); cn == nil && err == nil {
		err = createLedger(ctx, c, planned.InternalCIDR.Prefix)
	}
	if err != nil {
		return nil, false, err
	}
	cn, err = UpdateLedger(ctx, c, func(cn *v1alpha1.ClusterNetwork) error {
		changed = plan.RecordOverlayKey(cn, planned.OverlayKey)
		if plan.Allocation(cn, peer.ID) != nil {
			return nil
		}
		a, err := plan.NewAllocation(cn, peer.ID, peer.Name)
		if err != nil {
			return c.Fail("claim an entry of the ledger", err)
		}
		cn.Spec.Peers, changed = append(cn.Spec.Peers, a), true
		return nil
	})
	return cn, changed, err
}

// createLedger creates an empty ledger if there is none. It uses apply instead of create: for two seconds after a
// custom resource definition is established, the API server delays create requests, but no others.
func createLedger(ctx context.Context, c *kube.Cluster, internal netip.Prefix) error {
	u := manifests.ToApply(plan.NewLedger(internal))
	err := c.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(v1alpha1.FieldManager))
	switch {
	case kube.Absent(err):
		return kube.ErrUninstalling
	case apierrors.IsConflict(err), apierrors.IsInvalid(err):
		// Another command may have created it with another range.
		if cn, readErr := c.Ledger(ctx); cn != nil || readErr != nil {
			return readErr
		}
	}
	return c.Fail("create ClusterNetwork "+v1alpha1.ClusterNetworkName, err)
}
