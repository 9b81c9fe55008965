package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/agent/watch"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/exchange"
	"github.com/liqonet/liqonet/pkg/liveness"
	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/pkg/wire"
	"github.com/liqonet/liqonet/test/kit"
)

var compare = cmp.Options{cmpopts.EquateComparable(netip.Prefix{}, netip.Addr{}, netip.AddrPort{}), cmpopts.EquateEmpty(), cmp.AllowUnexported(desired{})}

var prefix, addr, cidr, mapping = netip.MustParsePrefix, netip.MustParseAddr, kit.CIDR, kit.Mapping

func newKey(t *testing.T) wgtypes.Key {
	t.Helper()
	return kit.Must(wgtypes.GeneratePrivateKey())(t)
}

// peering has index 2, so its gateway has number 8: 10.80.31.246.
func peering(t *testing.T, role v1alpha1.Role, remoteKey wgtypes.Key) *v1alpha1.Peering {
	t.Helper()
	return &v1alpha1.Peering{
		ObjectMeta: metav1.ObjectMeta{Name: "b", Generation: 3},
		Spec: v1alpha1.PeeringSpec{
			Index: 2, Overlay: "Geneve",
			Local: v1alpha1.LocalNetwork{
				Pods:         []v1alpha1.CIDRMapping{mapping("10.244.0.0/16", "10.20.0.0/16"), mapping("10.245.0.0/24", "10.245.0.0/24")},
				InternalCIDR: cidr("10.80.0.0/19"), ExternalCIDR: cidr("10.60.0.0/18"),
			},
			Remote: v1alpha1.RemoteNetwork{Name: "b", Pods: []v1alpha1.CIDRMapping{mapping("10.244.0.0/16", "10.30.0.0/16")}, ExternalCIDR: cidr("10.70.0.0/18")},
			Limits: v1alpha1.Limits{BitsPerSecond: 8e6},
			Planes: []v1alpha1.Plane{{Role: role, RemotePublicKey: remoteKey.PublicKey().String(), RemoteAddress: v1alpha1.IP{Addr: addr("10.70.31.254")}}},
		},
	}
}

func node(name, address, source string, mtu int32, pods ...string) v1alpha1.NodeNetwork {
	n := v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Address.Addr, _ = netip.ParseAddr(address)
	n.Status.Gateways = []v1alpha1.NodeGateway{{PeeringName: "other", Source: v1alpha1.IP{Addr: addr("192.0.2.1")}}, {PeeringName: "b", Source: v1alpha1.IP{Addr: addr(source)}, MTU: mtu}}
	for _, p := range pods {
		n.Status.PodCIDRs = append(n.Status.PodCIDRs, cidr(p))
	}
	return n
}

