package link_test

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/liqonet/liqonet/pkg/link"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

func open(t *testing.T, ns *netns.NS) *link.Conn {
	t.Helper()
	c := netns.In(t, ns, link.Open)
	t.Cleanup(c.Close)
	return c
}

func mac(last byte) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 0, last} }

// Ensure repairs every change to an interface, and changes nothing else. The connection belongs to the namespace where
// it was opened: all calls are made from another one.
func TestEnsure(t *testing.T) {
	ns := netns.New(t, "node")
	ns.Output(t, "ip", "link", "add", "x0", "type", "veth", "peer", "x1")
	ns.Output(t, "ip", "link", "add", "br0", "type", "bridge")
	c := open(t, ns)
	want := link.Want{
		MTU: 1400, Group: 7, MAC: mac(1), Address: netip.MustParseAddr("10.80.0.1"),
		Neighbors: map[netip.Addr]net.HardwareAddr{netip.MustParseAddr("10.80.31.254"): mac(2)},
	}
	ensure := func() []string {
		t.Helper()
		states := kit.Must(c.List())(t)
		var steps link.Steps
		if c.Ensure(&steps, states["x0"], want); steps.Err != nil {
			t.Fatal(steps.Err)
		}
		return steps.Changed
	}
	all := []string{
		"alias liqonet", "mtu 1400", "group 7", "mac", "forwarding 1", "rp_filter 2", "arp_ignore 8", "addrgenmode none", "up",
		"address 10.80.0.1", "neighbor 10.80.31.254",
	}
	kit.Check(t, "a new interface", ensure(), all)
	if again := ensure(); len(again) > 0 {
		t.Errorf("a second call changed %v", again)
	}
	states := kit.Must(c.List())(t)
	s := states["x0"]
	addresses := slices.DeleteFunc(slices.Clone(s.Addrs), func(p netip.Prefix) bool { return p == netip.MustParsePrefix("10.80.0.1/32") })
	if s.Alias != link.Alias || s.MTU != 1400 || s.Group != 7 || s.Flags&net.FlagUp == 0 || s.Forwarding != 1 || s.RPFilter != 2 || s.ARPIgnore != 8 || s.HardwareAddr.String() != mac(1).String() || len(addresses) > 0 {
		t.Errorf("it is %+v", s)
	}
	for damage, want := range map[string][]string{
		"ip link set x0 alias other":               {"alias liqonet"},
		"ip link set x0 mtu 1300":                  {"mtu 1400"},
		"ip link set x0 group 3":                   {"group 7"},
		"ip link set x0 master br0":                {"no master"},
		"ip link set x0 address 02:00:00:00:00:09": {"mac", "neighbor 10.80.31.254"},
		"ip link set x0 down":                      {"up", "neighbor 10.80.31.254"},
		"ip addr flush dev x0":                     {"address 10.80.0.1", "neighbor 10.80.31.254"},
		"ip addr add 198.51.100.7/24 dev x0":       {"no address 198.51.100.7/24"},
		"ip neigh flush nud permanent dev x0":      {"neighbor 10.80.31.254"},
		"ip neigh replace 10.80.31.254 lladdr 02:00:00:00:00:09 dev x0 nud permanent": {"neighbor 10.80.31.254"},
		"ip neigh add 10.9.9.9 lladdr 02:00:00:00:00:09 dev x0 nud permanent":         {"no neighbor 10.9.9.9"},
		"sysctl -q net.ipv4.conf.x0.forwarding=0":                                     {"forwarding 1"},
		"sysctl -q net.ipv4.conf.x0.rp_filter=1":                                      {"rp_filter 2"},
		"sysctl -q net.ipv4.conf.x0.arp_ignore=0":                                     {"arp_ignore 8"},
		"ip link set x0 addrgenmode eui64":                                            {"addrgenmode none"},
	} {
		ns.Output(t, "sh", "-ec", damage)
		kit.Check(t, damage, ensure(), want)
		if again := ensure(); len(again) > 0 {
			t.Errorf("%s: a second call changed %v", damage, again)
		}
	}
}

func TestOffload(t *testing.T) {
	a, b := netns.New(t, "a"), netns.New(t, "b")
	netns.Veth(t, a, "x0", b, "y0")
	// ethtool requests contain the interface's name, in the namespace of the connection.
	c := open(t, a)
	for _, test := range []struct {
		on   bool
		want string
	}{{true, "gro true"}, {true, ""}, {false, "gro false"}, {false, ""}} {
		s := kit.Must(c.Get("x0"))(t)
		var steps link.Steps
		c.Ensure(&steps, s, link.Want{MTU: s.MTU, Offloads: map[link.Offload]bool{link.GRO: test.on}})
		if steps.Err != nil {
			t.Fatal(steps.Err)
		}
		var got []string
		for _, what := range steps.Changed {
			if strings.HasPrefix(what, "gro") {
				got = append(got, what)
			}
		}
		kit.ErrorIf(t, strings.Join(got, " ") != test.want, "switched to %v: it changed %q, want %q", test.on, got, test.want)
	}
}

func TestGet(t *testing.T) {
	c := open(t, netns.New(t, "node"))
	if s, err := c.Get("lo"); err != nil || s.Name != "lo" {
		t.Errorf("lo is %+v, %v", s, err)
	}
	if _, err := c.Get("missing"); err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("a missing interface: %v", err)
	}
}

// Supports leaves no interface behind.
func TestSupports(t *testing.T) {
	ns := netns.New(t, "node")
	c := open(t, ns)
	for kind, want := range map[string]bool{"veth": true, "vxlan": true, "no-such-kind": false} {
		if got, err := c.Supports(kind); err != nil || got != want {
			t.Errorf("kind %s: %v, %v, want %v", kind, got, err, want)
		}
	}
	states := kit.Must(c.List())(t)
	kit.ErrorIf(t, len(states) != 1, "the interfaces are %v, want lo only", states)
}

func TestDump(t *testing.T) {
	other := errors.New("other")
	for name, test := range map[string]struct {
		errs     []error
		attempts int
		want     error
	}{
		"at once":     {nil, 1, nil},
		"interrupted": {[]error{netlink.ErrDumpInterrupted, netlink.ErrDumpInterrupted}, 3, nil},
		"for ever":    {slices.Repeat([]error{netlink.ErrDumpInterrupted}, 100), 5, netlink.ErrDumpInterrupted},
		"refused":     {[]error{other}, 1, other},
	} {
		attempts := 0
		_, err := link.Dump(func() (int, error) {
			attempts++
			if attempts <= len(test.errs) {
				return 0, test.errs[attempts-1]
			}
			return attempts, nil
		})
		kit.ErrorIf(t, attempts != test.attempts || !errors.Is(err, test.want), "%s: %d attempts, %v", name, attempts, err)
	}
}
