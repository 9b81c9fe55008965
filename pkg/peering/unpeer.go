package peering

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
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
	"github.com/liqonet/liqonet/pkg/lock"
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
// write to its ledger that it is being removed. Then the other one waits for it no more.
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
			inA, err = a.unpeerAlone(ctx, b, r)
			return err
		}
		other, refused, err := a.prepareRemoval(ctx, b)
		if err != nil {
			return err
		}
		var wg sync.WaitGroup
		// Another command may have made a peering since the clusters were compared.
		isMeant := func(ctx context.Context) error {
			_, err := a.checkMeant(ctx, b, other)
			return err
		}
		inA, err = a.remove(ctx, b.ID, 0, r, isMeant, func() {
			if refused != nil {
				return
			}
			marked, done := context.WithTimeout(ctx, answerTimeout)
			wg.Go(func() {
				defer done()
				refused = ended(ctx, failure.Caught(func() (err error) {
					inB, err = b.remove(ctx, a.ID, answerTimeout, r, nil, done)
					return err
				}))
			})
			<-marked.Done() // what b knows a by is deleted after that
		})
		wg.Wait()
		return cmp.Or(err, a.oneSided(b, refused))
	})
	return inA, inB, ended(ctx, err)
}

// unpeerAlone removes this side of the peering, without the other one.
func (c *Cluster) unpeerAlone(ctx context.Context, peer *Cluster, reporter Reporter) (r Removed, err error) {
	if err := c.checkPermissions(ctx, toRemove()); err != nil {
		return r, err
	}
	id, others, err := c.peerCalled(ctx, peer.Name)
	if err != nil {
		return r, err
	}
	if r, err = c.remove(ctx, id, 0, reporter, nil, func() {}); err == nil && !errors.Is(peer.Unasked, ErrUnwanted) {
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
// returns what the peer has of the peering, why nothing can be removed there, and in err why nothing can be here.
func (c *Cluster) prepareRemoval(ctx context.Context, peer *Cluster) (other evidence, refused, err error) {
	if err := c.checkPermissions(ctx, toRemove()); err != nil {
		return other, nil, err
	}
	asking, cancel := context.WithTimeoutCause(ctx, answerTimeout, fmt.Errorf("no answer within %s: %w", answerTimeout, context.DeadlineExceeded))
	defer cancel()
	other, refused = peer.offer(asking, c.ID)
	own, err := c.checkMeant(ctx, peer, other)
	if err != nil {
		return other, nil, err
	}
	if refused == nil {
		var isPeer bool
		if isPeer, refused = peer.recognises(asking, c, other, own); refused == nil && !isPeer && !other.means(c, own) {
			refused = peer.stranger(c, other, own, "")
		}
	}
	return other, ended(asking, refused), nil
}

// checkMeant returns what this cluster has of the peering, and an error if the peer is not the one that the user means. It shows that it is, or has
// that name and does not tell.
func (c *Cluster) checkMeant(ctx context.Context, peer *Cluster, other evidence) (own evidence, err error) {
	if own, err = c.evidence(ctx, peer.ID); err != nil {
		return own, err
	}
	isPeer, err := c.recognises(ctx, peer, own, other)
	if err != nil {
		return own, err
	}
	means := !isPeer && own.means(peer, other)
	if means {
		id, _, err := c.peerCalled(ctx, peer.Name) // an error if another one is called so, too
		if err != nil {
			return own, err
		}
		means = id == peer.ID
	}
	if !isPeer && !means {
		return own, c.stranger(peer, own, other, fmt.Sprintf("nothing was changed; to remove what %s has of %s: kubectl liqonet unpeer %s --peer %s", c.Name, own.name(), c.Name, own.name()))
	}
	return own, nil
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
// any more, or has lost its identity, or does not tell.
func (e evidence) means(peer *Cluster, other evidence) bool {
	isSilent := other.unreadable != nil || other.identity == "" || other.entry == nil && other.peering == nil
	return isSilent && slices.Contains([]string{e.name(), e.entry.Name}, peer.Name)
}

// remove is one cluster's part. Other commands on the peering there give up. Under the lock, isMeant may refuse, unless it is nil. marked is called
// when the ledger says that the peering is being removed. The lock may take so long, 0 for as long as ctx lasts.
func (c *Cluster) remove(ctx context.Context, peerID string, within time.Duration, reporter Reporter, isMeant func(context.Context) error, marked func()) (r Removed, err error) {
	own := c.lock(peerID)
	own.Overrules, own.Within = true, within
	err = underLocks(ctx, lock.Unpeer, reporter.Step, []lock.Cluster{own}, func(ctx context.Context) (err error) {
		if isMeant != nil {
			if err := isMeant(ctx); err != nil {
				return err
			}
		}
		if err := c.unestablish(ctx, peerID); err != nil {
			return err
		}
		marked()
		r, err = c.removePeer(ctx, peerID)
		return err
	})
	if err == nil {
		r.Agents, err = c.removeUnused(ctx, reporter)
	}
	return r, err
}

// removePeer removes the peering, and its entry of the ledger, under its lock.
func (c *Cluster) removePeer(ctx context.Context, peerID string) (r Removed, err error) {
	entry, err := c.entry(ctx, peerID)
	if entry == nil || err != nil {
		return r, err
	}
	if err := c.unestablish(ctx, peerID); err != nil {
		return r, err
	}
	if err := c.undoInterrupted(ctx, peerID, entry.Name, true); err != nil {
		return r, err
	}
	r.Peering = true
	if r.Skipped, err = c.removePeering(ctx, entry.Name); err != nil {
		return r, err
	}
	return r, c.release(ctx, peerID)
}

// removeUnused removes all of liqonet from a cluster without peerings, and says whether there was anything. From others it takes the keys
// that no link has any more.
func (c *Cluster) removeUnused(ctx context.Context, reporter Reporter) (was bool, err error) {
	isUsed, err := c.isUsed(ctx)
	if err != nil {
		return false, err
	}
	if isUsed {
		c.retireIfPossible(ctx)
		return false, nil
	}
	// Also what a command left that was killed before it had claimed anything.
	if was, err = c.installed(ctx); err != nil {
		return false, err
	}
	if !was {
		return false, c.forgetLocks(ctx)
	}
	// A command that makes a peering meanwhile is not waited for.
	var looking sync.WaitGroup
	defer looking.Wait()
	waiting, needless := context.WithCancelCause(ctx)
	defer needless(nil)
	looking.Go(func() {
		_ = c.poll(waiting, "look whether there are peerings", "", func(ctx context.Context) (string, error) {
			if isUsed, err := c.isUsed(ctx); err != nil || !isUsed {
				return "there are none", nil
			}
			needless(errInUse)
			return "", nil
		})
	})
	all := c.lock("")
	all.Exclusive = true
	err = underLocks(waiting, lock.Unpeer, reporter.Step, []lock.Cluster{all}, func(locked context.Context) error {
		if isUsed, err := c.isUsed(locked); isUsed || err != nil {
			return cmp.Or(err, errInUse)
		}
		return c.uninstall(locked)
	})
	if errors.Is(context.Cause(waiting), errInUse) || errors.Is(err, errInUse) {
		return false, nil
	}
	if err != nil {
		return true, err
	}
	return true, c.forgetLocks(ctx)
}

func (c *Cluster) forgetLocks(ctx context.Context) error {
	return c.fail("delete what is left of locks", lock.Forget(ctx, c.Client))
}

// errInUse says that a cluster has peerings.
var errInUse = errors.New("the cluster has peerings")

// isUsed says that the ledger has peers, and is not being removed.
func (c *Cluster) isUsed(ctx context.Context) (bool, error) {
	cn, err := c.ledger(ctx)
	return cn != nil && cn.DeletionTimestamp.IsZero() && len(cn.Spec.Peers) > 0, err
}

// completeRemoval completes what a command has begun that was killed while it removed all of liqonet, or somebody with kubectl.
func (c *Cluster) completeRemoval(ctx context.Context, r Reporter) error {
	cn, err := c.ledger(ctx)
	if err != nil {
		return err
	}
	crds, err := c.ours(ctx, &apiextensionsv1.CustomResourceDefinitionList{}, nil)
	if err != nil {
		return err
	}
	goes := func(o client.Object) bool { return !o.GetDeletionTimestamp().IsZero() }
	if cn != nil && goes(cn) || slices.ContainsFunc(crds, goes) {
		if _, err := c.removeUnused(ctx, r); err != nil {
			return err
		}
	}
	// Somebody may have deleted the namespace only.
	ns, err := get[corev1.Namespace](ctx, c, "", v1alpha1.Namespace)
	if ns == nil || err != nil || !goes(ns) {
		return err
	}
	return c.gone(ctx, ns)
}

// removePeering removes what belongs to one peering, and returns when the
// kernels of all nodes that are ready are clean of it.
func (c *Cluster) removePeering(ctx context.Context, name string) (skipped []string, err error) {
	if err := c.deletePeerings(ctx, name); err != nil {
		return nil, err
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

// deletePeerings deletes the Peering of that name, or all if it is empty.
func (c *Cluster) deletePeerings(ctx context.Context, name string) error {
	var list v1alpha1.PeeringList
	if err := c.list(ctx, &list); err != nil {
		return err
	}
	var objs []client.Object
	for i := range list.Items {
		if p := &list.Items[i]; name == "" || p.Name == name {
			objs = append(objs, p)
		}
	}
	return c.deleteEach(ctx, objs)
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
// in order: an agent that is being removed looks why, and cleans its node. One that starts again until then mounts its keys.
func workloads() []client.ObjectList {
	return []client.ObjectList{&appsv1.DaemonSetList{}, &appsv1.DeploymentList{}, &corev1.ServiceList{}, &corev1.ResourceQuotaList{}, &policyv1.PodDisruptionBudgetList{}}
}

func accounts() []client.ObjectList {
	return []client.ObjectList{
		&rbacv1.ClusterRoleBindingList{}, &rbacv1.ClusterRoleList{}, &rbacv1.RoleBindingList{}, &rbacv1.RoleList{}, &corev1.ServiceAccountList{},
		&admissionv1.ValidatingAdmissionPolicyBindingList{}, &admissionv1.ValidatingAdmissionPolicyList{}, secretNames(),
	}
}

// deleteAll deletes all objects of ours that have the labels, custom resources
// and what holds them excepted, and their pods, and returns when these are gone. What agents write may have any labels. Of a
// peering it is deleted by its name, and of all with the namespace.
func (c *Cluster) deleteAll(ctx context.Context, labels client.MatchingLabels) error {
	if err := c.deleteLists(ctx, labels, workloads()...); err != nil {
		return err
	}
	if err := c.deletePods(ctx, labels); err != nil {
		return err
	}
	if peering := labels[v1alpha1.LabelPeering]; peering != "" {
		if err := c.deleteWritten(ctx, peering, labels[v1alpha1.LabelPlane]); err != nil {
			return err
		}
	}
	return c.deleteLists(ctx, labels, accounts()...)
}

// deleteWritten deletes what the gateway of a plane writes, or if none is given, those of all planes.
func (c *Cluster) deleteWritten(ctx context.Context, peering, plane string) error {
	g, ctx := failure.NewGroup(ctx)
	for i := range int32(4) { // no Peering has more
		if plane != "" && plane != strconv.Itoa(int(i)) {
			continue
		}
		g.Go(func() error {
			lease, err := get[coordinationv1.Lease](ctx, c, v1alpha1.Namespace, v1alpha1.GatewayName(peering, i))
			if lease == nil || err != nil {
				return err
			}
			return c.delete(ctx, lease)
		})
		g.Go(func() error {
			history, err := get[corev1.ConfigMap](ctx, c, v1alpha1.Namespace, v1alpha1.GatewayHistory(peering, i))
			if history == nil || err != nil {
				return err
			}
			return c.delete(ctx, history)
		})
	}
	return g.Wait()
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
	for _, list := range append(accounts(), &apiextensionsv1.CustomResourceDefinitionList{}) {
		if objs, err := c.ours(ctx, list, nil); err != nil || len(objs) > 0 {
			return true, err
		}
	}
	ns, err := get[corev1.Namespace](ctx, c, "", v1alpha1.Namespace)
	return ns != nil && isOurs(ns), err
}

// uninstall removes everything of ours from a cluster, under its lock. The ledger says so first, and ends last. So the next command completes
// the removal if this one is killed.
func (c *Cluster) uninstall(ctx context.Context) error {
	cn, err := c.ledger(ctx)
	if err != nil {
		return err
	}
	if cn != nil && cn.DeletionTimestamp.IsZero() {
		if err := c.delete(ctx, cn); err != nil {
			return err
		}
	}
	if err := c.deletePeerings(ctx, ""); err != nil {
		return err
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
	if err := c.endLedger(ctx); err != nil {
		return err
	}
	crds, err := c.ours(ctx, &apiextensionsv1.CustomResourceDefinitionList{}, nil)
	if err != nil {
		return err
	}
	g, gctx := failure.NewGroup(ctx)
	for _, crd := range crds {
		g.Go(func() error {
			if err := c.delete(gctx, crd); err != nil {
				return err
			}
			return c.gone(gctx, crd)
		})
	}
	return g.Wait()
}

// endLedger removes the finalizer of the ledger.
func (c *Cluster) endLedger(ctx context.Context) error {
	return retryOnConflict(func() error {
		cn, err := c.ledger(ctx)
		if cn == nil || err != nil {
			return err
		}
		cn.Finalizers = slices.DeleteFunc(cn.Finalizers, func(f string) bool { return f == v1alpha1.UninstallFinalizer })
		if err := c.Client.Update(ctx, cn); !absent(err) {
			return c.fail("remove the finalizer of ClusterNetwork "+cn.Name, err)
		}
		return nil
	})
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