func TestDesire(t *testing.T) {
	own, remote := newKey(t), newKey(t)
	me := local{key: own, overlayKeys: overlay.Keys{3: {1, 2}}, node: "n1", underlay: "eth0", underlayMTU: 1450}
	me.endpoint = netip.MustParseAddrPort("192.0.2.9:30001")
	self := addr("10.80.31.246")
	n1, n2 := node("n1", "10.80.0.1", "172.18.0.2", 1400, "10.244.0.0/24"), node("n2", "10.80.0.2", "172.18.0.3", 0)
	// The address is there twice, as reported by an agent that did not check: the kernel refuses the second route.
	n2.Status.PodIPs = []v1alpha1.IP{{Addr: addr("10.244.77.7")}, {Addr: addr("10.244.77.7")}}
	unknown, unsourced, going := node("n3", "10.80.0.3", "172.18.0.4", 0), node("n4", "10.80.0.4", "172.18.0.5", 0), node("n5", "10.80.0.5", "172.18.0.6", 0)
	unknown.Status.Gateways = unknown.Status.Gateways[:1]
	unsourced.Status.Gateways[1].Source = v1alpha1.IP{}
	going.DeletionTimestamp = new(metav1.Now())

	want := func() desired {
		d := desired{capacity: 1390, mtu: 1390, address: self, remote: addr("10.70.31.254"), isOnlyPlane: true}
		d.tunnel = tunnel.Config{
			PrivateKey: own, ListenPort: tunnel.ListenPort, MTU: 1390, Underlay: "eth0", Address: self,
			Peer: tunnel.Peer{PublicKey: remote.PublicKey(), Endpoint: me.endpoint, AllowedIPs: []netip.Prefix{prefix("10.30.0.0/16"), prefix("10.70.0.0/18")}, Keepalive: keepalive},
		}
		d.nat = nat.Gateway{
			Underlay: "eth0", TunnelGroup: tunnel.Group, OverlayGroup: overlay.Group, ReceiveGroup: tunnel.ReceiveGroup,
			Local: []nat.Mapping{
				{Real: prefix("10.244.0.0/16"), Mapped: prefix("10.20.0.0/16")},
				{Real: prefix("10.245.0.0/24"), Mapped: prefix("10.245.0.0/24")},
			},
			Internal: nat.Mapping{Real: prefix("10.80.0.0/19"), Mapped: prefix("10.60.0.0/19")}, Address: self,
			Remote:      []netip.Prefix{prefix("10.30.0.0/16"), prefix("10.70.0.0/18")},
			OverlayPort: overlay.Port, TunnelPort: tunnel.ListenPort, LivenessPort: liveness.Port,
			HealthPort: v1alpha1.HealthPort, MetricsPort: v1alpha1.MetricsPort, Pods: []netip.Prefix{prefix("10.244.0.0/16"), prefix("10.245.0.0/24")}, PeerGateway: addr("10.70.31.254"), ExchangePorts: []uint16{exchange.Port}, LimitRate: 1e6,
			PeerNodes: prefix("10.70.0.0/19"),
		}
		d.overlay = overlay.State{
			Rules: []overlay.Rule{{IIF: tunnel.InterfaceName, Table: overlay.InboundTable}, {Table: overlay.Table}},
			Routes: []overlay.Route{
				{Table: overlay.InboundTable, Dst: prefix("0.0.0.0/0"), Unreachable: true, Metric: 4096},
				{Table: overlay.Table, Dst: prefix("10.30.0.0/16"), Dev: tunnel.InterfaceName, Src: self},
				{Table: overlay.Table, Dst: prefix("10.30.0.0/16"), Unreachable: true, Metric: 4096},
				{Table: overlay.Table, Dst: prefix("10.70.0.0/18"), Dev: tunnel.InterfaceName, Src: self},
				{Table: overlay.Table, Dst: prefix("10.70.0.0/18"), Unreachable: true, Metric: 4096},
			},
		}
		return d
	}
	tests := []struct {
		name   string
		nodes  []v1alpha1.NodeNetwork
		role   v1alpha1.Role
		change func(*desired)
	}{
		{name: "no nodes yet", role: v1alpha1.Client},
		{name: "a server calls no peer", role: v1alpha1.Server, change: func(d *desired) { d.tunnel.Peer.Keepalive, d.tunnel.Peer.Endpoint = 0, netip.AddrPort{} }},
		{name: "nodes that do not know it, or are going", role: v1alpha1.Client, nodes: []v1alpha1.NodeNetwork{unknown, unsourced, going}},
		{
			name: "two nodes", role: v1alpha1.Client, nodes: []v1alpha1.NodeNetwork{n1, n2},
			change: func(d *desired) {
				d.nodesMTU = 1400
				for i, n := range []struct{ name, peer, remote, pods string }{{"loqn1", "10.80.0.1", "172.18.0.2", "10.244.0.0/24"}, {"loqn2", "10.80.0.2", "172.18.0.3", "10.244.77.7/32"}} {
					vni := uint32(8<<13 | i + 1)
					d.overlay.Links = append(d.overlay.Links, overlay.Link{
						Name: n.name, Kind: "geneve", VNI: vni, Local: self, LocalMAC: me.overlayKeys[3].MAC(vni, self), Peer: addr(n.peer),
						PeerMAC: me.overlayKeys[3].MAC(vni, addr(n.peer)), Remote: addr(n.remote), MTU: 1390,
					})
					d.overlay.Routes = append(
						d.overlay.Routes, overlay.Route{Table: overlay.Table, Dst: prefix(n.peer + "/32"), Dev: n.name, Src: self},
						overlay.Route{Table: overlay.InboundTable, Dst: prefix(n.peer + "/32"), Dev: n.name, Src: self},
						overlay.Route{Table: overlay.InboundTable, Dst: prefix(n.pods), Via: addr(n.peer), Dev: n.name, Src: self},
					)
					d.nat.Nodes = append(d.nat.Nodes, addr(n.remote))
				}
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := kit.Must(desire(me, peering(t, tt.role, remote), tt.nodes))(t)
			w := want()
			w.isInitiator = tt.role == v1alpha1.Client
			if tt.change != nil {
				tt.change(&w)
			}
			kit.Check(t, "result", got, w, compare)
		})
	}
}

