package firewall_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/liqonet/liqonet/pkg/firewall"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

// Rules of others in a network namespace are found, whichever tool has added them. Chains and tables without rules are
// not, nor are our own.
func TestForeign(t *testing.T) {
	kit.NotShort(t)
	for name, test := range map[string]struct {
		program string
		args    []string
		want    []string
	}{
		"nothing":                 {"nft", []string{"list ruleset"}, nil},
		"our table":               {"nft", []string{"table ip liqonet { chain input { type filter hook input priority 0; policy drop; }; }"}, nil},
		"an empty chain":          {"nft", []string{"table ip nat { chain PREROUTING { type nat hook prerouting priority 0; }; }"}, nil},
		"a chain without a hook":  {"nft", []string{"table ip other { chain unused { drop; }; }"}, nil},
		"a mesh's redirect":       {"iptables-nft", []string{"-w", "-t", "nat", "-A", "PREROUTING", "-p", "tcp", "-j", "REDIRECT", "--to-ports", "15006"}, []string{"nftables chain nat PREROUTING"}},
		"a chain that drops":      {"nft", []string{"table inet other { chain in { type filter hook input priority 0; policy drop; }; }"}, []string{"nftables chain other in"}},
		"a chain at an interface": {"nft", []string{"table netdev other { chain in { type filter hook ingress device lo priority 0; drop; }; }"}, []string{"nftables chain other in"}},
		"rules for IPv6":          {"nft", []string{"table ip6 other { chain in { type filter hook input priority 0; drop; }; }"}, []string{"nftables chain other in"}},
		"an empty legacy table":   {"iptables-legacy", []string{"-w", "-t", "nat", "-L"}, nil},
		"a legacy redirect":       {"iptables-legacy", []string{"-w", "-t", "nat", "-A", "PREROUTING", "-p", "tcp", "-j", "REDIRECT"}, []string{"iptables-legacy table nat"}},
		"a legacy policy":         {"iptables-legacy", []string{"-w", "-P", "FORWARD", "DROP"}, []string{"iptables-legacy table filter"}},
		"a legacy policy before":  {"iptables-legacy", []string{"-w", "-t", "mangle", "-P", "PREROUTING", "DROP"}, []string{"iptables-legacy table mangle"}},
		"a legacy mark":           {"iptables-legacy", []string{"-w", "-t", "mangle", "-A", "OUTPUT", "-j", "MARK", "--set-mark", "1"}, []string{"iptables-legacy table mangle"}},
	} {
		t.Run(name, func(t *testing.T) {
			ns := netns.New(t, "gateway")
			ns.Output(t, test.program, test.args...)
			kit.Check(t, "found", netns.In(t, ns, firewall.Foreign), test.want)
		})
	}
}

// Rules of others are named that drop packets of peers, and no others.
func TestPartialDrops(t *testing.T) {
	kit.NotShort(t)
	const chain = "table inet other { chain f { type filter hook forward priority 0; %s; }; }"
	ranges := []netip.Prefix{netip.MustParsePrefix("10.61.0.0/16"), netip.MustParsePrefix("10.62.0.0/18")}
	for rule, want := range map[string]string{
		"ip daddr 10.61.0.0/16 drop":              "nftables chain inet other f: to 10.61.0.0/16",
		"ip saddr 10.62.1.0/24 counter drop":      "nftables chain inet other f: from 10.62.1.0/24",
		"ip saddr 10.62.0.0/18 reject":            "nftables chain inet other f: from 10.62.0.0/18",
		"ip daddr 10.61.2.3 tcp dport 80 drop":    "nftables chain inet other f: to 10.61.2.3/32",
		"iifname loq0-0 drop":                     "nftables chain inet other f: interface loq0-0",
		`oifname "loq*" drop`:                     "nftables chain inet other f: interface loq",
		"udp dport 6094 drop":                     "nftables chain inet other f: port 6094",
		"ip daddr 10.61.0.0/16 accept":            "",
		"ip daddr != 10.61.0.0/16 drop":           "",
		"ip daddr 10.63.0.0/16 drop":              "",
		"ip saddr 192.0.2.1 drop":                 "",
		"iifname eth0 drop":                       "",
		"udp dport 53 drop":                       "",
		"ip protocol udp drop":                    "",
		"drop":                                    "",
		"iptables -A FORWARD -d 10.61.0.0/16":     "nftables chain ip filter FORWARD: to 10.61.0.0/16",
		"iptables -A INPUT -p udp --dport 6094":   "nftables chain ip filter INPUT: UDP port 6094",
		"iptables -A INPUT -p udp --dport 53":     "",
		"iptables -A FORWARD -i loq+":             "nftables chain ip filter FORWARD: interface loq",
		"iptables -A FORWARD ! -d 10.61.0.0/16":   "",
		"iptables -A OUTPUT -d 10.62.63.1":        "nftables chain ip filter OUTPUT: to 10.62.63.1/32",
		"iptables -A FORWARD -s 10.0.0.0/8":       "nftables chain ip filter FORWARD: from 10.0.0.0/8",
		"iptables -A FORWARD -p tcp --dport 6094": "",
	} {
		t.Run(rule, func(t *testing.T) {
			ns := netns.New(t, "node")
			if args, is := strings.CutPrefix(rule, "iptables "); is {
				ns.Output(t, "iptables-nft", append([]string{"-w"}, append(strings.Fields(args), "-j", "DROP")...)...)
			} else {
				ns.Output(t, "nft", fmt.Sprintf(chain, rule))
			}
			found := netns.In(t, ns, func() ([]string, error) { return firewall.PartialDrops(ranges, 6094) })
			for _, f := range found {
				// Versions of iptables differ in how they compare a port.
				kit.ErrorIf(t, strings.Replace(f, "UDP port", "port", 1) != strings.Replace(want, "UDP port", "port", 1), "found %q, want %q", f, want)
			}
			kit.ErrorIf(t, len(found) == 0 && want != "", "nothing was found")
		})
	}
}
