package node

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/test/kit"
)

var compare = cmp.Options{cmpopts.EquateComparable(netip.Prefix{}, netip.Addr{}, netip.AddrPort{}, v1alpha1.CIDR{}, v1alpha1.IP{}), cmpopts.EquateEmpty(), cmp.AllowUnexported(gateway{})}

var prefix, addr, mapping, cidr = netip.MustParsePrefix, netip.MustParseAddr, kit.Mapping, kit.CIDR

// peering returns a Peering whose gateway has reported from node n1.
func peering(name string, index int32, local, remote v1alpha1.CIDRMapping, external string) v1alpha1.Peering {
	return v1alpha1.Peering{
		ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 3},
		Spec: v1alpha1.PeeringSpec{
			Index: index, Overlay: "Geneve",
			Local: v1alpha1.LocalNetwork{
				Pods: []v1alpha1.CIDRMapping{local}, InternalCIDR: cidr("10.80.0.0/19"), ExternalCIDR: cidr("10.60.0.0/18"),
			},
			Remote: v1alpha1.RemoteNetwork{Name: name, Pods: []v1alpha1.CIDRMapping{remote}, ExternalCIDR: cidr(external)},
			Planes: []v1alpha1.Plane{{RemoteAddress: v1alpha1.IP{Addr: prefix(external).Addr().Next()}}},
		},
		Status: v1alpha1.PeeringStatus{Planes: []v1alpha1.PlaneStatus{{
			PodIP: v1alpha1.IP{Addr: netip.AddrFrom4([4]byte{10, 244, 9, byte(index)})}, MTU: 1390, NodeName: "n1",
			Endpoint: "192.0.2.8:51840",
		}}},
	}
}

