package peering

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/identity"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/pkg/plan"
)

// peerTimeout limits how long a cluster may take to report what it has of a peering, and to mark its ledger. After
// that, the other cluster does not wait any longer.
const peerTimeout = 10 * time.Second

// Unpeer removes the peering of both clusters from both, and the agents if it was the last one. It waits until the
// nodes' kernels are clean.
//
// Cluster a is authoritative. It is cleaned whatever b responds. If b is unresponsive for [kube.ResponseTimeout], the
// error has the kind OneSided. If the user does not want b to be contacted, there is none. Without a response, b is
// identified by its name.
func Unpeer(ctx context.Context, a, b *kube.Cluster, r kube.Reporter) (inA, inB engine.Removed, err error) {
	if err := kube.Distinct(a, b); err != nil {
		return inA, inB, err
	}
	a, b = a.Recording(), b.Recording()
	var refused error
	var theirs chan error // the outcome of b's side while it is being removed
	err = r.Step(ctx, fmt.Sprintf("Removing the peering of %s and %s", a.Name, b.Name), func(ctx context.Context) (err error) {
		if b.SkipReason != nil {
			inA, err = unpeerLocal(ctx, a, b, r)
			return err
		}
		var other identity.Evidence
		if other, refused, err = prepareRemoval(ctx, a, b); err != nil {
			return err
		}
		// Another command may have peered the clusters since they were compared.
		verify := func(ctx context.Context) error {
			_, err := verifyPeer(ctx, a, b, other)
			return err
		}
		removeTheirs := func() {
			if refused != nil {
				return
			}
			marked, done := context.WithTimeout(ctx, peerTimeout)
			theirs = make(chan error, 1)
			go func() {
				defer done()
				b, answering, stop := b.WatchResponses(ctx)
				defer stop()
				theirs <- kube.ContextError(answering, failure.RecoverPanic(func() (err error) {
					inB, err = remove(answering, b, a.ID, kube.ResponseTimeout, r, done)
					return err
				}))
			}()
			<-marked.Done() // what b knows a by is deleted after that
		}
		inA, err = remove(ctx, a, b.ID, 0, r, removeTheirs, verify)
		if theirs != nil {
			select { // usually both end at the same time
			case refused = <-theirs:
				theirs = nil
			case <-time.After(engine.EndTolerance):
			}
		}
		return cmp.Or(err, partialRemoval(a, b, refused))
	})
	if theirs != nil {
		name := fmt.Sprintf("%s has no peering with %s any more; removing the side of %s", a.Name, b.Name, b.Name)
		if err != nil {
			name = "Removing the side of " + b.Name
		}
		err = cmp.Or(err, r.Step(ctx, name, func(context.Context) error { return partialRemoval(a, b, <-theirs) }))
	}
	return inA, inB, kube.ContextError(ctx, err)
}

// unpeerLocal removes this side of the peering, without contacting the other.
func unpeerLocal(ctx context.Context, c *kube.Cluster, peer *kube.Cluster, reporter kube.Reporter) (r engine.Removed, err error) {
	if err := c.CheckPermissions(ctx, engine.RemovePermissions()); err != nil {
		return r, err
	}
	id, others, err := findPeer(ctx, c, peer.Name)
	if err != nil {
		return r, err
	}
	if r, err = remove(ctx, c, id, 0, reporter, func() {}); err == nil && !errors.Is(peer.SkipReason, kube.ErrSkipped) {
		err = partialRemoval(c, peer, peer.SkipReason)
	}
	r.PeerNames = others
	return r, err
}

// partialRemoval returns the error for a peering that the peer may still have, nil if why is nil.
func partialRemoval(c *kube.Cluster, peer *kube.Cluster, why error) error {
	if why == nil {
		return nil
	}
	state := fmt.Sprintf("%s has no peering with %s any more, but %s may still have its side of it", c.Name, peer.Name, peer.Name)
	hint, e := fmt.Sprintf("when %s can be reached again: kubectl liqonet unpeer %s %s", peer.Name, failure.Quote(peer.Name), failure.Quote(c.Name)), (*kube.Error)(nil)
	if errors.As(why, &e) && e.Kind == kube.NotReady && e.Hint != "" {
		hint = fmt.Sprintf("%s; then: kubectl liqonet unpeer %s %s", e.Hint, failure.Quote(peer.Name), failure.Quote(c.Name))
	}
	return &kube.Error{Kind: kube.OneSided, Op: state, Err: why, Hint: hint}
}

