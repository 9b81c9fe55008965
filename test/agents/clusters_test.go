package agents

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/pkg/wire"
	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

const (
	// Both clusters have the same ranges, and each knows the other's ranges by the mapped ones.
	pods, mappedPods              = "10.244.0.0/16", "10.61.0.0/16"
	clustersInternal, mappedNodes = "10.80.0.0/19", "10.62.0.0/18"
	peeringIndex, nodePorts       = 1, 30840
	planes                        = 2
)

// cluster is one of the two clusters.
type cluster struct {
	name string
	// program is the path of the agents' program.
	program string
	number  byte
	// id is the cluster's ID, madeFor the one in its objects, and peerName the name of its Peering.
	id, madeFor, peerName string
	underlay              *netns.NS
	api                   *fakeapi.Server
	key                   overlay.Key
	nodes                 [2]machine
	// gateways are by plane, one on each node. keys are their private keys.
	gateways [planes]*process
	keys     [planes]wgtypes.Key
	// agents are all agents, including gateways.
	agents []*process
}

// presharedKey is the pre-shared key of all planes.
var presharedKey = wgtypes.Key(bytes.Repeat([]byte{0xa5, 0x3c}, 16))

// machine is a node with a pod.
type machine struct {
	*netns.NS
	name      string
	addr      netip.Addr
	pod       *netns.NS
	podAddr   netip.Addr
	gateway   *netns.NS
	gatewayIP netip.Addr
}

// newClusters creates two peered clusters, and starts their agents. The first one is the server.
func newClusters(t testing.TB, o dataplane.Options) [2]*cluster {
	t.Helper()
	underlay := netns.New(t, "underlay")
	underlay.Bridge(t, "br0")
	out := [2]*cluster{
		{name: "a", number: 1, id: "id-of-a", madeFor: "id-of-a", peerName: "b", underlay: underlay, program: program},
		{name: "b", number: 2, id: "id-of-b", madeFor: "id-of-b", peerName: "a", underlay: underlay, program: program},
	}
	for _, c := range out {
		c.addNodes(t, underlay)
		kit.Must(rand.Read(c.key[:]))(t)
		for i := range c.keys {
			c.keys[i] = kit.Must(wgtypes.GeneratePrivateKey())(t)
		}
	}
	for i, c := range out {
		c.serve(t, o, out[1-i], i == 0)
	}
	for _, c := range out {
		c.start(t)
	}
	return out
}

// start starts the agents of a cluster.
func (c *cluster) start(t testing.TB) {
	t.Helper()
	for i := range c.nodes {
		n := &c.nodes[i]
		args := []string{c.program, "node"}
		if c.name == "b" {
			args = append(args, "--metrics-address="+n.addr.String()) // the others expose metrics on loopback only
		}
		c.agents = append(c.agents, newProcess(t, n.NS, c.api, []string{"NODE_NAME=" + n.name, "POD_NAME=node-" + n.name}, map[string][]byte{"1": c.key[:]}, args...))
		c.agents[i].start(t)
	}
	for i := range c.gateways {
		n := &c.nodes[i]
		c.startGateway(t, i, n, n.gateway, n.gatewayIP)
		c.agents = append(c.agents, c.gateways[i])
	}
}

// startGateway starts the gateway of a plane in a pod of a node.
func (c *cluster) startGateway(t testing.TB, plane int, n *machine, pod *netns.NS, podIP netip.Addr) {
	t.Helper()
	env := []string{"POD_IPS=" + podIP.String(), "NODE_NAME=" + n.name, "POD_NAME=gateway-" + podIP.String()}
	files := map[string][]byte{"1": wire.GatewayKey(c.key[:], v1alpha1.GatewayName(c.peer(), int32(plane)), 1), v1alpha1.PrivateKeyFile: c.keys[plane][:], v1alpha1.PresharedKeyFile: presharedKey[:]}
	c.gateways[plane] = newProcess(t, pod, c.api, env, files, c.program, "gateway", "--peering="+c.peer(), fmt.Sprintf("--plane=%d", plane), "--key-dir=DIR", "--preshared-key=DIR/"+v1alpha1.PresharedKeyFile)
	c.gateways[plane].start(t)
}

// copy creates a copy of a client's cluster, with its objects and keys, and starts agents of a program. id is the copy's own ID.
func (c *cluster) copy(t testing.TB, o dataplane.Options, peer *cluster, id, program string) *cluster {
	t.Helper()
	out := &cluster{name: "c", number: 3, id: id, madeFor: c.madeFor, peerName: c.peerName, underlay: c.underlay, program: program, key: c.key, keys: c.keys}
	out.addNodes(t, out.underlay)
	out.serve(t, o, peer, false)
	out.start(t)
	return out
}