func TestDesire(t *testing.T) {
	me := local{
		name: "n2", address: addr("10.80.0.7"), keys: overlay.Keys{3: {1, 2}, 4: {5}}, pods: []netip.Prefix{prefix("10.244.2.0/24")}, uplinks: []string{"eth0"},
	}
	// Gateway numbers 8 and 4, counted from the end of 10.80.0.0/19.
	gwB, gwC := addr("10.80.31.246"), addr("10.80.31.250")
	equal := peering("b", 2, mapping("10.244.0.0/16", "10.20.0.0/16"), mapping("10.244.0.0/16", "10.30.0.0/16"), "10.70.0.0/18")
	disjoint := peering("c", 1, mapping("10.244.0.0/16", "10.244.0.0/16"), mapping("10.245.0.0/16", "10.245.0.0/16"), "10.71.0.0/18")
	equal.Spec.Limits.NewConnections = 1000
	silent := *equal.DeepCopy()
	silent.Status = v1alpha1.PeeringStatus{}
	noMTU := *equal.DeepCopy()
	noMTU.Status.Planes[0].MTU = 0
	noPod := *equal.DeepCopy()
	noPod.Status.Planes[0].PodIP = v1alpha1.IP{}
	planes := *equal.DeepCopy()
	planes.Spec.Overlay = "VXLAN"
	planes.Spec.Planes = append(planes.Spec.Planes, v1alpha1.Plane{Index: 3, Role: v1alpha1.Client, RemoteAddress: v1alpha1.IP{Addr: addr("10.70.0.9")}})
	planes.Status.Planes = append(planes.Status.Planes, v1alpha1.PlaneStatus{Index: 3, PodIP: v1alpha1.IP{Addr: addr("10.244.8.8")}, MTU: 1300, NodeName: "n2", Endpoint: "[::ffff:192.0.2.7]:51840"})

	unreachable := func(ps ...string) (out []overlay.Route) {
		for _, p := range ps {
			out = append(out, overlay.Route{Table: overlay.Table, Dst: prefix(p), Unreachable: true, Metric: 4096})
		}
		return out
	}
	by := func(dev string, gw netip.Addr, mtu, metric int, ps ...string) []overlay.Route {
		out := []overlay.Route{{Table: overlay.Table, Dst: netip.PrefixFrom(gw, 32), Dev: dev, Src: me.address}}
		for _, p := range ps {
			out = append(out, overlay.Route{Table: overlay.Table, Dst: prefix(p), Via: gw, Dev: dev, Src: me.address, MTU: mtu, Metric: metric})
		}
		return out
	}
	link := func(name, gateway string, vni uint32, gw netip.Addr, remote string, mtu int) overlay.Link {
		key := me.keys.ForGateway(gateway, 3)
		return overlay.Link{
			Name: name, Kind: "geneve", VNI: vni, Local: me.address, LocalMAC: key.MAC(vni, me.address), Peer: gw, PeerMAC: key.MAC(vni, gw),
			Remote: addr(remote), MTU: mtu,
		}
	}
	linkB, linkC := link("loq2-0", "gateway-b-0", 8<<13|7, gwB, "10.244.9.2", 1390), link("loq1-0", "gateway-c-0", 4<<13|7, gwC, "10.244.9.1", 1390)
	natWith := func(remote []netip.Prefix, gateways ...nat.NodeGateway) *nat.Node {
		return &nat.Node{
			OverlayGroup: overlay.Group, Address: me.address, Pods: []netip.Prefix{prefix("10.244.0.0/16")}, OwnPods: me.pods, Uplinks: me.uplinks,
			Remote: remote, Gateways: gateways, OverlayPort: 6094, TunnelPort: 51840,
		}
	}
	rangesB := []netip.Prefix{prefix("10.30.0.0/16"), prefix("10.70.0.0/18")}
	rangesC := []netip.Prefix{prefix("10.245.0.0/16"), prefix("10.71.0.0/18")}
	toB := nat.NodeGateway{Pod: addr("10.244.9.2"), VNI: 8<<13 | 7, Overlay: gwB, PeerGateway: addr("10.70.0.1"), Link: "loq2-0", Remote: rangesB, LimitNew: 1000}
	gatewayB := gateway{peering: "b", generation: 3, pod: addr("10.244.9.2"), mtu: 1390, remote: addr("10.70.0.1"), address: gwB, link: "loq2-0", isOnlyPlane: true}
	waiting := gatewayB
	waiting.pod, waiting.mtu = netip.Addr{}, 0
	rules := []overlay.Rule{{Table: overlay.Table}}
	nothingYet := desired{
		overlay: overlay.State{Rules: rules, Routes: unreachable("10.30.0.0/16", "10.70.0.0/18")}, nat: natWith(rangesB), gateways: []gateway{waiting},
	}
	gw3 := addr("10.80.31.243")
	vxlanB, vxlan3 := linkB, link("loq2-3", "gateway-b-3", 11<<13|7, gw3, "10.244.8.8", 1300)
	vxlanB.Kind, vxlan3.Kind = "vxlan", "vxlan"
	// Each plane has a route to its own remote gateway. After the routes through the plane in use come those through
	// each plane.
	twoPlanes := func(inUse []overlay.Route) desired {
		routes := unreachable("10.30.0.0/16", "10.70.0.0/18")
		for _, group := range [][]overlay.Route{
			append(by("loq2-0", gwB, 1390, 0, "10.70.0.1/32"), by("loq2-3", gw3, 1300, 0, "10.70.0.9/32")...), inUse,
			by("loq2-3", gw3, 1300, 203, "10.30.0.0/16", "10.70.0.0/18")[1:], by("loq2-0", gwB, 1390, 200, "10.30.0.0/16", "10.70.0.0/18")[1:],
		} {
			routes = append(routes, group...)
		}
		first := gatewayB
		first.isOnlyPlane, first.rank = false, 1
		return desired{
			overlay: overlay.State{Links: []overlay.Link{vxlanB, vxlan3}, Rules: rules, Routes: routes},
			nat:     natWith(rangesB, toB, nat.NodeGateway{Pod: addr("10.244.8.8"), VNI: 11<<13 | 7, Overlay: gw3, PeerGateway: addr("10.70.0.9"), Local: true, IsInitiator: true, Link: "loq2-3", Remote: rangesB, LimitNew: 1000}),
			gateways: []gateway{first, {
				peering: "b", plane: 3, generation: 3, pod: addr("10.244.8.8"), mtu: 1300, tunnelTarget: addr("192.0.2.7"),
				remote: addr("10.70.0.9"), address: gw3, link: "loq2-3", rank: -1,
			}},
		}
	}
	tests := []struct {
		name     string
		peerings []v1alpha1.Peering
		used     map[string]planesInUse
		want     desired
	}{
		{name: "none"},
		{
			name: "equal ranges", peerings: []v1alpha1.Peering{equal},
			want: desired{
				overlay: overlay.State{
					Links: []overlay.Link{linkB}, Rules: rules,
					Routes: slices.Concat(unreachable("10.30.0.0/16", "10.70.0.0/18"), by("loq2-0", gwB, 1390, 100, "10.30.0.0/16", "10.70.0.0/18")),
				},
				nat: natWith(rangesB, toB), gateways: []gateway{gatewayB},
			},
		},
		{
			name: "two peerings", peerings: []v1alpha1.Peering{equal, disjoint},
			want: desired{
				overlay: overlay.State{
					Links: []overlay.Link{linkC, linkB}, Rules: rules,
					Routes: slices.Concat(
						unreachable("10.245.0.0/16", "10.71.0.0/18"), by("loq1-0", gwC, 1390, 100, "10.245.0.0/16", "10.71.0.0/18"),
						unreachable("10.30.0.0/16", "10.70.0.0/18"), by("loq2-0", gwB, 1390, 100, "10.30.0.0/16", "10.70.0.0/18"),
					),
				},
				nat:      natWith(slices.Concat(rangesC, rangesB), nat.NodeGateway{Pod: addr("10.244.9.1"), VNI: 4<<13 | 7, Overlay: gwC, PeerGateway: addr("10.71.0.1"), Link: "loq1-0", Remote: rangesC}, toB),
				gateways: []gateway{{peering: "c", generation: 3, pod: addr("10.244.9.1"), mtu: 1390, remote: addr("10.71.0.1"), address: gwC, link: "loq1-0", isOnlyPlane: true}, gatewayB},
			},
		},
		{name: "the gateway has not reported", peerings: []v1alpha1.Peering{silent}, want: nothingYet},
		{name: "the gateway has no MTU", peerings: []v1alpha1.Peering{noMTU}, want: nothingYet},
		{name: "the gateway has no address", peerings: []v1alpha1.Peering{noPod}, want: nothingYet},
		{
			name: "two planes, one on this node", peerings: []v1alpha1.Peering{planes},
			want: twoPlanes(by("loq2-3", gw3, 1300, 100, "10.30.0.0/16", "10.70.0.0/18")[1:]),
		},
		{
			name: "two planes, the other one in use", peerings: []v1alpha1.Peering{planes}, used: map[string]planesInUse{"b": {primary: 0, all: []int32{0}}},
			want: twoPlanes(by("loq2-0", gwB, 1390, 100, "10.30.0.0/16", "10.70.0.0/18")[1:]),
		},
		{
			name: "the plane in use is gone", peerings: []v1alpha1.Peering{planes}, used: map[string]planesInUse{"b": {primary: 2, all: []int32{2}}},
			want: twoPlanes(by("loq2-3", gw3, 1300, 100, "10.30.0.0/16", "10.70.0.0/18")[1:]),
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			me := me
			me.planesInUse = tt.used
			got := kit.Must(desire(me, slices.Clone(tt.peerings)))(t)
			opts := append(compare, cmp.AllowUnexported(desired{}), cmpopts.IgnoreFields(desired{}, "planeRoutes")) // the routes contain them, too
			kit.Check(t, "result", got, tt.want, opts)
			slices.Reverse(tt.peerings)
			if again, err := desire(me, tt.peerings); err != nil || !cmp.Equal(got, again, opts) {
				t.Errorf("it depends on the order: %v", err)
			}
		})
	}
}

