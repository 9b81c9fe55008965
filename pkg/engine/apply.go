package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/samber/lo"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	klabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/history"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/status"
)

// Apply applies objects that do not depend on each other, after recording their former state in the journal. Only
// applied fields count as changes, not what agents write.
func (s *Side) Apply(ctx context.Context, objs ...manifests.Object) error {
	if len(objs) == 0 {
		return nil
	}
	names := lo.Map(objs, func(obj manifests.Object, _ int) string { return kube.Describe(obj) })
	defer kube.StartWait(ctx, s.Name, "apply "+kube.JoinFirst(1, names), "")()
	all := lo.Map(objs, func(obj manifests.Object, _ int) *application { return &application{obj: obj} })
	err := failure.ForEach(ctx, all, func(ctx context.Context, a *application) (err error) {
		a.want, a.live, err = s.Read(ctx, a.obj)
		a.changes = err == nil && !kube.Contains(a.live.Object, a.want.Object)
		return err
	})
	if err != nil {
		return err
	}
	changes := lo.FilterMap(all, func(a *application, _ int) (Change, bool) { return newChange(a.live, a.want), a.changes })
	if err := s.Changes.Journal.record(ctx, s.Cluster, changes...); err != nil {
		return err
	}
	if err := failure.ForEach(ctx, all, func(ctx context.Context, a *application) error { return a.apply(ctx, s.Cluster) }); err != nil {
		return err
	}
	for _, a := range all {
		if a.changes {
			s.RecordChange(kube.Describe(a.want))
		}
	}
	return nil
}

// application is an object to apply, the live one, and whether they differ.
type application struct {
	obj        manifests.Object
	want, live *unstructured.Unstructured
	changes    bool
}

// apply applies one object, again after a conflict unless the caller has read it: the caller handles conflicts then.
func (a *application) apply(ctx context.Context, c *kube.Cluster) error {
	if kube.IsCRD(a.want) && !a.changes {
		return nil // large, and as expensive for an API server as a change
	}
	if a.obj.GetResourceVersion() != "" {
		_, err := applyIfUnchanged(ctx, c, a.want, a.obj)
		return err
	}
	return kube.RetryOnConflict(func() error {
		made, err := applyIfUnchanged(ctx, c, a.want, a.live)
		// A new rule of admission may change an object that we apply as before.
		a.changes = a.changes || err == nil && made.GetGeneration() != a.live.GetGeneration()
		if apierrors.IsConflict(err) {
			_, now, readErr := c.Read(ctx, a.want)
			if a.live = now; readErr != nil {
				return readErr
			}
		}
		return err
	})
}

// applyIfUnchanged applies an object if it is still at the version that was read, or still absent. Otherwise it is a conflict:
// this command may have been suspended while another one changed the object.
func applyIfUnchanged(ctx context.Context, c *kube.Cluster, want *unstructured.Unstructured, read client.Object) (made *unstructured.Unstructured, err error) {
	u := want.DeepCopy() // the journal keeps want
	u.SetUID(read.GetUID())
	u.SetResourceVersion(cmp.Or(read.GetResourceVersion(), kube.AbsentVersion))
	if err := c.Write(ctx, u); err != nil {
		return nil, err
	}
	if u.GetDeletionTimestamp() != nil {
		return nil, c.Wrap("apply "+kube.Describe(u), kube.ErrUninstalling)
	}
	if read.GetResourceVersion() == "" {
		return u, c.DeleteIfOvertaken(ctx, u)
	}
	return u, nil
}

// JournalKey is the key of the changes in the journal's Secret.
const JournalKey = "changes.json"

// journal records the former state of changed objects, in a Secret, so that the next command can roll back an
// interrupted one. It contains no other Secrets: their data never changes. Agents may write ConfigMaps but not
// Secrets, as a command must not take instructions from them.
type journal struct {
	// Created makes the journal record created objects too. This is for peerings that have worked: otherwise all objects
	// of the peering are removed.
	Created bool

	// sem guards the following fields, held during requests.
	sem     chan struct{}
	Changes []Change
	object  *corev1.Secret // nil before start
}

// Change is a change of one object, made or about to be made. Before is nil if the object did not exist.
type Change struct {
	Before map[string]any `json:"before,omitempty"`
	After  map[string]any `json:"after"`
}

// start creates the journal's Secret.
func (j *journal) start(ctx context.Context, c *kube.Cluster, peering string) error {
	j.object = manifests.JournalSecret(peering)
	return c.Wrap("record the changes", kube.UninstallingIfTerminating(c.Create(ctx, j.object)))
}

