package engine

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/samber/lo"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/status"
)

// retireTimeout limits how long node agents may take to give up an unused overlay key. After that the key stays until
// another command ends.
const retireTimeout = time.Minute

// RetireUnusedKeys removes overlay keys that no link uses from node agents, and deletes them. The caller holds the
// cluster's lock exclusively, as another command may be about to use a key.
//
// made is the key that this command created, 0 for none, and departed are the UIDs of nodes that had left before.
func RetireUnusedKeys(ctx context.Context, c *kube.Cluster, made int32, departed []string, idle PriorFailures) error {
	for {
		unused, err := withdrawUnusedKeys(ctx, c)
		if err == nil && len(unused) > 0 {
			err = AwaitAgents(ctx, c, "wait for the node agents", c.PodsHint(), Agents{PriorFailures: idle}, func(o kube.Objects, _ status.Heartbeats, missing string) (string, error) {
				if kube.ByName[*appsv1.DaemonSet](o, v1alpha1.NodeAgentName) == nil {
					return "", kube.ErrUninstalling
				}
				return missing, nil
			})
		}
		if err != nil || len(unused) == 0 {
			return ignoreUninstalled(err)
		}
		if err := deleteUnusedKeys(ctx, c, unused, made, departed); err != nil {
			return ignoreUninstalled(err)
		}
	}
}

// RetireIfPossible is RetireUnusedKeys for a command that has done its work: an unused key must not make it fail, or
// wait for long. Every command calls it at the end, as any peering may have been the last to use a key. Of concurrent
// commands, the last one retires keys.
func RetireIfPossible(ctx context.Context, c *kube.Cluster) {
	ctx, cancel := c.Isolated(ctx, retireTimeout)
	defer cancel()
	isNeeded := func(ctx context.Context) (bool, error) {
		keys, err := overlayKeysUsed(ctx, c)
		return len(keys.unused) > 0, err
	}
	ifIdle(ctx, c, "retire keys", isNeeded, func(ctx context.Context) error { return RetireUnusedKeys(ctx, c, 0, nil, PriorFailures{}) })
}

// overlayKeys are the generations of overlay keys that links use, and those that none uses.
type overlayKeys struct{ used, unused []int32 }

// overlayKeysUsed returns which overlay keys are in use. If a command has left a peering or a rollout incomplete, it
// reports none as unused.
func overlayKeysUsed(ctx context.Context, c *kube.Cluster) (keys overlayKeys, err error) {
	cn, err := c.Ledger(ctx)
	if err != nil || cn == nil || !cn.DeletionTimestamp.IsZero() {
		return keys, err
	}
	secrets, err := c.ListManaged(ctx, kube.SecretNames(), nil)
	isIncomplete := func(a v1alpha1.PeerAllocation) bool { return !a.Active() }
	isJournal := func(s client.Object) bool { return strings.HasPrefix(s.GetName(), JournalSecret("").Name) }
	if err != nil || slices.ContainsFunc(cn.Spec.Peers, isIncomplete) || slices.ContainsFunc(secrets, isJournal) {
		return keys, err
	}
	ds, err := c.NodeAgents(ctx)
	if ds == nil || err != nil || isOnDelete(ds) {
		return keys, err
	}
	given := manifests.OverlayKeys(&ds.Spec.Template.Spec)
	var peerings v1alpha1.PeeringList
	if err := c.List(ctx, &peerings); err != nil {
		return keys, err
	}
	used := sets.New[int32]()
	for _, p := range peerings.Items {
		for _, plane := range p.Spec.Planes {
			key := plane.OverlayKeyGeneration
			if key > 0 {
				used.Insert(key) // even if node agents lack it: the next command gives it to them
			}
			if !slices.Contains(given, key) && len(given) > 0 {
				key = given[0] // as agents do
			}
			used.Insert(key)
		}
	}
	gateways, err := c.ListManaged(ctx, &appsv1.DeploymentList{}, nil)
	if err != nil {
		return keys, err
	}
	for _, g := range gateways { // after a killed command, they may use one that no Peering names yet
		used.Insert(manifests.OverlayKeys(PodOf(g))...)
	}
	if keys.used = sets.List(used); len(keys.used) == 0 {
		return keys, nil
	}
	unused := sets.New(given...)
	for _, secret := range secrets {
		if g := manifests.OverlayGeneration(secret.GetName()); g > 0 && secret.GetDeletionTimestamp() == nil {
			unused.Insert(g)
		}
	}
	keys.unused = sets.List(unused.Difference(used))
	return keys, nil
}

// withdrawUnusedKeys removes the keys that no link uses from node agents, and returns them.
func withdrawUnusedKeys(ctx context.Context, c *kube.Cluster) (unused []int32, err error) {
	err = kube.RetryOnConflict(func() error {
		// If a key is given to node agents after this read, the write conflicts.
		ds, err := c.NodeAgents(ctx)
		if err != nil {
			return err
		}
		keys, err := overlayKeysUsed(ctx, c)
		if unused = keys.unused; err != nil || len(unused) == 0 {
			return err
		}
		if ds == nil {
			return kube.ErrUninstalling
		}
		before, pod := ds.DeepCopy(), &ds.Spec.Template.Spec
		kept := lo.Without(manifests.OverlayKeys(pod), unused...)
		if len(kept) == 0 || len(kept) == len(manifests.OverlayKeys(pod)) {
			return nil
		}
		manifests.SetOverlayKeys(pod, kept)
		return patchAgents(ctx, c, before, ds)
	})
	return unused, err
}

// deleteUnusedKeys deletes keys once all node agents were replaced. A key that is in use again by then stays: the next iteration finds out.
func deleteUnusedKeys(ctx context.Context, c *kube.Cluster, unused []int32, made int32, departed []string) error {
	now, err := overlayKeysUsed(ctx, c)
	if err != nil || len(now.unused) == 0 {
		return err
	}
	_, err = UpdateLedger(ctx, c, func(cn *v1alpha1.ClusterNetwork) error {
		least := slices.Min(now.used)
		if plan.OverlayKey(cn) >= least {
			return nil
		}
		cn.Spec.OverlayKey.Generation = least
		if least == made {
			plan.ForgetNodes(cn, departed)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return deleteOverlayKeys(ctx, c, func(g int32) bool { return slices.Contains(unused, g) && slices.Contains(now.unused, g) })
}

// overlaySecrets returns the Secrets of the overlay's keys, by generation.
func overlaySecrets(ctx context.Context, c *kube.Cluster) (map[int32]client.Object, error) {
	secrets, err := c.ListManaged(ctx, kube.SecretNames(), nil)
	byGeneration := lo.KeyBy(secrets, func(s client.Object) int32 { return manifests.OverlayGeneration(s.GetName()) })
	delete(byGeneration, 0) // all other Secrets
	return byGeneration, err
}

// deleteOverlayKeys deletes the overlay's keys of some generations.
func deleteOverlayKeys(ctx context.Context, c *kube.Cluster, isOld func(generation int32) bool) error {
	secrets, err := overlaySecrets(ctx, c)
	if err != nil {
		return err
	}
	return c.DeleteEach(ctx, lo.Values(lo.PickBy(secrets, func(g int32, _ client.Object) bool { return isOld(g) })))
}
