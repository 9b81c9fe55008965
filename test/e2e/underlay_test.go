package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
)

// A node whose own interface gets another name, as when it becomes the port of a
// bond, is repaired as any other.
func underlayRenamed(t *testing.T, ctx context.Context, a, b *cluster) {
	_, target := a.withoutGateway(t)
	rename := func(ctx context.Context, from, to string) {
		t.Helper()
		must(target.shell(ctx, fmt.Sprintf(`set -e
			routes=$(ip -o route show dev %[1]s | grep -v 'proto kernel')
			ip link set %[1]s down; ip link set %[1]s name %[2]s; ip link set %[2]s up
			echo "$routes" | sort -r | while read -r route; do ip route add $route dev %[2]s; done`, from, to)))(t)
		eventually(t, ctx, callTimeout, "the node's agent knows the interface by its name "+to, func() string {
			out, err := target.shell(ctx, "nft list table ip liqonet")
			return unless(err == nil && strings.Contains(out, fmt.Sprintf("iifname %q", to)), "it does not: %v", err)
		})
	}
	rename(ctx, "eth0", "uplink0")
	back := sync.OnceFunc(func() { rename(context.WithoutCancel(ctx), "uplink0", "eth0") })
	defer back()
	p := &patient{target.vantage, a.nodeAgent(t, target.Node.Name), "pods"}
	p.repaired(t, ctx, []string{"ip link del LINK", "ip rule del priority 90 lookup 27761"})
	checkMended(t, ctx, a, b)
	back()
}
