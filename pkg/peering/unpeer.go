package peering

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	klabels "k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
)

// Removed says what Unpeer found and did in one cluster.
type Removed struct {
	// Peering says that there was something of the peering.
	Peering bool
	// Agents says that it was the last one, so the agents went too.
	Agents bool
	// Skipped are nodes that are not ready, whose kernels could not be cleaned.
	Skipped []string
	// Others are the names of the cluster's peers, where none was called as given. They
	// matter where the peer itself is not asked.
	Others []string
}

// answerTimeout is how long a cluster may take to tell what it has of a peering, and again to
// note that it is being removed. Then the other one waits for it no more.
const answerTimeout = 10 * time.Second

// Unpeer removes the peering of both clusters from both, and the agents where
// it was the last one. It waits until the nodes' kernels are clean.
//
// Cluster a decides. It is cleaned whatever b answers, or if b does not: then the error
// is of the kind OneSided. Where the user does not want b to be asked, it is none. Without
// an answer of b its name counts.
func Unpeer(ctx context.Context, a, b *Cluster, r Reporter) (inA, inB Removed, err error) {
	if a.ID == b.ID {
		return inA, inB, sameCluster(a, b)
	}
	err = r.Step(ctx, fmt.Sprintf("Removing the peering of %s and %s", a.Name, b.Name), func(ctx context.Context) (err error) {
		if b.Unasked != nil {
			inA, err = a.unpeerAlone(ctx, b)
			return err
		}
		refused, err := a.prepareRemoval(ctx, b)
		if err != nil {
			return err
		}
		var wg sync.WaitGroup
		noted, done := context.WithTimeout(ctx, answerTimeout)
		defer done()
		if refused != nil {
			done()
		} else {
			wg.Go(func() {
				defer done()
				refused = ended(ctx, failure.Caught(func() (err error) {
					if err := b.unestablish(ctx, a.ID); err != nil {
						return err
					}
					done()
					inB, err = b.remove(ctx, a.ID, "")
					return err
				}))
			})
		}
		<-noted.Done() // the keys of a are what b knows it by
		inA, err = a.remove(ctx, b.ID, "")
		wg.Wait()
		return cmp.Or(err, a.oneSided(b, refused))
	})
	return inA, inB, ended(ctx, err)
}

// unpeerAlone removes this side of the peering, without the other one.
func (c *Cluster) unpeerAlone(ctx context.Context, peer *Cluster) (r Removed, err error) {
	if err := c.checkPermissions(ctx, toRemove()); err != nil {
		return r, err
	}
	id, others, err := c.peerCalled(ctx, peer.Name)
	if err != nil {
		return r, err
	}
	if r, err = c.remove(ctx, id, ""); err == nil && !errors.Is(peer.Unasked, ErrUnwanted) {
		err = c.oneSided(peer, peer.Unasked)
	}
	r.Others = others
	return r, err
}

// oneSided is the error for a peering that the peer may still have, nil if why is.
func (c *Cluster) oneSided(peer *Cluster, why error) error {
	if why == nil {
		return nil
	}
	return &Error{
		Kind: OneSided, Doing: fmt.Sprintf("%s has no peering with %s any more, but %s may still have its side of it", c.Name, peer.Name, peer.Name), Err: why,
		Hint: fmt.Sprintf("when %s can be asked again: kubectl liqonet unpeer %s %s", peer.Name, peer.Name, c.Name),
	}
}

