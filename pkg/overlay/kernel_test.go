package overlay_test

import (
	"context"
	"errors"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

// quiet is how long no signal may come.
const quiet = 200 * time.Millisecond

var addr, prefix = netip.MustParseAddr, netip.MustParsePrefix

// wanted is the state of a node with one gateway and one peer.
func wanted() overlay.State {
	return overlay.State{
		Links: []overlay.Link{{
			Name: "loq0-0", Kind: overlay.VXLAN, VNI: 7, Local: addr("10.80.0.1"), Peer: addr("10.80.31.254"),
			LocalMAC: overlay.MAC{2, 1}, PeerMAC: overlay.MAC{2, 2}, Remote: addr("192.0.2.2"), MTU: 1400,
		}},
		Routes: []overlay.Route{
			{Table: overlay.Table, Dst: prefix("10.80.31.254/32"), Dev: "loq0-0", Src: addr("10.80.0.1")},
			{
				Table: overlay.Table, Dst: prefix("10.61.0.0/16"), Dev: "loq0-0", Via: addr("10.80.31.254"),
				Src: addr("10.80.0.1"), MTU: 1340,
			},
			{Table: overlay.Table, Dst: prefix("10.61.0.0/16"), Unreachable: true, Metric: 4000},
			{Table: overlay.InboundTable, Dst: prefix("0.0.0.0/0"), Unreachable: true},
		},
		Rules:  []overlay.Rule{{Table: overlay.Table}, {IIF: "wg0", Table: overlay.InboundTable}},
		Bypass: []netip.AddrPort{netip.MustParseAddrPort("10.244.1.9:51840"), netip.MustParseAddrPort("192.0.2.1:0")},
	}
}

type fixture struct {
	t      *testing.T
	ns     *netns.NS
	kernel *overlay.Kernel
}

func open(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, ns: netns.New(t, "node")}
	other := netns.New(t, "other")
	// A link-local address of eth0 would change by itself, because it is tentative first.
	f.ns.Sysctl(t, "ipv6/conf/default/addr_gen_mode", "1")
	netns.Veth(t, f.ns, "eth0", other, "eth0")
	// Its link-local address would be added while a test checks for changes.
	f.ns.Sysctl(t, "ipv6/conf/eth0/disable_ipv6", "1")
	f.ns.Addr(t, "eth0", prefix("192.0.2.1/24"))
	f.kernel = netns.In(t, f.ns, overlay.New)
	t.Cleanup(f.kernel.Close)
	return f
}

func (f *fixture) apply(want overlay.State) []string {
	f.t.Helper()
	changes, err := f.kernel.Apply(context.Background(), want)
	kit.NoError(f.t, err, "apply")
	return changes
}

func (f *fixture) run(command string) string {
	f.t.Helper()
	return f.ns.Output(f.t, "sh", "-ec", command)
}

// all returns everything that Apply could change.
func (f *fixture) all() string {
	return f.run("ip -d link; sysctl net.ipv4.conf.loq0-0.forwarding net.ipv4.conf.loq0-0.rp_filter 2>/dev/null || true; ip addr; ip neigh; bridge fdb show; ip route show table all; ip -6 route show table all; ip rule; ip -6 rule")
}

