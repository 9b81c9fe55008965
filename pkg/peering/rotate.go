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

// Rotation says which keys of a peering are replaced.
type Rotation struct {
	// PresharedOnly leaves the gateways' own keys and those of the overlay as they are.
	PresharedOnly bool
}

// rotation is one command that replaces keys.
type rotation struct {
	*run
	Rotation
	// peerings are the names of the Peerings, overlay the generations of the overlay's new keys, 0 if it keeps the one before, by the
	// index of the side.
	peerings [2]string
	overlay  [2]int32
	// departed are the UIDs of nodes that had left before these were made.
	departed [2][]string
}

// Rotate gives a peering that works new keys, one plane after the other. Nodes are told to use another plane
// before the gateways of one are replaced. Where there is one plane, another one is added meanwhile, unless the user
// has named where the one gateway is called: then packets are lost until that runs again. A plane that
// does not work with its new keys gets those before back. The former keys are deleted in the end.
func Rotate(ctx context.Context, a, b *kube.Cluster, o Rotation, r kube.Reporter) (Result, error) {
	p := newRun(a, b, engine.Options{KeepOverlayKey: !o.PresharedOnly}, r)
	p.ticket = newTickets(1)[0]
	ctx, stop := p.whileAnswering(ctx)
	defer stop()
	a, b = p.sides[0].Cluster, p.sides[1].Cluster
	rot := &rotation{run: p, Rotation: o}
	if err := rot.check(ctx); err != nil {
		return Result{}, kube.Ended(ctx, err)
	}
	p.needs = func(s *engine.Side) []kube.Permission { return engine.ToRotate(rot.peerings[s.Index]) }
	// The lock needs a part of what peer is going to need.
	if err := p.both(ctx, func(ctx context.Context, s, _ *engine.Side) error { return s.CheckPermissions(ctx, p.needs(s)) }); err != nil {
		return Result{}, kube.Ended(ctx, err)
	}
	err := engine.UnderLocks(ctx, "rotate-keys", r.Step, engine.PairLocks(a, b, !o.PresharedOnly), rot.alone)
	if o.PresharedOnly {
		for _, s := range p.sides {
			if err == nil {
				engine.CompleteIfPossible(ctx, s.Cluster, r)
			}
			engine.RetireIfPossible(ctx, s.Cluster)
		}
	}
	return p.result, err
}

// alone replaces the keys, under the locks of both clusters. Another command would delete the key of the overlay that this one makes,
// until a link has it.
func (r *rotation) alone(ctx context.Context) error {
	// Others may have unpeered the clusters, or replaced agents, while they were waited for.
	if err := r.check(ctx); err != nil {
		return kube.Ended(ctx, err)
	}
	unclear, err := r.recognise(ctx)
	if err = cmp.Or(err, unclear); err != nil {
		return kube.Ended(ctx, err)
	}
	// What is broken is repaired first: nodes need another plane that works.
	err = r.run.alone(ctx)
	if err == nil {
		err = kube.Ended(ctx, failure.Caught(func() error { return r.all(ctx) }))
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
	return errors.Join(err, r.reporter.Step(ctx, "Deleting former keys of the overlay", func(ctx context.Context) error {
		return r.both(ctx, func(ctx context.Context, s, _ *engine.Side) error {
			return engine.RetireUnusedKeys(ctx, s.Cluster, r.overlay[s.Index], r.departed[s.Index], s.Idle)
		})
	}))
}

// check refuses what cannot be done, and notes the names of the Peerings.
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

// all replaces the keys of all planes. What was added for that is removed also if it fails.
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
			ctx, cancel = kube.WithTime(ctx)
			defer cancel()
		}
		err = errors.Join(err, r.reporter.Step(ctx, step, do))
	}
	if !r.PresharedOnly {
		if err := r.reporter.Step(ctx, "Giving the nodes another key of the overlay", r.addOverlayKeys); err != nil {
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

// addOverlayKeys gives node agents the key that the links are going to have, beside those that they have.
func (r *rotation) addOverlayKeys(ctx context.Context) error {
	err := r.both(ctx, func(ctx context.Context, s, _ *engine.Side) error {
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
	return r.both(ctx, r.waitForPackets) // it applies the node agents
}

// replaceKeys gives the gateways of a plane new keys. If the plane does not work with them, it gets
// those before back.
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
		return r.both(ctx, clear)
	}
	if kube.IsLost(err) || kube.IsAbandoned(ctx) {
		return err
	}
	undo, cancel := kube.WithTime(ctx)
	defer cancel()
	r.plan = before
	if undone := r.pushPlane(undo, plane); undone != nil {
		a, b := r.sides[0].Name, r.sides[1].Name
		return errors.Join(err, fmt.Errorf("plane %d could not get its former keys back: %w; run: kubectl liqonet peer %s %s", plane, undone, a, b))
	}
	return errors.Join(err, r.both(undo, clear))
}

// makeNewKeys makes the keys that a plane is going to have, and plans with them.
func (r *rotation) makeNewKeys(ctx context.Context, plane int32) error {
	err := r.both(ctx, func(ctx context.Context, s, _ *engine.Side) error {
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
		s.Intent.Renew = map[int32]plan.Renewal{plane: {OverlayKey: r.overlay[s.Index]}} // the pre-shared key is made
	}
	return r.makePlan()
}

// deleteOtherKeys deletes the keys of a plane's gateway but those that it has.
func deleteOtherKeys(ctx context.Context, s *engine.Side, c *plan.ClusterPlan, plane int32) error {
	for _, g := range c.Gateways {
		if g.Plane != plane {
			continue
		}
		secrets, err := s.Ours(ctx, kube.SecretNames(), client.MatchingLabels(g.Labels()))
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