// peer returns the name of the cluster's Peering, which is the name of the other cluster.
func (c *cluster) peer() string { return c.peerName }

// addNodes creates the nodes, each with a pod.
func (c *cluster) addNodes(t testing.TB, underlay *netns.NS) {
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
		n.pod = n.attach(t, "pod", n.podAddr)
		dataplane.ServeUDP(t, n.pod, echoPort)
		n.gateway = n.attach(t, "gateway", n.gatewayIP)
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

// attach creates a pod.
func (m *machine) attach(t testing.TB, name string, addr netip.Addr) *netns.NS {
	t.Helper()
	ns := netns.New(t, m.name+"-"+name)
	netns.Veth(t, ns, "eth0", m.NS, name)
	m.Enslave(t, name, "cni0")
	ns.Addr(t, "eth0", netip.PrefixFrom(addr, 24))
	ns.Route(t, netip.MustParsePrefix("0.0.0.0/0"), netip.PrefixFrom(addr, 24).Masked().Addr().Next())
	return ns
}

// serve starts the cluster's API server, with all objects that a command would have written.
func (c *cluster) serve(t testing.TB, o dataplane.Options, peer *cluster, isServer bool) {
	t.Helper()
	p := &v1alpha1.Peering{ObjectMeta: objectMeta("", c.peer()), Spec: v1alpha1.PeeringSpec{
		Index: peeringIndex, Overlay: v1alpha1.OverlayKind(o.Overlay),
		Local: v1alpha1.LocalNetwork{
			ClusterID: c.madeFor, Pods: []v1alpha1.CIDRMapping{kit.Mapping(pods, mappedPods)}, InternalCIDR: kit.CIDR(clustersInternal), ExternalCIDR: kit.CIDR(mappedNodes),
		},
		Remote: v1alpha1.RemoteNetwork{
			ClusterID: "id-of-" + peer.name, Name: peer.name, Pods: []v1alpha1.CIDRMapping{kit.Mapping(pods, mappedPods)}, ExternalCIDR: kit.CIDR(mappedNodes),
		},
	}}
	var indexes []int32
	for i := range planes {
		number := kit.Must(ipam.GatewayNumber(peeringIndex, i))(t)
		addr := kit.Must(ipam.GatewayAddr(netip.PrefixFrom(netip.MustParsePrefix(mappedNodes).Addr(), 19), number))(t)
		plane := v1alpha1.Plane{
			Index: int32(i), Role: v1alpha1.Server, WireGuard: v1alpha1.WireGuardBackend(o.Tunnel), KeyGeneration: 1, ServiceName: v1alpha1.GatewayServiceName(peer.name),
			RemotePublicKey: peer.keys[i].PublicKey().String(), RemoteAddress: v1alpha1.IP{Addr: addr},
		}
		if !isServer {
			plane.Role, plane.ServiceName = v1alpha1.Client, ""
			for j := range peer.nodes {
				to := peer.nodes[(i+j)%len(peer.nodes)].addr
				plane.Endpoints = append(plane.Endpoints, netip.AddrPortFrom(to, nodePorts+uint16(i)).String())
			}
		}
		p.Spec.Planes = append(p.Spec.Planes, plane)
		indexes = append(indexes, int32(i))
	}
	objects := fakeapi.Objects(c.id, c.nodes[0].name, c.nodes[0].addr.String(), pods)
	objects = append(append(objects, fakeapi.Objects("", c.nodes[1].name, c.nodes[1].addr.String(), pods)[0], p), sharedObjects(clustersInternal)...)
	if isServer {
		svc := manifests.GatewayService(peer.name, corev1.ServiceTypeNodePort, indexes)
		for i := range svc.Spec.Ports {
			svc.Spec.Ports[i].NodePort = nodePorts + int32(i)
		}
		objects = append(objects, svc)
	}
	for i := range planes {
		objects = append(objects, &corev1.ConfigMap{ObjectMeta: objectMeta(v1alpha1.Namespace, v1alpha1.GatewayHistoryName(c.peer(), int32(i)))})
	}
	for _, obj := range objects {
		if n, ok := obj.(*corev1.Node); ok {
			i := slices.IndexFunc(c.nodes[:], func(m machine) bool { return m.name == n.Name })
			n.Spec.PodCIDRs = []string{netip.PrefixFrom(c.nodes[i].podAddr, 24).Masked().String()}
		}
	}
	c.api = kit.Must(fakeapi.New(objects...))(t)
	c.api.Unplayed = true
	t.Cleanup(c.api.Close)
}