// An outside host is reached through the gateway's own node if that is linked, otherwise through another one, always
// the same.
func TestDesireHosts(t *testing.T) {
	n1, n2 := node("n1", "10.80.0.1", "172.18.0.2", 0), node("n2", "10.80.0.2", "172.18.0.3", 0)
	for _, tt := range []struct {
		on    string
		nodes []v1alpha1.NodeNetwork
		dev   string
	}{
		{"n2", []v1alpha1.NodeNetwork{n1, n2}, "loqn2"},
		{"n2", []v1alpha1.NodeNetwork{n2, n1}, "loqn2"},
		{"n3", []v1alpha1.NodeNetwork{n2, n1}, "loqn1"},
		{"n1", nil, ""},
	} {
		p := peering(t, v1alpha1.Server, newKey(t))
		p.Spec.Local.Hosts = []v1alpha1.AddressMapping{{Real: v1alpha1.IP{Addr: addr("192.0.2.7")}, Mapped: v1alpha1.IP{Addr: addr("10.60.32.5")}}}
		d := kit.Must(desire(local{key: newKey(t), node: tt.on, underlay: "eth0", underlayMTU: 1450}, p, tt.nodes))(t)
		by := ""
		for _, r := range d.overlay.Routes {
			if r.Dst == prefix("192.0.2.7/32") && r.Table == overlay.InboundTable {
				by = r.Dev
			}
		}
		mapped := slices.Contains(d.nat.Local, nat.Mapping{Real: prefix("192.0.2.7/32"), Mapped: prefix("10.60.32.5/32")})
		kit.ErrorIf(t, by != tt.dev || mapped != (tt.dev != ""), "on %s: by %q, mapped %v", tt.on, by, mapped)
	}
}

func TestDesireErrors(t *testing.T) {
	for name, change := range map[string]func(*local, *v1alpha1.Peering){
		"no such plane": func(m *local, _ *v1alpha1.Peering) { m.plane = 1 },
		"no key":        func(_ *local, p *v1alpha1.Peering) { p.Spec.Planes[0].RemotePublicKey = "" },
		"index":         func(_ *local, p *v1alpha1.Peering) { p.Spec.Index = 512 },
		"ranges":        func(_ *local, p *v1alpha1.Peering) { p.Spec.Local.ExternalCIDR = cidr("10.60.0.0/24") },
	} {
		t.Run(name, func(t *testing.T) {
			m, p := local{underlayMTU: 1500}, peering(t, v1alpha1.Server, newKey(t))
			change(&m, p)
			if _, err := desire(m, p, nil); err == nil {
				t.Error("no error")
			}
		})
	}
}

// A node with IPv6 pods as well must not get routes that no kernel accepts.
func TestDualStack(t *testing.T) {
	n := node("n1", "10.80.0.1", "172.18.0.2", 0, "10.244.0.0/24", "fd00:10:244::/64")
	p := peering(t, v1alpha1.Client, newKey(t))
	p.Spec.Remote.Pods = append(p.Spec.Remote.Pods, v1alpha1.CIDRMapping{Real: cidr("fd00::/56"), Mapped: cidr("fd00::/56")})
	d := kit.Must(desire(local{underlayMTU: 1500}, p, []v1alpha1.NodeNetwork{n}))(t)
	for _, r := range d.overlay.Routes {
		kit.ErrorIf(t, r.Via.IsValid() && r.Via.Is4() != r.Dst.Addr().Is4() || r.Src.IsValid() && r.Src.Is4() != r.Dst.Addr().Is4(),
			"route %+v", r)
	}
}