// In spread mode, routes lead through all planes in use, except those to exposed hosts. Their MTU is the smallest of
// these planes.
func TestDesireSpread(t *testing.T) {
	me := local{name: "n2", address: addr("10.80.0.7")}
	p := peering("b", 2, mapping("10.244.0.0/16", "10.20.0.0/16"), mapping("10.244.0.0/16", "10.30.0.0/16"), "10.70.0.0/18")
	p.Spec.PlanesMode = v1alpha1.PlanesSpread
	for i, mtu := range []int32{1390, 1300, 1350, 0} { // plane 3 has no gateway yet
		plane := v1alpha1.Plane{Index: int32(i), RemoteAddress: v1alpha1.IP{Addr: addr(fmt.Sprintf("10.70.0.%d", i+1))}}
		status := v1alpha1.PlaneStatus{Index: int32(i), PodIP: v1alpha1.IP{Addr: addr(fmt.Sprintf("10.244.9.%d", i))}, MTU: mtu}
		if i == 0 {
			p.Spec.Planes, p.Status.Planes = []v1alpha1.Plane{plane}, []v1alpha1.PlaneStatus{status}
		} else {
			p.Spec.Planes, p.Status.Planes = append(p.Spec.Planes, plane), append(p.Status.Planes, status)
		}
	}
	one := *p.DeepCopy()
	one.Spec.Planes, one.Status.Planes = one.Spec.Planes[:1], one.Status.Planes[:1]
	usual := *p.DeepCopy()
	usual.Spec.PlanesMode = v1alpha1.PlanesSingle
	const pods, nodes, hosts, all = "10.30.0.0/16", "10.70.0.0/19", "10.70.32.0/19", "10.70.0.0/18"
	for _, tt := range []struct {
		name    string
		peering v1alpha1.Peering
		used    map[string]planesInUse
		want    map[string]string
	}{
		{"before anything is known", p, nil, map[string]string{pods: "[1] 1300", nodes: "[1] 1300", hosts: "[1] 1300"}}, // the node's number decides
		{"all that have a link", p, map[string]planesInUse{"b": {primary: 2, all: []int32{0, 1, 2}}}, map[string]string{pods: "[0 1 2] 1300", nodes: "[0 1 2] 1300", hosts: "[2] 1350"}},
		{"one has failed", p, map[string]planesInUse{"b": {primary: 0, all: []int32{0, 2}}}, map[string]string{pods: "[0 2] 1350", nodes: "[0 2] 1350", hosts: "[0] 1390"}},
		{"those before the agent has started", p, map[string]planesInUse{"b": {primary: noPlane, all: []int32{0, 2}}}, map[string]string{pods: "[0 2] 1350", nodes: "[0 2] 1350", hosts: "[2] 1350"}},
		{"one of them is gone", p, map[string]planesInUse{"b": {primary: 3, all: []int32{0, 3}}}, map[string]string{pods: "[0] 1390", nodes: "[0] 1390", hosts: "[0] 1390"}},
		{"all of them are gone", p, map[string]planesInUse{"b": {primary: 3, all: []int32{3}}}, map[string]string{pods: "[1] 1300", nodes: "[1] 1300", hosts: "[1] 1300"}},
		{"one plane", one, nil, map[string]string{pods: "[0] 1390", all: "[0] 1390"}},
		{"spread mode is off again", usual, map[string]planesInUse{"b": {primary: 2, all: []int32{0, 1, 2}}}, map[string]string{pods: "[2] 1350", all: "[2] 1350"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			me := me
			me.planesInUse = tt.used
			d := kit.Must(desire(me, []v1alpha1.Peering{tt.peering}))(t)
			got := map[string]string{}
			spares := map[string]int{}
			for _, r := range d.overlay.Routes {
				var by []int
				for _, h := range append(slices.Clone(r.Hops), overlay.Hop{Dev: r.Dev}) {
					var plane int
					if n, _ := fmt.Sscanf(h.Dev, "loq2-%d", &plane); n > 0 {
						by = append(by, plane)
					}
				}
				switch {
				case r.Metric == routeMetric:
					got[r.Dst.String()] = fmt.Sprint(by, r.MTU)
				case r.Metric >= spareMetric && r.Metric < unreachableMetric:
					spares[r.Dst.String()]++
				}
			}
			kit.Check(t, "routes in use", got, tt.want)
			for dst := range tt.want {
				if len(tt.peering.Spec.Planes) > 1 && spares[dst] != 3 {
					t.Errorf("%d spare routes to %s", spares[dst], dst)
				}
			}
			kit.Check(t, "ranges of the peer", d.nat.Remote, []netip.Prefix{prefix(pods), prefix(all)}, compare)
		})
	}
}

