package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/lab"
	"github.com/liqonet/liqonet/test/workload"
)

// remoteNodePort is in the default range of NodePorts.
const remoteNodePort = 30777

// balancerIP is what a load balancer would have given to the Service: of no
// network of the lab.
var balancerIP = netip.MustParseAddr("203.0.113.77")

const remoteService = `
apiVersion: v1
kind: Service
metadata: {name: remote, namespace: default}
spec: {type: LoadBalancer, ports: [{port: %[1]d, nodePort: %[2]d}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: remote-1, namespace: default, labels: {kubernetes.io/service-name: remote}}
addressType: IPv4
ports: [{port: %[1]d}]
endpoints: [{addresses: ["%[3]s"]}]
`

// A Service whose endpoint is a pod of the peer can be reached by its cluster IP
// from nodes and pods, and by its NodePort and its load balancer's address through
// every node, from inside and from outside of the cluster; with kube-proxy's
// iptables (alpha) as with its nftables (beta). kube-proxy marks such packets for
// masquerading. Pods on the host network are looked at as well.
func serviceWithRemoteEndpoint(t *testing.T, ctx context.Context, a, b *cluster) {
	for here, there := range bothWays(a, b) {
		checkHostNetwork(t, ctx, here, there)
		checkRemoteService(t, ctx, here, there)
	}
}

func checkRemoteService(t *testing.T, ctx context.Context, here, there *cluster) {
	t.Helper()
	kubectl := func(stdin string, args ...string) string {
		out := must(here.Run(ctx, stdin, args...))(t)
		return out
	}
	endpoint := there.pods[0]
	address := mapped(t, ctx, there, here, "default/"+endpoint.Pod.Name)
	kubectl(fmt.Sprintf(remoteService, workload.TCPPort, remoteNodePort, address), "apply", "-f", "-")
	kubectl("", "patch", "service", "remote", "--subresource=status", "--type=merge",
		"-p", fmt.Sprintf(`{"status":{"loadBalancer":{"ingress":[{"ip":%q}]}}}`, balancerIP))
	raw := kubectl("", "get", "service", "remote", "-o", "jsonpath={.spec.clusterIP}")

	callers := []*vantage{fx.delta.machine(t)}
	for _, n := range here.nodes {
		callers = append(callers, n.vantage)
	}
	for _, n := range here.nodes {
		for _, caller := range callers {
			checkService(t, caller, netip.AddrPortFrom(n.addr, remoteNodePort), endpoint.Pod.Name)
		}
	}
	checkUnmasqueraded(t, ctx, here, there, endpoint)
	balancer := netip.AddrPortFrom(balancerIP, workload.TCPPort)
	inside := netip.AddrPortFrom(netip.MustParseAddr(raw), workload.TCPPort)
	for i := range here.nodes {
		for _, target := range []netip.AddrPort{inside, balancer} {
			checkService(t, here.nodes[i].vantage, target, endpoint.Pod.Name)
			checkService(t, here.pods[i].vantage, target, endpoint.Pod.Name)
		}
	}
	outside := newOutside(t, ctx, here)
	for _, n := range here.nodes {
		outside.through(n)
		checkService(t, outside.vantage, balancer, endpoint.Pod.Name)
	}

	// Only the node that the endpoint is said to be on takes part then, and
	// kube-proxy does not masquerade.
	first, second := here.nodes[0], here.nodes[1]
	kubectl("", "patch", "endpointslice", "remote-1", "--type=json",
		"-p", fmt.Sprintf(`[{"op":"add","path":"/endpoints/0/nodeName","value":%q}]`, first.Node.Name))
	kubectl("", "patch", "service", "remote", "-p", `{"spec":{"externalTrafficPolicy":"Local"}}`)
	outside.through(second)
	eventually(t, ctx, 10*time.Second, "another node does not answer for a service of local traffic", func() string {
		err := outside.do(func() error {
			_, err := greetOnce(balancer, endpoint.Pod.Name, shortTimeout)
			return err
		})
		return unless(err != nil, "it does")
	})
	outside.through(first)
	checkService(t, outside.vantage, balancer, endpoint.Pod.Name)
	checkService(t, fx.delta.machine(t), netip.AddrPortFrom(first.addr, remoteNodePort), endpoint.Pod.Name)
	outside.close()
	kubectl("", "delete", "service", "remote")
}