// prepareRemoval makes sure that it is the peer which is removed, before anything is. It
// returns why nothing can be removed in the peer, and in err why nothing can be here.
func (c *Cluster) prepareRemoval(ctx context.Context, peer *Cluster) (refused, err error) {
	if err := c.checkPermissions(ctx, toRemove()); err != nil {
		return nil, err
	}
	own, err := c.evidence(ctx, peer.ID)
	if err != nil {
		return nil, err
	}
	asking, cancel := context.WithTimeoutCause(ctx, answerTimeout, fmt.Errorf("no answer within %s: %w", answerTimeout, context.DeadlineExceeded))
	defer cancel()
	other, refused := peer.offer(asking, c.ID)
	isPeer, err := c.recognises(ctx, peer, own, other)
	if err != nil {
		return nil, err
	}
	means := !isPeer && own.means(peer, other)
	if means {
		id, _, err := c.peerCalled(ctx, peer.Name) // an error if another one is called so, too
		if err != nil {
			return nil, err
		}
		means = id == peer.ID
	}
	if !isPeer && !means {
		return nil, c.stranger(peer, own, other, fmt.Sprintf("nothing was changed; to remove what %s has of %s: kubectl liqonet unpeer %s --peer %s", c.Name, own.name(), c.Name, own.name()))
	}
	if refused == nil {
		if isPeer, refused = peer.recognises(asking, c, other, own); refused == nil && !isPeer && !other.means(c, own) {
			refused = peer.stranger(c, other, own, "")
		}
	}
	return ended(asking, refused), c.unestablish(ctx, peer.ID)
}

// offer is what the cluster has of the peering, if it may be removed.
func (c *Cluster) offer(ctx context.Context, peerID string) (evidence, error) {
	if err := c.checkPermissions(ctx, toRemove()); err != nil {
		return evidence{unreadable: err}, err
	}
	e, err := c.evidence(ctx, peerID)
	e.unreadable = cmp.Or(e.unreadable, err)
	return e, err
}

// means says that the user means the peering by the peer's name: the peer has nothing of it
// any more, or does not tell.
func (e evidence) means(peer *Cluster, other evidence) bool {
	isSilent := other.unreadable != nil || other.entry == nil && other.peering == nil
	return isSilent && slices.Contains([]string{e.name(), e.entry.Name}, peer.Name)
}

// unpeer is one cluster's part of taking back what a command with that claim made. It does
// nothing where the peering works by now.
func (c *Cluster) unpeer(ctx context.Context, peerID, claim string) (r Removed, err error) {
	if err := c.checkPermissions(ctx, toRemove()); err != nil {
		return r, err
	}
	return c.remove(ctx, peerID, claim)
}

// remove is one cluster's part. With a claim it removes the peering only if the
// command with that claim made it, and it does not work yet.
func (c *Cluster) remove(ctx context.Context, peerID, claim string) (r Removed, err error) {
	entry, err := c.entry(ctx, peerID)
	if err != nil {
		return r, err
	}
	if entry != nil {
		if claim != "" {
			if mine, err := c.takeBack(ctx, peerID, claim); err != nil || !mine {
				return r, err
			}
		} else if err := c.undoInterrupted(ctx, peerID, entry.Name, "", true); err != nil {
			return r, err
		}
		r.Peering = true
		if r.Skipped, err = c.removePeering(ctx, entry.Name); err != nil {
			return r, err
		}
	}
	last, err := c.release(ctx, peerID)
	if err != nil {
		return r, err
	}
	if !last {
		c.retireIfPossible(ctx)
		return r, nil
	}
	// Also what a command left that was killed before it had claimed anything,
	// or after the ledger was gone.
	if r.Agents, err = c.installed(ctx); err != nil || !r.Agents {
		return r, err
	}
	return r, c.uninstall(ctx)
}

