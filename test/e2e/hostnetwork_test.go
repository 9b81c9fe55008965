package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

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
	apply(t, ctx, here, fmt.Sprintf(hostNetworkManifest, lab.TesterImage))
	defer func() {
		report(t, errOf(here.Run(ctx, "", "delete", "daemonset", "on-host", "--wait=true", "--cascade=foreground")))
	}()
	here.kubectl(t, ctx, "rollout", "status", "daemonset/on-host", "--timeout=60s")
	views := status(t, ctx, 0, here, there)
	ours, theirs := viewOf(t, views, here, there), viewOf(t, views, there, here)
	seen := map[netip.Addr]string{}
	for _, n := range ours.Nodes {
		raw := here.kubectl(t, ctx, "get", "pods", "-l", "app=on-host", "--field-selector=spec.nodeName="+n.Name, "-o", "jsonpath={.items[0].metadata.name}")
		other := seen[n.SeenAs]
		expect(t, other == "", "nodes %s and %s are both seen as %s", n.Name, other, n.SeenAs)
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
