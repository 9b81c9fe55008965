// Package sabotage is what somebody may do to what the agents have put into a kernel,
// for tests of their repairs.
package sabotage

import (
	"regexp"
	"slices"
	"strings"

	"github.com/liqonet/liqonet/test/workload"
)

// Ours is a script that prints all that the agents have put into a kernel.
const Ours = `set -e
for l in $(ip -o link show | sed -n 's/^[0-9]*: \(loq[0-9n][^:@]*\|wg0\|gro0\|stolen0\)[:@].*/\1/p'); do
  ip -d -o link show dev $l; ip -o addr show dev $l; ip neigh show dev $l nud permanent; bridge fdb show dev $l
  for s in forwarding rp_filter; do echo $l $s; cat /proc/sys/net/ipv4/conf/$l/$s; done
done
ip rule; for t in 27761 27762; do ip route show table $t 2>/dev/null || true; done
nft list table ip liqonet; nft list table ip6 liqonet`

var interfaceIndex = regexp.MustCompile(`(?m)^\d+: `)

// Normal brings what Ours prints into a form in which two states that are equal are
// equal: an interface that was created again has another number.
func Normal(printed string) string {
	lines := strings.Split(interfaceIndex.ReplaceAllString(workload.WithoutCounters(printed), ""), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// Links is what somebody may do to LINK, which leads to PEER.
var Links = []string{
	"ip link del LINK",
	"ip link set LINK down",
	"ip link set LINK mtu 1300",
	"ip link set LINK address 02:00:00:00:00:01",
	"ip link set LINK alias ''",
	"ip link set LINK down; ip link set LINK name stolen0; ip link set stolen0 up",
	"ip link set LINK master foreign0",
	"ip link set LINK type vxlan remote 192.0.2.9",
	"ip addr flush dev LINK",
	"ip addr add 198.51.100.7/24 dev LINK",
	"ip link set LINK group default",
	"ip neigh del PEER dev LINK",
	"ip neigh replace PEER lladdr 02:00:00:00:00:02 dev LINK nud permanent",
	"bridge fdb del $(bridge fdb show dev LINK | sed -n 's/ self.*//;1p') dev LINK",
	"bridge fdb append 00:00:00:00:00:00 dev LINK dst 192.0.2.9",
	"echo 0 > /proc/sys/net/ipv4/conf/LINK/forwarding",
	"echo 1 > /proc/sys/net/ipv4/conf/LINK/rp_filter",
}

// Tables is the same for routes, rules and nftables.
var Tables = []string{
	"ip route flush table 27761",
	"ip route del $(ip route show table 27761 | grep -v unreachable | head -1) table 27761",
	"ip route del $(ip route show table 27761 | grep unreachable | head -1) table 27761",
	"ip route add 198.51.100.128/25 dev eth0 table 27761 proto 108",
	"ip rule del priority 90 lookup 27761",
	"ip rule add priority 90 from 10.1.1.1 lookup 27761 protocol 108",
	"nft delete table ip liqonet",
	"nft flush table ip liqonet",
	"nft flush table ip6 liqonet",
	"nft flush chain ip liqonet forward; nft delete chain ip liqonet forward",
	"nft delete rule ip liqonet forward handle $(nft -a list chain ip liqonet forward | sed -n 's/.*comment.* # handle //p' | head -1)",
	"nft insert rule ip liqonet forward accept",
	"nft add chain ip liqonet more",
	"nft add element ip liqonet SET { 198.51.100.1 }",
	"nft flush set ip liqonet SET",
}
