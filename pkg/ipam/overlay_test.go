package ipam_test

import (
	"net/netip"
	"testing"
	"testing/quick"

	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/test/kit"
)

func TestNumbers(t *testing.T) {
	internal := pfx("10.80.32.0/19")
	for _, tc := range []struct {
		name string
		f    func(netip.Prefix, int) (netip.Addr, error)
		n    int
		want string
	}{
		{"first node", ipam.NodeAddr, 1, "10.80.32.1"},
		{"last node", ipam.NodeAddr, 6143, "10.80.55.255"},
		{"node 0", ipam.NodeAddr, 0, ""},
		{"node 6144", ipam.NodeAddr, 6144, ""},
		{"first gateway", ipam.GatewayAddr, 0, "10.80.63.254"},
		{"last gateway", ipam.GatewayAddr, 2043, "10.80.56.3"},
		{"gateway -1", ipam.GatewayAddr, -1, ""},
		{"gateway 2047", ipam.GatewayAddr, 2047, ""},
		{"first node of IPv6", of6(ipam.NodeAddr), 1, "fd00:10:80::2001"},
		{"last node of IPv6", of6(ipam.NodeAddr), 6143, "fd00:10:80::37ff"},
		{"first gateway of IPv6", of6(ipam.GatewayAddr), 0, "fd00:10:80::3ffe"},
	} {
		got, err := tc.f(internal, tc.n)
		kit.ErrorIf(t, (err != nil) != (tc.want == "") || (err == nil && got.String() != tc.want), "%s: %s, %v", tc.name, got, err)
	}
	for _, bad := range []string{"10.80.0.0/18", "10.80.0.1/19", "fd00::/19", "fd00::1/115"} {
		a, err := ipam.NodeAddr(pfx(bad), 1)
		kit.ErrorIf(t, err == nil, "internal CIDR %s gives %s", bad, a)
	}
	for _, tc := range []struct{ index, plane, want int }{
		{0, 0, 0}, {0, 3, 3}, {510, 3, 2043}, {511, 0, -1}, {-1, 0, -1}, {0, 4, -1}, {512, 0, -1}, {1, -1, -1},
	} {
		got, err := ipam.GatewayNumber(tc.index, tc.plane)
		kit.ErrorIf(t, (err != nil) != (tc.want < 0) || (err == nil && got != tc.want),
			"peering %d plane %d: %d, %v", tc.index, tc.plane, got, err)
	}
	_, err := ipam.VNI(2047, 1)
	kit.ErrorIf(t, err == nil, "gateway 2047 has a VNI")
}

// of6 returns f for an IPv6 range.
func of6(f func(netip.Prefix, int) (netip.Addr, error)) func(netip.Prefix, int) (netip.Addr, error) {
	return func(_ netip.Prefix, n int) (netip.Addr, error) { return f(pfx("fd00:10:80::2000/115"), n) }
}

// Nodes' addresses and numbers are inverse, each gateway has its own address, different from any node's, and no two pairs
// share a VNI.
func TestNumbersProperties(t *testing.T) {
	for _, internal := range []string{"10.80.32.0/19", "fd00:10:80::a000/115"} {
		t.Run(internal, func(t *testing.T) { testNumbersProperties(t, pfx(internal)) })
	}
}

func testNumbersProperties(t *testing.T, internal netip.Prefix) {
	seen, gateways := map[uint32][2]int{}, map[netip.Addr]int{}
	property := func(a, b uint16) bool {
		n, g := int(a)%ipam.MaxNode+1, int(b)%(ipam.MaxGateway+1)
		node, err1 := ipam.NodeAddr(internal, n)
		gateway, err2 := ipam.GatewayAddr(internal, g)
		vni, err3 := ipam.VNI(g, n)
		if err1 != nil || err2 != nil || err3 != nil || vni >= 1<<24 {
			return false
		}
		n2, err1 := ipam.NodeNumber(internal, node)
		_, notNode := ipam.NodeNumber(internal, gateway)
		pair, paired := seen[vni]
		seen[vni] = [2]int{g, n}
		other, known := gateways[gateway]
		gateways[gateway] = g
		return err1 == nil && n2 == n && notNode != nil && (!known || other == g) &&
			internal.Contains(node) && internal.Contains(gateway) && (!paired || pair == [2]int{g, n})
	}
	kit.CheckNoError(t, quick.Check(property, &quick.Config{MaxCount: 20_000}))
}

// Each host has its own address in the upper half of the external range, and gets the same one again.
func TestHosts(t *testing.T) {
	external := netip.MustParsePrefix("10.70.0.0/18")
	taken := map[int]bool{}
	for i := range 2000 {
		host := netip.AddrFrom4([4]byte{192, 168, byte(i >> 8), byte(i)})
		n := kit.Must(ipam.HostNumber(host, func(n int) bool { return taken[n] }))(t)
		if again, err := ipam.HostNumber(host, func(n int) bool { return taken[n] }); err != nil || again != n {
			t.Errorf("%s: %d, then %d (%v)", host, n, again, err)
		}
		kit.ErrorIf(t, taken[n], "%d is allocated twice", n)
		taken[n] = true
		addr, err := ipam.HostAddr(external, n)
		kit.ErrorIf(t, err != nil || !netip.MustParsePrefix("10.70.32.0/19").Contains(addr), "number %d: %s, %v", n, addr, err)
	}
	_, err := ipam.HostNumber(netip.MustParseAddr("192.0.2.1"), func(int) bool { return true })
	kit.ErrorIf(t, err == nil, "no error although all are taken")
	for n, ok := range map[int]bool{0: false, 1: true, ipam.MaxHost: true, ipam.MaxHost + 1: false} {
		_, err := ipam.HostAddr(external, n)
		kit.ErrorIf(t, (err == nil) != ok, "number %d: %v", n, err)
	}
}
