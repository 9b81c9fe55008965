package peering

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/samber/lo"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/admission"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/status"
)

// apply applies the plan.
func (p *pusher) apply(ctx context.Context) error {
	batches, err := p.batches(ctx)
	if err != nil {
		return err
	}
	steps := []step{p.onBothSides(p.pushServices)}
	for i, planes := range batches {
		if i > 0 {
			steps = append(steps, p.onBothSides(p.waitForPackets))
		}
		later := slices.Concat(slices.Concat(batches[i+1:]...), p.dropped)
		steps = append(steps, p.pushGateways(planes, len(batches) == 1 && len(p.dropped) == 0), p.pushPeerings(later...))
	}
	return failure.RunSteps(ctx, steps...)
}

// batches returns batches of planes whose gateways are applied together. If packets pass through all of several planes,
// each plane to be replaced is a batch, so that nodes can use another one in the meantime. All other planes are the first
// batch, including those of which a cluster has no pod after an interrupted command: each batch waits for all planes.
// Then planes that are no longer planned are dropped last, otherwise at once.
func (p *pusher) batches(ctx context.Context) (_ [][]int32, err error) {
	replaced, podless := sets.New[int32](), sets.New[int32]()
	for _, s := range p.sides {
		for _, g := range p.planOf(s).Gateways {
			_, deployment := g.Objects()
			if _, err := engine.DropOldOverlayKeys(ctx, s.Cluster, &deployment.Spec.Template.Spec); err != nil {
				return nil, err
			}
			want, there, err := s.Read(ctx, deployment)
			if err != nil {
				return nil, err
			}
			isThere := there.GetResourceVersion() != ""
			if !isThere || engine.IsStopped(there) {
				podless.Insert(g.Plane)
			}
			if isThere && !engine.SameTemplate(there, want) {
				replaced.Insert(g.Plane)
			}
		}
	}
	planes, dropped := p.planes(), p.unplannedPlanes()
	inTurn := len(replaced) > 0 && len(planes) > 1 || len(dropped) > 0
	if inTurn { // replace planes that do not work at once
		if inTurn, err = p.allPlanesPass(ctx); err != nil {
			return nil, err
		}
	}
	p.dropped = lo.Ternary(inTurn, dropped, nil)
	alone, together := lo.FilterReject(planes, func(plane int32, _ int) bool {
		return inTurn && replaced.Has(plane) && !podless.Has(plane)
	})
	batches := append([][]int32{together}, lo.Chunk(alone, 1)...)
	return slices.DeleteFunc(batches, func(planes []int32) bool { return len(planes) == 0 }), nil
}

// unplannedPlanes returns the existing planes that are no longer planned.
func (p *pairing) unplannedPlanes() []int32 {
	planes := sets.New[int32]()
	for _, s := range p.sides {
		for _, plane := range lo.FromPtr(s.Facts.Existing).Spec.Planes {
			if p.planOf(s).Peering.Plane(plane.Index) == nil {
				planes.Insert(plane.Index)
			}
		}
	}
	return sets.List(planes)
}

// allPlanesPass reports whether packets pass through all planes in both clusters. The report of a gateway that an interrupted
// command has deleted stays for a while.
func (p *pairing) allPlanesPass(ctx context.Context) (bool, error) {
	var works [2]bool
	err := p.forEachSide(ctx, func(ctx context.Context, s, peer *engine.Side) error {
		v, err := view(ctx, s, peer)
		gateways, listErr := s.ListManaged(ctx, kube.PeeringLabels(p.planOf(s).Peering.Name), &appsv1.DeploymentList{})
		names := lo.Map(gateways, func(d client.Object, _ int) string { return d.GetName() })
		works[s.Index] = passesThroughAll(v) && lo.EveryBy(v.Planes, func(plane status.PlaneView) bool {
			return slices.Contains(names, v1alpha1.GatewayName(p.planOf(s).Peering.Name, plane.Index))
		})
		return cmp.Or(err, listErr)
	})
	return works == [2]bool{true, true}, err
}

// pushServices is one side's part. Ports of planes to be dropped stay open until they are.
func (p *pusher) pushServices(ctx context.Context, s, _ *engine.Side) error {
	objs := plan.ObjectsInStage(p.planOf(s).Objects, plan.Exposure, "")
	for i, obj := range objs {
		service, is := obj.(*corev1.Service)
		if !is || s.Facts.Service == nil {
			continue
		}
		service = service.DeepCopy()
		service.Spec.Ports = append(service.Spec.Ports, lo.Filter(s.Facts.Service.Spec.Ports, func(port corev1.ServicePort, _ int) bool {
			return slices.ContainsFunc(p.dropped, func(plane int32) bool { return port.Name == v1alpha1.PlanePortName(plane) })
		})...)
		objs[i] = service
	}
	return s.Apply(ctx, objs...)
}

