package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/sabotage"
	"github.com/liqonet/liqonet/test/workload"
)

const (
	// repairTimeout is within what the agents put back what somebody took: far less than the 30 s after which they
	// compare everything without a reason. It takes them a second where nobody takes the processor away. On a busy
	// machine a comparison takes a second, and agents pause four times as long as it took.
	// repairLooks is how often one could have looked, one look after the other, at all that is ours.
	repairTimeout = 12 * time.Second
	repairLooks   = 20
	// silentFor is longer than the time after which agents compare everything
	// without a reason.
	silentFor = 33 * time.Second
)

// oursIn is what the agents have put into the kernel of a vantage.
func oursIn(ctx context.Context, v *vantage) (string, error) {
	out, err := v.shell(ctx, sabotage.Ours)
	return sabotage.Normal(out), err
}

// Whatever of ours somebody deletes or changes is back soon, on nodes and in gateways.
// Where nothing is to be done nothing is done,
// and no packet is lost.
func selfRepair(t *testing.T, ctx context.Context, a, b *cluster) {
	r := random(t)
	choose := func(damages []string) (out []string) {
		for _, i := range sample(r, len(damages), len(damages)/8+1) {
			out = append(out, damages[i])
		}
		return out
	}
	// The other node is damaged: all packets pass that of the gateway.
	damaged, target := a.withoutGateway(t)
	other := 1 - damaged
	gateway := a.gateway(t)
	node := &patient{target.vantage, a.nodeAgent(t, target.Node.Name), "pods"}
	undisturbed := startFlows(t, ctx, a, b, other, 1)

	t.Run("node", func(t *testing.T) {
		node.repaired(t, ctx, choose(slices.Concat(sabotage.Links, sabotage.Tables)))
	})
	undisturbed.lossless(t, "while another node was repaired")
	t.Run("gateway", func(t *testing.T) {
		(&patient{gateway, a.agents(t, "gateway")[0], "nodes"}).repaired(t, ctx, choose(slices.Concat(sabotage.Links, sabotage.Tables, []string{
			"ip link del wg0",
			"ip link set wg0 down",
			"ip link set wg0 mtu 1300",
			"ip link set wg0 alias other",
			"ip link set wg0 group default",
			"ip link set gro0 group default",
			"ip link del gro0",
			"ip link set wg0 down; ip link set wg0 name stolen0; ip link set stolen0 up",
			"ip addr flush dev wg0",
			"ip addr add 198.51.100.7/24 dev wg0",
			"echo 0 > /proc/sys/net/ipv4/conf/wg0/forwarding",
			"ip route flush table 27762",
			"ip route del unreachable default table 27762 metric 4096",
			"ip rule del priority 90 iif wg0",
			"nft add chain ip liqonet input '{ policy accept; }'",
		})))
	})
	checkRepaired(t, ctx, a, b)
	mustLiqonet(t, ctx, "unpeer", a.Name, b.Name)
}

// watchQuiet looks at the kernels of a cluster which has nothing to do, until the
// function that it returns is called, which is after all of its agents have compared
// everything.
func watchQuiet(t *testing.T, ctx context.Context, c *cluster) func(t *testing.T) {
	quiet := []*vantage{c.gateway(t)}
	for _, n := range c.nodes {
		quiet = append(quiet, n.vantage)
	}
	start, silence := time.Now(), watchKernels(t, ctx, quiet)
	return func(t *testing.T) {
		// There is no other sign of it: nothing happens.
		time.Sleep(time.Until(start.Add(silentFor)))
		none(t, silence(), "kernels of %s were told of changes", c.Name)
	}
}

// firstLink is an overlay link of the vantage, and the address that it leads to.
func firstLink(t *testing.T, ctx context.Context, v *vantage) [2]string {
	out, err := v.shell(ctx, "ip -o neigh show nud permanent | grep ' dev loq'")
	fields := strings.Fields(out)
	require(t, err == nil && len(fields) >= 3, "%s has no overlay link: %q, %v", v, out, err)
	return [2]string{fields[2], fields[0]}
}

// patient is a place where things are damaged, with the agent that repairs them
// and the name of a set of its nftables.
type patient struct {
	*vantage
	agent agentProcess
	set   string
}

// repaired damages one thing after the other, and waits until all is as it was.
func (p *patient) repaired(t *testing.T, ctx context.Context, damages []string) {
	t.Helper()
	link := firstLink(t, ctx, p.vantage)
	defer p.during(t, ctx, "ip link add foreign0 type bridge", "ip link del foreign0")()
	want := must(oursIn(ctx, p.vantage))(t)
	var all, longest time.Duration
	slowest := ""
	for _, what := range damages {
		what = strings.NewReplacer("LINK", link[0], "PEER", link[1], "SET", p.set).Replace(what)
		took, diff := p.repair(t, ctx, what, want)
		if diff != "" {
			t.Errorf("%s: %s: not repaired after %s:\n%s", p, what, took.Round(time.Millisecond), diff)
			eventually(t, ctx, recoveryTimeout, what, func() string { return changeOf(ctx, p.vantage, want) })
		}
		if all += took; took > longest {
			longest, slowest = took, what
		}
	}
	t.Logf("%s: %d damages, each repaired after %s on average, at most after %s: %s", p, len(damages),
		(all / time.Duration(len(damages))).Round(time.Millisecond), longest.Round(time.Millisecond), slowest)
}

