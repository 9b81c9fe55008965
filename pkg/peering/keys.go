package peering

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
)

// keyBytes is the length of WireGuard's keys, and of what the agents ask for as the
// overlay's (overlay.KeyBytes, which is in a package that knows the kernel).
const keyBytes = wgtypes.KeyLen

// publicOf is the public half of a gateway's private key.
func publicOf(private []byte) string {
	return wgtypes.Key(private).PublicKey().String()
}

// ensureKey makes the key of a gateway, if it has none. It returns what is known of the gateway with its generation and its public half.
func (s *side) ensureKey(ctx context.Context, g manifests.Gateway) (plan.PlaneFacts, error) {
	for ; ; g.KeyGeneration++ {
		key, isNew, err := s.ensureSecret(ctx, g.SecretName(), v1alpha1.KeyFilePrivate, func() (*corev1.Secret, error) {
			if err := s.notMounted(ctx, g.SecretName()); err != nil {
				return nil, err
			}
			key, err := wgtypes.GeneratePrivateKey()
			if err != nil {
				return nil, fmt.Errorf("make a WireGuard key: %w", err)
			}
			public := key.PublicKey()
			return g.Secret(map[string][]byte{v1alpha1.KeyFilePrivate: key[:], v1alpha1.KeyFilePublic: public[:]}), nil
		})
		if isNew {
			s.hasChanged("WireGuard key")
		}
		if errors.Is(err, errMounted) {
			continue
		}
		f := s.facts.Planes[g.Plane]
		if err == nil {
			f.KeyGeneration, f.PublicKey, f.KeyTime = g.KeyGeneration, publicOf(key.value), key.made
		}
		return f, err
	}
}

// errMounted says that another key needs another name.
var errMounted = errors.New("a pod has the Secret that was of this name")

// notMounted returns errMounted if a pod mounts a Secret of that name, which is not there: somebody
// deleted it, or a command did that was interrupted. The kubelet would give what was in it to
// the next pod as well, if that runs on the same node before this one has ended.
func (c *Cluster) notMounted(ctx context.Context, secret string) error {
	var pods corev1.PodList
	if err := c.list(ctx, &pods, client.InNamespace(v1alpha1.Namespace)); err != nil {
		return err
	}
	for _, p := range pods.Items {
		for _, v := range p.Spec.Volumes {
			if v.Secret != nil && v.Secret.SecretName == secret {
				return errMounted
			}
		}
	}
	return nil
}

// ensureOverlayKey makes the overlay's key of a generation, if there is none.
func (s *side) ensureOverlayKey(ctx context.Context, generation int32) error {
	_, isNew, err := s.ensureSecret(ctx, manifests.OverlaySecretName(generation), v1alpha1.OverlayKeyFile, func() (*corev1.Secret, error) {
		key := make([]byte, keyBytes)
		_, err := rand.Read(key)
		return manifests.OverlaySecret(generation, key), err
	})
	if isNew {
		s.hasChanged("key of the overlay")
	}
	return err
}

// ensureIdentity makes the cluster's identity, if it has none, and notes its public half.
func (s *side) ensureIdentity(ctx context.Context) error {
	key, _, err := s.ensureSecret(ctx, manifests.IdentityName, v1alpha1.KeyFilePrivate, func() (*corev1.Secret, error) {
		key, err := wgtypes.GeneratePrivateKey()
		return manifests.Identity(key[:]), err
	})
	if err == nil {
		s.identity = publicOf(key.value)
	}
	return err
}

