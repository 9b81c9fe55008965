package peering

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// interrupter interrupts a command. Its moments are the beginnings and ends of steps.
type interrupter struct {
	// at is the number of the moment, from 1 on, 0 for none. moments is how many there were.
	at        int32
	moments   atomic.Int32
	interrupt func()
}

func (i *interrupter) Step(ctx context.Context, _ string, do func(context.Context) error) error {
	i.pass()
	defer i.pass()
	return do(ctx)
}

func (i *interrupter) pass() {
	if i.moments.Add(1) == i.at {
		i.interrupt()
	}
}

// A command that is interrupted, whenever that is, says so, and what to do.
func TestInterruptedSaysWhatToDo(t *testing.T) {
	kit.NotShort(t)
	t.Parallel()
	for name, command := range map[string]struct {
		sites func(*testing.T) (a, b *Site)
		run   func(ctx context.Context, a, b *Site, r kube.Reporter) error
	}{
		"peer": {func(t *testing.T) (a, b *Site) { return TwoSites(t) }, func(ctx context.Context, a, b *Site, r kube.Reporter) error {
			return kit.Err(Peer(ctx, a.Cluster, b.Cluster, engine.Options{}, r))
		}},
		"peer again": {Peered, func(ctx context.Context, a, b *Site, r kube.Reporter) error {
			return kit.Err(Peer(ctx, a.Cluster, b.Cluster, engine.Options{Planes: 1}, r))
		}},
		"unpeer": {Peered, func(ctx context.Context, a, b *Site, r kube.Reporter) error {
			_, _, err := Unpeer(ctx, a.Cluster, b.Cluster, r)
			return err
		}},
		"rotate-keys": {Peered, func(ctx context.Context, a, b *Site, r kube.Reporter) error {
			return kit.Err(Rotate(ctx, a.Cluster, b.Cluster, Rotation{}, r))
		}},
		"upgrade": {Peered, func(ctx context.Context, a, b *Site, r kube.Reporter) error {
			return kit.Err(UpgradeAll(ctx, []*kube.Cluster{a.Cluster, b.Cluster}, Newer(), r))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			interrupted := errors.New("interrupted")
			try := func(t *testing.T, at int) (moments int, err error) {
				a, b := command.sites(t)
				ctx, end := context.WithCancelCause(t.Context())
				i := &interrupter{at: int32(at), interrupt: func() { end(interrupted) }}
				err = command.run(ctx, a, b, i)
				return int(i.moments.Load()), err
			}
			var moments int
			synctest.Test(t, func(t *testing.T) {
				var err error
				moments, err = try(t, 0)
				kit.FatalIf(t, err != nil || moments < 2, "%d moments, %v", moments, err)
			})
			for _, at := range append(kubetest.Some(t, lo.RangeFrom(2, moments-1), 2, moments), 1) {
				kit.Bubble(t, fmt.Sprint("moment ", at), func(t *testing.T) {
					_, err := try(t, at)
					var e *kube.Error
					kit.ErrorIf(t, err == nil && at == 1, "it was not interrupted")
					kit.ErrorIf(t, err != nil && (!errors.Is(err, interrupted) || !errors.As(err, &e) || e.Hint == ""), "got %v", err)
				})
			}
		})
	}
}

// A command that is interrupted while it waits for its turn says what to do.
func TestInterruptedBeforeItsTurn(t *testing.T) {
	t.Parallel()
	a, b := TwoSites(t)
	ctx, interrupt := context.WithCancelCause(t.Context())
	interrupted := errors.New("interrupted")
	reporter := then{"Reading both clusters": func() { interrupt(interrupted) }}
	_, err := peerClusters(ctx, a.Cluster, b.Cluster, engine.Options{}, reporter, ticket{ready: make(chan struct{})})
	var e *kube.Error
	kit.ErrorIf(t, !errors.Is(err, interrupted) || !errors.As(err, &e) || e.Hint == "", "got %v", err)
	LeavesNothing(t, a, b)
}
