package workload

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/liqonet/liqonet/test/lab"
)

const (
	// settlePause is the time between two looks that must agree.
	settlePause = time.Second
	// restorePause is the time between two looks at what has to change.
	restorePause = 100 * time.Millisecond
)

// Snapshots are those of several nodes, by the node's name.
type Snapshots map[string]Snapshot

// TakeSnapshots looks at all nodes.
func TakeSnapshots(ctx context.Context, nodes []*lab.Node) (Snapshots, error) {
	taken := make([]Snapshot, len(nodes))
	g, ctx := errgroup.WithContext(ctx)
	for i, n := range nodes {
		g.Go(func() (err error) {
			taken[i], err = TakeSnapshot(ctx, n)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	out := Snapshots{}
	for i, n := range nodes {
		out[n.Name] = taken[i]
	}
	return out, nil
}

// SettledSnapshots looks at all nodes until nothing changes any more: after pods
// have started, the kernel still checks their IPv6 addresses, and kube-proxy
// writes its rules.
func SettledSnapshots(ctx context.Context, nodes []*lab.Node) (Snapshots, error) {
	var last Snapshots
	diff := ""
	for {
		now, err := TakeSnapshots(ctx, nodes)
		if err != nil {
			return nil, err
		}
		if diff = last.Diff(now); last != nil && diff == "" && !now.tentative() {
			return now, nil
		}
		last = now
		if err := pause(ctx, settlePause); err != nil {
			return nil, fmt.Errorf("wait until the nodes are settled: %w: %s", err, diff)
		}
	}
}

// Restored looks at all nodes until they are as they were, and returns what
// still differs when ctx ends; empty if nothing does.
func (s Snapshots) Restored(ctx context.Context, nodes []*lab.Node) (string, error) {
	for {
		now, err := TakeSnapshots(context.WithoutCancel(ctx), nodes)
		if err != nil {
			return "", err
		}
		diff := s.Diff(now)
		if diff == "" || pause(ctx, restorePause) != nil {
			return diff, nil
		}
	}
}

// Diff says what differs, by node; empty if nothing does.
func (s Snapshots) Diff(after Snapshots) string {
	var b strings.Builder
	for node, before := range s {
		if diff := before.Diff(after[node]); diff != "" {
			fmt.Fprintf(&b, "%s:\n%s", node, diff)
		}
	}
	return b.String()
}

func (s Snapshots) tentative() bool {
	for _, one := range s {
		if strings.Contains(one["addresses"], "tentative") {
			return true
		}
	}
	return false
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