// retireOverlayKeys takes the overlay's keys before a generation from all agents that are there, of all peerings. It
// is not put back if the command fails: who has left must not know the key.
func (c *Cluster) retireOverlayKeys(ctx context.Context, generation int32) error {
	return retryOnConflict(func() error {
		for _, list := range []client.ObjectList{&appsv1.DaemonSetList{}, &appsv1.DeploymentList{}} {
			objs, err := c.ours(ctx, list, nil)
			if err != nil {
				return err
			}
			for _, obj := range objs {
				before, pod := obj.DeepCopyObject().(client.Object), podOf(obj)
				if !manifests.RetireOverlayKeys(pod, generation) {
					continue
				}
				if err := c.patchAgents(ctx, before, obj); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// patchAgents gives agents other keys of the overlay, unless somebody has changed them since they were read.
func (c *Cluster) patchAgents(ctx context.Context, before, after client.Object) error {
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	err := c.Client.Patch(ctx, after, patch, client.FieldOwner(v1alpha1.FieldManager))
	return c.fail("change the overlay's keys of "+describe(after), client.IgnoreNotFound(err))
}

// takeCurrentKey takes from a pod that is about to be applied the overlay's keys before the one that the ledger
// names now. Another command may have made a new one since the plan.
func (c *Cluster) takeCurrentKey(ctx context.Context, pod *corev1.PodSpec) error {
	cn, err := c.ledger(ctx)
	if cn != nil {
		manifests.RetireOverlayKeys(pod, plan.OverlayKey(cn))
	}
	return err
}

// podOf is the pod of a DaemonSet or Deployment.
func podOf(obj client.Object) *corev1.PodSpec {
	if ds, ok := obj.(*appsv1.DaemonSet); ok {
		return &ds.Spec.Template.Spec
	}
	return &obj.(*appsv1.Deployment).Spec.Template.Spec
}

// forgetOverlayKeys deletes the overlay's keys before the planned one, if it is new, and
// notes that the nodes which have left know none any more.
func (s *side) forgetOverlayKeys(ctx context.Context, planned v1alpha1.OverlayKey, generation int32) error {
	if planned.Generation == plan.OverlayKey(s.facts.Ledger) {
		return nil
	}
	secrets, err := s.ours(ctx, secretNames(), nil)
	if err != nil {
		return err
	}
	for _, secret := range secrets {
		if of := manifests.OverlayGeneration(secret.GetName()); of > 0 && of < generation {
			if err := s.delete(ctx, secret); err != nil {
				return err
			}
		}
	}
	_, err = s.updateLedger(ctx, func(cn *v1alpha1.ClusterNetwork) error {
		if !plan.ForgetNodes(cn, plan.Departed(s.facts.Ledger, planned.Nodes)) {
			return errUnchanged
		}
		return nil
	})
	return err
}

// ownKeys has the Secrets of gateways go with their Peering. They are never applied again, and a restored backup may have taken their owner.
func (s *side) ownKeys(ctx context.Context, peering string) error {
	for _, secret := range s.secrets(ctx, client.HasLabels{v1alpha1.LabelPlane}, ofPeering(peering)) {
		if owns(s.facts.Owner, &secret) {
			continue
		}
		owned := manifests.Owned(secret.DeepCopy(), peering, s.facts.Owner)
		patch := client.MergeFromWithOptions(&secret, client.MergeFromWithOptimisticLock{})
		if err := s.Client.Patch(ctx, owned, patch, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
			return s.fail("have "+describe(owned)+" go with its Peering", err)
		}
		s.hasChanged("owner of " + describe(owned))
	}
	return nil
}

// owns says that the object goes with the Peering that has the UID.
func owns(owner types.UID, obj client.Object) bool {
	return slices.ContainsFunc(obj.GetOwnerReferences(), func(o metav1.OwnerReference) bool { return o.UID == owner })
}

// secrets are the metadata of Secrets in our namespace, none where they may not be listed.
func (c *Cluster) secrets(ctx context.Context, opts ...client.ListOption) []metav1.PartialObjectMetadata {
	list := secretNames().(*metav1.PartialObjectMetadataList)
	if c.list(ctx, list, append(opts, client.InNamespace(v1alpha1.Namespace))...) != nil {
		return nil
	}
	return list.Items
}

// secretKey is a key in a Secret of ours, and when that was made, by the clock of the API server.
type secretKey struct {
	value []byte
	made  metav1.Time
}

// ensureSecret reads the key in a Secret of ours, or makes it. It is created and never
// applied: whoever comes second reads the first one's.
func (c *Cluster) ensureSecret(ctx context.Context, name, file string, generate func() (*corev1.Secret, error)) (key *secretKey, isNew bool, err error) {
	for {
		key, err = c.key(ctx, name, file)
		if key != nil || err != nil {
			return key, false, err
		}
		secret, err := generate()
		if err != nil {
			return nil, false, err
		}
		err = c.create(ctx, secret)
		if !apierrors.IsAlreadyExists(err) {
			return &secretKey{secret.Data[file], secret.CreationTimestamp}, true, c.fail("create Secret "+name, err)
		}
	}
}

// key reads the key in a Secret of ours, nil if there is none. Somebody else may have
// made a Secret of that name before, and know what is in it. So it is refused if it is not
// as we make it.
func (c *Cluster) key(ctx context.Context, name, file string) (*secretKey, error) {
	secret, err := get[corev1.Secret](ctx, c, v1alpha1.Namespace, name)
	if secret == nil {
		return nil, err
	}
	key, err := keyIn(secret, file)
	if err != nil {
		return nil, c.strange(name, err)
	}
	return &secretKey{key, secret.CreationTimestamp}, nil
}

// strange is the error for a Secret that has one of our names, and is not as we make it.
func (c *Cluster) strange(secret string, why error) error {
	return &Error{
		Kind: Usage, Cluster: c.Name, Doing: "read the key in Secret " + v1alpha1.Namespace + "/" + secret, Err: why,
		Hint: fmt.Sprintf("find out who made it; then delete it, and run the command again, which makes a new one: %s -n %s delete secret %s", c.Kubectl, v1alpha1.Namespace, secret),
	}
}

var errUnlabelled = errors.New("it was not made by liqonet: it does not have its label")

// keyIn is the key in a Secret, if it is one of ours.
func keyIn(secret *corev1.Secret, file string) ([]byte, error) {
	key := secret.Data[file]
	switch {
	case !isOurs(secret):
		return nil, errUnlabelled
	case secret.Immutable == nil || !*secret.Immutable:
		return nil, errors.New("it was not made by liqonet: it can be changed")
	case len(key) != keyBytes:
		return nil, fmt.Errorf("%s has %d bytes instead of %d", file, len(key), keyBytes)
	}
	return key, nil
}
