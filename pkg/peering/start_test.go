package peering

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// The gateways of a new peering start before all nodes have reported. When a late node reports, they are replaced
// only if its kernel lacks what they use.
func TestGatewaysStartBeforeAllNodesHaveReported(t *testing.T) {
	kit.Slow(t)
	both := v1alpha1.KernelFacts{Release: "6.1", VXLAN: true, WireGuard: true}
	for name, tc := range map[string]struct {
		slow    v1alpha1.KernelFacts
		starts  int
		backend v1alpha1.WireGuardBackend
	}{
		"as the others":     {both, 1, "Kernel"},
		"without WireGuard": {v1alpha1.KernelFacts{Release: "6.1", VXLAN: true}, 2, "UserSpace"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			second := kubetest.Node("second", true, "172.18.9.12")
			second.Labels = map[string]string{corev1.LabelOSStable: "linux"}
			a, b := TwoSites(t, second)
			a.kernel, b.kernel = both, both
			b.slow, b.slowKernel = "second", tc.slow
			MustPeer(t, a, b, engine.Options{})
			starts := 0
			for _, did := range b.did {
				if did == "run 1 Deployment gateway-a-0" {
					starts++
				}
			}
			kit.ErrorIf(t, starts != tc.starts, "the gateway was applied %d times, want %d: %q", starts, tc.starts, b.did)
			hasTUN := slices.ContainsFunc(gatewayOf(t, b).Spec.Template.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == "tun" })
			if got := b.peering(t).Spec.Planes[0].WireGuard; got != tc.backend || hasTUN != (tc.backend == "UserSpace") {
				t.Errorf("WireGuard by %s, and a TUN device: %t; want it by %s", got, hasTUN, tc.backend)
			}
		})
	}
}

func gatewayOf(t *testing.T, s *Site) *appsv1.Deployment {
	t.Helper()
	d := Get(t, s, v1alpha1.Namespace, "gateway-a-0", &appsv1.Deployment{})
	return d
}

// No gateway is left behind if the ranges turn out to conflict with those of a late node.
func TestStartedGatewaysAreTakenBack(t *testing.T) {
	kit.Play(t)
	second := kubetest.Node("second", true, "172.18.9.12")
	second.Labels = map[string]string{corev1.LabelOSStable: "linux"}
	a, b := TwoSites(t, second)
	b.slow = "second" // supports no overlay
	_, err := Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{})
	kit.ErrorIf(t, kubetest.KindOf(t, err) != kube.Usage, "got %v, want that the kernel lacks all", err)
	for _, s := range []*Site{a, b} {
		if cn := kubetest.ReadLedger(t, s.Cluster); cn != nil && len(cn.Spec.Peers) > 0 {
			t.Errorf("%s: the ledger still has %+v", s.Name, plan.Allocation(cn, s.Peer.ID))
		}
		var left appsv1.DeploymentList
		err := s.Raw.List(t.Context(), &left)
		kit.ErrorIf(t, err != nil || len(left.Items) > 0, "%s: %d gateways are left, error %v", s.Name, len(left.Items), err)
		kit.ErrorIf(t, !slices.Contains(s.did, "delete Deployment gateway-"+s.Peer.Name+"-0"),
			"%s: no gateway was started and deleted: %q", s.Name, s.did)
	}
}
