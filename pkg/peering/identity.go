package peering

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
)

// A cluster is its ID, which is what its API answers: an API server can answer the ID of
// another cluster. So for a peering that has worked, a cluster must have what only the true
// peer has: the private half of its identity. This side's ledger has the public one. Public keys prove
// nothing. They are in custom resources that many may read, and each peer is told some. No gateway has the identity, and
// it outlives the Peering: with that go its gateways' keys.

// evidence is what a cluster has of a peering.
type evidence struct {
	// entry of the ledger, and Peering; nil if there is none.
	entry   *v1alpha1.PeerAllocation
	peering *v1alpha1.Peering
	// identity is the public half of the cluster's own, empty if it has none.
	identity string
	// unreadable is why there is none, where the user may not read Secrets.
	unreadable error
}

// readEvidence reads what the cluster has of the peering with a peer.
func readEvidence(ctx context.Context, c *kube.Cluster, peerID string) (e evidence, err error) {
	cn, err := c.Ledger(ctx)
	if err != nil {
		return e, err
	}
	if cn != nil {
		e.entry = plan.Allocation(cn, peerID)
	}
	var peerings v1alpha1.PeeringList
	if err := c.List(ctx, &peerings); err != nil {
		return e, err
	}
	for i, p := range peerings.Items {
		if p.Spec.Remote.ClusterID == peerID {
			e.peering = &peerings.Items[i]
		}
	}
	secret, err := kube.Get[corev1.Secret](ctx, c, v1alpha1.Namespace, manifests.IdentityName)
	if apierrors.IsForbidden(err) {
		e.unreadable, err = err, nil
	}
	if secret != nil {
		if key, err := engine.KeyIn(secret, v1alpha1.KeyFilePrivate); err == nil {
			e.identity = engine.PublicOf(key)
		}
	}
	return e, err
}

// recognises says that the other cluster is the one that this one was peered with, by the
// evidence of both. A peering that has never worked, or is being removed, asks for none.
func (e evidence) recognises(other evidence) bool {
	return e.entry == nil || !e.entry.Active() || other.identity != "" && other.identity == e.entry.IdentityKey
}

// recognises compares the evidence, and looks again whether it has to. Another command may
// have removed the peering after this side's evidence was read.
func recognises(ctx context.Context, c *kube.Cluster, peer *kube.Cluster, own, other evidence) (bool, error) {
	if own.recognises(other) {
		return true, nil
	}
	entry, err := c.Entry(ctx, peer.ID)
	return err == nil && (entry == nil || !entry.Active()), err
}

// checkPeer returns an error if the other cluster is not the one that this one was peered with, or does not show it.
func checkPeer(ctx context.Context, c *kube.Cluster, peer *kube.Cluster) error {
	own, err := readEvidence(ctx, c, peer.ID)
	if err != nil {
		return err
	}
	_, asking, stop := peer.WhileAnswering(ctx)
	defer stop()
	other, err := readEvidence(asking, peer, c.ID)
	if err != nil {
		return kube.Ended(asking, err)
	}
	if isPeer, err := recognises(ctx, c, peer, own, other); isPeer || err != nil {
		return err
	}
	return stranger(c, peer, own, other, fmt.Sprintf("nothing was changed; find out which cluster answers at the address that the kubeconfig has for %s", peer.Name))
}

// name is what the peer was called when it was peered.
func (e evidence) name() string {
	if e.peering != nil && e.peering.Spec.Remote.Name != "" {
		return e.peering.Spec.Remote.Name
	}
	return e.entry.Name
}

// stranger is the error for a peer that is not recognised.
func stranger(c *kube.Cluster, peer *kube.Cluster, own, other evidence, hint string) error {
	has := "has another key"
	switch {
	case other.unreadable != nil:
		has = "its keys may not be read"
	case other.entry == nil && other.peering == nil:
		has = "has no peering with it"
	}
	return &kube.Error{
		Kind: kube.Identity, Doing: fmt.Sprintf("%s says that it is the cluster that %s knows as %s, but %s", peer.Name, c.Name, own.name(), has), Err: other.unreadable, Hint: hint,
	}
}

// recognise returns an error if one of the clusters is not the one that the other was
// peered with. Where that is unclear, because Secrets may not be read, it says so.
func (p *run) recognise(ctx context.Context) (unclear, err error) {
	if p.options.Replace {
		return nil, nil
	}
	var has [2]evidence
	err = p.both(ctx, func(ctx context.Context, s, peer *engine.Side) (err error) {
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
			return nil, stranger(s.Cluster, peer.Cluster, own, other, fmt.Sprintf(
				"nothing was changed; find out which cluster answers at the address that the kubeconfig has for %s; if it is the right one, and has lost its keys or was unpeered alone, give --replace", peer.Name))
		}
	}
	return unclear, nil
}

// recogniseAgain compares the clusters again where a peering has been made since they were compared without locks.
func (p *run) recogniseAgain(ctx context.Context) error {
	var isNew [2]bool
	err := p.both(ctx, func(ctx context.Context, s, peer *engine.Side) error {
		now, err := s.Entry(ctx, peer.ID)
		before := p.recognised[s.Index]
		isNew[s.Index] = now != nil && now.Active() && (before == nil || !before.Active() || before.IdentityKey != now.IdentityKey)
		return err
	})
	if err != nil || isNew == [2]bool{} {
		return err
	}
	unclear, err := p.recognise(ctx)
	return cmp.Or(err, unclear)
}

// peerCalled finds the peer of that name: its Peering's, what the user called it, or its ID.
// Where there is none, it returns the names of all peers.
func peerCalled(ctx context.Context, c *kube.Cluster, name string) (peerID string, others []string, err error) {
	cn, err := c.Ledger(ctx)
	if cn == nil {
		return "", nil, err
	}
	var peerings v1alpha1.PeeringList
	if err := c.List(ctx, &peerings); err != nil {
		return "", nil, err
	}
	names := map[string][]string{}
	for _, p := range peerings.Items {
		names[p.Spec.Remote.ClusterID] = append(names[p.Spec.Remote.ClusterID], p.Spec.Remote.Name)
	}
	var found []v1alpha1.PeerAllocation
	for _, entry := range cn.Spec.Peers {
		if entry.ClusterID == name || entry.Name == name || slices.Contains(names[entry.ClusterID], name) {
			found = append(found, entry)
		}
		others = append(others, entry.Name)
	}
	switch len(found) {
	case 0:
		return "", others, nil
	case 1:
		return found[0].ClusterID, nil, nil
	}
	var ids []string
	for _, entry := range found {
		ids = append(ids, fmt.Sprintf("%s (Peering %s)", entry.ClusterID, entry.Name))
	}
	return "", nil, c.Errorf(kube.Usage, "find the peer "+name, "give --peer with the ID of one: "+strings.Join(ids, ", "), "several are called so")
}
