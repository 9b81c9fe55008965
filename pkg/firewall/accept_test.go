package firewall_test

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/liqonet/liqonet/pkg/firewall"
	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

// accepted returns our rules in a chain of iptables as iptables prints them, for the node of node().
func accepted(chain string) []string {
	rules := [][2]string{
		{"-s 10.244.1.9/32 -p udp -m udp --dport 6094", "overlay from 10.244.1.9:6094"},
		{"-s 10.80.31.254/32 -i loq+ -p icmp", "ping from 10.80.31.254"},
		{"-s 10.244.2.9/32 -p udp -m udp --dport 6094", "overlay from 10.244.2.9:6094"},
		{"-s 10.80.31.253/32 -i loq+ -p icmp", "ping from 10.80.31.253"},
	}
	if chain == "FORWARD" {
		rules = [][2]string{
			{"-i loq+", "from peers"},
			{"-o loq+", "to peers"},
			{"-s 10.244.1.9/32 -p udp -m udp --dport 6094", "overlay from 10.244.1.9:6094"},
			{"-d 10.244.1.9/32 -p udp -m udp --dport 6094", "overlay to 10.244.1.9:6094"},
			{"-s 10.244.1.9/32 -p udp -m udp --sport 51840:51855", "tunnel from 10.244.1.9:51840"},
			{"-d 10.244.1.9/32 -p udp -m udp --dport 51840:51855", "tunnel to 10.244.1.9:51840"},
			{"-s 10.244.2.9/32 -p udp -m udp --sport 51840:51855", "tunnel from 10.244.2.9:51840"},
			{"-d 10.244.2.9/32 -p udp -m udp --dport 51840:51855", "tunnel to 10.244.2.9:51840"},
		}
	}
	var out []string
	for _, p := range rules {
		out = append(out, "-A "+chain+" "+p[0]+` -m comment --comment "liqonet: `+p[1]+`" -j ACCEPT`)
	}
	return out
}

// quiet is how long no signal may come.
const quiet = firewall.SettleTime + 200*time.Millisecond

var addr = netip.MustParseAddr

// node has one local gateway, and one on another node.
func node() nat.Node {
	return nat.Node{
		OverlayPort: 6094, TunnelPort: 51840,
		Gateways: []nat.NodeGateway{
			{Pod: addr("10.244.1.9"), Overlay: addr("10.80.31.254"), Local: true},
			{Pod: addr("10.244.2.9"), Overlay: addr("10.80.31.253")},
		},
	}
}

func ensure() (bool, error) { return firewall.EnsureAcceptRules(node()) }
func remove() (bool, error) { return firewall.RemoveAcceptRules() }

// place is where our rules are expected: in a chain, before a rule that contains a text, or at the end.
type place struct {
	// chain is family, table and name.
	chain, before string
}

// iptables returns the name of the corresponding chain in iptables.
func (p place) iptables() string {
	if strings.HasSuffix(p.chain, "INPUT") {
		return "INPUT"
	}
	return "FORWARD"
}

