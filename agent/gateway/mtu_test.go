package gateway

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/test/kit"
)

func TestMTU(t *testing.T) {
	v6 := addr("2001:db8::1")
	tests := []struct {
		name  string
		local local
		role  v1alpha1.Role
		// nodes are the MTUs that nodes n0, n1, ... report, and underlays those of their links.
		nodes, underlays []int32
		capacity         int
		// mtu is set if it differs from the capacity.
		mtu int
	}{
		{name: "IPv4", local: local{underlayMTU: 1500}, capacity: 1440},
		{name: "jumbo", local: local{underlayMTU: 9000}, capacity: 8940},
		{name: "IPv6 endpoint to try", local: local{underlayMTU: 1500, endpoint: netip.AddrPortFrom(v6, 1)}, capacity: 1420},
		{name: "IPv4 endpoint written as IPv6", local: local{underlayMTU: 1500, endpoint: netip.MustParseAddrPort("[::ffff:192.0.2.1]:1")}, capacity: 1440},
		{name: "a server that was called over IPv6", role: v1alpha1.Server, local: local{underlayMTU: 1400, path: path{overhead: tunnel.OverheadIPv6}}, capacity: 1320},
		{name: "the endpoint in use counts, not the one to try", local: local{underlayMTU: 1500, endpoint: netip.AddrPortFrom(v6, 1), path: path{overhead: tunnel.OverheadIPv4}}, capacity: 1440},
		{name: "the path to the endpoint has a smaller MTU than the pod's link", local: local{underlayMTU: 1500, path: path{overhead: tunnel.OverheadIPv4, mtu: 1400}}, capacity: 1340},
		{name: "the same over IPv6", local: local{underlayMTU: 1500, path: path{overhead: tunnel.OverheadIPv6, mtu: 1400}}, nodes: []int32{1450}, capacity: 1320},
		{name: "the path to the endpoint has a larger MTU", local: local{underlayMTU: 1500, path: path{overhead: tunnel.OverheadIPv4, mtu: 9000}}, capacity: 1440},
		{name: "jumbo pods, but not the node", local: local{underlayMTU: 9000, node: "n0"}, nodes: []int32{8950}, underlays: []int32{1500}, capacity: 1440},
		{name: "another node's link does not count for a client", local: local{underlayMTU: 9000, node: "x"}, role: v1alpha1.Client, nodes: []int32{8950}, underlays: []int32{1500}, capacity: 8940},
		{name: "but for a server, which may be called by it", local: local{underlayMTU: 9000, node: "x"}, role: v1alpha1.Server, nodes: []int32{8950}, underlays: []int32{1500}, capacity: 1440},
		{name: "a node that does not know its link", local: local{underlayMTU: 1500, node: "n0"}, role: v1alpha1.Server, nodes: []int32{1450}, underlays: []int32{0}, capacity: 1440},
		{name: "the smallest node", local: local{underlayMTU: 1500}, nodes: []int32{1450, 1330, 1400}, capacity: 1330},
		{name: "a node that does not know its path", local: local{underlayMTU: 1500}, nodes: []int32{0, 1400}, capacity: 1400},
		{name: "the peer can carry less", local: local{underlayMTU: 1500, path: path{agreed: 1300}}, nodes: []int32{1400}, capacity: 1400, mtu: 1300},
		{name: "the peer can carry more", local: local{underlayMTU: 1500, path: path{agreed: 8000}}, capacity: 1440},
		{name: "nothing fits", local: local{underlayMTU: 80}, capacity: 576},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.role == "" {
				tt.role = v1alpha1.Client
			}
			if tt.mtu == 0 {
				tt.mtu = tt.capacity
			}
			p := peering(t, tt.role, newKey(t))
			var nodes []v1alpha1.NodeNetwork
			for i, mtu := range tt.nodes {
				n := node(fmt.Sprintf("n%d", i), fmt.Sprintf("10.80.0.%d", i+1), "172.18.0.2", mtu)
				if i < len(tt.underlays) {
					n.Status.UnderlayMTU = tt.underlays[i]
				}
				nodes = append(nodes, n)
			}
			d := kit.Must(desire(tt.local, p, nodes))(t)
			kit.ErrorIf(t, d.capacity != tt.capacity || d.mtu != tt.mtu || d.tunnel.MTU != tt.mtu,
				"want %d, %d; got %d, %d and %d of the tunnel", tt.capacity, tt.mtu, d.capacity, d.mtu, d.tunnel.MTU)
			kit.ErrorIf(t, len(d.overlay.Links) != len(nodes), "%d links to %d nodes", len(d.overlay.Links), len(nodes))
			for _, l := range d.overlay.Links {
				kit.ErrorIf(t, l.MTU != tt.mtu, "link %s has %d", l.Name, l.MTU)
			}
		})
	}
}

