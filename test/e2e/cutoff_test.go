package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/bare"
)

const (
	// evictTimeout is within what Kubernetes gives a pod up whose node it does not hear of:
	// the node monitor's grace of 40 to 50 s, then our toleration, and what each takes.
	evictTimeout = 2 * time.Minute
	// cutTimeout is for the whole test.
	cutTimeout = 6 * time.Minute
	// callersTimeout is how long a gateway that is gone may be named: half a minute, and the time until it is read.
	callersTimeout = 40 * time.Second
)

// "One gateway at a time" is a rule and no guarantee: the node of the client's gateway
// is cut off from its API server only, and Kubernetes starts a second one, with the same
// key. As soon as the node is back there is one again, packets pass, and
// nothing is left of the other.
func TestGatewayCutOff(t *testing.T) {
	a, b := fx.gamma, fx.delta
	begin(t)
	ctx, cancel := context.WithTimeout(t.Context(), cutTimeout)
	defer cancel()
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--server", b.Name)
	checkPair(t, ctx, a, b)
	at := a.nodes[a.at(a.gatewayNode(t))]
	heal := a.cutOffAPI(t, ctx, at)
	eventually(t, ctx, evictTimeout, "a second gateway is started", func() string {
		found := a.agents(t, "gateway")
		return unless(len(found) == 2, "%v", found)
	})
	heal()
	eventually(t, ctx, podTimeout, "there is one gateway", func() string {
		found := a.agents(t, "gateway")
		return unless(len(found) == 1 && found[0].node != at.Node.Name, "%v", found)
	})
	a.kubectl(t, ctx, "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=60s")
	eventually(t, ctx, callersTimeout, "status does not name the gateway that is gone", func() string {
		out := liqonet(t, ctx, "", "status", a.Name, b.Name).stdout
		return unless(!strings.Contains(out, "two gateways call"), "%s", out)
	})
	checkRepaired(t, ctx, a, b)
	unpeered(t, ctx, a, b)
}

// cutOffAPI lets nothing pass from a node to its API server: the kubelet's packets, kube-proxy's, and the agents', which
// use the Service's address. What it returns heals that.
func (c *cluster) cutOffAPI(t *testing.T, ctx context.Context, at node) (heal func()) {
	t.Helper()
	server := must(fx.lab.Node(c.Name + "-cp"))(t)
	cut := fmt.Sprintf(`nft add table ip e2e-cut
		for hook in output forward; do
			nft "add chain ip e2e-cut $hook { type filter hook $hook priority -300; }"
			nft "add rule ip e2e-cut $hook ip daddr { %s, %s } tcp dport { 443, 6443 } drop"
		done`, server.Address, c.server.Addr())
	heal = sync.OnceFunc(at.during(t, ctx, cut, "nft delete table ip e2e-cut"))
	t.Cleanup(heal)
	return heal
}

// away is how long an API server is away.
const away = 2 * time.Minute

// With two planes there is never a second gateway with the same key: the node of one is cut off from the API server
// only, for two minutes. Its packets pass, or those of the other plane. When it is back, all is as before.
func TestPlaneCutOffFromAPI(t *testing.T) {
	a, b := fx.gamma, fx.delta
	begin(t)
	ctx := t.Context() // it takes minutes
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--planes", "2", "--server", b.Name)
	checkPair(t, ctx, a, b)
	limit := bare.Limit(t)
	for of, peer := range bothWays(a, b) {
		used := inUse(t, ctx, of, peer, peer.nodes[0])
		at := of.at(used.node)
		before := of.agents(t, "gateway")
		fs := startFlows(t, ctx, of, peer, (at+1)%len(of.nodes), 0)
		heal := of.cutOffAPI(t, ctx, of.nodes[at])
		for begun := time.Now(); time.Since(begun) < away; time.Sleep(time.Second) {
			found := of.agents(t, "gateway")
			require(t, slices.Equal(found, before), "the gateways of %s were %v, and are %v", of.Name, before, found)
		}
		heal()
		of.kubectl(t, ctx, "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=60s")
		checkBothPlanes(t, ctx, a, b)
		fs.interrupted(t, of.Name+": the node of a gateway was cut off from the API server", limit)
		checkRepaired(t, ctx, a, b)
	}
	unpeered(t, ctx, a, b)
}

