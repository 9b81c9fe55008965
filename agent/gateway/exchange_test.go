package gateway

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/agent/watch"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/exchange"
	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/test/kit"
)

func withIPs(n v1alpha1.NodeNetwork, ips ...string) v1alpha1.NodeNetwork {
	for _, ip := range ips {
		n.Status.NodeIPs = append(n.Status.NodeIPs, v1alpha1.IP{Addr: addr(ip)})
	}
	return n
}

func nodePort() *corev1.Service {
	return &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Name: v1alpha1.PlanePortName(0), Port: 51840, NodePort: 31820}}}}
}

// All nodes of the server's cluster are replaced, one after the other. The client calls the new ones, although the
// CLI has recorded only the old ones.
func TestEndpointsFollowNodes(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	news := notify.NewSignal()
	server := exchange.New(addr("127.41.8.1"), addr("127.41.8.2"), false, notify.NewSignal())
	client := exchange.New(addr("127.41.8.2"), addr("127.41.8.1"), true, news)

	old := []v1alpha1.NodeNetwork{withIPs(node("n1", "10.80.0.1", "172.18.9.9", 0), "172.18.0.11"), withIPs(node("n2", "10.80.0.2", "172.18.9.9", 0), "172.18.0.12")}
	both := []v1alpha1.NodeNetwork{old[1], withIPs(node("n3", "10.80.0.3", "172.18.9.9", 0), "172.18.0.13")}
	replaced := []v1alpha1.NodeNetwork{both[1], withIPs(node("n4", "10.80.0.4", "172.18.9.9", 0), "172.18.0.14")}

	p := peering(t, v1alpha1.Client, newKey(t))
	p.Spec.Planes[0].Endpoints = []string{"172.18.0.11:31820", "172.18.0.12:31820"}
	p.Spec.Remote.NodeIPs = []v1alpha1.IP{{Addr: addr("172.18.0.11")}, {Addr: addr("172.18.0.12")}}
	own := []v1alpha1.NodeNetwork{withIPs(node("m1", "10.80.0.1", "172.18.9.9", 0), "172.18.0.21")}
	a, e := &announcements{channel: client}, &endpoints{}
	log := slog.New(slog.DiscardHandler)
	go loop.RunForever(ctx, log, "serve", server.Connect)
	go loop.RunForever(ctx, log, "dial", client.Connect)
	for _, nodes := range [][]v1alpha1.NodeNetwork{old, both, replaced} {
		server.Announce(announcement("n1", nodes, nodePort(), 0))
		var want []string
		for _, n := range nodes {
			want = append(want, n.Status.NodeIPs[0].String()+":31820")
		}
		for deadline := time.After(30 * time.Second); ; {
			e.set(a.endpoints(p, p.Plane(0), own, nil), false)
			if a.announced != nil && slices.Equal(a.announced.Endpoints, want) {
				break
			}
			select {
			case <-news:
			case <-deadline:
				t.Fatalf("received %+v, want %v", a.announced, want)
			}
		}
		// The client keeps calling the same node while it answers.
		if got, err := e.current(ctx); err != nil || got.String() != "172.18.0.11:31820" {
			t.Errorf("calls %v, %v", got, err)
		}
	}
	// The node is gone, so it stops answering.
	e.next()
	if got, err := e.current(ctx); err != nil || got.String() != "172.18.0.13:31820" {
		t.Errorf("after the node was replaced it calls %v, %v", got, err)
	}
	// A gateway that has just started does the same.
	p.Status.Planes = []v1alpha1.PlaneStatus{{Remote: a.announced}}
	fresh, e := &announcements{}, &endpoints{}
	e.set(fresh.endpoints(p, p.Plane(0), own, nil), false)
	if got, err := e.current(ctx); err != nil || got.String() != "172.18.0.13:31820" {
		t.Errorf("a new gateway calls %v, %v", got, err)
	}
	wantIPs := []v1alpha1.IP{{Addr: addr("172.18.0.13")}, {Addr: addr("172.18.0.14")}}
	kit.ErrorIf(t, !slices.Equal(fresh.announced.NodeIPs, wantIPs), "node addresses %v, want %v", fresh.announced.NodeIPs, wantIPs)
}