func TestApply(t *testing.T) {
	f := open(t)
	before := f.all()
	got := f.apply(wanted())
	want := []string{
		"added link loq0-0 (vxlan id 7 remote 192.0.2.2)",
		"added route 10.80.31.254/32 dev loq0-0 table 27761 src 10.80.0.1",
		"added route 10.61.0.0/16 via 10.80.31.254 dev loq0-0 table 27761 src 10.80.0.1 mtu 1340",
		"added route unreachable 10.61.0.0/16 table 27761 metric 4000",
		"added route unreachable 0.0.0.0/0 table 27762",
		"added rule 91: nop",
		"added rule 89: from 10.244.1.9/32 udp sport 51840-51855 goto 91",
		"added rule 89: from 192.0.2.1/32 goto 91",
		"added rule 90: lookup 27761",
		"added rule 90: iif wg0 lookup 27762",
	}
	kit.Check(t, "changes", got, want)
	applied := f.all()
	for _, part := range []string{
		"alias liqonet", "nolearning", "02:01:00:00:00:00", "addrgenmode none", "inet 10.80.0.1/32",
		"10.80.31.254 dev loq0-0 lladdr 02:02:00:00:00:00 PERMANENT",
	} {
		kit.ErrorIf(t, !strings.Contains(applied, part), "the kernel lacks %q:\n%s", part, applied)
	}
	kit.ErrorIf(t, strings.Contains(f.run("ip addr show loq0-0"), "inet6"), "the link has an IPv6 address")
	if got := f.run("cat /proc/sys/net/ipv4/conf/loq0-0/forwarding /proc/sys/net/ipv4/conf/loq0-0/rp_filter"); got != "1\n2\n" {
		t.Errorf("forwarding and rp_filter are %q", got)
	}

	signals := f.monitor()
	if got := f.apply(wanted()); got != nil {
		t.Errorf("a second apply changed %q", got)
	}
	kit.Silent(t, signals, quiet, "a second apply")

	kit.NoError(t, kit.Err(f.kernel.Apply(context.Background(), overlay.State{})))
	kit.Check(t, "not as before", f.all(), before)
}

// If nothing differs, Apply does not even request a change. The kernel lets everyone read, but would refuse a change by
// a thread without CAP_NET_ADMIN.
func TestApplyAsksForNothing(t *testing.T) {
	f := open(t)
	f.apply(wanted())
	if changes, err := f.powerless(wanted()); err != nil || changes != nil {
		t.Errorf("changes %v, %v", changes, err)
	}
	for _, damage := range []string{"ip link set loq0-0 mtu 1300", "ip rule del priority 90 lookup 27761", "ip route flush table 27762"} {
		f.run(damage)
		if _, err := f.powerless(wanted()); !errors.Is(err, unix.EPERM) {
			t.Errorf("%s: want an error because the kernel refuses the repair, got %v", damage, err)
		}
		f.apply(wanted())
	}
}

// powerless applies a state without CAP_NET_ADMIN.
func (f *fixture) powerless(want overlay.State) (changes []string, err error) {
	f.ns.Do(f.t, func() error { // on a thread that ends with the function
		if dropErr := dropNetAdmin(); dropErr != nil {
			return dropErr
		}
		changes, err = f.kernel.Apply(context.Background(), want)
		return nil
	})
	return changes, err
}

// dropNetAdmin drops CAP_NET_ADMIN from the thread.
func dropNetAdmin() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return err
	}
	data[0].Effective &^= 1 << unix.CAP_NET_ADMIN
	data[0].Permitted &^= 1 << unix.CAP_NET_ADMIN
	return unix.Capset(&header, &data[0])
}

func (f *fixture) monitor() <-chan struct{} {
	f.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	f.t.Cleanup(cancel)
	signals := notify.NewSignal()
	f.ns.Do(f.t, func() error { return f.kernel.Monitor(ctx, signals) })
	return signals
}

