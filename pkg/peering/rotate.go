package peering

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/samber/lo"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/discovery"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
)

// Rotation selects which keys of a peering are replaced.
type Rotation struct {
	// PresharedOnly keeps the gateways' own keys and those of the overlay.
	PresharedOnly bool
}

// rotation is one command that replaces keys.
type rotation struct {
	*run
	Rotation
	// peerings are the names of the Peerings, overlayKeys the generations of new overlay keys, 0 if unchanged, by side.
	peerings    [2]string
	overlayKeys [2]int32
	// departed are the UIDs of nodes that had left before the new keys were created.
	departed [2][]string
}

// Rotate gives an active peering new keys, one plane after the other. Nodes use another plane before the gateways of
// one are replaced. A single plane gets a temporary one in addition, unless the user fixed the endpoint of its
// gateway: then packets are lost until the gateway runs again. A plane that does not work with its new keys gets the
// former keys back. Former keys are deleted last.
func Rotate(ctx context.Context, a, b *kube.Cluster, o Rotation, r kube.Reporter) (Result, error) {
	a, b = a.Recording(), b.Recording()
	b, ctx, stop := b.WatchResponses(ctx)
	defer stop()
	p := newRun(a, b, engine.Options{KeepOverlayKey: !o.PresharedOnly}, r)
	rot := &rotation{run: p, Rotation: o}
	checkPermissions := func(ctx context.Context, s, _ *engine.Side) error {
		return s.CheckPermissions(ctx, rotatePermissions(rot.peerings[s.Index]))
	}
	if err := failure.RunSteps(ctx, p.onBothSides(rot.check), p.requirePermissions(checkPermissions)); err != nil {
		return Result{}, kube.ContextError(ctx, err)
	}
	err := engine.WithLocks(ctx, "rotate-keys", r.Step, engine.PairLocks(a, b, !o.PresharedOnly), rot.runLocked)
	if o.PresharedOnly {
		for _, s := range p.sides {
			engine.TryCompleteOthers(ctx, s.Cluster, r)
		}
	}
	return p.result, err
}

// rotatePermissions returns the permissions that Rotate needs when nothing is to be installed or removed, so that a periodic
// job needs no administrator rights. Objects outside of our namespace are named.
func rotatePermissions(peering string) []kube.Permission {
	ns := v1alpha1.Namespace
	out := slices.Concat(
		kube.Permissions("", "get", "namespaces", metav1.NamespaceSystem, ns),
		kube.Permissions("", "patch", "namespaces", ns),
		kube.Permissions("", "list watch", "nodes nodenetworks.liqonet.io"),
		kube.Permissions("", "list", "pods services daemonsets.apps servicecidrs.networking.k8s.io"+kube.ClusterRoles),
		kube.Permissions("", "get list", kube.CRDs),
		kube.Permissions("", "get list update", "clusternetworks.liqonet.io"),
		kube.Permissions("", "get list watch patch", "peerings.liqonet.io"),
		kube.Permissions("", "patch", "peerings/status.liqonet.io"),
		kube.Permissions(metav1.NamespaceDefault, "list", "endpointslices.discovery.k8s.io"+kube.Roles),
		kube.Permissions(metav1.NamespaceSystem, "get list create update delete", kube.Leases), // the locks
		kube.Permissions(ns, "get list watch create patch delete", "deployments.apps"+kube.Leases),
		kube.Permissions(ns, "get list create patch delete", "secrets serviceaccounts"+kube.Roles),
		kube.Permissions(ns, "get create patch delete", "configmaps"),
		kube.Permissions(ns, "get list patch", "resourcequotas poddisruptionbudgets.policy"),
		kube.Permissions(ns, "get watch patch", "services daemonsets.apps"),
		kube.Permissions(ns, "list watch", "replicasets.apps controllerrevisions.apps"),
		kube.Permissions(ns, "watch delete", "pods"),
		// Only to grant them to the gateway of a temporary plane.
		kube.Permissions(metav1.NamespaceDefault, "create", "events"),
	)
	maps, kinds := discovery.PluginSources()
	for _, name := range maps {
		out = append(out, kube.Permissions("", "get", "configmaps", path.Base(name))...)
	}
	for _, kind := range kinds {
		out = append(out, kube.Permissions("", "list", kube.ResourceOf(kind))...)
	}
	agents, _ := manifests.NodeAgent(manifests.Agents{}, []int32{1})
	out = append(out, kube.OutsideNamespace(agents, "get patch")...)
	for plane := range int32(4) { // no Peering has more
		gateway, _ := manifests.Gateway{Peering: peering, Plane: plane}.Objects()
		out = append(out, kube.OutsideNamespace(gateway, "get create patch delete")...)
	}
	return out
}

// runLocked is the part of Rotate under the locks of both clusters. Locks are exclusive, as other commands delete overlay
// keys that no link uses yet.
func (r *rotation) runLocked(ctx context.Context) error {
	// Other commands may have unpeered the clusters, or replaced agents, during the wait for the locks.
	if err := failure.RunSteps(ctx, r.onBothSides(r.check), r.requireIdentities); err != nil {
		return kube.ContextError(ctx, err)
	}
	// First repair what is broken: nodes need another plane that works.
	err := r.run.runLocked(ctx, r.attempt, r.replaceAllKeys)
	if r.PresharedOnly {
		return err
	}
	if kube.IsAbandoned(ctx) {
		return cmp.Or(err, context.Cause(ctx))
	}
	retire := func(ctx context.Context, s, _ *engine.Side) error {
		return engine.RetireUnusedKeys(ctx, s.Cluster, r.overlayKeys[s.Index], r.departed[s.Index], s.Health.PriorFailures)
	}
	return errors.Join(err, r.reporter.Step(ctx, "Deleting former overlay keys", r.onBothSides(retire)))
}

