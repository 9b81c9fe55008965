package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/lab"
	"github.com/liqonet/liqonet/test/workload"
)

const hostNetworkManifest = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: on-host, namespace: default}
spec:
  selector: {matchLabels: {app: on-host}}
  template:
    metadata: {labels: {app: on-host}}
    spec:
      hostNetwork: true
      terminationGracePeriodSeconds: 0
      containers: [{name: tester, image: %s, imagePullPolicy: IfNotPresent, args: [pause]}]
`

// checkHostNetwork has a pod on the host network of every node call every pod of
// the peer: it is seen as its node is, which has an address of its own.
func checkHostNetwork(t *testing.T, ctx context.Context, here, there *cluster) {
	t.Helper()
	if _, err := here.Run(ctx, fmt.Sprintf(hostNetworkManifest, lab.TesterImage), "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if _, err := here.Run(ctx, "", "delete", "daemonset", "on-host", "--wait=true", "--cascade=foreground"); err != nil {
			t.Error(err)
		}
	}()
	if _, err := here.Run(ctx, "", "rollout", "status", "daemonset/on-host", "--timeout=60s"); err != nil {
		t.Fatal(err)
	}
	views := status(t, ctx, 0, here, there)
	ours, theirs := viewOf(t, views, here, there), viewOf(t, views, there, here)
	seen := map[netip.Addr]string{}
	for _, n := range ours.Nodes {
		raw, err := here.Run(ctx, "", "get", "pods", "-l", "app=on-host", "--field-selector=spec.nodeName="+n.Name, "-o", "jsonpath={.items[0].metadata.name}")
		if err != nil {
			t.Fatal(err)
		}
		if other := seen[n.SeenAs]; other != "" {
			t.Errorf("nodes %s and %s are both seen as %s", n.Name, other, n.SeenAs)
		}
		seen[n.SeenAs] = n.Name
		from := workload.Pod{Cluster: here.Cluster, Name: raw, Node: n.Name}
		for _, c := range workload.EveryToEvery(ctx, []workload.Pod{from}, there.workloadPods(), []string{"tcp", "udp", "icmp"}, func(p workload.Pod) netip.Addr {
			return theirs.seenAs(t, p.IP)
		}) {
			if c.Err != nil {
				t.Error(c.Err)
			} else if c.Protocol != "icmp" && c.Answer.Source() != n.SeenAs {
				t.Errorf("%s, on the host network, called %s by %s: it saw %s, want %s", c.From, c.To, c.Protocol, c.Answer.Source(), n.SeenAs)
			}
		}
	}
}

// samePort is what all nodes use as source port at once.
const samePort = 23456

// checkSamePort has all nodes of a cluster use one source port to one pod of the
// peer at once: nothing on the way may take two connections for one.
func checkSamePort(t *testing.T, ctx context.Context, here, there *cluster) {
	t.Helper()
	views := status(t, ctx, 0, here, there)
	ours, theirs := viewOf(t, views, here, there), viewOf(t, views, there, here)
	target := there.pods[0]
	to := theirs.seenAs(t, target.IP)
	tcp, udp := make([]*connection, len(here.nodes)), make([]net.Conn, len(here.nodes))
	for i, n := range here.nodes {
		if err := n.do(func() error {
			dialer := net.Dialer{Timeout: callTimeout, LocalAddr: &net.TCPAddr{Port: samePort}}
			conn, err := dialer.Dial("tcp", workload.Target("tcp", to))
			if err != nil {
				return err
			}
			t.Cleanup(func() { conn.Close() })
			// No TIME-WAIT, which would keep the port from the next one.
			if err := conn.(*net.TCPConn).SetLinger(0); err != nil {
				return err
			}
			if err := conn.SetDeadline(time.Now().Add(callTimeout)); err != nil {
				return err
			}
			if tcp[i], err = greet(conn); err != nil {
				return err
			}
			dialer.LocalAddr = &net.UDPAddr{Port: samePort}
			udp[i], err = dialer.Dial("udp", workload.Target("udp", to))
			if err == nil {
				t.Cleanup(func() { udp[i].Close() })
			}
			return err
		}); err != nil {
			t.Fatalf("%s, source port %d, calls %s: %v", n.vantage, samePort, to, err)
		}
	}
	// All are open now.
	for i, n := range here.nodes {
		want := answer{target.Pod.Name, ours.Nodes[i].SeenAs}
		err := errors.Join(tcp[i].SetDeadline(time.Now().Add(callTimeout)), udp[i].SetDeadline(time.Now().Add(callTimeout)), tcp[i].echo(payload))
		got, udpErr := askUDP(udp[i])
		if err := errors.Join(err, udpErr); err != nil || tcp[i].greeting != want || got != want {
			t.Errorf("%s, source port %d, calls %s: answers %v by TCP and %v by UDP, want %v: %v", n.vantage, samePort, to, tcp[i].greeting, got, want, err)
		}
	}
}
