package peering

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/nodes"
	"github.com/liqonet/liqonet/pkg/plan"
)

// pollInterval is how often a condition in a cluster is looked at. Each look is
// one or two small requests.
const pollInterval = 60 * time.Millisecond

// poll calls condition until it is true, fails, or ctx ends. A timeout is
// reported with the last reason that condition gave for not being true.
func (c *Cluster) poll(ctx context.Context, doing, hint string, condition func(context.Context) (reason string, err error)) error {
	var reason string
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		var err error
		reason, err = condition(ctx)
		return err == nil && reason == "", err
	})
	if err != nil && ctx.Err() != nil {
		e := &Error{Kind: NotReady, Cluster: c.Name, Doing: doing, Hint: hint, Err: context.Cause(ctx)}
		if reason != "" {
			e.Err = fmt.Errorf("%s (%w)", reason, context.Cause(ctx))
		}
		if warning := c.lastWarning(); warning != "" {
			e.Err = fmt.Errorf("%w; the cluster says: %s", e.Err, warning)
		}
		return e
	}
	return c.fail(doing, err)
}

// lastWarning returns the newest warning event of our namespace: often the reason
// why something does not start, such as a volume or an admission.
func (c *Cluster) lastWarning() string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var events corev1.EventList
	if err := c.Client.List(ctx, &events, client.InNamespace(v1alpha1.Namespace)); err != nil {
		return ""
	}
	var newest *corev1.Event
	at := func(e *corev1.Event) time.Time {
		return slices.MaxFunc([]time.Time{e.LastTimestamp.Time, e.EventTime.Time, e.CreationTimestamp.Time}, time.Time.Compare)
	}
	for i := range events.Items {
		e := &events.Items[i]
		if e.Type == corev1.EventTypeWarning && (newest == nil || at(e).After(at(newest))) {
			newest = e
		}
	}
	if newest == nil {
		return ""
	}
	return fmt.Sprintf("%s %s: %s", newest.InvolvedObject.Kind, newest.InvolvedObject.Name, strings.TrimSpace(newest.Message))
}

// installCRDs applies the custom resource definitions and waits until they are
// served, which is about a second later than they are established.
func (c *Cluster) installCRDs(ctx context.Context) ([]string, error) {
	crds, err := manifests.CRDs()
	if err != nil {
		return nil, err
	}
	objs := make([]client.Object, 0, len(crds))
	for _, crd := range crds {
		objs = append(objs, crd)
	}
	changed, err := c.applyAll(ctx, objs...)
	if err != nil {
		return changed, err
	}
	return changed, c.poll(ctx, "wait for the custom resource definitions", "", func(ctx context.Context) (string, error) {
		for _, crd := range crds {
			live := &apiextensionsv1.CustomResourceDefinition{}
			if err := c.Client.Get(ctx, client.ObjectKeyFromObject(crd), live); absent(err) {
				return "", errTornDown
			} else if err != nil {
				return "", err
			}
			if !live.DeletionTimestamp.IsZero() {
				return "", errTornDown
			}
		}
		for _, list := range []client.ObjectList{&v1alpha1.ClusterNetworkList{}, &v1alpha1.PeeringList{}, &v1alpha1.NodeNetworkList{}} {
			if err := c.Client.List(ctx, list, client.Limit(1)); absent(err) {
				return fmt.Sprintf("%T is not served yet", list), nil
			} else if err != nil {
				return "", err
			}
		}
		return "", nil
	})
}

// install claims an entry for the peer and installs the node agents. When a
// removal is under way it is completed first.
func (c *Cluster) install(ctx context.Context, peer *Cluster, s *side, planned *plan.ClusterPlan) (changed []string, err error) {
	for {
		changed, err = c.installOnce(ctx, peer, s, planned)
		if !errors.Is(err, errTornDown) || ctx.Err() != nil {
			return changed, err
		}
		if err := c.uninstall(ctx); err != nil {
			return changed, err
		}
		// Somebody may have deleted the namespace only.
		err = c.poll(ctx, "wait until namespace "+v1alpha1.Namespace+" is gone", "", func(ctx context.Context) (string, error) {
			ns := &corev1.Namespace{}
			err := c.Client.Get(ctx, types.NamespacedName{Name: v1alpha1.Namespace}, ns)
			if absent(err) || err == nil && ns.DeletionTimestamp.IsZero() {
				return "", nil
			}
			return "it is being deleted", err
		})
		if err != nil {
			return changed, err
		}
	}
}

