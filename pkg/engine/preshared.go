package engine

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// PresharedFingerprint returns the fingerprint of the key in a Secret, empty if there is none. It does not read the key.
func PresharedFingerprint(ctx context.Context, c *kube.Cluster, name string) (string, error) {
	secret, err := c.ReadSecret(ctx, name)
	switch {
	case secret == nil || err != nil:
		return "", err
	case !kube.IsManaged(secret):
		return "", UnexpectedSecret(c, name, errUnlabelled)
	case secret.Annotations[v1alpha1.AnnotationFingerprint] == "":
		return "", UnexpectedSecret(c, name, errors.New("it was not made by liqonet: it does not have the annotation "+v1alpha1.AnnotationFingerprint))
	}
	return secret.Annotations[v1alpha1.AnnotationFingerprint], nil
}

// presharedKey returns the key that the Peering names, or the zero value if it is gone or differs. If the user may
// not read it, it counts as unchanged.
func presharedKey(ctx context.Context, c *kube.Cluster, g manifests.Gateway, named v1alpha1.PresharedKey) (v1alpha1.PresharedKey, error) {
	if named.Generation == 0 {
		return named, nil
	}
	has, err := PresharedFingerprint(ctx, c, g.PresharedSecretName())
	switch {
	case apierrors.IsForbidden(err):
		return named, nil
	case err != nil:
		return named, err
	case has != named.Fingerprint:
		return v1alpha1.PresharedKey{}, nil
	}
	return named, nil
}