// record records changes before they are made.
func (j *journal) record(ctx context.Context, c *kube.Cluster, changes ...Change) error {
	j.sem <- struct{}{}
	defer func() { <-j.sem }()
	// Definitions are large, and only ever extended.
	changes = lo.Filter(changes, func(ch Change, _ int) bool { return (ch.Before != nil || j.Created) && !kube.IsCRD(ch.object()) })
	j.Changes = append(j.Changes, changes...)
	if len(changes) == 0 || j.object == nil {
		return nil // before the Secret exists, there is nothing to roll back
	}
	raw, err := json.Marshal(j.Changes)
	if err == nil {
		obj := j.object.DeepCopy()
		obj.Data = map[string][]byte{JournalKey: raw}
		patch := client.MergeFromWithOptions(j.object, client.MergeFromWithOptimisticLock{})
		if err = c.Client.Patch(ctx, obj, patch, kube.FieldOwner); err == nil {
			j.object = obj
		}
	}
	return c.Wrap("record the changes", err)
}

// Close deletes the Secret: the changes are committed or rolled back.
func (j *journal) Close(ctx context.Context, c *kube.Cluster) error {
	if j.object == nil {
		return nil
	}
	// The Secret may have been created although the request failed.
	err := deleteNamed[corev1.Secret](ctx, c, j.object.Name)
	if err == nil {
		j.object = nil
	}
	return err
}

// newChange returns the change of the applied fields of an object.
func newChange(live, want *unstructured.Unstructured) Change {
	ch := Change{After: runtime.DeepCopyJSON(want.Object)}
	if live.GetResourceVersion() != "" {
		ch.Before = runtime.DeepCopyJSON(commonFields(live.Object, want.Object).(map[string]any))
		if spec, has := live.Object["spec"]; has && want.GetKind() == "Peering" {
			ch.Before["spec"] = runtime.DeepCopyJSONValue(spec) // commands own all of it: what they no longer apply comes back, too
		}
	}
	return ch
}

func (c Change) object() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: c.After}
}

// commonFields returns the fields of have that filter has too. Lists are kept whole: their items may be in another order.
func commonFields(have, filter any) any {
	h, ok := have.(map[string]any)
	l, isMap := filter.(map[string]any)
	if !ok || !isMap {
		return have
	}
	out := map[string]any{}
	for k, v := range l {
		if had, ok := h[k]; ok {
			if out[k] = had; !kube.IsAtomic(k) {
				out[k] = commonFields(had, v)
			}
		}
	}
	return out
}

// fieldConflicts are the fields of our objects that other managers have changed, as the API server reports them when an
// object is applied without force. Preserved fields are not applied.
type fieldConflicts struct {
	mu     sync.Mutex
	fields []kube.FieldConflict
	// forbidden is true if the user may not do the dry run that finds them.
	forbidden bool
}

// preservedFields matches fields of pods that an administrator may set: resources and tolerations.
var preservedFields = regexp.MustCompile(`^\.spec\.template\.spec\.(containers\[name="agent"\]\.resources\.|tolerations$)`)

