package peering

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/identity"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/status"
)

// makeAllKeys creates the keys that gateways lack.
func (p *pairing) makeAllKeys(ctx context.Context) error {
	return failure.RunSteps(ctx, p.onBothSides(p.makeKeys), p.makePresharedKeys)
}

// makeKeys creates the keys of gateways that have none.
func (p *pairing) makeKeys(ctx context.Context, s, peer *engine.Side) error {
	name := plan.Allocation(s.Facts.Ledger, peer.ID).Name
	if err := engine.ReadPeering(ctx, s.Cluster, name, &s.Facts); err != nil {
		return err
	}
	if s.Facts.Owner == "" {
		return s.Wrap("make keys", kube.ErrUnpeered)
	}
	if err := s.SetKeyOwners(ctx, name); err != nil {
		return err
	}
	gateways := p.planOf(s).Gateways
	made := make([]plan.PlaneFacts, len(gateways))
	err := failure.ForEachLimit(ctx, len(gateways), gateways, func(ctx context.Context, i int, g manifests.Gateway) (err error) {
		g.Peering, g.Owner = name, s.Facts.Owner // the ledger may have another name than the plan
		made[i], err = s.EnsureKey(ctx, g)
		return err
	})
	for i, g := range gateways {
		s.Facts = s.Facts.WithPlane(g.Plane, made[i])
	}
	return err
}

// makePresharedKeys gives the two gateways of each plane a common pre-shared key where the plan requires a new one.
// The key is created in the cluster with the lower ID and then copied, so that concurrent commands all use the same
// key.
func (p *pairing) makePresharedKeys(ctx context.Context) error {
	first, second := p.sides[0], p.sides[1]
	if second.ID < first.ID {
		first, second = second, first
	}
	offers, err := plan.Offers(p.planInputs())
	if err != nil {
		return err
	}
	gateways := p.planOf(first).Gateways
	made := make([][2]*presharedKey, len(gateways))
	err = failure.ForEachLimit(ctx, len(gateways), gateways, func(ctx context.Context, i int, g manifests.Gateway) (err error) {
		ofFirst, ofSecond := plan.PresharedKeys(offers[first.Index], offers[second.Index], g.Plane)
		if ofFirst.Generation == 0 || ofFirst.Fingerprint != "" {
			return nil
		}
		if made[i][0], err = p.ensurePresharedKey(ctx, first, second, g.Plane, ofFirst, nil); err == nil {
			made[i][1], err = p.ensurePresharedKey(ctx, second, first, g.Plane, ofSecond, made[i][0])
		}
		return err
	})
	if err != nil {
		return err
	}
	for i, g := range gateways {
		for k, s := range []*engine.Side{first, second} {
			if key := made[i][k]; key != nil {
				f := s.Facts.Planes[g.Plane]
				f.PresharedKey = key.PresharedKey
				s.Facts = s.Facts.WithPlane(g.Plane, f)
			}
		}
	}
	return nil
}

// presharedKey is a pre-shared key in a cluster, identified by its fingerprint.
type presharedKey struct {
	v1alpha1.PresharedKey
	// value is nil unless this command created the key: other keys are only in their Secrets.
	value  []byte
	side   *engine.Side
	secret string
}

// ensurePresharedKey ensures that the gateway of a plane has the wanted key, or any if it is nil. If an interrupted
// command left a Secret with another key, it uses the next generation.
func (p *pairing) ensurePresharedKey(ctx context.Context, s, peer *engine.Side, plane int32, planned v1alpha1.PresharedKey, wanted *presharedKey) (*presharedKey, error) {
	g := manifests.Gateway{Peering: plan.Allocation(s.Facts.Ledger, peer.ID).Name, Owner: s.Facts.Owner, Plane: plane, PresharedKey: planned.Generation}
	key := &presharedKey{side: s, value: lo.FromPtr(wanted).value}
	for {
		key.secret = g.PresharedSecretName()
		has, err := engine.PresharedFingerprint(ctx, s.Cluster, key.secret)
		if err != nil {
			return nil, err
		}
		if has == "" {
			switch err := engine.CheckNotMounted(ctx, s.Cluster, key.secret); {
			case errors.Is(err, engine.ErrMounted):
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
				key.value = make([]byte, engine.KeyBytes)
				_, err = rand.Read(key.value)
			}
			if err != nil {
				return nil, err
			}
			if err := createPresharedKey(ctx, s.Cluster, g.PresharedSecret(key.value)); apierrors.IsAlreadyExists(err) {
				continue
			} else if err != nil {
				return nil, s.Wrap("create Secret "+key.secret, err)
			}
			s.RecordChange("pre-shared key")
			has = manifests.Fingerprint(key.value)
		}
		if wanted != nil && has != wanted.Fingerprint {
			g.PresharedKey++
			continue
		}
		if key.Fingerprint = has; key.value != nil && manifests.Fingerprint(key.value) != has {
			key.value = nil // another command was faster
		}
		key.Generation = g.PresharedKey
		return key, nil
	}
}

