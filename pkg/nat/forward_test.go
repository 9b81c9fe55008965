package nat_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/test/netns"
)

// passed are our rules as iptables prints them, for the node of node().
func passed() []string {
	var out []string
	for _, p := range [][2]string{
		{"-i lq+", "from peers"},
		{"-o lq+", "to peers"},
		{"-s 10.244.1.9/32 -p udp -m udp --dport 6094", "overlay from 10.244.1.9:6094"},
		{"-d 10.244.1.9/32 -p udp -m udp --dport 6094", "overlay to 10.244.1.9:6094"},
		{"-s 10.244.1.9/32 -p udp -m udp --sport 51840", "tunnel from 10.244.1.9:51840"},
		{"-d 10.244.1.9/32 -p udp -m udp --dport 51840", "tunnel to 10.244.1.9:51840"},
		{"-s 10.244.2.9/32 -p udp -m udp --sport 51840", "tunnel from 10.244.2.9:51840"},
		{"-d 10.244.2.9/32 -p udp -m udp --dport 51840", "tunnel to 10.244.2.9:51840"},
	} {
		out = append(out, "-A FORWARD "+p[0]+` -m comment --comment "liqonet: `+p[1]+`" -j ACCEPT`)
	}
	return out
}

func ensure() (bool, error) { return nat.EnsureForward(context.Background(), node()) }
func remove() (bool, error) { return nat.RemoveForward(context.Background()) }

// firewalld is what firewalld 1.x makes of the zones trusted, with the pods'
// addresses, and public, which is the default one.
const firewalld = `nft -f - <<'END'
table inet firewalld {
	chain filter_FORWARD {
		type filter hook forward priority 10; policy accept;
		ct state { established, related } accept
		ct status dnat accept
		iifname "lo" accept
		ct state invalid drop
		ip6 daddr { ::/96, 2002::/24 } reject with icmpv6 type addr-unreachable
		jump filter_FORWARD_ZONES
		reject with icmpx type admin-prohibited
	}
	chain filter_FORWARD_ZONES {
		ip saddr 10.244.0.0/16 goto filter_FWD_trusted
		iifname "eth0" goto filter_FWD_public
		goto filter_FWD_public
	}
	chain filter_FWD_trusted {
		jump filter_FWD_trusted_allow
		accept
	}
	chain filter_FWD_trusted_allow { }
	chain filter_FWD_public_allow { ip saddr 10.9.9.9 accept; }
	chain filter_FWD_public {
		jump filter_FWD_public_allow
		reject with icmpx type admin-prohibited
	}
}
END`

// TestForward has chains of nftables: in those that drop, and in no others, our
// rules stand before whatever drops.
func TestForward(t *testing.T) {
	for name, test := range map[string]struct {
		setup string
		// family, table and chain are where ours are expected, before a rule with
		// this text, or at the end.
		chain, before string
	}{
		"policy":         {setup: "iptables-nft -P FORWARD DROP; iptables-nft -A FORWARD -i eth0 -j ACCEPT", chain: "ip filter FORWARD"},
		"reject":         {setup: "iptables-nft -A FORWARD -i eth0 -j ACCEPT; iptables-nft -A FORWARD -j REJECT", chain: "ip filter FORWARD", before: "reject"},
		"drop":           {setup: "iptables-nft -A FORWARD -j DROP", chain: "ip filter FORWARD", before: "drop"},
		"drop, comment":  {setup: "iptables-nft -A FORWARD -m comment --comment all -j DROP", chain: "ip filter FORWARD", before: "drop"},
		"dropping chain": {setup: "iptables-nft -N no; iptables-nft -A no -j LOG; iptables-nft -A no -j DROP; iptables-nft -A FORWARD -j no", chain: "ip filter FORWARD", before: "jump no"},
		"docker": {
			setup: "iptables-nft -P FORWARD DROP; iptables-nft -N DOCKER-USER; iptables-nft -A DOCKER-USER -j RETURN; iptables-nft -A FORWARD -j DOCKER-USER",
			chain: "ip filter FORWARD",
		},
		"inet":      {setup: "nft 'add table inet fw; add chain inet fw f { type filter hook forward priority 10; policy drop; }'", chain: "inet fw f"},
		"inet ipv4": {setup: "nft 'add table inet fw; add chain inet fw f { type filter hook forward priority 10; }; add rule inet fw f meta nfproto ipv4 log drop'", chain: "inet fw f", before: "drop"},
		"goto": {
			setup: "nft 'add table inet fw; add chain inet fw c; add chain inet fw f { type filter hook forward priority 10; policy drop; }; add rule inet fw f goto c; add rule inet fw f accept'",
			chain: "inet fw f", before: "goto c",
		},
		"firewalld": {setup: firewalld, chain: "inet firewalld filter_FORWARD", before: "jump filter_FORWARD_ZONES"},
		"conditions only": {
			setup: "iptables-nft -A FORWARD -i eth0 -j DROP; iptables-nft -A FORWARD -j MARK --set-mark 1; iptables-nft -N c; iptables-nft -A c -i eth0 -j DROP; iptables-nft -A FORWARD -j c",
		},
		"accepts first": {setup: "iptables-nft -A FORWARD -j ACCEPT; iptables-nft -P FORWARD DROP"},
		"other family":  {setup: "ip6tables-nft -P FORWARD DROP"},
		"other hook":    {setup: "iptables-nft -P INPUT DROP"},
	} {
		t.Run(name, func(t *testing.T) {
			ns := netns.New(t, name)
			ns.Output(t, "sh", "-ec", test.setup)
			before := ruleset(t, ns)
			if test.chain == "" {
				expect(t, ns, false, "ensure", ensure)
				if diff := cmp.Diff(before, ruleset(t, ns)); diff != "" {
					t.Errorf("(-before +after):\n%s", diff)
				}
				return
			}
			expect(t, ns, true, "ensure", ensure)
			expect(t, ns, false, "ensure again", ensure)
			checkPlace(t, ns, test.chain, test.before)
			if test.chain == "ip filter FORWARD" {
				changesByIPTables(t, ns)
			}
			signals := monitor(t, ns)
			chain := strings.Fields(test.chain)
			ns.Output(t, "nft", "delete rule "+test.chain+" handle "+ourHandle(t, ns, chain))
			signal(t, signals, "a deleted rule")
			expect(t, ns, true, "one deleted", ensure)
			checkPlace(t, ns, test.chain, test.before)

			// Another gateway.
			other := node()
			other.Gateways = other.Gateways[1:]
			change := func() (bool, error) { return nat.EnsureForward(context.Background(), other) }
			expect(t, ns, true, "other gateways", change)
			expect(t, ns, false, "other gateways again", change)

			expect(t, ns, true, "remove", remove)
			expect(t, ns, false, "remove again", remove)
			if diff := cmp.Diff(before, ruleset(t, ns)); diff != "" {
				t.Errorf("(-before +after):\n%s", diff)
			}
		})
	}
}

