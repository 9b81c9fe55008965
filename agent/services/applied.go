package services

import (
	"fmt"
	"maps"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// applied remembers the labels and annotations of the objects that this process has applied. Others may add some to the same objects,
// and so the objects alone do not tell whether something has to be removed.
type applied struct {
	mu   sync.Mutex
	last map[string]metadata
}

type metadata struct{ labels, annotations map[string]string }

func newApplied() *applied { return &applied{last: map[string]metadata{}} }

func nameOf(obj client.Object) string {
	return fmt.Sprintf("%T %s/%s", obj, obj.GetNamespace(), obj.GetName())
}

// note notes what was applied.
func (a *applied) note(obj client.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last[nameOf(obj)] = metadata{obj.GetLabels(), obj.GetAnnotations()}
}

// forget forgets an object that is deleted.
func (a *applied) forget(obj client.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.last, nameOf(obj))
}

// isUnchanged reports whether an object has the labels and annotations that are wanted. If another process has applied it, others mean
// that it has to be applied again.
func (a *applied) isUnchanged(want, there client.Object) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	last, known := a.last[nameOf(want)]
	is := func(want, there, last map[string]string) bool {
		for k, v := range want {
			if there[k] != v {
				return false
			}
		}
		return len(there) == len(want) || known && maps.Equal(last, want)
	}
	return is(want.GetLabels(), there.GetLabels(), last.labels) && is(want.GetAnnotations(), there.GetAnnotations(), last.annotations)
}