func TestRepair(t *testing.T) {
	f := open(t)
	f.apply(wanted())
	before := f.all()
	signals := f.monitor()
	for _, damage := range []string{
		"ip link del loq0-0",
		"ip link set loq0-0 down",
		"ip link set loq0-0 address 02:00:00:00:00:01",
		"ip addr del 10.80.0.1/32 dev loq0-0",
		"ip neigh del 10.80.31.254 dev loq0-0",
		"ip neigh replace 10.80.31.254 lladdr 02:00:00:00:00:02 dev loq0-0 nud reachable",
		"ip link set loq0-0 type vxlan remote 192.0.2.9",
		"ip link set loq0-0 type vxlan remote 192.0.2.9; bridge fdb del 00:00:00:00:00:00 dev loq0-0 dst 192.0.2.9",
		"bridge fdb del 00:00:00:00:00:00 dev loq0-0 dst 192.0.2.2",
		"bridge fdb append 00:00:00:00:00:00 dev loq0-0 dst 192.0.2.9",
		"bridge fdb append 00:00:00:00:00:00 dev loq0-0 dst 192.0.2.9; bridge fdb del 00:00:00:00:00:00 dev loq0-0 dst 192.0.2.2",
		"bridge fdb add 02:6c:0a:50:1f:fe dev loq0-0 dst 192.0.2.9",
		"bridge fdb add 02:6c:0a:50:1f:fe dev loq0-0 dst 192.0.2.9 vni 9",
		"ip link set loq0-0 down; ip link set loq0-0 name loqx; ip link set loqx up",
		"ip link set loq0-0 down; ip link set loq0-0 name other0; ip link set other0 up",
		"ip link set loq0-0 alias ''",
		"ip link set loq0-0 group default",
		"echo 0 > /proc/sys/net/ipv4/conf/loq0-0/forwarding",
		"ip link set loq0-0 addrgenmode eui64",
		"ethtool -K loq0-0 gro off",
		"ip route del 10.61.0.0/16 table 27761 metric 0",
		"ip route flush table 27762",
		"ip route replace 10.61.0.0/16 via 10.80.31.254 dev loq0-0 onlink table 27761 proto 108",
		"ip route append 10.61.0.0/16 dev eth0 table 27761 proto 108",
		"ip route prepend 10.61.0.0/16 dev eth0 table 27761 proto 108",
		"ip route add 10.99.0.0/16 dev eth0 table 27761 proto 108",
		"ip rule del priority 90",
		"ip rule del priority 89",
		"ip rule del priority 91",
		"ip rule add priority 89 from 10.244.1.8 goto 91 protocol 108",
		"ip rule add priority 90 from 10.1.1.1 lookup 27761 protocol 108",
		"ip link del loq0-0; ip link add loq0-0 type vxlan id 8 remote 192.0.2.2 dstport 6094; ip link set loq0-0 alias liqonet",
	} {
		t.Run(damage, func(t *testing.T) {
			g := &fixture{t: t, ns: f.ns, kernel: f.kernel}
			g.run(damage)
			kit.Signaled(t, signals, damage)
			if got := g.apply(wanted()); got == nil {
				t.Error("nothing was repaired")
			}
			kit.Check(t, "not as before", normalize(g.all()), normalize(before))
			if got := g.apply(wanted()); got != nil {
				t.Errorf("a second apply changed %q", got)
			}
			for len(signals) > 0 {
				<-signals
			}
		})
	}
	// A port of a bridge, while the bridge exists.
	f.run("ip link add br9 type bridge; ip link set loq0-0 master br9")
	kit.Signaled(t, signals, "a port of a bridge")
	if got := f.apply(wanted()); len(got) != 1 || !strings.Contains(got[0], "no master") {
		t.Errorf("a port of a bridge: repaired %q", got)
	}
}

// normalize removes the differences between an interface and its re-created one, and the order of routes and rules.
func normalize(s string) string {
	return sortLines(regexp.MustCompile(`(?m)^.*(loq0-0: <)`).ReplaceAllString(s, "$1"))
}

func sortLines(s string) string {
	return strings.Join(slices.Sorted(strings.SplitSeq(s, "\n")), "\n")
}

