package peering

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// overlayKeyBytes is the length of what the agents ask for (overlay.KeyBytes,
// which is in a package that knows the kernel).
const overlayKeyBytes = 32

// ensureKey makes the key of a gateway, if it has none, and returns its public half.
func (c *Cluster) ensureKey(ctx context.Context, g manifests.Gateway) (public string, isNew bool, err error) {
	secret, isNew, err := c.ensureSecret(ctx, g.SecretName(), func() (*corev1.Secret, error) {
		key, err := wgtypes.GeneratePrivateKey()
		if err != nil {
			return nil, fmt.Errorf("make a WireGuard key: %w", err)
		}
		public := key.PublicKey()
		return g.Secret(map[string][]byte{v1alpha1.KeyFilePrivate: key[:], v1alpha1.KeyFilePublic: public[:]}), nil
	})
	if err != nil {
		return "", isNew, err
	}
	key, err := wgtypes.NewKey(secret.Data[v1alpha1.KeyFilePrivate])
	if err != nil {
		return "", isNew, c.fail("read the key in Secret "+secret.Name, errors.New("it is not a WireGuard key"))
	}
	return key.PublicKey().String(), isNew, nil
}

// ensureOverlayKey makes the key of the cluster's overlay, if it has none.
func (c *Cluster) ensureOverlayKey(ctx context.Context) (key manifests.OverlayKey, isNew bool, err error) {
	secret, isNew, err := c.ensureSecret(ctx, v1alpha1.OverlaySecret, func() (*corev1.Secret, error) {
		key := make([]byte, overlayKeyBytes)
		_, err := rand.Read(key)
		return manifests.OverlaySecret(key), err
	})
	if err != nil {
		return "", isNew, err
	}
	raw := secret.Data[v1alpha1.OverlayKeyFile]
	if len(raw) != overlayKeyBytes {
		return "", isNew, c.fail("read the key in Secret "+secret.Name, fmt.Errorf("it has %d bytes instead of %d", len(raw), overlayKeyBytes))
	}
	return manifests.OverlayKeyOf(raw), isNew, nil
}

// ensureSecret reads a Secret of ours, or makes it. It is created and never
// applied: whoever comes second reads the first one's.
func (c *Cluster) ensureSecret(ctx context.Context, name string, generate func() (*corev1.Secret, error)) (secret *corev1.Secret, isNew bool, err error) {
	for {
		secret, err = get[corev1.Secret](ctx, c, v1alpha1.Namespace, name)
		if secret != nil || err != nil {
			return secret, false, err
		}
		if secret, err = generate(); err != nil {
			return nil, false, err
		}
		err = c.Client.Create(ctx, secret, client.FieldOwner(v1alpha1.FieldManager))
		if !apierrors.IsAlreadyExists(err) {
			return secret, true, c.fail("create Secret "+name, err)
		}
	}
}
