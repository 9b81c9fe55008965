package kube

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// Read returns the object to apply and the live one. A live object that does not exist has no resourceVersion.
func (c *Cluster) Read(ctx context.Context, obj client.Object) (want, live *unstructured.Unstructured, err error) {
	want, isReady := obj.(*unstructured.Unstructured)
	if !isReady {
		want = manifests.ToApply(obj)
	}
	live = &unstructured.Unstructured{}
	live.SetGroupVersionKind(want.GroupVersionKind())
	if err := c.Client.Get(ctx, client.ObjectKeyFromObject(want), live); err != nil && !Absent(err) {
		return nil, nil, c.Fail("read "+Describe(want), err)
	}
	return want, live, nil
}

// Write applies an object. It first tries without force, to report the fields of other managers that it then
// overwrites.
func (c *Cluster) Write(ctx context.Context, u *unstructured.Unstructured) error {
	obj, owner := client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(v1alpha1.FieldManager)
	err := c.Client.Apply(ctx, obj, owner)
	if fields, isConflict := Conflicts(u, err); isConflict {
		if err = c.Client.Apply(ctx, obj, owner, client.ForceOwnership); err == nil {
			Notice(ctx, c.Name, fields, "is overwritten")
		}
	}
	return c.Fail("apply "+Describe(u), UninstallingIfTerminating(err))
}

// AbsentVersion is the resourceVersion of an object that does not exist. Applying with it conflicts if the object
// exists.
const AbsentVersion = "1"

// Create creates an object of a peering.
func (c *Cluster) Create(ctx context.Context, obj client.Object) error {
	if err := c.Client.Create(ctx, obj, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return err
	}
	return c.Recheck(ctx, obj)
}

// Recheck deletes an object of a peering that was just created if another command has taken over the lock: no other command
// knows about it. Objects that several peerings share are used or removed by the next command.
func (c *Cluster) Recheck(ctx context.Context, created client.Object) error {
	end, err := lock.Begin(ctx)
	if err == nil {
		end()
	}
	if lock.Lost(ctx) == nil || created.GetLabels()[v1alpha1.LabelPeering] == "" {
		return err
	}
	ctx, cancel := c.Isolated(lock.Outside(ctx), RollbackTimeout)
	defer cancel()
	return errors.Join(err, c.Delete(ctx, created))
}

// IsDefinition reports whether an object is a custom resource definition.
func IsDefinition(u *unstructured.Unstructured) bool {
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
	if Absent(err) {
		return nil
	}
	return c.Fail("delete "+Describe(obj), err)
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
	if err != nil && (apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) || Absent(err)) {
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

// AwaitDeleted waits until this object, identified by its UID, no longer exists.
func (c *Cluster) AwaitDeleted(ctx context.Context, obj client.Object) error {
	uid := obj.GetUID()
	return c.Poll(ctx, "wait until "+Describe(obj)+" is gone", "", func(ctx context.Context) (string, error) {
		live := obj.DeepCopyObject().(client.Object)
		err := c.Client.Get(ctx, client.ObjectKeyFromObject(obj), live)
		if Absent(err) || err == nil && live.GetUID() != uid {
			return "", nil
		}
		return "it is being deleted", err
	})
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

type noticesKey struct{}

// WithNotices reports at once what a command does to fields of other managers. The function report must be safe for
// concurrent use.
func WithNotices(ctx context.Context, report func(string)) context.Context {
	return context.WithValue(ctx, noticesKey{}, report)
}

// Notice reports what happens to fields of other managers.
func Notice(ctx context.Context, cluster string, fields []FieldConflict, becomes string) {
	report, wanted := ctx.Value(noticesKey{}).(func(string))
	for _, f := range fields {
		if wanted {
			report(fmt.Sprintf("%s: %s: %s was set by %q, and %s", cluster, f.Object, f.Field, f.Manager, becomes))
		}
	}
}