// TestAcceptRules tests chains of nftables: in those that drop, and in no others, our rules are before the rule that
// drops.
func TestAcceptRules(t *testing.T) {
	const forward, input = "ip filter FORWARD", "ip filter INPUT"
	for name, test := range map[string]struct {
		setup string
		want  []place
	}{
		"policy":         {"iptables-nft -P FORWARD DROP; iptables-nft -A FORWARD -i eth0 -j ACCEPT", []place{{forward, ""}}},
		"input policy":   {"iptables-nft -P INPUT DROP; iptables-nft -A INPUT -i eth0 -j ACCEPT", []place{{input, ""}}},
		"both":           {"iptables-nft -P INPUT DROP; iptables-nft -A FORWARD -j DROP", []place{{input, ""}, {forward, "drop"}}},
		"reject":         {"iptables-nft -A FORWARD -i eth0 -j ACCEPT; iptables-nft -A FORWARD -j REJECT", []place{{forward, "reject"}}},
		"input reject":   {"iptables-nft -A INPUT -i eth0 -j ACCEPT; iptables-nft -A INPUT -j REJECT", []place{{input, "reject"}}},
		"drop":           {"iptables-nft -A FORWARD -j DROP", []place{{forward, "drop"}}},
		"drop, comment":  {"iptables-nft -A FORWARD -m comment --comment all -j DROP", []place{{forward, "drop"}}},
		"dropping chain": {"iptables-nft -N no; iptables-nft -A no -j LOG; iptables-nft -A no -j DROP; iptables-nft -A FORWARD -j no", []place{{forward, "jump no"}}},
		"any interface":  {"iptables-nft -N no; iptables-nft -A no -j REJECT; iptables-nft -A FORWARD -i + -o + -g no", []place{{forward, "goto no"}}},
		"docker": {
			"iptables-nft -P FORWARD DROP; iptables-nft -N DOCKER-USER; iptables-nft -A DOCKER-USER -j RETURN; iptables-nft -A FORWARD -j DOCKER-USER",
			[]place{{forward, ""}},
		},
		"inet":       {"nft 'add table inet fw; add chain inet fw f { type filter hook forward priority 10; policy drop; }'", []place{{"inet fw f", ""}}},
		"inet input": {"nft 'add table inet fw; add chain inet fw INPUT { type filter hook input priority 10; policy drop; }'", []place{{"inet fw INPUT", ""}}},
		"inet ipv4": {
			"nft 'add table inet fw; add chain inet fw f { type filter hook forward priority 10; }; add rule inet fw f meta nfproto ipv4 log drop'",
			[]place{{"inet fw f", "drop"}},
		},
		"goto": {
			"nft 'add table inet fw; add chain inet fw c; add chain inet fw f { type filter hook forward priority 10; policy drop; }; add rule inet fw f goto c; add rule inet fw f accept'",
			[]place{{"inet fw f", "goto c"}},
		},
		"firewalld": {
			"nft -f " + firewalld,
			[]place{{"inet firewalld filter_INPUT", "jump filter_INPUT_ZONES"}, {"inet firewalld filter_FORWARD", "jump filter_FORWARD_ZONES"}},
		},
		"conditions only": {
			"iptables-nft -A FORWARD -i eth0 -j DROP; iptables-nft -A FORWARD -j MARK --set-mark 1; iptables-nft -N c; iptables-nft -A c -i eth0 -j DROP; iptables-nft -A FORWARD -j c",
			nil,
		},
		"accepts first": {"iptables-nft -A FORWARD -j ACCEPT; iptables-nft -P FORWARD DROP", nil},
		"other family":  {"ip6tables-nft -P FORWARD DROP; ip6tables-nft -P INPUT DROP", nil},
		"other hook":    {"iptables-nft -P OUTPUT DROP; nft 'add table ip fw; add chain ip fw f { type filter hook prerouting priority 10; policy drop; }'", nil},
	} {
		t.Run(name, func(t *testing.T) {
			ns := netns.New(t, name)
			ns.Output(t, "sh", "-ec", test.setup)
			before := netns.Ruleset(t, ns)
			if len(test.want) == 0 {
				netns.Expect(t, ns, false, "ensure", ensure)
				kit.Check(t, "ruleset", netns.Ruleset(t, ns), before)
				return
			}
			netns.Expect(t, ns, true, "ensure", ensure)
			netns.Expect(t, ns, false, "ensure again", ensure)
			for _, p := range test.want {
				checkPlace(t, ns, p)
			}
			for _, p := range test.want {
				if strings.HasPrefix(p.chain, "ip filter ") {
					changesByIPTables(t, ns, p.iptables())
				}
				signals := monitor(t, ns)
				ns.Output(t, "nft", "delete rule "+p.chain+" handle "+ourHandle(t, ns, p.chain))
				kit.Signaled(t, signals, "a deleted rule")
				netns.Expect(t, ns, true, "one deleted", ensure)
				checkPlace(t, ns, p)
			}

			// Other gateways.
			other := node()
			other.Gateways = other.Gateways[1:]
			change := func() (bool, error) { return firewall.EnsureAcceptRules(other) }
			netns.Expect(t, ns, true, "other gateways", change)
			netns.Expect(t, ns, false, "other gateways again", change)

			netns.Expect(t, ns, true, "remove", remove)
			netns.Expect(t, ns, false, "remove again", remove)
			kit.Check(t, "ruleset", netns.Ruleset(t, ns), before)
		})
	}
}