// Detect finds the fields of an object that other managers have changed.
func (o *fieldConflicts) Detect(ctx context.Context, c *kube.Cluster, want, live *unstructured.Unstructured) error {
	obj := want.DeepCopy()
	obj.SetAnnotations(live.GetAnnotations())
	if kube.Contains(live.Object, obj.Object) {
		return nil // only the managers differ
	}
	err := c.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(obj), kube.FieldOwner, client.DryRunAll)
	fields, _ := kube.Conflicts(want, err) // other errors recur when it is applied
	for i, f := range fields {
		if preservedFields.MatchString(f.Field) {
			fields[i].Path = strings.Split(strings.TrimPrefix(strings.ReplaceAll(f.Field, `[name="agent"]`, ""), "."), ".")
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.forbidden = o.forbidden || apierrors.IsForbidden(err)
	o.fields = append(o.fields, fields...)
	return nil
}

// Desired returns the workload to apply, without preserved fields, and the live one.
func (s *Side) Desired(ctx context.Context, obj manifests.Object) (want, live *unstructured.Unstructured, err error) {
	want, live, err = s.Read(ctx, obj)
	for _, f := range s.Changes.Conflicts.fields {
		if err == nil && f.Path != nil && f.Object == kube.Describe(want) {
			removeField(want.Object, f.Path)
		}
	}
	return want, live, err
}

// removeField removes a field. A list on the path must have one item, which contains the field.
func removeField(obj map[string]any, path []string) {
	for _, name := range path[:len(path)-1] {
		next := obj[name]
		if list, _ := next.([]any); len(list) == 1 {
			next = list[0]
		}
		obj, _ = next.(map[string]any) // nil, which has no fields, if there is nothing to remove
	}
	delete(obj, path[len(path)-1])
}

// Notes returns messages about fields that are preserved, and fields that are overwritten.
func (o *fieldConflicts) Notes(cluster string) (out []string) {
	if o.forbidden {
		out = append(out, cluster+": the user may not check which fields of our objects others have changed")
	}
	for _, f := range o.fields {
		becomes := lo.Ternary(f.Path != nil, "kept", "set as this version needs it")
		out = append(out, fmt.Sprintf("%s: %s: %s was changed by %q, and is %s", cluster, f.Object, f.Field, f.Manager, becomes))
	}
	slices.Sort(out)
	return out
}

// DeleteAll deletes all of our objects that have the labels, except custom resources and the namespace, and waits
// until their pods are gone. Objects that agents write may lack the labels. They are deleted by name, or with the
// namespace. ServiceAccounts are deleted last: by them, commands find what an interrupted one has left.
func DeleteAll(ctx context.Context, c *kube.Cluster, labels client.MatchingLabels) error {
	accounts := lo.Reject(Accounts(), func(list client.ObjectList, _ int) bool { return len(labels) > 0 && ofNoPeering(list) })
	others := len(accounts) - 1
	return failure.RunSteps(ctx,
		func(ctx context.Context) error { return deleteLists(ctx, c, labels, Workloads()...) },
		func(ctx context.Context) error { return deletePods(ctx, c, labels) },
		func(ctx context.Context) error { return deleteAgentObjects(ctx, c, labels) },
		func(ctx context.Context) error { return deleteLists(ctx, c, labels, accounts[:others]...) },
		func(ctx context.Context) error { return deleteLists(ctx, c, labels, accounts[others]) },
	)
}

// deleteAgentObjects deletes the objects that gateways write: of the plane in the labels, or of all planes of the peering.
func deleteAgentObjects(ctx context.Context, c *kube.Cluster, labels client.MatchingLabels) error {
	peering, plane := labels[v1alpha1.LabelPeering], labels[v1alpha1.LabelPlane]
	g, ctx := failure.NewGroup(ctx)
	for i := range int32(4) { // no Peering has more
		if peering != "" && (plane == "" || plane == strconv.Itoa(int(i))) {
			g.Go(func() error { return deleteNamed[coordinationv1.Lease](ctx, c, v1alpha1.GatewayName(peering, i)) })
			g.Go(func() error { return deleteNamed[corev1.ConfigMap](ctx, c, v1alpha1.GatewayHistoryName(peering, i)) })
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
		objs, err := c.ListManaged(ctx, labels, list)
		return cmp.Or(err, c.DeleteEach(ctx, objs))
	})
}

// deletePods deletes the pods that have the labels, and waits until they are gone. It force-deletes pods on missing
// or unready nodes, where no kubelet would confirm that they ended.
func deletePods(ctx context.Context, c *kube.Cluster, labels client.MatchingLabels) error {
	// Do not wait for the garbage collector. Delete the ReplicaSets first, which would create new pods.
	of := []client.ObjectList{&appsv1.ReplicaSetList{}, &corev1.PodList{}, &corev1.NodeList{}}
	selector := klabels.SelectorFromSet(klabels.Set(labels))
	return c.Await(ctx, "wait until the agents' pods are gone", c.PodsHint(), of, func(o kube.Objects) (string, error) {
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
			if !kube.ContainsSorted(ready, p.Spec.NodeName) {
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
		&admissionv1.ValidatingAdmissionPolicyBindingList{}, &admissionv1.ValidatingAdmissionPolicyList{}, kube.SecretMetadataList(), &corev1.ServiceAccountList{},
	}
}

// ofNoPeering reports whether objects of a kind belong to all peerings, so that commands for one may lack access to them.
func ofNoPeering(list client.ObjectList) bool {
	switch list.(type) {
	case *admissionv1.ValidatingAdmissionPolicyBindingList, *admissionv1.ValidatingAdmissionPolicyList:
		return true
	}
	return false
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
	finalize := func(ctx context.Context) {
		if final := ns.DeepCopy(); emptyNamespace(ctx, c) == nil {
			final.ResourceVersion, final.Spec.Finalizers = "", nil // the UID has to be the same
			_ = c.Client.SubResource("finalize").Update(ctx, final)
		}
	}
	finalize(ctx)
	// Kubernetes may find out only now that the server of an aggregated API is down.
	waiting, stop := context.WithCancel(ctx)
	var retries sync.WaitGroup
	defer retries.Wait()
	defer stop()
	retries.Go(func() {
		for failure.Pause(waiting, emptyInterval) {
			finalize(waiting)
		}
	})
	return c.AwaitDeleted(ctx, ns)
}

// emptyInterval is the time between two attempts to empty our namespace.
const emptyInterval = 5 * time.Second

// emptyNamespace deletes everything in our namespace. Without an error nothing is left. It leaves out aggregated APIs whose servers are down:
// nothing of ours can be in them, and Kubernetes would wait for them without end.
func emptyNamespace(ctx context.Context, c *kube.Cluster) error {
	kinds, err := discovery.ToServerResourcesInterfaceWithContext(c.Discovery).ServerPreferredNamespacedResourcesWithContext(ctx)
	if failed := (*discovery.ErrGroupDiscoveryFailed)(nil); errors.As(err, &failed) {
		if lo.EveryBy(lo.Keys(failed.Groups), func(api schema.GroupVersion) bool { return isDown(ctx, c, api) }) {
			err = nil // the kinds of all other groups are there
		}
	}
	if err != nil {
		return err
	}
	kinds = discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "delete"}}, kinds)
	all := lo.FlatMap(kinds, func(group *metav1.APIResourceList, _ int) []schema.GroupVersionKind {
		return lo.Map(group.APIResources, func(r metav1.APIResource, _ int) schema.GroupVersionKind {
			return schema.FromAPIVersionAndKind(group.GroupVersion, r.Kind)
		})
	})
	return failure.ForEach(ctx, all, func(ctx context.Context, kind schema.GroupVersionKind) error {
		err := emptyKind(ctx, c, kind)
		if err != nil && isDown(ctx, c, kind.GroupVersion()) {
			return nil
		}
		return err
	})
}

