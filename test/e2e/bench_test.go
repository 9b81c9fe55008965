package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/samber/lo"
	"golang.org/x/sync/errgroup"

	"github.com/liqonet/liqonet/test/lab"
)

// rollout is what peer cannot be faster than: a Deployment and a DaemonSet, of an
// image that the nodes have.
const rollout = `
apiVersion: v1
kind: Namespace
metadata: {name: e2e-rollout}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: node, namespace: e2e-rollout}
spec:
  selector: {matchLabels: {app: node}}
  template:
    metadata: {labels: {app: node}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: c, image: %[1]s, args: [pause], imagePullPolicy: IfNotPresent}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: gateway, namespace: e2e-rollout}
spec:
  replicas: %[2]s
  selector: {matchLabels: {app: gateway}}
  template:
    metadata: {labels: {app: gateway}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: c, image: %[1]s, args: [pause], imagePullPolicy: IfNotPresent}]
`

// BenchmarkPeer measures what a user waits for, next to what Kubernetes itself
// needs on the same machine, in the same minute. Seconds depend on the machine;
// the ratios to the rollout can be compared.
func BenchmarkPeer(b *testing.B) {
	for _, planes := range []string{"1", "2"} {
		b.Run("planes="+planes, func(b *testing.B) {
			for b.Loop() {
				measure(b, planes)
			}
		})
	}
}

func measure(b *testing.B, planes string) {
	ctx := begin(b)
	peer := func(x, y *cluster) result {
		return mustLiqonet(b, ctx, "peer", x.Name, y.Name, "--planes", planes)
	}
	alpha, beta, gamma, delta := fx.alpha, fx.beta, fx.gamma, fx.delta
	bare := rollOut(b, ctx, planes, alpha, beta)
	add := func(name string, seconds float64) {
		unit := strings.NewReplacer(" ", "-", ":", "", ",", "").Replace(name)
		b.ReportMetric(seconds, unit+"-s")
		b.ReportMetric(seconds/bare, unit+"-ratio")
	}
	add("Deployment and DaemonSet alone", bare)

	// Which addresses the pods will have is decided by the clusters' ranges: the
	// same each time.
	peer(alpha, beta)
	addresses := remoteAddresses(b, ctx, alpha, beta)
	mustLiqonet(b, ctx, "unpeer", alpha.Name, beta.Name)

	first, all, command := timePeer(b, ctx, peer, alpha, beta, addresses)
	add("peer: first packet", first)
	add("peer: every pod to every pod", all)
	add("peer: command", command)
	add("peer: nothing to do", peer(alpha, beta).took.Seconds())

	disjoint := map[*cluster][]netip.Addr{alpha: addressesOf(gamma), gamma: addressesOf(alpha)}
	first, _, command = timePeer(b, ctx, peer, alpha, gamma, disjoint)
	add("second peering, new peer: first packet", first)
	add("second peering, new peer: command", command)
	add("unpeer, agents stay in one cluster", mustLiqonet(b, ctx, "unpeer", alpha.Name, gamma.Name).took.Seconds())

	// Gamma knows alpha by other addresses now, as delta's are in the way.
	peer(gamma, delta)
	peer(alpha, gamma)
	addresses = remoteAddresses(b, ctx, alpha, gamma)
	mustLiqonet(b, ctx, "unpeer", alpha.Name, gamma.Name)
	first, _, command = timePeer(b, ctx, peer, alpha, gamma, addresses)
	add("second peering of both: first packet", first)
	add("second peering of both: command", command)
	add("unpeer, agents stay in both", mustLiqonet(b, ctx, "unpeer", alpha.Name, gamma.Name).took.Seconds())
	mustLiqonet(b, ctx, "unpeer", gamma.Name, delta.Name)

	add("unpeer, the last", mustLiqonet(b, ctx, "unpeer", alpha.Name, beta.Name).took.Seconds())
	checkNothingLeft(b, ctx)
}

// rollOut returns the seconds that both clusters need, at once.
func rollOut(b *testing.B, ctx context.Context, planes string, clusters ...*cluster) float64 {
	manifest := fmt.Sprintf(rollout, lab.TesterImage, planes)
	start := time.Now()
	each := func(do func(c *cluster) error) {
		g := errgroup.Group{}
		for _, c := range clusters {
			g.Go(func() error { return do(c) })
		}
		try(b, g.Wait())
	}
	each(func(c *cluster) error {
		if _, err := c.Run(ctx, manifest, "apply", "-f", "-"); err != nil {
			return err
		}
		_, err := c.Run(ctx, "", "-n", "e2e-rollout", "rollout", "status", "daemonset/node", "deployment/gateway", "--timeout=60s")
		return err
	})
	took := time.Since(start).Seconds()
	each(func(c *cluster) error {
		_, err := c.Run(ctx, "", "delete", "namespace", "e2e-rollout", "--timeout=60s")
		return err
	})
	return took
}

func remoteAddresses(b *testing.B, ctx context.Context, x, y *cluster) map[*cluster][]netip.Addr {
	b.Helper()
	out := map[*cluster][]netip.Addr{}
	views := status(b, ctx, 0, x, y)
	for from, to := range bothWays(x, y) {
		for _, p := range to.pods {
			out[from] = append(out[from], viewOf(b, views, to, from).seenAs(b, p.IP))
		}
	}
	return out
}

func addressesOf(c *cluster) []netip.Addr {
	return lo.Map(c.pods, func(p pod, _ int) netip.Addr { return p.IP })
}

// pollTimeout is how long a pod waits for an answer before it asks again.
const pollTimeout = 50 * time.Millisecond

// timePeer peers two clusters while every pod of each asks every pod of the
// other, until it gets an answer. Times are in seconds since the command.
func timePeer(b *testing.B, ctx context.Context, peer func(x, y *cluster) result, x, y *cluster, addresses map[*cluster][]netip.Addr) (first, all, command float64) {
	b.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	start := time.Now()
	for _, from := range []*cluster{x, y} {
		for _, p := range from.pods {
			for _, to := range addresses[from] {
				wg.Go(func() {
					err := p.do(func() error {
						for ctx.Err() == nil {
							// A socket of its own each time, as the first ones went elsewhere.
							asked := time.Now()
							if _, err := ask("udp", to, pollTimeout); err == nil {
								return nil
							}
							time.Sleep(max(0, pollTimeout-time.Since(asked)))
						}
						return ctx.Err()
					})
					mu.Lock()
					defer mu.Unlock()
					took := time.Since(start).Seconds()
					if err != nil {
						b.Errorf("%s never got an answer of %s: %v", p.vantage, to, err)
					} else if first == 0 || took < first {
						first = took
					}
					all = max(all, took)
				})
			}
		}
	}
	command = peer(x, y).took.Seconds()
	wg.Wait()
	return first, all, command
}
