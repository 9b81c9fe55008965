package engine

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/samber/lo"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/status"
	"github.com/liqonet/liqonet/pkg/wire"
)

// KeyBytes is the length of WireGuard keys and of the overlay's keys (overlay.KeyBytes, in a package that depends on
// the kernel).
const KeyBytes = wgtypes.KeyLen

// PublicKey returns the public key of the private key in a Secret, which CheckKey accepts.
func PublicKey(secret *corev1.Secret) string {
	return wgtypes.Key(secret.Data[v1alpha1.PrivateKeyFile]).PublicKey().String()
}

// EnsureKey creates a gateway's key if it has none. It returns the gateway's facts with the key's generation and public key.
func (s *Side) EnsureKey(ctx context.Context, g manifests.Gateway) (plan.PlaneFacts, error) {
	for ; ; g.KeyGeneration++ {
		secret, err := s.ensureSecret(ctx, g.SecretName(), v1alpha1.PrivateKeyFile, "WireGuard key", func() (*corev1.Secret, error) {
			if err := CheckNotMounted(ctx, s.Cluster, g.SecretName()); err != nil {
				return nil, err
			}
			key, err := wgtypes.GeneratePrivateKey()
			public := key.PublicKey()
			return g.Secret(map[string][]byte{v1alpha1.PrivateKeyFile: key[:], v1alpha1.PublicKeyFile: public[:]}), err
		})
		if errors.Is(err, ErrMounted) {
			continue
		}
		f := s.Facts.Planes[g.Plane]
		if err == nil {
			f.KeyGeneration, f.PublicKey, f.KeyTime = g.KeyGeneration, PublicKey(secret), secret.CreationTimestamp
		}
		return f, err
	}
}

// ErrMounted means that a new key needs a new Secret name.
var ErrMounted = errors.New("a pod still mounts the deleted Secret of this name")

// CheckNotMounted returns ErrMounted if a pod mounts a Secret of that name that no longer exists, because it was deleted
// or a command was interrupted. The kubelet would give the old contents to the next pod too, if that runs on the same
// node before the old pod has ended.
func CheckNotMounted(ctx context.Context, c *kube.Cluster, secret string) error {
	var pods corev1.PodList
	if err := c.List(ctx, &pods, client.InNamespace(v1alpha1.Namespace)); err != nil {
		return err
	}
	isIt := func(v corev1.Volume) bool { return v.Secret != nil && v.Secret.SecretName == secret }
	if slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return slices.ContainsFunc(p.Spec.Volumes, isIt) }) {
		return ErrMounted
	}
	return nil
}

// EnsureOverlayKey creates the overlay's key of a generation, if there is none.
func (s *Side) EnsureOverlayKey(ctx context.Context, generation int32) (*corev1.Secret, error) {
	name := manifests.OverlaySecretName(generation)
	return s.ensureSecret(ctx, name, v1alpha1.OverlayKeyFile, "key of the overlay", func() (*corev1.Secret, error) {
		key := make([]byte, KeyBytes)
		_, err := rand.Read(key)
		return manifests.OverlaySecret(generation, key), err
	})
}

// ensureGatewayKeys creates the Secrets with overlay keys that a gateway's Deployment mounts, from the cluster's keys.
func ensureGatewayKeys(ctx context.Context, s *Side, deployment *appsv1.Deployment) error {
	g := gatewayIn(deployment)
	if owners := deployment.OwnerReferences; len(owners) > 0 {
		g.Owner = owners[0].UID
	}
	for _, g.OverlayKey = range manifests.OverlayKeys(PodSpecOf(deployment)) {
		cluster, err := s.EnsureOverlayKey(ctx, g.OverlayKey)
		if err != nil {
			return err
		}
		want := g.OverlaySecret(wire.GatewayKey(cluster.Data[v1alpha1.OverlayKeyFile], g.Name(), g.OverlayKey))
		for {
			secret, err := s.ensureSecret(ctx, want.Name, v1alpha1.OverlayKeyFile, "overlay key of "+g.Name(), func() (*corev1.Secret, error) {
				return want.DeepCopy(), nil
			})
			if err != nil {
				return err
			}
			if bytes.Equal(secret.Data[v1alpha1.OverlayKeyFile], want.Data[v1alpha1.OverlayKeyFile]) {
				break
			}
			// It is derived from a key that was deleted.
			if err := s.Delete(ctx, secret); err != nil {
				return err
			}
		}
	}
	return nil
}

// ensureIdentity creates the cluster's identity if it has none, and stores its public key.
func (s *Side) ensureIdentity(ctx context.Context) error {
	secret, err := s.ensureSecret(ctx, manifests.IdentitySecretName, v1alpha1.PrivateKeyFile, "", func() (*corev1.Secret, error) {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		return manifests.IdentitySecret(key.Seed()), err
	})
	if err == nil {
		s.Peering.Identity = manifests.IdentityKey(secret)
	}
	return err
}

