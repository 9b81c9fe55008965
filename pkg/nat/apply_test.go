package nat_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

// quiet is how long no signal may come.
const quiet = 200 * time.Millisecond

var addr, prefix = netip.MustParseAddr, netip.MustParsePrefix

func gateway() nat.Gateway {
	return nat.Gateway{
		Underlay: "eth0", TunnelGroup: 2, OverlayGroup: 1, ReceiveGroup: 3,
		Local: []nat.Mapping{
			{Real: prefix("10.244.0.0/16"), Mapped: prefix("10.61.0.0/16")},
			{Real: prefix("10.245.0.0/16"), Mapped: prefix("10.245.0.0/16")},
		},
		Internal: nat.Mapping{Real: prefix("10.80.0.0/19"), Mapped: prefix("10.62.0.0/19")}, Address: addr("10.80.31.254"),
		Remote:      []netip.Prefix{prefix("10.63.0.0/16"), prefix("10.64.0.0/18")},
		Nodes:       []netip.Addr{addr("192.0.2.2"), addr("192.0.2.1")},
		OverlayPort: 6094, TunnelPort: 51840, LivenessPort: 6098,
		HealthPort: 6097, MetricsPort: 6099, Pods: []netip.Prefix{prefix("10.244.0.0/15")}, PeerGateway: addr("10.64.0.1"), ExchangePorts: []uint16{6096},
		PeerNodes: prefix("10.64.0.0/19"),
	}
}

func node() nat.Node {
	return nat.Node{
		OverlayGroup: 1, Address: addr("10.80.0.1"),
		Pods: []netip.Prefix{prefix("10.244.0.0/16"), prefix("10.244.3.0/24"), prefix("255.0.0.0/8")},
		Gateways: []nat.NodeGateway{
			{
				Pod: addr("10.244.1.9"), VNI: 8192 + 1, Overlay: addr("10.80.31.254"), Local: true, Link: "loq0-0",
				Remote: []netip.Prefix{prefix("10.63.0.0/16"), prefix("10.64.0.0/18")},
			},
			{Pod: addr("10.244.2.9"), VNI: 5*8192 + 1, Overlay: addr("10.80.31.253"), Link: "loq1-0", Remote: []netip.Prefix{prefix("10.65.0.0/16"), prefix("10.65.3.0/24")}},
		},
		OverlayPort: 6094, TunnelPort: 51840,
	}
}

// subject is one kind of table, with two states that differ only in elements of sets.
type subject struct {
	name         string
	apply, other func() (bool, error)
}

func subjects() []subject {
	ctx := context.Background()
	g, n := gateway(), node()
	g.Nodes = append(g.Nodes[1:], addr("192.0.2.3"))
	n.Pods, n.Hosts = []netip.Prefix{prefix("10.244.0.0/15"), prefix("10.250.0.0/24")}, []netip.Addr{addr("192.0.2.9")}
	withEnds := node()
	withEnds.Endpoints = []netip.Addr{addr("10.63.1.1"), addr("10.65.1.1")}
	otherEnds := withEnds
	otherEnds.Endpoints = withEnds.Endpoints[:1]
	n.Gateways[0].Local, n.Gateways[1].Local = false, true
	limited, limitedNode := gateway(), node()
	limited.LimitRate, limitedNode.Gateways[0].LimitNew = 1e6, 100
	otherLimited, otherLimitedNode := limited, limitedNode
	otherLimited.Nodes, otherLimitedNode.Hosts = limited.Nodes[1:], []netip.Addr{addr("192.0.2.9")}
	gateways := func(g nat.Gateway) func() (bool, error) {
		return func() (bool, error) { return nat.ApplyGateway(ctx, g) }
	}
	nodes := func(n nat.Node) func() (bool, error) { return func() (bool, error) { return nat.ApplyNode(ctx, n) } }
	return []subject{
		{"gateway with a limit", gateways(limited), gateways(otherLimited)},
		{"node with a limit", nodes(limitedNode), nodes(otherLimitedNode)},
		{"gateway", gateways(gateway()), gateways(g)},
		{"node", nodes(node()), nodes(n)},
		{"node with ends of tunnels", nodes(withEnds), nodes(otherEnds)},
	}
}

