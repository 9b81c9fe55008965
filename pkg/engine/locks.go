package engine

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/lock"
)

// peerLockTimeout limits the wait for the lock of a peer cluster: its administrators must not be able to block a command.
const peerLockTimeout = kube.ResponseTimeout

// PairLocks returns the locks of both clusters of a pair. The first is the user's own, which is waited for without a limit.
func PairLocks(a, b *kube.Cluster, isExclusive bool) []lock.Cluster {
	own, other := LockFor(a, b.ID), LockFor(b, a.ID)
	own.Exclusive, other.Exclusive, other.Timeout = isExclusive, isExclusive, peerLockTimeout
	return []lock.Cluster{own, other}
}

// LockFor returns the lock of the peering with a peer, or of the whole cluster if peerID is empty.
func LockFor(c *kube.Cluster, peerID string) lock.Cluster {
	return lock.Cluster{API: c.Client, ID: c.ID, Name: c.Name, Peer: peerID, Exclusive: peerID == "", Responsive: c.Responsive}
}

// WithLocks runs fn while this command holds the locks.
func WithLocks(ctx context.Context, verb string, wait lock.Wait, all []lock.Cluster, fn func(context.Context) error) error {
	locked, held, err := lock.Acquire(ctx, verb, wait, all...)
	if busy := (*lock.Busy)(nil); errors.As(err, &busy) {
		hint := "run the command again when that one has ended; the lock of one that was killed is free after " + lock.Expiry.String()
		return (&kube.Cluster{Name: busy.Cluster}).Errorf(kube.Busy, verb, hint, "%w", busy)
	}
	lost := err
	if err == nil {
		defer held.Release()
		err = failure.RunSteps(locked, func(ctx context.Context) error { return failure.ForEach(ctx, held.OvertakenClusters(), touch) }, fn)
		lost = lock.Lost(locked)
	} else if !errors.Is(err, lock.ErrOvertaken) {
		return (&kube.Cluster{}).Wrap("take the lock", err)
	}
	if err != nil && lost != nil {
		return &kube.Error{Kind: kube.Busy, Op: verb, Err: lost, Hint: "see kubectl liqonet status, and run the command again if it is still wanted"}
	}
	return kube.ContextError(ctx, err)
}

// idleLockTimeout limits the wait for the lock of an idle cluster.
const idleLockTimeout = time.Second

// ifIdle runs do under the cluster's lock if it is needed and no other command is alive there. Checking that may take
// a while, and blocks no other command. Errors are ignored: the next command tries again.
func ifIdle(ctx context.Context, c *kube.Cluster, verb string, needed func(context.Context) (bool, error), do func(context.Context) error) {
	_ = failure.RecoverPanic(func() error {
		if is, err := needed(ctx); !is || err != nil {
			return err
		}
		all := LockFor(c, "")
		all.IfIdle, all.Timeout = true, idleLockTimeout
		return WithLocks(ctx, verb, kube.Quiet{}.Step, []lock.Cluster{all}, func(ctx context.Context) error {
			if is, err := needed(ctx); !is || err != nil {
				return err
			}
			return do(ctx)
		})
	})
}

// touch changes all of our objects in a cluster where this command took over a lock. The previous holder may still be about
// to write or delete objects that it read, which then conflicts. Objects that the user may not change are skipped.
func touch(ctx context.Context, cluster lock.Cluster) error {
	c := &kube.Cluster{Client: cluster.API.(client.WithWatch), Name: cluster.Name}
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{"liqonet.io/touched":%q}}}`, rand.Text()))
	others := []client.ObjectList{&v1alpha1.PeeringList{}, &v1alpha1.ClusterNetworkList{}, &apiextensionsv1.CustomResourceDefinitionList{}}
	return failure.ForEach(ctx, slices.Concat(Workloads(), Accounts(), others), func(ctx context.Context, list client.ObjectList) error {
		objs, err := c.ListManaged(ctx, nil, list)
		for _, obj := range objs {
			err = errors.Join(err, client.IgnoreNotFound(c.Client.Patch(ctx, obj, patch, kube.FieldOwner)))
		}
		return c.Wrap("touch the objects that another command has read", kube.IgnoreForbidden(err))
	})
}

// HeldLocks returns the holders of the cluster's locks. It returns nothing if the user may not read them.
func HeldLocks(ctx context.Context, c *kube.Cluster) ([]lock.Holder, error) {
	held, err := lock.Holders(ctx, c.Client, false)
	return held, c.Wrap("read the locks", kube.IgnoreForbidden(err))
}