// retireOverlayKeys removes overlay keys before a generation from all agents, of all peerings. A rollback does not
// restore them: nodes that have left must not know the key in use.
func retireOverlayKeys(ctx context.Context, s *Side, generation int32) error {
	return kube.RetryOnConflict(func() error {
		agents, err := s.ListManaged(ctx, nil, &appsv1.DaemonSetList{}, &appsv1.DeploymentList{})
		return cmp.Or(err, failure.ForEach(ctx, agents, func(ctx context.Context, obj client.Object) error {
			before := obj.DeepCopyObject().(client.Object)
			if !manifests.RetireOverlayKeys(PodSpecOf(obj), generation) {
				return nil
			}
			if deployment, is := obj.(*appsv1.Deployment); is {
				if err := ensureGatewayKeys(ctx, s, deployment); err != nil {
					return err
				}
			}
			return patchAgents(ctx, s.Cluster, before, obj)
		}))
	})
}

// patchAgents changes agents, such as their overlay keys, unless they were changed since they were read.
func patchAgents(ctx context.Context, c *kube.Cluster, before, after client.Object) error {
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	err := c.Client.Patch(ctx, after, patch, kube.FieldOwner)
	return c.Wrap("change "+kube.Describe(after), client.IgnoreNotFound(err))
}

// DropOldOverlayKeys removes overlay keys older than the ledger's current one from a pod that is about to be applied, and
// reports whether there were any. Another command may have created a new key since the plan.
func DropOldOverlayKeys(ctx context.Context, c *kube.Cluster, pod *corev1.PodSpec) (changed bool, err error) {
	cn, err := c.ReadLedger(ctx)
	return manifests.RetireOverlayKeys(pod, plan.OverlayKey(cn)), err // without a ledger, no key is old
}

// PodSpecOf returns the pod spec of a DaemonSet or Deployment.
func PodSpecOf(obj client.Object) *corev1.PodSpec {
	if ds, ok := obj.(*appsv1.DaemonSet); ok {
		return &ds.Spec.Template.Spec
	}
	return &obj.(*appsv1.Deployment).Spec.Template.Spec
}

// pruneOverlayKeys deletes overlay keys older than the planned one if that is new, and removes departed nodes from
// the ledger.
func (s *Side) pruneOverlayKeys(ctx context.Context, planned v1alpha1.OverlayKey, generation int32) error {
	if planned.Generation == plan.OverlayKey(s.Facts.Ledger) {
		return nil
	}
	if err := deleteOverlayKeys(ctx, s.Cluster, func(g int32) bool { return g < generation }); err != nil {
		return err
	}
	_, err := UpdateLedger(ctx, s.Cluster, func(cn *v1alpha1.ClusterNetwork) error {
		plan.RemoveDepartedNodes(cn, plan.DepartedNodes(s.Facts.Ledger, planned.Nodes))
		return nil
	})
	return err
}

// SetKeyOwners makes the Peering own its gateways' Secrets. Secrets are never applied again, and a restored backup loses
// their owner.
func (s *Side) SetKeyOwners(ctx context.Context, peering string) error {
	for _, secret := range status.Secrets(ctx, s.Cluster, client.HasLabels{v1alpha1.LabelPlane}, kube.PeeringLabels(peering)) {
		if status.Owns(s.Facts.Owner, &secret) {
			continue
		}
		owned := manifests.SetOwner(secret.DeepCopy(), peering, s.Facts.Owner)
		patch := client.MergeFromWithOptions(&secret, client.MergeFromWithOptimisticLock{})
		if err := s.Client.Patch(ctx, owned, patch, kube.FieldOwner); err != nil {
			return s.Wrap("set the Peering as the owner of "+kube.Describe(owned), err)
		}
		s.RecordChange("owner of " + kube.Describe(owned))
	}
	return nil
}

// ensureSecret reads one of our Secrets with a key, or creates it and records that as a change, unless the change has no
// name. It never applies, so that concurrent commands all use the key that was created first.
func (s *Side) ensureSecret(ctx context.Context, name, key, change string, fn func() (*corev1.Secret, error)) (*corev1.Secret, error) {
	for {
		secret, err := KeySecret(ctx, s.Cluster, name, key)
		if secret != nil || err != nil {
			return secret, err
		}
		if secret, err = fn(); err != nil {
			return nil, err
		}
		if err = s.Create(ctx, secret); !apierrors.IsAlreadyExists(err) {
			if change != "" {
				s.RecordChange(change)
			}
			return secret, s.Wrap("create Secret "+name, err)
		}
	}
}