// checkPlace wants all our rules, in order, where they belong.
func checkPlace(t *testing.T, ns *netns.NS, chain, before string) {
	t.Helper()
	var rules []string
	for l := range strings.SplitSeq(ns.Output(t, "nft", "list chain "+chain), "\n") {
		if l = strings.TrimSpace(l); l != "" && l != "}" && !strings.Contains(l, "{") || strings.Contains(l, "ct state") || strings.Contains(l, "ip6") {
			rules = append(rules, l)
		}
	}
	rules = rules[min(1, len(rules)):] // type and policy
	first := slices.IndexFunc(rules, isOurs)
	if first < 0 || len(rules) < first+len(passed()) {
		t.Fatalf("ours are missing: %q", rules)
	}
	for i, want := range passed() {
		_, want, _ = strings.Cut(want, `"`)
		want, _, _ = strings.Cut(want, `"`)
		if !strings.Contains(rules[first+i], `"`+want+" #") || !strings.Contains(rules[first+i], "accept") {
			t.Errorf("rule %d is %s, want %s", i, rules[first+i], want)
		}
	}
	switch rest := rules[first+len(passed()):]; {
	case before == "" && len(rest) > 0:
		t.Errorf("after ours there are %q", rest)
	case before != "" && (len(rest) == 0 || !strings.Contains(rest[0], before)):
		t.Errorf("after ours there are %q, want %q first", rest, before)
	}
}

// ourHandle is that of our first rule in a chain.
func ourHandle(t *testing.T, ns *netns.NS, chain []string) string {
	t.Helper()
	for l := range strings.SplitSeq(ns.Output(t, "nft", "-a", "list chain "+strings.Join(chain, " ")), "\n") {
		if _, handle, ok := strings.Cut(l, " # handle "); ok && isOurs(l) {
			return handle
		}
	}
	t.Fatal("there is none of ours")
	return ""
}

// changesByIPTables checks that iptables can read ours, and what happens after
// changes by it.
func changesByIPTables(t *testing.T, ns *netns.NS) {
	t.Helper()
	listed := ns.Output(t, "iptables-nft", "-S", "FORWARD")
	for _, rule := range passed() {
		rule, _, _ = strings.Cut(rule, " -m comment")
		if !strings.Contains(listed, rule) {
			t.Errorf("iptables does not list %q:\n%s", rule, listed)
		}
	}
	ns.Output(t, "iptables-nft", "-D", "FORWARD", strconv.Itoa(slices.IndexFunc(listedRules(listed), isOurs)+1))
	expect(t, ns, true, "one deleted", ensure)
	expect(t, ns, false, "one deleted, again", ensure)
	// Others that append a rule decide before us.
	ns.Output(t, "iptables-nft", "-I", "FORWARD", "-i", "eth1", "-j", "DROP")
	expect(t, ns, false, "one at the beginning", ensure)
	last := 0
	for i, rule := range listedRules(ns.Output(t, "iptables-nft", "-S", "FORWARD")) {
		if isOurs(rule) {
			last = i + 1
		}
	}
	ns.Output(t, "iptables-nft", "-I", "FORWARD", strconv.Itoa(last+1), "-i", "eth2", "-j", "DROP")
	expect(t, ns, true, "one after ours", ensure)
	expect(t, ns, false, "one after ours, again", ensure)
	ns.Output(t, "iptables-nft", "-D", "FORWARD", "-i", "eth1", "-j", "DROP")
	ns.Output(t, "iptables-nft", "-D", "FORWARD", "-i", "eth2", "-j", "DROP")
}

// listedRules leaves the policy out of what iptables -S lists.
func listedRules(listed string) []string {
	return slices.DeleteFunc(strings.Split(strings.TrimSpace(listed), "\n"), func(l string) bool { return !strings.HasPrefix(l, "-A") })
}

func isOurs(rule string) bool { return strings.Contains(rule, "liqonet: ") }
