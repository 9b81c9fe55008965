package peering

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
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
	// peerings are the names of the Peerings, overlay the generations of new overlay keys, 0 if unchanged, by side.
	peerings [2]string
	overlay  [2]int32
	// departed are the UIDs of nodes that had left before the new keys were created.
	departed [2][]string
}

// Rotate gives an active peering new keys, one plane after the other. Nodes use another plane before the gateways of
// one are replaced. A single plane gets a temporary one in addition, unless the user fixed the endpoint of its
// gateway: then packets are lost until the gateway runs again. A plane that does not work with its new keys gets the
// former keys back. Former keys are deleted last.
func Rotate(ctx context.Context, a, b *kube.Cluster, o Rotation, r kube.Reporter) (Result, error) {
	p := newRun(a, b, engine.Options{KeepOverlayKey: !o.PresharedOnly}, r)
	p.ticket = newTickets(1)[0]
	ctx, stop := p.watchResponses(ctx)
	defer stop()
	a, b = p.sides[0].Cluster, p.sides[1].Cluster
	rot := &rotation{run: p, Rotation: o}
	if err := rot.check(ctx); err != nil {
		return Result{}, kube.ContextError(ctx, err)
	}
	p.needs = func(s *engine.Side) []kube.Permission { return engine.RotatePermissions(rot.peerings[s.Index]) }
	// Locking needs some of the permissions that peer is going to check.
	if err := p.forEachSide(ctx, func(ctx context.Context, s, _ *engine.Side) error { return s.CheckPermissions(ctx, p.needs(s)) }); err != nil {
		return Result{}, kube.ContextError(ctx, err)
	}
	err := engine.UnderLocks(ctx, "rotate-keys", r.Step, engine.PairLocks(a, b, !o.PresharedOnly), rot.runLocked)
	if o.PresharedOnly {
		for _, s := range p.sides {
			engine.CompleteIfPossible(ctx, s.Cluster, r)
			engine.RetireIfPossible(ctx, s.Cluster)
		}
	}
	return p.result, err
}

// runLocked is the part of Rotate under the locks of both clusters. Locks are exclusive, as other commands delete overlay
// keys that no link uses yet.
func (r *rotation) runLocked(ctx context.Context) error {
	// Other commands may have unpeered the clusters, or replaced agents, during the wait for the locks.
	if err := r.check(ctx); err != nil {
		return kube.ContextError(ctx, err)
	}
	unclear, err := r.recognise(ctx)
	if err = cmp.Or(err, unclear); err != nil {
		return kube.ContextError(ctx, err)
	}
	// First repair what is broken: nodes need another plane that works.
	err = r.run.runLocked(ctx)
	if err == nil {
		err = kube.ContextError(ctx, failure.Caught(func() error { return r.all(ctx) }))
		r.result.Changed = append(r.sides[0].Changed, r.sides[1].Changed...)
	}
	if err == nil {
		r.readExchanges(ctx)
	}
	if r.PresharedOnly {
		return err
	}
	if kube.IsAbandoned(ctx) {
		return cmp.Or(err, context.Cause(ctx))
	}
	return errors.Join(err, r.reporter.Step(ctx, "Deleting former overlay keys", func(ctx context.Context) error {
		return r.forEachSide(ctx, func(ctx context.Context, s, _ *engine.Side) error {
			return engine.RetireUnusedKeys(ctx, s.Cluster, r.overlay[s.Index], r.departed[s.Index], s.PriorFailures)
		})
	}))
}

// check fails if keys cannot be replaced, and stores the names of the Peerings.
func (r *rotation) check(ctx context.Context) error {
	for i, s := range r.sides {
		peer := r.sides[1-i]
		entry, err := s.Entry(ctx, peer.ID)
		if err != nil {
			return err
		}
		if entry == nil || !entry.Active() {
			return &kube.Error{
				Kind: kube.Usage, Cluster: s.Name, Doing: "replace keys", Err: fmt.Errorf("it has no peering with %s that has ever worked", peer.Name),
				Hint: fmt.Sprintf("kubectl liqonet peer %s %s", r.sides[0].Name, r.sides[1].Name),
			}
		}
		r.peerings[i] = entry.Name
		if err := engine.CheckVersion(ctx, s.Cluster); err != nil {
			return err
		}
	}
	return nil
}

// all replaces the keys of all planes. Even on failure, it removes the temporary plane.
func (r *rotation) all(ctx context.Context) (err error) {
	var planes []int32
	for _, g := range r.plan.Clusters[0].Gateways {
		planes = append(planes, g.Plane)
	}
	finally := func(step string, do func(context.Context) error) {
		if kube.IsAbandoned(ctx) { // the next command completes it
			err = cmp.Or(err, context.Cause(ctx))
			return
		}
		if err != nil {
			var cancel context.CancelFunc
			ctx, cancel = kube.WithRollbackTimeout(ctx)
			defer cancel()
		}
		err = errors.Join(err, r.reporter.Step(ctx, step, do))
	}
	if !r.PresharedOnly {
		if err := r.reporter.Step(ctx, "Giving the nodes a new overlay key", r.addOverlayKeys); err != nil {
			return err
		}
	}
	if single := r.plan.Clusters[0].OneGateway; len(planes) == 1 && single != "" {
		r.result.Notes = append(r.result.Notes, "packets were lost while the gateways started: "+single)
	} else if len(planes) == 1 {
		defer finally("Removing the temporary plane", r.removeTemporary)
		if err := r.reporter.Step(ctx, "Adding a temporary plane", r.addTemporary); err != nil {
			return err
		}
	}
	for _, plane := range planes {
		step := fmt.Sprintf("Replacing the keys of plane %d", plane)
		if err := r.reporter.Step(ctx, step, func(ctx context.Context) error { return r.replaceKeys(ctx, plane) }); err != nil {
			return err
		}
	}
	return nil
}