// applyAgents applies the objects of the node agents. The namespace comes first;
// and without its account the controller's first attempt to make pods fails, and
// it waits before the second.
func (c *Cluster) applyAgents(ctx context.Context, image string, j *journal) (installed []client.Object, key manifests.OverlayKey, changed []string, err error) {
	apply := func(objs ...client.Object) error {
		more, err := c.applyNoting(ctx, j, objs...)
		installed, changed = append(installed, objs...), append(changed, more...)
		return tornDownIfTerminating(err)
	}
	for _, obj := range []client.Object{manifests.Namespace(), manifests.CriticalPods()} {
		if err := apply(obj); err != nil {
			return nil, "", changed, err
		}
	}
	key, isNew, err := c.ensureOverlayKey(ctx)
	if err != nil {
		return nil, "", changed, tornDownIfTerminating(err)
	}
	if isNew {
		changed = append(changed, c.Name+": key of the overlay")
		if err := c.restartGateways(ctx, key); err != nil {
			return nil, "", changed, err
		}
	}
	account, daemonSet := manifests.NodeAgent(image, key)
	if err := apply(account...); err != nil {
		return nil, "", changed, err
	}
	return installed, key, changed, apply(daemonSet)
}

// restartGateways has the gateways that are there take a new key of the overlay:
// somebody has deleted the one that they have.
func (c *Cluster) restartGateways(ctx context.Context, key manifests.OverlayKey) error {
	objs, err := c.ours(ctx, &appsv1.DeploymentList{}, nil)
	if err != nil {
		return err
	}
	for _, obj := range objs {
		d := obj.(*appsv1.Deployment)
		before := d.DeepCopy()
		key.Mark(&d.Spec.Template)
		if err := c.Client.Patch(ctx, d, client.MergeFrom(before), client.FieldOwner(v1alpha1.FieldManager)); client.IgnoreNotFound(err) != nil {
			return c.fail("have "+describe(d)+" take the new key of the overlay", err)
		}
	}
	return nil
}

// installOnce installs the agents while the API server learns to serve the
// ledger, in which the entry is claimed. Only after the claim is it certain that
// nobody removes the agents, so they are looked at once more.
func (c *Cluster) installOnce(ctx context.Context, peer *Cluster, s *side, planned *plan.ClusterPlan) ([]string, error) {
	var claimed, installed []string
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		if claimed, err = c.installCRDs(gctx); err != nil {
			return err
		}
		alloc, isNew, err := c.claim(gctx, peer, planned.Ledger.Spec.InternalCIDR.Prefix)
		if isNew {
			claimed = append(claimed, fmt.Sprintf("%s: entry %q of the ledger", c.Name, alloc.Name))
		}
		s.wasEstablished = alloc.Established
		return err
	})
	var objs []client.Object
	g.Go(func() (err error) {
		objs, s.facts.OverlayKey, installed, err = c.applyAgents(gctx, planned.Image, &s.journal)
		return err
	})
	err := g.Wait()
	changed := append(claimed, installed...)
	if err != nil {
		return changed, err
	}
	for _, obj := range append(objs, manifests.OverlaySecret(nil)) {
		live := obj.DeepCopyObject().(client.Object)
		if err := c.Client.Get(ctx, client.ObjectKeyFromObject(obj), live); absent(err) || err == nil && !live.GetDeletionTimestamp().IsZero() {
			return changed, errTornDown
		} else if err != nil {
			return changed, c.fail("read "+describe(obj), err)
		}
	}
	return changed, nil
}

// tornDownIfTerminating recognizes that the namespace is being deleted.
func tornDownIfTerminating(err error) error {
	if err != nil && (apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) || absent(err)) {
		return errTornDown
	}
	return err
}

