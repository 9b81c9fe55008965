package status

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/kube"
)

// Owns reports whether the object is owned by the Peering with the given UID.
func Owns(owner types.UID, obj client.Object) bool {
	return slices.ContainsFunc(obj.GetOwnerReferences(), func(o metav1.OwnerReference) bool { return o.UID == owner })
}

// Secrets returns the metadata of Secrets in our namespace, or nothing if the user may not list them.
func Secrets(ctx context.Context, c *kube.Cluster, opts ...client.ListOption) []metav1.PartialObjectMetadata {
	list := kube.SecretNames().(*metav1.PartialObjectMetadataList)
	if c.List(ctx, list, append(opts, client.InNamespace(v1alpha1.Namespace))...) != nil {
		return nil
	}
	return list.Items
}