// Nodes send to the address of the overlay's family, whichever is first.
func TestPodIP(t *testing.T) {
	p := peering(t, v1alpha1.Client, newKey(t))
	p6 := p.DeepCopy()
	p6.Spec.Local.InternalCIDR = cidr("fd00:10:80::/115")
	v4, v6 := addr("10.244.0.9"), addr("fd00:10:244::9")
	for _, tt := range []struct {
		name  string
		p     *v1alpha1.Peering
		addrs []netip.Addr
		want  netip.Addr
	}{
		{"one", p, []netip.Addr{v4}, v4},
		{"IPv6 first", p, []netip.Addr{v6, v4}, v4},
		{"overlay of IPv6", p6, []netip.Addr{v4, v6}, v6},
		{"none", p, []netip.Addr{v6}, netip.Addr{}},
	} {
		if got, err := podIP(tt.addrs, tt.p); got != tt.want || (err == nil) != tt.want.IsValid() {
			t.Errorf("%s: %s, %v", tt.name, got, err)
		}
	}
}

// With an IPv6 overlay, the desired state uses IPv6.
func TestIPv6(t *testing.T) {
	p := peering(t, v1alpha1.Client, newKey(t))
	p.Spec.Local.InternalCIDR, p.Spec.Local.ExternalCIDR = cidr("fd00:10:80::/115"), cidr("fd00:10:60::/114")
	p.Spec.Local.Pods = []v1alpha1.CIDRMapping{mapping("fd00:10:244::/56", "fd00:10:20::/56")}
	p.Spec.Remote.Pods = []v1alpha1.CIDRMapping{mapping("fd00:10:244::/56", "fd00:10:30::/56")}
	p.Spec.Remote.ExternalCIDR = cidr("fd00:10:70::/114")
	n1, n2 := node("n1", "fd00:10:80::1", "2001:db8::1", 0, "fd00:10:244:1::/64"), node("n2", "fd00:10:80::2", "172.18.0.3", 0)
	d := kit.Must(desire(local{underlayMTU: 1500}, p, []v1alpha1.NodeNetwork{n1, n2}))(t)
	for _, r := range d.overlay.Routes {
		for _, a := range []netip.Addr{r.Dst.Addr(), r.Via, r.Src} {
			kit.ErrorIf(t, a.Is4(), "route %+v", r)
		}
	}
	nowhere := overlay.Route{Table: overlay.InboundTable, Dst: prefix("::/0"), Unreachable: true, Metric: 4096}
	kit.ErrorIf(t, !slices.ContainsFunc(d.overlay.Routes, func(r overlay.Route) bool { return cmp.Equal(r, nowhere, compare) }),
		"there is no unreachable default route: %v", d.overlay.Routes)
	kit.ErrorIf(t, d.address != addr("fd00:10:80::1ff6") || len(d.overlay.Links) != 1, "address %s, links %v", d.address, d.overlay.Links)
	kit.ErrorIf(t, d.omittedNodes == nil || !strings.Contains(d.omittedNodes.Error(), "172.18.0.3"),
		"a node that sends by IPv4: %v", d.omittedNodes)
}

func TestEndpoints(t *testing.T) {
	e := newEndpoints()
	if _, err := e.current(t.Context()); err == nil {
		t.Error("there is an endpoint, want none")
	}
	take := func(want string) {
		t.Helper()
		if got, err := e.current(t.Context()); err != nil || got.String() != want {
			t.Errorf("want %s, got %s, %v", want, got, err)
		}
	}
	e.set([]string{"192.0.2.1:1", "[2001:db8::1]:2", "192.0.2.3:3"}, false)
	take("192.0.2.1:1")
	take("192.0.2.1:1")
	e.next()
	take("[2001:db8::1]:2")
	e.set([]string{"192.0.2.1:1", "[2001:db8::1]:2", "192.0.2.3:3"}, false)
	take("[2001:db8::1]:2")
	e.next()
	e.next()
	take("192.0.2.1:1")
	e.next()
	e.set([]string{"192.0.2.7:7"}, false)
	take("192.0.2.7:7")
	e.next()
	take("192.0.2.7:7")
	e.set(nil, false)
	if _, err := e.current(t.Context()); err == nil {
		t.Error("there is an endpoint, want none")
	}
}