// nodeReports waits until the agent of every node that is ready has reported
// what its kernel can do.
func (c *Cluster) nodeReports(ctx context.Context) ([]v1alpha1.NodeNetwork, error) {
	var reports []v1alpha1.NodeNetwork
	err := c.poll(ctx, "wait for the node agents", c.podsHint(), func(ctx context.Context) (string, error) {
		nodes, err := c.agentNodes(ctx)
		if err != nil {
			return "", err
		}
		var list v1alpha1.NodeNetworkList
		if err := c.Client.List(ctx, &list); err != nil {
			return "", err
		}
		reports = list.Items
		var missing []string
		byNode := plan.ReportsByNode(reports)
		for _, n := range nodes {
			if r := byNode[n]; r == nil || r.Status.Kernel == nil {
				missing = append(missing, n)
			}
		}
		if len(nodes) == 0 {
			return "no node is ready", nil
		}
		if len(missing) == 0 {
			return "", nil
		}
		return "no report of " + strings.Join(missing, ", "), c.podProblem(ctx)
	})
	return reports, err
}

// agentNodes returns the names of the nodes that are ready and that have agents:
// those with a Linux kernel of their own.
func (c *Cluster) agentNodes(ctx context.Context) ([]string, error) {
	ready, _, err := c.nodesByReadiness(ctx)
	return ready, err
}

// nodesByReadiness returns the names of those nodes, and of the same that are
// not ready.
func (c *Cluster) nodesByReadiness(ctx context.Context) (ready, notReady []string, err error) {
	var list corev1.NodeList
	if err := c.Client.List(ctx, &list); err != nil {
		return nil, nil, err
	}
	for i := range list.Items {
		switch n := &list.Items[i]; {
		case !nodes.RunsAgents(n):
		case nodes.Ready(n):
			ready = append(ready, n.Name)
		default:
			notReady = append(notReady, n.Name)
		}
	}
	slices.Sort(ready)
	slices.Sort(notReady)
	return ready, notReady, nil
}

// podProblem returns an error if a pod of ours cannot start for a reason that
// waiting does not mend.
func (c *Cluster) podProblem(ctx context.Context) error {
	var pods corev1.PodList
	if err := c.Client.List(ctx, &pods, client.InNamespace(v1alpha1.Namespace)); err != nil {
		return err
	}
	for _, p := range pods.Items {
		for _, s := range p.Status.ContainerStatuses {
			w := s.State.Waiting
			if w == nil {
				continue
			}
			doing := fmt.Sprintf("start pod %s/%s on node %s", p.Namespace, p.Name, p.Spec.NodeName)
			switch w.Reason {
			case "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull":
				return &Error{
					Kind: NotReady, Cluster: c.Name, Doing: doing,
					Err:  fmt.Errorf("image %q cannot be pulled: %s", s.Image, strings.TrimSpace(w.Message)),
					Hint: "name an image that the nodes can pull with --agent-image, or load it into them (make image; kind load image-archive bin/liqonet-agent.tar)",
				}
			case "CrashLoopBackOff":
				e := &Error{
					Kind: NotReady, Cluster: c.Name, Doing: doing, Err: errors.New("the agent ends again and again"),
					Hint: fmt.Sprintf("%s -n %s logs %s --previous", c.kubectl(), p.Namespace, p.Name),
				}
				if t := s.LastTerminationState.Terminated; t != nil && t.Message != "" {
					e.Err = errors.New(strings.TrimSpace(t.Message))
				}
				return e
			case "CreateContainerConfigError", "CreateContainerError", "RunContainerError":
				return &Error{
					Kind: NotReady, Cluster: c.Name, Doing: doing, Err: fmt.Errorf("%s: %s", w.Reason, w.Message),
					Hint: c.podsHint(),
				}
			}
		}
	}
	return nil
}

func (c *Cluster) podsHint() string {
	return fmt.Sprintf("%s -n %s describe pods", c.kubectl(), v1alpha1.Namespace)
}