// The MTU that a peer reports causes at most one change of all nodes' links in five seconds, however the peer
// behaves. A smaller one is accepted immediately.
func TestMTUIsDamped(t *testing.T) {
	start := time.Now()
	at := func(d time.Duration) time.Time { return start.Add(d) }
	type step struct {
		at             time.Duration
		reported, want int
	}
	for name, steps := range map[string][]step{
		"the first one counts":       {{0, 0, 0}, {time.Second, 1400, 1400}},
		"less, immediately":          {{0, 1400, 1400}, {time.Minute, 1300, 1300}},
		"more, after ten seconds":    {{0, 1300, 1300}, {time.Minute, 1400, 1300}, {69 * time.Second, 1400, 1300}, {70 * time.Second, 1400, 1400}},
		"more, but not for long":     {{0, 1300, 1300}, {time.Minute, 1400, 1300}, {69 * time.Second, 1300, 1300}, {71 * time.Second, 1400, 1300}, {80 * time.Second, 1400, 1300}, {81 * time.Second, 1400, 1400}},
		"less and less":              {{0, 1400, 1400}, {time.Second, 1399, 1400}, {2 * time.Second, 1398, 1400}, {5 * time.Second, 1397, 1397}, {6 * time.Second, 1396, 1397}, {10 * time.Second, 1396, 1396}},
		"too little for any host":    {{0, 1400, 1400}, {time.Minute, 1, 576}},
		"too little, from the start": {{0, 68, 576}},
		"no longer reported":         {{0, 1400, 1400}, {time.Minute, 0, 1400}},
	} {
		var u dampedMTU
		for _, s := range steps {
			if got := u.update(s.reported, at(s.at)); got != s.want {
				t.Errorf("%s: after %s, with %d reported, %d is accepted, want %d", name, s.at, s.reported, got, s.want)
			}
		}
	}
	// This peer reports another MTU each time.
	r := rand.New(rand.NewPCG(1, 2))
	for kind, say := range map[string]func(i int) int{
		"it alternates": func(i int) int { return 1400 - i%2 },
		"at random":     func(int) int { return r.IntN(9000) },
		"ever less":     func(i int) int { return 9000 - i },
	} {
		var u dampedMTU
		before, changed, last := u.update(say(0), start), 0, start
		for i := 1; i < 6000; i++ { // ten minutes
			now := at(time.Duration(i) * 100 * time.Millisecond)
			if got := u.update(say(i), now); got != before {
				if changed++; now.Sub(last) < agreeGap {
					t.Errorf("%s: changed %s after the previous change", kind, now.Sub(last))
				}
				before, last = got, now
			}
		}
		kit.ErrorIf(t, changed > 120 || before < 576, "%s: %d changes in ten minutes, the last one to %d", kind, changed, before)
	}
}

// One node's report neither reduces the MTU of others below a bound, nor decides how often it changes.
func TestOneNodeDoesNotShrinkAll(t *testing.T) {
	me := local{key: newKey(t), node: "n1", underlay: "eth0", underlayMTU: 1500, endpoint: netip.MustParseAddrPort("192.0.2.9:30001")}
	for role, mtu := range map[v1alpha1.Role]int{v1alpha1.Client: 1440, v1alpha1.Server: 1440} {
		p := peering(t, role, newKey(t))
		for _, tt := range []struct {
			link, underlay int32
			want           int
			out            bool
		}{
			{0, 0, mtu, false},
			{1450, 1500, mtu, false},
			{1300, 1500, 1300, false},
			{1100, 1500, 1100, false},
			{1099, 1500, mtu, true},
			{1, 1500, mtu, true},
			{1450, 1279, mtu, true},
			{1450, 1, mtu, true},
			{1000000, 1000000, mtu, false},
		} {
			small := node("n2", "10.80.0.2", "172.18.0.3", tt.link, "10.244.1.0/24")
			small.Status.UnderlayMTU = tt.underlay
			nodes := []v1alpha1.NodeNetwork{node("n1", "10.80.0.1", "172.18.0.2", 1450, "10.244.0.0/24"), small}
			d := kit.Must(desire(me, p, nodes))(t)
			want := lo.Ternary(role == v1alpha1.Server && tt.underlay > 0 && !tt.out, min(tt.want, int(tt.underlay)-tunnel.OverheadIPv4), tt.want)
			kit.ErrorIf(t, d.mtu != want, "%s: %+v: the MTU is %d, want %d", role, tt, d.mtu, want)
			degraded := strings.Contains(degradedCondition(p, nodes), "left out, with an MTU below 1280 bytes, or below 1100 bytes to a gateway: node n2")
			kit.ErrorIf(t, degraded != tt.out || len(routesOf(d, "loqn2")) > 0 == tt.out, "%s: %+v: left out is not %t: %q", role, tt, tt.out, degradedCondition(p, nodes))
		}
	}
	// What the nodes report counts only after damping.
	me.path.nodes = 1400
	d := kit.Must(desire(me, peering(t, v1alpha1.Client, newKey(t)), []v1alpha1.NodeNetwork{node("n2", "10.80.0.2", "172.18.0.3", 1200)}))(t)
	kit.ErrorIf(t, d.mtu != 1400 || d.nodesMTU != 1200, "the MTU is %d, and %d is reported", d.mtu, d.nodesMTU)
	a := &agent{local: me}
	one, two := node("n1", "10.80.0.1", "172.18.0.2", 1450, "10.244.0.0/24"), node("n2", "10.80.0.2", "172.18.0.3", 1200, "10.244.0.0/24")
	d = kit.Must(a.desire(t.Context(), peering(t, v1alpha1.Client, newKey(t)), []v1alpha1.NodeNetwork{one, two}))(t)
	kit.ErrorIf(t, d.mtu != 1400 || d.nodesMTU != 0 || a.local.path.nodes != 1400 || a.measurements.reportedMTU != 1200, "the MTU is %d, and %+v", d.mtu, a.measurements)
	kit.ErrorIf(t, !strings.Contains(a.conditions.degraded, "also reports 10.244.0.0/24"), "the condition says %q", a.conditions.degraded)
	a = &agent{}
	a.measurements.reportedMTU = 1400
	a.measurePath()
	changes := 0
	for i := range 100 {
		a.measurements.reportedMTU = 1300 + i%2
		if a.measurePath() {
			changes++
		}
	}
	kit.ErrorIf(t, a.local.path.nodes != 1400 || changes > 0, "after %d changes %d is accepted", changes, a.local.path.nodes)
}