// handles returns the ruleset with its handles, which change when an object is re-created.
func handles(t *testing.T, ns *netns.NS) string {
	t.Helper()
	return ns.Output(t, "nft", "-a", "list", "ruleset")
}

func TestApply(t *testing.T) {
	for _, s := range subjects() {
		t.Run(s.name, func(t *testing.T) {
			ns := netns.New(t, s.name)
			ns.Output(t, "nft", "add table ip foreign; add chain ip foreign c; add rule ip foreign c accept")
			before := netns.Ruleset(t, ns)
			netns.Expect(t, ns, true, "first", s.apply)
			applied := handles(t, ns)
			signals := monitor(t, ns)
			generation := generationOf(t, ns)
			netns.Expect(t, ns, false, "again", s.apply)
			if now := generationOf(t, ns); now != generation {
				t.Errorf("a second apply sent a transaction: generation %d, was %d", now, generation)
			}
			kit.Check(t, "after a second apply", handles(t, ns), applied)
			kit.Silent(t, signals, quiet, "no change")

			netns.Expect(t, ns, true, "other elements", s.other)
			kit.Signaled(t, signals, "a change")
			if got := chains(handles(t, ns)); got != chains(applied) {
				t.Errorf("a change of elements changed rules:\n%s", cmp.Diff(chains(applied), got))
			}
			netns.Expect(t, ns, false, "other elements again", s.other)
			netns.Expect(t, ns, true, "first elements", s.apply)
			kit.Check(t, "rules after a change of elements", chains(handles(t, ns)), chains(applied))

			ns.Output(t, "nft", "add rule ip foreign c drop; add table ip liqonet; add table ip6 liqonet")
			netns.Expect(t, ns, true, "purge", func() (bool, error) { return nat.Purge() })
			netns.Expect(t, ns, false, "purge again", func() (bool, error) { return nat.Purge() })
			ns.Output(t, "nft", "flush chain ip foreign c; add rule ip foreign c accept")
			kit.Check(t, "after purge", netns.Ruleset(t, ns), before)
		})
	}
}

// Rules change while packets pass. Sets stay, because the kernel activates rules before new sets have all elements.
// Unused objects are removed.
func TestOtherRules(t *testing.T) {
	ctx := context.Background()
	plain, other := node(), node()
	other.Gateways[0].Remote = []netip.Prefix{prefix("10.63.0.0/17")}
	other.Gateways[0].Local, other.Gateways[0].LimitNew, other.Endpoints = false, 100, []netip.Addr{addr("10.63.1.1")}
	fresh, ns := netns.New(t, "fresh"), netns.New(t, "rules")
	apply := func(n nat.Node) func() (bool, error) { return func() (bool, error) { return nat.ApplyNode(ctx, n) } }
	netns.Expect(t, fresh, true, "plain, without a table before", apply(plain))
	netns.Expect(t, ns, true, "plain", apply(plain))
	made := regexp.MustCompile(`(?m)^\s*(set|counter) \S+ \{ # handle \d+$`)
	before := made.FindAllString(handles(t, ns), -1)
	netns.Expect(t, ns, true, "other rules", apply(other))
	var gone []string
	after := made.FindAllString(handles(t, ns), -1)
	for _, line := range before {
		if !slices.Contains(after, line) {
			gone = append(gone, line)
		}
	}
	kit.ErrorIf(t, len(before) < 10 || len(gone) > 0, "of %d sets and counters, these were re-created: %q", len(before), gone)
	netns.Expect(t, ns, false, "other rules again", apply(other))
	netns.Expect(t, ns, true, "plain again", apply(plain))
	kit.Check(t, "after other rules", netns.Ruleset(t, ns), netns.Ruleset(t, fresh))
}

// chains returns the chains of our table in a ruleset, without its sets.
func chains(ruleset string) string {
	_, table, _ := strings.Cut(ruleset, "table ip "+nat.TableName)
	i := strings.Index(table, "\tchain ")
	if i < 0 {
		return ""
	}
	return table[i:]
}

