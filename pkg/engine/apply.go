package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// Apply applies objects that do not depend on each other, after recording their former state in the journal. Only
// applied fields count as changes, not what agents write.
func (s *Side) Apply(ctx context.Context, objs ...manifests.Object) error {
	if len(objs) == 0 {
		return nil
	}
	names := lo.Map(objs, func(obj manifests.Object, _ int) string { return kube.Describe(obj) })
	defer kube.StartWait(ctx, s.Name, "apply "+kube.FirstOf(1, names), "")()
	all := lo.Map(objs, func(obj manifests.Object, _ int) *application { return &application{obj: obj} })
	err := failure.ForEach(ctx, all, func(ctx context.Context, a *application) (err error) {
		a.want, a.live, err = s.Read(ctx, a.obj)
		a.changes = err == nil && !kube.Contains(a.live.Object, a.want.Object)
		return err
	})
	if err != nil {
		return err
	}
	changes := lo.FilterMap(all, func(a *application, _ int) (Change, bool) { return newChange(a.live, a.want), a.changes })
	if err := s.Changes.Journal.record(ctx, s.Cluster, changes...); err != nil {
		return err
	}
	if err := failure.ForEach(ctx, all, func(ctx context.Context, a *application) error { return a.apply(ctx, s.Cluster) }); err != nil {
		return err
	}
	for _, ch := range changes {
		s.RecordChange(kube.Describe(ch.object()))
	}
	return nil
}

// application is an object to apply, the live one, and whether they differ.
type application struct {
	obj        manifests.Object
	want, live *unstructured.Unstructured
	changes    bool
}

// apply applies one object, again after a conflict unless the caller has read it: the caller handles conflicts then.
func (a *application) apply(ctx context.Context, c *kube.Cluster) error {
	if kube.IsDefinition(a.want) && !a.changes {
		return nil // large, and as expensive for an API server as a change
	}
	if a.obj.GetResourceVersion() != "" {
		return applyAs(ctx, c, a.want, a.obj)
	}
	return kube.RetryOnConflict(func() error {
		err := applyAs(ctx, c, a.want, a.live)
		if apierrors.IsConflict(err) {
			_, now, readErr := c.Read(ctx, a.want)
			if a.live = now; readErr != nil {
				return readErr
			}
		}
		return err
	})
}

// applyAs applies an object if it is still at the version that was read, or still absent. Otherwise it is a conflict:
// this command may have been suspended while another one changed the object.
func applyAs(ctx context.Context, c *kube.Cluster, want *unstructured.Unstructured, read client.Object) error {
	u := want.DeepCopy() // the journal keeps want
	u.SetUID(read.GetUID())
	u.SetResourceVersion(cmp.Or(read.GetResourceVersion(), kube.AbsentVersion))
	if err := c.Write(ctx, u); err != nil {
		return err
	}
	if u.GetDeletionTimestamp() != nil {
		return c.Fail("apply "+kube.Describe(u), kube.ErrUninstalling)
	}
	if read.GetResourceVersion() == "" {
		return c.Recheck(ctx, u)
	}
	return nil
}

// JournalKey is the key of the changes in the journal's Secret.
const JournalKey = "changes.json"

// JournalSecret returns the Secret in which a command for the peering records its changes.
func JournalSecret(peering string) *corev1.Secret {
	return manifests.Journal("journal-"+peering, peering)
}

// journal records the former state of changed objects, in a Secret, so that the next command can roll back an
// interrupted one. It contains no other Secrets: their data never changes. Agents may write ConfigMaps but not
// Secrets, as a command must not take instructions from them.
type journal struct {
	// Created makes the journal record created objects too. This is for peerings that have worked: otherwise all objects
	// of the peering are removed.
	Created bool

	// sem guards the following fields, held during requests.
	sem     chan struct{}
	Changes []Change
	object  *corev1.Secret // nil before start
}

// Change is a change of one object, made or about to be made. Before is nil if the object did not exist.
type Change struct {
	Before map[string]any `json:"before,omitempty"`
	After  map[string]any `json:"after"`
}

// start creates the journal's Secret.
func (j *journal) start(ctx context.Context, c *kube.Cluster, peering string) error {
	j.object = JournalSecret(peering)
	return c.Fail("record the changes", kube.UninstallingIfTerminating(c.Create(ctx, j.object)))
}

