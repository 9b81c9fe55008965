package peering

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/status"
)

// push makes the plan from the agents' reports, and applies it. Gateways that were started remain if the plan still has them.
func (p *run) push(ctx context.Context) error {
	steps := []step{p.onBoth(p.allocate)}
	if !p.started {
		// Only after the other side has chosen ranges, which depend on this side's endpoints.
		steps = append(steps, p.makeAllKeys)
	}
	if err := failure.InOrder(ctx, steps...); err != nil {
		return err
	}
	p.ticket.release()
	before := p.plan
	if err := p.makePlan(ctx); err != nil {
		return err
	}
	p.roles.candidates = p.plan.Candidates()
	if p.started && p.plan.SameGateways(before) {
		return p.pushPeerings()(ctx)
	}
	return p.apply(ctx)
}

// apply applies the plan.
func (p *run) apply(ctx context.Context) error {
	batches, err := p.batches(ctx)
	if err != nil {
		return err
	}
	steps := []step{p.onBoth(p.pushServices)}
	for i, planes := range batches {
		if i > 0 {
			steps = append(steps, p.onBoth(p.waitForPackets))
		}
		later := slices.Concat(slices.Concat(batches[i+1:]...), p.dropped)
		steps = append(steps, p.pushGateways(planes, len(batches) == 1 && len(p.dropped) == 0), p.pushPeerings(later...))
	}
	return failure.InOrder(ctx, steps...)
}

// pushPlane replaces the gateways of a plane as planned. When their predecessors have exited, it applies the Peerings
// and waits until packets pass through all planes.
func (p *run) pushPlane(ctx context.Context, plane int32) error {
	noRedundancy := !slices.ContainsFunc(p.planes(), func(other int32) bool { return other != plane && !p.isSkipped(other) })
	steps := []step{p.onBoth(p.pushServices), p.pushGateways([]int32{plane}, noRedundancy)}
	if noRedundancy {
		steps = append(steps, p.onBoth(func(ctx context.Context, s, _ *engine.Side) error {
			return engine.AwaitTerminated(ctx, s.Cluster, manifests.Gateway{Peering: p.planOf(s).Peering.Name, Plane: plane})
		}))
	}
	return failure.InOrder(ctx, append(steps, p.pushPeerings(), p.onBoth(p.waitForPackets))...)
}

// makeAllKeys creates the keys that gateways lack.
func (p *run) makeAllKeys(ctx context.Context) error {
	return failure.InOrder(ctx, p.onBoth(p.makeKeys), p.makePresharedKeys)
}

// startGateways starts the gateways of a new peering before all node agents have reported, so that their pods start
// in parallel and wait for their Peering. Only the WireGuard backend depends on the reports, and the first one
// decides. If the kernel of another node turns out to lack it, push replaces the gateways.
func (p *run) startGateways(ctx context.Context) error {
	readLedger := func(ctx context.Context, s, peer *engine.Side) (err error) {
		if s.Facts.Ledger, err = s.Ledger(ctx); err == nil && (s.Facts.Ledger == nil || plan.Allocation(s.Facts.Ledger, peer.ID) == nil) {
			err = kube.ErrUnpeered
		}
		return s.Fail("start the gateways", err)
	}
	awaitReport := func(ctx context.Context, s, _ *engine.Side) error { return s.AwaitReports(ctx, true) }
	start := func(ctx context.Context, s, peer *engine.Side) error {
		g, ctx := failure.NewGroup(ctx)
		g.Go(func() error { return p.pushServices(ctx, s, peer) })
		for _, gateway := range p.planOf(s).Gateways {
			g.Go(func() error { return applyGateway(ctx, s, p.planOf(s), gateway, true) })
		}
		return g.Wait()
	}
	return failure.InOrder(ctx, p.onBoth(readLedger), p.makeAllKeys, p.onBoth(awaitReport), p.makePlan, p.onBoth(start))
}

