package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/samber/lo"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/test/lab"
	"github.com/liqonet/liqonet/test/workload"
)

const (
	// serveTimeout is within what a node that has become ready is served. Where pods
	// take long to start it is servePods times what another one takes on that node.
	serveTimeout, servePods = 5 * time.Second, 2
	// moveTimeout is how long a gateway that has to move is waited for, which is mostly
	// the start of a pod. How long packets may be lost is said by moveLimit.
	moveTimeout = time.Minute
	// podTimeout is for a pod that Kubernetes starts.
	podTimeout = time.Minute
)

// Nodes that come, go, are drained, rebooted or renamed are served without the
// CLI, within 5 s of being Ready, with pods and by themselves, both ways.
func TestNodesComeAndGo(t *testing.T) {
	ctx := begin(t)
	a, b := fx.gamma, fx.delta
	lc := must(fx.lab.Cluster(a.Name))(t)
	mustLiqonet(t, ctx, "peer", a.Name, b.Name)
	views := status(t, ctx, 0, a, b)
	s := &service{of: a, peer: b, ours: viewOf(t, views, a, b), theirs: viewOf(t, views, b, a)}

	var guest *lab.Node
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		a.cordon(t, ctx, nil)
		if guest != nil {
			a.removeNode(t, ctx, guest)
		}
		// The Node of a former name, if a part of the test did not get to it.
		report(t, errOf(a.Run(ctx, "", "delete", "node", "--ignore-not-found", a.Name+"-guest")))
	}()
	// served looks whether all is well, with the guest.
	served := func(t *testing.T, notReady string) {
		t.Helper()
		checkNodeCount(t, ctx, a, b, len(a.nodes)+1, notReady)
		if !t.Failed() {
			checkOnePacket(t, ctx, a, b)
		}
	}
	run := func(name string, f func(t *testing.T)) {
		if !t.Run(name, f) {
			t.FailNow() // what follows would fail for the same reason
		}
	}
	run("added", func(t *testing.T) {
		s.measure(t, ctx, func() (_ *lab.Node, err error) {
			guest, err = lc.AddNode(ctx)
			return guest, err
		})
		served(t, "")
	})
	drained := func(t *testing.T) {
		at := a.gatewayNode(t)
		// Without a gateway: nobody notices, then and when it is uncordoned.
		bystander := 0
		if a.nodes[0].Node.Name == at {
			bystander = 1
		}
		fs := startFlows(t, ctx, a, b, bystander, 0)
		a.drain(t, ctx, a.nodes[bystander].Node.Name)
		a.cordon(t, ctx, nil)
		fs.lossless(t, "a node without the gateway is drained and uncordoned")
		now := a.gatewayNode(t)
		expect(t, now == at, "the gateway has moved from %s to %s", at, now)
		// With it: it moves.
		fs = startFlows(t, ctx, a, b, 0, 0)
		fs.answering(t, ctx, callTimeout)
		begun := time.Now()
		a.drain(t, ctx, at)
		fs.answering(t, ctx, moveTimeout)
		fs.interrupted(t, "the node of the gateway is drained", moveLimit(t, begun, a))
		if now := a.gatewayNode(t); now == at {
			t.Errorf("the gateway is still on %s", at)
		}
		a.cordon(t, ctx, nil)
		served(t, "")
	}
	rebooted := func(withGateway bool) func(t *testing.T) {
		return func(t *testing.T) {
			a.moveGateway(t, ctx, func(node string) bool { return (node == guest.Name) == withGateway })
			served(t, "")
			s.measure(t, ctx, func() (*lab.Node, error) { return guest, guest.Restart(ctx) })
			if withGateway {
				a.moveGateway(t, ctx, func(node string) bool { return node != guest.Name })
			}
			served(t, "")
		}
	}
	renamed := func(t *testing.T) {
		former := guest.Name
		a.moveGateway(t, ctx, func(node string) bool { return node != former })
		mustLiqonet(t, ctx, "peer", a.Name, b.Name) // it notes which nodes know the overlay's key
		s.measure(t, ctx, func() (*lab.Node, error) {
			renamed, err := guest.Rename(ctx, a.Name+"-blue")
			if err == nil {
				guest = renamed
			}
			return renamed, err
		})
		// The Node of its former name is not ready, for ever.
		served(t, former)
		a.kubectl(t, ctx, "delete", "node", former)
		served(t, "")
	}
	formerNodes := func(t *testing.T) {
		checkNewKey(t, ctx, a, b)
		served(t, "")
	}
	parts := [][]step{
		{{"drained", drained}},
		{{"rebooted", rebooted(false)}},
		{{"rebooted with the gateway", rebooted(true)}},
		{{"renamed", renamed}, {"former nodes", formerNodes}},
	}
	for _, i := range sample(random(t), len(parts), 1) {
		for _, part := range parts[i] {
			run(part.name, part.test)
		}
	}
	mustLiqonet(t, ctx, "unpeer", a.Name, b.Name)
	none(t, tracesOn(ctx, guest), "on the node that came")
	a.removeNode(t, ctx, guest)
	guest = nil
	checkNothingLeft(t, ctx)
}