// removePeering removes what belongs to one peering, and returns when the
// kernels of all nodes that are ready are clean of it.
func (c *Cluster) removePeering(ctx context.Context, name string) (skipped []string, err error) {
	p := &v1alpha1.Peering{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := c.Client.Delete(ctx, p); err != nil && !absent(err) {
		return nil, c.fail("delete Peering "+name, err)
	}
	g, gctx := failure.NewGroup(ctx)
	g.Go(func() error {
		return c.deleteAll(gctx, client.MatchingLabels{v1alpha1.LabelPeering: name})
	})
	g.Go(func() (err error) {
		skipped, err = c.nodesClean(gctx, name)
		return err
	})
	if err := g.Wait(); err != nil {
		return skipped, err
	}
	return skipped, c.forget(ctx, name)
}

// clearUnpeered removes what this command has written of peerings that others have unpeered since it read their entries of the ledger. Where
// none is left it removes all of liqonet. Unpeer deletes the Peering before all else. So it also deletes what was written while there was a
// Peering, and what was written later is deleted here.
func (c *Cluster) clearUnpeered(ctx context.Context, known ...v1alpha1.PeerAllocation) error {
	for _, was := range known {
		p, err := get[v1alpha1.Peering](ctx, c, "", was.Name)
		if err != nil {
			return err
		}
		if p != nil {
			continue
		}
		cn, err := c.ledger(ctx)
		switch {
		case err != nil:
			return err
		case cn == nil || !cn.DeletionTimestamp.IsZero():
			return cmp.Or(c.uninstall(ctx), errUninstalling)
		}
		isNew := slices.ContainsFunc(cn.Spec.Peers, func(now v1alpha1.PeerAllocation) bool {
			isSame := now.ClusterID == was.ClusterID && was.Established && !now.Established && now.Claim == was.Claim
			return now.Name == was.Name && !isSame
		})
		if !isNew {
			if err := c.deleteAll(ctx, ofPeering(was.Name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// clearClaimed does so with the peering of which this command has claimed the entry. Where liqonet is being removed, the command has
// failed by that.
func (s *side) clearClaimed(ctx context.Context) error {
	if s.claimed == nil {
		return nil
	}
	err := s.clearUnpeered(ctx, *s.claimed)
	if errors.Is(err, errUninstalling) {
		return nil
	}
	return err
}

// clearClaimed does so in both clusters, also where ctx has ended.
func (p *run) clearClaimed(ctx context.Context) error {
	ctx, cancel := withTime(ctx)
	defer cancel()
	return p.both(ctx, func(ctx context.Context, s, _ *side) error { return s.clearClaimed(ctx) })
}

// nodesClean waits until no node's agent reports a gateway of the peering, or
// of any if name is empty. If somebody has removed the agents it installs them again:
// nobody else can take away what they put into the kernels.
func (c *Cluster) nodesClean(ctx context.Context, name string) (skipped []string, err error) {
	kinds := []client.ObjectList{&v1alpha1.NodeNetworkList{}, &corev1.NodeList{}, &appsv1.DaemonSetList{}}
	err = c.await(ctx, "wait until the nodes' kernels are clean", c.podsHint(), kinds, func(ctx context.Context, o objects) (string, error) {
		skipped = nil
		ready, _ := nodesByReadiness(of[*corev1.Node](o))
		var waiting []string
		for _, n := range of[*v1alpha1.NodeNetwork](o) {
			switch {
			case !slices.ContainsFunc(n.Status.Gateways, func(g v1alpha1.NodeGateway) bool { return name == "" || g.PeeringName == name }):
			case isAmong(ready, n.Name):
				waiting = append(waiting, n.Name)
			default:
				skipped = append(skipped, n.Name)
			}
		}
		slices.Sort(skipped)
		if len(waiting) == 0 {
			return "", nil
		}
		if byName[*appsv1.DaemonSet](o, v1alpha1.NodeAgentName) == nil {
			cn, err := c.ledger(ctx)
			if err == nil {
				key := plan.OverlayKey(cn)
				err = newSide(c, 0).applyAgents(ctx, &plan.ClusterPlan{Agents: manifests.Agents{Image: c.DefaultImage}, OverlayKeys: []int32{key}}, key)
			}
			if errors.Is(err, errUninstalling) {
				return "namespace " + v1alpha1.Namespace + " is being deleted", nil
			}
			return "the node agents were removed, and are installed again", err
		}
		slices.Sort(waiting)
		return "still there on " + firstOf(5, waiting), nil
	})
	return skipped, err
}

// workloads are the kinds of what runs, accounts those of what it needs to end
// in order: an agent that is being removed looks why, and cleans its node.
func workloads() []client.ObjectList {
	return []client.ObjectList{&appsv1.DaemonSetList{}, &appsv1.DeploymentList{}, &corev1.ServiceList{}, secretNames(), &coordinationv1.LeaseList{}, &corev1.ResourceQuotaList{}, &policyv1.PodDisruptionBudgetList{}}
}

func accounts() []client.ObjectList {
	return []client.ObjectList{
		&rbacv1.ClusterRoleBindingList{}, &rbacv1.ClusterRoleList{}, &rbacv1.RoleBindingList{}, &rbacv1.RoleList{}, &corev1.ServiceAccountList{},
		&admissionv1.ValidatingAdmissionPolicyBindingList{}, &admissionv1.ValidatingAdmissionPolicyList{},
	}
}

// deleteAll deletes all objects of ours that have the labels, custom resources
// and what holds them excepted, and their pods, and returns when these are gone.
func (c *Cluster) deleteAll(ctx context.Context, labels client.MatchingLabels) error {
	if err := c.deleteLists(ctx, labels, append(workloads(), &corev1.ConfigMapList{})...); err != nil {
		return err
	}
	if err := c.deletePods(ctx, labels); err != nil {
		return err
	}
	return c.deleteLists(ctx, labels, accounts()...)
}

// deleteLists deletes the objects of ours that have the labels.
func (c *Cluster) deleteLists(ctx context.Context, labels client.MatchingLabels, lists ...client.ObjectList) error {
	g, ctx := failure.NewGroup(ctx)
	for _, list := range lists {
		g.Go(func() error {
			objs, err := c.ours(ctx, list, labels)
			if err != nil {
				return err
			}
			return c.deleteEach(ctx, objs)
		})
	}
	return g.Wait()
}

// deletesAtOnce is how many objects of a kind are deleted at the same time: each node has some.
const deletesAtOnce = 16

// deleteEach deletes objects.
func (c *Cluster) deleteEach(ctx context.Context, objs []client.Object, opts ...client.DeleteOption) error {
	g, ctx := failure.NewGroup(ctx)
	g.SetLimit(deletesAtOnce)
	for _, obj := range objs {
		g.Go(func() error { return c.delete(ctx, obj, opts...) })
	}
	return g.Wait()
}

// deletePods deletes the pods that have the labels, and returns when they are
// gone. Those on nodes that are gone or not ready are not waited for: nobody
// there would say that they have ended.
func (c *Cluster) deletePods(ctx context.Context, labels client.MatchingLabels) error {
	// The garbage collector would come to the pods in its own time. Until it has
	// removed what makes pods, new ones may come.
	kinds := []client.ObjectList{&appsv1.ReplicaSetList{}, &corev1.PodList{}, &corev1.NodeList{}}
	selector := klabels.SelectorFromSet(klabels.Set(labels))
	return c.await(ctx, "wait until the agents' pods are gone", c.podsHint(), kinds, func(ctx context.Context, o objects) (string, error) {
		for _, set := range of[*appsv1.ReplicaSet](o) {
			if selector.Matches(klabels.Set(set.Labels)) && set.DeletionTimestamp.IsZero() {
				if err := c.delete(ctx, set); err != nil {
					return "", err
				}
			}
		}
		ready, _ := nodesByReadiness(of[*corev1.Node](o))
		reason := ""
		var running, lost []client.Object
		for _, p := range of[*corev1.Pod](o) {
			if !selector.Matches(klabels.Set(p.Labels)) {
				continue
			}
			reason = "pod " + p.Name + " is still there"
			if !isAmong(ready, p.Spec.NodeName) {
				lost = append(lost, p)
			} else if p.DeletionTimestamp.IsZero() {
				running = append(running, p)
			}
		}
		if err := c.deleteEach(ctx, lost, client.GracePeriodSeconds(0)); err != nil {
			return "", err
		}
		return reason, c.deleteEach(ctx, running)
	})
}

// ours lists objects that we manage. Some roles are where Events about Peerings are.
func (c *Cluster) ours(ctx context.Context, list client.ObjectList, labels client.MatchingLabels) (out []client.Object, err error) {
	namespaces := []client.ListOption{inOurNamespace(list)}
	switch list.(type) {
	case *rbacv1.RoleList, *rbacv1.RoleBindingList:
		namespaces = append(namespaces, client.InNamespace(metav1.NamespaceDefault))
	}
	for _, namespace := range namespaces {
		found := list.DeepCopyObject().(client.ObjectList)
		if err := c.list(ctx, found, client.MatchingLabels{v1alpha1.LabelManagedBy: v1alpha1.FieldManager}, labels, namespace); err != nil {
			return nil, err
		}
		objs, err := items(found)
		if err != nil {
			return nil, err
		}
		out = append(out, objs...)
	}
	return out, nil
}

// installed says whether anything of ours is in the cluster.
func (c *Cluster) installed(ctx context.Context) (bool, error) {
	crds, err := c.ours(ctx, &apiextensionsv1.CustomResourceDefinitionList{}, nil)
	if err != nil || len(crds) > 0 {
		return true, err
	}
	ns, err := get[corev1.Namespace](ctx, c, "", v1alpha1.Namespace)
	return ns != nil && isOurs(ns), err
}

// uninstall removes everything of ours from a cluster whose ledger is marked as being
// removed. Where there is no ledger it makes a marked one, so that nobody claims an entry
// meanwhile. It does nothing if the ledger is in use.
func (c *Cluster) uninstall(ctx context.Context) error {
	crds, err := c.ours(ctx, &apiextensionsv1.CustomResourceDefinitionList{}, nil)
	if err != nil {
		return err
	}
	cn, err := c.markedLedger(ctx)
	if err != nil {
		return err
	}
	if cn != nil && cn.DeletionTimestamp.IsZero() {
		return nil
	}
	if err := c.Client.DeleteAllOf(ctx, &v1alpha1.Peering{}); err != nil && !absent(err) {
		return c.fail("delete all Peerings", err)
	}
	if _, err := c.nodesClean(ctx, ""); err != nil {
		return err
	}
	if err := c.deleteAll(ctx, nil); err != nil {
		return err
	}
	if err := c.deleteEvents(ctx, ""); err != nil {
		return err
	}
	if err := c.removeNamespace(ctx); err != nil {
		return err
	}
	if err := c.deleteMisplaced(ctx); err != nil {
		return err
	}
	if err := c.Client.DeleteAllOf(ctx, &v1alpha1.NodeNetwork{}); err != nil && !absent(err) {
		return c.fail("delete all NodeNetworks", err)
	}
	return c.removeDefinitions(ctx, crds)
}

// removeDefinitions lets the ledger end and deletes the definitions. Between the two another
// command may claim an entry of a new ledger, which would be deleted with its kind. So
// definitions are deleted only as they were marked before the ledger ended. A command that
// applies them later changes them. One that has applied them before sees the mark when it
// has claimed its entry.
func (c *Cluster) removeDefinitions(ctx context.Context, crds []client.Object) error {
	g, gctx := failure.NewGroup(ctx)
	for _, crd := range crds {
		g.Go(func() error {
			marked := crd.DeepCopyObject().(client.Object)
			marked.SetAnnotations(map[string]string{v1alpha1.AnnotationVersion: manifests.BeingRemoved})
			err := c.Client.Patch(gctx, marked, client.MergeFrom(crd))
			if absent(err) {
				return nil
			}
			return c.fail("mark "+describe(crd)+" as being removed", err)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if inUse, err := c.endLedger(ctx); err != nil || inUse {
		return err
	}
	g, gctx = failure.NewGroup(ctx)
	for _, crd := range crds {
		g.Go(func() error { return c.deleteMarked(gctx, crd.GetName()) })
	}
	return g.Wait()
}

// endLedger removes the finalizer of a ledger that is marked as being removed. It says
// whether there is one that is not.
func (c *Cluster) endLedger(ctx context.Context) (inUse bool, err error) {
	return inUse, retryOnConflict(func() error {
		cn, err := c.ledger(ctx)
		if cn == nil || err != nil {
			return err
		}
		if inUse = cn.DeletionTimestamp.IsZero(); inUse {
			return nil
		}
		cn.Finalizers = slices.DeleteFunc(cn.Finalizers, func(f string) bool { return f == v1alpha1.UninstallFinalizer })
		if err := c.Client.Update(ctx, cn); !absent(err) {
			return c.fail("remove the finalizer of ClusterNetwork "+cn.Name, err)
		}
		return nil
	})
}

// deleteMarked deletes a custom resource definition and returns when it is gone. It does
// nothing if somebody has applied it since it was marked.
func (c *Cluster) deleteMarked(ctx context.Context, name string) error {
	var crd *apiextensionsv1.CustomResourceDefinition
	err := retryOnConflict(func() (err error) {
		crd, err = get[apiextensionsv1.CustomResourceDefinition](ctx, c, "", name)
		if crd == nil || err != nil {
			return err
		}
		if crd.DeletionTimestamp.IsZero() && crd.Annotations[v1alpha1.AnnotationVersion] != manifests.BeingRemoved {
			crd = nil
			return nil
		}
		err = c.Client.Delete(ctx, crd, client.Preconditions{UID: &crd.UID, ResourceVersion: &crd.ResourceVersion})
		if absent(err) {
			return nil
		}
		return c.fail("delete "+describe(crd), err)
	})
	if crd == nil || err != nil {
		return err
	}
	return c.gone(ctx, crd)
}

// markedLedger returns the ledger; where there is none it makes one that is
// marked as being removed. Nil where the kind does not exist.
func (c *Cluster) markedLedger(ctx context.Context) (*v1alpha1.ClusterNetwork, error) {
	for {
		cn, err := c.ledger(ctx)
		if cn != nil || err != nil {
			return cn, err
		}
		if err := c.createLedger(ctx, ipam.DefaultInternal()); errors.Is(err, errUninstalling) {
			return nil, nil
		} else if err != nil {
			return nil, err
		}
		if _, err := c.release(ctx, ""); err != nil {
			return nil, err
		}
	}
}

// gone waits until this very object is not there any more.
func (c *Cluster) gone(ctx context.Context, obj client.Object) error {
	uid := obj.GetUID()
	return c.poll(ctx, "wait until "+describe(obj)+" is gone", "", func(ctx context.Context) (string, error) {
		live := obj.DeepCopyObject().(client.Object)
		err := c.Client.Get(ctx, client.ObjectKeyFromObject(obj), live)
		if absent(err) || err == nil && live.GetUID() != uid {
			return "", nil
		}
		return "it is being deleted", err
	})
}

func sameCluster(a, b *Cluster) error {
	return &Error{
		Kind: Usage, Doing: fmt.Sprintf("%q and %q are the same cluster (kube-system has UID %s in both)", a.Name, b.Name, a.ID),
		Hint: "name two different clusters; see kubectl config get-contexts",
	}
}

// items returns a typed list's objects.
func items(list client.ObjectList) ([]client.Object, error) {
	raw, err := meta.ExtractList(list)
	if err != nil {
		return nil, err
	}
	out := make([]client.Object, 0, len(raw))
	for _, o := range raw {
		out = append(out, o.(client.Object))
	}
	return out, nil
}