// A plane that was down while all nodes of the server's cluster were replaced learns about the new ones through the
// other plane, and uses its own port.
func TestEndpointsOfOtherPlanes(t *testing.T) {
	p := peering(t, v1alpha1.Client, newKey(t))
	p.Spec.Planes = append(p.Spec.Planes, p.Spec.Planes[0])
	p.Spec.Planes[1].Index = 1
	p.Spec.Planes[0].Endpoints, p.Spec.Planes[1].Endpoints = []string{"172.18.0.11:31820"}, []string{"172.18.0.11:31821"}
	p.Status.Planes = []v1alpha1.PlaneStatus{{Index: 1, Remote: &v1alpha1.RemoteAnnouncement{Endpoints: []string{"172.18.0.13:31821", "10.0.0.1:1", "172.18.0.11:31821", "10.80.0.1:31821"}}}}
	a := &announcements{}
	want := []string{"172.18.0.13:31820", "10.0.0.1:31820", "172.18.0.11:31820"}
	if got := a.endpoints(p, p.Plane(0), nil, nil); !slices.Equal(got, want) {
		t.Errorf("plane 0 calls %v, want %v, without addresses of this cluster", got, want)
	}
	if got := a.endpoints(p, p.Plane(1), nil, nil); a.announced == nil || got[0] != "172.18.0.13:31821" {
		t.Errorf("plane 1 calls %v", got)
	}
}

func TestAnnouncement(t *testing.T) {
	nodes := []v1alpha1.NodeNetwork{
		withIPs(node("n1", "10.80.0.1", "172.18.9.9", 0), "172.18.0.11", "203.0.113.11"), withIPs(node("n2", "10.80.0.2", "172.18.9.9", 0), "172.18.0.12"), node("n3", "10.80.0.3", "172.18.9.9", 0),
	}
	balanced := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Name: v1alpha1.PlanePortName(0), Port: 51840, NodePort: 31820}}}}
	balanced.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.5"}, {Hostname: "lb.example.test"}}
	for name, tt := range map[string]struct {
		svc  *corev1.Service
		want []string
	}{
		"client":        {&corev1.Service{}, nil},
		"NodePort":      {nodePort(), []string{"172.18.0.12:31820", "203.0.113.11:31820", "172.18.0.11:31820"}},
		"load balancer": {balanced, []string{"203.0.113.5:51840"}},
		"no port yet":   {&corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 51840}}}}, nil},
	} {
		got := announcement("n2", nodes, tt.svc, 0)
		if diff := cmp.Diff(tt.want, got.Endpoints); diff != "" || len(got.NodeIPs) != 3 {
			t.Errorf("%s: %d node addresses\n%s", name, len(got.NodeIPs), diff)
		}
	}
}

// The results of the nodes' reports are stable, although a cache returns them in random order.
func TestNodesHaveAnOrder(t *testing.T) {
	var objs []client.Object
	for i := range 9 {
		n := withIPs(node(fmt.Sprint("n", i), fmt.Sprint("10.80.0.", 9-i), "172.18.9.9", 0), fmt.Sprint("172.18.0.", i+1))
		objs = append(objs, &n)
	}
	shuffling := interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		err := c.List(ctx, list, opts...)
		items := list.(*v1alpha1.NodeNetworkList).Items
		rand.Shuffle(len(items), func(i, j int) { items[i], items[j] = items[j], items[i] })
		return err
	}}
	a := &agent{view: &watch.View{Reader: newBuilder(t, objs...).WithInterceptorFuncs(shuffling).Build()}}
	var first exchange.Announcement
	for i := range 10 {
		nodes := kit.Must(a.listNodes(t.Context()))(t)
		announced := announcement("n4", nodes, nodePort(), 0)
		if i == 0 {
			first = announced
		}
		if diff := cmp.Diff(first.Endpoints, announced.Endpoints); diff != "" || announced.Endpoints[0] != "172.18.0.5:31820" {
			t.Fatalf("another order:\n%s", diff)
		}
	}
}

