package e2e

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

const (
	// switchLimit is how long packets may be lost when a gateway fails. The goal is 0.7 s; a machine
	// that is busy with other tests is given more.
	switchLimit = 1500 * time.Millisecond
	// faultTime is how long a fault lasts that does not end a process.
	faultTime = 3 * time.Second
	// returnTimeout is longer than a node mistrusts a plane that has failed three times.
	returnTimeout = time.Minute
)

// fault ends what the gateway of a plane does, in one way.
type fault struct {
	name string
	// do makes it; at is the gateway's node.
	do func(*testing.T, context.Context, *cluster, agentProcess, node)
	// size is how many bytes the packets have that are sent meanwhile.
	size int
	// lossless says that nobody must notice.
	lossless bool
}

func faults() []fault {
	remove := func(flags ...string) func(*testing.T, context.Context, *cluster, agentProcess, node) {
		return func(t *testing.T, ctx context.Context, c *cluster, p agentProcess, _ node) {
			damage(t, ctx, c, [][]string{append([]string{
				"-n", "liqonet-system", "delete", "pods", "-l", v1alpha1.LabelPlane + "=" + p.plane, "--wait=false",
			}, flags...)})
		}
	}
	// The kernel of the gateway's node drops some of what comes in, or goes out.
	drop := func(rules ...string) func(*testing.T, context.Context, *cluster, agentProcess, node) {
		return func(t *testing.T, ctx context.Context, _ *cluster, _ agentProcess, at node) {
			script := "nft 'add table netdev e2e-cut; add chain netdev e2e-cut in { type filter hook ingress device eth0 priority -500; }; " +
				"add chain netdev e2e-cut out { type filter hook egress device eth0 priority -500; }"
			for _, rule := range rules {
				script += "; add rule netdev e2e-cut " + rule
			}
			if _, err := at.shell(ctx, script+"'"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(faultTime)
			if _, err := at.shell(context.WithoutCancel(ctx), "nft delete table netdev e2e-cut"); err != nil {
				t.Fatal(err)
			}
		}
	}
	return []fault{
		{"killed", func(t *testing.T, _ context.Context, _ *cluster, p agentProcess, _ node) {
			if err := syscall.Kill(p.pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}, 8, false},
		{"deleted", remove(), 8, true},
		{"large packets lost", drop("in meta length > 1250 drop"), 1200, false},
		{"stopped", func(t *testing.T, ctx context.Context, _ *cluster, p agentProcess, _ node) {
			p.holdUp(t, ctx)
			time.Sleep(faultTime)
			if err := syscall.Kill(p.pid, syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
		}, 8, false},
		{"deleted without grace", remove("--grace-period=0", "--force"), 8, false},
		{"cut off", drop("in drop", "out drop"), 8, false},
		{"cut off in one direction", drop("out drop"), 8, false},
	}
}

// With two planes, a gateway that is killed interrupts nobody for long.
func TestPlanes(t *testing.T) { planes(t, fx.gamma, fx.delta, faults()[:1]) }

// The same for all other failures. A gateway that ends in order interrupts nobody at all.
func TestAllPlanes(t *testing.T) { planes(t, fx.alpha, fx.beta, faults()[1:]) }

func planes(t *testing.T, a, b *cluster, faults []fault) {
	ctx := begin(t)
	both := []*cluster{a, b}
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--planes", "2")
	checkPair(t, ctx, a, b)
	for i, f := range faults {
		if i == 3 {
			// A plane that has failed often is mistrusted for a minute: begin anew.
			mustLiqonet(t, ctx, "unpeer", a.Name, b.Name)
			mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--planes", "2")
		}
		// Once the one's gateway, once the other's.
		c, peer := both[i%2], both[1-i%2]
		t.Run(fmt.Sprintf("%s in %s", f.name, c.Name), func(t *testing.T) {
			// What the peer's first node sends comes by this gateway. The pods that it calls are on another
			// node, which is not cut off.
			gateway := inUse(t, ctx, c, peer, peer.nodes[0])
			at := slices.IndexFunc(c.nodes, func(n node) bool { return n.Node.Name == gateway.node })
			fs := startFlowsOf(t, ctx, c, peer, (at+1)%len(c.nodes), 0, f.size)
			for _, f := range fs {
				f.answering(t, ctx, callTimeout)
			}
			f.do(t, ctx, c, gateway, c.nodes[at])
			for _, f := range fs {
				f.answering(t, ctx, moveTimeout)
			}
			if f.lossless {
				// Not before the old one has ended.
				eventually(t, ctx, podTimeout, "the gateway has ended", func() string {
					if slices.Contains(c.agents(t, "gateway"), gateway) {
						return fmt.Sprint(gateway)
					}
					return ""
				})
				fs.lossless(t, f.name)
			} else {
				fs.interrupted(t, f.name, switchLimit)
			}
		})
	}
	checkMended(t, ctx, a, b)
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--planes", "1")
	checkPair(t, ctx, a, b)
	mustLiqonet(t, ctx, "unpeer", a.Name, b.Name)
	checkNothingLeft(t, ctx)
}

// inUse is the gateway of a cluster in the plane by which a node of its peer sends packets. It waits
// until that is the plane that the node prefers, whose gateway runs on it: so it does not change by itself.
func inUse(t *testing.T, ctx context.Context, c, peer *cluster, n node) (found agentProcess) {
	t.Helper()
	eventually(t, ctx, returnTimeout, "the plane that the node prefers is in use", func() string {
		plane := jsonPath(t, ctx, peer, `{.items[?(@.spec.nodeName=="`+n.Node.Name+`")].status.gateways[?(@.active==true)].plane}`, "get", "nodenetworks")
		own := slices.ContainsFunc(peer.agents(t, "gateway"), func(p agentProcess) bool { return p.plane == plane && p.node == n.Node.Name })
		gateways := slices.DeleteFunc(c.agents(t, "gateway"), func(p agentProcess) bool { return p.plane != plane })
		if len(gateways) != 1 || !own {
			return fmt.Sprintf("plane %q: %v", plane, gateways)
		}
		found = gateways[0]
		return ""
	})
	return found
}
