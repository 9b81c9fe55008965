// Package identity finds out whether a cluster is the one that another cluster was peered with.
//
// A cluster is identified by its ID, but an API server can return the ID of any cluster. So to continue a peering that
// has worked, a cluster must prove its identity: its API has the private key whose public key is in the other one's
// ledger. Public keys prove nothing, as many users may read them in custom resources, and peers know some. Gateways do
// not have the identity key, and it outlives the Peering, unlike the gateways' keys.
//
// Out of scope: creating keys (pkg/engine), recording them (pkg/peering).
package identity

import (
	"cmp"
	"context"
	"fmt"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// Evidence is what a cluster has of a peering.
type Evidence struct {
	// Entry in the ledger, and Peering; nil if there is none.
	Entry   *v1alpha1.PeerAllocation
	Peering *v1alpha1.Peering
	// Key is the public key of the cluster's identity, empty if it has none.
	Key string
	// ReadErr is why Key is missing, if the user may not read it.
	ReadErr error
}

// Read reads what a cluster has of the peering with a peer.
func Read(ctx context.Context, c *kube.Cluster, peerID string) (e Evidence, err error) {
	if e.Entry, err = c.ReadLedgerEntry(ctx, peerID); err != nil {
		return e, err
	}
	var peerings v1alpha1.PeeringList
	if err := c.List(ctx, &peerings); err != nil {
		return e, err
	}
	e.Peering, _ = lo.Find(kube.Pointers(peerings.Items), func(p *v1alpha1.Peering) bool { return p.Spec.Remote.ClusterID == peerID })
	e.Key, err = ReadKey(ctx, c)
	if apierrors.IsForbidden(err) {
		e.ReadErr, err = err, nil
	}
	return e, err
}

// ReadKey returns the public key of a cluster's identity, empty if it has none. It derives it from the private key, as public keys prove
// nothing.
func ReadKey(ctx context.Context, c *kube.Cluster) (string, error) {
	secret, err := kube.Get[corev1.Secret](ctx, c, v1alpha1.Namespace, manifests.IdentitySecretName)
	if secret == nil || engine.CheckKey(secret, v1alpha1.PrivateKeyFile) != nil {
		return "", err
	}
	return manifests.IdentityKey(secret), nil
}

// IsRecognized reports whether the evidence proves that the peer is the cluster that this one was peered with. A
// peering that has never worked, or is being removed, needs no proof. If the evidence does not match, it rereads the
// ledger: another command may have removed the peering since.
func IsRecognized(ctx context.Context, c *kube.Cluster, peer *kube.Cluster, own, other Evidence) (bool, error) {
	if own.Entry == nil || !own.Entry.Active() || other.Key != "" && other.Key == own.Entry.IdentityKey {
		return true, nil
	}
	entry, err := c.ReadLedgerEntry(ctx, peer.ID)
	return err == nil && (entry == nil || !entry.Active()), err
}

// Check returns an error unless the peer proves to be the cluster that this one was peered with.
func Check(ctx context.Context, c *kube.Cluster, peer *kube.Cluster) error {
	own, err := Read(ctx, c, peer.ID)
	if err != nil {
		return err
	}
	peer, asking, stop := peer.WatchResponses(ctx)
	defer stop()
	other, err := Read(asking, peer, c.ID)
	if err != nil {
		return kube.ContextError(asking, err)
	}
	if isPeer, err := IsRecognized(ctx, c, peer, own, other); isPeer || err != nil {
		return err
	}
	return Error(c, peer, own, other, FindHint(c, peer))
}

// Compare is for commands that only read. It returns an error if one of two clusters is not the one that the other was peered
// with. If that cannot be known, because something may not be read, it returns sentences that say so.
func Compare(ctx context.Context, a, b *kube.Cluster) (unverified []string, err error) {
	sides := [2]*kube.Cluster{a, b}
	var has [2]Evidence
	var hidden [2]error // why a cluster's ledger may not be read
	err = failure.ForEachLimit(ctx, len(sides), sides[:], func(ctx context.Context, i int, c *kube.Cluster) (err error) {
		if has[i], err = Read(ctx, c, sides[1-i].ID); apierrors.IsForbidden(err) {
			has[i].ReadErr, hidden[i], err = err, err, nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for i, c := range sides {
		peer, own, other := sides[1-i], has[i], has[1-i]
		isPeer, err := IsRecognized(ctx, c, peer, own, other)
		switch why := cmp.Or(hidden[i], other.ReadErr); {
		case hidden[i] != nil, err == nil && !isPeer && why != nil:
			unverified = append(unverified, Unverified(c, peer, why))
		case err != nil:
			return nil, err
		case !isPeer:
			return nil, Error(c, peer, own, other, FindHint(c, peer))
		}
	}
	return unverified, nil
}

// ArePeers reports whether each of two clusters has the other one as a peer, and has proved to be that peer. Without an error, they have not.
func ArePeers(ctx context.Context, a, b *kube.Cluster) (bool, error) {
	b, asking, stop := b.WatchResponses(ctx)
	defer stop()
	ofA, errOfA := Read(asking, a, b.ID)
	ofB, errOfB := Read(asking, b, a.ID)
	knows := func(own, other Evidence) bool {
		return own.Entry != nil && own.Entry.Active() && other.Key != "" && other.Key == own.Entry.IdentityKey
	}
	return knows(ofA, ofB) && knows(ofB, ofA), kube.ContextError(asking, cmp.Or(errOfA, errOfB, ofA.ReadErr, ofB.ReadErr))
}

// Unverified says that a peer could not prove its identity, as something may not be read.
func Unverified(c, peer *kube.Cluster, why error) string {
	return fmt.Sprintf("unverified: whether %s is the cluster that %s was peered with is not known: %v", peer.Name, c.Name, why)
}

// FindHint returns what to do about a peer that is not recognized.
func FindHint(c, peer *kube.Cluster) string {
	return kube.Unchanged(c, peer) + "find out which cluster answers at the address that the kubeconfig has for " + peer.Name
}

// Name is the name under which the peer was peered.
func (e Evidence) Name() string {
	return cmp.Or(lo.FromPtr(e.Peering).Spec.Remote.Name, lo.FromPtr(e.Entry).Name)
}

// Error returns the error for a peer that is not recognized.
func Error(c *kube.Cluster, peer *kube.Cluster, own, other Evidence, hint string) error {
	has := "has another key"
	switch {
	case other.ReadErr != nil:
		has = "its keys may not be read"
	case other.Entry == nil && other.Peering == nil:
		has = "has no peering with it"
	}
	claim := fmt.Sprintf("%s claims to be the cluster that %s knows as %s, but %s", peer.Name, c.Name, own.Name(), has)
	return &kube.Error{Kind: kube.Identity, Op: claim, Err: other.ReadErr, Hint: hint}
}
