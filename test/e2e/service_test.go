package e2e

import (
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

const remoteService = `
apiVersion: v1
kind: Service
metadata: {name: remote, namespace: default}
spec: {type: NodePort, ports: [{port: %[1]d, nodePort: %[2]d}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: remote-1, namespace: default, labels: {kubernetes.io/service-name: remote}}
addressType: IPv4
ports: [{port: %[1]d}]
endpoints: [{addresses: ["%[3]s"]}]
`

// A Service whose endpoint is a pod of the peer can be reached by its cluster IP
// from nodes and pods, and by its NodePort through every node, from inside and
// from outside of the cluster; with kube-proxy's iptables (alpha) as with its
// nftables (beta). kube-proxy marks such packets for masquerading.
func TestServiceWithRemoteEndpoint(t *testing.T) {
	ctx := begin(t)
	a, b := fx.alpha, fx.beta
	mustLiqonet(t, ctx, "peer", a.Name, b.Name)
	for _, direction := range [][2]*cluster{{a, b}, {b, a}} {
		here, there := direction[0], direction[1]
		endpoint := there.pods[0]
		address := mapped(t, ctx, there, here, "default/"+endpoint.Pod.Name)
		if _, err := here.Run(ctx, fmt.Sprintf(remoteService, workload.TCPPort, remoteNodePort, address), "apply", "-f", "-"); err != nil {
			t.Fatal(err)
		}
		raw, err := here.Run(ctx, "", "get", "service", "remote", "-o", "jsonpath={.spec.clusterIP}")
		if err != nil {
			t.Fatal(err)
		}
		callers := []*vantage{fx.gamma.nodes[0].vantage}
		var targets []netip.AddrPort
		for _, n := range here.nodes {
			callers = append(callers, n.vantage)
			targets = append(targets, netip.AddrPortFrom(n.addr, remoteNodePort))
		}
		for _, target := range targets {
			for _, caller := range callers {
				checkService(t, caller, target, endpoint.Pod.Name)
			}
		}
		inside := netip.AddrPortFrom(netip.MustParseAddr(raw), workload.TCPPort)
		for i := range here.nodes {
			checkService(t, here.nodes[i].vantage, inside, endpoint.Pod.Name)
			checkService(t, here.pods[i].vantage, inside, endpoint.Pod.Name)
		}
		if _, err := here.Run(ctx, "", "delete", "service", "remote"); err != nil {
			t.Fatal(err)
		}
	}
	mustLiqonet(t, ctx, "unpeer", a.Name, b.Name)
	checkNothingLeft(t, ctx)
}

// checkService connects, repeatedly until kube-proxy has written its rules, and
// wants the endpoint to answer, or any if it is empty.
func checkService(t *testing.T, from *vantage, to netip.AddrPort, endpoint string) {
	t.Helper()
	eventually(t, t.Context(), 10*time.Second, fmt.Sprintf("%s reaches the remote endpoint by %s", from, to), func() string {
		err := from.do(func() error {
			conn, err := net.DialTimeout("tcp", net.JoinHostPort(to.Addr().String(), strconv.Itoa(int(to.Port()))), 2*time.Second)
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
		})
		if err != nil {
			return err.Error()
		}
		return ""
	})
}