// Pods that several nodes report stay with the node that has them, else they go to the node that was known first. A node
// that is gone, whose report still exists, keeps none. An invalid report takes nothing from others.
func TestPodsOfTwoNodes(t *testing.T) {
	at := func(n v1alpha1.NodeNetwork, created int64, pods ...string) v1alpha1.NodeNetwork {
		n.CreationTimestamp = metav1.Unix(created, 0)
		for _, p := range pods {
			n.Status.PodIPs = append(n.Status.PodIPs, v1alpha1.IP{Addr: addr(p)})
		}
		return n
	}
	first := at(node("z", "10.80.0.1", "172.18.0.2", 0, "10.244.0.0/24", "10.244.5.0/24"), 1, "10.244.9.9")
	second := at(node("b", "10.80.0.2", "172.18.0.3", 0, "10.244.0.0/24", "10.244.0.0/25", "10.244.5.0/24", "10.244.4.0/23", "10.244.8.0/24"), 2, "10.244.9.9", "10.244.0.7", "10.244.7.7")
	third := at(node("a", "10.80.0.3", "172.18.0.4", 0, "10.244.8.128/25", "10.244.0.0/17", "10.244.10.0/24"), 3, "10.244.7.7")
	wrong := at(node("wrong", "10.80.31.254", "172.18.0.5", 0, "10.244.6.0/24"), 0)
	p := peering(t, v1alpha1.Client, newKey(t))
	have := func(l local, nodes ...v1alpha1.NodeNetwork) (desired, map[string]string) {
		t.Helper()
		l.underlayMTU = 1500
		d := kit.Must(desire(l, p, nodes))(t)
		got := map[string]string{}
		for _, r := range d.overlay.Routes {
			if r.Table == overlay.InboundTable && r.Via.IsValid() {
				got[r.Dst.String()] = r.Dev
			}
		}
		return d, got
	}
	honest := map[string]string{
		"10.244.0.0/24": "loqn1", "10.244.5.0/24": "loqn1", "10.244.9.9/32": "loqn1", // the single address is in no range of another node
		"10.244.8.0/24": "loqn2", "10.244.7.7/32": "loqn2", "10.244.0.7/32": "loqn2", "10.244.10.0/24": "loqn3",
	}
	for _, nodes := range [][]v1alpha1.NodeNetwork{{first, second, third, wrong}, {wrong, third, second, first}} {
		d, got := have(local{}, nodes...)
		kit.Check(t, "routes to pods", got, honest)
		kit.ErrorIf(t, d.omittedNodes == nil || !strings.Contains(d.omittedNodes.Error(), "node wrong"), "the invalid node is reported as %v", d.omittedNodes)
		kit.ErrorIf(t, d.disputed == nil || d.disputed.Error() != "node a also reports 10.244.0.0/17, which is of others; node a also reports 10.244.7.7/32, which is of node b; "+
			"node a also reports 10.244.8.128/25, which is of node b; and more", "disputed: %v", d.disputed)
	}
	// An older node that comes later takes nothing.
	d, _ := have(local{}, second, third)
	_, got := have(local{held: d.heldPods()}, first, second, third)
	kit.Check(t, "routes to pods", got, map[string]string{
		"10.244.0.0/24": "loqn2", "10.244.0.0/25": "loqn2", "10.244.5.0/24": "loqn2", "10.244.4.0/23": "loqn2", "10.244.9.9/32": "loqn2",
		"10.244.8.0/24": "loqn2", "10.244.7.7/32": "loqn2", "10.244.0.7/32": "loqn2", "10.244.10.0/24": "loqn3",
	})
	// It is gone.
	_, got = have(local{held: d.heldPods(), gone: map[netip.Addr]bool{addr("10.80.0.2"): true}}, first, second, third)
	kit.ErrorIf(t, got["10.244.0.0/24"] != "loqn1" || got["10.244.9.9/32"] != "loqn1" || got["10.244.8.128/25"] != "loqn3" || got["10.244.0.7/32"] != "loqn2", "routes to pods: %v", got)
}

