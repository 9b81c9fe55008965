package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
)

// RevertChanges rolls back the changes of a command for one peering, without a journal. It does not wait for packets, which
// need both clusters to be rolled back.
func RevertChanges(ctx context.Context, c *kube.Cluster, changes []Change) error {
	return NewSide(c, 0).RollBack(ctx, changes, func(context.Context, Agents) error { return nil })
}

// revertAll reverts changes, the last one first, and continues after errors. Objects that were changed since are left
// alone and reported.
func revertAll(ctx context.Context, c *kube.Cluster, changes []Change) error {
	var errs []error
	for _, ch := range slices.Backward(changes) {
		errs = append(errs, kube.RetryOnConflict(func() error { return revertOne(ctx, c, ch) }))
	}
	return errors.Join(errs...)
}

func revertOne(ctx context.Context, c *kube.Cluster, ch Change) error {
	_, live, err := c.Read(ctx, ch.object())
	if err != nil {
		return err
	}
	switch {
	case live.GetResourceVersion() == "":
		return nil
	case !kube.Contains(live.Object, ch.After):
		reportFieldManagers(ctx, c, ch)
		return nil
	case ch.Before == nil:
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

// reportFieldManagers reports the fields that others have set since a change, which therefore is not reverted.
func reportFieldManagers(ctx context.Context, c *kube.Cluster, ch Change) {
	again := client.ApplyConfigurationFromUnstructured(ch.object().DeepCopy())
	fields, _ := kube.Conflicts(ch.object(), c.Client.Apply(ctx, again, client.FieldOwner(v1alpha1.FieldManager), client.DryRunAll))
	c.Notice(ctx, fields, "the object stays as it is")
}

// RestoreRanges restores the peer's former ranges, which were kept free.
func RestoreRanges(ctx context.Context, c *kube.Cluster, peerID string) error {
	_, err := UpdateLedger(ctx, c, func(cn *v1alpha1.ClusterNetwork) error {
		entry := plan.Allocation(cn, peerID)
		if entry == nil || entry.Previous == nil {
			return kube.ErrUnchanged
		}
		entry.Pods, entry.ExternalCIDR, entry.Previous = entry.Previous.Pods, entry.Previous.ExternalCIDR, nil
		return nil
	})
	if errors.Is(err, kube.ErrUninstalling) {
		return nil
	}
	return err
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
	if sharedOnly {
		changes = slices.DeleteFunc(changes, func(ch Change) bool { return !ch.Shared() })
	} else if err := RestoreRanges(ctx, c, peerID); err != nil {
		return err
	}
	if err := RevertChanges(ctx, c, changes); err != nil {
		return err
	}
	if !sharedOnly {
		if err := DeleteUnusedKeys(ctx, c, peerID); err != nil {
			return err
		}
	}
	return c.Delete(ctx, obj)
}

// DeleteUnusedKeys deletes the keys of planes that a peering which has worked does not have, after its changes are rolled
// back: a journal has no Secrets. Those of a gateway that others have changed since are left alone.
func DeleteUnusedKeys(ctx context.Context, c *kube.Cluster, peerID string) error {
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
	used := sets.New("") // of no plane
	for _, plane := range p.Spec.Planes {
		used.Insert(strconv.Itoa(int(plane.Index)))
	}
	for _, d := range deployments {
		used.Insert(d.GetLabels()[v1alpha1.LabelPlane])
	}
	secrets, err := c.ListManaged(ctx, kube.SecretNames(), kube.PeeringLabels(entry.Name))
	unused := slices.DeleteFunc(secrets, func(s client.Object) bool { return used.Has(s.GetLabels()[v1alpha1.LabelPlane]) })
	return cmp.Or(err, c.DeleteEach(ctx, unused))
}

// RollBack rolls back changes: gateways in the reverse order of planes, and then everything else. Objects that others
// have changed since are left alone. It continues after errors.
func (s *Side) RollBack(ctx context.Context, changes []Change, await func(context.Context, Agents) error) error {
	var rest, last []Change
	var planes []string
	first := map[string]Change{}
	for _, c := range changes {
		obj := c.object()
		if obj.GetKind() != "Deployment" || c.Before == nil {
			rest = append(rest, c)
			continue
		}
		if plane := obj.GetLabels()[v1alpha1.LabelPlane]; !slices.Contains(planes, plane) {
			planes = append(planes, plane)
		}
		if _, known := first[obj.GetName()]; !known {
			first[obj.GetName()] = c
		}
		last = slices.DeleteFunc(last, func(l Change) bool { return l.object().GetName() == obj.GetName() })
		last = append(last, c)
	}
	var errs []error
	for _, plane := range slices.Backward(planes) {
		var g errgroup.Group // each continues if another fails
		wait := Agents{Nodes: NoNodes()}
		for _, c := range last {
			if obj := c.object(); obj.GetLabels()[v1alpha1.LabelPlane] == plane {
				wait.Gateways = append(wait.Gateways, gatewayIn(obj))
				g.Go(func() error {
					return failure.Caught(func() error { return s.rollBackGateway(ctx, Change{first[obj.GetName()].Before, c.After}) })
				})
			}
		}
		err := g.Wait()
		if err == nil {
			err = await(ctx, wait)
		}
		errs = append(errs, err)
	}
	return errors.Join(append(errs, revertAll(ctx, s.Cluster, rest))...)
}

// rollBackGateway rolls back one gateway, unless others have changed it since.
func (s *Side) rollBackGateway(ctx context.Context, c Change) error {
	_, live, err := s.Read(ctx, c.object())
	if err != nil || live.GetResourceVersion() == "" {
		return err
	}
	if !kube.Contains(live.Object, c.After) {
		reportFieldManagers(ctx, s.Cluster, c)
		return nil
	}
	g := gatewayIn(live)
	p, err := kube.Get[v1alpha1.Peering](ctx, s.Cluster, "", g.Peering)
	if p == nil || err != nil {
		return err
	}
	return s.ReplaceGateway(ctx, g, &unstructured.Unstructured{Object: runtime.DeepCopyJSON(c.Before)}, len(p.Spec.Planes) == 1)
}
