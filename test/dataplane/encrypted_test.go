package dataplane_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/samber/lo"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

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

// While an agent replaces or repairs its rules and links, nothing leaves unencrypted, although all packets would without the table.
func TestNothingLeavesWhileRulesChange(t *testing.T) {
	o := anyPair(t)
	n := dataplane.New(t, o)
	a, peer, router := n.A, n.B.Nodes[0].Pod, n.LAN
	node := a.Nodes[0]
	node.Do(t, dataplane.AcceptForward)
	node.Route(t, netip.MustParsePrefix("0.0.0.0/0"), router.Addr)
	for _, at := range []string{"all", "eth0", "cni0"} {
		node.Sysctl(t, "ipv4/conf/"+at+"/rp_filter", "0")
	}
	router.NS.Addr(t, "lo", netip.PrefixFrom(peer.Mapped, 32))
	leaked := arrivals(t, router.NS, netip.AddrPortFrom(peer.Mapped, dataplane.RemotePort))
	sent := sendAlways(t, netip.AddrPortFrom(peer.Mapped, dataplane.RemotePort), node.Pod.NS, node.NS)
	table, state := a.NodeTable(0), a.NodeState(t, o.Overlay, 0)
	applyTable := func(change func(*nat.Node)) {
		want := table
		want.Gateways, want.Remote = slices.Clone(table.Gateways), slices.Clone(table.Remote)
		change(&want)
		netns.Expect(t, node.NS, true, "the table", func() (bool, error) { return nat.ApplyNode(t.Context(), want) })
	}
	unrouted := func(do func(i int)) func(int) {
		return func(i int) {
			if i == 0 {
				node.Do(t, func() error { return netlink.RuleDel(ourRule()) })
			}
			do(i)
		}
	}
	for _, c := range []struct {
		name string
		do   func(i int)
	}{
		{"another limit", unrouted(func(i int) { applyTable(func(w *nat.Node) { w.Gateways[0].LimitNew = uint32(1 + i%2) }) })},
		{"an adjacent range comes and goes", unrouted(func(i int) {
			applyTable(func(w *nat.Node) { // the ranges become one in the kernel
				if i%2 == 0 {
					w.Remote = append(w.Remote, netip.MustParsePrefix("10.60.0.0/16"))
				}
			})
		})},
		{"ends of tunnels come and go", unrouted(func(i int) {
			applyTable(func(w *nat.Node) {
				if i%2 == 0 {
					w.Endpoints = []netip.Addr{peer.Mapped.Next()}
				}
			})
		})},
		{"the table becomes dormant", unrouted(func(int) {
			// For a moment, only the unreachable routes are left, so our rule is back.
			dataplane.ApplyNode(t, node.NS, table, state)
			dormant(t, node.NS)
			dataplane.ApplyNode(t, node.NS, table, state)
		})},
		{"a link is deleted", func(int) {
			node.Do(t, func() error {
				l, err := netlink.LinkByName(state.Links[0].Name)
				if err != nil {
					return err
				}
				return netlink.LinkDel(l)
			})
			dataplane.ApplyNode(t, node.NS, table, state)
		}},
		{"our rule is deleted", func(int) {
			node.Do(t, func() error { return netlink.RuleDel(ourRule()) })
			dataplane.ApplyNode(t, node.NS, table, state)
		}},
	} {
		before, lost := sent(), leaked()
		for i := range lo.Ternary(kit.Full(), 40, 8) {
			c.do(i)
		}
		dataplane.ApplyNode(t, node.NS, table, state)
		kit.ErrorIf(t, sent()-before < 100, "%s: %d packets are too few", c.name, sent()-before)
		kit.ErrorIf(t, leaked() > lost, "%s: %d of %d packets left unencrypted", c.name, leaked()-lost, sent()-before)
	}
	removeChain(t, node.NS, "encrypted-only")
	node.Do(t, func() error { return netlink.RuleDel(ourRule()) })
	kit.Within(t, patience, "packets leave unencrypted without the chain", func() string {
		return lo.Ternary(leaked() == 0, "none does", "")
	})
}

// arrivals counts the packets that arrive at an address.
func arrivals(t *testing.T, ns *netns.NS, at netip.AddrPort) (count func() int64) {
	t.Helper()
	conn := netns.In(t, ns, func() (*net.UDPConn, error) { return net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at)) })
	t.Cleanup(func() { kit.CheckNoError(t, conn.Close()) })
	var n atomic.Int64
	go func() {
		for b := make([]byte, 100); ; n.Add(1) {
			if _, err := conn.Read(b); err != nil {
				return
			}
		}
	}()
	return n.Load
}

// sendPause leaves the processor to agents.
const sendPause = 20 * time.Microsecond

// sendAlways sends packets from namespaces all the time. Some are refused, as errors of earlier ones tell.
func sendAlways(t *testing.T, to netip.AddrPort, from ...*netns.NS) (count func() int64) {
	t.Helper()
	var n atomic.Int64
	var sending sync.WaitGroup
	ctx, end := context.WithCancel(t.Context())
	t.Cleanup(func() { end(); sending.Wait() })
	for _, ns := range from {
		conn := netns.In(t, ns, func() (net.Conn, error) { return net.Dial("udp4", to.String()) })
		t.Cleanup(func() { kit.CheckNoError(t, conn.Close()) })
		sending.Go(func() {
			for ctx.Err() == nil {
				if _, err := conn.Write([]byte("plain")); err == nil {
					n.Add(1)
				}
				time.Sleep(sendPause)
			}
		})
	}
	return n.Load
}

// dormant makes our table do nothing.
func dormant(t *testing.T, ns *netns.NS) {
	t.Helper()
	ns.Do(t, func() error {
		c := &nftables.Conn{}
		c.AddTable(&nftables.Table{Name: nft.TableName, Family: nftables.TableFamilyIPv4, Flags: unix.NFT_TABLE_F_DORMANT})
		return c.Flush()
	})
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