func TestForeign(t *testing.T) {
	t.Run("things with our names are left alone", func(t *testing.T) {
		f := open(t)
		f.run(`ip link add loqfoo type bridge; ip link add loq0-0 type bridge; ip link set loq0-0 alias theirs
			ip route add 10.61.0.0/16 dev eth0 table 27761; ip route add 10.62.0.0/16 dev eth0 table 100 proto 108
			ip rule add priority 90 from 10.1.1.1 lookup 100; ip rule add priority 91 from 10.1.1.1 lookup 27761`)
		before := f.all()
		_, err := f.kernel.Apply(context.Background(), overlay.State{})
		if err == nil || !strings.Contains(err.Error(), "foreign route in our table 27761") ||
			!strings.Contains(err.Error(), "foreign rule with our table 27761") {
			t.Errorf("purge: %v", err)
		}
		expectPartial(t, err)
		kit.Check(t, "objects of others after purge", f.all(), before)
		f.run("ip link set loq0-0 up; ip addr add 10.80.0.1/32 dev eth0")
		_, err = f.kernel.Apply(context.Background(), wanted())
		kit.ErrorIf(t, err == nil || !strings.Contains(err.Error(), `link "loq0-0": there is an interface of this name that is not ours`),
			"apply: %v", err)
		expectPartial(t, err, "loq0-0")
		if routes := f.run("ip route show table 27761"); strings.Contains(routes, "loq0-0") || !strings.Contains(routes, "unreachable 10.61.0.0/16") {
			t.Errorf("packets to the peer are not rejected here:\n%s", routes)
		}
	})
	t.Run("churn of others is not signalled", func(t *testing.T) {
		f := open(t)
		f.apply(wanted())
		signals := f.monitor()
		f.run(`ip link add br0 type bridge; ip link set br0 up; ip addr add 10.5.0.1/32 dev br0; ip route add 10.5.0.2/32 dev br0
			ip neigh add 10.5.0.2 lladdr 02:00:00:00:00:02 dev br0; ip rule add priority 5000 lookup 100; ip route del 10.5.0.2/32 dev br0`)
		kit.Silent(t, signals, quiet, "a foreign change")
		f.run("ip route add 10.6.0.0/16 dev br0")
		kit.Signaled(t, signals, "a subnet")
		f.run("ip rule add priority 89 from 10.1.1.1 goto 91; ip rule del priority 89 from 10.1.1.1")
		kit.Silent(t, signals, quiet, "a rule of others")
		f.run("ip link set br0 down") // the kernel does not report the routes that it removes with a link
		kit.Silent(t, signals, quiet, "a link of others")
		f.run("ip link set loq0-0 down")
		kit.Signaled(t, signals, "a change of ours")
	})
	t.Run("neighbors of the node's own link are not signalled, its MTU is", func(t *testing.T) {
		f := open(t)
		f.apply(wanted())
		ctx, cancel := context.WithCancel(context.Background())
		t.Cleanup(cancel)
		signals := notify.NewSignal()
		f.ns.Do(t, func() error { return f.kernel.Monitor(ctx, signals, "eth0") })
		f.run("ip neigh add 192.0.2.7 lladdr 02:00:00:00:00:02 dev eth0; ip neigh del 192.0.2.7 dev eth0")
		kit.Silent(t, signals, quiet, "a neighbor of eth0")
		f.run("ip link set eth0 mtu 1400")
		kit.Signaled(t, signals, "the MTU of eth0")
		f.run("ip neigh del 10.80.31.254 dev loq0-0")
		kit.Signaled(t, signals, "a neighbor of loq0-0")
	})
}

// Neighbors that the kernel learns from packets cause no signal. A permanent one that becomes a learned one does.
func TestLearnedNeighborsAreNoNews(t *testing.T) {
	f := open(t)
	f.apply(wanted())
	signals := f.monitor()
	f.run(`ip neigh add 10.80.31.9 lladdr 02:00:00:00:00:09 dev loq0-0 nud stale; ip neigh change 10.80.31.9 lladdr 02:00:00:00:00:08 dev loq0-0 nud reachable
		ip neigh del 10.80.31.9 dev loq0-0`)
	kit.Silent(t, signals, quiet, "a learned neighbor")
	f.run("ip neigh change 10.80.31.254 dev loq0-0 nud stale")
	kit.Signaled(t, signals, "a permanent neighbor that no longer is permanent")
	f.apply(wanted())
	kit.Signaled(t, signals, "the repair")
	f.run("ip neigh del 10.80.31.254 dev loq0-0")
	kit.Signaled(t, signals, "a deleted permanent neighbor")
}

// expectPartial checks that an error means that everything except these links is as wanted.
func expectPartial(t *testing.T, err error, links ...string) {
	t.Helper()
	var partial *overlay.PartialError
	if !errors.As(err, &partial) || partial.RemovalFailed || !slices.Equal(partial.Links, links) {
		t.Errorf("want an error about the links %v, got %+v", links, partial)
	}
}

