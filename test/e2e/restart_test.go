package e2e

import (
	"fmt"
	"syscall"
	"testing"
	"time"
)

// Agents are killed and deleted while packets flow: of those on nodes
// nobody notices anything, those in gateways interrupt for as long as they take
// to start.
func TestRestarts(t *testing.T) {
	ctx := begin(t)
	// Delta's nodes have no ranges: gateways know its pods by what node agents report.
	a, b := fx.gamma, fx.delta
	both := []*cluster{a, b}
	mustLiqonet(t, ctx, "peer", a.Name, b.Name)
	checkOnePacket(t, ctx, a, b)
	kill := func(t *testing.T, kind string) {
		t.Helper()
		for _, c := range both {
			for _, p := range c.agents(t, kind) {
				try(t, syscall.Kill(p.pid, syscall.SIGKILL))
			}
		}
	}
	remove := func(kind string) {
		t.Helper()
		for _, c := range both {
			c.kubectl(t, ctx, "-n", "liqonet-system", "delete", "pods", "-l", "app.kubernetes.io/component="+kind)
		}
	}
	steps := []struct {
		name, kind string
		do         func(t *testing.T)
	}{
		{"node agents killed", "node", func(t *testing.T) { kill(t, "node") }},
		{"node agents deleted", "node", func(*testing.T) { remove("node") }},
		{"gateways killed", "gateway", func(t *testing.T) { kill(t, "gateway") }},
		{"gateways deleted", "gateway", func(*testing.T) { remove("gateway") }},
	}
	for _, i := range sample(random(t), len(steps), 2) {
		step := steps[i]
		t.Run(step.name, func(t *testing.T) {
			before := pidsOf(t, both)
			fs := startFlows(t, ctx, a, b, 0, len(b.pods)-1)
			fs.answering(t, ctx, callTimeout)
			begun := time.Now()
			step.do(t)
			eventually(t, ctx, podTimeout, "new agents", func() string { return allNew(t, both, step.kind, before) })
			fs.answering(t, ctx, moveTimeout)
			if step.kind == "gateway" {
				fs.interrupted(t, step.name, moveLimit(t, begun, both...))
			} else {
				fs.lossless(t, step.name)
			}
		})
	}
	checkMended(t, ctx, a, b)
	unpeered(t, ctx, a, b)
}

// allNew says which agents of a kind are missing, or older than others.
func allNew(t *testing.T, clusters []*cluster, kind string, before map[int]bool) string {
	for _, c := range clusters {
		want := 1
		if kind == "node" {
			want = len(c.nodes)
		}
		found := c.agents(t, kind)
		if len(found) != want {
			return fmt.Sprintf("%d agents in %s, want %d", len(found), c.Name, want)
		}
		for _, p := range found {
			if before[p.pid] {
				return fmt.Sprintf("agent %d on %s is an old one", p.pid, p.node)
			}
		}
	}
	return ""
}

// pidsOf are all agents that run.
func pidsOf(t *testing.T, clusters []*cluster) map[int]bool {
	out := map[int]bool{}
	for _, c := range clusters {
		for _, kind := range []string{"node", "gateway"} {
			for _, p := range c.agents(t, kind) {
				out[p.pid] = true
			}
		}
	}
	return out
}
