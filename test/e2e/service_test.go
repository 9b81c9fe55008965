package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"testing"
	"time"

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
// masquerading.
func serviceWithRemoteEndpoint(t *testing.T, ctx context.Context, a, b *cluster) {
	for here, there := range bothWays(a, b) {
		checkRemoteService(t, ctx, here, there)
	}
}

func checkRemoteService(t *testing.T, ctx context.Context, here, there *cluster) {
	kubectl := func(stdin string, args ...string) string {
		return must(here.Run(ctx, stdin, args...))(t)
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
	balancer := netip.AddrPortFrom(balancerIP, workload.TCPPort)
	inside := netip.AddrPortFrom(netip.MustParseAddr(raw), workload.TCPPort)
	for i := range here.nodes {
		for _, target := range []netip.AddrPort{inside, balancer} {
			checkService(t, here.nodes[i].vantage, target, endpoint.Pod.Name)
			checkService(t, here.pods[i].vantage, target, endpoint.Pod.Name)
		}
	}
	// The control plane's machine is a host next to the nodes: it has no kube-proxy, and reaches the load balancer's
	// address by one of the nodes.
	outside := here.machine(t)
	t.Cleanup(func() { _ = outside.run("ip", "route", "flush", balancerIP.String()) })
	for _, n := range here.nodes {
		try(t, outside.run("ip", "route", "replace", balancerIP.String(), "via", n.addr.String()))
		checkService(t, outside, balancer, endpoint.Pod.Name)
	}
	kubectl("", "delete", "service", "remote")
}

// checkService connects, repeatedly until kube-proxy has written its rules, and
// wants the endpoint to answer, or any if it is empty.
func checkService(t *testing.T, from *vantage, to netip.AddrPort, endpoint string) {
	t.Helper()
	eventually(t, t.Context(), 10*time.Second, fmt.Sprintf("%s reaches the remote endpoint by %s", from, to), func() string {
		return why(from.do(func() error {
			conn, err := net.DialTimeout("tcp", to.String(), 2*time.Second)
			if err != nil {
				return err
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
				return err
			}
			c, err := greet(conn)
			if err == nil && endpoint != "" && c.greeting.hostname != endpoint {
				err = fmt.Errorf("%s answered", c.greeting.hostname)
			}
			return err
		}))
	})
}

// A host outside of both clusters, a machine that has nothing of ours, can be
// reached by the peer's pods and nodes once it is exposed, by the address that is
// printed, and no longer when that is taken back.
func exposeHost(t *testing.T, ctx context.Context, a, b *cluster) {
	host := fx.delta.machine(t).addr
	said := mustLiqonet(t, ctx, "expose-host", a.Name, b.Name, host.String()).stdout
	again := mustLiqonet(t, ctx, "expose-host", a.Name, b.Name, host.String()).stdout
	expect(t, again == said, "it was %q, and then %q", said, again)
	mapped := mapped(t, ctx, a, b, host.String())
	require(t, said == mapped.String()+"\n", "expose-host says %q, map says %s", said, mapped)
	callers := []*vantage{b.pods[0].vantage, b.pods[1].vantage, b.nodes[0].vantage}
	reach := func(from *vantage, to netip.Addr, timeout time.Duration) error {
		return from.do(func() error {
			conn, err := net.DialTimeout("tcp", net.JoinHostPort(to.String(), strconv.Itoa(apiPort)), timeout)
			if err != nil {
				return err
			}
			return conn.Close()
		})
	}
	for _, from := range callers {
		err := reach(from, mapped, callTimeout)
		expect(t, err == nil, "%s calls the exposed host: %v", from, err)
		if _, err := from.call("icmp", mapped, callTimeout); err != nil {
			t.Errorf("%s pings the exposed host: %v", from, err)
		}
	}
	// A second peer keeps it, and so does a second path for what its packets are answered with.
	if whole() {
		mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--planes", "2", "--planes-mode", "spread")
		for _, from := range callers {
			err := reach(from, mapped, callTimeout)
			expect(t, err == nil, "by both planes, %s calls the exposed host: %v", from, err)
		}
		mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--planes-mode", "single")
	}
	for range 2 { // the second one says that there was nothing
		mustLiqonet(t, ctx, "expose-host", a.Name, b.Name, host.String(), "--remove")
	}
	for _, from := range callers {
		err := reach(from, mapped, shortTimeout)
		expect(t, err != nil, "%s reaches the host that is not exposed any more", from)
	}
}