// The error of Apply shows whether it is about links, about failed removals, or about everything.
func TestPartial(t *testing.T) {
	f := open(t)
	f.apply(wanted())
	powerless := func(want overlay.State) error { return kit.Err(f.powerless(want)) }
	var partial *overlay.PartialError
	if err := powerless(overlay.State{}); !errors.As(err, &partial) || !partial.RemovalFailed || len(partial.Links) > 0 {
		t.Errorf("want an error about failed removals, got %v", err)
	}
	f.run("ip link del loq0-0")
	expectPartial(t, powerless(wanted()), "loq0-0")
	f.run("ip rule del priority 90 lookup 27761")
	if err := powerless(wanted()); !errors.Is(err, unix.EPERM) || errors.As(err, &partial) {
		t.Errorf("want an error about everything, got %v", err)
	}
}

func TestChange(t *testing.T) {
	f := open(t)
	f.apply(wanted())
	index := f.run("ip -o link show loq0-0 | cut -d: -f1")
	w := wanted()
	w.Links[0].Remote, w.Links[0].MTU = addr("192.0.2.3"), 1350
	kit.Check(t, "changes", f.apply(w), []string{"changed link loq0-0: remote 192.0.2.3, mtu 1350"})
	if got := f.run("ip -o link show loq0-0 | cut -d: -f1"); got != index {
		t.Error("the link was re-created")
	}
	if got := f.apply(w); got != nil {
		t.Errorf("a second apply changed %q", got)
	}
	// A second plane: the route moves to it in one step.
	w.Links = append(w.Links, overlay.Link{
		Name: "loq0-1", Kind: overlay.VXLAN, VNI: 8, Local: addr("10.80.0.1"), Peer: addr("10.80.31.253"),
		LocalMAC: overlay.MAC{2, 3}, PeerMAC: overlay.MAC{2, 4}, Remote: addr("192.0.2.4"), MTU: 1400,
	})
	w.Routes[1].Dev, w.Routes[1].Via = "loq0-1", addr("10.80.31.253")
	got := f.apply(w)
	want := []string{
		"added link loq0-1 (vxlan id 8 remote 192.0.2.4)",
		"replaced route 10.61.0.0/16 via 10.80.31.253 dev loq0-1 table 27761 src 10.80.0.1 mtu 1340: " +
			"was 10.61.0.0/16 via 10.80.31.254 dev loq0-0 table 27761 src 10.80.0.1 mtu 1340",
	}
	kit.Check(t, "changes", got, want)
	// Links that swap their identifiers conflict with each other.
	w.Links[0].VNI, w.Links[1].VNI = w.Links[1].VNI, w.Links[0].VNI
	f.apply(w)
	if got := f.apply(w); got != nil {
		t.Errorf("a second apply changed %q", got)
	}
}

// A link that someone has created or changed so that its packets do not arrive is re-created.
func TestForeignParameters(t *testing.T) {
	for _, damage := range []string{
		"ip link set loq0-0 type vxlan ttl 1",
		"ip link del loq0-0; ip link add loq0-0 type vxlan id 7 remote 192.0.2.2 dstport 6094 nolearning local 198.51.100.1",
		"ip link del loq0-0; ip link add loq0-0 type vxlan id 7 remote 192.0.2.2 dstport 6094 nolearning tos 4",
		"ip link del loq0-0; ip link add loq0-0 type vxlan id 7 remote 192.0.2.2 dstport 6094 nolearning gbp",
	} {
		f := open(t)
		f.apply(wanted())
		parameters := func() string { return f.run("ip -d -o link show loq0-0 | grep -o 'vxlan id.*'") }
		before := parameters()
		f.run(damage)
		kit.ErrorIf(t, parameters() == before, "%s: no damage", damage)
		f.apply(wanted())
		if now := parameters(); now != before {
			t.Errorf("%s: it is\n%swant\n%s", damage, now, before)
		}
	}
}

