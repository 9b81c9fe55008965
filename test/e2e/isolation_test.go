package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/pkg/wire"
	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/workload"
)

const (
	// isolatedPort is a NodePort, kubeletPort the kubelet's, which listens on every
	// address of its node.
	isolatedPort = 30778
	kubeletPort  = 10250
	apiPort      = 6443
)

const isolatedService = `
apiVersion: v1
kind: Service
metadata: {name: isolated, namespace: default}
spec: {type: NodePort, selector: {app: tester}, ports: [{port: %d, nodePort: %d}]}
`

// A gateway of a peer that has been taken over, which knows its own key, filters
// nothing and sends what it likes, reaches the pods of the other cluster, and
// nothing else. The other cluster has a third one as peer.
func TestTakenOverGateway(t *testing.T) {
	ctx := begin(t)
	a, b, c, lan := fx.alpha, fx.beta, fx.gamma, fx.delta
	// The intruder calls: nothing has to lead packets to it.
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--server", a.Name)
	mustLiqonet(t, ctx, "peer", a.Name, c.Name)
	apply(t, ctx, a, fmt.Sprintf(isolatedService, workload.TCPPort, isolatedPort))
	removeService := func() error {
		_, err := a.Run(context.WithoutCancel(ctx), "", "delete", "service", "isolated", "--ignore-not-found")
		return err
	}
	t.Cleanup(func() { _ = removeService() })
	views := status(t, ctx, 0, a, b, c)
	ofA, ofB := viewOf(t, views, a, b), viewOf(t, views, b, a)
	pod := mapped(t, ctx, a, b, "default/"+a.pods[0].Pod.Name)
	for i := range a.nodes {
		checkService(t, lan.nodes[0].vantage, netip.AddrPortFrom(a.nodes[i].addr, isolatedPort), "")
	}
	evil := takeOver(t, ctx, b, a, ofB.seenAs(t, b.pods[0].IP))
	if err := evil.reach("tcp", pod, workload.TCPPort); err != nil {
		t.Fatalf("the gateway that was taken over does not reach a pod: the rest proves nothing: %v", err)
	}
	type target struct {
		what    string
		network string
		addr    netip.Addr
		port    uint16
	}
	var targets []target
	add := func(what string, addr netip.Addr, ports ...uint16) {
		for _, port := range ports {
			targets = append(targets, target{what, "tcp", addr, port})
		}
		targets = append(targets, target{what, "icmp", addr, 0})
	}
	for i, n := range a.nodes {
		ports := []uint16{kubeletPort, isolatedPort, workload.TCPPort}
		bridge := n.bridge(t)
		add("node's InternalIP", n.addr, ports...)
		add("node's overlay address", n.overlay(t), ports...)
		add("node's external address", ofA.Nodes[i].SeenAs, ports...)
		add("node's address in the pod CIDR, as mapped", ofA.seenAs(t, bridge), ports...)
		add("node's address in the pod CIDR", bridge, ports...)
	}
	for _, p := range a.pods {
		add("pod by its real address", p.IP, workload.TCPPort)
	}
	api := netip.MustParseAddr(jsonPath(t, ctx, a, "{.items[0].endpoints[0].addresses[0]}", "get", "endpointslices", "-l", "kubernetes.io/service-name=kubernetes"))
	add("API server", api, apiPort)
	add("API server's ClusterIP", a.server.Addr(), a.server.Port())
	add("ClusterIP", a.service, workload.TCPPort)
	add("host of the LAN", lan.nodes[0].addr, kubeletPort)
	add("node of the third cluster", c.nodes[0].addr, kubeletPort)
	third := viewOf(t, views, a, c)
	add("pod of the third cluster", viewOf(t, views, c, a).seenAs(t, c.pods[0].IP), workload.TCPPort)
	add("node of the third cluster by the overlay", viewOf(t, views, c, a).Nodes[0].SeenAs, kubeletPort)
	add("as the third cluster knows a pod", third.seenAs(t, a.pods[0].IP), workload.TCPPort)
	// Its own gateway may be pinged, and answers probes.
	gateway := netip.MustParseAddr(jsonPath(t, ctx, a, "{.status.planes[0].podIP}", "get", "peering", b.Name))
	for _, addr := range []netip.Addr{ofA.seenAs(t, gateway), gateway, evil.peer} {
		for _, port := range []uint16{kubeletPort, tunnel.ListenPort, overlay.Port} {
			targets = append(targets, target{"gateway", "tcp", addr, port}, target{"gateway", "udp", addr, port})
		}
	}
	var wg sync.WaitGroup
	for _, to := range targets {
		// What is an address of the intruder's own pod is itself.
		if to.addr == evil.pod {
			continue
		}
		wg.Go(func() {
			err := evil.reach(to.network, to.addr, to.port)
			expect(t, err != nil, "the gateway that was taken over reaches: %s, %s %s port %d", to.what, to.network, to.addr, to.port)
		})
	}
	wg.Wait()
	evil.giveBack()
	try(t, removeService())
	mustLiqonet(t, ctx, "unpeer", a.Name, c.Name)
	checkRepaired(t, ctx, a, b)
	unpeered(t, ctx, a, b)
}

// intruder is a process in a gateway's pod that has taken its place.
type intruder struct {
	*vantage
	// pod is the address of the pod that it is in.
	pod netip.Addr
	// source is an address that the peer may use.
	source netip.Addr
	// peer is the other gateway.
	peer     netip.Addr
	giveBack func()
}

