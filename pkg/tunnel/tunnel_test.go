package tunnel_test

import (
	"errors"
	"flag"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/pkg/wire"
	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/load"
	"github.com/liqonet/liqonet/test/netns"
)

func TestMain(m *testing.M) {
	dataplane.ChildMain()
	flag.Parse()
	os.Exit(m.Run())
}

func backends() []tunnel.Backend {
	switch os.Getenv("LIQONET_TEST_BACKENDS") {
	case "all":
		return []tunnel.Backend{tunnel.Userspace, tunnel.Kernel}
	case "kernel":
		return []tunnel.Backend{tunnel.Kernel}
	}
	return []tunnel.Backend{tunnel.Userspace}
}

// end is one of two namespaces with a tunnel between them.
type end struct {
	ns     *netns.NS
	tunnel *tunnel.Config
	proc   *dataplane.Tunnel
	// index and underlay are the number and the underlay address of the end.
	index    int
	underlay netip.Addr
}

func pair(t *testing.T, backend tunnel.Backend) (server, client *end) {
	t.Helper()
	ends := [2]*end{}
	keys := [2]wgtypes.Key{}
	for i := range ends {
		ends[i] = &end{ns: netns.New(t, "end"+string(rune('a'+i))), index: i, underlay: underlay(i)}
		var err error
		if keys[i], err = wgtypes.GeneratePrivateKey(); err != nil {
			t.Fatal(err)
		}
	}
	netns.Veth(t, ends[0].ns, "eth0", ends[1].ns, "eth0")
	for i, e := range ends {
		e.ns.Addr(t, "eth0", netip.PrefixFrom(underlay(i), 24))
		e.tunnel = &tunnel.Config{
			PrivateKey: keys[i], ListenPort: tunnel.ListenPort, MTU: 1400, Address: inner(i),
			Peer: tunnel.Peer{PublicKey: keys[1-i].PublicKey(), AllowedIPs: []netip.Prefix{netip.PrefixFrom(inner(1-i), 32)}},
		}
	}
	ends[1].tunnel.Peer.Endpoint = netip.AddrPortFrom(underlay(0), tunnel.ListenPort)
	ends[1].tunnel.Peer.Keepalive = time.Second
	for _, e := range ends {
		e.start(t, backend)
	}
	for _, e := range ends {
		e.route(t)
	}
	return ends[0], ends[1]
}

// route adds the route to the other end, as package overlay does.
func (e *end) route(t *testing.T) {
	t.Helper()
	e.ns.WithLink(t, tunnel.InterfaceName, func(l netlink.Link) error {
		return netlink.RouteReplace(&netlink.Route{
			LinkIndex: l.Attrs().Index, Dst: netlink.NewIPNet(inner(1 - e.index).AsSlice()), Scope: netlink.SCOPE_LINK,
		})
	})
}

func underlay(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}) }
func inner(i int) netip.Addr    { return netip.AddrFrom4([4]byte{10, 80, 31, byte(254 - i)}) }

func (e *end) start(t *testing.T, backend tunnel.Backend) {
	t.Helper()
	e.proc = dataplane.StartTunnel(t, e.ns, backend, tunnel.InterfaceName)
	e.proc.Configure(t, *e.tunnel)
}

func (e *end) handshake(t *testing.T, after time.Time) time.Time {
	t.Helper()
	var last time.Time
	kit.Within(t, 20*time.Second, "a handshake", func() string {
		if last = e.proc.Stats(t).LastHandshake; !last.After(after) {
			return "the last one was at " + last.String()
		}
		return ""
	})
	return last
}

func TestTunnel(t *testing.T) {
	for _, backend := range backends() {
		t.Run(string(backend), func(t *testing.T) {
			server, client := pair(t, backend)
			first := client.handshake(t, time.Time{})
			ping(t, client, 0)
			ping(t, server, 1)
			if s := server.proc.Stats(t); s.Endpoint.Addr() != underlay(1) || s.RxBytes == 0 || s.TxBytes == 0 {
				t.Errorf("the server knows %+v", s)
			}
			for _, e := range []*end{server, client} {
				kit.ErrorIf(t, e.proc.Configure(t, *e.tunnel), "a second Configure changed something")
			}
			time.Sleep(50 * time.Millisecond) // handshakes are distinguished by their time
			start := time.Now()
			client.proc.Reset(t)
			second := client.handshake(t, first)
			if d := second.Sub(start); d > 2*time.Second {
				t.Errorf("a handshake took %s after a reset", d)
			}
			ping(t, client, 0)
			exchangeRoles(t, server, client)
			exchangeRoles(t, client, server)
			repair(t, client)
			if backend == tunnel.Kernel {
				repairPeer(t, client)
				// The interface survives its process.
				client.proc.Kill()
				ping(t, client, 0)
				client.start(t, backend)
				ping(t, client, 0)
			}
		})
	}
}

