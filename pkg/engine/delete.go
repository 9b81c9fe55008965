package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/samber/lo"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	klabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/history"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/status"
)

// DeleteAll deletes all of our objects that have the labels, except custom resources and the namespace, and waits
// until their pods are gone. Objects that agents write may lack the labels. They are deleted by name, or with the
// namespace.
func DeleteAll(ctx context.Context, c *kube.Cluster, labels client.MatchingLabels) error {
	return failure.InOrder(ctx,
		func(ctx context.Context) error { return deleteLists(ctx, c, labels, Workloads()...) },
		func(ctx context.Context) error { return deletePods(ctx, c, labels) },
		func(ctx context.Context) error {
			return deleteAgentObjects(ctx, c, labels[v1alpha1.LabelPeering], labels[v1alpha1.LabelPlane])
		},
		func(ctx context.Context) error { return deleteLists(ctx, c, labels, Accounts()...) },
	)
}

// deleteAgentObjects deletes the objects that the gateway of a plane writes, or those of all planes if plane is empty.
func deleteAgentObjects(ctx context.Context, c *kube.Cluster, peering, plane string) error {
	g, ctx := failure.NewGroup(ctx)
	for i := range int32(4) { // no Peering has more
		if peering != "" && (plane == "" || plane == strconv.Itoa(int(i))) {
			g.Go(func() error { return deleteNamed[coordinationv1.Lease](ctx, c, v1alpha1.GatewayName(peering, i)) })
			g.Go(func() error { return deleteNamed[corev1.ConfigMap](ctx, c, v1alpha1.GatewayHistory(peering, i)) })
		}
	}
	return g.Wait()
}

// deleteNamed deletes an object of our namespace, if it is there.
func deleteNamed[T any, P interface {
	*T
	client.Object
}](ctx context.Context, c *kube.Cluster, name string) error {
	obj, err := kube.Get[T, P](ctx, c, v1alpha1.Namespace, name)
	if obj == nil || err != nil {
		return err
	}
	return c.Delete(ctx, obj)
}

// deleteLists deletes our objects that have the labels.
func deleteLists(ctx context.Context, c *kube.Cluster, labels client.MatchingLabels, lists ...client.ObjectList) error {
	return failure.ForEach(ctx, lists, func(ctx context.Context, list client.ObjectList) error {
		objs, err := c.ListManaged(ctx, list, labels)
		return cmp.Or(err, c.DeleteEach(ctx, objs))
	})
}

// deletePods deletes the pods that have the labels, and waits until they are gone. It force-deletes pods on missing
// or unready nodes, where no kubelet would confirm that they ended.
func deletePods(ctx context.Context, c *kube.Cluster, labels client.MatchingLabels) error {
	// Do not wait for the garbage collector. Delete the ReplicaSets first, which would create new pods.
	of := []client.ObjectList{&appsv1.ReplicaSetList{}, &corev1.PodList{}, &corev1.NodeList{}}
	selector := klabels.SelectorFromSet(klabels.Set(labels))
	return c.Await(ctx, "wait until the agents' pods are gone", c.PodsHint(), of, func(ctx context.Context, o kube.Objects) (string, error) {
		for _, set := range kube.OfKind[*appsv1.ReplicaSet](o) {
			if selector.Matches(klabels.Set(set.Labels)) && set.DeletionTimestamp.IsZero() {
				if err := c.Delete(ctx, set); err != nil {
					return "", err
				}
			}
		}
		ready, _ := kube.NodesByReadiness(kube.OfKind[*corev1.Node](o))
		reason := ""
		var running, lost []client.Object
		for _, p := range kube.OfKind[*corev1.Pod](o) {
			if !selector.Matches(klabels.Set(p.Labels)) {
				continue
			}
			reason = "pod " + p.Name + " is still there"
			if !kube.IsAmong(ready, p.Spec.NodeName) {
				lost = append(lost, p)
			} else if p.DeletionTimestamp.IsZero() {
				running = append(running, p)
			}
		}
		if err := c.DeleteEach(ctx, lost, client.GracePeriodSeconds(0)); err != nil {
			return "", err
		}
		return reason, c.DeleteEach(ctx, running)
	})
}

// Workloads returns the kinds that run agents, expose them or limit them.
func Workloads() []client.ObjectList {
	return []client.ObjectList{&appsv1.DaemonSetList{}, &appsv1.DeploymentList{}, &corev1.ServiceList{}, &corev1.ResourceQuotaList{}, &policyv1.PodDisruptionBudgetList{}}
}

// Accounts returns the kinds that Workloads need until they have ended: an agent that is being removed reads why, and
// cleans its node. If it restarts until then, it mounts its keys.
func Accounts() []client.ObjectList {
	return []client.ObjectList{
		&rbacv1.ClusterRoleBindingList{}, &rbacv1.ClusterRoleList{}, &rbacv1.RoleBindingList{}, &rbacv1.RoleList{},
		&admissionv1.ValidatingAdmissionPolicyBindingList{}, &admissionv1.ValidatingAdmissionPolicyList{}, &corev1.ServiceAccountList{}, kube.SecretNames(),
	}
}

