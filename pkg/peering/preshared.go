package peering

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
)

// makePresharedKeys gives the two gateways of each plane the same pre-shared key, where
// the plan wants a new one. It is made in the cluster with the lower ID and then copied:
// of several commands at once the first one's is taken by all.
func (p *run) makePresharedKeys(ctx context.Context) error {
	first, second := p.sides[0], p.sides[1]
	if second.ID < first.ID {
		first, second = second, first
	}
	offers, err := plan.Offers(p.values())
	if err != nil {
		return err
	}
	group, gctx := failure.NewGroup(ctx)
	gateways := p.planOf(first).Gateways
	made := make([][2]*presharedKey, len(gateways))
	for i, g := range gateways {
		ofFirst, ofSecond := plan.PresharedKeys(offers[first.index], offers[second.index], g.Plane)
		if ofFirst.Generation == 0 || ofFirst.Fingerprint != "" {
			continue
		}
		group.Go(func() (err error) {
			if made[i][0], err = p.ensurePresharedKey(gctx, first, second, g.Plane, ofFirst, nil); err == nil {
				made[i][1], err = p.ensurePresharedKey(gctx, second, first, g.Plane, ofSecond, made[i][0])
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for i, g := range gateways {
		for k, s := range []*side{first, second} {
			if key := made[i][k]; key != nil {
				f := s.facts.Planes[g.Plane]
				f.PresharedKey = v1alpha1.PresharedKey{Generation: key.generation, Fingerprint: key.fingerprint}
				s.facts = s.facts.WithPlane(g.Plane, f)
			}
		}
	}
	return nil
}

// presharedKey is a pre-shared key that a cluster has. It is known by its fingerprint.
type presharedKey struct {
	fingerprint string
	// value is nil unless this command has made it: all others are in the Secret only.
	value      []byte
	in         *side
	secret     string
	generation int32
}

// ensurePresharedKey sees to it that the gateway of a plane has the key, or any if it is
// nil. A Secret with another one is what an interrupted command left: then it is the
// next generation.
func (p *run) ensurePresharedKey(ctx context.Context, s, peer *side, plane int32, planned v1alpha1.PresharedKey, wanted *presharedKey) (*presharedKey, error) {
	g := manifests.Gateway{Peering: plan.Allocation(s.facts.Ledger, peer.ID).Name, Owner: s.facts.Owner, Plane: plane, PresharedKey: planned.Generation}
	key := &presharedKey{in: s}
	if wanted != nil {
		key.value = wanted.value
	}
	for {
		key.secret = g.PresharedSecretName()
		has, err := s.presharedFingerprint(ctx, key.secret)
		if err != nil {
			return nil, err
		}
		if has == "" {
			switch err := s.notMounted(ctx, key.secret); {
			case errors.Is(err, errMounted):
				g.PresharedKey++
				continue
			case err != nil:
				return nil, err
			}
			switch {
			case key.value != nil:
			case wanted != nil:
				key.value, err = p.readPresharedKey(ctx, wanted, s)
			default:
				key.value = make([]byte, keyBytes)
				_, err = rand.Read(key.value)
			}
			if err != nil {
				return nil, err
			}
			if err := s.createPresharedKey(ctx, g.PresharedSecret(key.value)); apierrors.IsAlreadyExists(err) {
				continue
			} else if err != nil {
				return nil, s.fail("create Secret "+key.secret, err)
			}
			s.hasChanged("pre-shared key")
			has = manifests.Fingerprint(key.value)
		}
		if wanted != nil && has != wanted.fingerprint {
			g.PresharedKey++
			continue
		}
		if key.fingerprint = has; key.value != nil && manifests.Fingerprint(key.value) != has {
			key.value = nil // another command was sooner
		}
		key.generation = g.PresharedKey
		return key, nil
	}
}

// createPresharedKey creates a Secret, and then annotates it with how the key reached the cluster. That stays unknown if the second
// request fails, or if somebody ends this command before.
func (c *Cluster) createPresharedKey(ctx context.Context, secret *corev1.Secret) error {
	var by KeyExchange
	if err := c.create(WithKeyExchange(ctx, &by), secret); err != nil || by == UnknownKeyExchange {
		return err
	}
	patch := fmt.Sprintf(`{"metadata":{"uid":%q,"annotations":{%q:%q}}}`, secret.UID, v1alpha1.AnnotationKeyExchange, by)
	_ = c.Client.Patch(ctx, secretNamed(secret.Name), client.RawPatch(types.MergePatchType, []byte(patch)), client.FieldOwner(v1alpha1.FieldManager))
	return nil
}

// readPresharedKey reads a key that an earlier command has made in one cluster, to copy it to the other one. No command reads one for
// another reason. The result says so if the connection does not keep the key from a quantum computer.
func (p *run) readPresharedKey(ctx context.Context, key *presharedKey, to *side) ([]byte, error) {
	var by KeyExchange
	in := key.in
	got, err := in.key(WithKeyExchange(ctx, &by), key.secret, v1alpha1.KeyFilePreshared)
	switch {
	case err != nil:
		return nil, err
	case got == nil:
		return nil, in.fail("read the key", apierrors.NewNotFound(corev1.Resource("secrets"), key.secret))
	case manifests.Fingerprint(got.value) != key.fingerprint:
		return nil, in.strange(key.secret, errors.New("its fingerprint is that of another key"))
	}
	if by != Hybrid {
		p.note(fmt.Sprintf(
			"the pre-shared key in Secret %s of %s was read over a connection with a key exchange that is %s, to copy it to %s: when the API server of %s can do X25519MLKEM768, run kubectl liqonet rotate-keys %s %s --psk-only",
			key.secret, in.Name, by, to.Name, in.Name, in.Name, to.Name))
	}
	return got.value, nil
}

// note adds to what the result says.
func (p *run) note(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.result.Notes = append(p.result.Notes, text)
}

// presharedFingerprint is that of the key in a Secret, empty if there is none. The key is not read.
func (c *Cluster) presharedFingerprint(ctx context.Context, name string) (string, error) {
	secret, err := c.readSecret(ctx, name)
	switch {
	case secret == nil || err != nil:
		return "", err
	case !isOurs(secret):
		return "", c.strange(name, errUnlabelled)
	case secret.Annotations[v1alpha1.AnnotationFingerprint] == "":
		return "", c.strange(name, errors.New("it was not made by liqonet: it does not have the annotation "+v1alpha1.AnnotationFingerprint))
	}
	return secret.Annotations[v1alpha1.AnnotationFingerprint], nil
}

// presharedKey is the one that the Peering names, the zero value if it is gone or another
// one. If the user may not read it, it is taken for unchanged.
func (c *Cluster) presharedKey(ctx context.Context, g manifests.Gateway, named v1alpha1.PresharedKey) (v1alpha1.PresharedKey, error) {
	if named.Generation == 0 {
		return named, nil
	}
	has, err := c.presharedFingerprint(ctx, g.PresharedSecretName())
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

// clearPresharedKeys deletes those of a gateway that it had before, and those that
// interrupted commands left.
func (s *side) clearPresharedKeys(ctx context.Context, g manifests.Gateway) {
	if g.PresharedKey <= 1 {
		return
	}
	secrets, _ := s.ours(ctx, secretNames(), client.MatchingLabels(g.Labels()))
	for _, secret := range secrets {
		if name := secret.GetName(); strings.HasPrefix(name, g.Name()+"-psk-") && name != g.PresharedSecretName() {
			_ = s.delete(ctx, secret)
		}
	}
}
