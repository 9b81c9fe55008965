package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/samber/lo"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/admission"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/nodes"
	"github.com/liqonet/liqonet/pkg/plan"
)

// Describe returns an object's kind, namespace and name.
func Describe(obj client.Object) string {
	return KindName(obj) + " " + strings.TrimPrefix(client.ObjectKeyFromObject(obj).String(), "/")
}

// Pointers returns pointers to the items of a slice, to avoid copying them.
func Pointers[T any](in []T) []*T { return lo.ToSlicePtr(in) }

// NodesByReadiness returns the sorted names of the nodes that run agents: those that are ready, and those that are
// not.
func NodesByReadiness(all []*corev1.Node) (ready, notReady []string) {
	all = lo.Filter(all, func(n *corev1.Node, _ int) bool { return nodes.RunsAgents(n) })
	names := lo.GroupByMap(all, func(n *corev1.Node) (isReady bool, name string) { return nodes.IsReady(n), n.Name })
	slices.Sort(names[true])
	slices.Sort(names[false])
	return names[true], names[false]
}

// ContainsSorted reports whether a sorted list contains the name. There may be thousands of nodes.
func ContainsSorted(sorted []string, name string) bool {
	_, found := slices.BinarySearch(sorted, name)
	return found
}

// PeeringLabels returns the labels of a peering's objects.
func PeeringLabels(peering string) client.MatchingLabels {
	return client.MatchingLabels{v1alpha1.LabelPeering: peering}
}

// ReadLedger reads the cluster's ledger. It returns nil if liqonet is not installed.
func (c *Cluster) ReadLedger(ctx context.Context) (*v1alpha1.ClusterNetwork, error) {
	return Get[v1alpha1.ClusterNetwork](ctx, c, "", v1alpha1.ClusterNetworkName)
}

// ReadLedgerEntry reads the peer's entry in the ledger. It returns nil if there is none.
func (c *Cluster) ReadLedgerEntry(ctx context.Context, peerID string) (*v1alpha1.PeerAllocation, error) {
	cn, err := c.ReadLedger(ctx)
	return plan.Allocation(cn, peerID), err
}

// IsNotFound reports whether an error means that an object or its kind does not exist.
func IsNotFound(err error) bool { return apierrors.IsNotFound(err) || meta.IsNoMatchError(err) }

// IgnoreAbsent returns nil if an error means that an object or its kind does not exist.
func IgnoreAbsent(err error) error { return lo.Ternary(IsNotFound(err), nil, err) }

// IgnoreForbidden returns nil if an error means that the user lacks a permission.
func IgnoreForbidden(err error) error { return lo.Ternary(apierrors.IsForbidden(err), nil, err) }

// IsManaged reports whether an object has our label.
func IsManaged(obj client.Object) bool {
	return obj.GetLabels()[v1alpha1.LabelManagedBy] == v1alpha1.FieldManager
}

// ReadNodeAgents returns the DaemonSet of the node agents, or nil if there is none or it is being deleted.
func (c *Cluster) ReadNodeAgents(ctx context.Context) (*appsv1.DaemonSet, error) {
	ds, err := Get[appsv1.DaemonSet](ctx, c, v1alpha1.Namespace, v1alpha1.NodeAgentName)
	if ds != nil && !ds.DeletionTimestamp.IsZero() {
		return nil, nil
	}
	return ds, err
}

// Get reads an object. It returns nil if the object or its kind does not exist.
func Get[T any, P interface {
	*T
	client.Object
}](ctx context.Context, c *Cluster, namespace, name string) (P, error) {
	obj := P(new(T))
	err := c.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, obj)
	switch {
	case IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, c.Wrap(fmt.Sprintf("read %s %s", KindName(obj), name), err)
	}
	return obj, nil
}

// List reads the objects of a kind. The list is empty if the kind does not exist.
func (c *Cluster) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return c.Wrap(fmt.Sprintf("list %s objects", KindName(list)), IgnoreAbsent(c.Client.List(ctx, list, opts...)))
}

