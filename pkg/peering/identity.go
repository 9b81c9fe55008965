package peering

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// A cluster is identified by its ID, but an API server can return the ID of any cluster. So to continue a peering
// that has worked, a cluster must prove its identity: it has the private key whose public key is in this side's
// ledger. Public keys prove nothing, as many users may read them in custom resources, and peers know some. Gateways
// do not have the identity key, and it outlives the Peering, unlike the gateways' keys.

// evidence is what a cluster has of a peering.
type evidence struct {
	// entry in the ledger, and Peering; nil if there is none.
	entry   *v1alpha1.PeerAllocation
	peering *v1alpha1.Peering
	// identity is the public key of the cluster's identity, empty if it has none.
	identity string
	// unreadable is why identity is missing, if the user may not read Secrets.
	unreadable error
}

// readEvidence reads what a cluster has of the peering with a peer.
func readEvidence(ctx context.Context, c *kube.Cluster, peerID string) (e evidence, err error) {
	if e.entry, err = c.Entry(ctx, peerID); err != nil {
		return e, err
	}
	var peerings v1alpha1.PeeringList
	if err := c.List(ctx, &peerings); err != nil {
		return e, err
	}
	e.peering, _ = lo.Find(kube.Pointers(peerings.Items), func(p *v1alpha1.Peering) bool { return p.Spec.Remote.ClusterID == peerID })
	secret, err := kube.Get[corev1.Secret](ctx, c, v1alpha1.Namespace, manifests.IdentityName)
	if apierrors.IsForbidden(err) {
		e.unreadable, err = err, nil
	}
	if secret != nil {
		if key, err := engine.KeyIn(secret, v1alpha1.KeyFilePrivate); err == nil {
			e.identity = engine.PublicKey(key)
		}
	}
	return e, err
}

// recognises reports whether the evidence proves that the peer is the cluster that this one was peered with. A peering
// that has never worked, or is being removed, needs no proof. If the evidence does not match, it rereads the ledger:
// another command may have removed the peering since.
func recognises(ctx context.Context, c *kube.Cluster, peer *kube.Cluster, own, other evidence) (bool, error) {
	if own.entry == nil || !own.entry.Active() || other.identity != "" && other.identity == own.entry.IdentityKey {
		return true, nil
	}
	entry, err := c.Entry(ctx, peer.ID)
	return err == nil && (entry == nil || !entry.Active()), err
}

// checkPeer returns an error unless the peer proves to be the cluster that this one was peered with.
func checkPeer(ctx context.Context, c *kube.Cluster, peer *kube.Cluster) error {
	own, err := readEvidence(ctx, c, peer.ID)
	if err != nil {
		return err
	}
	peer, asking, stop := peer.WatchResponses(ctx)
	defer stop()
	other, err := readEvidence(asking, peer, c.ID)
	if err != nil {
		return kube.ContextError(asking, err)
	}
	if isPeer, err := recognises(ctx, c, peer, own, other); isPeer || err != nil {
		return err
	}
	return unrecognisedPeer(c, peer, own, other, hintIdentity+peer.Name)
}

// hintIdentity is followed by the name of the cluster that is not recognised.
const hintIdentity = "nothing was changed; find out which cluster answers at the address that the kubeconfig has for "

// name is the name under which the peer was peered.
func (e evidence) name() string {
	if e.peering != nil && e.peering.Spec.Remote.Name != "" {
		return e.peering.Spec.Remote.Name
	}
	return e.entry.Name
}

// unrecognisedPeer returns the error for a peer that is not recognised.
func unrecognisedPeer(c *kube.Cluster, peer *kube.Cluster, own, other evidence, hint string) error {
	has := "has another key"
	switch {
	case other.unreadable != nil:
		has = "its keys may not be read"
	case other.entry == nil && other.peering == nil:
		has = "has no peering with it"
	}
	claim := fmt.Sprintf("%s claims to be the cluster that %s knows as %s, but %s", peer.Name, c.Name, own.name(), has)
	return &kube.Error{Kind: kube.Identity, Doing: claim, Err: other.unreadable, Hint: hint}
}

// recognise returns an error if a cluster has newer agents, or is not the one that the other was peered with. Where Secrets may not be
// read, unclear is why the latter is unknown.
func (p *run) recognise(ctx context.Context) (unclear, err error) {
	var has [2]evidence
	err = p.forEachSide(ctx, func(ctx context.Context, s, peer *engine.Side) (err error) {
		if err := engine.CheckVersion(ctx, s.Cluster); err != nil || p.options.Replace {
			return err
		}
		has[s.Index], err = readEvidence(ctx, s.Cluster, peer.ID)
		return err
	})
	if err != nil {
		return nil, err
	}
	for i, s := range p.sides {
		peer, own, other := p.sides[1-i], has[i], has[1-i]
		p.recognised[i] = own.entry
		isPeer, err := recognises(ctx, s.Cluster, peer.Cluster, own, other)
		switch {
		case err != nil:
			return nil, err
		case isPeer:
		case other.unreadable != nil:
			unclear = other.unreadable
		default:
			return nil, unrecognisedPeer(s.Cluster, peer.Cluster, own, other, hintIdentity+peer.Name+
				"; if it is the right one, and has lost its keys or was unpeered from one side only, give --replace")
		}
	}
	return unclear, nil
}

// mustRecognise is recognise for commands that change something: unclear is an error.
func (p *run) mustRecognise(ctx context.Context) error {
	unclear, err := p.recognise(ctx)
	return cmp.Or(err, unclear)
}

// recogniseAgain repeats the comparison if a peering was made since the first one, which was without locks. If one was
// removed, the cluster proves nothing any more.
func (p *run) recogniseAgain(ctx context.Context) error {
	var isNew [2]bool
	err := p.forEachSide(ctx, func(ctx context.Context, s, peer *engine.Side) error {
		if err := engine.CheckVersion(ctx, s.Cluster); err != nil {
			return err
		}
		now, err := s.Entry(ctx, peer.ID)
		before := p.recognised[s.Index]
		isNew[s.Index] = now != nil && now.Active() && (before == nil || !before.Active() || before.IdentityKey != now.IdentityKey)
		return err
	})
	if err != nil || isNew == [2]bool{} {
		return err
	}
	return p.mustRecognise(ctx)
}

// findPeer finds the peer by its Peering's name, its name given by the user, or its ID. If there is none, it
// returns the names of all peers.
func findPeer(ctx context.Context, c *kube.Cluster, name string) (peerID string, others []string, err error) {
	cn, err := c.Ledger(ctx)
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