// pushServices is one side's part. Ports of planes to be dropped stay open until they are.
func (p *run) pushServices(ctx context.Context, s, _ *engine.Side) error {
	objs := plan.Staged(p.planOf(s).Objects, plan.Exposure, "")
	for i, obj := range objs {
		service, is := obj.(*corev1.Service)
		if !is || s.Facts.Service == nil {
			continue
		}
		service = service.DeepCopy()
		service.Spec.Ports = append(service.Spec.Ports, lo.Filter(s.Facts.Service.Spec.Ports, func(port corev1.ServicePort, _ int) bool {
			return slices.ContainsFunc(p.dropped, func(plane int32) bool { return port.Name == v1alpha1.PlanePort(plane) })
		})...)
		objs[i] = service
	}
	return s.Apply(ctx, objs...)
}

// batches returns batches of planes whose gateways are applied together. If packets pass through all of several planes,
// each plane to be replaced is a batch, so that nodes can use another one in the meantime. All other planes are the
// first batch, including those that a killed command left without a pod: each batch waits for all planes. Then planes
// that are no longer planned are dropped last, otherwise at once.
func (p *run) batches(ctx context.Context) ([][]int32, error) {
	replaced, stopped, live := sets.New[int32](), sets.New[int32](), 0
	for _, s := range p.sides {
		for _, g := range p.planOf(s).Gateways {
			_, deployment := g.Objects()
			if err := engine.DropOldOverlayKeys(ctx, s.Cluster, &deployment.Spec.Template.Spec); err != nil {
				return nil, err
			}
			want, there, err := s.Read(ctx, deployment)
			if err != nil {
				return nil, err
			}
			if there.GetResourceVersion() == "" {
				continue
			}
			live++
			if engine.IsStopped(there) {
				stopped.Insert(g.Plane)
			}
			if !engine.SameTemplate(there, want) {
				replaced.Insert(g.Plane)
			}
		}
	}
	planes, dropped := p.planes(), p.notPlanned()
	inTurn := live > 0 && (len(replaced) > 0 && len(planes) > 1 || len(dropped) > 0)
	if inTurn { // replace planes that do not work at once
		var err error
		if inTurn, err = p.allPlanesPass(ctx); err != nil {
			return nil, err
		}
	}
	if p.dropped = nil; inTurn {
		p.dropped = dropped
	}
	alone, together := lo.FilterReject(planes, func(plane int32, _ int) bool {
		return inTurn && replaced.Has(plane) && !stopped.Has(plane)
	})
	batches := lo.Chunk(alone, 1)
	if len(together) > 0 {
		batches = slices.Insert(batches, 0, together)
	}
	return batches, nil
}

// notPlanned returns the existing planes that are no longer planned.
func (p *run) notPlanned() []int32 {
	planes := sets.New[int32]()
	for _, s := range p.sides {
		if s.Facts.Existing == nil {
			continue
		}
		for _, plane := range s.Facts.Existing.Spec.Planes {
			if p.planOf(s).Peering.Plane(plane.Index) == nil {
				planes.Insert(plane.Index)
			}
		}
	}
	return sets.List(planes)
}

// view returns a side's view of the peering, or the zero value if there is none.
func view(ctx context.Context, s, peer *engine.Side) (status.View, error) {
	views, err := status.Views(ctx, s.Cluster)
	v, _ := lo.Find(views, func(v status.View) bool { return v.PeerID == peer.ID })
	return v, err
}

// allPlanesPass reports whether packets pass through all planes in both clusters.
func (p *run) allPlanesPass(ctx context.Context) (bool, error) {
	var works [2]bool
	err := p.forEachSide(ctx, func(ctx context.Context, s, peer *engine.Side) error {
		v, err := view(ctx, s, peer)
		works[s.Index] = passesThroughAll(v)
		return err
	})
	return works == [2]bool{true, true}, err
}