// createPresharedKey creates a Secret, and then annotates it with the key exchange of the request. The annotation is
// missing if the second request fails, or if the command is killed before.
func createPresharedKey(ctx context.Context, c *kube.Cluster, secret *corev1.Secret) error {
	var by kube.KeyExchange
	if err := c.Create(kube.WithKeyExchange(ctx, &by), secret); err != nil || by == kube.UnknownKeyExchange {
		return err
	}
	patch := fmt.Sprintf(`{"metadata":{"uid":%q,"annotations":{%q:%q}}}`, secret.UID, v1alpha1.AnnotationKeyExchange, by)
	_ = c.Client.Patch(ctx, kube.SecretMetadata(secret.Name), client.RawPatch(types.MergePatchType, []byte(patch)), kube.FieldOwner)
	return nil
}

// readPresharedKey reads a key that an earlier command created, to copy it to the other cluster. Nothing else reads
// such keys. It adds a note if the connection does not protect the key from a quantum computer.
func (p *pairing) readPresharedKey(ctx context.Context, key *presharedKey, to *engine.Side) ([]byte, error) {
	var by kube.KeyExchange
	in := key.side
	got, err := engine.KeySecret(kube.WithKeyExchange(ctx, &by), in.Cluster, key.secret, v1alpha1.PresharedKeyFile)
	switch {
	case err != nil:
		return nil, err
	case got == nil:
		return nil, in.Wrap("read the key", apierrors.NewNotFound(corev1.Resource("secrets"), key.secret))
	case manifests.Fingerprint(got.Data[v1alpha1.PresharedKeyFile]) != key.Fingerprint:
		return nil, engine.UnexpectedSecret(in.Cluster, key.secret, errors.New("its fingerprint is that of another key"))
	}
	if by != kube.Hybrid {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.result.Notes = append(p.result.Notes, fmt.Sprintf(
			"the pre-shared key in Secret %s of %s was read over a connection with a key exchange that is %s, to copy it to %s: when the API server of %s can do X25519MLKEM768, run kubectl liqonet rotate-keys %s %s --psk-only",
			key.secret, in.Name, by, to.Name, in.Name, failure.Quote(in.Name), failure.Quote(to.Name)))
	}
	return got.Data[v1alpha1.PresharedKeyFile], nil
}

// readKeyExchanges adds the key exchanges of pre-shared keys to the views.
func (p *pairing) readKeyExchanges(ctx context.Context) {
	_ = p.forEachSide(ctx, func(ctx context.Context, s, _ *engine.Side) error {
		p.result.Views[s.Index].PresharedKeyExchange = status.WeakestKeyExchange(p.planOf(s).Peering, status.Secrets(ctx, s.Cluster, kube.PeeringLabels(p.planOf(s).Peering.Name)))
		return nil
	})
}

// deleteStaleKeys deletes the keys of a gateway that it no longer uses, and those that interrupted commands left. Another
// command may have given it a later overlay key.
func deleteStaleKeys(ctx context.Context, s *engine.Side, g manifests.Gateway) error {
	secrets, err := s.ListManaged(ctx, g.Labels(), kube.SecretMetadataList())
	if err != nil {
		return err
	}
	return s.DeleteEach(ctx, slices.DeleteFunc(secrets, func(secret client.Object) bool {
		name := secret.GetName()
		return name == g.SecretName() || manifests.OverlayGeneration(name) >= max(g.OverlayKey, 1) || g.PresharedKey > 0 && name == g.PresharedSecretName()
	}))
}

