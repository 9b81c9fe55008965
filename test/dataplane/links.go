package dataplane

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/test/netns"
)

// setLinks configures the links below overlay and tunnel according to the options.
func (n *Topology) setLinks(t testing.TB, o Options) {
	t.Helper()
	if o.UnderlayMTU != 0 {
		for _, ns := range n.all() {
			ns.Do(t, func() error { return setAllMTU(o.UnderlayMTU) })
		}
	}
	if o.IPv6 {
		n.addIPv6(t)
	}
}

// all returns all namespaces.
func (n *Topology) all() []*netns.NS {
	out := []*netns.NS{n.net, n.LAN.NS}
	for _, c := range n.Clusters() {
		for _, s := range c.Sides() {
			out = append(out, s.Gateway.NS)
		}
		for i := range c.Nodes {
			out = append(out, c.Nodes[i].NS, c.Nodes[i].Pod.NS)
		}
	}
	return out
}

// setAllMTU omits the bridges, because each follows its ports.
func setAllMTU(mtu int) error {
	links, err := netlink.LinkList()
	for _, l := range links {
		if l.Type() == "veth" {
			err = errors.Join(err, netlink.LinkSetMTU(l, mtu))
		}
	}
	return err
}

func ipv6Gateway(cluster int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf("fd00:%d::10", cluster))
}

// addIPv6 adds IPv6 addresses by which the gateways reach each other, through their nodes and without translation.
func (n *Topology) addIPv6(t testing.TB) {
	t.Helper()
	add := func(ns *netns.NS, dev, addr string) {
		// Without duplicate address detection, which takes a second.
		ns.Sysctl(t, "ipv6/conf/"+dev+"/accept_dad", "0")
		ns.Addr(t, dev, netip.MustParsePrefix(addr))
	}
	for i, c := range []*Cluster{n.A, n.B} {
		number, other := i+1, 2-i
		node := c.Nodes[0].NS
		node.Sysctl(t, "ipv6/conf/all/forwarding", "1")
		add(node, "eth0", fmt.Sprintf("fd00:18::%d/64", number))
		add(node, "cni0", fmt.Sprintf("fd00:%d::1/64", number))
		add(c.Gateway.NS, "eth0", netip.PrefixFrom(ipv6Gateway(number), 64).String())
		c.Gateway.Route(t, netip.MustParsePrefix("::/0"), netip.MustParseAddr(fmt.Sprintf("fd00:%d::1", number)))
		node.Route(t, netip.MustParsePrefix(fmt.Sprintf("fd00:%d::/64", other)), netip.MustParseAddr(fmt.Sprintf("fd00:18::%d", other)))
	}
}

// Fragments returns how many fragments each namespace has created.
func (n *Topology) Fragments(t testing.TB) string {
	t.Helper()
	var out []string
	for _, ns := range n.all() {
		n := netns.In(t, ns, func() (string, error) { return fragments() })
		out = append(out, ns.Name+" "+n)
	}
	return strings.Join(out, ", ")
}

// fragments reads the counters of IPv4 and IPv6 in the thread's namespace.
func fragments() (string, error) {
	v4, err4 := os.ReadFile("/proc/thread-self/net/snmp")
	v6, err6 := os.ReadFile("/proc/thread-self/net/snmp6")
	if err := errors.Join(err4, err6); err != nil {
		return "", err
	}
	lines := strings.Split(string(v4), "\n") // those of IP are first: names, then values
	column := slices.Index(strings.Fields(lines[0]), "FragCreates")
	_, after, found := strings.Cut(string(v6), "Ip6FragCreates")
	if column < 0 || !found {
		return "", errors.New("the kernel does not count fragments")
	}
	return strings.Fields(lines[1])[column] + "+" + strings.Fields(after)[0], nil
}

// Delivers sends a UDP packet of size bytes (with headers) until it arrives. The packet must not be fragmented, and is
// sent even if the kernel knows a smaller path MTU.
func Delivers(ns *netns.NS, dst netip.Addr, at *netns.NS, port uint16, size int) error {
	var sink net.PacketConn
	if err := at.Run(func() (err error) {
		sink, err = net.ListenPacket("udp4", fmt.Sprintf(":%d", port))
		return err
	}); err != nil {
		return err
	}
	defer func() { _ = sink.Close() }()
	c, err := dial(ns, "udp4", dst, port, patience)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if err := option(c, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE); err != nil {
		return err
	}
	const headers, attempts = 28, 12
	sent, buf := pattern(size-headers), make([]byte, 1<<16)
	for i := 0; ; i++ {
		if _, err := c.Write(sent); err != nil {
			return err
		}
		_ = sink.SetReadDeadline(time.Now().Add(patience / attempts))
		n, _, err := sink.ReadFrom(buf)
		if err == nil && !bytes.Equal(buf[:n], sent) {
			return fmt.Errorf("received %d different bytes", n)
		}
		if err == nil || i+1 >= attempts || !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
}

// SetSegmentation switches the offloads by which nodes send large packets to each other. Off is as between machines
// with plain network cards.
func (c *Cluster) SetSegmentation(t testing.TB, on bool) {
	t.Helper()
	for i := range c.Nodes {
		SetSegmentation(t, c.Nodes[i].NS, on)
	}
}

// SetSegmentation does the same for one node.
func SetSegmentation(t testing.TB, node *netns.NS, on bool) {
	t.Helper()
	node.Features(t, "eth0", on, "tx-tcp-segmentation", "tx-tcp-ecn-segmentation", "tx-tcp6-segmentation",
		"tx-tcp-mangleid-segmentation", "tx-generic-segmentation", "tx-udp-segmentation")
}