// passesThroughAll reports whether every node that reaches the peer does so through all planes. Other problems are no reason to
// replace all gateways at once. A plane that a node does not reach is repaired at once, as batches wait for all planes.
func passesThroughAll(v status.View) bool {
	return v.NodesReady > 0 && !slices.ContainsFunc(v.Planes, func(plane status.PlaneView) bool { return !plane.Connected }) &&
		!slices.ContainsFunc(v.Nodes, func(n status.NodeView) bool { return n.Ready && !status.ReachesThroughAll(n, v.Planes) })
}

// pushGateways applies the gateways of planes in both clusters. Unless noRedundancy, each starts after its predecessor has exited.
func (p *run) pushGateways(planes []int32, noRedundancy bool) step {
	return p.onBoth(func(ctx context.Context, s, _ *engine.Side) error {
		for _, g := range p.planOf(s).Gateways {
			if !slices.Contains(planes, g.Plane) {
				continue
			}
			if err := applyGateway(ctx, s, p.planOf(s), g, noRedundancy); err != nil {
				return err
			}
		}
		return nil
	})
}

// pushPeerings applies both Peerings once the endpoints of the server's gateways are known. Planes in later stay
// unchanged.
func (p *run) pushPeerings(later ...int32) step {
	return func(ctx context.Context) error {
		server := p.sides[p.plan.Server()]
		endpoints, err := gatewayEndpoints(ctx, server, p.planOf(server))
		if err != nil {
			return err
		}
		p.plan = p.plan.Resolve(endpoints)
		return p.forEachSide(ctx, func(ctx context.Context, s, peer *engine.Side) error {
			return applyPeering(ctx, s, p.planOf(s), peer, later)
		})
	}
}

// allocate writes the ranges that the cluster uses for the peer into the ledger.
func (p *run) allocate(ctx context.Context, s, peer *engine.Side) (err error) {
	isNew := false
	offer, err := plan.Introduce(peer.Facts, peer.Intent, s.ID)
	if err != nil {
		return err
	}
	own := s.Facts
	s.Facts.Ledger, err = engine.UpdateLedger(ctx, s.Cluster, func(cn *v1alpha1.ClusterNetwork) (err error) {
		isNew, err = plan.Allocate(cn, own, offer)
		return err
	})
	if err == nil && isNew {
		s.RangesChanged = true
		s.RecordChange("ranges of the ledger")
	}
	return s.Fail("allocate ranges", err)
}

// makeKeys creates the keys of gateways that have none.
func (p *run) makeKeys(ctx context.Context, s, peer *engine.Side) error {
	name := plan.Allocation(s.Facts.Ledger, peer.ID).Name
	if err := engine.ReadPeering(ctx, s.Cluster, name, &s.Facts); err != nil {
		return err
	}
	if s.Facts.Owner == "" {
		return s.Fail("make keys", kube.ErrUnpeered)
	}
	if err := s.SetKeyOwners(ctx, name); err != nil {
		return err
	}
	gateways := p.planOf(s).Gateways
	made := make([]plan.PlaneFacts, len(gateways))
	err := failure.ForEachAtMost(ctx, len(gateways), gateways, func(ctx context.Context, i int, g manifests.Gateway) (err error) {
		g.Peering, g.Owner = name, s.Facts.Owner // the ledger may have another name than the plan
		made[i], err = s.EnsureKey(ctx, g)
		return err
	})
	for i, g := range gateways {
		s.Facts = s.Facts.WithPlane(g.Plane, made[i])
	}
	return err
}

// applyGateway applies the objects of a gateway as planned.
func applyGateway(ctx context.Context, s *engine.Side, c *plan.ClusterPlan, g manifests.Gateway, noRedundancy bool) error {
	if err := s.Apply(ctx, plan.Staged(c.Objects, plan.GatewayAccount, g.Name())...); err != nil {
		return err
	}
	deployment := plan.Staged(c.Objects, plan.GatewayWorkload, g.Name())[0].DeepCopyObject().(*appsv1.Deployment)
	if err := engine.DropOldOverlayKeys(ctx, s.Cluster, &deployment.Spec.Template.Spec); err != nil {
		return err
	}
	want, err := manifests.ToApply(deployment)
	if err != nil {
		return err
	}
	return s.ReplaceGateway(ctx, g, want, noRedundancy)
}

