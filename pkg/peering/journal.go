package peering

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
)

const (
	// beatInterval is how often a command that runs says so in its journal, beatSilence
	// how long it may say nothing before others take it for interrupted.
	beatInterval = time.Second
	beatSilence  = 3 * time.Second

	annotationBeat  = "liqonet.io/beat"
	annotationClaim = "liqonet.io/claim"
	journalKey      = "changes.json"
)

// journal has the objects as they were before a command changed them. It is kept in
// a ConfigMap, so that the next command can put back what an interrupted one
// changed. No Secret is ever in it: these are created and never changed.
type journal struct {
	cluster *Cluster
	// created says that objects which were not there before are noted too. They are
	// where the peering has worked: otherwise all objects of the peering are removed.
	created bool

	mu      sync.Mutex
	object  *corev1.ConfigMap // nil before start
	changes []change
	stop    func()
}

// change is what was, or is going to be, done to one object. Without Before it was
// not there, without After it is deleted.
type change struct {
	Before map[string]any `json:"before,omitempty"`
	After  map[string]any `json:"after,omitempty"`
}

func journalName(peering, claim string) string { return fmt.Sprintf("journal-%s-%s", peering, claim) }

// start creates the journal's ConfigMap, and keeps saying that its command runs.
func (j *journal) start(ctx context.Context, peering, claim string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.object != nil {
		return nil
	}
	obj := manifests.Journal(journalName(peering, claim), peering)
	obj.Annotations[annotationClaim] = claim
	if err := j.cluster.Client.Create(ctx, obj, client.FieldOwner(v1alpha1.FieldManager)); err != nil && !apierrors.IsAlreadyExists(err) {
		return j.cluster.fail("write down what is changed", tornDownIfTerminating(err))
	}
	j.object = obj
	beating, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	j.stop = func() { stop(); <-done }
	go func() {
		defer close(done)
		for beat := 1; ; beat++ {
			select {
			case <-beating.Done():
				return
			case <-time.After(beatInterval):
				// One that is not written is followed by others.
				_ = j.patch(beating, map[string]any{"metadata": map[string]any{"annotations": map[string]any{annotationBeat: fmt.Sprint(beat)}}})
			}
		}
	}()
	return nil
}

// patch changes the ConfigMap where it is. It does not make it anew: if somebody
// has deleted it, the peering is being removed.
func (j *journal) patch(ctx context.Context, patch map[string]any) error {
	raw, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: j.object.Name}}
	return j.cluster.Client.Patch(ctx, obj, client.RawPatch(types.MergePatchType, raw), client.FieldOwner(v1alpha1.FieldManager))
}

// note writes down changes before they are made. A nil journal notes nothing.
func (j *journal) note(ctx context.Context, changes ...change) error {
	if j == nil || len(changes) == 0 {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.changes = append(j.changes, changes...)
	if j.object == nil {
		return nil // nothing is there yet that could be lost
	}
	raw, err := json.Marshal(j.changes)
	if err == nil {
		err = j.patch(ctx, map[string]any{"data": map[string]any{journalKey: string(raw)}})
	}
	if apierrors.IsNotFound(err) {
		err = errUnpeered
	}
	return j.cluster.fail("write down what is changed", err)
}

// end deletes the ConfigMap: what was changed is to stay, or is put back.
func (j *journal) end(ctx context.Context) error {
	j.silence()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.object == nil {
		return nil
	}
	if err := j.cluster.Client.Delete(ctx, j.object); client.IgnoreNotFound(err) != nil {
		return j.cluster.fail("delete "+describe(j.object), err)
	}
	j.object = nil
	return nil
}

// silence stops saying that the command runs.
func (j *journal) silence() {
	j.mu.Lock()
	stop := j.stop
	j.stop = nil
	j.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// changeOf is what applying obj does to an object that is there, or not, as before.
func (j *journal) changeOf(obj, before *unstructured.Unstructured) (c change, noted bool) {
	if j == nil {
		return c, false
	}
	c.After = obj.Object
	if before.GetResourceVersion() == "" {
		return c, j.created
	}
	c.Before = asBefore(before, obj).Object
	return c, true
}

// deletionOf is what deleting a Service does.
func deletionOf(svc *corev1.Service) (change, error) {
	u, err := manifests.ToApply(&corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: svc.Namespace, Name: svc.Name, Labels: svc.Labels, Annotations: svc.Annotations},
		Spec: corev1.ServiceSpec{
			Type: svc.Spec.Type, Selector: svc.Spec.Selector, Ports: svc.Spec.Ports, PublishNotReadyAddresses: svc.Spec.PublishNotReadyAddresses,
		},
	})
	if err != nil {
		return change{}, err
	}
	return change{Before: u.Object}, nil
}

// shared says that the object belongs to no single peering.
func (c change) shared() bool {
	obj := &unstructured.Unstructured{Object: c.After}
	if c.After == nil {
		obj.Object = c.Before
	}
	return obj.GetLabels()[v1alpha1.LabelPeering] == ""
}

// undo puts back what was changed, the last first. An object that is not as it was
// left by the change is somebody else's by now, and stays. It goes on where
// something cannot be put back.
func (c *Cluster) undo(ctx context.Context, changes []change) error {
	var errs []error
	for _, ch := range slices.Backward(changes) {
		errs = append(errs, c.undoOne(ctx, ch))
	}
	return errors.Join(errs...)
}

