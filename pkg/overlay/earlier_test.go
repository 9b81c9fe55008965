package overlay_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/liqonet/liqonet/test/kit"
)

// Rules that come before ours are named if they take packets to a peer's range elsewhere, or drop them.
func TestEarlierRules(t *testing.T) {
	for rule, want := range map[string]string{
		"pref 10 iif pod lookup 101":                                        "10: from all iif pod lookup 101",
		"pref 10 from 10.244.1.0/24 to 10.61.0.0/17 lookup 101":             "10: from 10.244.1.0/24 to 10.61.0.0/17 lookup 101",
		"pref 10 not fwmark 0x100 lookup 101":                               "10: not from all lookup 101",
		"pref 10 lookup 102":                                                "10: from all lookup 102",
		"pref 10 iif pod goto 32766":                                        "10: from all iif pod goto 32766",
		"pref 10 lookup 103":                                                "", // the table has no route to the range
		"pref 10 lookup 104":                                                "", // the table does not exist
		"pref 10 to 192.0.2.0/24 lookup 101":                                "",
		"pref 10 fwmark 0x100 lookup 101":                                   "",
		"pref 10 lookup 101 suppress_prefixlength 0":                        "",
		"pref 91 lookup 101":                                                "",
		"pref 10 oif eth0 lookup 101":                                       "",
		"pref 10 iif pod lookup local":                                      "",
		"pref 10 from 10.244.1.0/24 to 10.0.0.0/8 prohibit":                 "10: from 10.244.1.0/24 to 10.0.0.0/8 prohibit",
		"pref 10 iif pod blackhole":                                         "10: from all iif pod blackhole",
		"pref 10 unreachable":                                               "10: from all unreachable",
		"pref 10 to 192.0.2.0/24 blackhole":                                 "",
		"pref 91 prohibit":                                                  "",
		"pref 90 lookup 101":                                                "90: from all lookup 101",
		"pref 90 lookup 101; ip rule add pref 90 protocol 108 lookup 27761": "90: from all lookup 101",
		"pref 90 protocol 108 lookup 27761; ip rule add pref 90 lookup 101": "",
		"pref 10 from 10.244.1.1 goto 20; ip rule add pref 20 nop":          "",
	} {
		t.Run(rule, func(t *testing.T) {
			f := open(t)
			f.run("ip link set lo up; ip route add default dev lo table 101; ip route add 10.61.4.0/24 dev lo table 102; ip route add 10.62.0.0/16 dev lo table 103")
			f.run("ip rule add " + rule)
			found, err := f.kernel.EarlierRules([]netip.Prefix{netip.MustParsePrefix("10.61.0.0/16")})
			kit.NoError(t, err)
			kit.Check(t, "found", strings.Join(found, "; "), want)
		})
	}
}