// A peer on the Internet and one in the same network both learn usable endpoints, however many nodes there are.
func TestEndpointsOfAllKinds(t *testing.T) {
	for _, count := range []int{1, 3, 8, 15, 16, 17, 200} {
		var nodes []v1alpha1.NodeNetwork
		for i := range count {
			n := withIPs(node(fmt.Sprint("n", i), fmt.Sprint("10.80.0.", i+1), "172.18.9.9", 0), fmt.Sprint("10.0.0.", i+1), fmt.Sprint("203.0.113.", i+1), fmt.Sprint("2001:db8::", i+1))
			nodes = append(nodes, n)
		}
		got := announcement("n0", nodes, nodePort(), 0)
		of := lo.CountValuesBy(got.Endpoints, func(e string) string { return e[:2] })
		want := min(count, exchange.MaxEndpoints/3)
		for _, kind := range []string{"10", "20", "[2"} {
			if of[kind] < want {
				t.Errorf("%d nodes: %d endpoints begin with %s, want %d: %v", count, of[kind], kind, want, got.Endpoints)
			}
		}
	}
}

// The announcement covers as many nodes as possible, although some have several addresses of a kind.
func TestEndpointsOfManyNodes(t *testing.T) {
	var nodes []v1alpha1.NodeNetwork
	for i := range exchange.MaxEndpoints {
		nodes = append(nodes, withIPs(node(fmt.Sprint("n", i), fmt.Sprint("10.80.0.", i+1), "172.18.9.9", 0), fmt.Sprint("10.0.0.", i+1), fmt.Sprint("10.0.1.", i+1), fmt.Sprint("10.0.2.", i+1)))
	}
	for _, e := range announcement("n0", nodes, nodePort(), 0).Endpoints {
		kit.ErrorIf(t, !strings.HasPrefix(e, "10.0.0."), "%s is the second one of a node", e)
	}
}

// A hostile peer can make us call only machines that may be its own.
func TestUsable(t *testing.T) {
	p := peering(t, v1alpha1.Client, newKey(t))
	p.Spec.Planes[0].Endpoints = []string{"172.18.0.11:31820"}
	p.Spec.Remote.NodeIPs = []v1alpha1.IP{{Addr: addr("172.18.0.11")}}
	nodes := []v1alpha1.NodeNetwork{withIPs(node("m1", "10.80.0.1", "172.18.9.9", 0, "10.244.0.0/24"), "172.18.0.21")}
	nodes[0].Status.PodIPs = []v1alpha1.IP{{Addr: addr("172.18.0.99")}} // outside of all ranges
	nodes[0].Status.Resolvers = []v1alpha1.IP{{Addr: addr("172.18.0.53")}}
	Config{Peering: p.Name}.strip(&nodes[0])
	p.Spec.Local.ServiceCIDRs = []v1alpha1.CIDR{cidr("10.97.0.0/16")}
	var logged bytes.Buffer
	var announced exchange.Announcement
	p.Spec.Local.Hosts = []v1alpha1.AddressMapping{{Real: v1alpha1.IP{Addr: addr("172.18.0.98")}}}
	nodes[0].Status.PodCIDRs = append(nodes[0].Status.PodCIDRs, cidr("172.18.5.0/24")) // outside of the peering's ranges
	for _, s := range []string{
		"172.18.0.21", "172.18.0.99", "172.18.0.53", "172.18.0.98", "172.18.5.1", "10.96.0.1", "10.97.0.10", "127.0.0.1", "169.254.169.254", "10.244.0.5", p.Spec.Local.InternalCIDR.Addr().Next().String(),
		p.Spec.Remote.ExternalCIDR.Addr().Next().String(), "172.18.0.77",
	} {
		announced.Endpoints = append(announced.Endpoints, s+":31820")
		announced.NodeIPs = append(announced.NodeIPs, v1alpha1.IP{Addr: addr(s)})
	}
	got, leftOut := usableEndpoints(p, p.Plane(0), nodes, []netip.Addr{addr("10.96.0.1")}, announced)
	kit.Check(t, "endpoints of this cluster", strings.Join(leftOut, " "), "172.18.0.21:31820 172.18.0.99:31820 172.18.0.53:31820 172.18.0.98:31820 172.18.5.1:31820 10.96.0.1:31820 10.97.0.10:31820 10.244.0.5:31820 10.80.0.1:31820")
	record := &agent{recorder: quiet()}
	record.recorder.record.Log = slog.New(slog.NewTextHandler(&logged, nil))
	for range 3 {
		record.recorder.recordLeftOut(strings.Join(leftOut, ", "))
	}
	kit.ErrorIf(t, strings.Count(logged.String(), "10.97.0.10:31820") != 1, "logged: %s", logged.String())
	kit.ErrorIf(t, !slices.Equal(got.Endpoints, []string{"172.18.0.77:31820"}), "may be called: %+v", got)
	// An address in the peer's own range may be one of its nodes: only the peer is affected.
	want := []v1alpha1.IP{{Addr: p.Spec.Remote.ExternalCIDR.Addr().Next()}, {Addr: addr("172.18.0.77")}}
	kit.ErrorIf(t, !slices.Equal(got.NodeIPs, want), "nodes %+v, want %v", got, want)
	a := &announcements{announced: &got}
	p.Status.Planes = []v1alpha1.PlaneStatus{{Remote: &v1alpha1.RemoteAnnouncement{Endpoints: []string{"127.0.0.1:31820"}}}}
	if a.endpoints(p, p.Plane(0), nodes, nil); a.announced != nil {
		t.Errorf("announced, although nothing is usable: %+v", a.announced)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "172.18.0.1")
	p.Status.Planes[0].Remote.Endpoints = []string{"172.18.0.1:31820", "172.18.0.2:31820", "172.18.0.3:31820"}
	kit.Check(t, "not the API server or this pod", a.endpoints(p, p.Plane(0), nodes, []netip.Addr{addr("172.18.0.2")}), []string{"172.18.0.3:31820", "172.18.0.11:31820"})
	kit.Check(t, "endpoints of this cluster", a.own, "172.18.0.1:31820, 172.18.0.2:31820")
}

