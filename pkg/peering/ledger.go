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

// claimGoing is the claim of an entry whose command takes it back.
const claimGoing = "going"

var errUnchanged = errors.New("unchanged")

// claim makes sure that the ledger exists and has an entry for the peer, and that it says
// which nodes will know the overlay's key. An entry that is made bears the claim, the ID of
// the command. The custom resource definitions have to be there. noted says that the nodes
// were not all in the ledger.
func (c *Cluster) claim(ctx context.Context, peer *Cluster, claim string, planned v1alpha1.ClusterNetworkSpec) (cn *v1alpha1.ClusterNetwork, noted bool, err error) {
	if cn, err = c.ledger(ctx); cn == nil && err == nil {
		err = c.createLedger(ctx, planned.InternalCIDR.Prefix)
	}
	if err != nil {
		return nil, false, err
	}
	cn, err = c.updateLedger(ctx, func(cn *v1alpha1.ClusterNetwork) error {
		noted = plan.NoteOverlayKey(cn, planned.OverlayKey)
		if plan.Allocation(cn, peer.ID) != nil {
			if noted {
				return nil
			}
			return errUnchanged
		}
		a, err := plan.NewAllocation(cn, peer.ID, peer.Name)
		if err != nil {
			return c.fail("claim an entry of the ledger", err)
		}
		a.Claim = claim
		cn.Spec.Peers = append(cn.Spec.Peers, a)
		return nil
	})
	return cn, noted, err
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
	case apierrors.IsForbidden(err):
		// While the kind is being deleted, the API server says this as well.
		if going := c.checkDefinitions(ctx); errors.Is(going, errUninstalling) {
			return going
		}
	case apierrors.IsConflict(err), apierrors.IsInvalid(err):
		// Somebody else made it meanwhile, with another range?
		if cn, readErr := c.ledger(ctx); cn != nil || readErr != nil {
			return readErr
		}
	}
	return c.fail("create ClusterNetwork "+v1alpha1.ClusterNetworkName, err)
}

// takeBack marks an entry that the command with this claim has made as going. It
// says false if the entry is another one's by now, or the peering works.
func (c *Cluster) takeBack(ctx context.Context, peerID, claim string) (bool, error) {
	mine := true
	_, err := c.updateLedger(ctx, func(cn *v1alpha1.ClusterNetwork) error {
		entry := plan.Allocation(cn, peerID)
		mine = entry == nil || entry.Claim == claimGoing || entry.Claim == claim && !entry.Established
		if entry == nil || entry.Claim == claimGoing || !mine {
			return errUnchanged
		}
		entry.Claim = claimGoing
		return nil
	})
	if errors.Is(err, errUninstalling) {
		return true, nil
	}
	return mine, err
}

// release takes the peer's entry out of the ledger. Where it was the last one
// it marks the ledger as being removed, in a way that fails if somebody claimed
// an entry meanwhile, and says so.
func (c *Cluster) release(ctx context.Context, peerID string) (last bool, err error) {
	err = retryOnConflict(func() error {
		cn, err := c.updateLedger(ctx, func(cn *v1alpha1.ClusterNetwork) error {
			if plan.Allocation(cn, peerID) == nil {
				return errUnchanged
			}
			cn.Spec.Peers = slices.DeleteFunc(cn.Spec.Peers, func(a v1alpha1.PeerAllocation) bool { return a.ClusterID == peerID })
			return nil
		})
		if errors.Is(err, errUninstalling) {
			last = true
			return nil
		}
		if last = err == nil && len(cn.Spec.Peers) == 0; !last {
			return err
		}
		err = c.Client.Delete(ctx, cn, client.Preconditions{UID: &cn.UID, ResourceVersion: &cn.ResourceVersion})
		if absent(err) {
			return nil
		}
		return c.fail("delete ClusterNetwork "+cn.Name, err)
	})
	return last, err
}
