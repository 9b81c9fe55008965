// Package engine changes one cluster, under a lock. It reserves an entry in the ledger, installs agents, creates keys, and
// replaces agents while packets pass. It journals changes, rolls them back, and removes one peering or everything.
//
// Out of scope: what concerns two clusters, and in which order (pkg/peering).
package engine

import (
	"cmp"
	"context"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/samber/lo"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/discovery"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
)

// Side is one of the two clusters during a run.
type Side struct {
	*kube.Cluster
	// Index is 0 or 1, as in the plan and in the result.
	Index int
	// Facts are what was last read from the cluster, Intent is what is wanted.
	Facts  plan.Facts
	Intent plan.Intent
	// AdoptNamespace accepts a namespace that someone else created.
	AdoptNamespace bool
	Peering        Peering
	Health         Health
	Changes        Changes
}

// Peering is what a run found of its peering in a cluster, and what it did about it.
type Peering struct {
	// WasActive is true if the peering worked before this command, Removed if the command failed and removed it.
	WasActive, Removed bool
	// RangesChanged is true if this command gave the peer other ranges.
	RangesChanged bool
	// Identity is the public key of the cluster's identity, once it is installed.
	Identity string
	// ConflictingRoutes are ranges of the overlay that nodes already use for something else.
	ConflictingRoutes []netip.Prefix
}

// Health is which packets have to pass during a run, and for how long they may fail.
type Health struct {
	// Baseline are the paths that passed packets before agents were replaced. LossTimeout is how long they may fail since, 0 for
	// lossTimeout. StallTimeout is how long the replacement may make no progress, 0 for any time.
	Baseline                  paths
	LossTimeout, StallTimeout time.Duration
	// PriorFailures is what did not work before this command.
	PriorFailures PriorFailures
}

// Changes are what a run changes in a cluster.
type Changes struct {
	// Journal holds the former state of changed objects.
	Journal *journal
	// Conflicts are the fields that other managers have changed.
	Conflicts fieldConflicts

	mu sync.Mutex
	// List has one entry for each change, as "cluster: object".
	List []string
}

// NewSide starts a run for a cluster.
func NewSide(c *kube.Cluster, index int) *Side {
	return &Side{Cluster: c, Index: index, Changes: Changes{Journal: &journal{sem: make(chan struct{}, 1)}}}
}

// RecordChange records a change of the run.
func (s *Side) RecordChange(what string) {
	s.Changes.mu.Lock()
	defer s.Changes.mu.Unlock()
	if what = s.Name + ": " + what; !slices.Contains(s.Changes.List, what) {
		s.Changes.List = append(s.Changes.List, what)
	}
}

// Options are the user's overrides. The zero value means automatic decisions, which keep earlier ones.
type Options struct {
	// Image of the agents. Empty: the current image of the cluster's agents if they have this version, else the
	// Cluster's DefaultImage.
	Image string
	// Overlay, WireGuard and ServiceType are defaults for clusters without an entry in Clusters.
	Overlay, WireGuard, ServiceType string
	// Gateways are the nodes for gateways, unless set in Clusters.
	Gateways v1alpha1.GatewayPlacement
	// NodeMetrics is the address of node agents' metrics, unless set in Clusters.
	NodeMetrics string
	// Planes is the number of gateway pairs of a peering, 0 for automatic.
	Planes int
	// PlanesMode says how nodes use several planes: see plan.Overrides.
	PlanesMode v1alpha1.PlanesMode
	// Server is the ID of the cluster whose gateways listen. Empty for automatic.
	Server string
	// ConnectTimeout is how long one gateway may try to reach the other before the roles are swapped, unless the user chose
	// them. 0 for the default.
	ConnectTimeout time.Duration
	// KeepOverlayKey keeps the overlay's key even if departed nodes know it: it is replaced later.
	KeepOverlayKey bool
	// Replace accepts a cluster in place of one that was peered, without proof of its identity.
	Replace bool
	// Fingerprints are the required fingerprints of clusters' identities, by their IDs.
	Fingerprints map[string]string
	// AdoptNamespace accepts a namespace liqonet-system that someone else created.
	AdoptNamespace bool
	// KeepFailed keeps the objects of a new peering that fails, until the next command.
	KeepFailed bool
	// Clusters are overrides for single clusters, by their IDs.
	Clusters map[string]ClusterOptions
	// Facts override discovered facts, by the cluster's ID.
	Facts map[string]discovery.Overrides
}