func TestRepair(t *testing.T) {
	common := []string{
		"delete table ip liqonet",
		"flush table ip liqonet",
		"add table ip liqonet { flags dormant; }",
		"flush chain ip liqonet forward",
		"flush chain ip liqonet forward; delete chain ip liqonet forward",
		"insert rule ip liqonet forward accept",
		"add rule ip liqonet forward accept",
		"add chain ip liqonet extra",
		"add set ip liqonet extra { type ipv4_addr; }",
	}
	specific := map[string][]string{
		"gateway": {
			"add chain ip liqonet input { policy accept; }",
			"flush chain ip liqonet from-peer",
			"delete rule ip liqonet prerouting handle N",
			"add element ip liqonet nodes { 192.0.2.9 }",
			"delete element ip liqonet nodes { 192.0.2.1 }",
			"flush set ip liqonet pods",
			"add element ip liqonet pods { 10.99.0.0/16 }",
			"flush chain ip liqonet error-causes",
			"replace rule ip liqonet from-peer handle N ip saddr 10.1.1.1 drop",
			"delete rule ip liqonet from-peer handle N",
		},
		"node": {
			"flush chain ip liqonet to-peers",
			"delete rule ip liqonet guard handle N",
			"flush set ip liqonet pods",
			"add element ip liqonet pods { 10.99.0.0/16 }",
			"delete element ip liqonet gateways { 10.244.2.9 }",
			"delete element ip liqonet senders { \"loq0-0\" . 10.63.0.0/16 }",
			"add element ip liqonet senders { \"loq0-0\" . 10.99.0.0/16 }",
			"replace rule ip liqonet source handle N ip saddr 10.1.1.1 drop",
			"delete rule ip liqonet source handle N",
		},
	}
	for _, s := range subjects() {
		t.Run(s.name, func(t *testing.T) {
			ns := netns.New(t, s.name)
			netns.Expect(t, ns, true, "first", s.apply)
			before := netns.Ruleset(t, ns)
			signals := monitor(t, ns)
			for _, damage := range append(common, specific[s.name]...) {
				ns.Output(t, "nft", withHandle(t, ns, damage))
				kit.Signaled(t, signals, damage)
				netns.Expect(t, ns, true, damage, s.apply)
				kit.Check(t, fmt.Sprintf("%s: not as before", damage), netns.Ruleset(t, ns), before)
				netns.Expect(t, ns, false, damage+", again", s.apply)
				for len(signals) > 0 {
					<-signals
				}
			}
			ns.Output(t, "nft", "add table ip other; add chain ip other c; delete table ip other")
			kit.Silent(t, signals, quiet, "no change")
		})
	}
}

// withHandle inserts the handle of the chain's first rule into a command.
func withHandle(t *testing.T, ns *netns.NS, command string) string {
	t.Helper()
	fields := strings.Fields(command)
	if len(fields) < 7 || fields[6] != "N" {
		return command
	}
	for _, line := range strings.Split(ns.Output(t, "nft", "-a", "list chain ip liqonet "+fields[4]), "\n") {
		if _, handle, ok := strings.Cut(line, " # handle "); ok && strings.Contains(line, "comment") {
			return strings.Replace(command, "handle N", "handle "+handle, 1)
		}
	}
	t.Fatalf("chain %s has no rule", fields[4])
	return ""
}

// generationOf returns the number of the ruleset's last transaction, by any process.
func generationOf(t *testing.T, ns *netns.NS) uint32 {
	t.Helper()
	var generation uint32
	ns.Do(t, func() error {
		c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
		if err != nil {
			return err
		}
		defer c.Close()
		replies, err := c.Execute(netlink.Message{
			Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
			Data:   make([]byte, 4), // unspecified family
		})
		if err != nil {
			return err
		}
		d, err := netlink.NewAttributeDecoder(replies[0].Data[4:])
		if err != nil {
			return err
		}
		d.ByteOrder = binary.BigEndian
		for d.Next() {
			if d.Type() == unix.NFTA_GEN_ID {
				generation = d.Uint32()
			}
		}
		return d.Err()
	})
	kit.FatalIf(t, generation == 0, "the kernel reports no generation")
	return generation
}

func monitor(t *testing.T, ns *netns.NS) <-chan struct{} {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	signals := notify.NewSignal()
	ns.Do(t, func() error { return nat.Monitor(ctx, signals) })
	return signals
}

