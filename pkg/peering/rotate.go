package peering

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/manifests"
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
	// peerings are the names of the Peerings, overlay the generations of the overlay's new keys, by the
	// index of the side.
	peerings [2]string
	overlay  [2]int32
}

// Rotate gives a peering that works new keys, one plane after the other. Nodes are told to use another plane
// before the gateways of one are replaced. Where there is one plane, another one is added meanwhile, unless the user
// has named where the one gateway is called: then packets are lost until that runs again. A plane that
// does not work with its new keys gets those before back. The former keys are deleted in the end.
func Rotate(ctx context.Context, a, b *Cluster, o Rotation, r Reporter) (Result, error) {
	p := newRun(a, b, Options{keepOverlayKey: !o.PresharedOnly}, r)
	p.ticket = newTickets(1)[0]
	rot := &rotation{run: p, Rotation: o}
	if err := rot.check(ctx); err != nil {
		return Result{}, err
	}
	// The lock needs a part of what peer is going to need.
	if err := p.both(ctx, func(ctx context.Context, s, _ *side) error { return s.checkPermissions(ctx, toInstall()) }); err != nil {
		return Result{}, err
	}
	locks, err := rot.lock(ctx)
	defer func() { unlock(ctx, locks) }()
	if err != nil {
		return Result{}, err
	}
	// Others may have unpeered the clusters, or replaced agents, while they were waited for.
	if err := rot.check(ctx); err != nil {
		return Result{}, err
	}
	ctx, cancel := whileLocked(ctx, locks...)
	defer cancel()
	// What is amiss is mended first: nodes need another plane that works.
	if _, err = p.peer(ctx); err == nil {
		err = ended(ctx, failure.Caught(func() error { return rot.all(ctx) }))
		p.result.Changed = append(p.sides[0].changed, p.sides[1].changed...)
	}
	return p.result, errors.Join(err, p.clearClaimed(ctx))
}

// check refuses what cannot be done, and notes the names of the Peerings.
func (r *rotation) check(ctx context.Context) error {
	for i, s := range r.sides {
		peer := r.sides[1-i]
		entry, err := s.entry(ctx, peer.ID)
		if err != nil {
			return err
		}
		if entry == nil || !entry.Established {
			return &Error{
				Kind: Usage, Cluster: s.Name, Doing: "replace keys", Err: fmt.Errorf("it has no peering with %s that has ever worked", peer.Name),
				Hint: fmt.Sprintf("kubectl liqonet peer %s %s", r.sides[0].Name, r.sides[1].Name),
			}
		}
		r.peerings[i] = entry.Name
		if err := s.readAgents(ctx, &s.facts); err != nil {
			return err
		}
		s.facts.Name = s.Name
		if err := s.facts.CanRotate(); err != nil {
			return err
		}
	}
	return nil
}

// lock waits until no other command replaces keys or agents of the two clusters. That one would delete the key of the overlay
// that this one makes, until a link has it. It returns what has to be unlocked, also with an error.
func (r *rotation) lock(ctx context.Context) (locks []*journal, err error) {
	const doing = "replace keys"
	// All commands begin with the lower ID, so no two wait for each other.
	sides := slices.SortedFunc(slices.Values(r.sides[:]), func(a, b *side) int { return strings.Compare(a.ID, b.ID) })
	for _, s := range sides {
		lock := &journal{cluster: s.Cluster}
		locks = append(locks, lock)
		locked, err := lock.lock(ctx, r.claim, r.peerings[s.index])
		if !locked && err == nil {
			err = r.reporter.Step(ctx, "Waiting for another command that replaces keys or agents", func(ctx context.Context) error {
				for err == nil && !locked && ctx.Err() == nil {
					locked, err = lock.lock(ctx, r.claim, r.peerings[s.index])
				}
				if ctx.Err() != nil {
					return s.timedOut(ctx, doing, "run the command again when that one has ended", "another command replaces keys or agents")
				}
				return err
			})
		}
		if err != nil {
			return locks, s.fail(doing, uninstallingIfTerminating(err))
		}
	}
	return locks, nil
}

