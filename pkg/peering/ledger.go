package peering

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
)

// errUninstalling says that the ledger is being removed by another command.
var errUninstalling = errors.New("liqonet is being removed from the cluster")

// ledger reads the cluster's ledger; nil where liqonet is not installed.
func (c *Cluster) ledger(ctx context.Context) (*v1alpha1.ClusterNetwork, error) {
	return get[v1alpha1.ClusterNetwork](ctx, c, "", v1alpha1.ClusterNetworkName)
}

// entry reads the peer's entry of the ledger, nil if there is none.
func (c *Cluster) entry(ctx context.Context, peerID string) (*v1alpha1.PeerAllocation, error) {
	cn, err := c.ledger(ctx)
	if cn == nil {
		return nil, err
	}
	return plan.Allocation(cn, peerID), nil
}

// absent says that an object, or its whole kind, is not there.
func absent(err error) bool {
	return apierrors.IsNotFound(err) || meta.IsNoMatchError(err)
}

// updateLedger changes the ledger by read, modify and write until nobody else
// came between. It returns what was written. change may return errUnchanged.
func (c *Cluster) updateLedger(ctx context.Context, change func(*v1alpha1.ClusterNetwork) error) (cn *v1alpha1.ClusterNetwork, err error) {
	err = retryOnConflict(func() error {
		if cn, err = c.ledger(ctx); err != nil {
			return err
		}
		if cn == nil || !cn.DeletionTimestamp.IsZero() {
			return errUninstalling
		}
		if err := change(cn); err != nil {
			return err
		}
		err := c.Client.Update(ctx, cn, client.FieldOwner(v1alpha1.FieldManager))
		if absent(err) {
			return errUninstalling
		}
		return c.fail("update ClusterNetwork "+cn.Name, err)
	})
	if err != nil && !errors.Is(err, errUnchanged) {
		return nil, err
	}
	return cn, nil
}

// errUnpeered says that the ledger's entry of the peer is gone, or is going.
var errUnpeered = errors.New("the clusters are being unpeered by another command")

var errUnchanged = errors.New("unchanged")

// claim makes sure that the ledger exists and has an entry for the peer, and that it says
// which nodes will know the overlay's key. The custom resource definitions have to be there.
// changed says whether that was written now.
func (c *Cluster) claim(ctx context.Context, peer *Cluster, planned v1alpha1.ClusterNetworkSpec) (cn *v1alpha1.ClusterNetwork, changed bool, err error) {
	if cn, err = c.ledger(ctx); cn == nil && err == nil {
		err = c.createLedger(ctx, planned.InternalCIDR.Prefix)
	}
	if err != nil {
		return nil, false, err
	}
	cn, err = c.updateLedger(ctx, func(cn *v1alpha1.ClusterNetwork) error {
		changed = plan.NoteOverlayKey(cn, planned.OverlayKey)
		if plan.Allocation(cn, peer.ID) != nil {
			if changed {
				return nil
			}
			return errUnchanged
		}
		a, err := plan.NewAllocation(cn, peer.ID, peer.Name)
		if err != nil {
			return c.fail("claim an entry of the ledger", err)
		}
		cn.Spec.Peers, changed = append(cn.Spec.Peers, a), true
		return nil
	})
	return cn, changed, err
}

// createLedger makes an empty ledger where there is none. It applies it instead
// of creating it: for two seconds after a custom resource definition was
// established the API server holds up every create request, but no other one.
func (c *Cluster) createLedger(ctx context.Context, internal netip.Prefix) error {
	u, err := manifests.ToApply(plan.NewLedger(internal))
	if err != nil {
		return err
	}
	err = c.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(v1alpha1.FieldManager))
	switch {
	case absent(err):
		return errUninstalling
	case apierrors.IsConflict(err), apierrors.IsInvalid(err):
		// Somebody else made it meanwhile, with another range?
		if cn, readErr := c.ledger(ctx); cn != nil || readErr != nil {
			return readErr
		}
	}
	return c.fail("create ClusterNetwork "+v1alpha1.ClusterNetworkName, err)
}

// release takes the peer's entry out of the ledger.
func (c *Cluster) release(ctx context.Context, peerID string) error {
	_, err := c.updateLedger(ctx, func(cn *v1alpha1.ClusterNetwork) error {
		if plan.Allocation(cn, peerID) == nil {
			return errUnchanged
		}
		cn.Spec.Peers = slices.DeleteFunc(cn.Spec.Peers, func(a v1alpha1.PeerAllocation) bool { return a.ClusterID == peerID })
		return nil
	})
	if errors.Is(err, errUninstalling) {
		return nil
	}
	return err
}

// isLost says that what a command works on is not there any more.
func isLost(err error) bool {
	return errors.Is(err, errUnpeered) || errors.Is(err, errUninstalling)
}
