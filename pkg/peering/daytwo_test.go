package peering

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/discovery"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/test/fakeapi"
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
	a, b := Peered(t)
	specB := b.peering(t).Spec
	workloads := func() map[string]any {
		out := a.contents(t)
		for name, o := range b.contents(t) {
			out["b "+name] = o
		}
		for _, name := range []string{"Peering b", "b Peering a", "b ClusterNetwork cluster"} {
			kit.ErrorIf(t, out[name] == nil, "there is no %s", name)
			delete(out, name)
		}
		return out
	}
	before := workloads()
	grown := engine.Options{Facts: map[string]discovery.Overrides{"id-of-a": {PodCIDRs: kubetest.Ipv4Prefixes("10.244.0.0/16", "10.99.0.0/16", "10.30.0.0/16")}}}
	want := []string{"a change Peering b", "b change ClusterNetwork cluster", "b change Peering a"}
	kit.Check(t, "dry run", Changes(DryRun(t, a, b, grown)), want)
	MustPeer(t, a, b, grown)
	got := b.peering(t).Spec
	if len(got.Remote.Pods) != 3 || !slices.Contains(got.Remote.Pods, specB.Remote.Pods[0]) || got.Remote.ExternalCIDR != specB.Remote.ExternalCIDR {
		t.Errorf("before %+v, after %+v", specB.Remote, got.Remote)
	}
	if !slices.Contains(got.Remote.Pods, kubetest.Mapping("10.30.0.0/16", "10.30.0.0/16")) { // free in b
		t.Errorf("got %+v", got.Remote.Pods)
	}
	got.Remote.Pods = specB.Remote.Pods
	kit.Check(t, "more than the ranges was changed", got, specB, kit.Compare)
	kit.Check(t, "other objects were changed", workloads(), before)
	Settled(t, a, b, grown)
}

// A subnet that a node gets later moves only the range that it overlaps.
func TestNodeSubnetAdded(t *testing.T) {
	kit.NotShort(t)
	a, b := Peered(t)
	was := b.peering(t).Spec
	free, inTheWay := kubetest.Prefix("192.0.2.0/24"), netip.PrefixFrom(was.Remote.Pods[0].Mapped.Addr(), 24)
	b.Mu.Lock()
	b.routes = []netip.Prefix{free}
	b.Mu.Unlock()
	Settled(t, a, b, engine.Options{})
	b.Mu.Lock()
	b.routes = append(b.routes, inTheWay)
	b.Mu.Unlock()
	want := []string{"a change Peering b", "b change ClusterNetwork cluster", "b change Peering a"}
	kit.Check(t, "a subnet in the peer's range", Changes(DryRun(t, a, b, engine.Options{})), want)
	MustPeer(t, a, b, engine.Options{})
	now := b.peering(t).Spec
	kit.ErrorIf(t, now.Remote.Pods[0].Mapped.Overlaps(inTheWay) || now.Remote.ExternalCIDR != was.Remote.ExternalCIDR,
		"before %+v, after %+v", was.Remote, now.Remote)
	kit.Check(t, "the other direction was changed", now.Local, was.Local, kit.Compare)
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
	kit.ErrorIf(t, got.Overlaps(chosen), "the overlay has %s, though a node has a route to %s", got, b.routes)
	Settled(t, a, b, engine.Options{})
	// Too late for another range: everything stays unchanged.
	b.Mu.Lock()
	b.routes = []netip.Prefix{netip.PrefixFrom(got.Addr(), 24)}
	b.Mu.Unlock()
	MustPeer(t, a, b, engine.Options{})
	now := b.peering(t).Spec.Local.InternalCIDR.Prefix
	kit.ErrorIf(t, now != got, "the overlay's range %s has become %s", got, now)
}

// A user deletes the namespace, and so the journal, while peer runs: it starts over.
func TestNamespaceDeletedMeanwhile(t *testing.T) {
	kit.Slow(t)
	a, b := Peered(t)
	once := sync.Once{}
	c := a.Through(func(ctx context.Context, r *fakeapi.Request) (err error) {
		if r.Of("apply", "ResourceQuota") {
			once.Do(func() {
				refused := apierrors.NewForbidden(corev1.Resource("resourcequotas"), "", errors.New("it is being terminated"))
				refused.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
				err = refused
				for _, s := range List[corev1.SecretList](t, a).Items {
					if strings.HasPrefix(s.Name, manifests.JournalSecret("").Name) {
						err = errors.Join(a.Raw.Delete(ctx, &s), err)
					}
				}
			})
		}
		if err != nil {
			return err
		}
		return r.Send(ctx)
	})
	kit.Must(Peer(t.Context(), c, b.Cluster, engine.Options{Image: "image:2"}, kube.Quiet{}))(t)
	kit.Check(t, "the node agents have the image", a.image(t), "image:2")
}
