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

// others are the fields of our objects that somebody else has changed: the API server names them when it is asked to apply an object
// without force. Those that are kept are not applied.
type others struct {
	mu     sync.Mutex
	fields []kube.OthersField
	// unasked says that the user may not ask.
	unasked bool
}

// isKept are fields of pods that an administrator may decide: what they may use, and which taints they tolerate.
var isKept = regexp.MustCompile(`^\.spec\.template\.spec\.(containers\[name="agent"\]\.resources\.|tolerations$)`)

// AskOthers asks the API server which fields of an object somebody else has changed.
func (s *Side) AskOthers(ctx context.Context, want, live *unstructured.Unstructured) error {
	obj := want.DeepCopy()
	obj.SetAnnotations(live.GetAnnotations())
	if kube.Contains(live.Object, obj.Object) {
		return nil // nothing differs but who wrote it
	}
	err := s.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(obj), client.FieldOwner(v1alpha1.FieldManager), client.DryRunAll)
	if apierrors.IsForbidden(err) {
		s.Others.mu.Lock()
		s.Others.unasked = true
		s.Others.mu.Unlock()
	}
	fields, _ := kube.Conflicts(want, err) // any other error comes when it is applied
	for _, f := range fields {
		if isKept.MatchString(f.Field) {
			f.Path = strings.Split(strings.TrimPrefix(strings.ReplaceAll(f.Field, `[name="agent"]`, ""), "."), ".")
		}
		s.Others.add(f)
	}
	return nil
}

// Wanted is what runs agents, without what others have changed and is kept, and what there is of it.
func (s *Side) Wanted(ctx context.Context, obj manifests.Object) (want, live *unstructured.Unstructured, err error) {
	if want, live, err = s.Read(ctx, obj); err == nil {
		s.Others.keep(want)
	}
	return want, live, err
}

func (o *others) add(f kube.OthersField) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.fields = append(o.fields, f)
}

// keep takes from an object the fields that stay as somebody else has set them.
func (o *others) keep(obj *unstructured.Unstructured) {
	for _, f := range o.fields {
		if f.Path != nil && f.Object == kube.Describe(obj) {
			removeAt(obj.Object, f.Path)
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

// Notes say what is kept, and what is not.
func (o *others) Notes(cluster string) (out []string) {
	if o.unasked {
		out = append(out, cluster+": the user may not ask which fields of our objects others have changed")
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