// isDown reports whether an API is served by an aggregated server that Kubernetes does not reach.
func isDown(ctx context.Context, c *kube.Cluster, api schema.GroupVersion) bool {
	service := &unstructured.Unstructured{}
	service.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIService"})
	if err := c.Client.Get(ctx, client.ObjectKey{Name: api.Version + "." + api.Group}, service); err != nil {
		return false
	}
	_, isAggregated, _ := unstructured.NestedMap(service.Object, "spec", "service")
	conditions, _, _ := unstructured.NestedSlice(service.Object, "status", "conditions")
	return isAggregated && slices.ContainsFunc(conditions, func(cond any) bool {
		fields, _ := cond.(map[string]any)
		return fields["type"] == "Available" && fields["status"] == "False"
	})
}

// emptyKind deletes the objects of one kind in our namespace.
func emptyKind(ctx context.Context, c *kube.Cluster, kind schema.GroupVersionKind) error {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kind)
	if err := c.List(ctx, list, client.InNamespace(v1alpha1.Namespace)); err != nil || len(list.Items) == 0 {
		return err
	}
	one := &metav1.PartialObjectMetadata{}
	one.SetGroupVersionKind(kind)
	if err := c.Client.DeleteAllOf(ctx, one, client.InNamespace(v1alpha1.Namespace)); err != nil {
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
	return failure.ForEach(ctx, records, func(ctx context.Context, m *corev1.ConfigMap) error {
		values := lo.FilterSliceToMap(history.Decode(m.Data), func(e history.Entry) (string, any, bool) {
			return history.Key(e.Number), nil, e.Peering == peering
		})
		if len(values) == 0 {
			return nil
		}
		raw, _ := json.Marshal(map[string]any{"data": values}) // strings can always be encoded
		err := c.Client.Patch(ctx, m, client.RawPatch(types.MergePatchType, raw), kube.FieldOwner)
		return c.Wrap("write "+kube.Describe(m), client.IgnoreNotFound(err))
	})
}

// deleteEvents deletes the Events about a Peering, or about all Peerings if the name is empty.
func deleteEvents(ctx context.Context, c *kube.Cluster, peering string) error {
	about := client.MatchingFields{"involvedObject.kind": "Peering", "involvedObject.apiVersion": v1alpha1.GroupVersion.String()}
	if peering != "" {
		about["involvedObject.name"] = peering
	}
	err := c.Client.DeleteAllOf(ctx, &corev1.Event{}, client.InNamespace(metav1.NamespaceDefault), about)
	return c.Wrap(fmt.Sprintf("delete the Events about Peering %s", peering), client.IgnoreNotFound(err))
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