func TestFacts(t *testing.T) {
	f := open(t)
	f.apply(wanted())
	f.run(`ip route add default via 192.0.2.254; ip route add 10.244.1.0/24 via 192.0.2.7 mtu 1280
		ip route add blackhole 10.245.0.0/26 table 77; ip route add 10.244.1.0/24 dev eth0 table 78`)
	got, err := f.kernel.Routes()
	kit.NoError(t, err)
	want := []netip.Prefix{prefix("10.244.1.0/24"), prefix("10.245.0.0/26"), prefix("192.0.2.0/24")}
	kit.Check(t, "routes", got, want)
	addrs, err := f.kernel.Addresses()
	kit.ErrorIf(t, err != nil || len(addrs) != 1 || addrs[0] != addr("192.0.2.1"), "addresses: %v, %v", addrs, err)
	src, mtu, err := f.kernel.SourceTo(addr("10.244.1.9"))
	kit.ErrorIf(t, err != nil || src != addr("192.0.2.1") || mtu != 1280, "source: %v %v %v", src, mtu, err)
	if src, mtu, err = f.kernel.SourceTo(addr("10.61.1.1")); err != nil || src != addr("10.80.0.1") || mtu != 1340 {
		t.Errorf("source to a peer: %v %v %v", src, mtu, err)
	}
	if name, mtu, err := f.kernel.LinkByAddress(addr("192.0.2.1")); err != nil || name != "eth0" || mtu != 1500 {
		t.Errorf("the interface with an address: %q %v %v", name, mtu, err)
	}
	if _, _, err := f.kernel.LinkByAddress(addr("192.0.2.77")); err == nil {
		t.Error("found an interface with an unknown address")
	}
	if mtu, err := f.kernel.EgressMTU("eth0"); err != nil || mtu != 1280 {
		t.Errorf("MTU of an interface and its routes: %v %v", mtu, err)
	}
	f.ns.Sysctl(t, "ipv6/conf/eth0/disable_ipv6", "0")
	f.run("ip route del 10.244.1.0/24 via 192.0.2.7; ip -6 route add 2001:db8:7::/48 dev eth0 mtu 1450")
	if mtu, err := f.kernel.EgressMTU("eth0"); err != nil || mtu != 1450 {
		t.Errorf("MTU of an interface and its IPv6 routes: %v %v", mtu, err)
	}
	f.run("ip -6 route del 2001:db8:7::/48 dev eth0")
	if mtu, err := f.kernel.EgressMTU("eth0"); err != nil || mtu != 1500 {
		t.Errorf("MTU of an interface without such routes: %v %v", mtu, err)
	}
	if _, err := f.kernel.EgressMTU("none"); err == nil {
		t.Error("MTU of an interface that is not there")
	}
}

// Of two routes that the kernel cannot hold at the same time, and of two links with one name, the first one is applied,
// and so are all others.
func TestWhatIsWantedTwiceStopsNothing(t *testing.T) {
	f := open(t)
	want := wanted()
	liar := want.Links[0]
	liar.Remote = addr("192.0.2.3")
	want.Links = append(want.Links, liar)
	want.Routes = append(
		want.Routes, want.Routes[1], // a duplicate is no error
		overlay.Route{Table: overlay.Table, Dst: prefix("10.80.31.254/32"), Via: addr("10.80.0.9"), Dev: "loq0-0", Src: addr("10.80.0.1")},
		overlay.Route{Table: overlay.Table, Dst: prefix("10.62.0.0/16"), Dev: "loq0-0", Src: addr("10.80.0.1")},
	)
	_, err := f.kernel.Apply(context.Background(), want)
	expectPartial(t, err, "loq0-0")
	kit.ErrorIf(t, !strings.Contains(err.Error(), "10.80.31.254/32 via 10.80.0.9") || strings.Contains(err.Error(), "10.61.0.0"),
		"the error is %v", err)
	clean := wanted()
	clean.Routes = append(clean.Routes, want.Routes[len(want.Routes)-1])
	if got := f.apply(clean); got != nil {
		t.Errorf("the first ones were not applied: %q", got)
	}
}
