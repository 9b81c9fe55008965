package peering

import (
	"context"
	"errors"
	"time"

	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/lock"
)

// peerLockTimeout is how long the lock of a peer cluster may take: its administrators must not hold up a command.
const peerLockTimeout = 20 * time.Second

// locks are those of both clusters of a pair. The first one is the user's own, and is waited for.
func locks(a, b *Cluster, isExclusive bool) []lock.Cluster {
	own, other := a.lock(b.ID), b.lock(a.ID)
	own.Exclusive, other.Exclusive, other.Within = isExclusive, isExclusive, peerLockTimeout
	return []lock.Cluster{own, other}
}

// lock is that of the peering with a peer; of none if it is empty.
func (c *Cluster) lock(peerID string) lock.Cluster {
	return lock.Cluster{API: c.Client, ID: c.ID, Name: c.Name, Peer: peerID}
}

// underLocks does something while this command holds locks.
func underLocks(ctx context.Context, verb string, wait lock.Wait, all []lock.Cluster, do func(context.Context) error) error {
	locked, held, err := lock.Take(ctx, verb, wait, all...)
	if busy := (*lock.Busy)(nil); errors.As(err, &busy) {
		return &Error{
			Kind: Busy, Cluster: busy.Cluster, Doing: verb, Err: busy,
			Hint: "run the command again when that one has ended; the lock of one that was killed is free after " + lock.Expiry.String(),
		}
	}
	lost := err
	if err == nil {
		defer held.Release()
		err = failure.Caught(func() error { return do(locked) })
		lost = lock.Lost(locked)
	} else if !errors.Is(err, lock.ErrOvertaken) {
		return (&Cluster{}).fail("take the lock", err)
	}
	if err != nil && lost != nil {
		return &Error{Kind: Busy, Doing: verb, Err: lost, Hint: "see kubectl liqonet status, and run the command again if it is still wanted"}
	}
	return err
}

// quietly waits without a word. Where the time is over, the error says for whom.
func quietly(ctx context.Context, _ string, until func(context.Context) error) error {
	return until(ctx)
}