// ListAll reads the objects of several kinds in parallel, namespaced ones from our namespace.
func (c *Cluster) ListAll(ctx context.Context, lists ...client.ObjectList) error {
	return failure.ForEach(ctx, lists, func(ctx context.Context, list client.ObjectList) error {
		return c.List(ctx, list, InOurNamespace)
	})
}

// InOurNamespace limits a list to our namespace. The client ignores it for kinds that have no namespaces.
const InOurNamespace = client.InNamespace(v1alpha1.Namespace)

// KindName returns the kind of an object or of a list's items.
func KindName(o runtime.Object) string {
	name := cmp.Or(o.GetObjectKind().GroupVersionKind().Kind, reflect.TypeOf(o).Elem().Name())
	return strings.TrimSuffix(name, "List")
}

// ReadSecret reads the metadata of a Secret. It returns nil if there is none.
func (c *Cluster) ReadSecret(ctx context.Context, name string) (*metav1.PartialObjectMetadata, error) {
	secret := SecretMetadata(name)
	err := c.Client.Get(ctx, client.ObjectKeyFromObject(secret), secret)
	if IsNotFound(err) {
		return nil, nil
	}
	return secret, c.Wrap("read Secret "+name, err)
}

// SecretMetadata returns an object for requests that return only the metadata of a Secret.
func SecretMetadata(name string) *metav1.PartialObjectMetadata {
	secret := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: name}}
	secret.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	return secret
}

// SecretMetadataList returns a list that reads only the metadata of Secrets.
func SecretMetadataList() *metav1.PartialObjectMetadataList {
	return &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "SecretList"}}
}

// JoinFirst joins the first items, and counts the rest.
func JoinFirst(limit int, all []string) string {
	out := strings.Join(all[:min(len(all), limit)], ", ")
	if more := len(all) - limit; more > 0 {
		out += fmt.Sprintf(" (and %d more)", more)
	}
	return out
}

// ListManaged lists the objects of some kinds that we manage. Roles for Events about Peerings are in the default namespace.
func (c *Cluster) ListManaged(ctx context.Context, labels client.MatchingLabels, kinds ...client.ObjectList) (out []client.Object, err error) {
	for _, list := range kinds {
		namespaces := []client.ListOption{InOurNamespace}
		switch list.(type) {
		case *rbacv1.RoleList, *rbacv1.RoleBindingList:
			namespaces = append(namespaces, client.InNamespace(metav1.NamespaceDefault))
		}
		for _, namespace := range namespaces {
			found := list.DeepCopyObject().(client.ObjectList)
			if err := c.List(ctx, found, client.MatchingLabels{v1alpha1.LabelManagedBy: v1alpha1.FieldManager}, labels, namespace); err != nil {
				return nil, err
			}
			out = append(out, Items(found)...)
		}
	}
	return out, nil
}

// Distinct returns an error if two of the clusters are the same one, or have no ID.
func Distinct(clusters ...*Cluster) error {
	for _, same := range lo.PartitionBy(clusters, func(c *Cluster) string { return c.ID }) {
		if len(same) > 1 {
			const hint = "name different clusters; see kubectl config get-contexts"
			return failure.Usagef(hint, "%q and %q are the same cluster", same[0].Name, same[1].Name)
		}
	}
	return nil
}

// Items returns the objects of a typed list.
func Items(list client.ObjectList) []client.Object {
	return lo.Map(lo.Must(meta.ExtractList(list)), func(o runtime.Object, _ int) client.Object { return o.(client.Object) })
}

// Read returns the object to apply and the live one, without what admission would change again. A live object that does not exist has no
// resourceVersion.
func (c *Cluster) Read(ctx context.Context, obj client.Object) (want, live *unstructured.Unstructured, err error) {
	want, isReady := obj.(*unstructured.Unstructured)
	if !isReady {
		want = manifests.ToApply(obj)
	}
	live = &unstructured.Unstructured{}
	live.SetGroupVersionKind(want.GroupVersionKind())
	if err := c.Client.Get(ctx, client.ObjectKeyFromObject(want), live); err != nil && !IsNotFound(err) {
		return nil, nil, c.Wrap("read "+Describe(want), err)
	}
	alignWithAdmission(ctx, c.Client, want, live)
	return want, live, nil
}

