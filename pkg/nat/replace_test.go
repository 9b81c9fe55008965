package nat_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

// A gateway's chains drop by default. A chain that is deleted and re-created must never be without its rules.
func TestOtherRulesLoseNothing(t *testing.T) {
	pod, gw, peer := netns.New(t, "pod"), netns.New(t, "gateway"), netns.New(t, "peer")
	for _, ns := range []*netns.NS{pod, gw, peer} {
		ns.Sysctl(t, "ipv6/conf/all/disable_ipv6", "1")
	}
	netns.Veth(t, pod, "eth0", gw, "loqn1")
	netns.Veth(t, gw, "wg0", peer, "eth0")
	pod.Addr(t, "eth0", netip.MustParsePrefix("10.244.0.2/24"))
	gw.Addr(t, "loqn1", netip.MustParsePrefix("10.244.0.1/24"))
	gw.Addr(t, "wg0", netip.MustParsePrefix("10.63.0.1/24"))
	peer.Addr(t, "eth0", netip.MustParsePrefix("10.63.0.2/24"))
	gw.Sysctl(t, "ipv4/ip_forward", "1")
	gw.Output(t, "ip", "link", "set", "loqn1", "group", "1")
	gw.Output(t, "ip", "link", "set", "wg0", "group", "2")
	pod.Output(t, "ip", "route", "add", "10.63.0.0/16", "via", "10.244.0.1")
	peer.Output(t, "nft", "add table ip seen; add counter ip seen count; add chain ip seen c { type filter hook prerouting priority 0; }; add rule ip seen c udp dport 9 counter name count drop")
	apply := func(rate uint64) {
		netns.Expect(t, gw, true, "another limit", func() (bool, error) {
			g := gateway()
			g.LimitRate = rate
			return nat.ApplyGateway(context.Background(), g)
		})
	}
	apply(1e9)
	monitor(t, gw) // as agents do: the kernel notifies of each rule that it removes
	c := netns.In(t, pod, func() (net.Conn, error) { return net.Dial("udp4", "10.63.0.2:9") })
	t.Cleanup(func() { kit.CheckNoError(t, c.Close()) })
	arrive := func(sent int) {
		want := fmt.Sprintf("packets %d ", sent)
		kit.Within(t, 2*time.Second, fmt.Sprintf("all %d packets arrive", sent), func() string {
			if got := peer.Output(t, "nft", "list counter ip seen count"); !strings.Contains(got, want) {
				return got
			}
			return ""
		})
	}
	kit.NoError(t, kit.Err(c.Write([]byte("?"))))
	arrive(1) // resolves neighbors
	ctx, cancel := context.WithCancel(context.Background())
	sent := make(chan int)
	go func() {
		n := 1
		for ctx.Err() == nil {
			if _, err := c.Write([]byte("?")); err == nil {
				n++
			}
		}
		sent <- n
	}()
	const changes = 60
	for i := range changes {
		apply(1e9 + uint64(1+i%2))
	}
	cancel()
	n := <-sent
	kit.ErrorIf(t, n < changes, "%d packets are too few for %d changes of rules", n, changes)
	arrive(n)
}
