package probe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/probe"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

// taskEnv makes this program run as a probe instead of its tests, so that it reads the namespace of its process.
const taskEnv = "PROBE_TEST_TASK"

func TestMain(m *testing.M) {
	if raw := os.Getenv(taskEnv); raw != "" {
		task, err := probe.Parse(raw)
		if err == nil {
			err = Run(context.Background(), task, os.Stdout)
		}
		if err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// kernelOf reads the kernel of a namespace with a probe.
func kernelOf(t *testing.T, ns *netns.NS, task probe.KernelTask, during func()) *probe.Kernel {
	t.Helper()
	task.Duration = time.Second
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), taskEnv+"="+probe.Task{Kernel: &task}.String())
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	kit.NoError(t, ns.Start(cmd))
	during()
	kit.NoError(t, cmd.Wait())
	for line := range bytes.Lines(out.Bytes()) {
		var l probe.Line
		kit.NoError(t, json.Unmarshal(line, &l))
		if l.Result != nil && l.Result.Kernel != nil {
			return l.Result.Kernel
		}
	}
	t.Fatalf("the output is %s", out.String())
	return nil
}

// untilDone is a context that ends once something was done, which begins when somebody waits for the end.
type untilDone struct {
	context.Context
	do func()
}

func (c untilDone) Done() <-chan struct{} {
	c.do()
	ended := make(chan struct{})
	close(ended)
	return ended
}