func TestInvalid(t *testing.T) {
	bad := gateway()
	bad.Local[0].Mapped = prefix("10.61.0.0/17")
	if _, err := nat.ApplyGateway(context.Background(), bad); err == nil {
		t.Error("ranges of different lengths were accepted")
	}
	bad = gateway()
	bad.Nodes = append(bad.Nodes, addr("2001:db8::1"))
	if _, err := nat.ApplyGateway(context.Background(), bad); err == nil || !strings.Contains(err.Error(), "2001:db8::1") {
		t.Errorf("nodes of both families: %v", err)
	}
	if _, err := nat.ApplyNode(context.Background(), nat.Node{OverlayGroup: 1, OverlayPort: 1}); err == nil {
		t.Error("a node without an address was accepted")
	}
	mixed := node()
	mixed.OwnPods = append(mixed.OwnPods, prefix("fd00:10:244:1::/64"))
	if _, err := nat.ApplyNode(context.Background(), mixed); err == nil || !strings.Contains(err.Error(), "fd00:10:244:1::") {
		t.Errorf("pods of both families: %v", err)
	}
}

// A different limit changes the table. The same limit does not, so its counter keeps its value (TestApply).
func TestChangedLimits(t *testing.T) {
	ctx := context.Background()
	spaces := map[string]*netns.NS{"gateway": netns.New(t, "gateway"), "node": netns.New(t, "node")}
	limit := regexp.MustCompile(`limit rate over .*? counter name "?forward/[a-z0-9/-]+"? drop`)
	for _, step := range []struct {
		rate uint64
		new  uint32
		want map[string]string
	}{
		{1e6, 100, map[string]string{
			"gateway": `limit rate over 1000000 bytes/second counter name "forward/over-limit-rate" drop`,
			"node":    `limit rate over 100/second burst 100 packets counter name "forward/over-limit-new/loq1-0" drop`,
		}},
		{2e6, 101, map[string]string{
			"gateway": `limit rate over 2000000 bytes/second counter name "forward/over-limit-rate" drop`,
			"node":    `limit rate over 101/second burst 101 packets counter name "forward/over-limit-new/loq1-0" drop`,
		}},
		{0, 0, map[string]string{"gateway": "", "node": ""}},
		{125e8, 1e6, map[string]string{
			"gateway": `limit rate over 12500000000 bytes/second counter name "forward/over-limit-rate" drop`,
			"node":    `limit rate over 1000000/second burst 1000000 packets counter name "forward/over-limit-new/loq1-0" drop`,
		}},
	} {
		g, n := gateway(), node()
		g.LimitRate, n.Gateways[1].LimitNew = step.rate, step.new
		netns.Expect(t, spaces["gateway"], true, "gateway", func() (bool, error) { return nat.ApplyGateway(ctx, g) })
		netns.Expect(t, spaces["node"], true, "node", func() (bool, error) { return nat.ApplyNode(ctx, n) })
		got := map[string]string{}
		for name, ns := range spaces {
			got[name] = strings.Join(limit.FindAllString(ns.Output(t, "nft", "list", "table", "ip", "liqonet"), -1), "\n")
		}
		kit.Check(t, "result", got, step.want)
	}
}

// The kernel accepts the large transaction of a table with very many elements.
func TestLargeTables(t *testing.T) {
	ns := netns.New(t, "large")
	g, n := gateway(), node()
	a := addr("172.16.0.0")
	for i := range 12000 {
		a = a.Next()
		g.Nodes = append(g.Nodes, a)
		n.Hosts = append(n.Hosts, a)
		if i%2 == 0 && len(n.Gateways[0].Remote) < 65 { // a Peering has no more
			n.Gateways[0].Remote = append(n.Gateways[0].Remote, netip.PrefixFrom(a, 32))
		}
	}
	for what, apply := range map[string]func() (bool, error){
		"gateway": func() (bool, error) { return nat.ApplyGateway(context.Background(), g) },
		"node":    func() (bool, error) { return nat.ApplyNode(context.Background(), n) },
	} {
		netns.Expect(t, ns, true, what, apply)
		netns.Expect(t, ns, false, what+" again", apply)
	}
	g.Nodes = g.Nodes[10000:]
	fewer := func() (bool, error) { return nat.ApplyGateway(context.Background(), g) }
	netns.Expect(t, ns, true, "fewer", fewer)
	netns.Expect(t, ns, false, "fewer again", fewer)
}