// KeySecret reads one of our Secrets with a key, nil if there is none. It rejects a Secret that differs from ours: someone
// else may have created it, and know the key.
func KeySecret(ctx context.Context, c *kube.Cluster, name, file string) (*corev1.Secret, error) {
	secret, err := kube.Get[corev1.Secret](ctx, c, v1alpha1.Namespace, name)
	if secret == nil {
		return nil, err
	}
	if err := CheckKey(secret, file); err != nil {
		return nil, UnexpectedSecret(c, name, err)
	}
	return secret, nil
}

// UnexpectedSecret returns the error for a Secret that has one of our names, but was not created by us.
func UnexpectedSecret(c *kube.Cluster, secret string, why error) error {
	hint := fmt.Sprintf("find out who created it; then delete it, and run the command again, which creates a new one: %s -n %s delete secret %s", c.Kubectl, v1alpha1.Namespace, failure.Quote(secret))
	return c.Errorf(kube.Usage, "read the key in Secret "+v1alpha1.Namespace+"/"+secret, hint, "%w", why)
}

var errUnlabelled = errors.New("it was not created by liqonet: it does not have its label")

// CheckKey returns an error unless a Secret is one of ours, with a key.
func CheckKey(secret *corev1.Secret, file string) error {
	switch key := secret.Data[file]; {
	case !kube.IsManaged(secret):
		return errUnlabelled
	case secret.Immutable == nil || !*secret.Immutable:
		return errors.New("it was not created by liqonet: it can be changed")
	case len(key) != KeyBytes:
		return fmt.Errorf("%s has %d bytes instead of %d", file, len(key), KeyBytes)
	}
	return nil
}