// verifyIdentities returns an error if a cluster has newer agents, is not the one that the other was peered with, or does not have the
// fingerprint that the user requires. Where keys may not be read, unclear is the error of commands that change something.
func (p *run) verifyIdentities(ctx context.Context) (unclear, err error) {
	err = p.forEachSide(ctx, func(ctx context.Context, s, peer *engine.Side) (err error) {
		if err := engine.CheckInstallation(ctx, s.Cluster); err != nil {
			return err
		}
		p.evidence[s.Index], err = identity.Read(ctx, s.Cluster, peer.ID)
		return err
	})
	if err != nil {
		return nil, err
	}
	for i, s := range p.sides {
		peer, own, other := p.sides[1-i], p.evidence[i], p.evidence[1-i]
		isPeer, err := p.options.Replace, error(nil)
		if !isPeer {
			isPeer, err = identity.IsRecognized(ctx, s.Cluster, peer.Cluster, own, other)
		}
		refused := identity.Error(s.Cluster, peer.Cluster, own, other, identity.FindHint(s.Cluster, peer.Cluster)+
			"; if it is the right one, and has lost its keys or was unpeered from one side only, give --replace")
		switch required := p.requireFingerprint(peer, other.Key); {
		case err != nil:
			return nil, err
		case !isPeer && other.ReadErr == nil:
			return nil, refused
		case !isPeer:
			unclear = identity.Error(s.Cluster, peer.Cluster, own, other, kube.Unchanged(s.Cluster, peer.Cluster)+
				fmt.Sprintf("use a kubeconfig whose user may read Secret %s/%s in %s", v1alpha1.Namespace, manifests.IdentitySecretName, peer.Name))
		case required != nil && other.ReadErr == nil:
			return nil, required
		case required != nil:
			unclear = required
		}
	}
	return unclear, nil
}

// requireFingerprint returns an error unless the public key of a cluster has the fingerprint that the user requires, if any.
func (p *run) requireFingerprint(s *engine.Side, key string) error {
	required, has := p.options.Fingerprints[s.ID], manifests.IdentityFingerprint(key)
	if required == "" || required == has {
		return nil
	}
	why, hint := "the fingerprint "+has, identity.FindHint(p.sides[1-s.Index].Cluster, s.Cluster)
	switch {
	case has == "" && p.evidence[s.Index].ReadErr != nil:
		why = "no identity key that can be read"
	case has == "":
		why = "no identity key yet"
		hint = kube.Unchanged(p.sides[0].Cluster, p.sides[1].Cluster) + "peer once without this --fingerprint: that creates the key, and prints its fingerprint to compare"
	}
	return &kube.Error{Kind: kube.Identity, Op: fmt.Sprintf("%s must have the identity key with the fingerprint %s, but has %s", s.Name, required, why), Hint: hint}
}

// requireIdentities is verifyIdentities for commands that change something: unclear is an error.
func (p *run) requireIdentities(ctx context.Context) error {
	unclear, err := p.verifyIdentities(ctx)
	return cmp.Or(err, unclear)
}

// requirePermissions returns a step that checks permissions, and returns a missing proof of identity first: whoever may not read a key
// lacks a permission, too.
func (p *run) requirePermissions(check sideStep) step {
	return func(ctx context.Context) error {
		missing := p.onBothSides(check)(ctx)
		if err := p.requireIdentities(ctx); missing == nil || isIdentity(err) {
			return err
		}
		return missing
	}
}

func isIdentity(err error) bool {
	e, is := errors.AsType[*kube.Error](err)
	return is && e.Kind == kube.Identity
}

// reverifyIdentities repeats the comparison if a peering was made since the first one, which was without locks. If one
// was removed, the cluster proves nothing any more.
func (p *run) reverifyIdentities(ctx context.Context) error {
	var isNew [2]bool
	err := p.forEachSide(ctx, func(ctx context.Context, s, peer *engine.Side) error {
		if err := engine.CheckInstallation(ctx, s.Cluster); err != nil {
			return err
		}
		now, err := s.ReadLedgerEntry(ctx, peer.ID)
		before := p.evidence[s.Index].Entry
		isNew[s.Index] = now != nil && now.Active() && (before == nil || !before.Active() || before.IdentityKey != now.IdentityKey)
		return err
	})
	if err != nil || isNew == [2]bool{} {
		return err
	}
	return p.requireIdentities(ctx)
}