// A node gets no pods by a report about everything, about the overlay, or about addresses outside of the pods' ranges. An
// exposed host stays with the node that leads to it.
func TestRangesThatAreNotOfPods(t *testing.T) {
	p := peering(t, v1alpha1.Client, newKey(t))
	var reported []netip.Prefix
	for _, r := range []string{"0.0.0.0/0", "10.0.0.0/8", "10.80.1.0/24", "192.168.0.0/16", "10.244.3.0/24"} {
		reported = append(reported, netip.MustParsePrefix(r))
	}
	both := p.DeepCopy()
	both.Spec.Local.Pods = append(both.Spec.Local.Pods, kit.Mapping("fd00:10:244::/56", "fd00:10:70::/56"))
	reported = append(reported, netip.MustParsePrefix("::/0"), netip.Prefix{})
	kit.Check(t, "ranges of pods", fmt.Sprint(podRanges(both, reported)), "[10.244.3.0/24]")
	p.Spec.Local.Hosts = []v1alpha1.AddressMapping{{Real: v1alpha1.IP{Addr: addr("10.244.200.5")}, Mapped: v1alpha1.IP{Addr: addr("10.70.32.1")}}}
	taker := node("n2", "10.80.0.2", "172.18.0.3", 0)
	taker.Status.PodIPs = []v1alpha1.IP{{Addr: addr("10.244.200.5")}}
	d := kit.Must(desire(local{node: "n1", underlayMTU: 1500}, p, []v1alpha1.NodeNetwork{node("n1", "10.80.0.1", "172.18.0.2", 0), taker}))(t)
	kit.Check(t, "by the node that reports the host", routesOf(d, "loqn2"), nil)
	kit.Check(t, "by the gateway's node", routesOf(d, "loqn1"), []string{"10.244.200.5/32"})
}

// However many nodes have disputed pods, the Leases of some are read.
func TestRenewalsAreBounded(t *testing.T) {
	a := &agent{view: &watch.View{Client: newBuilder(t).Build()}}
	for i := range 100 {
		a.applied.want.holders = append(a.applied.want.holders, nodeAt(i))
	}
	a.readRenewals(t.Context())
	kit.Check(t, "nodes that are watched", len(a.disputes.renewals), 16)
}

// A gateway waits for another pod of its plane only while that is about to end, and not forever.
func TestPredecessorIsWaitedFor(t *testing.T) {
	for name, tt := range map[string]struct {
		last *v1alpha1.PlaneStatus
		age  time.Duration
		want bool
	}{
		"there is none":   {nil, 0, false},
		"it is leaving":   {&v1alpha1.PlaneStatus{Leaving: true, PodIP: v1alpha1.IP{Addr: addr("10.244.0.9")}}, 5 * time.Second, true},
		"it was killed":   {&v1alpha1.PlaneStatus{Leaving: true, PodIP: v1alpha1.IP{Addr: addr("10.244.0.9")}}, 7 * time.Second, false},
		"it is this one":  {&v1alpha1.PlaneStatus{Leaving: true, PodIP: v1alpha1.IP{Addr: addr("10.244.0.1")}}, 0, false},
		"it has not left": {&v1alpha1.PlaneStatus{PodIP: v1alpha1.IP{Addr: addr("10.244.0.9")}}, 0, false},
	} {
		a := &agent{cfg: Config{PodIPs: []netip.Addr{addr("10.244.0.1")}}}
		a.livenessServer.started = time.Now().Add(-tt.age)
		kit.Check(t, name, a.mustWaitForPredecessor(tt.last), tt.want)
	}
}

// The gateway finds out whether a node that has disputed pods is gone, by its Lease.
func TestHoldersThatAreGone(t *testing.T) {
	alive, dead, missing := addr("10.80.0.1"), addr("10.80.0.2"), addr("10.80.0.3")
	lease := func(a netip.Addr) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: v1alpha1.NodeLeaseName(a)}}
	}
	c := newBuilder(t, lease(alive), lease(dead)).Build()
	a := &agent{view: &watch.View{Client: c}}
	a.applied.want.holders = []netip.Addr{alive, dead, missing}
	for range 5 {
		l := lease(alive)
		kit.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(l), l))
		l.Annotations = map[string]string{"renewed": l.ResourceVersion}
		kit.NoError(t, c.Update(t.Context(), l))
		a.readRenewals(t.Context())
		kit.ErrorIf(t, !a.disputes.renewals[missing].isOld() || a.disputes.renewals[alive].isOld(), "%+v", a.disputes.renewals)
		for node, r := range a.disputes.renewals { // half a minute passes
			r.read, r.since = r.read.Add(-31*time.Second), r.since.Add(-31*time.Second)
			a.disputes.renewals[node] = r
		}
	}
	a.readRenewals(t.Context())
	kit.ErrorIf(t, !a.disputes.renewals[dead].isOld() || a.disputes.renewals[alive].isOld(), "%+v", a.disputes.renewals)
	// Another node reports the pods of both. It gets those of the node that is gone.
	p := peering(t, v1alpha1.Client, newKey(t))
	one, two := node("n1", alive.String(), "172.18.0.2", 0, "10.244.1.0/24"), node("n2", dead.String(), "172.18.0.3", 0, "10.244.2.0/24")
	other := node("n4", "10.80.0.4", "172.18.0.5", 0, "10.244.1.0/24", "10.244.2.0/24")
	a.applied.want = kit.Must(desire(a.local, p, []v1alpha1.NodeNetwork{one, two}))(t)
	a.applied.want.holders = []netip.Addr{alive, dead, missing}
	d := kit.Must(a.desire(t.Context(), p, []v1alpha1.NodeNetwork{one, two, other}))(t)
	kit.Check(t, "pods of the node that renews its Lease", routesOf(d, "loqn1"), []string{"10.244.1.0/24"})
	kit.Check(t, "pods of the node that is gone", routesOf(d, "loqn2"), nil)
	kit.Check(t, "pods of the other node", routesOf(d, "loqn4"), []string{"10.244.2.0/24"})
}