// What a peering costs a node, as docs/limits.md has it, for a peer with two ranges.
func TestCostOfAPeering(t *testing.T) {
	p := peering("b", 2, mapping("10.244.0.0/16", "10.20.0.0/16"), mapping("10.244.0.0/16", "10.30.0.0/16"), "10.70.0.0/18")
	for planes, want := range []string{"1 links, 5 routes", "2 links, 12 routes"} {
		if planes > 0 {
			second := p.Spec.Planes[0]
			second.Index, second.RemoteAddress.Addr = 1, second.RemoteAddress.Next()
			p.Spec.Planes = append(p.Spec.Planes, second)
			p.Status.Planes = append(p.Status.Planes, v1alpha1.PlaneStatus{Index: 1, PodIP: v1alpha1.IP{Addr: addr("10.244.8.8")}, MTU: 1390, NodeName: "n9"})
		}
		d := kit.Must(desire(local{name: "n2", address: addr("10.80.0.7")}, []v1alpha1.Peering{p}))(t)
		kit.Check(t, fmt.Sprint(planes+1, " planes"), fmt.Sprintf("%d links, %d routes", len(d.overlay.Links), len(d.overlay.Routes)), want)
	}
}

func TestDesireErrors(t *testing.T) {
	p := peering("b", 2, mapping("10.244.0.0/16", "10.20.0.0/16"), mapping("10.244.0.0/16", "10.30.0.0/16"), "10.70.0.0/18")
	if _, err := desire(local{address: addr("10.81.0.1")}, []v1alpha1.Peering{p}); err == nil {
		t.Error("an address outside of the internal range")
	}
	p.Spec.Index = 512
	d, err := desire(local{address: addr("10.80.0.1")}, []v1alpha1.Peering{p})
	kit.ErrorIf(t, err == nil || !strings.Contains(err.Error(), "plane 0"), "an index that is too large: %v", err)
	// Nothing leaves unencrypted.
	for _, r := range p.RemoteRanges() {
		kit.ErrorIf(t, !isUnreachable(d, r), "there is no unreachable route to %s", r)
	}
}

