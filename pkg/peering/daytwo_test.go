package peering

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/discovery"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// Changes returns what a dry run would do, as "cluster action kind name".
func Changes(p *plan.Plan) (out []string) {
	for _, c := range p.Clusters {
		for _, o := range c.Objects {
			if o.Action != plan.Keep {
				out = append(out, c.Cluster+" "+string(o.Action)+" "+o.Kind+" "+o.Name)
			}
		}
	}
	return out
}

// A pod range that a cluster gets later is added without changing the existing ones.
func TestPodRangeAdded(t *testing.T) {
	kit.NotShort(t)
	a, b := TwoSites(t)
	MustPeer(t, a, b, engine.Options{})
	specB := b.peering(t).Spec
	workloads := func() map[string]any {
		out := a.contents(t)
		for name, o := range b.contents(t) {
			out["b "+name] = o
		}
		for _, name := range []string{"Peering b", "b Peering a", "b ClusterNetwork cluster"} {
			if out[name] == nil {
				t.Errorf("there is no %s", name)
			}
			delete(out, name)
		}
		return out
	}
	before := workloads()
	grown := engine.Options{Facts: map[string]discovery.Overrides{"id-of-a": {PodCIDRs: kubetest.Ipv4Prefixes("10.244.0.0/16", "10.99.0.0/16", "10.30.0.0/16")}}}
	want := []string{"a change Peering b", "b change ClusterNetwork cluster", "b change Peering a"}
	if diff := cmp.Diff(want, Changes(DryRun(t, a, b, grown))); diff != "" {
		t.Errorf("dry run:\n%s", diff)
	}
	MustPeer(t, a, b, grown)
	got := b.peering(t).Spec
	if len(got.Remote.Pods) != 3 || !slices.Contains(got.Remote.Pods, specB.Remote.Pods[0]) || got.Remote.ExternalCIDR != specB.Remote.ExternalCIDR {
		t.Errorf("before %+v, after %+v", specB.Remote, got.Remote)
	}
	if !slices.Contains(got.Remote.Pods, kubetest.Mapping("10.30.0.0/16", "10.30.0.0/16")) { // free in b
		t.Errorf("got %+v", got.Remote.Pods)
	}
	got.Remote.Pods = specB.Remote.Pods
	if diff := cmp.Diff(specB, got, kubetest.Compare); diff != "" {
		t.Errorf("more than the ranges was changed:\n%s", diff)
	}
	if diff := cmp.Diff(before, workloads()); diff != "" {
		t.Errorf("other objects were changed:\n%s", diff)
	}
	if p := DryRun(t, a, b, grown); p.Changes() > 0 {
		t.Errorf("again: %v", Changes(p))
	}
}

// A subnet that a node gets later moves only the range that it overlaps.
func TestNodeSubnetAdded(t *testing.T) {
	kit.NotShort(t)
	a, b := TwoSites(t)
	MustPeer(t, a, b, engine.Options{})
	was := b.peering(t).Spec
	free, inTheWay := kubetest.Prefix("192.0.2.0/24"), netip.PrefixFrom(was.Remote.Pods[0].Mapped.Addr(), 24)
	b.Mu.Lock()
	b.routes = []netip.Prefix{free}
	b.Mu.Unlock()
	if p := DryRun(t, a, b, engine.Options{}); p.Changes() > 0 {
		t.Errorf("a subnet that nothing has: %v", Changes(p))
	}
	b.Mu.Lock()
	b.routes = append(b.routes, inTheWay)
	b.Mu.Unlock()
	want := []string{"a change Peering b", "b change ClusterNetwork cluster", "b change Peering a"}
	if diff := cmp.Diff(want, Changes(DryRun(t, a, b, engine.Options{}))); diff != "" {
		t.Errorf("a subnet in the peer's range:\n%s", diff)
	}
	MustPeer(t, a, b, engine.Options{})
	now := b.peering(t).Spec
	if now.Remote.Pods[0].Mapped.Overlaps(inTheWay) || now.Remote.ExternalCIDR != was.Remote.ExternalCIDR {
		t.Errorf("before %+v, after %+v", was.Remote, now.Remote)
	}
	if diff := cmp.Diff(was.Local, now.Local, kubetest.Compare); diff != "" {
		t.Errorf("the other direction was changed:\n%s", diff)
	}
}

// Only agents see that a node has a route into the range planned for the overlay. The overlay gets another range.
func TestInternalRangeTaken(t *testing.T) {
	kit.NotShort(t)
	a, b := TwoSites(t)
	made := DryRun(t, a, b, engine.Options{})
	chosen := made.Clusters[1].Ranges[0].Real
	b.Mu.Lock()
	b.routes = []netip.Prefix{netip.PrefixFrom(chosen.Addr(), 24)}
	b.Mu.Unlock()
	MustPeer(t, a, b, engine.Options{})
	got := b.peering(t).Spec.Local.InternalCIDR.Prefix
	if got.Overlaps(chosen) {
		t.Errorf("the overlay has %s, though a node has a route to %s", got, b.routes)
	}
	if p := DryRun(t, a, b, engine.Options{}); p.Changes() > 0 {
		t.Errorf("again: %v", Changes(p))
	}
	// Too late for another range: everything stays unchanged.
	b.Mu.Lock()
	b.routes = []netip.Prefix{netip.PrefixFrom(got.Addr(), 24)}
	b.Mu.Unlock()
	MustPeer(t, a, b, engine.Options{})
	if now := b.peering(t).Spec.Local.InternalCIDR.Prefix; now != got {
		t.Errorf("the overlay's range %s has become %s", got, now)
	}
}

// A user deletes the namespace, and so the journal, while peer runs: it starts over.
func TestNamespaceDeletedMeanwhile(t *testing.T) {
	kit.Slow(t)
	a, b := TwoSites(t)
	MustPeer(t, a, b, engine.Options{})
	c, once := *a.Cluster, sync.Once{}
	c.Client = interceptor.NewClient(a.Client, interceptor.Funcs{
		Apply: func(ctx context.Context, api client.WithWatch, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) (err error) {
			if obj.(interface{ GetKind() string }).GetKind() == "ResourceQuota" {
				once.Do(func() {
					refused := apierrors.NewForbidden(corev1.Resource("resourcequotas"), "", errors.New("it is being terminated"))
					refused.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
					err = refused
					for _, s := range List[corev1.SecretList](t, a).Items {
						if strings.HasPrefix(s.Name, manifests.Journal("").Name) {
							err = errors.Join(a.Raw.Delete(ctx, &s), err)
						}
					}
				})
			}
			if err != nil {
				return err
			}
			return api.Apply(ctx, obj, opts...)
		},
	})
	if _, err := Peer(t.Context(), &c, b.Cluster, engine.Options{Image: "image:2"}, kube.Quiet{}); err != nil {
		t.Fatal(err)
	}
	if got := a.image(t); got != "image:2" {
		t.Errorf("the node agents have the image %s", got)
	}
}