// addOverlayKeys gives node agents the links' next key, in addition to the current ones.
func (r *rotation) addOverlayKeys(ctx context.Context) error {
	err := r.forEachSide(ctx, func(ctx context.Context, s, _ *engine.Side) error {
		if err := engine.ReadAgents(ctx, s.Cluster, &s.Facts); err != nil {
			return err
		}
		next := s.Facts.NextOverlayKey()
		if err := s.EnsureOverlayKey(ctx, next); err != nil {
			return err
		}
		r.overlay[s.Index], r.departed[s.Index] = next, plan.Departed(s.Facts.Ledger, s.Facts.NodeUIDs())
		s.Facts.OverlayKeys = append(slices.Clone(s.Facts.OverlayKeys), next)
		return nil
	})
	if err != nil {
		return err
	}
	if err := r.makePlan(); err != nil {
		return err
	}
	return r.forEachSide(ctx, r.waitForPackets) // it applies the node agents
}

// replaceKeys replaces the keys of a plane's gateways. If the plane does not work with the new keys, it restores the
// former ones.
func (r *rotation) replaceKeys(ctx context.Context, plane int32) error {
	if err := r.readPeerings(ctx); err != nil {
		return err
	}
	before, clear := r.plan, func(ctx context.Context, s, _ *engine.Side) error { return deleteOtherKeys(ctx, s, r.planOf(s), plane) }
	err := r.makeNewKeys(ctx, plane)
	if err == nil {
		err = r.pushPlane(ctx, plane)
	}
	if err == nil {
		return r.forEachSide(ctx, clear)
	}
	if kube.IsRemoved(err) || kube.IsAbandoned(ctx) {
		return err
	}
	undo, cancel := kube.WithRollbackTimeout(ctx)
	defer cancel()
	r.plan = before
	if undone := r.pushPlane(undo, plane); undone != nil {
		a, b := r.sides[0].Name, r.sides[1].Name
		return errors.Join(err, fmt.Errorf("plane %d could not get its former keys back: %w; run: kubectl liqonet peer %s %s", plane, undone, a, b))
	}
	return errors.Join(err, r.forEachSide(undo, clear))
}

// makeNewKeys creates the next keys of a plane, and plans with them.
func (r *rotation) makeNewKeys(ctx context.Context, plane int32) error {
	err := r.forEachSide(ctx, func(ctx context.Context, s, _ *engine.Side) error {
		s.Intent.Renew = map[int32]plan.Renewal{plane: {OverlayKey: r.overlay[s.Index], PresharedKey: true}}
		if r.PresharedOnly {
			return nil
		}
		g := s.Facts.Gateway(r.peerings[s.Index], plane)
		g.KeyGeneration++
		made, err := s.EnsureKey(ctx, g)
		s.Facts = s.Facts.WithPlane(plane, made)
		return err
	})
	if err == nil {
		err = r.makePresharedKeys(ctx)
	}
	if err != nil {
		return err
	}
	for _, s := range r.sides {
		s.Intent.Renew = map[int32]plan.Renewal{plane: {OverlayKey: r.overlay[s.Index]}} // the pre-shared key exists now
	}
	return r.makePlan()
}

// deleteOtherKeys deletes the keys of a plane's gateway that it no longer uses.
func deleteOtherKeys(ctx context.Context, s *engine.Side, c *plan.ClusterPlan, plane int32) error {
	for _, g := range c.Gateways {
		if g.Plane != plane {
			continue
		}
		secrets, err := s.ListManaged(ctx, kube.SecretNames(), client.MatchingLabels(g.Labels()))
		if err != nil {
			return err
		}
		for _, secret := range secrets {
			if name := secret.GetName(); name == g.SecretName() || g.PresharedKey > 0 && name == g.PresharedSecretName() {
				continue
			}
			if err := s.Delete(ctx, secret); err != nil {
				return err
			}
		}
	}
	return nil
}

// addTemporary adds a plane for packets while the gateways of another one are replaced.
func (p *run) addTemporary(ctx context.Context) error {
	if err := p.setTemporary(ctx, true); err != nil {
		return err
	}
	if err := p.makeAllKeys(ctx); err != nil {
		return err
	}
	if err := p.makePlan(); err != nil {
		return err
	}
	gateways := p.plan.Clusters[0].Gateways
	return p.pushPlane(ctx, gateways[len(gateways)-1].Plane)
}

// removeTemporary moves nodes off the temporary plane, and removes it.
func (p *run) removeTemporary(ctx context.Context) error {
	if err := p.setTemporary(ctx, false); err != nil {
		return err
	}
	p.dropped = p.notPlanned()
	return p.dropPlanes(ctx)
}

func (p *run) setTemporary(ctx context.Context, wanted bool) error {
	if err := p.readPeerings(ctx); err != nil {
		return err
	}
	for _, s := range p.sides {
		s.Intent.Temporary = wanted
	}
	return p.makePlan()
}

// readPeerings reads the current Peerings of both sides.
func (p *run) readPeerings(ctx context.Context) error {
	return p.forEachSide(ctx, func(ctx context.Context, s, _ *engine.Side) error {
		s.Intent.Renew = nil
		err := engine.ReadPeering(ctx, s.Cluster, p.planOf(s).Peering.Name, &s.Facts)
		if err == nil && s.Facts.Existing == nil {
			err = s.Fail("read the Peering", kube.ErrUnpeered)
		}
		return err
	})
}