// Preview returns what the API server would make of an object that is applied. Admission may change what we apply, and only the API server
// knows how.
func Preview(ctx context.Context, api client.Client, want *unstructured.Unstructured) (made *unstructured.Unstructured, err error) {
	made = want.DeepCopy()
	made.SetUID("")
	made.SetResourceVersion("")
	return made, api.Apply(ctx, client.ApplyConfigurationFromUnstructured(made), FieldOwner, client.ForceOwnership, client.DryRunAll)
}

// alignWithAdmission changes a live object to what we apply if applying that would change nothing: then admission makes the difference, and
// would make it again. Without permission for a dry run, the difference remains.
func alignWithAdmission(ctx context.Context, api client.Client, want, live *unstructured.Unstructured) {
	if live.GetResourceVersion() == "" || IsCRD(want) || Contains(live.Object, want.Object) {
		return
	}
	if made, err := Preview(ctx, api, want); err == nil && admission.Same(made, live) {
		overlay(live.Object, want.Object)
	}
}

// overlay sets the fields of an object to those of another one.
func overlay(on, fields map[string]any) {
	for k, v := range fields {
		inner, isMap := v.(map[string]any)
		if existing, both := on[k].(map[string]any); isMap && both && !IsAtomic(k) {
			overlay(existing, inner)
		} else if v != nil {
			on[k] = v
		}
	}
}

// Write applies an object. It first tries without force, to report the fields of other managers that it then
// overwrites.
func (c *Cluster) Write(ctx context.Context, u *unstructured.Unstructured) error {
	obj := client.ApplyConfigurationFromUnstructured(u)
	err := c.Client.Apply(ctx, obj, FieldOwner)
	if fields, isConflict := Conflicts(u, err); isConflict {
		if err = c.Client.Apply(ctx, obj, FieldOwner, client.ForceOwnership); err == nil {
			ReportConflicts(ctx, c.Name, fields, "is overwritten")
		}
	}
	return c.Wrap("apply "+Describe(u), UninstallingIfTerminating(err))
}

// FieldOwner makes requests in the name of our field manager.
const FieldOwner = client.FieldOwner(v1alpha1.FieldManager)

// AbsentVersion is the resourceVersion of an object that does not exist. Applying with it conflicts if the object
// exists.
const AbsentVersion = "1"

// Create creates an object of a peering.
func (c *Cluster) Create(ctx context.Context, obj client.Object) error {
	if err := c.Client.Create(ctx, obj, FieldOwner); err != nil {
		return err
	}
	return c.DeleteIfOvertaken(ctx, obj)
}

// DeleteIfOvertaken deletes an object of a peering that was just created if another command has taken over the lock: no other command
// knows about it. Objects that several peerings share are used or removed by the next command.
func (c *Cluster) DeleteIfOvertaken(ctx context.Context, created client.Object) error {
	end, err := lock.BeginWrite(ctx)
	if err == nil {
		end()
	}
	if lock.Lost(ctx) == nil || created.GetLabels()[v1alpha1.LabelPeering] == "" {
		return err
	}
	ctx, cancel := c.Isolated(lock.WithoutLock(ctx), RollbackTimeout)
	defer cancel()
	return errors.Join(err, c.Delete(ctx, created))
}

// IsCRD reports whether an object is a custom resource definition.
func IsCRD(u *unstructured.Unstructured) bool {
	return u.GetKind() == "CustomResourceDefinition"
}

// Delete deletes the object that was read, not a later one of the same name. Its first attempt requires the resourceVersion that
// was read, because a command that took over the lock may rely on a newer version. After a conflict, the next request checks the
// lock first.
func (c *Cluster) Delete(ctx context.Context, obj client.Object, opts ...client.DeleteOption) error {
	uid, version := obj.GetUID(), obj.GetResourceVersion()
	opts = append(opts, client.PropagationPolicy(metav1.DeletePropagationBackground))
	err := RetryOnConflict(func() error {
		err := c.Client.Delete(ctx, obj, append(slices.Clone(opts), client.Preconditions{UID: &uid, ResourceVersion: &version})...)
		if apierrors.IsConflict(err) {
			now := obj.DeepCopyObject().(client.Object)
			if readErr := c.Client.Get(ctx, client.ObjectKeyFromObject(obj), now); readErr != nil || now.GetUID() != uid {
				return readErr
			}
			version = now.GetResourceVersion()
		}
		return err
	})
	return c.Wrap("delete "+Describe(obj), IgnoreAbsent(err))
}

