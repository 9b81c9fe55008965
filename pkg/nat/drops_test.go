package nat_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

// dropped returns the result of Drops, without counters that are zero.
func dropped(t *testing.T, ns *netns.NS) map[string]uint64 {
	t.Helper()
	out := map[string]uint64{}
	ns.Do(t, func() error {
		drops, err := nat.Drops()
		kit.ErrorIf(t, len(drops) == 0, "there are no counters")
		for _, d := range drops {
			if d.Packets > 0 {
				out[fmt.Sprintln(d.Hook, d.Reason, d.Link)] = d.Packets
			}
		}
		return err
	})
	return out
}

// Metrics are for the cluster's own pods, on the pod's own interface. Packets from others are dropped and counted, and
// the counter keeps its value when the table is replaced.
func TestMetricsPort(t *testing.T) {
	pod, others := netns.New(t, "gateway"), netns.New(t, "others")
	// Kernels send IPv6 packets spontaneously, which are dropped and counted.
	for _, ns := range []*netns.NS{pod, others} {
		ns.Sysctl(t, "ipv6/conf/all/disable_ipv6", "1")
		ns.Sysctl(t, "ipv6/conf/default/disable_ipv6", "1")
	}
	own, node, among, peer := addr("10.245.0.2"), addr("192.0.2.2"), addr("10.245.0.1"), addr("10.63.0.2")
	for i, name := range []string{"eth0", "loqn1", "wg0"} {
		netns.Veth(t, pod, name, others, fmt.Sprintf("to%d", i))
		pod.Addr(t, name, netip.PrefixFrom(addr(fmt.Sprintf("10.9.%d.1", i)), 24))
		others.Addr(t, fmt.Sprintf("to%d", i), netip.PrefixFrom(addr(fmt.Sprintf("10.9.%d.2", i)), 24))
		pod.Sysctl(t, "ipv4/conf/"+name+"/rp_filter", "0")
	}
	pod.Sysctl(t, "ipv4/conf/all/rp_filter", "0")
	for _, a := range []netip.Addr{own, node, among, peer} {
		others.Addr(t, "lo", netip.PrefixFrom(a, 32))
	}
	pod.Output(t, "ip", "link", "set", "loqn1", "group", "1")
	pod.Output(t, "ip", "link", "set", "wg0", "group", "2")
	pod.Do(t, func() error {
		l, err := net.Listen("tcp4", ":6099")
		if err == nil {
			t.Cleanup(func() { _ = l.Close() })
		}
		return err
	})
	apply := func(g nat.Gateway) {
		netns.In(t, pod, func() (bool, error) { return nat.ApplyGateway(context.Background(), g) })
	}
	reaches := func(from netip.Addr, by int) bool {
		pod.Output(t, "ip", "route", "replace", from.String(), "dev", []string{"eth0", "loqn1", "wg0"}[by], "via", fmt.Sprintf("10.9.%d.2", by))
		var conn net.Conn
		err := others.Run(func() (err error) {
			d := net.Dialer{Timeout: 300 * time.Millisecond, LocalAddr: &net.TCPAddr{IP: from.AsSlice()}}
			conn, err = d.Dial("tcp4", fmt.Sprintf("10.9.%d.1:6099", by))
			return err
		})
		if err != nil {
			var timeout net.Error
			if !errors.As(err, &timeout) || !timeout.Timeout() {
				t.Fatal(err)
			}
			return false
		}
		_ = conn.Close()
		return true
	}
	try := func() map[string]bool {
		return map[string]bool{
			"own pod": reaches(own, 0), "node": reaches(node, 0), "node, by an address among the pods'": reaches(among, 0), "peer's pod, by the pod network": reaches(peer, 0),
			"own pod, by the overlay": reaches(own, 1), "own pod, by the tunnel": reaches(own, 2), "peer's pod, by the tunnel": reaches(peer, 2),
		}
	}
	for what, got := range try() {
		kit.ErrorIf(t, !got, "without a table, %s does not arrive, so the test proves nothing", what)
	}
	g := gateway()
	g.Nodes = append(g.Nodes, among)
	apply(g)
	want := map[string]bool{
		"own pod": true, "node": false, "node, by an address among the pods'": false, "peer's pod, by the pod network": false,
		"own pod, by the overlay": false, "own pod, by the tunnel": false, "peer's pod, by the tunnel": false,
	}
	kit.Check(t, "who reads metrics", try(), want)
	before := dropped(t, pod)
	if n := before[fmt.Sprintln("input", "not-allowed", "")]; n < 3 {
		t.Errorf("dropped: %v", before)
	}
	g.LimitRate = 1e6
	apply(g)
	kit.Check(t, "after the table was replaced", dropped(t, pod), before)
}

// A kernel without named counters gets the same table without them, each time.
func TestUncounted(t *testing.T) {
	ns := netns.New(t, "uncounted")
	ns.Do(t, func() error {
		for _, want := range []bool{true, false} {
			if changed, err := nat.ApplyUncountable(context.Background(), gateway()); err != nil || changed != want {
				return fmt.Errorf("changed: %v, %w", changed, err)
			}
		}
		drops, err := nat.Drops()
		if len(drops) > 0 {
			t.Error(drops)
		}
		if _, err := nat.ApplyGateway(context.Background(), gateway()); err != nil {
			return err
		}
		if drops, _ := nat.Drops(); len(drops) == 0 {
			t.Error("the kernel supports counters, but there are none")
		}
		return err
	})
}