// check is one side's part. It fails if keys cannot be replaced, and stores the name of the Peering.
func (r *rotation) check(ctx context.Context, s, peer *engine.Side) error {
	entry, err := s.ReadLedgerEntry(ctx, peer.ID)
	if err != nil {
		return err
	}
	if err := checkActive(s.Cluster, peer.Cluster, "replace keys", entry); err != nil {
		return err
	}
	r.peerings[s.Index] = entry.Name
	return engine.CheckInstallation(ctx, s.Cluster)
}

// replaceAllKeys replaces the keys of all planes. Even on failure, it removes the temporary plane.
func (r *rotation) replaceAllKeys(ctx context.Context) error {
	if !r.PresharedOnly {
		if err := r.reporter.Step(ctx, "Giving the nodes a new overlay key", r.addOverlayKeys); err != nil {
			return err
		}
	}
	steps := lo.Map(r.planes(), func(plane int32, _ int) step {
		return r.withProgress(fmt.Sprintf("Replacing the keys of plane %d", plane), func(ctx context.Context) error { return r.replaceKeys(ctx, plane) })
	})
	if len(steps) > 1 {
		return failure.RunSteps(ctx, steps...)
	}
	if single := r.plan.Clusters[0].SingleGatewayReason; single != "" {
		r.result.Notes = append(r.result.Notes, "packets were lost while the gateways started: "+single)
		return failure.RunSteps(ctx, steps...)
	}
	err := failure.RunSteps(ctx, slices.Insert(steps, 0, r.withProgress("Adding a temporary plane", r.addTemporary))...)
	if kube.IsAbandoned(ctx) { // the next command removes the temporary plane
		return cmp.Or(err, context.Cause(ctx))
	}
	if err != nil {
		var cancel context.CancelFunc
		ctx, cancel = kube.WithRollbackTimeout(ctx)
		defer cancel()
	}
	return errors.Join(err, r.reporter.Step(ctx, "Removing the temporary plane", r.removeTemporary))
}

// addOverlayKeys gives node agents the links' next key, in addition to the current ones.
func (r *rotation) addOverlayKeys(ctx context.Context) error {
	makeKey := func(ctx context.Context, s, _ *engine.Side) error {
		if err := engine.ReadAgents(ctx, s.Cluster, &s.Facts); err != nil {
			return err
		}
		next := s.Facts.NextOverlayKey()
		if _, err := s.EnsureOverlayKey(ctx, next); err != nil {
			return err
		}
		r.overlayKeys[s.Index], r.departed[s.Index] = next, plan.DepartedNodes(s.Facts.Ledger, s.Facts.Network.NodeUIDs())
		s.Facts.OverlayKeys = append(slices.Clone(s.Facts.OverlayKeys), next)
		return nil
	}
	return failure.RunSteps(ctx, r.onBothSides(makeKey), r.makePlan, r.onBothSides(r.waitForPackets)) // the last applies the node agents
}

// replaceKeys replaces the keys of a plane's gateways. If the plane does not work with the new keys, it restores the
// former ones.
func (r *rotation) replaceKeys(ctx context.Context, plane int32) error {
	if err := r.readPeerings(ctx); err != nil {
		return err
	}
	before := r.plan
	push := func(ctx context.Context) error { return r.pushPlane(ctx, plane) }
	deleteOthers := r.onBothSides(func(ctx context.Context, s, _ *engine.Side) error {
		g, _ := lo.Find(r.planOf(s).Gateways, func(g manifests.Gateway) bool { return g.Plane == plane })
		return deleteStaleKeys(ctx, s, g)
	})
	err := failure.RunSteps(ctx, func(ctx context.Context) error { return r.makeNewKeys(ctx, plane) }, push)
	if err == nil {
		return deleteOthers(ctx)
	}
	if kube.IsRemoved(err) || kube.IsAbandoned(ctx) {
		return err
	}
	undo, cancel := kube.WithRollbackTimeout(ctx)
	defer cancel()
	r.plan = before
	if why := push(undo); why != nil {
		a, b := failure.Quote(r.sides[0].Name), failure.Quote(r.sides[1].Name)
		return errors.Join(err, fmt.Errorf("plane %d could not get its former keys back: %w; run: kubectl liqonet peer %s %s", plane, why, a, b))
	}
	return errors.Join(err, deleteOthers(undo))
}

// makeNewKeys creates the next keys of a plane, and plans with them.
func (r *rotation) makeNewKeys(ctx context.Context, plane int32) error {
	makeKey := func(ctx context.Context, s, _ *engine.Side) error {
		s.Intent.Renew = map[int32]plan.Renewal{plane: {OverlayKey: r.overlayKeys[s.Index], PresharedKey: true}}
		if r.PresharedOnly {
			return nil
		}
		g := s.Facts.Gateway(r.peerings[s.Index], plane)
		g.KeyGeneration++
		made, err := s.EnsureKey(ctx, g)
		s.Facts = s.Facts.WithPlane(plane, made)
		return err
	}
	if err := failure.RunSteps(ctx, r.onBothSides(makeKey), r.makePresharedKeys); err != nil {
		return err
	}
	for _, s := range r.sides {
		s.Intent.Renew = map[int32]plan.Renewal{plane: {OverlayKey: r.overlayKeys[s.Index]}} // the pre-shared key exists now
	}
	return r.makePlan(ctx)
}