// confirmIdentities requires that the keys which were read during the installation, and will be recorded, are those of the ledgers: an
// API server may answer differently each time.
func (p *run) confirmIdentities(context.Context) error {
	for i, s := range p.sides {
		peer := p.sides[1-i]
		pinned := plan.Allocation(peer.Facts.Ledger, s.ID)
		if pinned != nil && pinned.Active() && !p.options.Replace && pinned.IdentityKey != s.Peering.Identity {
			own := identity.Evidence{Entry: pinned}
			return identity.Error(peer.Cluster, s.Cluster, own, own, identity.FindHint(peer.Cluster, s.Cluster))
		}
		if err := p.requireFingerprint(s, s.Peering.Identity); err != nil {
			return err
		}
	}
	return nil
}

// identityNotes tell which clusters know their peer by another key than before, because of --replace, and which cluster has a new key that
// its other peers do not know.
func (p *run) identityNotes(key func(*engine.Side) string) (notes []string) {
	for i, s := range p.sides {
		others := lo.FilterMap(lo.FromPtr(s.Facts.Ledger).Spec.Peers, func(e v1alpha1.PeerAllocation, _ int) (string, bool) {
			return failure.Quote(e.Name), e.Active() && e.ClusterID != p.sides[1-i].ID
		})
		if e := p.evidence[i]; e.Key == "" && e.ReadErr == nil && len(others) > 0 {
			notes = append(notes, fmt.Sprintf("%s has lost its identity key, and a new one is created; for each other peer (%s): kubectl liqonet peer %s PEER --replace",
				s.Name, kube.JoinFirst(3, others), failure.Quote(s.Name)))
		}
		peer, before := p.sides[1-i], lo.FromPtr(p.evidence[i].Entry)
		now := key(peer)
		if before.IdentityKey == "" || before.IdentityKey == now {
			continue
		}
		note := fmt.Sprintf("%s knows %s by another identity key: %s instead of %s", s.Name, peer.Name,
			cmp.Or(manifests.IdentityFingerprint(now), "one that is not known yet"), manifests.IdentityFingerprint(before.IdentityKey))
		if hosts := lo.Map(before.Hosts, func(h v1alpha1.ExposedHost, _ int) string { return h.Address.String() }); len(hosts) > 0 {
			note += fmt.Sprintf("; the hosts that it had exposed are not exposed to this one (%s): to expose them again, use kubectl liqonet expose-host",
				kube.JoinFirst(3, hosts))
		}
		notes = append(notes, note)
	}
	return notes
}

// findPeer finds the peer by its Peering's name, its name given by the user, or its ID. If there is none, it
// returns the names of all peers.
func findPeer(ctx context.Context, c *kube.Cluster, name string) (peerID string, others []string, err error) {
	cn, err := c.ReadLedger(ctx)
	if cn == nil {
		return "", nil, err
	}
	var peerings v1alpha1.PeeringList
	if err := c.List(ctx, &peerings); err != nil {
		return "", nil, err
	}
	found := lo.Filter(cn.Spec.Peers, func(entry v1alpha1.PeerAllocation, _ int) bool {
		return entry.ClusterID == name || entry.Name == name || slices.ContainsFunc(peerings.Items, func(p v1alpha1.Peering) bool {
			return p.Spec.Remote.ClusterID == entry.ClusterID && p.Spec.Remote.Name == name
		})
	})
	switch len(found) {
	case 0:
		return "", lo.Map(cn.Spec.Peers, func(entry v1alpha1.PeerAllocation, _ int) string { return entry.Name }), nil
	case 1:
		return found[0].ClusterID, nil, nil
	}
	ids := lo.Map(found, func(entry v1alpha1.PeerAllocation, _ int) string {
		return fmt.Sprintf("%s (Peering %s)", entry.ClusterID, entry.Name)
	})
	return "", nil, c.Errorf(kube.Usage, "find the peer "+name, "give --peer with the ID of one: "+strings.Join(ids, ", "), "several peers have this name")
}