// applyPeering applies the Peering as planned, with the currently exposed hosts. Planes in later stay unchanged, or
// absent if they are new.
func applyPeering(ctx context.Context, s *engine.Side, c *plan.ClusterPlan, peer *engine.Side, later []int32) error {
	if unknown := c.Unknown(); len(unknown) > 0 {
		return s.Fail("apply Peering "+c.Peering.Name, fmt.Errorf("it is not known yet: %s", strings.Join(unknown, "; ")))
	}
	wanted := c.Peering.DeepCopy()
	if existing := s.Facts.Existing; existing != nil {
		isLater := func(plane v1alpha1.Plane, _ int) bool { return slices.Contains(later, plane.Index) }
		wanted.Spec.Planes = append(lo.Reject(wanted.Spec.Planes, isLater), lo.Filter(existing.Spec.Planes, isLater)...)
		slices.SortFunc(wanted.Spec.Planes, func(a, b v1alpha1.Plane) int { return cmp.Compare(a.Index, b.Index) })
	}
	return kube.RetryOnConflict(func() error {
		_, live, err := s.Read(ctx, wanted)
		if err != nil {
			return err
		}
		if live.GetUID() != s.Facts.Owner {
			return s.Fail("apply Peering "+wanted.Name, kube.ErrUnpeered)
		}
		// In this order, so that a host that is exposed after the Peering was read causes a conflict.
		if wanted.Spec.Local.Hosts, err = currentHosts(ctx, s.Cluster, peer.Cluster, wanted.Spec.Local.ExternalCIDR.Prefix); err != nil {
			return err
		}
		wanted.ResourceVersion, wanted.UID = live.GetResourceVersion(), live.GetUID()
		if err := s.Apply(ctx, wanted); err != nil {
			return err
		}
		if _, has, _ := unstructured.NestedSlice(live.Object, "status", "conditions"); has {
			return nil
		}
		return s.WritePending(ctx, wanted)
	})
}

// gatewayEndpoints waits until the Service has an address. It returns the endpoints of each plane's gateway as
// host:port, the preferred one first. If the user gave endpoints, it returns those.
func gatewayEndpoints(ctx context.Context, s *engine.Side, c *plan.ClusterPlan) (out map[int32][]string, err error) {
	if given := c.GivenEndpoints(); len(given) > 0 {
		return lo.SliceToMap(c.Gateways, func(g manifests.Gateway) (int32, []string) { return g.Plane, given }), nil
	}
	hint := fmt.Sprintf("%s -n %s describe service %s; or choose another --service-type", s.Kubectl, v1alpha1.Namespace, c.Service.Name)
	doing := fmt.Sprintf("wait for an address of Service %s (%s)", c.Service.Name, c.Service.Spec.Type)
	kinds := []client.ObjectList{&corev1.ServiceList{}}
	err = s.Await(ctx, doing, hint, kinds, func(_ context.Context, o kube.Objects) (string, error) {
		svc := kube.ByName[*corev1.Service](o, c.Service.Name)
		if svc == nil {
			return "", kube.ErrUnpeered
		}
		out = lo.SliceToMap(c.Gateways, func(g manifests.Gateway) (int32, []string) {
			return g.Plane, plan.ServiceEndpoints(svc, g.Plane, s.Facts.Nodes)
		})
		if lo.SomeBy(lo.Values(out), func(endpoints []string) bool { return len(endpoints) == 0 }) {
			return "it has none yet", nil
		}
		return "", nil
	})
	return out, err
}

