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

// keyBytes is the length of WireGuard's keys, and of what the agents ask for as the
// overlay's (overlay.KeyBytes, which is in a package that knows the kernel).
const keyBytes = wgtypes.KeyLen

// publicOf is the public half of a gateway's private key.
func publicOf(private []byte) string {
	return wgtypes.Key(private).PublicKey().String()
}

// ensureKey makes the key of a gateway, if it has none, and returns its public half.
func (c *Cluster) ensureKey(ctx context.Context, g manifests.Gateway) (public string, isNew bool, err error) {
	key, isNew, err := c.ensureSecret(ctx, g.SecretName(), v1alpha1.KeyFilePrivate, func() (*corev1.Secret, error) {
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
	return publicOf(key), isNew, nil
}

// ensureOverlayKey makes the key of the cluster's overlay, if it has none.
func (c *Cluster) ensureOverlayKey(ctx context.Context) (name manifests.OverlayKey, isNew bool, err error) {
	key, isNew, err := c.ensureSecret(ctx, v1alpha1.OverlaySecret, v1alpha1.OverlayKeyFile, func() (*corev1.Secret, error) {
		key := make([]byte, keyBytes)
		_, err := rand.Read(key)
		return manifests.OverlaySecret(key), err
	})
	if err != nil {
		return "", isNew, err
	}
	return manifests.OverlayKeyOf(key), isNew, nil
}

// ensureSecret reads the key in a Secret of ours, or makes it. It is created and never
// applied: whoever comes second reads the first one's.
func (c *Cluster) ensureSecret(ctx context.Context, name, file string, generate func() (*corev1.Secret, error)) (key []byte, isNew bool, err error) {
	for {
		key, err = c.key(ctx, name, file)
		if key != nil || err != nil {
			return key, false, err
		}
		secret, err := generate()
		if err != nil {
			return nil, false, err
		}
		key = secret.Data[file]
		err = c.Client.Create(ctx, secret, client.FieldOwner(v1alpha1.FieldManager))
		if !apierrors.IsAlreadyExists(err) {
			return key, true, c.fail("create Secret "+name, err)
		}
	}
}

// key reads the key in a Secret of ours, nil if there is none. Somebody else may have
// made a Secret of that name before, and know what is in it. So it is refused if it is not
// as we make it.
func (c *Cluster) key(ctx context.Context, name, file string) ([]byte, error) {
	secret, err := get[corev1.Secret](ctx, c, v1alpha1.Namespace, name)
	if secret == nil {
		return nil, err
	}
	key, err := keyIn(secret, file)
	if err != nil {
		return nil, &Error{
			Kind: Usage, Cluster: c.Name, Doing: "read the key in Secret " + v1alpha1.Namespace + "/" + name, Err: err,
			Hint: fmt.Sprintf("find out who made it; then delete it, and run the command again, which makes a new one: %s -n %s delete secret %s", c.Kubectl, v1alpha1.Namespace, name),
		}
	}
	return key, nil
}

// keyIn is the key in a Secret, if it is one of ours.
func keyIn(secret *corev1.Secret, file string) ([]byte, error) {
	key := secret.Data[file]
	switch {
	case secret.Labels[v1alpha1.LabelManagedBy] != v1alpha1.FieldManager:
		return nil, errors.New("it was not made by liqonet: it does not have its label")
	case secret.Immutable == nil || !*secret.Immutable:
		return nil, errors.New("it was not made by liqonet: it can be changed")
	case len(key) != keyBytes:
		return nil, fmt.Errorf("%s has %d bytes instead of %d", file, len(key), keyBytes)
	}
	return key, nil
}
