package status

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// Exchanges returns the key exchanges that protected pre-shared keys sent to the API server, by the names of the Secrets.
func Exchanges(secrets []metav1.PartialObjectMetadata) map[string]kube.KeyExchange {
	out := map[string]kube.KeyExchange{}
	for _, s := range secrets {
		out[s.Name] = kube.KeyExchange(s.Annotations[v1alpha1.AnnotationKeyExchange])
	}
	return out
}

// WeakestExchange returns the weakest key exchange among the pre-shared keys of a Peering, empty if there are none.
func WeakestExchange(p *v1alpha1.Peering, exchanges map[string]kube.KeyExchange) (least kube.KeyExchange) {
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
