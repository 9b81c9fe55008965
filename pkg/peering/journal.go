package peering

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
)

// journal notes how to put back what was changed. A command that is killed loses
// it; one that fails needs it where a peering has worked before, since that
// cannot be removed to be as before.
type journal struct {
	mu    sync.Mutex
	undos []func(context.Context) error
}

func (j *journal) note(undo func(context.Context) error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.undos = append(j.undos, undo)
}

// applied notes an object as it was before it was applied; without a
// resourceVersion it was not there. A nil journal notes nothing.
func (j *journal) applied(c *Cluster, obj client.Object, before *unstructured.Unstructured) {
	if j == nil {
		return
	}
	j.note(func(ctx context.Context) error {
		u, err := manifests.ToApply(obj)
		if err != nil {
			return err
		}
		if before.GetResourceVersion() == "" {
			live := &metav1.PartialObjectMetadata{}
			live.SetGroupVersionKind(u.GroupVersionKind())
			if err := c.Client.Get(ctx, client.ObjectKeyFromObject(u), live); absent(err) {
				return nil
			} else if err != nil {
				return c.fail("read "+describe(u), err)
			}
			return c.delete(ctx, live)
		}
		return c.reapply(ctx, asBefore(before, u))
	})
}

// deleted notes a Service that is going to be deleted.
func (j *journal) deleted(c *Cluster, svc *corev1.Service) {
	again := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: svc.Namespace, Name: svc.Name, Labels: svc.Labels, Annotations: svc.Annotations},
		Spec: corev1.ServiceSpec{
			Type: svc.Spec.Type, Selector: svc.Spec.Selector, Ports: svc.Spec.Ports, PublishNotReadyAddresses: svc.Spec.PublishNotReadyAddresses,
		},
	}
	j.note(func(ctx context.Context) error {
		u, err := manifests.ToApply(again)
		if err != nil {
			return err
		}
		return c.reapply(ctx, u)
	})
}

// ranges notes the ledger's entry for a peer.
func (j *journal) ranges(c *Cluster, peerID string, before *v1alpha1.ClusterNetwork) {
	j.note(func(ctx context.Context) error {
		_, err := c.updateLedger(ctx, func(cn *v1alpha1.ClusterNetwork) error {
			now, then := plan.Allocation(cn, peerID), plan.Allocation(before, peerID)
			if now == nil || then == nil {
				return errUnchanged
			}
			now.Pods, now.ExternalCIDR = then.Pods, then.ExternalCIDR
			return nil
		})
		if errors.Is(err, errTornDown) {
			return nil
		}
		return err
	})
}

// translation notes the one of the Peering as it is.
func (j *journal) translation(s *side) {
	if s.facts.Existing == nil || s.facts.Existing.Status.Translation == nil {
		return
	}
	p := &v1alpha1.Peering{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Peering"}, ObjectMeta: metav1.ObjectMeta{Name: s.facts.Existing.Name}}
	before := s.facts.Existing.Status.Translation
	j.note(func(ctx context.Context) error { return s.applyTranslation(ctx, p, before) })
}

func (c *Cluster) reapply(ctx context.Context, u *unstructured.Unstructured) error {
	err := c.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(v1alpha1.FieldManager), client.ForceOwnership)
	return c.fail("put back "+describe(u), err)
}

// restore puts back what was changed, the last first. It goes on where something
// cannot be.
func (p *peer) restore(ctx context.Context) error {
	if len(p.sides[0].journal.undos)+len(p.sides[1].journal.undos) == 0 {
		return nil
	}
	return p.reporter.Step(ctx, "Putting back what was changed", func(ctx context.Context) error {
		var errs []error
		for _, s := range p.sides {
			for _, undo := range slices.Backward(s.journal.undos) {
				errs = append(errs, undo(ctx))
			}
		}
		return errors.Join(errs...)
	})
}

// asBefore is what has to be applied so that an object is as it was: the fields
// that are applied now, with the values that they had.
func asBefore(before, applied *unstructured.Unstructured) *unstructured.Unstructured {
	out := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(reduce(before.Object, applied.Object).(map[string]any))}
	// It may have been taken away since.
	if given, ok := before.GetAnnotations()[plan.AnnotationEndpoints]; ok {
		a := maps.Clone(out.GetAnnotations())
		if a == nil {
			a = map[string]string{}
		}
		a[plan.AnnotationEndpoints] = given
		out.SetAnnotations(a)
	}
	return out
}

// reduce is have without the fields that like does not have. Lists are whole:
// their items need not be of the same order.
func reduce(have, like any) any {
	h, ok := have.(map[string]any)
	l, isMap := like.(map[string]any)
	if !ok || !isMap {
		return have
	}
	out := map[string]any{}
	for k, v := range l {
		if had, ok := h[k]; ok {
			out[k] = reduce(had, v)
		}
	}
	return out
}