// A node ignores a Peering that no command has completed, but reports one that cannot be read.
func TestDesireIncomplete(t *testing.T) {
	p := peering("b", 2, mapping("10.244.0.0/16", "10.20.0.0/16"), mapping("10.244.0.0/16", "10.30.0.0/16"), "10.70.0.0/18")
	p.Spec.Planes = nil
	d, err := desire(local{address: addr("10.80.0.1")}, []v1alpha1.Peering{p})
	kit.ErrorIf(t, err != nil || d.nat != nil || len(d.overlay.Routes) > 0, "%+v, %v", d, err)
	p.Spec = v1alpha1.PeeringSpec{}
	if _, err := desire(local{address: addr("10.80.0.1")}, []v1alpha1.Peering{p}); err == nil {
		t.Error("a Peering that cannot be read")
	}
}

// Packets that a peering's gateways send from the tunnel's port do not enter the tunnel of a peer whose range
// contains their destinations. All other packets to these addresses do.
func TestDesireEndpoints(t *testing.T) {
	me := local{name: "n1", address: addr("10.80.0.7"), nodeIPs: []netip.Addr{addr("192.0.2.17"), addr("2001:db8::17")}}
	covering := peering("covering", 1, mapping("10.244.0.0/16", "10.20.0.0/16"), mapping("10.244.0.0/16", "172.18.0.0/16"), "10.70.0.0/18")
	called := peering("called", 2, mapping("10.244.0.0/16", "10.20.0.0/16"), mapping("10.244.0.0/16", "10.30.0.0/16"), "10.71.0.0/18")
	called.Spec.Planes[0].Endpoints = []string{"172.18.1.5:30001", "[2001:db8::1]:30001", "gateway.example:51840", "192.0.2.1:30001"}
	called.Status.Planes[0].Endpoint = "[::ffff:172.18.1.5]:30001"
	called.Status.Planes = append(called.Status.Planes, v1alpha1.PlaneStatus{Index: 3, Endpoint: "172.18.1.6:30001"})
	called.Spec.Remote.NodeIPs = []v1alpha1.IP{{Addr: addr("172.18.1.5")}, {Addr: addr("172.18.1.7")}, {Addr: addr("192.0.2.2")}, {Addr: addr("2001:db8::2")}}
	d := kit.Must(desire(me, []v1alpha1.Peering{covering, called}))(t)
	kit.Check(t, "bypass",
		d.overlay.Bypass, []netip.AddrPort{netip.MustParseAddrPort("10.244.9.2:51840"), netip.MustParseAddrPort("192.0.2.17:0")}, compare)
	for _, r := range d.overlay.Routes {
		kit.ErrorIf(t, r.Dst.Bits() == 32 && r.Dst.Addr() != addr("10.80.31.250") && r.Dst.Addr() != addr("10.80.31.246"),
			"an address is taken out of a peer's range: %s", r)
	}
	kit.Check(t, "endpoints", d.nat.Endpoints, []netip.Addr{addr("172.18.1.5"), addr("172.18.1.7")}, compare)
}

