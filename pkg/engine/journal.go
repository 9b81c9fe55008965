package engine

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
)

// JournalKey is where in the journal the changes are.
const JournalKey = "changes.json"

// JournalOf is the Secret in which a command for the peering writes down what it changes.
func JournalOf(peering string) *corev1.Secret {
	return manifests.Journal("journal-"+peering, peering)
}

// journal has the objects as they were before a command changed them. It is kept in
// a Secret, so that the next command can put back what an interrupted one
// changed. No other Secret is ever in it: what is in these is never changed. Agents may
// write ConfigMaps, but no Secrets: a command must not take instructions from them.
type journal struct {
	cluster *kube.Cluster
	// Created says that objects which were not there before are noted too. They are
	// where the peering has worked: otherwise all objects of the peering are removed.
	Created bool

	// turn is taken by whoever reads or writes what follows, also while a request is under way.
	turn    chan struct{}
	Changes []Change
	object  *corev1.Secret // nil before start
}

// Change is what was, or is going to be, done to one object. Without Before it was
// not there.
type Change struct {
	Before map[string]any `json:"before,omitempty"`
	After  map[string]any `json:"after"`
}

// start creates the journal's Secret.
func (j *journal) start(ctx context.Context, peering string) error {
	obj := JournalOf(peering)
	if err := j.cluster.Create(ctx, obj); err != nil {
		return j.cluster.Fail("write down what is changed", kube.UninstallingIfTerminating(err))
	}
	j.object = obj
	return nil
}

// note writes down changes before they are made.
func (j *journal) note(ctx context.Context, changes ...Change) error {
	j.turn <- struct{}{}
	defer func() { <-j.turn }()
	noted := len(j.Changes)
	for _, ch := range changes {
		// Definitions are changed by addition only, and are large.
		if (ch.Before != nil || j.Created) && !kube.IsDefinition(ch.object()) {
			j.Changes = append(j.Changes, ch)
		}
	}
	if len(j.Changes) == noted || j.object == nil {
		return nil // without the Secret there is nothing yet that could be lost
	}
	raw, err := json.Marshal(j.Changes)
	if err == nil {
		obj := j.object.DeepCopy()
		obj.Data = map[string][]byte{JournalKey: raw}
		patch := client.MergeFromWithOptions(j.object, client.MergeFromWithOptimisticLock{})
		if err = j.cluster.Client.Patch(ctx, obj, patch, client.FieldOwner(v1alpha1.FieldManager)); err == nil {
			j.object = obj
		}
	}
	return j.cluster.Fail("write down what is changed", err)
}

// End deletes the Secret: what was changed is to stay, or is put back.
func (j *journal) End(ctx context.Context) error {
	if j.object == nil {
		return nil
	}
	if err := j.cluster.Delete(ctx, j.object); err != nil {
		return err
	}
	j.object = nil
	return nil
}

// newChange is what applying an object does to the one that is there: to the fields
// that are applied.
func newChange(live, want *unstructured.Unstructured) Change {
	ch := Change{After: runtime.DeepCopyJSON(want.Object)}
	if live.GetResourceVersion() != "" {
		ch.Before = runtime.DeepCopyJSON(reduce(live.Object, want.Object).(map[string]any))
	}
	return ch
}

func (c Change) object() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: c.After}
}

// Shared says that the object belongs to no single peering.
func (c Change) Shared() bool {
	obj := c.object()
	return obj.GetLabels()[v1alpha1.LabelPeering] == "" && obj.GetKind() != "Peering"
}

// PutBack puts back what a command for one peering has changed, and writes none of that down. Packets pass when both clusters have done so: it does
// not wait for them.
func PutBack(ctx context.Context, c *kube.Cluster, changes []Change) error {
	return NewSide(c, 0).GoBack(ctx, changes, func(context.Context, Agents) error { return nil })
}

// undo puts back what was changed, the last first. An object that is not as it was
// left by the change is somebody else's by now, and stays. It is named. It goes on where
// something cannot be put back.
func undo(ctx context.Context, c *kube.Cluster, changes []Change) error {
	var errs []error
	for _, ch := range slices.Backward(changes) {
		errs = append(errs, kube.RetryOnConflict(func() error { return undoOne(ctx, c, ch) }))
	}
	return errors.Join(errs...)
}

func undoOne(ctx context.Context, c *kube.Cluster, ch Change) error {
	_, live, err := c.Read(ctx, ch.object())
	if err != nil {
		return err
	}
	switch {
	case live.GetResourceVersion() == "":
		return nil
	case !kube.Contains(live.Object, ch.After):
		tellWhoHas(ctx, c, ch)
		return nil
	case ch.Before == nil:
		return c.Delete(ctx, live)
	}
	back := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(ch.Before)}
	back.SetResourceVersion(live.GetResourceVersion())
	back.SetUID(live.GetUID()) // without it, one that is gone by then would be created
	if back.GetKind() == "DaemonSet" {
		manifests.KeepOverlayKeys(back, live) // others may use one that was added since
	}
	return c.Write(ctx, back)
}

// tellWhoHas names the fields that others have set since a change, which is not put back therefore.
func tellWhoHas(ctx context.Context, c *kube.Cluster, ch Change) {
	again := client.ApplyConfigurationFromUnstructured(ch.object().DeepCopy())
	fields, _ := kube.Conflicts(ch.object(), c.Client.Apply(ctx, again, client.FieldOwner(v1alpha1.FieldManager), client.DryRunAll))
	c.Notice(ctx, fields, "the object stays as it is")
}

// UndoRanges gives the peer the ranges back that it had before they were changed.
// They were kept free for it.
func UndoRanges(ctx context.Context, c *kube.Cluster, peerID string) error {
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

// UndoInterrupted puts back what a command changed that was killed. It was one for this peering, whose lock is held. With sharedOnly it
// leaves out the peering's own objects.
func UndoInterrupted(ctx context.Context, c *kube.Cluster, peerID, peering string, sharedOnly bool) error {
	obj, err := kube.Get[corev1.Secret](ctx, c, v1alpha1.Namespace, JournalOf(peering).Name)
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
	} else if err := UndoRanges(ctx, c, peerID); err != nil {
		return err
	}
	if err := PutBack(ctx, c, changes); err != nil {
		return err
	}
	return c.Delete(ctx, obj)
}

// reduce is have without the fields that like does not have. Lists are whole:
// their items need not be of the same order.
func reduce(have, like any) any {
	h, ok := have.(map[string]any)
	l, isMap := like.(map[string]any)
	if !ok || !isMap {
		return have
	}
	out := map[string]any{}
	for k, v := range l {
		if had, ok := h[k]; ok {
			if out[k] = had; !kube.IsWhole(k) {
				out[k] = reduce(had, v)
			}
		}
	}
	return out
}