// Both API servers are away for minutes. Packets pass, agents use no more of a processor than before and look after their
// kernels, and a gateway that stops is noticed as ever.
func TestAPIServersAway(t *testing.T) {
	a, b := fx.gamma, fx.delta
	begin(t)
	ctx := t.Context() // it takes minutes
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--planes", "2", "--server", b.Name)
	checkPair(t, ctx, a, b)
	agents := func() (out []agentProcess) {
		for _, c := range []*cluster{a, b} {
			out = append(out, append(c.agents(t, "gateway"), c.agents(t, "node")...)...)
		}
		return out
	}
	before := agents()
	gateway := inUse(t, ctx, b, a, a.nodes[0])
	usage := func(during time.Duration) (all time.Duration) {
		begun := map[int]time.Duration{}
		for _, p := range before {
			begun[p.pid] = cpuTime(t, p.pid)
		}
		time.Sleep(during)
		for _, p := range before {
			all += cpuTime(t, p.pid) - begun[p.pid]
		}
		return time.Duration(float64(all) / during.Seconds())
	}
	views := status(t, ctx, 0, a, b)
	flowsNow := func() flows {
		fs := flowsOf(t, ctx, views, a, b, 0, 0, 8)
		fs.answering(t, ctx, callTimeout)
		return fs
	}
	limit := bare.Limit(t)
	fs := flowsNow()
	usual := usage(away / 4)
	var back []func()
	for _, c := range []*cluster{a, b} {
		back = append(back, sync.OnceFunc(paused(t, processOf(t, c.Name+"-cp", "kube-apiserver"))))
		t.Cleanup(back[len(back)-1])
	}
	unreachable := usage(away)
	t.Logf("agents used %s of a processor in a second, and %s while the API servers were away", usual, unreachable)
	expect(t, unreachable <= 2*usual, "agents use %s of a processor in a second, %s before", unreachable, usual)
	found := agents()
	expect(t, slices.Equal(found, before), "agents were %v, and are %v", before, found)
	fs.lossless(t, "both API servers were away")
	fs = flowsNow()
	gateway.holdUp(t, ctx)
	time.Sleep(faultTime)
	fs.answering(t, ctx, moveTimeout)
	report(t, syscall.Kill(gateway.pid, syscall.SIGCONT))
	fs.interrupted(t, "a gateway was stopped then", limit)
	at := a.nodes[0]
	(&patient{at.vantage, a.nodeAgent(t, at.Node.Name), "pods"}).repaired(t, ctx, []string{"ip link del LINK"})
	fs = flowsNow()
	for _, f := range back {
		f()
	}
	for _, c := range []*cluster{a, b} {
		c.kubectl(t, ctx, "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=60s")
	}
	checkRepaired(t, ctx, a, b)
	checkBothPlanes(t, ctx, a, b)
	fs.interrupted(t, "both API servers are back", limit)
	if found := agents(); !slices.Equal(found, before) {
		t.Errorf("agents were %v, and are %v", before, found)
	}
	unpeered(t, ctx, a, b)
}

// staleLimit is how soon packets pass again when a server's gateway was replaced, and a node on the path keeps sending to
// the one before. Most of it is the new pod's start.
const staleLimit = 15 * time.Second

// A node on the path to a server's gateway sends packets to the former pod, and continues to do so: nobody changes its rules,
// and the client's packets keep its connection entry alive. Another node leads to the new pod.
func TestStaleConnections(t *testing.T) {
	a, b := fx.gamma, fx.delta
	ctx := begin(t)
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--planes", "1", "--server", a.Name, "--service-type", "NodePort")
	checkPair(t, ctx, a, b)
	for _, n := range a.nodes { // by one of them the client calls
		t.Run(n.Node.Name, func(t *testing.T) {
			fs := startFlows(t, ctx, a, b, 0, 0)
			fs.answering(t, ctx, callTimeout)
			defer paused(t, processOf(t, n.Node.Name, "kube-proxy"))()
			before := a.gatewayAgent(t)
			a.kubectl(t, ctx, "-n", "liqonet-system", "delete", "pods", "-l", "app.kubernetes.io/component=gateway", "--grace-period=0", "--force")
			eventually(t, ctx, podTimeout, "another gateway runs", func() string {
				found := a.agents(t, "gateway")
				return unless(len(found) == 1 && found[0].pid != before.pid, "%v", found)
			})
			fs.answering(t, ctx, moveTimeout)
			fs.interrupted(t, "another gateway", staleLimit)
		})
	}
	checkRepaired(t, ctx, a, b)
	unpeered(t, ctx, a, b)
}
