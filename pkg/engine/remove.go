package engine

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/samber/lo"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
)

// Removed reports what Unpeer found and did in one cluster.
type Removed struct {
	// Peering is true if there was anything of the peering.
	Peering bool
	// Agents is true if it was the last peering, so that the agents were removed too.
	Agents bool
	// Skipped are nodes that are not ready, whose kernels could not be cleaned.
	Skipped []string
	// PeerNames are the names of the cluster's peers if none has the given name. They matter if the peer itself is not
	// contacted.
	PeerNames []string
}

// EndTolerance is the longest interval between the ends of both sides that counts as simultaneous.
const EndTolerance = time.Second

// RemovePeer removes the peering and its ledger entry, under its lock.
func RemovePeer(ctx context.Context, c *kube.Cluster, peerID string) (r Removed, err error) {
	entry, err := c.ReadLedgerEntry(ctx, peerID)
	if entry == nil || err != nil {
		return r, err
	}
	if err := Deactivate(ctx, c, peerID); err != nil {
		return r, err
	}
	if err := RevertInterrupted(ctx, c, peerID, entry.Name, true); err != nil {
		return r, err
	}
	r.Peering = true
	if r.Skipped, err = removePeering(ctx, c, entry.Name); err != nil {
		return r, err
	}
	if entry.ServicesID != "" {
		if err := DeleteReceived(ctx, c, entry.Name); err != nil {
			return r, err
		}
	}
	return r, ReleaseEntry(ctx, c, peerID)
}

// RemoveUnused removes liqonet from a cluster without peerings, and reports whether anything was installed. In other
// clusters it retires unused overlay keys. The wait for the lock is limited by lockTimeout, 0 for no limit.
func RemoveUnused(ctx context.Context, c *kube.Cluster, lockTimeout time.Duration, reporter kube.Reporter) (was bool, err error) {
	isUsed, err := hasPeers(ctx, c)
	if err != nil {
		return false, err
	}
	if isUsed {
		TryCompleteOthers(ctx, c, reporter)
		return false, RemoveUnusedServices(ctx, c, reporter)
	}
	// A command may have been killed before it reserved anything.
	if was, err = isInstalled(ctx, c); err != nil {
		return false, err
	}
	if was {
		if err := uninstallUnlessUsed(ctx, c, lockTimeout, reporter); errors.Is(err, errInUse) {
			return false, nil
		} else if err != nil {
			return true, err
		}
	}
	return was, c.Wrap("delete what is left of locks", lock.DeleteOvertakenLeases(ctx, c.Client))
}

// uninstallUnlessUsed uninstalls liqonet under the cluster's lock. It does not wait for a command that is creating a peering.
func uninstallUnlessUsed(ctx context.Context, c *kube.Cluster, lockTimeout time.Duration, reporter kube.Reporter) error {
	var looking sync.WaitGroup
	defer looking.Wait()
	waiting, stopWaiting := context.WithCancelCause(ctx)
	defer stopWaiting(nil)
	looking.Go(func() {
		_ = c.Await(waiting, "check for peerings", "", nil, func(kube.Objects) (string, error) {
			if isUsed, err := hasPeers(waiting, c); err != nil || !isUsed {
				return "there are none", nil
			}
			stopWaiting(errInUse)
			return "", nil
		})
	})
	all := LockFor(c, "")
	all.Timeout = lockTimeout
	err := WithLocks(waiting, lock.Unpeer, reporter.Step, []lock.Cluster{all}, func(locked context.Context) error {
		if isUsed, err := hasPeers(locked, c); isUsed || err != nil {
			return cmp.Or(err, errInUse)
		}
		return uninstall(locked, c)
	})
	return lo.Ternary(errors.Is(context.Cause(waiting), errInUse), errInUse, err)
}

// errInUse means that a cluster has peerings.
var errInUse = errors.New("the cluster has peerings")

// hasPeers reports whether the ledger has peers, and is not being removed.
func hasPeers(ctx context.Context, c *kube.Cluster) (bool, error) {
	cn, err := c.ReadLedger(ctx)
	return cn != nil && cn.DeletionTimestamp.IsZero() && len(cn.Spec.Peers) > 0, err
}

// CompleteRemoval completes the removal of liqonet that a killed command, or a user with kubectl, has started.
func CompleteRemoval(ctx context.Context, c *kube.Cluster, r kube.Reporter) error {
	cn, err := c.ReadLedger(ctx)
	if err != nil {
		return err
	}
	crds, err := c.ListManaged(ctx, nil, &apiextensionsv1.CustomResourceDefinitionList{})
	if err != nil {
		return err
	}
	isDeleting := func(o client.Object) bool { return !o.GetDeletionTimestamp().IsZero() }
	if cn != nil && isDeleting(cn) || slices.ContainsFunc(crds, isDeleting) {
		if _, err := RemoveUnused(ctx, c, 0, r); err != nil {
			return err
		}
	}
	// A user may have deleted only the namespace.
	ns, err := kube.Get[corev1.Namespace](ctx, c, "", v1alpha1.Namespace)
	if ns == nil || err != nil || !isDeleting(ns) {
		return err
	}
	return c.AwaitDeleted(ctx, ns)
}

// removePeering removes the objects of one peering, and waits until the kernels of all ready nodes are clean.
func removePeering(ctx context.Context, c *kube.Cluster, name string) (skipped []string, err error) {
	if err := deletePeerings(ctx, c, name); err != nil {
		return nil, err
	}
	g, gctx := failure.NewGroup(ctx)
	g.Go(func() error { return DeleteAll(gctx, c, client.MatchingLabels{v1alpha1.LabelPeering: name}) })
	g.Go(func() (err error) {
		skipped, err = AwaitNodesClean(gctx, c, name)
		return err
	})
	if err := g.Wait(); err != nil {
		return skipped, err
	}
	return skipped, DeleteHistory(ctx, c, name)
}