// checkNewKey looks that status tells of a node that has left, and that a command which moves
// the gateway to a node makes another key of the overlay as well, with one interruption. Pods
// of the node that was renamed have addresses that lead nowhere, so it is another node.
func checkNewKey(t *testing.T, ctx context.Context, a, b *cluster) {
	_, other := a.withoutGateway(t)
	target := other.Node.Name
	keys := func() string {
		out := a.kubectl(t, ctx, "-n", "liqonet-system", "get", "secrets", "-o", "name")
		return strings.Join(slices.DeleteFunc(strings.Fields(out), func(s string) bool { return !strings.Contains(s, "overlay") }), " ")
	}
	keysOf := func(generation int) string {
		return fmt.Sprintf("secret/gateway-%s-0-overlay-%d secret/liqonet-overlay-%[2]d", b.Name, generation)
	}
	const warning = "nodes that have left know the overlay's key (1): kubectl liqonet peer "
	if m := viewOf(t, status(t, ctx, 0, a, b), a, b).Message; !strings.Contains(m, warning) || keys() != keysOf(1) {
		t.Errorf("keys %s, and status says %q", keys(), m)
	}
	fs := startFlows(t, ctx, a, b, 0, 0)
	fs.answering(t, ctx, callTimeout)
	begun := time.Now()
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--gateway-node-selector", a.Name+"="+corev1.LabelHostname+"="+target)
	t.Logf("another key of the overlay, and another node for the gateway, took %s", time.Since(begun))
	fs.interrupted(t, "another key of the overlay", moveLimit(t, begun, a))
	at := a.gatewayNode(t)
	expect(t, at == target, "the gateway is on %s, want %s", at, target)
	if m := viewOf(t, status(t, ctx, 0, a, b), a, b).Message; m != "" || keys() != keysOf(2) {
		t.Errorf("with another key there are %s, and status says %q", keys(), m)
	}
}

// moveLimit is how long packets may be lost to gateways that were started after
// something happened: twice as long as that took, and for a handshake of WireGuard,
// which is tried again after 5 s.
func moveLimit(t *testing.T, happened time.Time, clusters ...*cluster) time.Duration {
	t.Helper()
	const handshake = 6 * time.Second
	var started time.Duration
	for _, c := range clusters {
		started = max(started, c.gatewayAgent(t).started(t).Sub(happened))
	}
	return 2*started + handshake
}

// service is what nodes of one cluster get from its peering with another.
type service struct {
	of, peer *cluster
	// ours and theirs are the views of both, which nodes do not change.
	ours, theirs view
}