// checkUnmasqueraded has pods call the NodePort of other nodes than theirs, which
// see the pod's own address, as on EKS, AKS and GKE. The endpoint sees the node
// that was called: its answer has to come back there, where the destination was
// translated, and not to the pod's own node.
func checkUnmasqueraded(t *testing.T, ctx context.Context, here, there *cluster, endpoint pod) {
	t.Helper()
	rule := func(ctx context.Context, n node, do ...string) {
		args := append(append([]string{"-w", "-t", "nat"}, do...), "-s", here.spec.PodCIDR.String(), "-d", here.spec.NodeSubnet.String(), "-j", "ACCEPT")
		report(t, runs(n.NetCommand(ctx, "iptables", args...)))
	}
	for _, n := range here.nodes {
		rule(ctx, n, "-I", "POSTROUTING")
		defer rule(context.WithoutCancel(ctx), n, "-D", "POSTROUTING")
	}
	ours := viewOf(t, status(t, ctx, 0, here, there), here, there)
	for i, from := range here.pods {
		for j, by := range here.nodes {
			want := answer{endpoint.Pod.Name, ours.Nodes[j].SeenAs}
			if i == j { // the answer comes back to this node anyway
				want.source = ours.seenAs(t, from.IP)
			}
			to := netip.AddrPortFrom(by.addr, remoteNodePort)
			var got answer
			err := from.do(func() (err error) {
				got, err = greetOnce(to, "", callTimeout)
				return err
			})
			expect(t, err == nil && got == want,
				"%s calls %s, the NodePort of %s, without masquerade: %v answered, want %v: %v", from.vantage, to, by.vantage, got, want, err)
		}
	}
}

// outside is a host beside the nodes, as which the control plane's machine
// serves: it has no kube-proxy. It reaches the load balancer's address by one of
// the nodes.
type outside struct {
	*vantage
	through func(node)
	close   func()
}

func newOutside(t *testing.T, ctx context.Context, c *cluster) outside {
	t.Helper()
	clusters := must(fx.lab.Clusters())(t)
	i := slices.IndexFunc(clusters, func(lc *lab.Cluster) bool { return lc.Spec.Name == c.Name })
	machine := must(clusters[i].Node(c.Name + "-cp"))(t)
	v := must(nodeVantage(machine))(t)
	route := func(ctx context.Context, args ...string) {
		report(t, runs(machine.NetCommand(ctx, "ip", append([]string{"route"}, args...)...)))
	}
	closed := false
	closeOnce := func() {
		if !closed {
			closed = true
			route(context.WithoutCancel(ctx), "flush", balancerIP.String())
			v.ns.Close()
		}
	}
	t.Cleanup(closeOnce)
	return outside{
		vantage: v, close: closeOnce,
		through: func(n node) { route(ctx, "replace", balancerIP.String(), "via", n.addr.String()) },
	}
}

// checkService connects, repeatedly until kube-proxy has written its rules, and
// wants the endpoint to answer, or any if it is empty.
func checkService(t *testing.T, from *vantage, to netip.AddrPort, endpoint string) {
	t.Helper()
	eventually(t, t.Context(), 10*time.Second, fmt.Sprintf("%s reaches the remote endpoint by %s", from, to), func() string {
		err := from.do(func() error {
			_, err := greetOnce(to, endpoint, 2*time.Second)
			return err
		})
		return why(err)
	})
}

// greetOnce connects, from the namespace of the thread, and wants a pod to
// answer, or any if it is empty.
func greetOnce(to netip.AddrPort, pod string, timeout time.Duration) (answer, error) {
	conn, err := net.DialTimeout("tcp", to.String(), timeout)
	if err != nil {
		return answer{}, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return answer{}, err
	}
	c, err := greet(conn)
	if err != nil {
		return answer{}, err
	}
	if pod != "" && c.greeting.hostname != pod {
		return c.greeting, fmt.Errorf("%s answered", c.greeting.hostname)
	}
	return c.greeting, nil
}
