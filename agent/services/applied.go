package services

import (
	"fmt"

	"github.com/samber/lo"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func nameOf(obj client.Object) string {
	return fmt.Sprintf("%T %s/%s", obj, obj.GetNamespace(), obj.GetName())
}

// metadataOf returns the labels and annotations of an object, sorted by their keys.
func metadataOf(obj client.Object) string { return fmt.Sprint(obj.GetLabels(), obj.GetAnnotations()) }

// hasMetadata reports whether an object has the labels and annotations that are wanted. Others may have added some. Whether it has one that
// is not wanted anymore, the object alone does not tell: this process has to have applied the same before.
func (o *controller) hasMetadata(want, there client.Object) bool {
	extra := len(there.GetLabels()) + len(there.GetAnnotations()) - len(want.GetLabels()) - len(want.GetAnnotations())
	last, _ := o.applied.Load(nameOf(want))
	return lo.Every(lo.Entries(there.GetLabels()), lo.Entries(want.GetLabels())) && lo.Every(lo.Entries(there.GetAnnotations()), lo.Entries(want.GetAnnotations())) &&
		(extra == 0 || last == metadataOf(want))
}
