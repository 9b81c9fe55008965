package overlay_test

import (
	"strings"
	"testing"

	"github.com/liqonet/liqonet/pkg/overlay"
)

// TestIPv6 tests links, routes and rules for IPv6, over IPv6: what was applied is recognized and removed.
func TestIPv6(t *testing.T) {
	f := open(t)
	f.ns.Sysctl(t, "ipv6/conf/eth0/disable_ipv6", "0")
	f.run("ip addr add 2001:db8::1/64 dev eth0 nodad")
	self, gateway := addr("fd00:10:80::1"), addr("fd00:10:80::1ffe")
	state := overlay.State{
		Links: []overlay.Link{{
			Name: "loq0-0", Kind: overlay.VXLAN, VNI: 7, Local: self, Peer: gateway,
			LocalMAC: overlay.MAC{2, 1}, PeerMAC: overlay.MAC{2, 2}, Remote: addr("2001:db8::2"), MTU: 1400,
		}},
		Routes: []overlay.Route{
			{Table: overlay.Table, Dst: prefix("fd00:10:80::1ffe/128"), Dev: "loq0-0", Src: self},
			{Table: overlay.Table, Dst: prefix("fd00:20::/48"), Dev: "loq0-0", Via: gateway, Src: self, MTU: 1340, Metric: 100},
			{Table: overlay.Table, Dst: prefix("fd00:20::/48"), Unreachable: true, Metric: 4096},
			{Table: overlay.InboundTable, Dst: prefix("::/0"), Unreachable: true, Metric: 4096},
		},
		Rules: []overlay.Rule{{Table: overlay.Table}, {IIF: "wg0", Table: overlay.InboundTable}},
	}
	if changes := f.apply(state); len(changes) == 0 {
		t.Error("nothing was applied")
	}
	if changes := f.apply(state); changes != nil {
		t.Errorf("a second apply changed %q", changes)
	}
	if rules := f.run("ip -6 rule"); strings.Count(rules, "90:") != 2 {
		t.Errorf("rules:\n%s", rules)
	}
	if route := f.run("ip route get fd00:20::5"); !strings.Contains(route, "dev loq0-0") || !strings.Contains(route, "src fd00:10:80::1") {
		t.Errorf("to the peer: %s", route)
	}
	if changes := f.apply(overlay.State{}); len(changes) == 0 {
		t.Error("nothing was removed")
	}
	if left := f.run("ip -6 route show table all; ip -6 rule; ip link"); strings.Contains(left, "27761") || strings.Contains(left, "loq0-0") {
		t.Errorf("what is left:\n%s", left)
	}
}