// deletePeerings deletes the Peering of that name, or all Peerings if it is empty.
func deletePeerings(ctx context.Context, c *kube.Cluster, name string) error {
	var list v1alpha1.PeeringList
	if err := c.List(ctx, &list); err != nil {
		return err
	}
	return c.DeleteEach(ctx, lo.FilterMap(list.Items, func(p v1alpha1.Peering, _ int) (client.Object, bool) {
		return &p, name == "" || p.Name == name
	}))
}

// AwaitNodesClean waits until no node's agent reports a gateway of the peering, or of any peering if name is empty. If the
// agents were removed, it reinstalls them: only they can clean up the kernels.
func AwaitNodesClean(ctx context.Context, c *kube.Cluster, name string) (skipped []string, err error) {
	of := []client.ObjectList{&v1alpha1.NodeNetworkList{}, &corev1.NodeList{}, &appsv1.DaemonSetList{}}
	err = c.Await(ctx, "wait until the nodes' kernels are clean", c.PodsHint(), of, func(o kube.Objects) (string, error) {
		ready, _ := kube.NodesByReadiness(kube.OfKind[*corev1.Node](o))
		unclean := lo.FilterMap(o.Reports(), func(n v1alpha1.NodeNetwork, _ int) (string, bool) {
			return n.Name, slices.ContainsFunc(n.Status.Gateways, func(g v1alpha1.NodeGateway) bool { return name == "" || g.PeeringName == name })
		})
		byReadiness := lo.GroupBy(unclean, func(n string) bool { return kube.ContainsSorted(ready, n) })
		waiting := byReadiness[true]
		skipped = byReadiness[false]
		if len(waiting) == 0 {
			return "", nil
		}
		if kube.ByName[*appsv1.DaemonSet](o, v1alpha1.NodeAgentName) == nil {
			cn, err := c.ReadLedger(ctx)
			if err == nil {
				key := plan.OverlayKey(cn)
				err = NewSide(c, 0).applyAgents(ctx, &plan.NodeAgents{Agents: manifests.Agents{Image: c.DefaultImage}, OverlayKeys: []int32{key}}, key)
			}
			if errors.Is(err, kube.ErrUninstalling) {
				return "namespace " + v1alpha1.Namespace + " is being deleted", nil
			}
			return "the node agents were removed, and are installed again", err
		}
		return "still there on " + kube.JoinFirst(5, waiting), nil
	})
	return skipped, err
}

// isInstalled reports whether the cluster has any of our objects.
func isInstalled(ctx context.Context, c *kube.Cluster) (bool, error) {
	for _, list := range append(Accounts(), &apiextensionsv1.CustomResourceDefinitionList{}) {
		if objs, err := c.ListManaged(ctx, nil, list); err != nil || len(objs) > 0 {
			return true, err
		}
	}
	ns, err := kube.Get[corev1.Namespace](ctx, c, "", v1alpha1.Namespace)
	return ns != nil && kube.IsManaged(ns), err
}

// uninstall removes all of our objects from a cluster, under its lock. The ledger is marked first and deleted last,
// so that the next command completes an interrupted removal.
func uninstall(ctx context.Context, c *kube.Cluster) error {
	return failure.RunSteps(ctx,
		func(ctx context.Context) error { return startLedgerDeletion(ctx, c) },
		func(ctx context.Context) error {
			was, err := isServicesInstalled(ctx, c)
			if !was || err != nil {
				return err
			}
			return removeServices(ctx, c)
		},
		func(ctx context.Context) error { return deletePeerings(ctx, c, "") },
		func(ctx context.Context) error {
			_, err := AwaitNodesClean(ctx, c, "")
			return err
		},
		func(ctx context.Context) error { return DeleteAll(ctx, c, nil) },
		func(ctx context.Context) error { return deleteEvents(ctx, c, "") },
		func(ctx context.Context) error { return RemoveNamespace(ctx, c) },
		func(ctx context.Context) error { return DeleteMisplacedEvents(ctx, c) },
		func(ctx context.Context) error { return removeLedgerFinalizer(ctx, c) },
		func(ctx context.Context) error { return deleteCRDs(ctx, c) },
	)
}

// startLedgerDeletion deletes the ledger, which stays until its finalizer is removed.
func startLedgerDeletion(ctx context.Context, c *kube.Cluster) error {
	cn, err := c.ReadLedger(ctx)
	if cn == nil || err != nil || !cn.DeletionTimestamp.IsZero() {
		return err
	}
	return c.Delete(ctx, cn)
}

// deleteCRDs deletes the custom resource definitions, and waits until they are gone.
func deleteCRDs(ctx context.Context, c *kube.Cluster) error {
	if err := deleteServicesCRDs(ctx, c); err != nil {
		return err
	}
	crds, err := c.ListManaged(ctx, nil, &apiextensionsv1.CustomResourceDefinitionList{})
	if err := cmp.Or(err, c.DeleteEach(ctx, crds)); err != nil {
		return err
	}
	return failure.ForEach(ctx, crds, c.AwaitDeleted)
}

// removeLedgerFinalizer removes the finalizer of the ledger.
func removeLedgerFinalizer(ctx context.Context, c *kube.Cluster) error {
	return kube.RetryOnConflict(func() error {
		cn, err := c.ReadLedger(ctx)
		if cn == nil || err != nil {
			return err
		}
		cn.Finalizers = slices.DeleteFunc(cn.Finalizers, func(f string) bool { return f == v1alpha1.UninstallFinalizer })
		return c.Wrap("remove the finalizer of ClusterNetwork "+cn.Name, kube.IgnoreAbsent(c.Client.Update(ctx, cn)))
	})
}
