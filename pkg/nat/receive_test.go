package nat_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

func TestReceive(t *testing.T) {
	ns, node := netns.New(t, "gateway"), netns.New(t, "node")
	netns.Veth(t, ns, "eth0", node, "veth")
	before := netns.Ruleset(t, ns)
	receive := func(ports ...uint16) (bool, error) {
		return nat.ApplyReceive(context.Background(), nat.Receive{Underlay: "eth0", Entry: "gro0in", Ports: ports})
	}
	apply := func() (bool, error) { return receive(51840, 6094) }
	link := func(f func(netlink.Link) error) {
		t.Helper()
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "gro0in"
		ns.Do(t, func() error { return f(&netlink.Veth{LinkAttrs: attrs, PeerName: "gro0"}) })
	}
	netns.Expect(t, ns, false, "without the interface", apply)
	link(netlink.LinkAdd)
	netns.Expect(t, ns, true, "first", apply)
	netns.Expect(t, ns, false, "again", apply)
	applied := netns.Ruleset(t, ns)
	signals := monitor(t, ns)
	for _, damage := range []string{
		"delete table netdev liqonet",
		"flush table netdev liqonet",
		"add table netdev liqonet { flags dormant; }",
		"flush chain netdev liqonet receive; delete chain netdev liqonet receive",
		"insert rule netdev liqonet receive drop",
		"add rule netdev liqonet receive udp dport 1 drop",
		"add chain netdev liqonet extra",
		"add set netdev liqonet extra { type ipv4_addr; }",
	} {
		ns.Output(t, "nft", damage)
		kit.Signaled(t, signals, damage)
		netns.Expect(t, ns, true, damage, apply)
		kit.Check(t, fmt.Sprintf("%s: not as before", damage), netns.Ruleset(t, ns), applied)
		netns.Expect(t, ns, false, damage+", again", apply)
		for len(signals) > 0 {
			<-signals
		}
	}

	// A refused transaction changes nothing, and sends no notification: each one would cause another attempt.
	netns.Expect(t, ns, true, "another port", func() (bool, error) { return receive(51840, 6094, 9) })
	for len(signals) > 0 {
		<-signals
	}
	several := netns.Ruleset(t, ns)
	ns.Do(t, func() error {
		if err := nat.ReceiveUnknown("eth0"); !errors.Is(err, unix.ENOENT) {
			t.Errorf("an expression that refers to an unknown set: %v", err)
		}
		return nil
	})
	kit.Check(t, "after a failed attempt", netns.Ruleset(t, ns), several)
	kit.Silent(t, signals, quiet, "no change")
	netns.Expect(t, ns, true, "as before", apply)

	// Rules identify interfaces by index.
	link(netlink.LinkDel)
	link(netlink.LinkAdd)
	netns.Expect(t, ns, true, "a new interface", apply)
	netns.Expect(t, ns, false, "a new interface, again", apply)
	link(netlink.LinkDel)
	netns.Expect(t, ns, true, "the interface is gone", apply)
	kit.Check(t, "not as before", netns.Ruleset(t, ns), before)

	link(netlink.LinkAdd)
	netns.Expect(t, ns, true, "once more", apply)
	netns.Expect(t, ns, true, "purge", func() (bool, error) { return nat.Purge() })
	kit.Check(t, "after purge", netns.Ruleset(t, ns), before)
}
