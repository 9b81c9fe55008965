package engine

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/lock"
)

// peerLockTimeout is how long the lock of a peer cluster may take: its administrators must not hold up a command.
const peerLockTimeout = kube.LongestSilence

// PairLocks are those of both clusters of a pair. The first one is the user's own, and is waited for.
func PairLocks(a, b *kube.Cluster, isExclusive bool) []lock.Cluster {
	own, other := LockOf(a, b.ID), LockOf(b, a.ID)
	own.Exclusive, other.Exclusive, other.Within = isExclusive, isExclusive, peerLockTimeout
	return []lock.Cluster{own, other}
}

// LockOf is that of the peering with a peer; of none if it is empty.
func LockOf(c *kube.Cluster, peerID string) lock.Cluster {
	return lock.Cluster{API: c.Client, ID: c.ID, Name: c.Name, Peer: peerID, Answers: c.Answers}
}

// UnderLocks does something while this command holds locks.
func UnderLocks(ctx context.Context, verb string, wait lock.Wait, all []lock.Cluster, do func(context.Context) error) error {
	locked, held, err := lock.Take(ctx, verb, wait, all...)
	if busy := (*lock.Busy)(nil); errors.As(err, &busy) {
		return &kube.Error{
			Kind: kube.Busy, Cluster: busy.Cluster, Doing: verb, Err: busy,
			Hint: "run the command again when that one has ended; the lock of one that was killed is free after " + lock.Expiry.String(),
		}
	}
	lost := err
	if err == nil {
		defer held.Release()
		err = failure.Caught(func() error {
			for _, o := range held.Overtook() {
				if err := touch(locked, (&kube.Cluster{Client: o.API.(client.WithWatch), Name: o.Name})); err != nil {
					return err
				}
			}
			return do(locked)
		})
		lost = lock.Lost(locked)
	} else if !errors.Is(err, lock.ErrOvertaken) {
		return (&kube.Cluster{}).Fail("take the lock", err)
	}
	if err != nil && lost != nil {
		return &kube.Error{Kind: kube.Busy, Doing: verb, Err: lost, Hint: "see kubectl liqonet status, and run the command again if it is still wanted"}
	}
	return err
}

// idlePatience is for the cluster's lock, where nobody has worked a moment before.
const idlePatience = time.Second

// ifIdle does something under the cluster's lock if it is needed, and if no other command works there. Those that were killed do not count, which may
// take a while to find out. Nobody waits for that. An error is none of the command at the end of which this is done: the next one tries again.
func ifIdle(ctx context.Context, c *kube.Cluster, verb string, isNeeded func(context.Context) (bool, error), do func(context.Context) error) {
	_ = failure.Caught(func() error {
		if is, err := isNeeded(ctx); !is || err != nil {
			return err
		}
		all := LockOf(c, "")
		all.Exclusive, all.IfIdle, all.Within = true, true, idlePatience
		return UnderLocks(ctx, verb, kube.Quietly, []lock.Cluster{all}, func(ctx context.Context) error {
			if is, err := isNeeded(ctx); !is || err != nil {
				return err
			}
			return do(ctx)
		})
	})
}

// touch changes all of ours in a cluster where another command was overtaken. That one may still be about to write, or to delete, what it
// has read before. What somebody may not change stays.
func touch(ctx context.Context, c *kube.Cluster) error {
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{"liqonet.io/touched":%q}}}`, rand.Text()))
	g, ctx := failure.NewGroup(ctx)
	for _, list := range append(append(Workloads(), Accounts()...), &v1alpha1.PeeringList{}, &v1alpha1.ClusterNetworkList{}, &apiextensionsv1.CustomResourceDefinitionList{}) {
		g.Go(func() error {
			objs, err := c.Ours(ctx, list, nil)
			for _, obj := range objs {
				err = errors.Join(err, client.IgnoreNotFound(c.Client.Patch(ctx, obj, patch, client.FieldOwner(v1alpha1.FieldManager))))
			}
			if apierrors.IsForbidden(err) {
				return nil
			}
			return c.Fail("change what a command that was overtaken knows", err)
		})
	}
	return g.Wait()
}

// HeldLocks says who holds a lock of the cluster. It is empty where the user may not read them.
func HeldLocks(ctx context.Context, c *kube.Cluster) (out []string, err error) {
	held, err := lock.Holders(ctx, c.Client, false)
	if apierrors.IsForbidden(err) {
		return nil, nil
	}
	for _, h := range held {
		out = append(out, h.String())
	}
	return out, c.Fail("read the locks", err)
}
