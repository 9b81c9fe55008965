package peering

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// others are the fields of our objects that somebody else has changed: the API server names them when it is asked to apply an object
// without force. Those that are kept are not applied.
type others struct {
	mu     sync.Mutex
	fields []othersField
	// unasked says that the user may not ask.
	unasked bool
}

// othersField is a field of one object.
type othersField struct {
	object, field, manager string
	// path is where it is if it is kept.
	path []string
}

// isKept are fields of pods that an administrator may decide: what they may use, and which taints they tolerate.
var isKept = regexp.MustCompile(`^\.spec\.template\.spec\.(containers\[name="agent"\]\.resources\.|tolerations$)`)

// conflictWith is how an API server names who has a field.
var conflictWith = regexp.MustCompile(`conflict with "([^"]*)"`)

// askOthers asks the API server which fields of an object somebody else has changed.
func (s *side) askOthers(ctx context.Context, want, live *unstructured.Unstructured) error {
	obj := want.DeepCopy()
	obj.SetAnnotations(live.GetAnnotations())
	if contains(live.Object, obj.Object) {
		return nil // nothing differs but who wrote it
	}
	err := s.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(obj), client.FieldOwner(v1alpha1.FieldManager), client.DryRunAll)
	if apierrors.IsForbidden(err) {
		s.others.mu.Lock()
		s.others.unasked = true
		s.others.mu.Unlock()
	}
	fields, _ := conflicts(want, err) // any other error comes when it is applied
	for _, f := range fields {
		if isKept.MatchString(f.field) {
			f.path = strings.Split(strings.TrimPrefix(strings.ReplaceAll(f.field, `[name="agent"]`, ""), "."), ".")
		}
		s.others.add(f)
	}
	return nil
}

// wanted is what runs agents, without what others have changed and is kept, and what there is of it.
func (s *side) wanted(ctx context.Context, obj manifests.Object) (want, live *unstructured.Unstructured, err error) {
	if want, live, err = s.read(ctx, obj); err == nil {
		s.others.keep(want)
	}
	return want, live, err
}

// conflicts are the fields of an object that somebody else has set, by the error of applying it without force. Those of commands and agents
// are left out, but are is true for them, too.
func conflicts(obj client.Object, err error) (fields []othersField, are bool) {
	status := apierrors.APIStatus(nil)
	if !apierrors.IsConflict(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return nil, false
	}
	for _, cause := range status.Status().Details.Causes {
		if cause.Type != metav1.CauseTypeFieldManagerConflict {
			continue
		}
		are = true
		f := othersField{object: describe(obj), field: cause.Field, manager: "somebody"}
		if m := conflictWith.FindStringSubmatch(cause.Message); m != nil {
			f.manager = m[1]
		}
		if !strings.HasPrefix(f.manager, v1alpha1.FieldManager) { // agents are no others
			fields = append(fields, f)
		}
	}
	return fields, are
}

type noticesKey struct{}

// WithNotices has users told at once what a command does to what others have set, also if it fails later. Several goroutines tell.
func WithNotices(ctx context.Context, tell func(string)) context.Context {
	return context.WithValue(ctx, noticesKey{}, tell)
}

// notice tells what becomes of fields that others have set.
func (c *Cluster) notice(ctx context.Context, fields []othersField, becomes string) {
	tell, wanted := ctx.Value(noticesKey{}).(func(string))
	for _, f := range fields {
		if wanted {
			tell(fmt.Sprintf("%s: %s: %s was set by %q, and %s", c.Name, f.object, f.field, f.manager, becomes))
		}
	}
}

func (o *others) add(f othersField) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.fields = append(o.fields, f)
}

// keep takes from an object the fields that stay as somebody else has set them.
func (o *others) keep(obj *unstructured.Unstructured) {
	for _, f := range o.fields {
		if f.path != nil && f.object == describe(obj) {
			removeAt(obj.Object, f.path)
		}
	}
}

// removeAt removes a field. Of a list on the way there, the one item has it.
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

// notes say what is kept, and what is not.
func (o *others) notes(cluster string) (out []string) {
	if o.unasked {
		out = append(out, cluster+": the user may not ask which fields of our objects others have changed")
	}
	for _, f := range o.fields {
		switch {
		case f.path != nil:
			out = append(out, fmt.Sprintf("%s: %s: %s was changed by %q, and is kept", cluster, f.object, f.field, f.manager))
		default:
			out = append(out, fmt.Sprintf("%s: %s: %s was changed by %q, and is set as this version needs it", cluster, f.object, f.field, f.manager))
		}
	}
	slices.Sort(out)
	return out
}