// wait waits until both sides' gateways and all nodes report that packets pass, with the agents that were applied.
// Then it commits the changes, and deletes objects that are no longer needed.
func (p *run) wait(ctx context.Context) error {
	// Until the journals are closed, everything can be rolled back, in both clusters.
	commit := func(ctx context.Context, s, _ *engine.Side) error { return s.Journal.Close(ctx) }
	if err := failure.InOrder(ctx, p.onBoth(p.waitForPackets), p.onBoth(commit), p.onBoth(p.activate)); err != nil {
		return err
	}
	p.needsRollback = false
	if len(p.dropped) > 0 {
		return p.dropPlanes(ctx)
	}
	return p.forEachSide(ctx, p.cleanUp)
}

// dropPlanes removes planes that work but are no longer planned. It starts with their gateways, which run until nodes
// use others, and then cleans up.
func (p *run) dropPlanes(ctx context.Context) error {
	err := p.forEachSide(ctx, func(ctx context.Context, s, _ *engine.Side) error {
		for _, plane := range p.dropped {
			if err := s.StopGateway(ctx, manifests.Gateway{Peering: p.planOf(s).Peering.Name, Plane: plane}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	p.dropped = nil
	return failure.InOrder(ctx, p.onBoth(p.pushServices), p.pushPeerings(), p.onBoth(p.waitForPackets), p.onBoth(p.cleanUp))
}

// activate records in the ledger that the peering works, and the peer's identity.
func (p *run) activate(ctx context.Context, s, peer *engine.Side) error {
	_, err := engine.UpdateLedger(ctx, s.Cluster, func(cn *v1alpha1.ClusterNetwork) error {
		entry := plan.Allocation(cn, peer.ID)
		if entry == nil {
			return kube.ErrUnpeered
		}
		entry.Phase, entry.IdentityKey = v1alpha1.PeerActive, peer.Identity
		return nil
	})
	return s.Fail("write to the ledger that the peering works", err)
}

// cleanUp removes what a working peering no longer needs:
//   - the ranges that were kept free for it,
//   - its earlier keys,
//   - the Service of a former server,
//   - gateways of removed planes, and the disruption budget of several.
//
// It ignores errors: the next command removes what is left.
func (p *run) cleanUp(ctx context.Context, s, peer *engine.Side) error {
	c := p.planOf(s)
	_, _ = engine.UpdateLedger(ctx, s.Cluster, func(cn *v1alpha1.ClusterNetwork) error {
		entry := plan.Allocation(cn, peer.ID)
		if entry != nil && entry.Active() {
			entry.Previous = nil
		}
		return nil
	})
	labels := kube.PeeringLabels(c.Peering.Name)
	var stale []client.Object
	if c.Service == nil {
		stale, _ = s.ListManaged(ctx, &corev1.ServiceList{}, labels)
	}
	if c.Budget == nil {
		budgets, _ := s.ListManaged(ctx, &policyv1.PodDisruptionBudgetList{}, labels)
		stale = append(stale, budgets...)
	}
	for _, obj := range stale {
		if s.Delete(ctx, obj) == nil {
			s.RecordChange(kube.Describe(obj))
		}
	}
	for _, g := range c.Gateways {
		if g.PresharedKey > 1 {
			_ = deleteOtherKeys(ctx, s, g)
		}
	}
	planes := lo.Map(c.Gateways, func(g manifests.Gateway, _ int) string { return g.Labels()[v1alpha1.LabelPlane] })
	accounts, _ := s.ListManaged(ctx, &corev1.ServiceAccountList{}, labels) // they are deleted last
	for _, account := range accounts {
		plane := account.GetLabels()[v1alpha1.LabelPlane]
		if plane == "" || slices.Contains(planes, plane) {
			continue
		}
		labels[v1alpha1.LabelPlane] = plane
		if engine.DeleteAll(ctx, s.Cluster, labels) == nil {
			s.RecordChange("gateway of plane " + plane)
		}
	}
	_ = pruneStatus(ctx, s, c.Peering.Name)
	return nil
}

// pruneStatus removes reports of former gateways from a Peering's status: other gateways would keep calling their
// endpoints. It also removes the condition Redundant, which a former gateway may own, if one plane is left.
func pruneStatus(ctx context.Context, s *engine.Side, peering string) error {
	return kube.RetryOnConflict(func() error {
		live, err := kube.Get[v1alpha1.Peering](ctx, s.Cluster, "", peering)
		if live == nil || err != nil {
			return err
		}
		before := live.DeepCopy()
		live.Status.Planes = slices.DeleteFunc(live.Status.Planes, func(reported v1alpha1.PlaneStatus) bool { return live.Plane(reported.Index) == nil })
		if len(live.Spec.Planes) < 2 {
			meta.RemoveStatusCondition(&live.Status.Conditions, v1alpha1.ConditionRedundant)
		}
		if len(live.Status.Planes) == len(before.Status.Planes) && len(live.Status.Conditions) == len(before.Status.Conditions) {
			return nil
		}
		patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
		return s.Fail("remove former planes from the status of Peering "+peering, s.Client.Status().Patch(ctx, live, patch, client.FieldOwner(v1alpha1.FieldManager)))
	})
}

// waitForPackets is one side's part.
func (p *run) waitForPackets(ctx context.Context, s, peer *engine.Side) error {
	if c := p.planOf(s); c.AgentsWork && !p.skipsNodeAgents {
		if err := s.UpdateNodeAgents(ctx, c); err != nil {
			return err
		}
	}
	hint := fmt.Sprintf("%s -n %s logs -l app.kubernetes.io/name=liqonet --prefix", s.Kubectl, v1alpha1.Namespace)
	doing := fmt.Sprintf("wait until packets pass to %q", peer.Name)
	return engine.AwaitAgents(ctx, s.Cluster, doing, hint, engine.Agents{Gateways: p.planOf(s).Gateways, PriorFailures: s.PriorFailures}, func(o kube.Objects, beats status.Heartbeats, missing string) (string, error) {
		return p.checkProgress(s, o, beats, missing)
	})
}

// checkProgress stores the side's view of the peering in the result, and returns what is missing. That includes the missing
// agents: the reports may be from their predecessors.
func (p *run) checkProgress(s *engine.Side, o kube.Objects, beats status.Heartbeats, agents string) (string, error) {
	live := kube.ByName[*v1alpha1.Peering](o, p.planOf(s).Peering.Name)
	if live == nil {
		return "", kube.ErrUnpeered
	}
	v, _, err := status.ViewOf(s.Cluster, live, o, beats)
	if err != nil {
		return "", err
	}
	p.result.Views[s.Index] = v
	still := s.PriorFailures.Remaining(o, beats)
	p.mu.Lock()
	p.skipped[s.Index] = still
	missing := status.MissingExcept(live, v, func(plane status.PlaneView) bool { return p.isSkipped(plane.Index) }, still.Nodes)
	p.mu.Unlock()
	if p.roles.observe(s.Index, status.Unanswered(live)) {
		return "", errUnanswered
	}
	return cmp.Or(agents, missing), nil
}

// isSkipped reports whether neither cluster waits for a plane.
func (p *run) isSkipped(plane int32) bool {
	return slices.Contains(p.skipped[0].Planes, plane) || slices.Contains(p.skipped[1].Planes, plane)
}

// notesOfSkipped returns notes about what was not waited for, and why.
func (p *run) notesOfSkipped() (notes []string) {
	for i, s := range p.sides {
		for _, plane := range p.skipped[i].Planes {
			notes = append(notes, fmt.Sprintf("plane %d does not work, as before: its gateway in %s has no node", plane, s.Name))
		}
		if silent := p.skipped[i].Nodes; len(silent) > 0 {
			notes = append(notes, fmt.Sprintf("%s: as before, no agent reports from %s", s.Name, kube.FirstOf(3, silent)))
		}
	}
	return notes
}