// IsAtomic reports whether a field is applied atomically: keys that are left out are removed.
func IsAtomic(field string) bool { return field == "nodeSelector" || field == "tolerations" }

// Contains reports whether an object is as wanted. It ignores fields that want does not mention. Lists must have equal length,
// and atomic fields must be equal.
func Contains(have, want any) bool {
	switch want := want.(type) {
	case nil:
		return true
	case map[string]any:
		got, _ := have.(map[string]any)
		for k, v := range want {
			if !Contains(got[k], v) || IsAtomic(k) && !Contains(v, got[k]) {
				return false
			}
		}
		return true
	case []any:
		got, _ := have.([]any)
		return slices.EqualFunc(got, want, Contains)
	case int64:
		return Contains(have, float64(want))
	case float64:
		if n, ok := have.(int64); ok {
			have = float64(n) // large numbers are printed differently
		}
	}
	return reflect.DeepEqual(have, want)
}

// UninstallingIfTerminating returns ErrUninstalling if err is due to the namespace being deleted.
func UninstallingIfTerminating(err error) error {
	if err != nil && admission.Hint(err.Error()) == "" && (apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) || IsNotFound(err)) {
		return ErrUninstalling
	}
	return err
}

// RollbackTimeout is how long a rollback may take beyond the command's own timeout.
const RollbackTimeout = 30 * time.Second

// WithRollbackTimeout returns a context for a rollback in both clusters. It outlives the command's own timeout, and ends when
// one of the clusters is unresponsive.
func WithRollbackTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	responsive, _ := ctx.Value(responsiveKey{}).(context.Context)
	return detached(ctx, RollbackTimeout, responsive)
}

// DeleteEach deletes objects in parallel.
func (c *Cluster) DeleteEach(ctx context.Context, objs []client.Object, opts ...client.DeleteOption) error {
	return failure.ForEach(ctx, objs, func(ctx context.Context, obj client.Object) error { return c.Delete(ctx, obj, opts...) })
}

// FieldConflict is a field of one object that another manager has set.
type FieldConflict struct {
	Object, Field, Manager string
	// Path is the path of the field if its value is preserved.
	Path []string
}

// conflictManager matches how an API server names the manager of a field.
var conflictManager = regexp.MustCompile(`conflict with "([^"]*)"`)

// Conflicts returns the fields that other managers have set, from the error of applying without force. It omits fields of our
// own commands and agents, but isConflict is true for them too.
func Conflicts(obj client.Object, err error) (fields []FieldConflict, isConflict bool) {
	status := apierrors.APIStatus(nil)
	if !apierrors.IsConflict(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return nil, false
	}
	for _, cause := range status.Status().Details.Causes {
		if cause.Type != metav1.CauseTypeFieldManagerConflict {
			continue
		}
		isConflict = true
		f := FieldConflict{Object: Describe(obj), Field: cause.Field, Manager: "somebody"}
		if m := conflictManager.FindStringSubmatch(cause.Message); m != nil {
			f.Manager = m[1]
		}
		if !strings.HasPrefix(f.Manager, v1alpha1.FieldManager) { // commands and agents
			fields = append(fields, f)
		}
	}
	return fields, isConflict
}

type conflictReportsKey struct{}

// WithConflictReports reports at once what a command does to fields of other managers. The function report must be safe for
// concurrent use.
func WithConflictReports(ctx context.Context, report func(string)) context.Context {
	return context.WithValue(ctx, conflictReportsKey{}, report)
}

// ReportConflicts reports what happens to fields of other managers.
func ReportConflicts(ctx context.Context, cluster string, fields []FieldConflict, outcome string) {
	report, wanted := ctx.Value(conflictReportsKey{}).(func(string))
	for _, f := range fields {
		if wanted {
			report(fmt.Sprintf("%s: %s: %s was set by %q, and %s", cluster, f.Object, f.Field, f.Manager, outcome))
		}
	}
}