// takeOver stops the agent in the gateway of a cluster, takes its key, and sends
// into the tunnel whatever has a source.
func takeOver(t *testing.T, ctx context.Context, c, peer *cluster, source netip.Addr) *intruder {
	const device, port = "evil0", 51999
	evil := &intruder{source: source}
	var p v1alpha1.Peering
	try(t, json.Unmarshal([]byte(c.kubectl(t, ctx, "get", "peering", peer.Name, "-o", "json")), &p))
	plane := p.Spec.Planes[0]
	evil.pod = p.Status.Planes[0].PodIP.Addr
	evil.peer = plane.RemoteAddress.Addr
	keyIn := func(secretName, file string) wgtypes.Key {
		var secret struct{ Data map[string][]byte }
		try(t, json.Unmarshal([]byte(c.kubectl(t, ctx, "-n", "liqonet-system", "get", "secret", secretName, "-o", "json")), &secret))
		return must(wgtypes.NewKey(secret.Data[file]))(t)
	}
	remote := must(wgtypes.ParseKey(plane.RemotePublicKey))(t)
	config := tunnel.Config{
		PrivateKey:   keyIn("gateway-"+peer.Name+"-0-1", v1alpha1.PrivateKeyFile),
		PresharedKey: keyIn(fmt.Sprintf("gateway-%s-0-psk-%d", peer.Name, plane.PresharedKey.Generation), v1alpha1.PresharedKeyFile),
		ListenPort:   port, MTU: 1400, Address: netip.MustParseAddr("192.0.2.1"),
		Peer: tunnel.Peer{PublicKey: remote, AllowedIPs: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}, Keepalive: time.Second},
	}
	if len(plane.Endpoints) > 0 {
		config.Peer.Endpoint = must(netip.ParseAddrPort(plane.Endpoints[0]))(t)
	}
	pid := c.gatewayAgent(t).pid
	ns := must(os.Open(fmt.Sprintf("/proc/%d/ns/net", pid)))(t)
	evil.vantage = &vantage{name: "gateway of " + c.Name, ns: ns}
	try(t, syscall.Kill(pid, syscall.SIGSTOP))
	var tun *dataplane.Tunnel
	evil.giveBack = sync.OnceFunc(func() {
		if tun != nil {
			tun.Stop()
		}
		// The container starts again, in the same namespace; what was done to it has
		// to go.
		_ = evil.run("ip", "rule", "del", "pref", "10", "from", source.String(), "table", "99")
		_ = evil.run("ip", "addr", "del", source.String()+"/32", "dev", "lo")
		report(t, errors.Join(syscall.Kill(pid, syscall.SIGCONT), syscall.Kill(pid, syscall.SIGKILL), ns.Close()))
	})
	t.Cleanup(evil.giveBack)
	try(t, evil.run("nft", "delete", "table", "ip", "liqonet"))
	tun = dataplane.StartTunnel(t, evil, tunnel.Userspace, device)
	tun.Configure(t, config)
	try(t, evil.do(func() error {
		return errors.Join(os.WriteFile("/proc/sys/net/ipv4/conf/all/rp_filter", []byte("0"), 0),
			os.WriteFile("/proc/sys/net/ipv4/conf/"+device+"/rp_filter", []byte("0"), 0))
	}))
	// All that has the source goes into the tunnel; the tunnel's own packets have the pod's.
	try(t, errors.Join(evil.run("ip", "route", "add", "default", "dev", device, "table", "99"),
		evil.run("ip", "addr", "add", source.String()+"/32", "dev", "lo"),
		evil.run("ip", "rule", "add", "pref", "10", "from", source.String(), "table", "99")))
	eventually(t, ctx, recoveryTimeout, "the intruder's tunnel", func() string {
		return why(evil.ping(evil.source, evil.peer, shortTimeout))
	})
	return evil
}

// reach says by no error that something is there: it answers, or refuses.
func (e *intruder) reach(network string, addr netip.Addr, port uint16) error {
	if network == "icmp" {
		return e.ping(e.source, addr, time.Second)
	}
	dialer := net.Dialer{Timeout: time.Second, LocalAddr: &net.TCPAddr{IP: e.source.AsSlice()}}
	if network == "udp" {
		dialer.LocalAddr = &net.UDPAddr{IP: e.source.AsSlice()}
	}
	err := e.do(func() error {
		conn, err := dialer.Dial(network, net.JoinHostPort(addr.String(), strconv.Itoa(int(port))))
		if err != nil {
			return err
		}
		defer conn.Close()
		if network == "tcp" {
			return nil
		}
		if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		if _, err := conn.Write([]byte("intruder")); err != nil {
			return err
		}
		_, err = conn.Read(make([]byte, 100))
		return err
	})
	if errors.Is(err, unix.ECONNREFUSED) {
		return nil
	}
	return err
}

func (e *intruder) ping(source, addr netip.Addr, timeout time.Duration) error {
	return e.do(func() error {
		conn, err := (&net.Dialer{LocalAddr: &net.IPAddr{IP: source.AsSlice()}}).Dial("ip4:icmp", addr.String())
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
			return err
		}
		return ping(conn, watchedPing)
	})
}

// bridge is the node's own address on its pod network, overlay the one towards
// the gateways.
func (n node) bridge(t *testing.T) netip.Addr { return n.addressOf(t, "cni0") }

func (n node) overlay(t *testing.T) netip.Addr { return n.addressOf(t, wire.NodeLink(0, 0)) }

func (n node) addressOf(t *testing.T, device string) netip.Addr {
	t.Helper()
	fields := strings.Fields(must(n.shell(t.Context(), "ip -4 -o addr show dev "+device))(t))
	require(t, len(fields) > 3, "node %s: %s has no address", n.Node.Name, device)
	return must(netip.ParsePrefix(fields[3]))(t).Addr()
}

func jsonPath(t testing.TB, ctx context.Context, c *cluster, path string, args ...string) string {
	t.Helper()
	out := c.kubectl(t, ctx, append(args, "-o", "jsonpath="+path)...)
	return out
}
