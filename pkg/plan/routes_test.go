package plan

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/kit"
)

// Routes of a node that claim everything are left out and named: those wider than /8, and all if they leave no room. A
// node with many narrow routes is believed.
func TestNodeRoutes(t *testing.T) {
	for _, tt := range []struct {
		name, routes, left, named string
	}{
		{"no routes", "", "", ""},
		{"usual routes", "10.244.0.0/16 192.168.1.0/24", "", ""},
		{"as wide as allowed", "10.0.0.0/8", "", ""},
		{"one bit too wide", "10.0.0.0/7 192.168.1.0/24", "10.0.0.0/7", "10.0.0.0/7"},
		{"all addresses in halves", "0.0.0.0/1 128.0.0.0/1 10.5.0.0/16", "0.0.0.0/1 128.0.0.0/1", "0.0.0.0/1, 128.0.0.0/1"},
		{"no room for a peer", "10.0.0.0/8 100.64.0.0/10 172.16.0.0/12 192.168.0.0/16", "10.0.0.0/8 100.64.0.0/10 172.16.0.0/12 192.168.0.0/16", "10.0.0.0/8, 100.64.0.0/10, 172.16.0.0/12 and more"},
		{"both", "0.0.0.0/0 10.0.0.0/8 100.64.0.0/10 172.16.0.0/12 192.168.0.0/16", "0.0.0.0/0 10.0.0.0/8 100.64.0.0/10 172.16.0.0/12 192.168.0.0/16", "0.0.0.0/0, 10.0.0.0/8, 100.64.0.0/10 and more"},
	} {
		parse := func(s string) []netip.Prefix {
			return lo.Map(strings.Fields(s), func(r string, _ int) netip.Prefix { return netip.MustParsePrefix(r) })
		}
		n := &v1alpha1.NodeNetwork{}
		n.Name, n.Status.Routes = "n1", v1alpha1.NewCIDRs(parse(tt.routes)...)
		routes, out := NodeRoutes(n)
		kept, _ := lo.Difference(parse(tt.routes), parse(tt.left))
		kit.ErrorIf(t, !slices.Equal(routes, kept) || !slices.Equal(out, parse(tt.left)), "%s: routes %v, left out: %v", tt.name, routes, out)
		text := leftOutRoutes(n)
		if tt.named == "" {
			kit.ErrorIf(t, text != "", "%s: the message is %q", tt.name, text)
			continue
		}
		kit.ErrorIf(t, !strings.HasPrefix(text, "node n1 reports routes to "+tt.named+", which leave no room"), "%s: the message is %q", tt.name, text)
		kit.Check(t, tt.name+": messages of all nodes", (&Facts{Reports: []v1alpha1.NodeNetwork{{}, *n}}).leftOutRoutes(), []string{text})
	}
	var all []netip.Prefix // of the pools, in narrow routes
	for i := range 256 {
		all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i)}), 16))
	}
	all = append(all, netip.MustParsePrefix("192.168.0.0/16"))
	for i := range 64 {
		all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte{100, byte(64 + i)}), 16))
	}
	for i := range 16 {
		all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte{172, byte(16 + i)}), 16))
	}
	n := &v1alpha1.NodeNetwork{}
	n.Status.Routes = v1alpha1.NewCIDRs(all...)
	routes, out := NodeRoutes(n)
	kit.ErrorIf(t, len(routes) != len(all) || out != nil, "%d narrow routes, left out: %v", len(routes), out)
}
