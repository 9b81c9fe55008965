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
	if apierrors.IsForbidden(err) {
		s.FieldConflicts.mu.Lock()
		s.FieldConflicts.forbidden = true
		s.FieldConflicts.mu.Unlock()
	}
	fields, _ := kube.Conflicts(want, err) // other errors recur when it is applied
	for _, f := range fields {
		if preservedFields.MatchString(f.Field) {
			f.Path = strings.Split(strings.TrimPrefix(strings.ReplaceAll(f.Field, `[name="agent"]`, ""), "."), ".")
		}
		s.FieldConflicts.add(f)
	}
	return nil
}

// Wanted returns the workload to apply, without preserved fields, and the live one.
func (s *Side) Wanted(ctx context.Context, obj manifests.Object) (want, live *unstructured.Unstructured, err error) {
	if want, live, err = s.Read(ctx, obj); err == nil {
		s.FieldConflicts.removePreserved(want)
	}
	return want, live, err
}

func (o *fieldConflicts) add(f kube.FieldConflict) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.fields = append(o.fields, f)
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
		switch v := obj[name].(type) {
		case map[string]any:
			obj = v
		case []any:
			if len(v) != 1 {
				return
			}
			item, ok := v[0].(map[string]any)
			if !ok {
				return
			}
			obj = item
		default:
			return
		}
	}
	delete(obj, path[len(path)-1])
}

// Notes returns messages about fields that are preserved, and fields that are overwritten.
func (o *fieldConflicts) Notes(cluster string) (out []string) {
	if o.forbidden {
		out = append(out, cluster+": the user may not check which fields of our objects others have changed")
	}
	for _, f := range o.fields {
		switch {
		case f.Path != nil:
			out = append(out, fmt.Sprintf("%s: %s: %s was changed by %q, and is kept", cluster, f.Object, f.Field, f.Manager))
		default:
			out = append(out, fmt.Sprintf("%s: %s: %s was changed by %q, and is set as this version needs it", cluster, f.Object, f.Field, f.Manager))
		}
	}
	slices.Sort(out)
	return out
}
