package peering

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
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
)

const journalKey = "changes.json"

// journalOf is the Secret in which a command for the peering writes down what it changes.
func journalOf(peering string) *corev1.Secret {
	return manifests.Journal("journal-"+peering, peering)
}

// journal has the objects as they were before a command changed them. It is kept in
// a Secret, so that the next command can put back what an interrupted one
// changed. No other Secret is ever in it: what is in these is never changed. Agents may
// write ConfigMaps, but no Secrets: a command must not take instructions from them.
type journal struct {
	cluster *Cluster
	// created says that objects which were not there before are noted too. They are
	// where the peering has worked: otherwise all objects of the peering are removed.
	created bool

	// turn is taken by whoever reads or writes what follows, also while a request is under way.
	turn    chan struct{}
	changes []change
	object  *corev1.Secret // nil before start
}

// change is what was, or is going to be, done to one object. Without Before it was
// not there.
type change struct {
	Before map[string]any `json:"before,omitempty"`
	After  map[string]any `json:"after"`
}

// start creates the journal's Secret.
func (j *journal) start(ctx context.Context, peering string) error {
	obj := journalOf(peering)
	if err := j.cluster.create(ctx, obj); err != nil {
		return j.cluster.fail("write down what is changed", uninstallingIfTerminating(err))
	}
	j.object = obj
	return nil
}

// note writes down changes before they are made.
func (j *journal) note(ctx context.Context, changes ...change) error {
	j.turn <- struct{}{}
	defer func() { <-j.turn }()
	noted := len(j.changes)
	for _, ch := range changes {
		// Definitions are changed by addition only, and are large.
		if (ch.Before != nil || j.created) && !isDefinition(ch.object()) {
			j.changes = append(j.changes, ch)
		}
	}
	if len(j.changes) == noted || j.object == nil {
		return nil // without the Secret there is nothing yet that could be lost
	}
	raw, err := json.Marshal(j.changes)
	if err == nil {
		obj := j.object.DeepCopy()
		obj.Data = map[string][]byte{journalKey: raw}
		patch := client.MergeFromWithOptions(j.object, client.MergeFromWithOptimisticLock{})
		if err = j.cluster.Client.Patch(ctx, obj, patch, client.FieldOwner(v1alpha1.FieldManager)); err == nil {
			j.object = obj
		}
	}
	return j.cluster.fail("write down what is changed", err)
}

// end deletes the Secret: what was changed is to stay, or is put back.
func (j *journal) end(ctx context.Context) error {
	if j.object == nil {
		return nil
	}
	if err := j.cluster.delete(ctx, j.object); err != nil {
		return err
	}
	j.object = nil
	return nil
}

// newChange is what applying an object does to the one that is there: to the fields
// that are applied.
func newChange(live, want *unstructured.Unstructured) change {
	ch := change{After: runtime.DeepCopyJSON(want.Object)}
	if live.GetResourceVersion() != "" {
		ch.Before = runtime.DeepCopyJSON(reduce(live.Object, want.Object).(map[string]any))
	}
	return ch
}

func (c change) object() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: c.After}
}

// shared says that the object belongs to no single peering.
func (c change) shared() bool {
	obj := c.object()
	return obj.GetLabels()[v1alpha1.LabelPeering] == "" && obj.GetKind() != "Peering"
}

// putBack puts back what a command for one peering has changed, and writes none of that down. Packets pass when both clusters have done so: it does
// not wait for them.
func (c *Cluster) putBack(ctx context.Context, changes []change) error {
	return newSide(c, 0).goBack(ctx, changes, func(context.Context, agents) error { return nil })
}

// undo puts back what was changed, the last first. An object that is not as it was
// left by the change is somebody else's by now, and stays. It is named. It goes on where
// something cannot be put back.
func (c *Cluster) undo(ctx context.Context, changes []change) error {
	var errs []error
	for _, ch := range slices.Backward(changes) {
		errs = append(errs, retryOnConflict(func() error { return c.undoOne(ctx, ch) }))
	}
	return errors.Join(errs...)
}

func (c *Cluster) undoOne(ctx context.Context, ch change) error {
	_, live, err := c.read(ctx, ch.object())
	if err != nil {
		return err
	}
	switch {
	case live.GetResourceVersion() == "":
		return nil
	case !contains(live.Object, ch.After):
		c.tellWhoHas(ctx, ch)
		return nil
	case ch.Before == nil:
		return c.delete(ctx, live)
	}
	back := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(ch.Before)}
	back.SetResourceVersion(live.GetResourceVersion())
	back.SetUID(live.GetUID()) // without it, one that is gone by then would be created
	if back.GetKind() == "DaemonSet" {
		manifests.KeepOverlayKeys(back, live) // others may use one that was added since
	}
	return c.write(ctx, back)
}

// tellWhoHas names the fields that others have set since a change, which is not put back therefore.
func (c *Cluster) tellWhoHas(ctx context.Context, ch change) {
	again := client.ApplyConfigurationFromUnstructured(ch.object().DeepCopy())
	fields, _ := conflicts(ch.object(), c.Client.Apply(ctx, again, client.FieldOwner(v1alpha1.FieldManager), client.DryRunAll))
	c.notice(ctx, fields, "the object stays as it is")
}

// undoRanges gives the peer the ranges back that it had before they were changed.
// They were kept free for it.
func (c *Cluster) undoRanges(ctx context.Context, peerID string) error {
	_, err := c.updateLedger(ctx, func(cn *v1alpha1.ClusterNetwork) error {
		entry := plan.Allocation(cn, peerID)
		if entry == nil || entry.Previous == nil {
			return errUnchanged
		}
		entry.Pods, entry.ExternalCIDR, entry.Previous = entry.Previous.Pods, entry.Previous.ExternalCIDR, nil
		return nil
	})
	if errors.Is(err, errUninstalling) {
		return nil
	}
	return err
}

// undoInterrupted puts back what a command changed that was killed. It was one for this peering, whose lock is held. With sharedOnly it
// leaves out the peering's own objects.
func (c *Cluster) undoInterrupted(ctx context.Context, peerID, peering string, sharedOnly bool) error {
	obj, err := get[corev1.Secret](ctx, c, v1alpha1.Namespace, journalOf(peering).Name)
	if obj == nil || err != nil {
		return err
	}
	var changes []change
	if raw := obj.Data[journalKey]; len(raw) > 0 {
		if err := json.Unmarshal(raw, &changes); err != nil {
			return c.fail("read "+describe(obj), err)
		}
	}
	if sharedOnly {
		changes = slices.DeleteFunc(changes, func(ch change) bool { return !ch.shared() })
	} else if err := c.undoRanges(ctx, peerID); err != nil {
		return err
	}
	if err := c.putBack(ctx, changes); err != nil {
		return err
	}
	return c.delete(ctx, obj)
}

// ofPeering are the labels of a peering's objects, such as journals.
func ofPeering(peering string) client.MatchingLabels {
	return client.MatchingLabels{v1alpha1.LabelPeering: peering}
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
			if out[k] = had; !isWhole(k) {
				out[k] = reduce(had, v)
			}
		}
	}
	return out
}
