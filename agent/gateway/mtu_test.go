package gateway

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/tunnel"
)

func TestMTU(t *testing.T) {
	v6 := addr("2001:db8::1")
	tests := []struct {
		name  string
		local local
		role  v1alpha1.Role
		// nodes are what nodes n0, n1, ... say that they can carry, underlays the
		// MTUs of their links.
		nodes, underlays []int32
		// source is the nodes' outer address, and of the overlay's family; IPv4 by
		// default.
		source   string
		capacity int
		// mtu is given where it is not the capacity.
		mtu int
	}{
		{name: "IPv4", local: local{underlayMTU: 1500}, capacity: 1440},
		{name: "jumbo", local: local{underlayMTU: 9000}, capacity: 8940},
		{name: "IPv6 endpoint that is to be tried", local: local{underlayMTU: 1500, endpoint: netip.AddrPortFrom(v6, 1)}, capacity: 1420},
		{name: "IPv4 endpoint written as IPv6", local: local{underlayMTU: 1500, endpoint: netip.MustParseAddrPort("[::ffff:192.0.2.1]:1")}, capacity: 1440},
		{name: "a server that was called over IPv6", role: v1alpha1.Server, local: local{underlayMTU: 1400, path: path{overhead: tunnel.OverheadIPv6}}, capacity: 1320},
		{name: "the endpoint in use counts, not the one to be tried", local: local{underlayMTU: 1500, endpoint: netip.AddrPortFrom(v6, 1), path: path{overhead: tunnel.OverheadIPv4}}, capacity: 1440},
		{name: "the way to the endpoint is narrower than the pod's link", local: local{underlayMTU: 1500, path: path{overhead: tunnel.OverheadIPv4, mtu: 1400}}, capacity: 1340},
		{name: "the same over IPv6", local: local{underlayMTU: 1500, path: path{overhead: tunnel.OverheadIPv6, mtu: 1400}}, nodes: []int32{1450}, capacity: 1320},
		{name: "the way to the endpoint is wider", local: local{underlayMTU: 1500, path: path{overhead: tunnel.OverheadIPv4, mtu: 9000}}, capacity: 1440},
		{name: "jumbo pods, but not the node", local: local{underlayMTU: 9000, node: "n0"}, nodes: []int32{8950}, underlays: []int32{1500}, capacity: 1440},
		{name: "another node's link does not count for a client", local: local{underlayMTU: 9000, node: "x"}, role: v1alpha1.Client, nodes: []int32{8950}, underlays: []int32{1500}, capacity: 8940},
		{name: "but for a server, which may be called by it", local: local{underlayMTU: 9000, node: "x"}, role: v1alpha1.Server, nodes: []int32{8950}, underlays: []int32{1500}, capacity: 1440},
		{name: "a node that does not know its link", local: local{underlayMTU: 1500, node: "n0"}, role: v1alpha1.Server, nodes: []int32{1450}, underlays: []int32{0}, capacity: 1440},
		{name: "the smallest node", local: local{underlayMTU: 1500}, nodes: []int32{1450, 1330, 1400}, capacity: 1330},
		{name: "a node that does not know its way", local: local{underlayMTU: 1500}, nodes: []int32{0, 1400}, capacity: 1400},
		{name: "an overlay over IPv6", local: local{underlayMTU: 1500}, source: "2001:db8::2", nodes: []int32{0}, capacity: 1430},
		{name: "the peer can do less", local: local{underlayMTU: 1500, path: path{agreed: 1300}}, nodes: []int32{1400}, capacity: 1400, mtu: 1300},
		{name: "the peer can do more", local: local{underlayMTU: 1500, path: path{agreed: 8000}}, capacity: 1440},
		{name: "nothing fits", local: local{underlayMTU: 80}, capacity: 68},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.role == "" {
				tt.role = v1alpha1.Client
			}
			if tt.source == "" {
				tt.source = "172.18.0.2"
			}
			if tt.mtu == 0 {
				tt.mtu = tt.capacity
			}
			p, overlayAddr := peering(t, tt.role, newKey(t)), "10.80.0.%d"
			if addr(tt.source).Is6() {
				p.Spec.Local.InternalCIDR, p.Spec.Local.ExternalCIDR = cidr("fd00:10:80::/115"), cidr("fd00:10:60::/114")
				overlayAddr = "fd00:10:80::%d"
			}
			var nodes []v1alpha1.NodeNetwork
			for i, mtu := range tt.nodes {
				n := node(fmt.Sprintf("n%d", i), fmt.Sprintf(overlayAddr, i+1), tt.source, mtu)
				if i < len(tt.underlays) {
					n.Status.UnderlayMTU = tt.underlays[i]
				}
				nodes = append(nodes, n)
			}
			d, err := desire(tt.local, p, nodes)
			if err != nil {
				t.Fatal(err)
			}
			if d.capacity != tt.capacity || d.mtu != tt.mtu || d.tunnel.MTU != tt.mtu {
				t.Errorf("want %d, %d; got %d, %d and %d of the tunnel", tt.capacity, tt.mtu, d.capacity, d.mtu, d.tunnel.MTU)
			}
			if len(d.overlay.Links) != len(nodes) {
				t.Errorf("%d links to %d nodes", len(d.overlay.Links), len(nodes))
			}
			for _, l := range d.overlay.Links {
				if l.MTU != tt.mtu {
					t.Errorf("link %s has %d", l.Name, l.MTU)
				}
			}
		})
	}
}