// A dual-stack cluster must not get routes that no kernel accepts.
func TestDualStack(t *testing.T) {
	p := peering("b", 2, mapping("10.244.0.0/16", "10.20.0.0/16"), mapping("10.244.0.0/16", "10.30.0.0/16"), "10.70.0.0/18")
	p.Spec.Remote.Pods = append(p.Spec.Remote.Pods, mapping("fd00:10:244::/56", "fd00:10:244::/56"))
	m := local{name: "n2", address: addr("10.80.0.7"), pods: []netip.Prefix{prefix("fd00:10:244:2::/64"), prefix("10.244.2.0/24")}}
	d := kit.Must(desire(m, []v1alpha1.Peering{p}))(t)
	for _, r := range d.overlay.Routes {
		kit.ErrorIf(t, r.Via.IsValid() && r.Via.Is4() != r.Dst.Addr().Is4(), "route %+v", r)
	}
	// nftables accepts only this family.
	kit.Check(t, "the node's own pods", d.nat.OwnPods, []netip.Prefix{prefix("10.244.2.0/24")}, compare)
}

func first(kept []netip.Prefix, _ int) []netip.Prefix { return kept }

func TestSummary(t *testing.T) {
	tests := []struct {
		name     string
		in, want []string
	}{
		{name: "nothing"},
		{name: "disjoint", in: []string{"10.1.0.0/16", "10.0.0.0/16"}, want: []string{"10.0.0.0/16", "10.1.0.0/16"}},
		{name: "inside of another", in: []string{"10.0.5.0/24", "10.0.0.0/16", "10.0.5.7/32"}, want: []string{"10.0.0.0/16"}},
		{name: "twice", in: []string{"10.0.0.0/16", "10.0.0.0/16"}, want: []string{"10.0.0.0/16"}},
		{name: "both families", in: []string{"fd00::/64", "10.0.0.0/16", "fd00::1/128"}, want: []string{"10.0.0.0/16", "fd00::/64"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var in []netip.Prefix
			for _, s := range tt.in {
				in = append(in, prefix(s))
			}
			var got []string
			for _, p := range first(summarizeRoutes(in)) {
				got = append(got, p.String())
			}
			kit.Check(t, "result", got, tt.want, compare)
		})
	}
	t.Run("the largest ones up to the limit", func(t *testing.T) {
		var in []netip.Prefix
		for i := range 2 * maxRoutes {
			in = append(in, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 1}), 32))
		}
		got, omitted := summarizeRoutes(append(in, prefix("172.16.0.0/12")))
		if len(got) != maxRoutes || omitted != maxRoutes+1 || !slices.Contains(got, prefix("172.16.0.0/12")) {
			t.Errorf("%d, first %s", len(got), got[0])
		}
	})
}