// RemoveNamespace deletes our namespace with everything in it, and waits until it is gone.
//
// Kubernetes' namespace controller does the same, but starts after five seconds, for which a following peer command
// would have to wait. Once the namespace is terminating, the API server accepts no new objects. So we delete those of
// every kind, check that nothing is left, and remove the namespace's finalizer. The controller does what we cannot
// do, for example due to a missing permission.
func RemoveNamespace(ctx context.Context, c *kube.Cluster) error {
	ns, err := kube.Get[corev1.Namespace](ctx, c, "", v1alpha1.Namespace)
	if ns == nil || !kube.IsManaged(ns) {
		return err
	}
	if err := c.Delete(ctx, ns); err != nil {
		return err
	}
	if emptyNamespace(ctx, c) == nil {
		ns.ResourceVersion, ns.Spec.Finalizers = "", nil // the UID has to be the same
		_ = c.Client.SubResource("finalize").Update(ctx, ns)
	}
	return c.AwaitDeleted(ctx, ns)
}

// emptyNamespace deletes everything in our namespace. Without an error nothing is left.
func emptyNamespace(ctx context.Context, c *kube.Cluster) error {
	kinds, err := c.Discovery.ServerPreferredNamespacedResources()
	if err != nil {
		return err
	}
	kinds = discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "delete"}}, kinds)
	all := lo.FlatMap(kinds, func(group *metav1.APIResourceList, _ int) []schema.GroupVersionKind {
		return lo.Map(group.APIResources, func(r metav1.APIResource, _ int) schema.GroupVersionKind {
			return schema.FromAPIVersionAndKind(group.GroupVersion, r.Kind)
		})
	})
	return failure.ForEach(ctx, all, func(ctx context.Context, kind schema.GroupVersionKind) error { return emptyKind(ctx, c, kind) })
}

// emptyKind deletes the objects of one kind in our namespace.
func emptyKind(ctx context.Context, c *kube.Cluster, kind schema.GroupVersionKind) error {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kind)
	if err := c.List(ctx, list, client.InNamespace(v1alpha1.Namespace)); err != nil || len(list.Items) == 0 {
		return err
	}
	if err := c.DeleteEach(ctx, kube.Items(list)); err != nil {
		return err
	}
	if err := c.List(ctx, list, client.InNamespace(v1alpha1.Namespace)); err != nil || len(list.Items) == 0 {
		return err
	}
	return errors.New("something is left")
}

// DeleteHistory removes the Events about a deleted peering, and its entries in the records of nodes' agents. Agents remove
// these themselves only with their next write.
func DeleteHistory(ctx context.Context, c *kube.Cluster, peering string) error {
	if err := deleteEvents(ctx, c, peering); err != nil {
		return err
	}
	records, err := status.HistoryRecords(ctx, c)
	if err != nil {
		return err
	}
	return failure.ForEach(ctx, kube.Pointers(records), func(ctx context.Context, m *corev1.ConfigMap) error {
		values := lo.FilterSliceToMap(history.Decode(m.Data), func(e history.Entry) (string, any, bool) {
			return history.Key(e.Number), nil, e.Peering == peering
		})
		if len(values) == 0 {
			return nil
		}
		raw, _ := json.Marshal(map[string]any{"data": values}) // strings can always be encoded
		err := c.Client.Patch(ctx, m, client.RawPatch(types.MergePatchType, raw), client.FieldOwner(v1alpha1.FieldManager))
		return c.Fail("write "+kube.Describe(m), client.IgnoreNotFound(err))
	})
}

// deleteEvents deletes the Events about a Peering, or about all Peerings if the name is empty.
func deleteEvents(ctx context.Context, c *kube.Cluster, peering string) error {
	about := client.MatchingFields{"involvedObject.kind": "Peering", "involvedObject.apiVersion": v1alpha1.GroupVersion.String()}
	if peering != "" {
		about["involvedObject.name"] = peering
	}
	err := c.Client.DeleteAllOf(ctx, &corev1.Event{}, client.InNamespace(metav1.NamespaceDefault), about)
	return c.Fail(fmt.Sprintf("delete the Events about Peering %s", peering), client.IgnoreNotFound(err))
}

// DeleteMisplacedEvents deletes Events about our Services from the default namespace. Kubernetes' Endpoints controller sets
// no namespace in Events about Endpoints that it could not create.
func DeleteMisplacedEvents(ctx context.Context, c *kube.Cluster) error {
	var events corev1.EventList
	if err := c.List(ctx, &events, client.InNamespace(metav1.NamespaceDefault), client.MatchingFields{"involvedObject.kind": "Endpoints"}); err != nil {
		return err
	}
	return c.DeleteEach(ctx, lo.FilterMap(events.Items, func(e corev1.Event, _ int) (client.Object, bool) {
		return &e, strings.Contains(e.Message, " "+v1alpha1.Namespace+"/")
	}))
}