// PresharedFingerprint returns the fingerprint of the key in a Secret, empty if there is none. It does not read the key.
func PresharedFingerprint(ctx context.Context, c *kube.Cluster, name string) (string, error) {
	secret, err := c.ReadSecret(ctx, name)
	switch {
	case secret == nil || err != nil:
		return "", err
	case !kube.IsManaged(secret):
		return "", UnexpectedSecret(c, name, errUnlabelled)
	case secret.Annotations[v1alpha1.AnnotationFingerprint] == "":
		return "", UnexpectedSecret(c, name, errors.New("it was not created by liqonet: it does not have the annotation "+v1alpha1.AnnotationFingerprint))
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
	if apierrors.IsForbidden(err) || err == nil && has == named.Fingerprint {
		return named, nil
	}
	return v1alpha1.PresharedKey{}, err
}

// retireTimeout limits how long node agents may take to give up an unused overlay key. After that the key stays until
// another command ends.
const retireTimeout = time.Minute

// RetireUnusedKeys removes overlay keys that no link uses from node agents, and deletes them. The caller holds the
// cluster's lock exclusively, as another command may be about to use a key.
//
// createdKey is the key that this command created, 0 for none, and departed are the UIDs of nodes that had left before.
func RetireUnusedKeys(ctx context.Context, c *kube.Cluster, createdKey int32, departed []string, idle PriorFailures) error {
	for {
		unused, err := withdrawUnusedKeys(ctx, c)
		if err == nil && len(unused) > 0 {
			err = AwaitAgents(ctx, c, "wait for the node agents", c.PodsHint(), AgentSet{PriorFailures: idle}, func(o kube.Objects, _ status.Heartbeats, missing string) (string, error) {
				if kube.ByName[*appsv1.DaemonSet](o, v1alpha1.NodeAgentName) == nil {
					return "", kube.ErrUninstalling
				}
				return missing, nil
			})
		}
		if err != nil || len(unused) == 0 {
			return ignoreRemoved(err)
		}
		if err := deleteUnusedKeys(ctx, c, unused, createdKey, departed); err != nil {
			return ignoreRemoved(err)
		}
	}
}

// TryRetireUnusedKeys is RetireUnusedKeys for a command that has done its work: an unused key must not make it fail, or
// wait for long. Every command calls it at the end, as any peering may have been the last to use a key. Of concurrent
// commands, the last one retires keys.
func TryRetireUnusedKeys(ctx context.Context, c *kube.Cluster) {
	ctx, cancel := c.Isolated(ctx, retireTimeout)
	defer cancel()
	isNeeded := func(ctx context.Context) (bool, error) {
		keys, err := overlayKeysUsed(ctx, c)
		return len(keys.unused) > 0, err
	}
	ifIdle(ctx, c, "retire keys", isNeeded, func(ctx context.Context) error { return RetireUnusedKeys(ctx, c, 0, nil, PriorFailures{}) })
}

// overlayKeys are the generations of overlay keys that links use, and those that none uses.
type overlayKeys struct{ used, unused []int32 }

// overlayKeysUsed returns which overlay keys are in use. If a command has left a peering or a rollout incomplete, it
// reports none as unused.
func overlayKeysUsed(ctx context.Context, c *kube.Cluster) (keys overlayKeys, err error) {
	cn, err := c.ReadLedger(ctx)
	if err != nil || cn == nil || !cn.DeletionTimestamp.IsZero() {
		return keys, err
	}
	secrets, err := c.ListManaged(ctx, nil, kube.SecretMetadataList())
	isIncomplete := func(a v1alpha1.PeerAllocation) bool { return !a.Active() }
	isJournal := func(s client.Object) bool { return strings.HasPrefix(s.GetName(), manifests.JournalSecret("").Name) }
	if err != nil || slices.ContainsFunc(cn.Spec.Peers, isIncomplete) || slices.ContainsFunc(secrets, isJournal) {
		return keys, err
	}
	ds, err := c.ReadNodeAgents(ctx)
	if ds == nil || err != nil || isOnDelete(ds) {
		return keys, err
	}
	given := manifests.OverlayKeys(&ds.Spec.Template.Spec)
	var peerings v1alpha1.PeeringList
	if err := c.List(ctx, &peerings); err != nil {
		return keys, err
	}
	used := sets.New[int32]()
	for _, key := range plan.LinkKeys(peerings.Items) {
		if key > 0 {
			used.Insert(key) // even if node agents lack it: the next command gives it to them
		}
		if !slices.Contains(given, key) && len(given) > 0 {
			key = given[0] // as agents do
		}
		used.Insert(key)
	}
	gateways, err := c.ListManaged(ctx, nil, &appsv1.DeploymentList{})
	if err != nil {
		return keys, err
	}
	for _, g := range gateways { // after a killed command, they may use one that no Peering names yet
		used.Insert(manifests.OverlayKeys(PodSpecOf(g))...)
	}
	if keys.used = sets.List(used); len(keys.used) == 0 {
		return keys, nil
	}
	unused := sets.New(given...)
	for _, secret := range secrets {
		if g := manifests.OverlayGeneration(secret.GetName()); g > 0 && secret.GetDeletionTimestamp() == nil {
			unused.Insert(g)
		}
	}
	keys.unused = sets.List(unused.Difference(used))
	return keys, nil
}

// withdrawUnusedKeys removes the keys that no link uses from node agents, and returns them.
func withdrawUnusedKeys(ctx context.Context, c *kube.Cluster) (unused []int32, err error) {
	err = kube.RetryOnConflict(func() error {
		// If a key is given to node agents after this read, the write conflicts.
		ds, err := c.ReadNodeAgents(ctx)
		if err != nil {
			return err
		}
		keys, err := overlayKeysUsed(ctx, c)
		if unused = keys.unused; err != nil || len(unused) == 0 {
			return err
		}
		if ds == nil {
			return kube.ErrUninstalling
		}
		before, pod := ds.DeepCopy(), &ds.Spec.Template.Spec
		kept := lo.Without(manifests.OverlayKeys(pod), unused...)
		if len(kept) == 0 || len(kept) == len(manifests.OverlayKeys(pod)) {
			return nil
		}
		manifests.SetOverlayKeys(pod, kept)
		return patchAgents(ctx, c, before, ds)
	})
	return unused, err
}

// deleteUnusedKeys deletes keys once all node agents were replaced. A key that is in use again by then stays: the next iteration finds out.
func deleteUnusedKeys(ctx context.Context, c *kube.Cluster, unused []int32, createdKey int32, departed []string) error {
	now, err := overlayKeysUsed(ctx, c)
	if err != nil || len(now.unused) == 0 {
		return err
	}
	_, err = UpdateLedger(ctx, c, func(cn *v1alpha1.ClusterNetwork) error {
		least := slices.Min(now.used)
		if plan.OverlayKey(cn) >= least {
			return nil
		}
		cn.Spec.OverlayKey.Generation = least
		if least == createdKey {
			plan.RemoveDepartedNodes(cn, departed)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return deleteOverlayKeys(ctx, c, func(g int32) bool { return slices.Contains(unused, g) && slices.Contains(now.unused, g) })
}

// deleteOverlayKeys deletes the overlay's keys of some generations.
func deleteOverlayKeys(ctx context.Context, c *kube.Cluster, isOld func(generation int32) bool) error {
	secrets, err := c.ListManaged(ctx, nil, kube.SecretMetadataList())
	old := lo.Filter(secrets, func(s client.Object, _ int) bool {
		g := manifests.OverlayGeneration(s.GetName())
		return g > 0 && isOld(g)
	})
	return cmp.Or(err, c.DeleteEach(ctx, old))
}
