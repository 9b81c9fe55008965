package planes

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/liqonet/liqonet/agent/gateway"
	"github.com/liqonet/liqonet/agent/node"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

const (
	// Both clusters have the same ranges, and each knows the other one's by the mapped ones.
	pods, mappedPods        = "10.244.0.0/16", "10.61.0.0/16"
	internal, mappedNodes   = "10.80.0.0/19", "10.62.0.0/18"
	peeringIndex, nodePorts = 1, 30840
	planes                  = 2
	// account is where a pod has the files of its service account.
	account = "/var/run/secrets/kubernetes.io/serviceaccount"
	// agentVariable in the environment makes a test binary an agent.
	agentVariable = "LIQONET_TEST_AGENT"
)

func TestMain(m *testing.M) {
	if raw, ok := os.LookupEnv(agentVariable); ok {
		if err := agentMain(raw); err != nil {
			fmt.Fprintln(os.Stderr, "Error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// pod is what an agent's process is told.
type pod struct {
	Name, Node string
	// Host and Port are those of the API server, CA is its certificate.
	Host, Port string
	CA         []byte
	// Dir has the agent's keys.
	Dir string
	// IP and Peering are a gateway's.
	IP      netip.Addr
	Peering string
	Plane   int
}

// agentMain is an agent in a mount namespace of its own, which starts the process.
func agentMain(raw string) error {
	var p pod
	if err := json.Unmarshal([]byte(raw), &p); err != nil {
		return err
	}
	const run = "/var/run"
	if err := os.MkdirAll(run, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", run, "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount %s: %w", run, err)
	}
	if err := os.MkdirAll(account, 0o755); err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		filepath.Join(account, "token"): []byte("token"), filepath.Join(account, "ca.crt"): p.CA,
	} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			return err
		}
	}
	for name, value := range map[string]string{"KUBERNETES_SERVICE_HOST": p.Host, "KUBERNETES_SERVICE_PORT": p.Port} {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log, key := slog.New(slog.NewTextHandler(os.Stderr, nil)), filepath.Join(p.Dir, "overlay")
	if p.Peering == "" {
		return node.Run(ctx, node.Config{NodeName: p.Node, PodName: p.Name, OverlayKey: key, Log: log})
	}
	return gateway.Run(ctx, gateway.Config{
		Peering: p.Peering, Plane: p.Plane, KeyDir: p.Dir, OverlayKey: key, PodIPs: []netip.Addr{p.IP}, PodName: p.Name, NodeName: p.Node, Log: log,
	})
}

// process is an agent that can be ended and started anew.
type process struct {
	*netns.NS
	pod pod
	log lines
	cmd *exec.Cmd
}

// lines are an agent's log.
type lines struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// newProcess makes a process in a namespace, from where the cluster's API server can be reached.
func (c *cluster) newProcess(t *testing.T, ns *netns.NS, p pod, key wgtypes.Key) *process {
	t.Helper()
	var listener net.Listener
	ns.Do(t, func() (err error) {
		listener, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	})
	server := httptest.NewUnstartedServer(c.api)
	_ = server.Listener.Close() // its own, of another namespace
	server.Listener = listener
	server.StartTLS()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	var err error
	if p.Host, p.Port, err = net.SplitHostPort(listener.Addr().String()); err != nil {
		t.Fatal(err)
	}
	p.CA = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	p.Dir = t.TempDir()
	for name, content := range map[string][]byte{"overlay": c.key[:], v1alpha1.KeyFilePrivate: key[:]} {
		if err := os.WriteFile(filepath.Join(p.Dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out := &process{NS: ns, pod: p}
	t.Cleanup(func() {
		out.kill()
		if t.Failed() {
			t.Logf("%s:\n%s", p.Name, out.log.String())
		}
	})
	return out
}

func (p *process) start(t *testing.T) {
	t.Helper()
	raw, err := json.Marshal(p.pod)
	if err != nil {
		t.Fatal(err)
	}
	p.cmd = exec.Command("/proc/self/exe")
	p.cmd.Env = append(os.Environ(), agentVariable+"="+string(raw))
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	if err := p.Start(p.cmd); err != nil {
		t.Fatalf("start %s: %v", p.pod.Name, err)
	}
}

func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// kill ends it without a chance to clean up.
func (p *process) kill() {
	if p.cmd != nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait() // it was killed
		p.cmd = nil
	}
}

// cluster is one of the two.
type cluster struct {
	name   string
	number byte
	api    *fakeapi.Server
	key    overlay.Key
	nodes  [2]machine
	// gateways are by plane, one on each node, and keys theirs.
	gateways [planes]*process
	keys     [planes]wgtypes.Key
}

// machine is a node with a pod.
type machine struct {
	*netns.NS
	name      string
	addr      netip.Addr
	pod       *netns.NS
	podAddr   netip.Addr
	gatewayIP netip.Addr
	agent     *process
}

// newClusters makes two peered clusters, and starts their agents. The first one is the server.
func newClusters(t *testing.T, o dataplane.Options) [2]*cluster {
	t.Helper()
	underlay := netns.New(t, "underlay")
	underlay.Bridge(t, "br0")
	out := [2]*cluster{{name: "a", number: 1}, {name: "b", number: 2}}
	for _, c := range out {
		c.addNodes(t, underlay)
		if _, err := rand.Read(c.key[:]); err != nil {
			t.Fatal(err)
		}
		for i := range c.keys {
			var err error
			if c.keys[i], err = wgtypes.GeneratePrivateKey(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, c := range out {
		c.serve(t, o, out[1-i], i == 0)
	}
	for _, c := range out {
		for i := range c.nodes {
			n := &c.nodes[i]
			n.agent = c.newProcess(t, n.NS, pod{Name: "node-" + n.name, Node: n.name}, wgtypes.Key{})
			n.agent.start(t)
		}
		for i := range c.gateways {
			c.gateways[i].pod.Peering = c.peer()
			c.gateways[i].start(t)
		}
	}
	return out
}

// peer is the name of the cluster's Peering: that of the other one.
func (c *cluster) peer() string { return map[string]string{"a": "b", "b": "a"}[c.name] }

// addNodes makes the nodes, with a pod on each.
func (c *cluster) addNodes(t *testing.T, underlay *netns.NS) {
	t.Helper()
	for i := range c.nodes {
		n := &c.nodes[i]
		n.name = fmt.Sprintf("%s%d", c.name, i+1)
		n.NS = netns.New(t, n.name)
		n.addr = netip.AddrFrom4([4]byte{172, 18, c.number, byte(i + 1)})
		netns.Veth(t, n.NS, "eth0", underlay, n.name)
		underlay.Enslave(t, n.name, "br0")
		n.Addr(t, "eth0", netip.PrefixFrom(n.addr, 16))
		n.Sysctl(t, "ipv4/ip_forward", "1")
		n.Bridge(t, "cni0")
		router := netip.AddrFrom4([4]byte{10, 244, byte(i + 1), 1})
		n.Addr(t, "cni0", netip.PrefixFrom(router, 24))
		n.podAddr, n.gatewayIP = router, router
		for range 9 {
			n.gatewayIP = n.gatewayIP.Next()
		}
		n.podAddr = n.gatewayIP.Next()
		attach := func(name string, addr netip.Addr) *netns.NS {
			ns := netns.New(t, n.name+"-"+name)
			netns.Veth(t, ns, "eth0", n.NS, name)
			n.Enslave(t, name, "cni0")
			ns.Addr(t, "eth0", netip.PrefixFrom(addr, 24))
			ns.Route(t, netip.MustParsePrefix("0.0.0.0/0"), router)
			return ns
		}
		n.pod = attach("pod", n.podAddr)
		echo(t, n.pod)
		// The process of the gateway is made when there is an API server.
		c.gateways[i] = &process{NS: attach("gateway", n.gatewayIP)}
	}
	for i := range c.nodes {
		other := c.nodes[1-i]
		c.nodes[i].Route(t, netip.PrefixFrom(other.podAddr, 24).Masked(), other.addr)
		var services []dataplane.Service
		for plane := range c.gateways {
			services = append(services, dataplane.Service{
				Proto: unix.IPPROTO_UDP, Port: nodePorts + uint16(plane), To: c.nodes[plane].gatewayIP, ToPort: tunnel.ListenPort,
			})
		}
		dataplane.CNI(t, c.nodes[i].NS, netip.MustParsePrefix(pods), services, true)
	}
}

// serve starts the cluster's API server, with all that a command would have written.
func (c *cluster) serve(t *testing.T, o dataplane.Options, peer *cluster, isServer bool) {
	t.Helper()
	meta := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-of-" + name), Generation: 1}
	}
	p := &v1alpha1.Peering{ObjectMeta: meta("", c.peer()), Spec: v1alpha1.PeeringSpec{
		Index: peeringIndex, Overlay: v1alpha1.OverlayKind(o.Overlay),
		Local: v1alpha1.LocalNetwork{
			Pods: []v1alpha1.CIDRMapping{kit.Mapping(pods, mappedPods)}, InternalCIDR: kit.CIDR(internal), ExternalCIDR: kit.CIDR(mappedNodes),
		},
		Remote: v1alpha1.RemoteNetwork{
			ClusterID: "id-of-" + peer.name, Name: peer.name, Pods: []v1alpha1.CIDRMapping{kit.Mapping(pods, mappedPods)}, ExternalCIDR: kit.CIDR(mappedNodes),
		},
	}}
	var indexes []int32
	for i := range planes {
		number, err := ipam.GatewayNumber(peeringIndex, i)
		if err != nil {
			t.Fatal(err)
		}
		addr, err := ipam.GatewayAddr(netip.PrefixFrom(netip.MustParsePrefix(mappedNodes).Addr(), 19), number)
		if err != nil {
			t.Fatal(err)
		}
		plane := v1alpha1.Plane{
			Index: int32(i), Role: v1alpha1.Server, WireGuard: v1alpha1.WireGuardBackend(o.Tunnel), KeyGeneration: 1, Service: v1alpha1.GatewayService(peer.name),
			RemotePublicKey: peer.keys[i].PublicKey().String(), RemoteAddress: v1alpha1.IP{Addr: addr},
		}
		if !isServer {
			plane.Role, plane.Service = v1alpha1.Client, ""
			for j := range peer.nodes {
				to := peer.nodes[(i+j)%len(peer.nodes)].addr
				plane.Endpoints = append(plane.Endpoints, netip.AddrPortFrom(to, nodePorts+uint16(i)).String())
			}
		}
		p.Spec.Planes = append(p.Spec.Planes, plane)
		indexes = append(indexes, int32(i))
	}
	objects := fakeapi.Objects("id-of-"+c.name, c.nodes[0].name, c.nodes[0].addr.String(), pods)
	objects = append(
		objects, fakeapi.Objects("", c.nodes[1].name, c.nodes[1].addr.String(), pods)[0], p,
		&corev1.Namespace{ObjectMeta: meta("", v1alpha1.Namespace)}, &appsv1.DaemonSet{ObjectMeta: meta(v1alpha1.Namespace, v1alpha1.NodeAgentName)},
		&v1alpha1.ClusterNetwork{ObjectMeta: meta("", v1alpha1.ClusterNetworkName), Spec: v1alpha1.ClusterNetworkSpec{InternalCIDR: kit.CIDR(internal)}},
	)
	if isServer {
		svc := manifests.GatewayService(peer.name, corev1.ServiceTypeNodePort, tunnel.ListenPort, indexes)
		for i := range svc.Spec.Ports {
			svc.Spec.Ports[i].NodePort = nodePorts + int32(i)
		}
		objects = append(objects, svc)
	}
	for _, obj := range objects {
		if n, ok := obj.(*corev1.Node); ok {
			i := slices.IndexFunc(c.nodes[:], func(m machine) bool { return m.name == n.Name })
			n.Spec.PodCIDRs = []string{netip.PrefixFrom(c.nodes[i].podAddr, 24).Masked().String()}
		}
	}
	var err error
	if c.api, err = fakeapi.New(objects...); err != nil {
		t.Fatal(err)
	}
	c.api.Unplayed = true
	t.Cleanup(c.api.Close)
	for i := range c.gateways {
		n := &c.nodes[i]
		c.gateways[i] = c.newProcess(t, c.gateways[i].NS, pod{Name: fmt.Sprintf("gateway-%s-%d", c.name, i), Node: n.name, IP: n.gatewayIP, Plane: i}, c.keys[i])
	}
}

// named is the key of a cluster-wide object.
func named(name string) types.NamespacedName { return types.NamespacedName{Name: name} }