// Stripping the nodes' reports does not change what a gateway does, and removes everything about other peerings.
func TestStrippedReports(t *testing.T) {
	p := peering(t, v1alpha1.Server, newKey(t))
	full := func() (nodes []v1alpha1.NodeNetwork) {
		for i := range 3 {
			n := withIPs(node(fmt.Sprint("n", i), fmt.Sprint("10.80.0.", i+1), fmt.Sprint("172.18.9.", i), 1400, fmt.Sprintf("10.244.%d.0/24", i)), fmt.Sprint("172.18.0.", i+1))
			n.Status.UnderlayMTU, n.Status.PodIPs = int32(1450-i), []v1alpha1.IP{{Addr: addr(fmt.Sprint("10.244.9.", i))}, {Addr: addr(fmt.Sprint("192.0.2.", i))}}
			n.Status.Gateways[1].Ready, n.Status.Gateways[1].RTTMicroseconds, n.Status.Gateways[1].LossPercent = i > 0, 500, 3
			n.Status.Gateways = append(n.Status.Gateways, v1alpha1.NodeGateway{PeeringName: "b", Plane: 1, Ready: true})
			n.Status.Conditions = []metav1.Condition{{Message: "long"}}
			n.Status.Kernel, n.Status.Routes, n.Status.Resolvers = &v1alpha1.KernelFacts{}, []v1alpha1.CIDR{cidr("192.0.2.0/24")}, []v1alpha1.IP{{Addr: addr("172.18.7.53")}}
			nodes = append(nodes, n)
		}
		return nodes
	}
	stripped := full()
	for i := range stripped {
		Config{Peering: "b"}.strip(&stripped[i])
		if s := stripped[i].Status; len(s.Gateways) != 2 || len(s.Conditions)+len(s.Routes) > 0 ||
			slices.ContainsFunc(s.Gateways, func(g v1alpha1.NodeGateway) bool { return g.RTTMicroseconds > 0 || g.LossPercent > 0 }) {
			t.Errorf("not stripped: %+v", s)
		}
	}
	all := func(nodes []v1alpha1.NodeNetwork) []any {
		d, err := desire(local{node: "n1", underlayMTU: 1500}, p, nodes)
		announced := exchange.Announcement{
			NodeIPs:   []v1alpha1.IP{{Addr: addr("172.18.0.1")}, {Addr: addr("192.0.2.1")}, {Addr: addr("172.18.7.7")}},
			Endpoints: []string{"172.18.7.53:9153", "203.0.113.1:31820"},
		}
		usable, leftOut := usableEndpoints(p, p.Plane(0), nodes, nil, announced)
		return []any{
			d, err, degradedCondition(p, nodes), announcement("n1", nodes, nodePort(), 0),
			usable, leftOut,
		}
	}
	kit.Check(t, "result", all(stripped), all(full()), compare)
}