func (c *Cluster) undoOne(ctx context.Context, ch change) error {
	known := &unstructured.Unstructured{Object: ch.After}
	if ch.After == nil {
		known.Object = ch.Before
	}
	return retryOnConflict(func() error {
		live := &unstructured.Unstructured{}
		live.SetGroupVersionKind(known.GroupVersionKind())
		err := c.Client.Get(ctx, client.ObjectKeyFromObject(known), live)
		isThere := err == nil
		if isThere {
			keepHosts(live.Object, ch)
		}
		switch {
		case err != nil && !absent(err):
			return c.fail("read "+describe(known), err)
		case ch.After == nil && isThere, ch.After != nil && (!isThere || !contains(live.Object, ch.After)):
			return nil
		case ch.Before == nil:
			return c.delete(ctx, live)
		}
		back := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(ch.Before)}
		translation := back.Object["status"]
		delete(back.Object, "status")
		if isThere {
			back.SetResourceVersion(live.GetResourceVersion())
		}
		if err := c.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(back), client.FieldOwner(v1alpha1.FieldManager), client.ForceOwnership); err != nil {
			return c.fail("put back "+describe(known), err)
		}
		if translation == nil {
			return nil
		}
		status := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": back.GetAPIVersion(), "kind": back.GetKind(), "metadata": map[string]any{"name": back.GetName()}, "status": translation,
		}}
		err = c.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(status), client.FieldOwner(v1alpha1.FieldManager), client.ForceOwnership)
		return c.fail("put back the status of "+describe(known), err)
	})
}

// keepHosts keeps the hosts of a Peering that were exposed, or hidden, meanwhile.
func keepHosts(live map[string]any, ch change) {
	hosts, _, _ := unstructured.NestedSlice(live, "spec", "local", "hosts")
	for _, known := range []map[string]any{ch.Before, ch.After} {
		local, isPeering, _ := unstructured.NestedMap(known, "spec", "local")
		if !isPeering {
			continue
		}
		if delete(local, "hosts"); hosts != nil {
			local["hosts"] = hosts
		}
		_ = unstructured.SetNestedMap(known, local, "spec", "local")
	}
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
	if errors.Is(err, errTornDown) {
		return nil
	}
	return err
}

// undoInterrupted puts back what commands changed that work on this peering no
// more, and says whether there were any. With sharedOnly it leaves out the
// peering's own objects.
func (c *Cluster) undoInterrupted(ctx context.Context, peerID, peering string, sharedOnly bool) (found bool, err error) {
	journals, err := c.journals(ctx, peering)
	if err != nil || len(journals) == 0 {
		return false, err
	}
	dead, err := c.interrupted(ctx, peering, journals)
	if err != nil {
		return false, err
	}
	for _, obj := range slices.Backward(dead) {
		var changes []change
		if raw := obj.Data[journalKey]; raw != "" {
			if err := json.Unmarshal([]byte(raw), &changes); err != nil {
				return true, c.fail("read "+describe(&obj), err)
			}
		}
		if sharedOnly {
			changes = slices.DeleteFunc(changes, func(ch change) bool { return !ch.shared() })
		} else if err := c.undoRanges(ctx, peerID); err != nil {
			return true, err
		}
		if err := c.undo(ctx, changes); err != nil {
			return true, err
		}
		if err := c.delete(ctx, &obj); err != nil {
			return true, err
		}
	}
	return len(dead) > 0, nil
}

// journals are those of a peering, the oldest first.
func (c *Cluster) journals(ctx context.Context, peering string) ([]corev1.ConfigMap, error) {
	var list corev1.ConfigMapList
	err := c.Client.List(ctx, &list, client.InNamespace(v1alpha1.Namespace), client.MatchingLabels{v1alpha1.LabelPeering: peering})
	if err != nil {
		return nil, c.fail("list ConfigMaps", err)
	}
	slices.SortStableFunc(list.Items, func(a, b corev1.ConfigMap) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	return list.Items, nil
}

// interrupted returns those journals that do not change for a while. Only this
// machine's clock is used.
func (c *Cluster) interrupted(ctx context.Context, peering string, first []corev1.ConfigMap) (dead []corev1.ConfigMap, err error) {
	select {
	case <-time.After(beatSilence):
	case <-ctx.Done():
		return nil, c.fail("look whether another command works on this peering", context.Cause(ctx))
	}
	again, err := c.journals(ctx, peering)
	if err != nil {
		return nil, err
	}
	for _, now := range again {
		if slices.ContainsFunc(first, func(b corev1.ConfigMap) bool { return b.UID == now.UID && b.ResourceVersion == now.ResourceVersion }) {
			dead = append(dead, now)
		}
	}
	return dead, nil
}

// isWorking says that the command with this claim works on the peering.
func (c *Cluster) isWorking(ctx context.Context, peering, claim string) (bool, error) {
	journals, err := c.journals(ctx, peering)
	if err != nil {
		return false, err
	}
	journals = slices.DeleteFunc(journals, func(j corev1.ConfigMap) bool { return j.Annotations[annotationClaim] != claim })
	if len(journals) == 0 {
		return false, nil
	}
	dead, err := c.interrupted(ctx, peering, journals)
	return len(dead) == 0, err
}

// asBefore is what has to be applied so that an object is as it was: the fields
// that are applied now, with the values that they had.
func asBefore(before, applied *unstructured.Unstructured) *unstructured.Unstructured {
	out := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(reduce(before.Object, applied.Object).(map[string]any))}
	// The user may take the endpoints back that an earlier command was given.
	if given, ok := before.GetAnnotations()[plan.AnnotationEndpoints]; ok {
		a := maps.Clone(out.GetAnnotations())
		if a == nil {
			a = map[string]string{}
		}
		a[plan.AnnotationEndpoints] = given
		out.SetAnnotations(a)
	}
	if translation, ok, _ := unstructured.NestedMap(before.Object, "status", "translation"); ok {
		out.Object["status"] = map[string]any{"translation": translation}
	}
	return out
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
			out[k] = reduce(had, v)
		}
	}
	return out
}