// A node's kernel is read correctly, first without problems, and then with all kinds of problems.
func TestReadKernel(t *testing.T) {
	node, lan := netns.New(t, "node"), netns.New(t, "lan")
	netns.Veth(t, node, "eth0", lan, "eth0")
	own, router := netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("192.0.2.9/24")
	node.Addr(t, "eth0", own)
	lan.Addr(t, "eth0", router)
	node.Route(t, netip.MustParsePrefix("0.0.0.0/0"), router.Addr())
	task := probe.KernelTask{
		Nodes: []netip.Addr{router.Addr()}, Ping: []probe.Ping{{To: router.Addr(), Sizes: []int{100, 1500, 65535}}, {To: netip.MustParseAddr("192.0.2.77"), Sizes: []int{100}}},
		Health: netip.MustParseAddrPort("127.0.0.1:1"),
	}
	k := kernelOf(t, node, task, func() {})
	link := func(k *probe.Kernel, name string) probe.Link {
		i := slices.IndexFunc(k.Links, func(l probe.Link) bool { return l.Name == name })
		kit.FatalIf(t, i < 0, "no link %s in %v", name, k.Links)
		return k.Links[i]
	}
	if l := link(k, "eth0"); !l.Uplink || l.ProxyARP || l.MTU != 1500 || !slices.Contains(l.Addresses, own) {
		t.Errorf("the uplink is %+v", l)
	}
	if !k.VXLAN || k.Nftables != "" || len(k.Errors)+len(k.Blocked)+len(k.ForeignRules)+len(k.Duplicates)+k.RouteChanges > 0 || k.PortTaken != "" {
		t.Errorf("without problems: %+v", k)
	}
	kit.ErrorIf(t, !slices.Equal(k.Pings[0].Answered, k.Pings[0].Sizes) || len(k.Pings[0].Sizes) != 2 || len(k.Pings[1].Answered) > 0, "pings %v", k.Pings)
	kit.ErrorIf(t, k.Neighbors[router.Addr().String()] == "" || !strings.Contains(k.Unhealthy, "refused") || k.Conntrack.Max == 0,
		"neighbors %v, health %q, connections %+v", k.Neighbors, k.Unhealthy, k.Conntrack)
	kit.Check(t, "hardware addresses of routers", k.Routers, []string{k.Neighbors[router.Addr().String()]})

	restore := lan.Drop(t, "eth0", true, false, 1000)
	if k = kernelOf(t, node, task, func() {}); !slices.Equal(k.Pings[0].Answered, []int{100}) {
		t.Errorf("pings %v", k.Pings)
	}
	restore()

	lossy := task
	lossy.Losses = []probe.Loss{{To: router.Addr(), Sent: 200}, {To: netip.MustParseAddr("192.0.2.8"), Sent: 100}}
	lan.Addr(t, "eth0", netip.MustParsePrefix("192.0.2.8/24"))
	lan.Output(t, "nft", "add table ip lossy; add chain ip lossy in { type filter hook input priority 0; }; "+
		"add rule ip lossy in ip daddr 192.0.2.9 icmp type echo-request meta length 28 numgen inc mod 10 == 0 drop")
	k = kernelOf(t, node, lossy, func() {})
	kit.Check(t, "losses", k.Others.Losses, []probe.Loss{{To: router.Addr(), Sent: 200, Lost: 20}, {To: netip.MustParseAddr("192.0.2.8"), Sent: 100}})
	lan.Output(t, "nft", "delete table ip lossy")

	// Only packets that would leave unencrypted count, and only while the probe runs. A new table begins at zero.
	peers := netip.MustParsePrefix("10.70.0.0/18")
	send := func(ns *netns.NS, from, to string, packets int) {
		ns.Do(t, func() error {
			local, remote := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(from)), net.UDPAddrFromAddrPort(netip.MustParseAddrPort(to))
			conn, err := net.ListenUDP("udp4", local)
			for range packets {
				if err == nil {
					_, err = conn.WriteTo([]byte("x"), remote)
				}
				if errors.Is(err, unix.EPERM) { // dropped here
					err = nil
				}
			}
			return errors.Join(err, conn.Close())
		})
	}
	table := nat.Node{OverlayGroup: 1, OverlayPort: 6094, TunnelPort: 51840, Address: netip.MustParseAddr("10.80.0.1"), Remote: []netip.Prefix{peers}}
	node.Do(t, func() error { return kit.Err(nat.ApplyNode(t.Context(), table)) })
	lan.Addr(t, "eth0", netip.MustParsePrefix("10.70.0.9/18"))
	send(node, "192.0.2.1:0", "10.70.0.1:9", 30)
	unencrypted := func(during func()) uint64 {
		r := &kernelReader{out: &probe.Kernel{}}
		node.Do(t, func() error {
			r.watchDrops(untilDone{t.Context(), during})
			return nil
		})
		kit.Check(t, "errors", r.out.Errors, nil)
		return r.out.Others.Unencrypted
	}
	kit.Check(t, "packets that would have left unencrypted", unencrypted(func() {
		send(node, "192.0.2.1:0", "10.70.0.1:9", 3)
		send(lan, "10.70.0.9:0", "192.0.2.1:9", 30)
	}), uint64(3))
	kit.Check(t, "the same after the table was deleted", unencrypted(func() {
		node.Output(t, "nft", "delete", "table", "ip", nat.TableName)
	}), uint64(0))
	node.Do(t, func() error { return kit.Err(nat.ApplyNode(t.Context(), table)) })

	lan.Addr(t, "eth0", netip.PrefixFrom(own.Addr(), 32)) // another machine has the node's address
	node.Sysctl(t, "ipv4/conf/eth0/proxy_arp", "1")
	for _, args := range []string{
		"link add loq0-0 type bridge", "link add other type vxlan id 7 dstport 6094 dev eth0 remote 192.0.2.9",
		"route add blackhole 198.51.100.0/24 table 27761", "rule add priority 50 lookup 27761",
	} {
		node.Output(t, "ip", strings.Fields(args)...)
	}
	k = kernelOf(t, node, task, func() {
		for range 5 {
			time.Sleep(200 * time.Millisecond) // it takes a moment to start watching
			node.Output(t, "ip", "route", "replace", "blackhole", "203.0.113.0/24", "table", "27761")
			node.Output(t, "ip", "route", "del", "blackhole", "203.0.113.0/24", "table", "27761")
			send(node, "192.0.2.1:0", "10.70.0.1:9", 1)
		}
	})
	kit.ErrorIf(t, k.Others.Unencrypted == 0 || k.Others.Unencrypted > 5, "%d of 5 packets would have left unencrypted", k.Others.Unencrypted)
	if l := link(k, "loq0-0"); l.IsOwn || l.Kind != "bridge" {
		t.Errorf("the foreign link is %+v", l)
	}
	kit.ErrorIf(t, !link(k, "eth0").ProxyARP || !strings.Contains(k.PortTaken, "other (vxlan)") || len(k.ForeignRules) < 2,
		"proxy ARP, port %q, rules %v", k.PortTaken, k.ForeignRules)
	kit.ErrorIf(t, k.Duplicates[own.Addr().String()] == "", "duplicates: %v", k.Duplicates)
	kit.ErrorIf(t, k.RouteChanges < 2 || !slices.Contains(k.Changed, "203.0.113.0/24"),
		"%d changes of routes: %v", k.RouteChanges, k.Changed)
}