// record records changes before they are made.
func (j *journal) record(ctx context.Context, c *kube.Cluster, changes ...Change) error {
	j.sem <- struct{}{}
	defer func() { <-j.sem }()
	// Definitions are large, and only ever extended.
	changes = lo.Filter(changes, func(ch Change, _ int) bool { return (ch.Before != nil || j.Created) && !kube.IsDefinition(ch.object()) })
	j.Changes = append(j.Changes, changes...)
	if len(changes) == 0 || j.object == nil {
		return nil // before the Secret exists, there is nothing to roll back
	}
	raw, err := json.Marshal(j.Changes)
	if err == nil {
		obj := j.object.DeepCopy()
		obj.Data = map[string][]byte{JournalKey: raw}
		patch := client.MergeFromWithOptions(j.object, client.MergeFromWithOptimisticLock{})
		if err = c.Client.Patch(ctx, obj, patch, client.FieldOwner(v1alpha1.FieldManager)); err == nil {
			j.object = obj
		}
	}
	return c.Fail("record the changes", err)
}

// Close deletes the Secret: the changes are committed or rolled back.
func (j *journal) Close(ctx context.Context, c *kube.Cluster) error {
	if j.object == nil {
		return nil
	}
	// The Secret may have been created although the request failed.
	err := deleteNamed[corev1.Secret](ctx, c, j.object.Name)
	if err == nil {
		j.object = nil
	}
	return err
}

// newChange returns the change of the applied fields of an object.
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

// reduce returns the fields of have that like has too. Lists are kept whole: their items may be in another order.
func reduce(have, like any) any {
	h, ok := have.(map[string]any)
	l, isMap := like.(map[string]any)
	if !ok || !isMap {
		return have
	}
	out := map[string]any{}
	for k, v := range l {
		if had, ok := h[k]; ok {
			if out[k] = had; !kube.IsAtomic(k) {
				out[k] = reduce(had, v)
			}
		}
	}
	return out
}

// fieldConflicts are the fields of our objects that other managers have changed, as the API server reports them when an
// object is applied without force. Preserved fields are not applied.
type fieldConflicts struct {
	mu     sync.Mutex
	fields []kube.FieldConflict
	// forbidden is true if the user may not do the dry run that finds them.
	forbidden bool
}

// preservedFields matches fields of pods that an administrator may set: resources and tolerations.
var preservedFields = regexp.MustCompile(`^\.spec\.template\.spec\.(containers\[name="agent"\]\.resources\.|tolerations$)`)

// Detect finds the fields of an object that other managers have changed.
func (o *fieldConflicts) Detect(ctx context.Context, c *kube.Cluster, want, live *unstructured.Unstructured) error {
	obj := want.DeepCopy()
	obj.SetAnnotations(live.GetAnnotations())
	if kube.Contains(live.Object, obj.Object) {
		return nil // only the managers differ
	}
	err := c.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(obj), client.FieldOwner(v1alpha1.FieldManager), client.DryRunAll)
	fields, _ := kube.Conflicts(want, err) // other errors recur when it is applied
	for i, f := range fields {
		if preservedFields.MatchString(f.Field) {
			fields[i].Path = strings.Split(strings.TrimPrefix(strings.ReplaceAll(f.Field, `[name="agent"]`, ""), "."), ".")
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.forbidden = o.forbidden || apierrors.IsForbidden(err)
	o.fields = append(o.fields, fields...)
	return nil
}

// Wanted returns the workload to apply, without preserved fields, and the live one.
func (s *Side) Wanted(ctx context.Context, obj manifests.Object) (want, live *unstructured.Unstructured, err error) {
	want, live, err = s.Read(ctx, obj)
	for _, f := range s.Changes.Conflicts.fields {
		if err == nil && f.Path != nil && f.Object == kube.Describe(want) {
			removeAt(want.Object, f.Path)
		}
	}
	return want, live, err
}

// removeAt removes a field. A list on the path must have one item, which contains the field.
func removeAt(obj map[string]any, path []string) {
	for _, name := range path[:len(path)-1] {
		next := obj[name]
		if list, _ := next.([]any); len(list) == 1 {
			next = list[0]
		}
		obj, _ = next.(map[string]any) // nil, which has no fields, if there is nothing to remove
	}
	delete(obj, path[len(path)-1])
}

// Notes returns messages about fields that are preserved, and fields that are overwritten.
func (o *fieldConflicts) Notes(cluster string) (out []string) {
	if o.forbidden {
		out = append(out, cluster+": the user may not check which fields of our objects others have changed")
	}
	for _, f := range o.fields {
		becomes := lo.Ternary(f.Path != nil, "kept", "set as this version needs it")
		out = append(out, fmt.Sprintf("%s: %s: %s was changed by %q, and is %s", cluster, f.Object, f.Field, f.Manager, becomes))
	}
	slices.Sort(out)
	return out
}