func TestCompareStatus(t *testing.T) {
	base := func() v1alpha1.NodeNetworkStatus {
		return v1alpha1.NodeNetworkStatus{
			Kernel: &v1alpha1.KernelFacts{}, PodCIDRs: v1alpha1.NewCIDRs(prefix("10.244.0.0/24")), PodIPs: []v1alpha1.IP{{Addr: addr("10.9.0.1")}},
			Routes: v1alpha1.NewCIDRs(prefix("10.0.0.0/16")), UnderlayMTU: 1500,
			Gateways: []v1alpha1.NodeGateway{{PeeringName: "b", Ready: true, MTU: 1450, RTTMicroseconds: 10}},
		}
	}
	tests := []struct {
		name   string
		change func(*v1alpha1.NodeNetworkStatus)
		want   loop.Change
	}{
		{name: "nothing", change: func(*v1alpha1.NodeNetworkStatus) {}, want: loop.Same},
		{name: "round trip time", change: func(s *v1alpha1.NodeNetworkStatus) { s.Gateways[0].RTTMicroseconds = 21 }, want: loop.Measured},
		{name: "loss", change: func(s *v1alpha1.NodeNetworkStatus) { s.Gateways[0].LossPercent = 9 }, want: loop.Measured},
		{name: "round trip time, a little", change: func(s *v1alpha1.NodeNetworkStatus) { s.Gateways[0].RTTMicroseconds = 19 }},
		{name: "first round trip time", change: func(s *v1alpha1.NodeNetworkStatus) { s.Gateways[0].RTTMicroseconds = 0 }, want: loop.Changed},
		{name: "kernel", change: func(s *v1alpha1.NodeNetworkStatus) { s.Kernel = &v1alpha1.KernelFacts{Geneve: true} }, want: loop.Changed},
		{name: "ready", change: func(s *v1alpha1.NodeNetworkStatus) { s.Gateways[0].Ready = false }, want: loop.Changed},
		{name: "no gateway", change: func(s *v1alpha1.NodeNetworkStatus) { s.Gateways = nil }, want: loop.Changed},
		{name: "message", change: func(s *v1alpha1.NodeNetworkStatus) { s.Conditions = []metav1.Condition{{Type: "Ready", Message: "x"}} }, want: loop.Changed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := base()
			tt.change(&s)
			if a, b := compareStatus(s, base()), compareStatus(base(), s); a != tt.want || b != tt.want {
				t.Errorf("got %v and %v, want %v", a, b, tt.want)
			}
		})
	}
}

func TestOutside(t *testing.T) {
	pod := func(host bool, phase corev1.PodPhase, ips ...string) corev1.Pod {
		p := corev1.Pod{Spec: corev1.PodSpec{HostNetwork: host}, Status: corev1.PodStatus{Phase: phase}}
		for _, ip := range ips {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
		}
		return p
	}
	pods := []corev1.Pod{
		pod(false, corev1.PodRunning, "10.9.0.2"), pod(false, corev1.PodPending, "10.9.0.1"), pod(false, corev1.PodRunning, "10.244.0.5", "fd00::5"),
		pod(false, corev1.PodRunning, "10.9.0.1"), pod(true, corev1.PodRunning, "10.9.0.3"), pod(false, corev1.PodSucceeded, "10.9.0.4"), pod(false, corev1.PodFailed, "10.9.0.5"), pod(false, corev1.PodPending),
	}
	want := []v1alpha1.IP{{Addr: addr("10.9.0.1")}, {Addr: addr("10.9.0.2")}}
	kit.Check(t, "pods outside the ranges",
		podsOutsideCIDRs(pods, v1alpha1.NewCIDRs(prefix("10.244.0.0/24")), addr("10.80.0.1")), want, compare)
	kit.Check(t, "an overlay of IPv6", podsOutsideCIDRs(pods, nil, addr("fd00:10:80::1")), []v1alpha1.IP{{Addr: addr("fd00::5")}}, compare)
}

// A Peering that was made for another cluster is left out and named. With others of that kind only, nothing of ours remains.
func TestDesireWithoutCopies(t *testing.T) {
	me := local{clusterID: "this", name: "n2", address: addr("10.80.0.7"), keys: overlay.Keys{1: {1}}}
	own := peering("b", 2, mapping("10.244.0.0/16", "10.20.0.0/16"), mapping("10.244.0.0/16", "10.30.0.0/16"), "10.70.0.0/18")
	copied := peering("c", 1, mapping("10.244.0.0/16", "10.244.0.0/16"), mapping("10.245.0.0/16", "10.245.0.0/16"), "10.71.0.0/18")
	own.Spec.Local.ClusterID, copied.Spec.Local.ClusterID = "this", "original"
	want := kit.Must(desire(me, []v1alpha1.Peering{own}))(t)
	for _, tt := range []struct {
		peerings []v1alpha1.Peering
		want     desired
	}{{[]v1alpha1.Peering{own, copied}, want}, {[]v1alpha1.Peering{copied}, desired{}}} {
		got, err := desire(me, tt.peerings)
		kit.ErrorIf(t, err == nil || !strings.Contains(err.Error(), "peering c: it was made for another cluster, with the ID original"), "got %v", err)
		kit.ErrorIf(t, !reflect.DeepEqual(got, tt.want), "got %+v, want %+v", got, tt.want)
	}
}
