package engine

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
)

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

// DetectConflicts finds the fields of an object that other managers have changed.
func (s *Side) DetectConflicts(ctx context.Context, want, live *unstructured.Unstructured) error {
	obj := want.DeepCopy()
	obj.SetAnnotations(live.GetAnnotations())
	if kube.Contains(live.Object, obj.Object) {
		return nil // only the managers differ
	}
	err := s.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(obj), client.FieldOwner(v1alpha1.FieldManager), client.DryRunAll)
	fields, _ := kube.Conflicts(want, err) // other errors recur when it is applied
	for i, f := range fields {
		if preservedFields.MatchString(f.Field) {
			fields[i].Path = strings.Split(strings.TrimPrefix(strings.ReplaceAll(f.Field, `[name="agent"]`, ""), "."), ".")
		}
	}
	o := &s.FieldConflicts
	o.mu.Lock()
	defer o.mu.Unlock()
	o.forbidden = o.forbidden || apierrors.IsForbidden(err)
	o.fields = append(o.fields, fields...)
	return nil
}

// Wanted returns the workload to apply, without preserved fields, and the live one.
func (s *Side) Wanted(ctx context.Context, obj manifests.Object) (want, live *unstructured.Unstructured, err error) {
	if want, live, err = s.Read(ctx, obj); err == nil {
		s.FieldConflicts.removePreserved(want)
	}
	return want, live, err
}

// removePreserved removes the preserved fields from an object.
func (o *fieldConflicts) removePreserved(obj *unstructured.Unstructured) {
	for _, f := range o.fields {
		if f.Path != nil && f.Object == kube.Describe(obj) {
			removeAt(obj.Object, f.Path)
		}
	}
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
		becomes := "set as this version needs it"
		if f.Path != nil {
			becomes = "kept"
		}
		out = append(out, fmt.Sprintf("%s: %s: %s was changed by %q, and is %s", cluster, f.Object, f.Field, f.Manager, becomes))
	}
	slices.Sort(out)
	return out
}