func TestCompareStatus(t *testing.T) {
	base := func() status {
		return status{
			peering: "1",
			plane:   v1alpha1.PlaneStatus{ObservedGeneration: 1, NodeName: "n", MTU: 1400, Connected: true, RTTMicroseconds: 5},
			conditions: []metav1.Condition{
				{Type: v1alpha1.ConditionConnected, Status: metav1.ConditionTrue}, {Type: v1alpha1.ConditionRedundant, Status: metav1.ConditionTrue},
			},
		}
	}
	for name, tt := range map[string]struct {
		change func(*status)
		want   loop.Change
	}{
		"nothing":                {func(*status) {}, loop.Same},
		"round trip time":        {func(s *status) { s.plane.RTTMicroseconds = 1000 }, loop.Same},
		"loss":                   {func(s *status) { s.plane.LossPercent = 50 }, loop.Same},
		"handshake":              {func(s *status) { s.plane.LastHandshake = new(metav1.Now()) }, loop.Measured},
		"first round trip time":  {func(s *status) { s.plane.RTTMicroseconds = 0 }, loop.Changed},
		"connected":              {func(s *status) { s.plane.Connected = false }, loop.Changed},
		"generation":             {func(s *status) { s.plane.ObservedGeneration = 2 }, loop.Changed},
		"MTU":                    {func(s *status) { s.plane.MTU = 2 }, loop.Changed},
		"key":                    {func(s *status) { s.plane.PublicKey = "k" }, loop.Changed},
		"pod":                    {func(s *status) { s.plane.PodIP = v1alpha1.IP{Addr: addr("10.0.0.1")} }, loop.Changed},
		"message":                {func(s *status) { s.plane.Message = "x" }, loop.Changed},
		"endpoint":               {func(s *status) { s.plane.Endpoint = "192.0.2.1:1" }, loop.Changed},
		"another object":         {func(s *status) { s.peering = "2" }, loop.Changed},
		"condition":              {func(s *status) { s.conditions[0].Status = metav1.ConditionFalse }, loop.Changed},
		"message of a condition": {func(s *status) { s.conditions[0].Message = "2 nodes" }, loop.Measured},
		// Degraded names one more plane, and Redundant after it becomes false.
		"message of a condition, and a later condition": {func(s *status) {
			s.conditions[0].Message, s.conditions[1].Status = "2 nodes", metav1.ConditionFalse
		}, loop.Changed},
		"message of a later condition":    {func(s *status) { s.conditions[1].Message = "2 planes" }, loop.Measured},
		"dispute":                         {func(s *status) { s.disputed = true }, loop.Measured},
		"conditions of another plane now": {func(s *status) { s.conditions = nil }, loop.Changed},
	} {
		s := base()
		tt.change(&s)
		if got := compareStatus(s, base()); got != tt.want {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
	}
	// The reason why a tunnel does not work, and the endpoint being tried, may change all the time.
	a, b := base(), base()
	a.plane.Connected, b.plane.Connected, b.plane.Message, b.plane.Endpoint = false, false, "since 12:00", "192.0.2.1:1"
	if got := compareStatus(a, b); got != loop.Measured {
		t.Errorf("messages of a tunnel that does not work: %v", got)
	}
}

func TestWhyNot(t *testing.T) {
	server, client, named := &agent{}, &agent{}, &agent{}
	client.dialer.endpoints.set([]string{"192.0.2.1:1"}, false)
	named.dialer.endpoints = newEndpoints()
	named.dialer.endpoints.set([]string{"gw.example:1"}, false)
	named.dialer.endpoints.lookup = func(context.Context, string, string) ([]netip.Addr, error) { return nil, errors.New("no such host") }
	if _, err := named.dialer.endpoints.current(t.Context()); err == nil {
		t.Error("the name resolves")
	}
	const called = " If the peer's address has changed, run `kubectl liqonet peer`. Its endpoints are [192.0.2.1:1]"
	shaken := v1alpha1.PlaneStatus{LastHandshake: new(metav1.Now())}
	for _, tt := range []struct {
		of     *agent
		status v1alpha1.PlaneStatus
		health tunnelHealth
		want   string
	}{
		{server, v1alpha1.PlaneStatus{}, tunnelHealth{}, "the peer's gateway has not connected yet"},
		{client, v1alpha1.PlaneStatus{}, tunnelHealth{}, "no handshake with the peer's gateway: is UDP blocked?" + called},
		{named, v1alpha1.PlaneStatus{}, tunnelHealth{}, `endpoint "gw.example": no such host: the endpoint's name does not resolve`},
		{server, shaken, tunnelHealth{}, "probes through the tunnel were never answered"},
		{client, shaken, tunnelHealth{}, "probes through the tunnel were never answered." + called},
		{server, shaken, tunnelHealth{healthInputs: healthInputs{probes: liveness.ProbeStats{LastReply: time.Unix(0, 0)}}}, "probes through the tunnel are not answered since 1970-01-01T00:00:00Z"},
		{client, shaken, tunnelHealth{healthInputs: healthInputs{probes: liveness.ProbeStats{LastReply: time.Unix(0, 0)}}}, "probes through the tunnel are not answered since 1970-01-01T00:00:00Z." + called},
		{server, shaken, tunnelHealth{answered: true}, "small probes are answered, but the path loses large packets, or those of new connections"},
		{server, shaken, tunnelHealth{answered: true, healthInputs: healthInputs{session: liveness.State{Up: true, Leaving: true}}}, "the peer's nodes do not reach the peer's gateway"},
		{server, shaken, tunnelHealth{answered: true, connected: true}, "the tunnel works, but no node reaches the peer through this gateway"},
	} {
		if got := tt.of.disconnectedReason(tt.status, tt.health); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}

// If there are more pods than a gateway's limit of routes, those of the last nodes are left out, and the gateway
// reports that. One node's report takes no routes from the nodes before it.
func TestMoreThanAllPods(t *testing.T) {
	p := peering(t, v1alpha1.Client, newKey(t))
	p.Spec.Local.Pods = []v1alpha1.CIDRMapping{{Real: cidr("10.128.0.0/9"), Mapped: cidr("10.0.0.0/9")}}
	var nodes []v1alpha1.NodeNetwork
	pod := addr("10.128.0.0")
	for i := range 1 + maxPods/1024 {
		n := node(fmt.Sprint("n", i), fmt.Sprintf("10.80.0.%d", i+1), fmt.Sprintf("172.18.0.%d", i+1), 0)
		for range 1024 {
			n.Status.PodIPs = append(n.Status.PodIPs, v1alpha1.IP{Addr: pod})
			pod = pod.Next()
		}
		nodes = append(nodes, n)
	}
	got, err := desire(local{key: newKey(t)}, p, nodes)
	kit.NoError(t, err)
	routes := map[string]int{}
	for _, r := range got.overlay.Routes {
		if r.Via.IsValid() {
			routes[r.Dev]++
		}
	}
	last := wire.GatewayLink(len(nodes))
	for _, l := range got.overlay.Links {
		want := 1024
		if l.Name == last {
			want = maxPods % 1024
		}
		if routes[l.Name] != want {
			t.Errorf("%d routes by %s, want %d", routes[l.Name], l.Name, want)
		}
	}
	if len(got.overlay.Links) != len(nodes) || got.omittedNodes == nil || !strings.Contains(got.omittedNodes.Error(), fmt.Sprintf("%d addresses and ranges of pods are left out", 1024-maxPods%1024)) {
		t.Errorf("%d links, left out: %v", len(got.overlay.Links), got.omittedNodes)
	}
	if got, err = desire(local{key: newKey(t)}, p, nodes[1:]); err != nil || got.omittedNodes != nil {
		t.Errorf("without one of the nodes, left out: %v, %v", got.omittedNodes, err)
	}
}