// measure has a node become ready, and looks how soon packets pass: from the node
// itself, from a pod on it, and to that pod from a pod and a node of the peer. The
// time begins when the lab has seen the API server say that the node is ready. A pod that the
// kubelet has not started by the end of it has to be served from its first packet.
func (s *service) measure(t *testing.T, ctx context.Context, happen func() (*lab.Node, error)) {
	t.Helper()
	n, ready := must(happen())(t), time.Now()
	remote := s.peer.pods[0]
	seen := s.theirs.seenAs(t, remote.IP)
	fromNode := must(nodeVantage(n))(t)
	defer fromNode.ns.Close()
	answered := make([]time.Time, 4)
	var group errgroup.Group
	group.Go(func() (err error) {
		answered[0], err = firstAnswer(ctx, fromNode, seen)
		return err
	})
	p, runs := s.of.podOn(t, ctx, n)
	defer p.ns.Close()
	address := s.ours.seenAs(t, p.IP)
	for i, call := range []struct {
		from *vantage
		to   netip.Addr
	}{{p.vantage, seen}, {remote.vantage, address}, {s.peer.nodes[0].vantage, address}} {
		group.Go(func() (err error) {
			answered[i+1], err = firstAnswer(ctx, call.from, call.to)
			return err
		})
	}
	report(t, group.Wait())
	since := func(at time.Time) time.Duration { return at.Sub(ready).Round(time.Millisecond) }
	t.Logf("after the node was ready, a pod runs %s; first answers %v", since(runs), lo.Map(answered, func(at time.Time, _ int) any { return since(at) }))
	limit := max(serveTimeout, servePods*since(runs))
	for _, at := range answered {
		// A pod that was started after that has to be served from its first packet.
		if since(at) > max(limit, since(runs)+shortTimeout) {
			t.Errorf("first answer %s after the node was ready, want %s", since(at), limit)
		}
	}
}

// firstAnswer asks until there is an answer, and returns when that was.
func firstAnswer(ctx context.Context, from *vantage, to netip.Addr) (time.Time, error) {
	for giveUp := time.Now().Add(podTimeout); ; {
		_, err := from.call("udp", to, 100*time.Millisecond)
		switch {
		case err == nil:
			return time.Now(), nil
		case time.Now().After(giveUp) || ctx.Err() != nil:
			return time.Now(), fmt.Errorf("no answer within %s: %w", podTimeout, err)
		}
	}
}

// podOn waits for the test pod on a node, and says since when it is known to run.
func (c *cluster) podOn(t *testing.T, ctx context.Context, n *lab.Node) (pod, time.Time) {
	t.Helper()
	var found pod
	var reason error
	for deadline := time.Now().Add(podTimeout); time.Now().Before(deadline) && ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
		reason = fmt.Errorf("there is none")
		pods, err := c.Pods(ctx)
		if err != nil {
			reason = err
			continue
		}
		for _, p := range pods {
			if p.Node != n.Name {
				continue
			}
			// Its process is there, and answers on the node: what the API server
			// says of a pod of before a reboot is outdated for a while.
			var v map[string]*vantage
			if v, reason = podVantages([]workload.Pod{p}); reason != nil {
				continue
			}
			found = pod{p, v[p.Name]}
			if _, reason = found.call("udp", p.IP, shortTimeout); reason == nil {
				return found, time.Now()
			}
			found.ns.Close()
		}
	}
	t.Fatalf("no test pod runs on node %s: %v", n.Name, reason)
	return found, time.Time{}
}

// checkNodeCount waits until status says that so many nodes are served, and which
// one is not ready.
func checkNodeCount(t *testing.T, ctx context.Context, a, b *cluster, want int, notReady string) {
	eventually(t, ctx, recoveryTimeout, "status", func() string {
		r := liqonet(t, ctx, "", "status", "-o", "json", a.Name, b.Name)
		v := viewOf(t, parseStatus(t, r.stdout), a, b)
		switch {
		case r.code != 0 || v.State != "Connected" || v.NodesReady != want || len(v.Nodes) != want:
			return fmt.Sprintf("exit code %d, %s, %d of %d nodes: %s", r.code, v.State, v.NodesReady, len(v.Nodes), v.Message)
		case strings.Join(v.NodesNotReady, " ") != notReady || (notReady != "") != strings.Contains(v.Message, "not ready"):
			return fmt.Sprintf("not ready are %v: %q", v.NodesNotReady, v.Message)
		}
		return ""
	})
}

