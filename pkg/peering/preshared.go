package peering

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	group, ctx := failure.NewGroup(ctx)
	var missing []func() error // begun when all are found: they change the facts
	for _, g := range p.planOf(first).Gateways {
		ofFirst, ofSecond := plan.PresharedKeys(&first.facts, &second.facts, g.Plane)
		if ofFirst.Generation == 0 || ofFirst.Fingerprint != "" {
			continue
		}
		missing = append(missing, func() error {
			key, err := first.ensurePresharedKey(ctx, g.Plane, second, &ofFirst, nil)
			if err == nil {
				_, err = second.ensurePresharedKey(ctx, g.Plane, first, &ofSecond, key)
			}
			return err
		})
	}
	for _, makeKey := range missing {
		group.Go(makeKey)
	}
	return group.Wait()
}

// ensurePresharedKey sees to it that the gateway of a plane has the key, or any if it is
// nil. A Secret with another one is what an interrupted command left: then it is the
// next generation.
func (s *side) ensurePresharedKey(ctx context.Context, plane int32, peer *side, wanted *v1alpha1.PresharedKey, key []byte) ([]byte, error) {
	g := manifests.Gateway{Peering: plan.Allocation(s.facts.Ledger, peer.ID).Name, Plane: plane, PresharedKey: wanted.Generation}
	for {
		got, isNew, err := s.ensureSecret(ctx, g.PresharedSecretName(), v1alpha1.KeyFilePreshared, func() (*corev1.Secret, error) {
			if err := s.notMounted(ctx, g.PresharedSecretName()); err != nil {
				return nil, err
			}
			made := key
			if made == nil {
				made = make([]byte, keyBytes)
				if _, err := rand.Read(made); err != nil {
					return nil, err
				}
			}
			return g.PresharedSecret(made), nil
		})
		if isNew {
			s.hasChanged("pre-shared key")
		}
		if errors.Is(err, errMounted) || err == nil && key != nil && !bytes.Equal(got.value, key) {
			g.PresharedKey++
			continue
		}
		if err != nil {
			return nil, err
		}
		s.notePlane(plane, func(f *plan.PlaneFacts) {
			f.PresharedKey = v1alpha1.PresharedKey{Generation: g.PresharedKey, Fingerprint: plan.Fingerprint(got.value)}
		})
		return got.value, nil
	}
}

// presharedKey is the one that the Peering names, the zero value if it is gone or another
// one. If the user may not read it, it is taken for unchanged.
func (c *Cluster) presharedKey(ctx context.Context, g manifests.Gateway, named v1alpha1.PresharedKey) (v1alpha1.PresharedKey, error) {
	if named.Generation == 0 {
		return named, nil
	}
	key, err := c.key(ctx, g.PresharedSecretName(), v1alpha1.KeyFilePreshared)
	switch {
	case apierrors.IsForbidden(err):
		return named, nil
	case err != nil:
		return named, err
	case key == nil || plan.Fingerprint(key.value) != named.Fingerprint:
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