// A drop in a chain that FORWARD or INPUT jumps to is signaled, and so is its removal. Changes of sets are not: they
// are frequent, and no chain drops because of them.
func TestMonitor(t *testing.T) {
	for name, test := range map[string]struct{ setup, drop, gone string }{
		"iptables": {
			`iptables-nft -N USER; iptables-nft -N INNER; iptables-nft -A FORWARD -m comment --comment x -j USER
				iptables-nft -A USER -j INNER; iptables-nft -A INNER -j RETURN`,
			"iptables-nft -I INNER -m comment --comment y -j DROP",
			"iptables-nft -D INNER -m comment --comment y -j DROP",
		},
		"input": {"iptables-nft -N USER; iptables-nft -A INPUT -j USER", "iptables-nft -A USER -j REJECT", "iptables-nft -F USER"},
		"inet": {
			"nft 'table inet x { chain user { }; chain fw { type filter hook forward priority 0; jump user; }; }'",
			"nft insert rule inet x user meta nfproto ipv4 counter drop", "nft flush chain inet x user",
		},
		"a new chain": {
			"nft add table inet x", "nft 'add chain inet x fw { type filter hook forward priority 0; policy drop; }'", "nft delete chain inet x fw",
		},
		"the whole table": {
			"nft 'add table inet x; add chain inet x empty'", "nft 'add chain inet x fw { type filter hook input priority 0; policy drop; }'", "nft delete table inet x",
		},
	} {
		t.Run(name, func(t *testing.T) {
			ns := netns.New(t, name)
			ns.Output(t, "sh", "-ec", test.setup)
			ns.Output(t, "nft", "add table ip sets; add set ip sets s { type ipv4_addr; }; add table ip liqonet; add chain ip liqonet c")
			signals := monitor(t, ns)
			netns.Expect(t, ns, false, "nothing drops", ensure)
			ns.Output(t, "nft", "add element ip sets s { 10.0.0.1 }; add rule ip liqonet c drop")
			kit.Silent(t, signals, quiet, "no change")
			ns.Output(t, "sh", "-ec", test.drop)
			kit.Signaled(t, signals, "a drop")
			netns.Expect(t, ns, true, "a drop", ensure)
			kit.Signaled(t, signals, "a change of ours")
			ns.Output(t, "sh", "-ec", test.gone)
			kit.Signaled(t, signals, "the end of the drop")
			// The rules are deleted together with the chain.
			netns.Expect(t, ns, !strings.Contains(test.gone, "delete "), "nothing drops any more", ensure)
		})
	}
}

func monitor(t *testing.T, ns *netns.NS) <-chan struct{} {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	signals := notify.NewSignal()
	ns.Do(t, func() error { return firewall.Monitor(ctx, signals) })
	return signals
}

// firewalld contains the rules of a real firewalld, which TestFirewalld in test/e2e runs.
const firewalld = "testdata/firewalld.nft"

// A table that only its owner can change, as firewalld's may be since version 2.1, is reported, and does not affect the
// rest.
func TestOwnedTable(t *testing.T) {
	ns := netns.New(t, "node")
	// The owner is a program that reads commands and does not end.
	cmd := exec.Command("nft", "-i")
	in := kit.Must(cmd.StdinPipe())(t)
	ns.Do(t, cmd.Start)
	end := func() {
		_ = in.Close()
		_ = cmd.Wait()
	}
	t.Cleanup(end)
	if _, err := in.Write([]byte("add table inet fw { flags owner; }\n" +
		"add chain inet fw f { type filter hook forward priority 10; policy drop; }\n" +
		"add chain inet fw i { type filter hook input priority 10; policy drop; }\n")); err != nil {
		t.Fatal(err)
	}
	awaitRules(t, ns, "the table is there", func(rules string) bool { return strings.Contains(rules, "chain i {") })
	owned := ns.Output(t, "nft", "list table inet fw")
	ns.Output(t, "iptables-nft", "-P", "FORWARD", "DROP")
	wantOwned := func(changes bool) {
		t.Helper()
		ns.Do(t, func() error {
			changed, err := ensure()
			var e *firewall.BlockedError
			if !errors.As(err, &e) || len(e.Advice) != 1 || !strings.HasPrefix(e.Advice[0], "nftables chain inet fw f, inet fw i drops") || changed != changes {
				t.Errorf("changed is %v, %v", changed, err)
			}
			// Blocked returns the same advice, and only reads.
			if advice, err := firewall.Blocked(node().OverlayPort); e == nil || err != nil || !slices.Equal(advice, e.Advice) {
				t.Errorf("blocked is %q, %v", advice, err)
			}
			return nil
		})
	}
	wantOwned(true)
	checkPlace(t, ns, place{"ip filter FORWARD", ""})
	signals := monitor(t, ns)
	wantOwned(false)
	kit.Silent(t, signals, quiet, "no change")
	kit.Check(t, "output", ns.Output(t, "nft", "list table inet fw"), owned)
	netns.Expect(t, ns, true, "remove", remove)

	// The table is removed with its owner, and no longer blocks anything.
	end()
	awaitRules(t, ns, "the table is gone", func(rules string) bool { return !strings.Contains(rules, "inet fw") })
	netns.Expect(t, ns, true, "ensure without the owner", ensure)
}

