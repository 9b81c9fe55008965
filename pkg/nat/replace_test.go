package nat_test

import (
	"context"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/test/netns"
)

// A gateway's chains drop by default. One that is deleted and made anew must do so at no moment without its rules.
func TestOtherRulesLoseNothing(t *testing.T) {
	pod, gw, peer := netns.New(t, "pod"), netns.New(t, "gateway"), netns.New(t, "peer")
	for _, ns := range []*netns.NS{pod, gw, peer} {
		ns.Sysctl(t, "ipv6/conf/all/disable_ipv6", "1")
	}
	netns.Veth(t, pod, "eth0", gw, "lqn1")
	netns.Veth(t, gw, "wg0", peer, "eth0")
	pod.Addr(t, "eth0", netip.MustParsePrefix("10.244.0.2/24"))
	gw.Addr(t, "lqn1", netip.MustParsePrefix("10.244.0.1/24"))
	gw.Addr(t, "wg0", netip.MustParsePrefix("10.63.0.1/24"))
	peer.Addr(t, "eth0", netip.MustParsePrefix("10.63.0.2/24"))
	gw.Sysctl(t, "ipv4/ip_forward", "1")
	gw.Output(t, "ip", "link", "set", "lqn1", "group", "1")
	gw.Output(t, "ip", "link", "set", "wg0", "group", "2")
	pod.Output(t, "ip", "route", "add", "10.63.0.0/16", "via", "10.244.0.1")
	peer.Output(t, "nft", "add table ip seen; add counter ip seen count; add chain ip seen c { type filter hook prerouting priority 0; }; add rule ip seen c udp dport 9 counter name count drop")
	apply := func(rate uint64) {
		expect(t, gw, true, "another limit", func() (bool, error) {
			g := gateway()
			g.LimitRate = rate
			return nat.ApplyGateway(context.Background(), g)
		})
	}
	apply(1e9)
	monitor(t, gw) // as agents do: the kernel tells of each rule while it takes it away
	var c net.Conn
	pod.Do(t, func() (err error) {
		c, err = net.Dial("udp4", "10.63.0.2:9")
		return err
	})
	defer func() { _ = c.Close() }()
	counter := regexp.MustCompile(`packets (\d+)`)
	arrived := func(want int) (got int) {
		for end := time.Now().Add(2 * time.Second); got < want && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			got, _ = strconv.Atoi(counter.FindStringSubmatch(peer.Output(t, "nft", "list counter ip seen count"))[1])
		}
		return got
	}
	if _, err := c.Write([]byte("?")); err != nil || arrived(1) != 1 { // neighbours are known then
		t.Fatalf("nothing arrives: %v", err)
	}
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
	want := <-sent
	got := arrived(want)
	if want < changes || got != want {
		t.Errorf("of %d packets %d arrived, during %d changes of rules", want, got, changes)
	}
}
