package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/liqonet/liqonet/test/lab"
)

// followLimit is how long packets may be lost when a server can be called elsewhere than before. The goal is 10 s.
const followLimit = 10 * time.Second

// pool is what MetalLB gives out in a cluster.
const pool = `
apiVersion: v1
kind: Namespace
metadata: {name: metallb-system}
---
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: lab, namespace: metallb-system}
spec: {addresses: ["%s-%s"]}
---
apiVersion: metallb.io/v1beta1
kind: L2Advertisement
metadata: {name: lab, namespace: metallb-system}
---
# Speakers look for a pod of theirs. These run outside of pods.
apiVersion: v1
kind: Pod
metadata: {name: speaker, namespace: metallb-system}
spec: {nodeName: none, containers: [{name: speaker, image: none}]}
`

// The load balancer of a server's cluster, which is MetalLB's, gets another address. The client's gateways are told by
// the channel, and follow.
func TestLoadBalancerChangesItsAddress(t *testing.T) {
	a, b := fx.gamma, fx.delta
	begin(t)
	ctx := t.Context() // it takes minutes to build MetalLB
	subnet := a.spec.NodeSubnet.Addr().As4()
	at := func(host byte) string {
		return netip.AddrFrom4([4]byte{subnet[0], subnet[1], subnet[2], host}).String()
	}
	stop := runMetalLB(t, ctx, a, at(200), at(209))
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--planes", "2", "--server", a.Name, "--service-type", a.Name+"=LoadBalancer")
	checkPair(t, ctx, a, b)
	service := "gateway-" + b.Name
	given := func() string {
		return jsonPath(t, ctx, a, "{.status.loadBalancer.ingress[0].ip}", "-n", "liqonet-system", "get", "service", service)
	}
	first := given()
	expect(t, strings.HasPrefix(jsonPath(t, ctx, b, "{.spec.planes[0].endpoints[0]}", "get", "peering", a.Name), first+":"),
		"the client does not call the load balancer's address %q", first)
	move := func(to string) {
		a.kubectl(t, ctx, "-n", "liqonet-system", "annotate", "--overwrite", "service", service, "metallb.io/loadBalancerIPs="+to)
		eventually(t, ctx, podTimeout, "the load balancer has another address", func() string {
			now := given()
			return unless(now == to, "%s", now)
		})
	}
	fs := startFlows(t, ctx, a, b, 0, 0)
	fs.answering(t, ctx, callTimeout)
	move(at(205))
	fs.answeredFor(t, ctx, 2*followLimit, 2*followLimit)
	checkBothPlanes(t, ctx, a, b)
	fs.interrupted(t, "the load balancer's address has changed", followLimit)

	// Nobody is told where nothing passes any more: the client's nodes get nothing from the addresses before. By entries
	// for connections, even the first one still leads to the gateways. Status says what to do.
	repair := dropOn(t, ctx, b.nodes, "in ip saddr { "+first+", "+at(205)+" } drop")
	move(at(207))
	eventually(t, ctx, recoveryTimeout, "status says what to do", func() string {
		r := liqonet(t, ctx, "", "status", a.Name, b.Name)
		said := r.stdout + r.stderr
		return unless(r.code == 7 && strings.Contains(said, "run `kubectl liqonet peer`"), "exit code %d\n%s", r.code, said)
	})
	mustLiqonet(t, ctx, "peer", a.Name, b.Name)
	checkRepaired(t, ctx, a, b)
	repair()
	mustLiqonet(t, ctx, "unpeer", a.Name, b.Name)
	stop()
	checkNothingLeft(t, ctx)
}

// runMetalLB has MetalLB give out addresses of a cluster's network, until the test ends or calls what is returned. Its
// programs run in the network of the cluster's nodes.
func runMetalLB(t *testing.T, ctx context.Context, c *cluster, first, last string) (stop func()) {
	dir, manifests, err := fx.lab.BuildBalancer(ctx)
	if err != nil {
		t.Fatal(err)
	}
	c.kubectl(t, ctx, "apply", "--server-side", "-f", manifests)
	eventually(t, ctx, podTimeout, "MetalLB's custom resources", func() string {
		return why(errOf(c.Run(ctx, fmt.Sprintf(pool, first, last), "apply", "-f", "-")))
	})
	config := inside(t, ctx, c)
	var stops []func()
	start := func(n *lab.Node, program string, args ...string) {
		stops = append(stops, background(t, n, filepath.Join(dir, program), append(args, "--namespace=metallb-system", "--kubeconfig="+config)...))
	}
	for i, n := range c.nodes {
		if i == 0 {
			start(n.Node, "controller", "--webhook-mode=disabled", "--disable-cert-rotation", "--port=7473")
		}
		start(n.Node, "speaker", "--node-name="+n.Node.Name, "--pod-name=speaker")
	}
	stop = sync.OnceFunc(func() {
		for _, f := range stops {
			f()
		}
		ctx := context.WithoutCancel(ctx)
		_, errPod := c.Run(ctx, "", "delete", "pod", "speaker", "--ignore-not-found", "--namespace=metallb-system", "--grace-period=0", "--force")
		_, errNamespace := c.Run(ctx, "", "delete", "namespace", "metallb-system", "--timeout=30s")
		_, err := c.Run(ctx, "", "delete", "-f", manifests, "--timeout=30s")
		report(t, errors.Join(errPod, errNamespace, err))
	})
	t.Cleanup(stop)
	return stop
}