// prepareRemoval verifies the identity of the peer before anything is removed. It returns what the peer has of the
// peering, why nothing can be removed there (refused), and why nothing can be removed here (err).
func prepareRemoval(ctx context.Context, c *kube.Cluster, peer *kube.Cluster) (other identity.Evidence, refused, err error) {
	if err := c.CheckPermissions(ctx, engine.RemovePermissions()); err != nil {
		return other, nil, err
	}
	asking, cancel := context.WithTimeoutCause(ctx, peerTimeout, failure.TimeoutError(fmt.Sprintf("no answer within %s", peerTimeout)))
	defer cancel()
	if refused = peer.CheckPermissions(asking, engine.RemovePermissions()); refused == nil {
		other, refused = identity.Read(asking, peer, c.ID)
	}
	other.ReadErr = cmp.Or(other.ReadErr, refused)
	own, err := verifyPeer(ctx, c, peer, other)
	if err != nil {
		return other, nil, err
	}
	if refused == nil {
		var isPeer bool
		if isPeer, refused = identity.IsRecognized(asking, peer, c, other, own); refused == nil && !isPeer && !matchesName(other, c, own) {
			refused = identity.Error(peer, c, other, own, "")
		}
	}
	return other, kube.ContextError(asking, refused), nil
}

// verifyPeer returns what this cluster has of the peering, and an error unless the peer proves its identity, or has
// the given name and cannot prove anything.
func verifyPeer(ctx context.Context, c *kube.Cluster, peer *kube.Cluster, other identity.Evidence) (own identity.Evidence, err error) {
	if own, err = identity.Read(ctx, c, peer.ID); err != nil {
		return own, err
	}
	if isPeer, err := identity.IsRecognized(ctx, c, peer, own, other); isPeer || err != nil {
		return own, err
	}
	if matchesName(own, peer, other) {
		// An error if several have that name.
		if id, _, err := findPeer(ctx, c, peer.Name); id == peer.ID || err != nil {
			return own, err
		}
	}
	return own, identity.Error(c, peer, own, other, kube.Unchanged(c, peer)+fmt.Sprintf("to remove what %s has of %s: kubectl liqonet unpeer %s --peer %s", c.Name, own.Name(), failure.Quote(c.Name), failure.Quote(own.Name())))
}

// matchesName reports whether to identify the peer by its given name: it has nothing of the peering, has lost its identity,
// or does not respond.
func matchesName(e identity.Evidence, peer *kube.Cluster, other identity.Evidence) bool {
	isSilent := other.ReadErr != nil || other.Key == "" || other.Entry == nil && other.Peering == nil
	return isSilent && slices.Contains([]string{e.Name(), e.Entry.Name}, peer.Name)
}

// remove is one cluster's part. Other commands on the peering abort. It first runs the checks under the lock. The function
// marked is called when the ledger records the removal. The wait for the lock is limited by lockTimeout, 0 for no limit.
func remove(ctx context.Context, c *kube.Cluster, peerID string, lockTimeout time.Duration, reporter kube.Reporter, marked func(), checks ...step) (r engine.Removed, err error) {
	own := engine.LockFor(c, peerID)
	own.Timeout = lockTimeout
	deactivate := func(ctx context.Context) error { return engine.Deactivate(ctx, c, peerID) }
	removePeer := func(ctx context.Context) (err error) {
		marked()
		r, err = engine.RemovePeer(ctx, c, peerID)
		return err
	}
	err = engine.WithLocks(ctx, lock.Unpeer, reporter.Step, []lock.Cluster{own}, func(ctx context.Context) error {
		return failure.RunSteps(ctx, append(checks, deactivate, removePeer)...)
	})
	if err == nil {
		r.Agents, err = engine.RemoveUnused(ctx, c, lockTimeout, reporter)
	}
	return r, err
}