// all replaces the keys of all planes. What was added for that is removed also if it fails.
func (r *rotation) all(ctx context.Context) (err error) {
	var planes []int32
	for _, g := range r.plan.Clusters[0].Gateways {
		planes = append(planes, g.Plane)
	}
	finally := func(step string, do func(context.Context) error) {
		if errors.Is(context.Cause(ctx), errTakenOver) {
			return // the other command completes it
		}
		if err != nil {
			var cancel context.CancelFunc
			ctx, cancel = withTime(ctx)
			defer cancel()
		}
		err = errors.Join(err, r.reporter.Step(ctx, step, do))
	}
	if !r.PresharedOnly {
		defer finally("Deleting the former keys of the overlay", r.deleteOverlayKeys)
		if err := r.reporter.Step(ctx, "Giving the nodes another key of the overlay", r.addOverlayKeys); err != nil {
			return err
		}
	}
	if single := plan.OneEndpoint(&r.sides[0].facts, &r.sides[1].facts); len(planes) == 1 && single != "" {
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

// withTime is a context for what has to be put back, also where the command's own time is over.
func withTime(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(context.WithoutCancel(ctx), rollbackTimeout, fmt.Errorf("not done after %s", rollbackTimeout))
}

// read reads both Peerings as they are now.
func (r *rotation) read(ctx context.Context) error {
	return r.both(ctx, func(ctx context.Context, s, _ *side) error {
		err := s.readPeering(ctx, r.peerings[s.index], &s.facts)
		if err == nil && s.facts.Existing == nil {
			err = s.fail("read the Peering", errUnpeered)
		}
		return err
	})
}

// addOverlayKeys gives node agents the key that the links are going to have, beside those that they have.
func (r *rotation) addOverlayKeys(ctx context.Context) error {
	err := r.both(ctx, func(ctx context.Context, s, _ *side) error {
		if err := s.readAgents(ctx, &s.facts); err != nil {
			return err
		}
		next := max(plan.OverlayKey(s.facts.Ledger), slices.Max(append([]int32{0}, s.facts.OverlayKeys...))) + 1
		if err := s.ensureOverlayKey(ctx, next); err != nil {
			return err
		}
		r.overlay[s.index] = next
		s.facts.OverlayKeys = append(s.facts.OverlayKeys, next)
		return nil
	})
	if err != nil {
		return err
	}
	return r.updateAgents(ctx)
}

// updateAgents applies the node agents with the overlay's keys that the facts name, and waits until packets
// pass by them.
func (r *rotation) updateAgents(ctx context.Context) error {
	if err := r.makePlan(); err != nil {
		return err
	}
	for _, s := range r.sides {
		_, s.later = r.planOf(s).NodeAgents()
	}
	return r.both(ctx, func(ctx context.Context, s, peer *side) error {
		p, err := get[v1alpha1.Peering](ctx, s.Cluster, "", r.peerings[s.index])
		if err != nil {
			return err
		}
		if p != nil {
			if err := r.waitForPackets(ctx, s, peer); !errors.Is(err, errUnpeered) {
				return err
			}
		}
		return s.replaceNodeAgents(ctx)
	})
}

// replaceNodeAgents applies the node agents for the other peerings, where somebody has removed this one.
func (s *side) replaceNodeAgents(ctx context.Context) error {
	if live, err := s.nodeAgents(ctx); live == nil || err != nil { // it was the last one
		return err
	}
	if err := s.updateNodeAgents(ctx, nil); err != nil {
		return err
	}
	beats := heartbeats{}
	return s.await(ctx, "wait for the node agents", s.podsHint(), append(rolloutKinds(), viewKinds()...), func(_ context.Context, o objects) (string, error) {
		if byName[*appsv1.DaemonSet](o, v1alpha1.NodeAgentName) == nil {
			return "", nil // by now it was the last one
		}
		beats.note(of[*coordinationv1.Lease](o), s.Now())
		ready, _ := nodesByReadiness(of[*corev1.Node](o))
		newest, missing := newestRevision(o)
		return cmp.Or(missing, nodesRolledOut(o, newest, ready, beats)), nil
	})
}

// addTemporary adds a plane that packets take meanwhile.
func (r *rotation) addTemporary(ctx context.Context) error {
	if err := r.setTemporary(ctx, true); err != nil {
		return err
	}
	if err := r.both(ctx, r.makeKeys); err != nil {
		return err
	}
	if err := r.makePresharedKeys(ctx); err != nil {
		return err
	}
	if err := r.makePlan(); err != nil {
		return err
	}
	return r.push(ctx, r.temporary())
}

// removeTemporary has nodes leave the temporary plane, and removes it.
func (r *rotation) removeTemporary(ctx context.Context) error {
	if err := r.setTemporary(ctx, false); err != nil {
		return err
	}
	temporary := map[int32]bool{}
	for _, s := range r.sides {
		for _, plane := range s.facts.Existing.Spec.Planes {
			if plane.Temporary {
				temporary[plane.Index] = true
			}
		}
	}
	r.dropped = slices.Sorted(maps.Keys(temporary))
	if err := r.dropPlanes(ctx); err != nil {
		return err
	}
	return r.both(ctx, func(ctx context.Context, s, peer *side) error {
		s.clear(ctx, peer, r.planOf(s))
		return nil
	})
}

// temporary is the index of the temporary plane.
func (r *rotation) temporary() (plane int32) {
	for _, g := range r.plan.Clusters[0].Gateways {
		if g.Temporary {
			plane = g.Plane
		}
	}
	return plane
}

func (r *rotation) setTemporary(ctx context.Context, wanted bool) error {
	if err := r.read(ctx); err != nil {
		return err
	}
	for _, s := range r.sides {
		s.facts.AddTemporary = wanted
	}
	return r.makePlan()
}

// endGateway deletes a gateway's Deployment, and waits until its pod has ended: it goes on until nobody sends
// packets by it.
func (s *side) endGateway(ctx context.Context, g manifests.Gateway) error {
	_, deployment := g.Objects()
	_, live, err := s.read(ctx, deployment)
	if err != nil {
		return err
	}
	if live.GetResourceVersion() != "" {
		if err := s.delete(ctx, live); err != nil {
			return err
		}
	}
	return s.awaitEnd(ctx, g)
}

// replaceKeys gives the gateways of a plane new keys. If the plane does not work with them, it gets
// those before back.
func (r *rotation) replaceKeys(ctx context.Context, plane int32) error {
	if err := r.read(ctx); err != nil {
		return err
	}
	var before [2]plan.PlaneFacts
	for i, s := range r.sides {
		before[i] = s.facts.Planes[plane]
		before[i].KeyGeneration = s.facts.Gateway(r.peerings[i], plane).KeyGeneration
		before[i].OverlayKey = s.facts.Existing.Plane(plane).OverlayKey
	}
	clear := func(ctx context.Context, s, _ *side) error { return s.deleteOtherKeys(ctx, r.planOf(s), plane) }
	err := r.makeNewKeys(ctx, plane)
	if err == nil {
		if err = r.push(ctx, plane); err == nil {
			return r.both(ctx, clear)
		}
	}
	if isLost(err) || isLost(context.Cause(ctx)) {
		return err
	}
	undo, cancel := withTime(ctx)
	defer cancel()
	for i, s := range r.sides {
		s.facts.Planes[plane] = before[i]
	}
	undone := r.makePlan()
	if undone == nil {
		undone = r.push(undo, plane)
	}
	if undone != nil {
		a, b := r.sides[0].Name, r.sides[1].Name
		return errors.Join(err, fmt.Errorf("plane %d could not get its former keys back: %w; run: kubectl liqonet peer %s %s", plane, undone, a, b))
	}
	return errors.Join(err, r.both(undo, clear))
}

// makeNewKeys makes the keys that a plane is going to have, and plans with them.
func (r *rotation) makeNewKeys(ctx context.Context, plane int32) error {
	err := r.both(ctx, func(ctx context.Context, s, _ *side) error {
		g := s.facts.Gateway(r.peerings[s.index], plane)
		f := s.facts.Planes[plane]
		f.RenewPresharedKey = true
		if f.OverlayKey = r.overlay[s.index]; r.PresharedOnly {
			f.OverlayKey = 0 // as it is
		}
		s.facts.Planes[plane] = f
		if r.PresharedOnly {
			return nil
		}
		g.KeyGeneration++
		return s.ensureKey(ctx, g)
	})
	if err == nil {
		err = r.makePresharedKeys(ctx)
	}
	if err != nil {
		return err
	}
	for _, s := range r.sides {
		f := s.facts.Planes[plane]
		f.RenewPresharedKey = false
		s.facts.Planes[plane] = f
	}
	return r.makePlan()
}

// push replaces the gateways of planes as they are planned. When those before have ended, it applies the Peerings, and
// waits until packets pass by all planes.
func (r *rotation) push(ctx context.Context, planes ...int32) error {
	err := r.both(ctx, r.pushServices)
	if err == nil {
		err = r.pushGateways(ctx, planes, true)
	}
	if err == nil {
		err = r.pushPeerings(ctx, nil)
	}
	if err != nil {
		return err
	}
	return r.both(ctx, r.waitForPackets)
}

// deleteOverlayKeys takes from nodes the overlay's keys that no link has any more, and deletes them. Where no link has any, somebody
// removes all of liqonet.
func (r *rotation) deleteOverlayKeys(ctx context.Context) error {
	var used [2][]int32
	for { // somebody may unpeer the clusters meanwhile
		before := used
		err := r.both(ctx, func(ctx context.Context, s, _ *side) (err error) {
			used[s.index], err = s.overlayKeysInUse(ctx, s.facts.OverlayKeys)
			if len(used[s.index]) > 0 {
				s.facts.OverlayKeys = used[s.index]
			}
			return err
		})
		if err != nil {
			return err
		}
		if slices.Equal(used[0], before[0]) && slices.Equal(used[1], before[1]) {
			break
		}
		if err := r.updateAgents(ctx); err != nil {
			return err
		}
	}
	return r.both(ctx, func(ctx context.Context, s, _ *side) error {
		if len(used[s.index]) == 0 {
			return nil
		}
		return s.deleteOverlayKeys(ctx, used[s.index], r.overlay[s.index])
	})
}

// overlayKeysInUse are the generations, of those that agents have, which links of some peering have.
func (c *Cluster) overlayKeysInUse(ctx context.Context, given []int32) ([]int32, error) {
	var peerings v1alpha1.PeeringList
	if err := c.list(ctx, &peerings); err != nil {
		return nil, err
	}
	used := sets.New[int32]()
	for _, p := range peerings.Items {
		for _, plane := range p.Spec.Planes {
			if slices.Contains(given, plane.OverlayKey) {
				used.Insert(plane.OverlayKey)
			} else {
				used.Insert(slices.Min(given))
			}
		}
	}
	return sets.List(used), nil
}

// deleteOverlayKeys deletes the overlay's keys but those in use, up to the one that this command has made: later ones
// are another command's. The ledger notes which one is the first, and forgets nodes that had left before it was made.
func (s *side) deleteOverlayKeys(ctx context.Context, used []int32, made int32) error {
	_, err := s.updateLedger(ctx, func(cn *v1alpha1.ClusterNetwork) error {
		least := slices.Min(used)
		if plan.OverlayKey(cn) >= least {
			return errUnchanged
		}
		cn.Spec.OverlayKey.Generation = least
		if least == made {
			plan.ForgetNodes(cn, plan.Departed(cn, s.facts.NodeUIDs()))
		}
		return nil
	})
	if errors.Is(err, errUninstalling) {
		return nil // all of them
	}
	if err != nil {
		return s.fail("write to the ledger which key the overlay has", err)
	}
	secrets, err := s.ours(ctx, secretNames(), nil)
	if err != nil {
		return err
	}
	for _, secret := range secrets {
		if g := manifests.OverlayGeneration(secret.GetName()); g > 0 && g <= made && !slices.Contains(used, g) {
			if err := s.delete(ctx, secret); err != nil {
				return err
			}
		}
	}
	return nil
}

// deleteOtherKeys deletes the keys of a plane's gateway but those that it has.
func (s *side) deleteOtherKeys(ctx context.Context, c *plan.ClusterPlan, plane int32) error {
	for _, g := range c.Gateways {
		if g.Plane != plane {
			continue
		}
		secrets, err := s.ours(ctx, secretNames(), client.MatchingLabels(g.Labels()))
		if err != nil {
			return err
		}
		for _, secret := range secrets {
			if name := secret.GetName(); name == g.SecretName() || g.PresharedKey > 0 && name == g.PresharedSecretName() {
				continue
			}
			if err := s.delete(ctx, secret); err != nil {
				return err
			}
		}
	}
	return nil
}
