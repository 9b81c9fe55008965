package peering

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// The administrator of b adds a Node with public addresses. a routes none of them to b, and the result of peer says
// so.
func TestPeerDoesNotAttractPublicAddresses(t *testing.T) {
	kit.Play(t)
	a, b := TwoSites(t)
	hostile := kubetest.Node("hostile", false, "172.18.2.66")
	hostile.Spec.PodCIDR, hostile.Spec.PodCIDRs = "8.8.8.0/24", []string{"8.8.8.0/24"}
	kit.NoError(t, b.Raw.Create(t.Context(), hostile))
	r := MustPeer(t, a, b, engine.Options{})
	pods := a.peering(t).Spec.Remote.Pods
	for _, m := range pods {
		kit.ErrorIf(t, !ipam.IsPrivate(m.Mapped.Prefix), "a knows %s as %s", m.Real, m.Mapped)
	}
	kit.FatalIf(t, pods[0].Real != kubetest.Cidr("8.8.0.0/16"), "b has %v", pods)
	notes := strings.Join(r.Notes, "\n")
	kit.ErrorIf(t, !strings.Contains(notes, "8.8.0.0/16 -> "), "the notes are %q", r.Notes)
	wish := ipam.Mappings{{Real: kubetest.Prefix("8.8.0.0/16"), Mapped: kubetest.Prefix("8.8.0.0/16")}}
	MustPeer(t, a, b, wishFor(b.ID, engine.ClusterOptions{Map: wish}))
	if r := MustPeer(t, a, b, engine.Options{}); len(r.Changed) > 0 || a.peering(t).Spec.Remote.Pods[0].Mapped != kubetest.Cidr("8.8.0.0/16") {
		t.Errorf("without --map it changed %v", r.Changed)
	}
}

// The API server of the kubeconfig is not routed into a tunnel, if its URL has an IP address.
func TestTheKubeconfigsServerIsInUse(t *testing.T) {
	kit.Play(t)
	a, b := NewSite(t, "a", "10.244.0.0/16", "172.18.1.11"), NewSite(t, "b", "10.20.0.0/16", "172.18.2.11")
	a.Peer, b.Peer, a.Server = b, a, netip.MustParseAddr("10.20.3.4")
	MustPeer(t, a, b, engine.Options{})
	m := a.peering(t).Spec.Remote.Pods[0].Mapped
	kit.ErrorIf(t, m.Contains(a.Server), "a leads %s to b", m)
}

func TestNoServiceAndNoAPIServerIsExposed(t *testing.T) {
	kit.Play(t)
	outside := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "elsewhere"}, Spec: corev1.ServiceSpec{ClusterIP: "10.50.0.9", ClusterIPs: []string{"10.50.0.9"}},
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: new(int32(6443))}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.10"}}},
	}
	a, b := TwoSites(t, slice)
	a.Server = netip.MustParseAddr("192.0.2.11")
	MustPeer(t, a, b, engine.Options{})
	for _, tt := range []struct{ host, want string }{
		{"10.96.0.1", "cluster IP of service default/kubernetes"},
		{"10.96.7.7", "range of the services, 10.96.0.0/16"},
		{"192.0.2.10", "the API server of a"},
		{"192.0.2.11", "the API server of a"},
		{"10.50.0.9", "cluster IP of service default/elsewhere"},
	} {
		if tt.host == "10.50.0.9" { // it contradicts the range, so peer gets the range
			kit.NoError(t, a.Raw.Create(t.Context(), outside))
		}
		_, err := ExposeHost(t.Context(), a.Cluster, b.Cluster, netip.MustParseAddr(tt.host), kube.Quiet{})
		kit.ErrorIf(t, err == nil || kubetest.KindOf(t, err) != kube.Usage || !strings.Contains(err.Error(), tt.want),
			"%s: got %v, want %q", tt.host, err, tt.want)
	}
	_, err := ExposeHost(t.Context(), a.Cluster, b.Cluster, netip.MustParseAddr("192.0.2.12"), kube.Quiet{})
	kit.ErrorIf(t, err != nil, "a host outside cannot be exposed: %v", err)
	hosts := a.peering(t).Spec.Local.Hosts
	kit.ErrorIf(t, len(hosts) != 1 || hosts[0].Real != (v1alpha1.IP{Addr: netip.MustParseAddr("192.0.2.12")}), "exposed are %v", hosts)
}
