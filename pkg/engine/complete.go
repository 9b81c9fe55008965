package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/liqonet/liqonet/pkg/kube"
)

const (
	// rollOutTimeout limits the completion of a rollout by an unrelated command. The next command continues it.
	rollOutTimeout = time.Minute
	// stallTimeout limits how long that waits while no node gets its agent, such as one that starts no pods. A node may
	// have to pull the image.
	stallTimeout = 20 * time.Second
)

// CompleteIfPossible completes the rollout of a killed command. The DaemonSet would replace all agents at once, without checking probes.
// So each command does it in groups after its own work, under the cluster's lock. Of concurrent commands, the last one does it.
func CompleteIfPossible(ctx context.Context, c *kube.Cluster, r kube.Reporter) {
	ctx, cancel := context.WithTimeoutCause(ctx, rollOutTimeout, fmt.Errorf("not done after %s; the next command continues", rollOutTimeout))
	defer cancel()
	isNeeded := func(ctx context.Context) (bool, error) {
		ds, err := c.NodeAgents(ctx)
		return ds != nil && isOnDelete(ds), err
	}
	ifIdle(ctx, c, "complete a rollout", isNeeded, func(ctx context.Context) error {
		return r.Step(ctx, c.Name+": completing the rollout of another command", func(ctx context.Context) error { return completeRollOut(ctx, c) })
	})
}

// completeRollOut is the part under the lock.
func completeRollOut(ctx context.Context, c *kube.Cluster) (err error) {
	s := NewSide(c, 0)
	s.Health.StallTimeout = stallTimeout
	if s.Facts.Network.Nodes, err = AgentNodes(ctx, c); err != nil {
		return err
	}
	if s.Health.Baseline, _, err = BaselinePaths(ctx, c, 0); err != nil {
		return err
	}
	ready := sets.New(slices.Concat(s.Facts.NodeGroups()...)...)
	_, outdated, err := outdated(ctx, c, sets.List(ready))
	if err != nil {
		return err
	}
	for _, pod := range outdated {
		ready.Delete(pod.(*corev1.Pod).Spec.NodeName)
	}
	s.Health.Baseline.expectFrom(sets.List(ready))
	if err := s.replaceNodeAgents(ctx, kube.Quiet{}.Step); err != nil {
		return err
	}
	return kube.RetryOnConflict(func() error {
		ds, err := c.NodeAgents(ctx)
		if ds == nil || err != nil {
			return err
		}
		before := ds.DeepCopy()
		ds.Spec.UpdateStrategy.Type = appsv1.RollingUpdateDaemonSetStrategyType
		return patchAgents(ctx, c, before, ds)
	})
}
