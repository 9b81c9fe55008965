package engine

import (
	"context"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/version"
)

// CheckVersion fails if this command is older than the cluster's agents or definitions, as it would drop fields that
// it does not know. Every command except Unpeer calls it before its first write. A version that cannot be compared,
// such as a commit, is accepted.
func CheckVersion(ctx context.Context, c *kube.Cluster) error {
	definitions := &metav1.PartialObjectMetadataList{}
	definitions.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinitionList"))
	if err := c.List(ctx, definitions, client.MatchingLabels{v1alpha1.LabelManagedBy: v1alpha1.FieldManager}); err != nil {
		return err
	}
	var versions []string
	for _, crd := range definitions.Items {
		versions = append(versions, crd.Annotations[v1alpha1.AnnotationVersion])
	}
	daemonSet, err := c.NodeAgents(ctx)
	if err != nil {
		return err
	}
	if daemonSet != nil {
		versions = append(versions, daemonSet.Annotations[v1alpha1.AnnotationVersion])
	}
	for _, there := range versions {
		if version.Older(c.Version, there) {
			return c.Errorf(kube.Usage, "compare versions", "use the command of that version, or a newer one",
				"liqonet in the cluster is of version %s, and this command of the older %s", there, c.Version)
		}
	}
	return nil
}