// at is the number of a node.
func (c *cluster) at(name string) int {
	return slices.IndexFunc(c.nodes, func(n node) bool { return n.Node.Name == name })
}

// gatewayNode is where the cluster's only gateway runs.
func (c *cluster) gatewayNode(t testing.TB) string {
	t.Helper()
	return c.gatewayAgent(t).node
}

// withoutGateway is a node where the cluster's only gateway does not run, and its
// number.
func (c *cluster) withoutGateway(t *testing.T) (int, node) {
	t.Helper()
	gateway := c.gatewayNode(t)
	i := slices.IndexFunc(c.nodes, func(n node) bool { return n.Node.Name != gateway })
	require(t, i >= 0, "cluster %s has no node but the gateway's", c.Name)
	return i, c.nodes[i]
}

// nodeAgent is the agent of a node.
func (c *cluster) nodeAgent(t *testing.T, name string) agentProcess {
	t.Helper()
	found := c.agents(t, "node")
	i := slices.IndexFunc(found, func(p agentProcess) bool { return p.node == name })
	require(t, i >= 0, "node %s has no agent: %v", name, found)
	return found[i]
}

// drain empties a node as an administrator does.
func (c *cluster) drain(t *testing.T, ctx context.Context, node string) {
	t.Helper()
	c.kubectl(t, ctx, "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=60s")
}

// removeNode takes a node away, and the pods on it, which Kubernetes would do
// within a minute.
func (c *cluster) removeNode(t *testing.T, ctx context.Context, n *lab.Node) {
	t.Helper()
	report(t, n.Remove(ctx))
	_, err := c.Run(ctx, "", "delete", "pods", "-A", "--field-selector=spec.nodeName="+n.Name, "--force", "--grace-period=0", "--wait=false")
	report(t, err)
}

// cordon lets new pods run on some nodes only; on all of them without a choice.
func (c *cluster) cordon(t *testing.T, ctx context.Context, on func(node string) bool) {
	t.Helper()
	out := c.kubectl(t, ctx, "get", "nodes", "-o", "jsonpath={.items[*].metadata.name}")
	for name := range strings.FieldsSeq(out) {
		command := "cordon"
		if on == nil || on(name) {
			command = "uncordon"
		}
		c.kubectl(t, ctx, command, name)
	}
}

// moveGateway has the gateway run on a node that is wanted.
func (c *cluster) moveGateway(t *testing.T, ctx context.Context, on func(node string) bool) {
	t.Helper()
	c.cordon(t, ctx, on)
	defer c.cordon(t, ctx, nil)
	if found := c.agents(t, "gateway"); len(found) != 1 || !on(found[0].node) {
		c.kubectl(t, ctx, "-n", "liqonet-system", "delete", "pods", "-l", "app.kubernetes.io/component=gateway")
	}
	eventually(t, ctx, podTimeout, "the gateway moves", func() string {
		if found := c.agents(t, "gateway"); len(found) != 1 || !on(found[0].node) {
			return fmt.Sprint(found)
		}
		// Until it reports, status says how the former one was.
		r, err := c.Run(ctx, "", "get", "peerings", "-o", "jsonpath={.items[*].status.planes[*].nodeName}")
		return unless(err == nil && r != "" && on(r), "the gateway on %s has reported: %v", r, err)
	})
}

// tracesOn is what a node that was never without a peering has of ours.
func tracesOn(ctx context.Context, n *lab.Node) string {
	s, err := workload.TakeSnapshot(ctx, n)
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for subject, text := range s {
		for line := range strings.Lines(text) {
			if aboutOurs.MatchString(line) {
				b.WriteString(subject + ": " + line + "\n")
			}
		}
	}
	return b.String()
}
