package agents

import (
	"crypto/rand"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/device"

	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

// A client's gateway starts another handshake in time, however the network or the server makes that difficult.
func TestHandshakes(t *testing.T) {
	t.Parallel()
	kit.NotShort(t)
	clusters := newClusters(t, dataplane.Options{Overlay: overlay.VXLAN, Tunnel: tunnel.Userspace})
	settled(t, clusters)
	t.Run("the network drops one flow", func(t *testing.T) { tryDeadFlow(t, clusters) })
	t.Run("the server is under load", func(t *testing.T) { tryUnderLoad(t, clusters) })
}

// tryDeadFlow drops the packets of a client's flow, as a load balancer does that keeps sending them to a node that is
// gone. The client calls from another port.
func tryDeadFlow(t *testing.T, clusters [2]*cluster) {
	t.Helper()
	gateway := clusters[1].nodes[0].gateway
	before := tunnelPorts(t, gateway)
	kit.FatalIf(t, len(before) == 0, "the gateway's WireGuard listens on no port")
	gateway.Output(t, "nft", fmt.Sprintf(`add table ip dead
		add chain ip dead out { type filter hook postrouting priority 0; }
		add chain ip dead in { type filter hook prerouting priority 0; }
		add rule ip dead out udp sport %[1]s drop
		add rule ip dead in udp dport %[1]s drop`, before))
	defer gateway.Output(t, "nft", "delete table ip dead")
	kit.Within(t, settleTimeout, "the client calls from another port", func() string {
		if now := tunnelPorts(t, gateway); now == before || now == "" {
			return "its port is " + now
		}
		return ""
	})
	settled(t, clusters)
}

// tunnelPorts returns the port of a gateway's WireGuard, empty if it has none.
func tunnelPorts(t *testing.T, gateway *netns.NS) string {
	t.Helper()
	for port := tunnel.ListenPort; port < tunnel.ListenPort+100; port++ {
		if strings.Contains(gateway.Output(t, "ss", "-Huln", fmt.Sprintf("sport = :%d", port)), fmt.Sprintf("0.0.0.0:%d", port)) {
			return fmt.Sprint(port)
		}
	}
	return ""
}

// tryUnderLoad sends so many forged handshakes to a server that it answers others with a cookie only, and restarts the
// client. That waits until WireGuard has repeated its handshake with the cookie.
func tryUnderLoad(t *testing.T, clusters [2]*cluster) {
	t.Helper()
	server, client := clusters[0], clusters[1]
	stop := make(chan struct{})
	var flooding sync.WaitGroup
	defer flooding.Wait()
	defer close(stop)
	to := netip.AddrPortFrom(server.nodes[0].addr, nodePorts)
	conn := netns.In(t, server.nodes[1].NS, func() (net.Conn, error) { return net.Dial("udp4", to.String()) })
	var sender device.CookieGenerator
	sender.Init(device.NoisePublicKey(server.keys[0].PublicKey()))
	flooding.Go(func() {
		forged := make([]byte, device.MessageInitiationSize)
		for {
			for range 1000 {
				_, _ = rand.Read(forged) // never fails
				copy(forged, []byte{device.MessageInitiationType, 0, 0, 0})
				sender.AddMacs(forged)
				_, _ = conn.Write(forged) // lost like any packet
			}
			select {
			case <-stop:
				return
			case <-time.After(300 * time.Millisecond):
			}
		}
	})
	gateway := client.gateways[0]
	gateway.kill()
	if links := gateway.Output(t, "ip", "-br", "link"); strings.Contains(links, tunnel.InterfaceName+" ") {
		gateway.Output(t, "ip", "link", "del", tunnel.InterfaceName) // the kernel would keep the session
	}
	gateway.start(t)
	settled(t, clusters)
	counters := gateway.Output(t, "nft", "list", "counter", "ip", "liqonet", "cookies")
	kit.ErrorIf(t, strings.Contains(counters, "packets 0 "), "the server has sent no cookie, so the test proves nothing: %s", counters)
}
