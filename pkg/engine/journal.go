package engine

import (
	"context"
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
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
	Cluster *kube.Cluster
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
	j.object = JournalOf(peering)
	return j.Cluster.Fail("write down what is changed", kube.UninstallingIfTerminating(j.Cluster.Create(ctx, j.object)))
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
		if err = j.Cluster.Client.Patch(ctx, obj, patch, client.FieldOwner(v1alpha1.FieldManager)); err == nil {
			j.object = obj
		}
	}
	return j.Cluster.Fail("write down what is changed", err)
}

// End deletes the Secret: what was changed is to stay, or is put back.
func (j *journal) End(ctx context.Context) error {
	if j.object == nil {
		return nil
	}
	// The API server may have created it without an answer.
	secret, err := kube.Get[corev1.Secret](ctx, j.Cluster, j.object.Namespace, j.object.Name)
	if err == nil && secret != nil {
		err = j.Cluster.Delete(ctx, secret)
	}
	if err != nil {
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