// A process with a tunnel needs little memory under load. Without bounds on the packets in flight, it needs several
// times as much within seconds.
func TestMemoryUnderLoad(t *testing.T) {
	if !slices.Equal(backends(), []tunnel.Backend{tunnel.Userspace}) {
		t.Skip("an emulated processor is too slow for a load")
	}
	t.Setenv("GOMAXPROCS", "1") // as for agents on two processors
	server, client := pair(t, tunnel.Userspace)
	client.handshake(t, time.Time{})
	path := load.Path{From: client.ns.Run, To: server.ns.Run, Listen: inner(0), Address: inner(0)}
	kit.NoError(t, kit.Err(load.Throughput(t.Context(), path, 16, 2*time.Second)))
	const most = 90 << 20
	for _, e := range []*end{server, client} {
		peak := kit.Must(kit.PeakMemory(e.proc.PID()))(t)
		kit.ErrorIf(t, peak > most, "process %d used %d bytes, at most %d are allowed", e.proc.PID(), peak, most)
	}
}

// exchangeRoles makes the server the client, and vice versa.
func exchangeRoles(t *testing.T, server, client *end) {
	t.Helper()
	called := client.tunnel.Peer
	client.tunnel.Peer.Endpoint, client.tunnel.Peer.Keepalive = netip.AddrPort{}, 0
	kit.ErrorIf(t, !client.proc.Configure(t, *client.tunnel) || client.proc.Configure(t, *client.tunnel),
		"a client that becomes a server is not changed exactly once")
	if s := client.proc.Stats(t); s.Endpoint.IsValid() || !s.LastHandshake.IsZero() || !s.AsConfigured {
		t.Errorf("a client that became a server has %+v", s)
	}
	server.tunnel.Peer.Endpoint, server.tunnel.Peer.Keepalive = netip.AddrPortFrom(client.underlay, tunnel.ListenPort), called.Keepalive
	server.proc.Configure(t, *server.tunnel)
	// The other end no longer has the session.
	server.proc.Reset(t)
	client.handshake(t, time.Time{})
	if s := client.proc.Stats(t); s.Endpoint.Addr() != server.underlay {
		t.Errorf("a client that became a server has learned %+v", s)
	}
	ping(t, server, client.index)
	ping(t, client, server.index)
}

func ping(t *testing.T, from *end, to int) {
	t.Helper()
	kit.CheckNoError(t, dataplane.Ping(from.ns, inner(to), 56, 10*time.Second), "ping through the tunnel")
}

// repair damages the interface in ways that the next Configure repairs.
func repair(t *testing.T, e *end) {
	t.Helper()
	for name, damage := range map[string]func(netlink.Link) error{
		"mtu":   func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1300) },
		"down":  netlink.LinkSetDown,
		"group": func(l netlink.Link) error { return netlink.LinkSetGroup(l, 0) },
		"address": func(l netlink.Link) error {
			return netlink.AddrDel(l, &netlink.Addr{IPNet: netlink.NewIPNet(e.tunnel.Address.AsSlice())})
		},
		"deleted": netlink.LinkDel,
	} {
		e.ns.WithLink(t, tunnel.InterfaceName, damage)
		kit.ErrorIf(t, !e.proc.Configure(t, *e.tunnel), "%s: nothing was repaired", name)
		kit.ErrorIf(t, e.proc.Configure(t, *e.tunnel), "%s: a second Configure changed something", name)
		e.route(t)
		ping(t, e, 0)
	}
}

func repairPeer(t *testing.T, e *end) {
	t.Helper()
	e.ns.Do(t, func() error {
		c, err := wgctrl.New()
		if err != nil {
			return err
		}
		return errors.Join(c.ConfigureDevice(tunnel.InterfaceName, wgtypes.Config{ReplacePeers: true}), c.Close())
	})
	kit.ErrorIf(t, !e.proc.Configure(t, *e.tunnel), "a peer was deleted: nothing was repaired")
	ping(t, e, 0)
}

func TestForeignInterface(t *testing.T) {
	ns := netns.New(t, "gateway")
	ns.Bridge(t, tunnel.InterfaceName)
	ns.Do(t, func() error {
		for _, backend := range []tunnel.Backend{tunnel.Kernel, tunnel.Userspace, "none"} {
			if d, err := tunnel.Open(backend, tunnel.InterfaceName, func(err error) { t.Error(err) }); err == nil {
				t.Errorf("%s took a bridge", backend)
				_ = d.Close()
			}
		}
		if err := tunnel.Remove(tunnel.InterfaceName); err == nil {
			t.Error("a bridge was removed")
		}
		return tunnel.Remove("wg9")
	})
}

// A client calls from another port, and packets pass as before: the server follows it, without another handshake.
func TestAnotherPort(t *testing.T) {
	for _, backend := range backends() {
		t.Run(string(backend), func(t *testing.T) {
			server, client := pair(t, backend)
			first := client.handshake(t, time.Time{})
			for _, port := range []uint16{tunnel.ListenPort + 1, wire.EndOfRange(tunnel.ListenPort), tunnel.ListenPort} {
				client.tunnel.ListenPort = port
				kit.ErrorIf(t, !client.proc.Configure(t, *client.tunnel), "nothing has changed")
				kit.ErrorIf(t, client.proc.Configure(t, *client.tunnel), "the same port changes something")
				kit.Within(t, 20*time.Second, "the server sends to that port", func() string {
					if to := server.proc.Stats(t).Endpoint; to != netip.AddrPortFrom(client.underlay, port) {
						return "it sends to " + to.String()
					}
					return ""
				})
				kit.NoError(t, dataplane.Ping(server.ns, inner(1), 56, 5*time.Second))
			}
			kit.Check(t, "last handshake", client.proc.Stats(t).LastHandshake, first)
			client.proc.Reset(t)
			client.handshake(t, first)
		})
	}
}