// awaitRules waits until the rules of a namespace are as wanted.
func awaitRules(t *testing.T, ns *netns.NS, what string, done func(rules string) bool) {
	t.Helper()
	kit.Within(t, 5*time.Second, what, func() string {
		if rules := netns.Ruleset(t, ns); !done(rules) {
			return rules
		}
		return ""
	})
}

// checkPlace checks that all our rules are in their place, in order.
func checkPlace(t *testing.T, ns *netns.NS, p place) {
	t.Helper()
	var rules []string
	before, wanted := p.before, accepted(p.iptables())
	for l := range strings.SplitSeq(ns.Output(t, "nft", "list chain "+p.chain), "\n") {
		if l = strings.TrimSpace(l); l != "" && l != "}" && !strings.Contains(l, "{") || strings.Contains(l, "ct state") || strings.Contains(l, "ip6") {
			rules = append(rules, l)
		}
	}
	rules = rules[min(1, len(rules)):] // type and policy
	first := slices.IndexFunc(rules, isOurs)
	kit.FatalIf(t, first < 0 || len(rules) < first+len(wanted), "our rules are missing: %q", rules)
	for i, want := range wanted {
		_, want, _ = strings.Cut(want, `"`)
		want, _, _ = strings.Cut(want, `"`)
		if !strings.Contains(rules[first+i], `"`+want+" #") || !strings.Contains(rules[first+i], "accept") {
			t.Errorf("rule %d is %s, want %s", i, rules[first+i], want)
		}
	}
	switch rest := rules[first+len(wanted):]; {
	case before == "" && len(rest) > 0:
		t.Errorf("rules after ours: %q", rest)
	case before != "" && (len(rest) == 0 || !strings.Contains(rest[0], before)):
		t.Errorf("rules after ours: %q, want %q first", rest, before)
	}
}

// ourHandle returns the handle of our first rule in a chain.
func ourHandle(t *testing.T, ns *netns.NS, chain string) string {
	t.Helper()
	for l := range strings.SplitSeq(ns.Output(t, "nft", "-a", "list chain "+chain), "\n") {
		if _, handle, ok := strings.Cut(l, " # handle "); ok && isOurs(l) {
			return handle
		}
	}
	t.Fatal("none of our rules is there")
	return ""
}

// changesByIPTables checks that iptables can read our rules, and that they are repaired after changes by iptables.
func changesByIPTables(t *testing.T, ns *netns.NS, chain string) {
	t.Helper()
	listed := ns.Output(t, "iptables-nft", "-S", chain)
	for _, rule := range accepted(chain) {
		rule, _, _ = strings.Cut(rule, " -m comment")
		kit.ErrorIf(t, !strings.Contains(listed, rule), "iptables does not list %q:\n%s", rule, listed)
	}
	ns.Output(t, "iptables-nft", "-D", chain, strconv.Itoa(slices.IndexFunc(listedRules(listed), isOurs)+1))
	netns.Expect(t, ns, true, "one deleted", ensure)
	netns.Expect(t, ns, false, "one deleted, again", ensure)
	// Rules of others that come before ours take precedence.
	ns.Output(t, "iptables-nft", "-I", chain, "-i", "eth1", "-j", "DROP")
	netns.Expect(t, ns, false, "one at the beginning", ensure)
	last := 0
	for i, rule := range listedRules(ns.Output(t, "iptables-nft", "-S", chain)) {
		if isOurs(rule) {
			last = i + 1
		}
	}
	ns.Output(t, "iptables-nft", "-I", chain, strconv.Itoa(last+1), "-i", "eth2", "-j", "DROP")
	netns.Expect(t, ns, true, "one after ours", ensure)
	netns.Expect(t, ns, false, "one after ours, again", ensure)
	ns.Output(t, "iptables-nft", "-D", chain, "-i", "eth1", "-j", "DROP")
	ns.Output(t, "iptables-nft", "-D", chain, "-i", "eth2", "-j", "DROP")
}

// listedRules removes the policy from the output of iptables -S.
func listedRules(listed string) []string {
	return slices.DeleteFunc(strings.Split(strings.TrimSpace(listed), "\n"), func(l string) bool { return !strings.HasPrefix(l, "-A") })
}

func isOurs(rule string) bool { return strings.Contains(rule, "liqonet: ") }
