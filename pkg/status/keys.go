package status

import (
	"context"
	"slices"

	"github.com/samber/lo"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
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

// WeakestExchange returns the weakest key exchange that protected pre-shared keys of a Peering when they were sent to the API server, empty
// if there are none. The Secrets are those of the namespace.
func WeakestExchange(p *v1alpha1.Peering, secrets []metav1.PartialObjectMetadata) (least kube.KeyExchange) {
	exchanges := lo.SliceToMap(secrets, func(s metav1.PartialObjectMetadata) (string, kube.KeyExchange) {
		return s.Name, kube.KeyExchange(s.Annotations[v1alpha1.AnnotationKeyExchange])
	})
	for _, plane := range p.Spec.Planes {
		if plane.PresharedKey.Generation == 0 {
			continue
		}
		g := manifests.Gateway{Peering: p.Name, Plane: plane.Index, PresharedKey: plane.PresharedKey.Generation}
		switch exchange := exchanges[g.PresharedSecretName()]; {
		case exchange == kube.Classical || least == kube.Classical:
			least = kube.Classical
		case exchange != kube.Hybrid:
			least = kube.UnknownKeyExchange
		case least == "":
			least = kube.Hybrid
		}
	}
	return least
}