// pushGateways applies the gateways of planes in both clusters. Unless noRedundancy, each starts after its predecessor has exited.
func (p *pusher) pushGateways(planes []int32, noRedundancy bool) step {
	return p.onBothSides(func(ctx context.Context, s, _ *engine.Side) error {
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

// applyGateway applies the objects of a gateway as planned.
func applyGateway(ctx context.Context, s *engine.Side, c *plan.ClusterPlan, g manifests.Gateway, noRedundancy bool) error {
	if err := s.Apply(ctx, plan.ObjectsInStage(c.Objects, plan.GatewayAccount, g.Name())...); err != nil {
		return err
	}
	deployment := plan.ObjectsInStage(c.Objects, plan.GatewayWorkload, g.Name())[0].DeepCopyObject().(*appsv1.Deployment)
	for isApplied := false; ; isApplied = true { // again, if another command has retired a key in the meantime
		changed, err := engine.DropOldOverlayKeys(ctx, s.Cluster, &deployment.Spec.Template.Spec)
		if err != nil || isApplied && !changed {
			return err
		}
		if err := s.ReplaceGateway(ctx, g, manifests.ToApply(deployment), noRedundancy); err != nil {
			return err
		}
	}
}

// pushPeerings applies both Peerings once the endpoints of the server's gateways are known. Planes in unchanged stay
// unchanged.
func (p *pusher) pushPeerings(unchanged ...int32) step {
	return func(ctx context.Context) error {
		server := p.sides[p.plan.Server()]
		endpoints, err := gatewayEndpoints(ctx, server, p.planOf(server))
		if err != nil {
			return err
		}
		p.plan = p.plan.Resolve(endpoints)
		return p.forEachSide(ctx, func(ctx context.Context, s, peer *engine.Side) error {
			return applyPeering(ctx, s, p.planOf(s), peer, unchanged)
		})
	}
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
	err = s.Await(ctx, doing, hint, kinds, func(o kube.Objects) (string, error) {
		svc := kube.ByName[*corev1.Service](o, c.Service.Name)
		if svc == nil {
			return "", kube.ErrUnpeered
		}
		out = lo.SliceToMap(c.Gateways, func(g manifests.Gateway) (int32, []string) {
			return g.Plane, plan.ServiceEndpoints(svc, g.Plane, s.Facts.Network.Nodes)
		})
		isKnown := lo.EveryBy(lo.Values(out), func(endpoints []string) bool { return len(endpoints) > 0 })
		return lo.Ternary(isKnown, "", "it has none yet"), nil
	})
	return out, err
}

// applyPeering applies the Peering as planned, with the currently exposed hosts. Planes in unchanged stay unchanged, or
// absent if they are new.
func applyPeering(ctx context.Context, s *engine.Side, c *plan.ClusterPlan, peer *engine.Side, unchanged []int32) error {
	if unknown := c.Unknown(); len(unknown) > 0 {
		return s.Wrap("apply Peering "+c.Peering.Name, fmt.Errorf("it is not known yet: %s", strings.Join(unknown, "; ")))
	}
	wanted := c.Peering.DeepCopy()
	if existing := s.Facts.Existing; existing != nil {
		isLater := func(plane v1alpha1.Plane, _ int) bool { return slices.Contains(unchanged, plane.Index) }
		wanted.Spec.Planes = append(lo.Reject(wanted.Spec.Planes, isLater), lo.Filter(existing.Spec.Planes, isLater)...)
		slices.SortFunc(wanted.Spec.Planes, func(a, b v1alpha1.Plane) int { return cmp.Compare(a.Index, b.Index) })
	}
	return kube.RetryOnConflict(func() error {
		_, live, err := s.Read(ctx, wanted)
		if err != nil {
			return err
		}
		if live.GetUID() != s.Facts.Owner {
			return s.Wrap("apply Peering "+wanted.Name, kube.ErrUnpeered)
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
		return engine.WritePending(ctx, s.Cluster, wanted)
	})
}

// currentHosts returns the currently exposed hosts from the ledger, which other commands may change.
func currentHosts(ctx context.Context, c *kube.Cluster, peer *kube.Cluster, external netip.Prefix) ([]v1alpha1.AddressMapping, error) {
	entry, err := c.ReadLedgerEntry(ctx, peer.ID)
	if entry == nil {
		return nil, c.Wrap("read which hosts are exposed", cmp.Or(err, kube.ErrUnpeered))
	}
	return plan.HostMappings(entry, external)
}

// pushPlane replaces the gateways of a plane as planned. When their predecessors have exited, it applies the Peerings
// and waits until packets pass through all planes.
func (p *pusher) pushPlane(ctx context.Context, plane int32) error {
	noRedundancy := !slices.ContainsFunc(p.planes(), func(other int32) bool { return other != plane && !p.isSkipped(other) })
	steps := []step{p.onBothSides(p.pushServices), p.pushGateways([]int32{plane}, noRedundancy)}
	if noRedundancy {
		steps = append(steps, p.onBothSides(func(ctx context.Context, s, _ *engine.Side) error {
			return engine.AwaitTerminated(ctx, s.Cluster, manifests.Gateway{Peering: p.planOf(s).Peering.Name, Plane: plane})
		}))
	}
	return failure.RunSteps(ctx, append(steps, p.pushPeerings(), p.onBothSides(p.waitForPackets))...)
}

// dropPlanes removes planes that work but are no longer planned. It starts with their gateways, which run until nodes
// use others, and then cleans up.
func (p *pusher) dropPlanes(ctx context.Context) error {
	err := p.forEachSide(ctx, func(ctx context.Context, s, _ *engine.Side) error {
		for _, plane := range p.dropped {
			if err := engine.StopGateway(ctx, s.Cluster, manifests.Gateway{Peering: p.planOf(s).Peering.Name, Plane: plane}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	p.dropped = nil
	return failure.RunSteps(ctx, p.onBothSides(p.pushServices), p.pushPeerings(), p.onBothSides(p.waitForPackets), p.onBothSides(p.cleanUp))
}

// cleanUp removes what a working peering no longer needs:
//   - the ranges that were kept free for it,
//   - its earlier keys,
//   - the Service of a former server,
//   - gateways of removed planes, and the disruption budget of several.
//
// It ignores errors: the next command removes what is left.
func (p *pusher) cleanUp(ctx context.Context, s, peer *engine.Side) error {
	c := p.planOf(s)
	_, _ = engine.UpdateEntry(ctx, s.Cluster, peer.ID, engine.ForgetPrevious)
	if !c.Services && s.Facts.Existing != nil && s.Facts.Existing.Spec.Services != nil {
		if err := engine.DeleteReceived(ctx, s.Cluster, c.Peering.Name); err != nil {
			return err
		}
	}
	labels := kube.PeeringLabels(c.Peering.Name)
	var stale []client.Object
	if c.Service == nil {
		stale, _ = s.ListManaged(ctx, labels, &corev1.ServiceList{})
	}
	if c.Budget == nil {
		budgets, _ := s.ListManaged(ctx, labels, &policyv1.PodDisruptionBudgetList{})
		stale = append(stale, budgets...)
	}
	for _, obj := range stale {
		if s.Delete(ctx, obj) == nil {
			s.RecordChange(kube.Describe(obj))
		}
	}
	for _, g := range c.Gateways {
		if g.PresharedKey > 1 {
			_ = deleteStaleKeys(ctx, s, g)
		}
	}
	planes := lo.Map(c.Gateways, func(g manifests.Gateway, _ int) string { return g.Labels()[v1alpha1.LabelPlane] })
	accounts, _ := s.ListManaged(ctx, labels, &corev1.ServiceAccountList{}) // they are deleted last
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
		live.Status.Planes = slices.DeleteFunc(live.Status.Planes, func(r v1alpha1.PlaneStatus) bool { return live.Plane(r.Index) == nil })
		if len(live.Spec.Planes) < 2 {
			meta.RemoveStatusCondition(&live.Status.Conditions, v1alpha1.ConditionRedundant)
		}
		if len(live.Status.Planes) == len(before.Status.Planes) && len(live.Status.Conditions) == len(before.Status.Conditions) {
			return nil
		}
		patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
		return s.Wrap("remove former planes from the status of Peering "+peering, s.Client.Status().Patch(ctx, live, patch, kube.FieldOwner))
	})
}

// addTemporary adds a plane for packets while the gateways of another one are replaced.
func (p *pusher) addTemporary(ctx context.Context) error {
	if err := failure.RunSteps(ctx, p.setTemporary(true), p.makeAllKeys, p.makePlan); err != nil {
		return err
	}
	return p.pushPlane(ctx, lo.LastOrEmpty(p.planes()))
}

// removeTemporary moves nodes off the temporary plane, and removes it.
func (p *pusher) removeTemporary(ctx context.Context) error {
	if err := p.setTemporary(false)(ctx); err != nil {
		return err
	}
	p.dropped = p.unplannedPlanes()
	return p.dropPlanes(ctx)
}

// setTemporary returns a step that plans with a temporary plane, or without one.
func (p *pairing) setTemporary(wanted bool) step {
	return func(ctx context.Context) error {
		if err := p.readPeerings(ctx); err != nil {
			return err
		}
		for _, s := range p.sides {
			s.Intent.Temporary = wanted
		}
		return p.makePlan(ctx)
	}
}

// readPeerings reads the current Peerings of both sides.
func (p *pairing) readPeerings(ctx context.Context) error {
	return p.forEachSide(ctx, func(ctx context.Context, s, _ *engine.Side) error {
		s.Intent.Renew = nil
		err := engine.ReadPeering(ctx, s.Cluster, p.planOf(s).Peering.Name, &s.Facts)
		if err == nil && s.Facts.Existing == nil {
			err = s.Wrap("read the Peering", kube.ErrUnpeered)
		}
		return err
	})
}

// compareObjects sets the action of each object, and may detect conflicts with other managers in those that change.
func compareObjects(ctx context.Context, s *engine.Side, objects []plan.ObjectPlan, detectConflicts bool) error {
	return failure.ForEach(ctx, kube.Pointers(objects), func(ctx context.Context, o *plan.ObjectPlan) (err error) {
		if o.Action != "" {
			return nil
		}
		if o.Action, err = action(ctx, s, o, detectConflicts); apierrors.IsForbidden(err) {
			o.Action, o.Reason, err = plan.Unclear, o.Reason+"; it may not be read", nil
		}
		return err
	})
}

// action compares an object with the live one. Values that are not yet known count as changed.
func action(ctx context.Context, s *engine.Side, o *plan.ObjectPlan, detectConflicts bool) (plan.Action, error) {
	if o.Kind == "Secret" {
		return actionOnSecret(ctx, s, o)
	}
	manifest, isWhole := plan.KnownPart(o.Manifest)
	want, live, err := s.Read(ctx, &unstructured.Unstructured{Object: manifest})
	if err != nil {
		return "", err
	}
	does := plan.Change
	switch runsPods := o.Kind == "DaemonSet" || o.Kind == "Deployment"; {
	case live.GetResourceVersion() == "", live.GetDeletionTimestamp() != nil:
		if does = plan.Create; !runsPods {
			return does, nil
		}
	case isWhole && kube.Contains(live.Object, want.Object):
		if does = plan.Keep; !runsPods {
			return does, nil
		}
	case detectConflicts:
		if err := s.Changes.Conflicts.Detect(ctx, s.Cluster, want, live); err != nil {
			return "", err
		}
	}
	made, err := kube.Preview(ctx, s.Client, want)
	reasons := []string{o.Reason}
	switch {
	case err != nil && admission.Hint(err.Error()) != "":
		reasons = append(reasons, "the cluster refuses it: "+err.Error())
	case err != nil, does == plan.Create, does == plan.Keep && made.GetGeneration() == live.GetGeneration():
		// The namespace may not exist yet, or the user may not do a dry run.
	default: // even if it is as planned, admission may have changed since: its pods would be replaced
		does, reasons = plan.Change, append(reasons, admission.Differences(live, made)...)
	}
	o.Reason = strings.Join(lo.Compact(reasons), "; ")
	return does, nil
}

// actionOnSecret reads only metadata: the data of a Secret never changes, but its owner may.
func actionOnSecret(ctx context.Context, s *engine.Side, o *plan.ObjectPlan) (plan.Action, error) {
	switch live, err := s.ReadSecret(ctx, o.Name); {
	case err != nil:
		return "", err
	case live == nil || live.DeletionTimestamp != nil:
		return plan.Create, nil
	case live.Labels[v1alpha1.LabelPlane] != "" && !status.Owns(s.Facts.Owner, live):
		return plan.Change, nil
	}
	return plan.Keep, nil
}
