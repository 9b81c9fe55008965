package dataplane_test

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/google/nftables"
	"github.com/samber/lo"
	"github.com/vishvananda/netlink"

	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/nft"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

// elsewhere is a table of others with a default route that leads out of the nodes.
const elsewhere = 101

// otherRule returns a rule of others, as for an interface of a pod with its own network card, or for all packets.
func otherRule(iif string) *netlink.Rule {
	r := netlink.NewRule()
	r.Priority, r.Table, r.IifName = 10, elsewhere, iif
	return r
}

// ourRule returns our rule, for its deletion.
func ourRule() *netlink.Rule {
	r := netlink.NewRule()
	r.Priority, r.Table, r.Protocol = overlay.RulePriority, overlay.Table, overlay.Protocol
	return r
}

// unencrypted returns how many packets the node's tables have dropped because they would have left unencrypted.
func unencrypted(t *testing.T, node dataplane.Node) (packets uint64) {
	t.Helper()
	for _, d := range netns.In(t, node, nat.Drops) {
		packets += lo.Ternary(d.Reason == nat.Unencrypted, d.Packets, 0)
	}
	return packets
}

// A node's own packets, those of its pods, and those that services redirect leave for a peer by the
// overlay only. Otherwise they are dropped and counted, whatever sends them another way.
func TestNothingLeavesUnencrypted(t *testing.T) {
	o := anyPair(t)
	n := dataplane.New(t, o)
	a, peer, router := n.A, n.B.Nodes[0].Pod, n.LAN
	dataplane.ServeUDP(t, peer.NS, dataplane.RemotePort)
	pods := map[int]string{0: "cni0", 1: "veth-pod"}
	for i, dev := range pods {
		// The router takes whatever is for the peer.
		a.Nodes[i].Do(t, dataplane.AcceptForward)
		a.Nodes[i].Route(t, netip.MustParsePrefix("0.0.0.0/0"), router.Addr)
		a.Nodes[i].Do(t, func() error {
			return netlink.RouteAdd(&netlink.Route{Dst: netlink.NewIPNet(nil), Gw: router.Addr.AsSlice(), Table: elsewhere})
		})
		for _, at := range []string{"all", "eth0", dev} {
			a.Nodes[i].Sysctl(t, "ipv4/conf/"+at+"/rp_filter", "0")
		}
	}
	router.NS.Addr(t, "lo", netip.PrefixFrom(peer.Mapped, 32))
	port := uint16(9500)
	// leaks reports whether UDP to the peer reaches the router.
	leaks := func(from *netns.NS, source netip.Addr) bool {
		port++
		packet := dataplane.Packet(netip.AddrPortFrom(source, 1234), netip.AddrPortFrom(peer.Mapped, port), []byte("plain"))
		return dataplane.Receives(t, router.NS, port, netip.Addr{}, func() error { return orRefused(dataplane.SendRaw(from, packet)) })
	}
	for i, dev := range pods {
		node := a.Nodes[i]
		senders := map[string]func() bool{
			"a pod":    func() bool { return leaks(node.Pod.NS, node.Pod.Addr) },
			"the node": func() bool { return leaks(node.NS, node.Host.Addr) },
			"a service, for the node": func() bool {
				return dataplane.Receives(t, router.NS, dataplane.RemotePort, netip.Addr{}, func() error {
					return node.Run(func() error {
						c, err := net.Dial("udp4", netip.AddrPortFrom(node.Host.Addr, dataplane.RemoteNodePort).String())
						if err != nil {
							return err
						}
						return orRefused(errors.Join(kit.Err(c.Write([]byte("plain"))), c.Close()))
					})
				})
			},
		}
		works := func() {
			t.Helper()
			for what, call := range map[string]func() (netip.Addr, error){
				"a pod":    func() (netip.Addr, error) { return dataplane.UDP(node.Pod.NS, peer.Mapped, dataplane.RemotePort, 100) },
				"the node": func() (netip.Addr, error) { return dataplane.UDP(node.NS, peer.Mapped, dataplane.RemotePort, 100) },
				"a service, for the node": func() (netip.Addr, error) {
					return dataplane.UDP(node.NS, node.Host.Addr, dataplane.RemoteNodePort, 100)
				},
				"a service, for a host": func() (netip.Addr, error) {
					return dataplane.UDP(n.LAN.NS, node.Host.Addr, dataplane.RemoteNodePort, 100)
				},
			} {
				_, err := call()
				kit.CheckNoError(t, err, what)
			}
			kit.CheckNoError(t, dataplane.Ping(n.B.Nodes[1].Pod.NS, node.Pod.Mapped, 56, patience), "from the peer")
		}
		works()
		kit.ErrorIf(t, unencrypted(t, node) > 0, "packets that leave by the overlay were counted")
		for what, fault := range map[string]struct{ begin, end func() error }{
			"our rule is deleted": {
				func() error { return netlink.RuleDel(ourRule()) },
				func() error { return netlink.RuleAdd(ourRule()) },
			},
			"a rule for a pod comes first": {
				func() error { return netlink.RuleAdd(otherRule(dev)) },
				func() error { return netlink.RuleDel(otherRule(dev)) },
			},
			"a rule comes first": {
				func() error { return netlink.RuleAdd(otherRule("")) },
				func() error { return netlink.RuleDel(otherRule("")) },
			},
		} {
			node.Do(t, fault.begin)
			for who, leaks := range senders {
				before := unencrypted(t, node)
				isLeak, isSeen := leaks(), what != "a rule for a pod comes first" || who == "a pod"
				kit.ErrorIf(t, isLeak, "node %d: %s: packets of %s leave unencrypted", i, what, who)
				kit.ErrorIf(t, isSeen != (unencrypted(t, node) > before), "node %d: %s: packets of %s: counted: %v", i, what, who, !isSeen)
			}
			// Without the rule.
			removeChain(t, node.NS, "encrypted-only")
			kit.ErrorIf(t, !senders["a pod"](), "node %d: %s: packets do not leave unencrypted without the chain either, so the test proves nothing", i, what)
			node.Do(t, fault.end)
			dataplane.ApplyNode(t, node.NS, a.NodeTable(i), a.NodeState(t, o.Overlay, i))
		}
		works()
	}
}

// removeChain removes a chain of our table.
func removeChain(t *testing.T, ns *netns.NS, name string) {
	t.Helper()
	ns.Do(t, func() error {
		c := &nftables.Conn{}
		chain := &nftables.Chain{Name: name, Table: &nftables.Table{Name: nft.TableName, Family: nftables.TableFamilyIPv4}}
		c.FlushChain(chain)
		c.DelChain(chain)
		return c.Flush()
	})
}