// Removal is what unpeer would delete in a cluster.
type Removal struct {
	Cluster   string `json:"cluster"`
	ClusterID string `json:"clusterID"`
	// Agents is true if no peering remains, so that the agents would be removed, too.
	Agents  bool              `json:"agents"`
	Objects []plan.ObjectPlan `json:"objects"`
	// Notes tell whether the other cluster could prove its identity.
	Notes []string `json:"notes,omitempty"`
	// Refused is why nothing would be deleted: the cluster does not respond, or refuses.
	Refused string `json:"refused,omitempty"`
}

// PlanRemovals returns what UnpeerAll would delete, and last the clusters in which it can delete nothing. It changes nothing.
func PlanRemovals(ctx context.Context, pairs []Pair) ([]Removal, error) {
	peers := map[*kube.Cluster][]string{}
	var clusters []*kube.Cluster
	var without []Removal
	unverified := map[*kube.Cluster][]string{}
	add := func(c *kube.Cluster, peerID string) {
		if peerID != "" {
			clusters, peers[c] = append(clusters, c), append(peers[c], peerID)
		}
	}
	for _, p := range pairs {
		a, b := p[0], p[1]
		id, refused, err := b.ID, b.SkipReason, error(nil)
		if refused != nil {
			id, _, err = findPeer(ctx, a, b.Name)
		}
		why := refused
		if refused == nil {
			var other identity.Evidence
			other, refused, err = prepareRemoval(ctx, a, b)
			why = other.ReadErr
		}
		if err != nil {
			return nil, err
		}
		if why != nil {
			unverified[a] = append(unverified[a], identity.Unverified(a, b, why))
		}
		if add(a, id); refused == nil {
			add(b, a.ID)
		} else if !errors.Is(refused, kube.ErrSkipped) {
			without = append(without, Removal{Cluster: b.Name, ClusterID: b.ID, Objects: []plan.ObjectPlan{}, Refused: refused.Error()})
		}
	}
	removals, err := lo.MapErr(lo.Uniq(clusters), func(c *kube.Cluster, _ int) (Removal, error) {
		r, err := planRemoval(ctx, c, peers[c])
		if len(r.Objects) > 0 {
			r.Notes = unverified[c]
		}
		return r, err
	})
	return append(removals, without...), err
}

func planRemoval(ctx context.Context, c *kube.Cluster, ids []string) (Removal, error) {
	r := Removal{Cluster: c.Name, ClusterID: c.ID, Objects: []plan.ObjectPlan{}}
	cn, err := c.ReadLedger(ctx)
	if cn == nil || err != nil {
		return r, err
	}
	removed, kept := lo.FilterReject(cn.Spec.Peers, func(e v1alpha1.PeerAllocation, _ int) bool { return slices.Contains(ids, e.ClusterID) })
	names := lo.Map(removed, func(e v1alpha1.PeerAllocation, _ int) string { return e.Name })
	r.Agents = len(kept) == 0
	var peerings v1alpha1.PeeringList
	if err := c.List(ctx, &peerings); err != nil {
		return r, err
	}
	found := lo.FilterMap(peerings.Items, func(p v1alpha1.Peering, _ int) (client.Object, bool) { return &p, slices.Contains(names, p.Name) })
	kinds := append(append(engine.Workloads(), engine.Accounts()...), &apiextensionsv1.CustomResourceDefinitionList{}, &corev1.NamespaceList{})
	objs, err := c.ListManaged(ctx, nil, kinds...)
	if err != nil {
		return r, err
	}
	found = append(found, lo.Filter(objs, func(obj client.Object, _ int) bool {
		peering := obj.GetLabels()[v1alpha1.LabelPeering]
		return slices.Contains(names, peering) || peering == "" && r.Agents
	})...)
	if r.Agents {
		found = append(found, cn)
	}
	r.Objects, err = lo.MapErr(found, func(obj client.Object, _ int) (plan.ObjectPlan, error) {
		gvk, err := c.Client.GroupVersionKindFor(obj)
		name := obj.GetLabels()[v1alpha1.LabelPeering]
		if p, is := obj.(*v1alpha1.Peering); is {
			name = p.Name
		}
		return plan.ObjectPlan{
			Action: plan.Delete, APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind, Namespace: obj.GetNamespace(), Name: obj.GetName(),
			Reason: lo.Ternary(name == "", "no peering remains", "of peering "+name),
		}, err
	})
	return r, err
}
