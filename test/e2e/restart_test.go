package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// Agents are killed and deleted while packets flow: of those on nodes
// nobody notices anything, those in gateways interrupt for as long as they take
// to start. Then all of it is removed by force, with agents that could not clean
// up: a process without memory does that.
func TestRestarts(t *testing.T) {
	ctx := begin(t)
	// Delta's nodes have no ranges: gateways know its pods by what node agents report.
	a, b := fx.gamma, fx.delta
	both := []*cluster{a, b}
	mustLiqonet(t, ctx, "peer", a.Name, b.Name)
	checkOnePacket(t, ctx, a, b)
	kill := func(t *testing.T, kind string, signal syscall.Signal) {
		t.Helper()
		for _, c := range both {
			for _, p := range c.agents(t, kind) {
				try(t, syscall.Kill(p.pid, signal))
			}
		}
	}
	remove := func(kind string) {
		t.Helper()
		for _, c := range both {
			damage(t, ctx, c, [][]string{{"-n", "liqonet-system", "delete", "pods", "-l", "app.kubernetes.io/component=" + kind}})
		}
	}
	steps := []struct {
		name, kind string
		do         func(t *testing.T)
	}{
		{"node agents killed", "node", func(t *testing.T) { kill(t, "node", syscall.SIGKILL) }},
		{"node agents deleted", "node", func(*testing.T) { remove("node") }},
		{"gateways killed", "gateway", func(t *testing.T) { kill(t, "gateway", syscall.SIGKILL) }},
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

	if !whole() {
		unpeered(t, ctx, a, b)
		return
	}
	t.Run("removed by force", func(t *testing.T) {
		// They are asked to end and do not hear it, until they are killed.
		kill(t, "node", syscall.SIGSTOP)
		kill(t, "gateway", syscall.SIGSTOP)
		var group errgroup.Group
		for _, c := range both {
			group.Go(func() error {
				for _, args := range [][]string{
					{"delete", "namespace", "liqonet-system", "--timeout=60s"},
					{"patch", "clusternetworks.liqonet.io", "cluster", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`},
					{"delete", "customresourcedefinitions,clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings", "-l", "app.kubernetes.io/managed-by=liqonet", "--timeout=30s"},
				} {
					if _, err := c.Run(ctx, "", args...); err != nil {
						return err
					}
				}
				return nil
			})
		}
		try(t, group.Wait())
		for _, c := range both {
			left := c.agents(t, "node")
			expect(t, len(left) == 0, "agents are left: %v", left)
			for _, n := range c.nodes {
				traces := tracesOn(ctx, n.Node)
				expect(t, strings.Contains(traces, "27761"), "node %s is clean before it was cleaned:\n%s", n.Node.Name, traces)
				// The second one finds nothing.
				for i, want := range []string{"removed nftables table liqonet\n", ""} {
					out, err := n.command(ctx, program("liqonet-agent"), "purge").CombinedOutput()
					expect(t, err == nil && strings.Contains(string(out), want) && (i != 1 || len(out) == 0),
						"purge number %d of node %s: %v\n%s", i+1, n.Node.Name, err, out)
				}
			}
		}
		checkNothingLeft(t, ctx)
	})
}

// allNew says which agents of a kind are missing, or older than others.
func allNew(t *testing.T, clusters []*cluster, kind string, before map[int]bool) string {
	t.Helper()
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
	t.Helper()
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