// repair damages something while the agent is held up, so that the damage is
// seen, lets the agent go on, waits until all is as wanted, at most so long as
// that may take, and returns what differs then. The time is an upper limit:
// looking takes some, too.
func (p *patient) repair(t *testing.T, ctx context.Context, damage, want string) (took time.Duration, diff string) {
	p.agent.holdUp(t, ctx)
	_, err := p.shell(ctx, "set -e\n"+damage)
	unchanged := changeOf(ctx, p.vantage, want) == ""
	try(t, syscall.Kill(p.agent.pid, syscall.SIGCONT))
	start := time.Now()
	expect(t, err == nil && !unchanged, "%s: this did no damage: %s: %v", p, damage, err)
	for looks := 1; ; looks++ {
		looked := time.Since(start)
		diff = changeOf(ctx, p.vantage, want)
		if diff == "" {
			return time.Since(start), ""
		}
		if looked > repairTimeout && looks > repairLooks {
			return looked, diff
		}
	}
}

func changeOf(ctx context.Context, v *vantage, want string) string {
	now, err := oursIn(ctx, v)
	if err != nil {
		return err.Error() // something is not there at all
	}
	if now == want {
		return ""
	}
	return workload.Snapshot{"ours": want}.Diff(workload.Snapshot{"ours": now}) + "."
}

// aboutOurs tells what the kernel says of ours from what it says of others.
var aboutOurs = regexp.MustCompile(`\bloq[0-9n]|\bwg0\b|2776[12]|proto 108|\bip6? liqonet\b|liqonet: `)

// watchKernels looks at all that kernels tell of changes of ours, until the
// function that it returns is called.
func watchKernels(t *testing.T, ctx context.Context, at []*vantage) func() string {
	t.Helper()
	type watch struct {
		from string
		cmd  *exec.Cmd
		out  *bytes.Buffer
	}
	var watches []watch
	for _, v := range at {
		for _, command := range [][]string{{"ip", "-o", "monitor", "all"}, {"nft", "monitor"}} {
			w := watch{from: v.name + ", " + command[0], out: &bytes.Buffer{}}
			w.cmd = v.command(ctx, command...)
			w.cmd.Stdout, w.cmd.Stderr = w.out, w.out
			try(t, w.cmd.Start())
			watches = append(watches, w)
		}
	}
	return func() string {
		var b strings.Builder
		for _, w := range watches {
			if err := w.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				fmt.Fprintf(&b, "%s: %v: %s\n", w.from, err, w.out)
			}
			_ = w.cmd.Wait()
			for line := range strings.Lines(w.out.String()) {
				// The kernel forgets an IPv6 multicast group when it likes to.
				if aboutOurs.MatchString(line) && !(strings.Contains(line, "[NEIGH]Deleted ff02:") && strings.Contains(line, "NOARP")) {
					b.WriteString(w.from + ": " + line)
				}
			}
		}
		return b.String()
	}
}

// A node whose own interface gets another name, as when it becomes the port of a
// bond, is repaired as any other.
func underlayRenamed(t *testing.T, ctx context.Context, a, b *cluster) {
	_, target := a.withoutGateway(t)
	rename := func(ctx context.Context, from, to string) {
		t.Helper()
		must(target.shell(ctx, fmt.Sprintf(`set -e
			routes=$(ip -o route show dev %[1]s | grep -v 'proto kernel')
			ip link set %[1]s down; ip link set %[1]s name %[2]s; ip link set %[2]s up
			echo "$routes" | sort -r | while read -r route; do ip route add $route dev %[2]s; done`, from, to)))(t)
		eventually(t, ctx, callTimeout, "the node's agent knows the interface by its name "+to, func() string {
			out, err := target.shell(ctx, "nft list table ip liqonet")
			return unless(err == nil && strings.Contains(out, fmt.Sprintf("iifname %q", to)), "it does not: %v", err)
		})
	}
	rename(ctx, "eth0", "uplink0")
	back := sync.OnceFunc(func() { rename(context.WithoutCancel(ctx), "uplink0", "eth0") })
	defer back()
	p := &patient{target.vantage, a.nodeAgent(t, target.Node.Name), "pods"}
	p.repaired(t, ctx, []string{"ip link del LINK", "ip rule del priority 90 lookup 27761"})
	checkRepaired(t, ctx, a, b)
	back()
}