// A server is called by a name, and the name leads elsewhere when the address before does not answer any more.
func TestEndpointsNameChanges(t *testing.T) {
	const port, name = "30999", "gateway.example.test."
	a, b := fx.gamma, fx.delta
	ctx := begin(t)
	var leadsTo atomic.Pointer[netip.Addr]
	leadsTo.Store(&a.nodes[0].addr)
	serving := make(chan error, 1)
	serveCtx, end := context.WithCancel(ctx)
	go func() { serving <- serveNames(t, serveCtx, b, name, &leadsTo) }()
	defer func() {
		end()
		report(t, <-serving)
	}()
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--server", a.Name,
		"--service-type", a.Name+"=NodePort:"+port, "--endpoint", a.Name+"="+strings.TrimSuffix(name, ".")+":"+port)
	checkPair(t, ctx, a, b)
	fs := startFlows(t, ctx, a, b, 0, 0)
	fs.answering(t, ctx, callTimeout)
	leadsTo.Store(&a.nodes[1].addr)
	repair := a.nodes[0].dropPackets(t, ctx, "in udp dport "+port+" drop")
	fs.answeredFor(t, ctx, followLimit, 2*followLimit)
	fs.interrupted(t, "the name leads to another address", followLimit)
	repair()
	checkRepaired(t, ctx, a, b)
	unpeered(t, ctx, a, b)
}

// serveNames answers for a name as the name server that the gateway of a client asks. The lab has none: it is in the gateway's own
// network namespace.
func serveNames(t *testing.T, ctx context.Context, of *cluster, name string, leadsTo *atomic.Pointer[netip.Addr]) error {
	t.Helper()
	eventually(t, ctx, podTimeout, "the client's gateway runs", func() string {
		found := of.agents(t, "gateway")
		return unless(len(found) == 1, "%v", found)
	})
	found := of.agents(t, "gateway")
	if len(found) != 1 {
		return fmt.Errorf("the client's gateways: %v", found)
	}
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", found[0].pid))
	if err != nil {
		return err
	}
	defer ns.Close()
	v := &vantage{name: "gateway", ns: ns}
	conf, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/etc/resolv.conf", found[0].pid))
	if err != nil {
		return err
	}
	_, rest, _ := strings.Cut(string(conf), "nameserver ")
	server, _, _ := strings.Cut(rest, "\n")
	if _, err := v.shell(ctx, "ip addr add "+server+"/32 dev lo"); err != nil {
		return err
	}
	return v.do(func() error { return nameServer(ctx, server, name, leadsTo) })
}

// nameServer answers for one name in the network namespace of the thread, until ctx ends. Gateways ask by TCP, as their
// firewall lets no UDP in that is not the tunnel's (RFC 7766).
func nameServer(ctx context.Context, at, name string, leadsTo *atomic.Pointer[netip.Addr]) error {
	listener, err := net.Listen("tcp4", net.JoinHostPort(at, "53"))
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { listener.Close() })()
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err == nil {
			go answerNames(conn, name, leadsTo)
		}
	}
}

// answerNames answers the questions of one connection, each with its length before it.
func answerNames(conn net.Conn, name string, leadsTo *atomic.Pointer[netip.Addr]) {
	defer conn.Close()
	for {
		var length uint16
		if binary.Read(conn, binary.BigEndian, &length) != nil {
			return
		}
		question := make([]byte, length)
		var m dnsmessage.Message
		if _, err := io.ReadFull(conn, question); err != nil || m.Unpack(question) != nil || len(m.Questions) != 1 {
			return
		}
		q := m.Questions[0]
		m.Response, m.Authoritative, m.Additionals = true, true, nil
		switch {
		case q.Name.String() != name:
			m.RCode = dnsmessage.RCodeNameError
		case q.Type == dnsmessage.TypeA:
			m.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 1}, Body: &dnsmessage.AResource{A: leadsTo.Load().As4()},
			}}
		}
		answer, err := m.AppendPack(make([]byte, 2))
		if err != nil {
			return
		}
		binary.BigEndian.PutUint16(answer, uint16(len(answer)-2))
		if _, err := conn.Write(answer); err != nil {
			return
		}
	}
}
