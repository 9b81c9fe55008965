package gateway

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/exchange"
	"github.com/liqonet/liqonet/pkg/notify"
)

func withIPs(n v1alpha1.NodeNetwork, ips ...string) v1alpha1.NodeNetwork {
	for _, ip := range ips {
		n.Status.NodeIPs = append(n.Status.NodeIPs, v1alpha1.IP{Addr: addr(ip)})
	}
	return n
}

func nodePort() *corev1.Service {
	return &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 51840, NodePort: 31820}}}}
}

// All nodes of the server's cluster are replaced, one after the other. Its client calls
// the new ones, though the CLI has written down the old ones only.
func TestDefect1_13_EndpointsFollowNodes(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	news := notify.NewSignal()
	problem := func(err error) { t.Log(err) }
	server := exchange.New(addr("127.41.8.1"), addr("127.41.8.2"), false, notify.NewSignal(), problem)
	client := exchange.New(addr("127.41.8.2"), addr("127.41.8.1"), true, news, problem)

	old := []v1alpha1.NodeNetwork{withIPs(node("n1", "10.80.0.1", "172.18.9.9", 0), "172.18.0.11"), withIPs(node("n2", "10.80.0.2", "172.18.9.9", 0), "172.18.0.12")}
	both := []v1alpha1.NodeNetwork{old[1], withIPs(node("n3", "10.80.0.3", "172.18.9.9", 0), "172.18.0.13")}
	replaced := []v1alpha1.NodeNetwork{both[1], withIPs(node("n4", "10.80.0.4", "172.18.9.9", 0), "172.18.0.14")}

	p := peering(t, v1alpha1.Client, newKey(t))
	p.Spec.Planes[0].Endpoints = []string{"172.18.0.11:31820", "172.18.0.12:31820"}
	p.Spec.Remote.NodeIPs = []v1alpha1.IP{{Addr: addr("172.18.0.11")}, {Addr: addr("172.18.0.12")}}
	own := []v1alpha1.NodeNetwork{withIPs(node("m1", "10.80.0.1", "172.18.9.9", 0), "172.18.0.21")}
	a := &agent{channel: client}
	go server.Run(ctx)
	go client.Run(ctx)
	for _, nodes := range [][]v1alpha1.NodeNetwork{old, both, replaced} {
		server.Announce(announcement("n1", nodes, nodePort()))
		var want []string
		for _, n := range nodes {
			want = append(want, n.Status.NodeIPs[0].String()+":31820")
		}
		for deadline := time.After(30 * time.Second); ; {
			a.hear(p, own)
			a.endpoints.set(callable(p.Plane(0), a.heard))
			if a.heard != nil && slices.Equal(a.heard.Endpoints, want) {
				break
			}
			select {
			case <-news:
			case <-deadline:
				t.Fatalf("heard %+v, want %v", a.heard, want)
			}
		}
		// The node that it calls stays the one as long as it answers.
		if got, err := a.endpoints.current(ctx); err != nil || got.String() != "172.18.0.11:31820" {
			t.Errorf("calls %v, %v", got, err)
		}
	}
	// It does not answer any more, as it is gone.
	a.endpoints.next()
	if got, err := a.endpoints.current(ctx); err != nil || got.String() != "172.18.0.13:31820" {
		t.Errorf("after the node was replaced it calls %v, %v", got, err)
	}
	// So does a gateway that has just started.
	p.Status.Planes = []v1alpha1.PlaneStatus{{Remote: a.heard}}
	fresh := &agent{}
	fresh.hear(p, own)
	fresh.endpoints.set(callable(p.Plane(0), fresh.heard))
	if got, err := fresh.endpoints.current(ctx); err != nil || got.String() != "172.18.0.13:31820" {
		t.Errorf("a new gateway calls %v, %v", got, err)
	}
	wantIPs := []v1alpha1.IP{{Addr: addr("172.18.0.13")}, {Addr: addr("172.18.0.14")}}
	if !slices.Equal(fresh.heard.NodeIPs, wantIPs) {
		t.Errorf("node addresses %v, want %v", fresh.heard.NodeIPs, wantIPs)
	}
}

func TestAnnouncement(t *testing.T) {
	nodes := []v1alpha1.NodeNetwork{
		withIPs(node("n1", "10.80.0.1", "172.18.9.9", 0), "172.18.0.11", "203.0.113.11"), withIPs(node("n2", "10.80.0.2", "172.18.9.9", 0), "172.18.0.12"), node("n3", "10.80.0.3", "172.18.9.9", 0),
	}
	balanced := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 51840, NodePort: 31820}}}}
	balanced.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.5"}, {Hostname: "lb.example.test"}}
	for name, tt := range map[string]struct {
		svc  *corev1.Service
		want []string
	}{
		"client":        {nil, nil},
		"NodePort":      {nodePort(), []string{"172.18.0.12:31820", "172.18.0.11:31820", "203.0.113.11:31820"}},
		"load balancer": {balanced, []string{"203.0.113.5:51840"}},
		"no port yet":   {&corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 51840}}}}, nil},
	} {
		got := announcement("n2", nodes, tt.svc)
		var endpoints []string
		for _, e := range got.Endpoints {
			endpoints = append(endpoints, e.String())
		}
		if diff := cmp.Diff(tt.want, endpoints); diff != "" || len(got.NodeIPs) != 3 {
			t.Errorf("%s: %d node addresses\n%s", name, len(got.NodeIPs), diff)
		}
	}
}

// A hostile peer has us call nobody but machines that may be its own.
func TestUsable(t *testing.T) {
	p := peering(t, v1alpha1.Client, newKey(t))
	p.Spec.Planes[0].Endpoints = []string{"172.18.0.11:31820"}
	p.Spec.Remote.NodeIPs = []v1alpha1.IP{{Addr: addr("172.18.0.11")}}
	nodes := []v1alpha1.NodeNetwork{withIPs(node("m1", "10.80.0.1", "172.18.9.9", 0, "10.244.0.0/24"), "172.18.0.21")}
	var endpoints []netip.AddrPort
	var ips []netip.Addr
	for _, s := range []string{
		"172.18.0.21", "10.96.0.1", "127.0.0.1", "169.254.169.254", "10.244.0.5", p.Spec.Local.InternalCIDR.Addr().Next().String(),
		p.Spec.Remote.ExternalCIDR.Addr().Next().String(), "172.18.0.77",
	} {
		endpoints = append(endpoints, netip.AddrPortFrom(addr(s), 31820))
		ips = append(ips, addr(s))
	}
	got := usable(p, p.Plane(0), nodes, []netip.Addr{addr("10.96.0.1")}, exchange.Announcement{Endpoints: endpoints, NodeIPs: ips})
	if got == nil || !slices.Equal(got.Endpoints, []string{"172.18.0.77:31820"}) {
		t.Errorf("may be called: %+v", got)
	}
	// In the peer's own range an address may be one of its nodes: it only costs the peer.
	want := []v1alpha1.IP{{Addr: p.Spec.Remote.ExternalCIDR.Addr().Next()}, {Addr: addr("172.18.0.77")}}
	if got == nil || !slices.Equal(got.NodeIPs, want) {
		t.Errorf("nodes %+v, want %v", got, want)
	}
	if got := usable(p, p.Plane(0), nodes, nil, exchange.Announcement{}); got != nil {
		t.Errorf("of nothing: %+v", got)
	}
}
