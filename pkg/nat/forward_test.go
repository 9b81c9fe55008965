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

func TestForward(t *testing.T) {
	ensure := func() (bool, error) { return nat.EnsureForward(context.Background(), "lq") }
	remove := func() (bool, error) { return nat.RemoveForward(context.Background()) }
	for name, setup := range map[string]string{
		"policy":  "iptables-nft -P FORWARD DROP; iptables-nft -A FORWARD -i eth0 -j ACCEPT",
		"reject":  "iptables-nft -A FORWARD -i eth0 -j ACCEPT; iptables-nft -A FORWARD -j REJECT",
		"drop":    "iptables-nft -A FORWARD -j DROP",
		"inet":    "nft 'add table inet fw; add chain inet fw f { type filter hook forward priority 10; policy drop; }'",
		"nothing": "iptables-nft -A FORWARD -i eth0 -j DROP; iptables-nft -A FORWARD -j MARK --set-mark 1",
	} {
		t.Run(name, func(t *testing.T) {
			ns := netns.New(t, name)
			ns.Output(t, "sh", "-ec", setup)
			before := ruleset(t, ns)
			if name == "nothing" {
				expect(t, ns, false, "ensure", ensure)
				return
			}
			expect(t, ns, true, "ensure", ensure)
			expect(t, ns, false, "ensure again", ensure)
			if name != "inet" {
				listed := ns.Output(t, "iptables-nft", "-S", "FORWARD")
				for _, part := range []string{"-i lq+", "-o lq+", "liqonet: from peers", "-j ACCEPT"} {
					if !strings.Contains(listed, part) {
						t.Errorf("iptables does not list %q:\n%s", part, listed)
					}
				}
				signals := monitor(t, ns)
				ns.Output(t, "iptables-nft", "-D", "FORWARD", strconv.Itoa(slices.IndexFunc(rulesOf(listed), isOurs)+1))
				signal(t, signals, "a deleted rule")
				expect(t, ns, true, "one deleted", ensure)
				expect(t, ns, false, "one deleted, again", ensure)
				// Others that append a rule decide before us.
				ns.Output(t, "iptables-nft", "-I", "FORWARD", "-i", "eth1", "-j", "DROP")
				expect(t, ns, false, "one at the beginning", ensure)
				ns.Output(t, "iptables-nft", "-I", "FORWARD", strconv.Itoa(len(rulesOf(listed))+1), "-i", "eth2", "-j", "DROP")
				expect(t, ns, true, "one after ours", ensure)
				expect(t, ns, false, "one after ours, again", ensure)
				ns.Output(t, "iptables-nft", "-D", "FORWARD", "-i", "eth1", "-j", "DROP")
				ns.Output(t, "iptables-nft", "-D", "FORWARD", "-i", "eth2", "-j", "DROP")
			}
			if name == "inet" {
				// A chain that is not called FORWARD.
				signals := monitor(t, ns)
				ns.Output(t, "nft", "add chain inet fw other { type filter hook output priority 0; policy accept; }")
				ns.Output(t, "nft", "add rule inet fw other accept")
				silence(t, signals)
				ns.Output(t, "nft", "delete chain inet fw other; flush chain inet fw f")
				signal(t, signals, "deleted rules")
				expect(t, ns, true, "both deleted", ensure)
				ns.Output(t, "nft", "add chain inet fw f { policy accept; }")
				signal(t, signals, "a policy")
				expect(t, ns, true, "a chain that accepts", ensure)
				ns.Output(t, "nft", "add chain inet fw f { policy drop; }")
				signal(t, signals, "a policy")
				expect(t, ns, true, "a chain that drops", ensure)
			}
			expect(t, ns, true, "remove", remove)
			expect(t, ns, false, "remove again", remove)
			if diff := cmp.Diff(before, ruleset(t, ns)); diff != "" {
				t.Errorf("(-before +after):\n%s", diff)
			}
		})
	}
}

// rulesOf leaves the policy out of what iptables -S lists.
func rulesOf(listed string) []string {
	return slices.DeleteFunc(strings.Split(strings.TrimSpace(listed), "\n"), func(l string) bool { return !strings.HasPrefix(l, "-A") })
}

func isOurs(rule string) bool { return strings.Contains(rule, "liqonet: ") }
