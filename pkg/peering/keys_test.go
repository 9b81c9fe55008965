package peering

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/test/kit"
)

// wrongKeys returns violations of these rules:
//   - Node agents mount the overlay keys that Peerings name, and no keys before the one that the ledger requires.
//   - The pre-shared keys that Peerings name exist. A gateway mounts one: while it is replaced, the next one.
//   - All Secrets that agents mount exist.
//   - The data of a Secret with a key never changes.
//
// At rest, a gateway mounts the named key. The caller has locked the site.
func (w *Site) wrongKeys(isAtRest bool) sets.Set[string] {
	wrong, there, byAgent := sets.New[string](), sets.New[string](), map[string]sets.Set[string]{}
	var peerings []*v1alpha1.Peering
	least := int32(1)
	w.Raw.Each(func(obj metav1.Object) {
		switch o := obj.(type) {
		case *corev1.Secret:
			if o.Namespace != v1alpha1.Namespace || strings.HasPrefix(o.Name, manifests.JournalSecret("").Name) {
				return
			}
			there.Insert(o.Name)
			if data, is := w.keyData[o.UID], fmt.Sprint(o.Data); data != "" && data != is {
				wrong.Insert(fmt.Sprintf("Secret %s has another key", o.Name))
			} else {
				w.keyData[o.UID] = is
			}
		case *appsv1.DaemonSet:
			if o.Namespace == v1alpha1.Namespace {
				byAgent[o.Name] = mounted(&o.Spec.Template.Spec)
			}
		case *appsv1.Deployment:
			if o.Namespace == v1alpha1.Namespace {
				byAgent[o.Name] = mounted(&o.Spec.Template.Spec)
			}
		case *v1alpha1.ClusterNetwork:
			least = plan.OverlayKey(o)
		case *v1alpha1.Peering:
			peerings = append(peerings, o)
		}
	})
	for agent, secrets := range byAgent {
		for _, missing := range sets.List(secrets.Difference(there)) {
			wrong.Insert(fmt.Sprintf("%s mounts Secret %s, which is not there", agent, missing))
		}
	}
	for _, p := range peerings {
		for _, plane := range p.Spec.Planes {
			if g := plane.OverlayKeyGeneration; g >= least && !byAgent[v1alpha1.NodeAgentName].Has(manifests.OverlaySecretName(g)) {
				wrong.Insert(fmt.Sprintf("Peering %s names key %d of the overlay, which node agents do not mount", p.Name, g))
			}
			g := manifests.Gateway{Peering: p.Name, Plane: plane.Index, PresharedKey: plane.PresharedKey.Generation}
			switch psk := g.PresharedSecretName(); {
			case g.PresharedKey == 0:
			case !there.Has(psk):
				wrong.Insert(fmt.Sprintf("Peering %s names Secret %s, which is not there", p.Name, psk))
			case isAtRest && !byAgent[g.Name()].Has(psk):
				wrong.Insert(fmt.Sprintf("Peering %s names Secret %s, which its gateway does not mount", p.Name, psk))
			}
		}
	}
	return wrong
}

// mounted returns the names of the Secrets that a pod mounts.
func mounted(pod *corev1.PodSpec) sets.Set[string] {
	out := sets.New[string]()
	for _, v := range pod.Volumes {
		if v.Secret != nil {
			out.Insert(v.Secret.SecretName)
		}
		if v.Projected == nil {
			continue
		}
		for _, source := range v.Projected.Sources {
			if source.Secret != nil {
				out.Insert(source.Secret.Name)
			}
		}
	}
	return out
}

// checkMounts fails the test if keys are wrong while no command replaces gateways.
func (w *Site) checkMounts(t *testing.T) {
	t.Helper()
	w.Mu.Lock()
	defer w.Mu.Unlock()
	for _, what := range sets.List(w.wrongKeys(true)) {
		t.Errorf("%s: %s", w.Name, what)
	}
}

// Wrong keys are found, whatever caused them.
func TestWrongKeysAreFound(t *testing.T) {
	kit.Play(t)
	a, b := Peered(t)
	a.checkMounts(t)
	for _, name := range []string{"gateway-b-0-1", "gateway-b-0-psk-1", "liqonet-overlay-1"} {
		kit.NoError(t, a.Raw.Delete(t.Context(), kube.SecretMetadata(name)))
		a.Mu.Lock()
		wrong := a.wrongKeys(false)
		kit.ErrorIf(t, !strings.Contains(fmt.Sprint(sets.List(wrong)), name+", which is not there"), "without Secret %s it finds %v", name, wrong)
		a.Mu.Unlock()
	}
	ds := Get(t, b, v1alpha1.Namespace, v1alpha1.NodeAgentName, &appsv1.DaemonSet{})
	kit.NoError(t, b.Raw.Delete(t.Context(), ds))
	b.Mu.Lock()
	defer b.Mu.Unlock()
	if wrong := b.wrongKeys(false); !wrong.Has("Peering a names key 1 of the overlay, which node agents do not mount") {
		t.Errorf("without node agents it finds %v", wrong)
	}
}