// ClusterOptions are the user's overrides for one cluster.
type ClusterOptions = plan.Overrides

// For returns the overrides for a cluster.
func (o Options) For(id string) plan.Overrides {
	c := o.Clusters[id]
	c.Image = cmp.Or(c.Image, o.Image)
	c.Overlay = cmp.Or(c.Overlay, o.Overlay)
	c.WireGuard = cmp.Or(c.WireGuard, o.WireGuard)
	c.ServiceType = cmp.Or(c.ServiceType, o.ServiceType)
	c.NodeMetrics = cmp.Or(c.NodeMetrics, o.NodeMetrics)
	if c.Gateways.NodeSelector == nil {
		c.Gateways.NodeSelector = o.Gateways.NodeSelector
	}
	if c.Gateways.Tolerations == nil {
		c.Gateways.Tolerations = o.Gateways.Tolerations
	}
	c.Server, c.Planes, c.PlanesMode = o.Server == id, o.Planes, o.PlanesMode
	return c
}

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

// RestoreRanges restores the peer's former ranges, which were kept free, and the identity of a peer that was replaced.
func RestoreRanges(ctx context.Context, c *kube.Cluster, peerID string) error {
	_, err := UpdateEntry(ctx, c, peerID, func(entry *v1alpha1.PeerAllocation) error {
		if entry.Previous != nil {
			if entry.Previous.IdentityKey != "" {
				entry.IdentityKey, entry.Hosts = entry.Previous.IdentityKey, entry.Previous.Hosts
			}
			entry.Pods, entry.ExternalCIDR, entry.Previous = entry.Previous.Pods, entry.Previous.ExternalCIDR, nil
		}
		return nil
	})
	return ignoreRemoved(err)
}

// ForgetPrevious releases what an active entry had before a command that is complete.
func ForgetPrevious(entry *v1alpha1.PeerAllocation) error {
	if entry.Active() {
		entry.Previous = nil
	}
	return nil
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

// ReleaseEntry removes the peer's entry from the ledger.
func ReleaseEntry(ctx context.Context, c *kube.Cluster, peerID string) error {
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
func UpdateLedger(ctx context.Context, c *kube.Cluster, fn func(*v1alpha1.ClusterNetwork) error) (cn *v1alpha1.ClusterNetwork, err error) {
	err = kube.RetryOnConflict(func() error {
		if cn, err = c.ReadLedger(ctx); err != nil {
			return err
		}
		if cn == nil || !cn.DeletionTimestamp.IsZero() {
			return kube.ErrUninstalling
		}
		before := cn.DeepCopy()
		if err := fn(cn); err != nil || reflect.DeepEqual(before, cn) {
			return err
		}
		err := c.Client.Update(ctx, cn, kube.FieldOwner)
		if kube.IsNotFound(err) {
			return kube.ErrUninstalling
		}
		return c.Wrap("update ClusterNetwork "+cn.Name, err)
	})
	return cn, err
}

// ensureAllocation ensures that the ledger exists, has an entry for the peer, and records which nodes will know the overlay's
// key. The custom resource definitions must exist. changed reports whether it wrote anything.
func ensureAllocation(ctx context.Context, c *kube.Cluster, peer *kube.Cluster, planned v1alpha1.ClusterNetworkSpec) (cn *v1alpha1.ClusterNetwork, changed bool, err error) {
	if cn, err = c.ReadLedger(ctx); cn == nil && err == nil {
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
			return c.Wrap("claim an entry of the ledger", err)
		}
		cn.Spec.Peers, changed = append(cn.Spec.Peers, a), true
		return nil
	})
	return cn, changed, err
}

// createLedger creates an empty ledger if there is none. It uses apply instead of create: for two seconds after a
// custom resource definition is established, the API server delays create requests, but no others.
func createLedger(ctx context.Context, c *kube.Cluster, internal netip.Prefix) error {
	u := manifests.ToApply(plan.NewLedger(c.ID, internal))
	err := c.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), kube.FieldOwner)
	switch {
	case kube.IsNotFound(err):
		return kube.ErrUninstalling
	case apierrors.IsConflict(err), apierrors.IsInvalid(err):
		// Another command may have created it with another range.
		if cn, readErr := c.ReadLedger(ctx); cn != nil || readErr != nil {
			return readErr
		}
	}
	return c.Wrap("create ClusterNetwork "+v1alpha1.ClusterNetworkName, err)
}
