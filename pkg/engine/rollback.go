package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"

	"github.com/samber/lo"
	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// Revert rolls back the changes of a command for one peering, without a journal. With sharedOnly it leaves out the
// peering's own objects, which are removed. It does not wait for packets, which need both clusters to be rolled back.
func Revert(ctx context.Context, c *kube.Cluster, peerID string, changes []Change, sharedOnly bool) error {
	if sharedOnly {
		changes = lo.Filter(changes, func(ch Change, _ int) bool {
			return ch.object().GetLabels()[v1alpha1.LabelPeering] == "" && ch.object().GetKind() != "Peering"
		})
	}
	err := NewSide(c, 0).RollBack(ctx, changes, func(context.Context, Agents) error { return nil })
	if err != nil || sharedOnly {
		return err
	}
	return deleteKeysWithoutPlane(ctx, c, peerID)
}

// revertOne reverts a change, unless others have changed the object since.
func revertOne(ctx context.Context, c *kube.Cluster, ch Change) error {
	live, err := revertible(ctx, c, ch)
	if live == nil || err != nil {
		return err
	}
	if ch.Before == nil {
		return c.Delete(ctx, live)
	}
	back := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(ch.Before)}
	back.SetResourceVersion(live.GetResourceVersion())
	back.SetUID(live.GetUID()) // without it, a deleted object would be created
	if back.GetKind() == "DaemonSet" {
		manifests.KeepOverlayKeys(back, live) // other commands may use one that was added since
	}
	return c.Write(ctx, back)
}

// revertible reads the object of a change. It returns nil if that is gone, or if others have changed it since: then the change is not
// reverted, and the fields that they have set are reported.
func revertible(ctx context.Context, c *kube.Cluster, ch Change) (*unstructured.Unstructured, error) {
	_, live, err := c.Read(ctx, ch.object())
	if err != nil || live.GetResourceVersion() == "" {
		return nil, err
	}
	if kube.Contains(live.Object, ch.After) {
		return live, nil
	}
	again := client.ApplyConfigurationFromUnstructured(ch.object().DeepCopy())
	fields, _ := kube.Conflicts(live, c.Client.Apply(ctx, again, client.FieldOwner(v1alpha1.FieldManager), client.DryRunAll))
	kube.Notice(ctx, c.Name, fields, "the object stays as it is")
	return nil, nil
}

// RevertInterrupted rolls back the changes of a killed command for this peering, whose lock is held. With sharedOnly it
// leaves out the peering's own objects.
func RevertInterrupted(ctx context.Context, c *kube.Cluster, peerID, peering string, sharedOnly bool) error {
	obj, err := kube.Get[corev1.Secret](ctx, c, v1alpha1.Namespace, JournalSecret(peering).Name)
	if obj == nil || err != nil {
		return err
	}
	var changes []Change
	if raw := obj.Data[JournalKey]; len(raw) > 0 {
		if err := json.Unmarshal(raw, &changes); err != nil {
			return c.Fail("read "+kube.Describe(obj), err)
		}
	}
	if !sharedOnly {
		if err := RestoreRanges(ctx, c, peerID); err != nil {
			return err
		}
	}
	if err := Revert(ctx, c, peerID, changes, sharedOnly); err != nil {
		return err
	}
	return c.Delete(ctx, obj)
}

// deleteKeysWithoutPlane deletes the keys of planes that a peering which has worked does not have, after its changes are rolled
// back: a journal has no Secrets. Those of a gateway that others have changed since are left alone.
func deleteKeysWithoutPlane(ctx context.Context, c *kube.Cluster, peerID string) error {
	entry, err := c.Entry(ctx, peerID)
	if entry == nil || !entry.Active() || err != nil {
		return err
	}
	p, err := kube.Get[v1alpha1.Peering](ctx, c, "", entry.Name)
	if p == nil || err != nil {
		return err
	}
	deployments, err := c.ListManaged(ctx, &appsv1.DeploymentList{}, kube.PeeringLabels(entry.Name))
	if err != nil {
		return err
	}
	planeOf := func(obj client.Object, _ int) string { return obj.GetLabels()[v1alpha1.LabelPlane] }
	used := append(lo.Map(deployments, planeOf), "") // what belongs to no plane
	for _, plane := range p.Spec.Planes {
		used = append(used, strconv.Itoa(int(plane.Index)))
	}
	secrets, err := c.ListManaged(ctx, kube.SecretNames(), kube.PeeringLabels(entry.Name))
	unused := lo.Reject(secrets, func(s client.Object, i int) bool { return slices.Contains(used, planeOf(s, i)) })
	return cmp.Or(err, c.DeleteEach(ctx, unused))
}

// RollBack rolls back changes: gateways in the reverse order of planes, and then everything else. Objects that others
// have changed since are left alone. It continues after errors.
func (s *Side) RollBack(ctx context.Context, changes []Change, await func(context.Context, Agents) error) error {
	var rest []Change
	var planes []string                        // in the order of their first change
	gateways := map[string]map[string]Change{} // of each plane, by name: from before the first change to after the last
	for _, c := range changes {
		obj := c.object()
		if obj.GetKind() != "Deployment" || c.Before == nil {
			rest = append(rest, c)
			continue
		}
		plane := obj.GetLabels()[v1alpha1.LabelPlane]
		if gateways[plane] == nil {
			planes, gateways[plane] = append(planes, plane), map[string]Change{}
		}
		if first, known := gateways[plane][obj.GetName()]; known {
			c.Before = first.Before
		}
		gateways[plane][obj.GetName()] = c
	}
	var errs []error
	for _, plane := range slices.Backward(planes) {
		var g errgroup.Group // each continues if another fails
		wait := Agents{Nodes: NoNodes()}
		for _, name := range slices.Sorted(maps.Keys(gateways[plane])) {
			c := gateways[plane][name]
			wait.Gateways = append(wait.Gateways, gatewayIn(c.object()))
			g.Go(func() error { return failure.Caught(func() error { return s.rollBackGateway(ctx, c) }) })
		}
		err := g.Wait()
		if err == nil {
			err = await(ctx, wait)
		}
		errs = append(errs, err)
	}
	for _, ch := range slices.Backward(rest) {
		errs = append(errs, kube.RetryOnConflict(func() error { return revertOne(ctx, s.Cluster, ch) }))
	}
	return errors.Join(errs...)
}

// rollBackGateway rolls back one gateway, unless others have changed it since.
func (s *Side) rollBackGateway(ctx context.Context, c Change) error {
	live, err := revertible(ctx, s.Cluster, c)
	if live == nil || err != nil {
		return err
	}
	g := gatewayIn(live)
	p, err := kube.Get[v1alpha1.Peering](ctx, s.Cluster, "", g.Peering)
	if p == nil || err != nil {
		return err
	}
	return s.ReplaceGateway(ctx, g, &unstructured.Unstructured{Object: runtime.DeepCopyJSON(c.Before)}, len(p.Spec.Planes) == 1)
}
