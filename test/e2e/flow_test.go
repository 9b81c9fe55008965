package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/flow"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/lab"
	"github.com/liqonet/liqonet/test/workload"
)

// startFlow sends packets with so many bytes from a vantage to a pod's address.
func startFlow(t testing.TB, ctx context.Context, from *vantage, to netip.Addr, size int) *flow.Flow {
	t.Helper()
	name := fmt.Sprintf("%s to %s", from, to)
	var conn net.Conn
	if err := from.do(func() (err error) {
		conn, err = net.Dial("udp", workload.Target("udp", to))
		return err
	}); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	t.Cleanup(func() { conn.Close() })
	f := must(flow.Start(ctx, conn.(*net.UDPConn), name, size))(t)
	return f
}

// answering waits until the newest packets of a flow are answered.
func answering(t testing.TB, ctx context.Context, f *flow.Flow, within time.Duration) {
	t.Helper()
	const enough = 10
	eventually(t, ctx, within, f.Name, func() string { return f.Unanswered(enough, shortTimeout) })
}

// flows are several at once.
type flows []*flow.Flow

// answering waits until the newest packets of all are answered.
func (fs flows) answering(t testing.TB, ctx context.Context, within time.Duration) {
	t.Helper()
	for _, f := range fs {
		answering(t, ctx, f, within)
	}
}

// startFlows sends between pods of two clusters that are peered, both ways, and
// from a node of each.
func startFlows(t testing.TB, ctx context.Context, a, b *cluster, from, to int) flows {
	t.Helper()
	return flowsOf(t, ctx, anyStatus(t, ctx, a, b), a, b, from, to, 8)
}

// flowsOf is the same with packets of so many bytes, where it is known what status says.
func flowsOf(t testing.TB, ctx context.Context, views map[[2]string]view, a, b *cluster, from, to, size int) flows {
	t.Helper()
	seenInB := viewOf(t, views, a, b).seenAs(t, a.pods[from].IP)
	seenInA := viewOf(t, views, b, a).seenAs(t, b.pods[to].IP)
	return flows{
		startFlow(t, ctx, a.pods[from].vantage, seenInA, size), startFlow(t, ctx, b.pods[to].vantage, seenInB, size),
		startFlow(t, ctx, a.nodes[from].vantage, seenInA, size), startFlow(t, ctx, b.nodes[to].vantage, seenInB, size),
	}
}

// sendEightWays sends in eight flows, from two pods and two nodes of each cluster, and returns when all are answered.
func sendEightWays(t testing.TB, ctx context.Context, a, b *cluster) flows {
	t.Helper()
	fs := append(startFlows(t, ctx, a, b, 0, 1), startFlows(t, ctx, a, b, 1, 0)...)
	fs.answering(t, ctx, callTimeout)
	return fs
}

// answeredFor has flows be answered for some time; each outage in it has to end within a time.
func (fs flows) answeredFor(t testing.TB, ctx context.Context, d, within time.Duration) {
	t.Helper()
	for begun := time.Now(); time.Since(begun) < d; time.Sleep(flow.Interval) {
		fs.answering(t, ctx, within)
	}
}

// lossless ends flows, reports them, and fails the test if a packet had no answer.
func (fs flows) lossless(t testing.TB, what string) {
	t.Helper()
	for _, r := range flow.End(fs...) {
		t.Logf("%s: %s", what, r)
		expect(t, r.Lost == 0, "%s: packets were lost: %s", what, r)
	}
}

// interrupted ends flows that may have a gap, reports them, and fails where the
// gap is longer than it may be.
func (fs flows) interrupted(t testing.TB, what string, atMost time.Duration) {
	t.Helper()
	for _, r := range flow.End(fs...) {
		t.Logf("%s: %s", what, r)
		expect(t, r.Gap <= atMost, "%s: %s; at most %s", what, r, atMost)
	}
}

// agentProcess is an agent of the lab.
type agentProcess struct {
	pid           int
	kind          string // node or gateway
	node, peering string
	plane         string
}

// started is when the process was, by its age.
func (p agentProcess) started(t testing.TB) time.Time {
	t.Helper()
	stat := must(os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid)))(t)
	uptime := must(os.ReadFile("/proc/uptime"))(t)
	now := time.Now()
	// proc(5): the 20th field after the name is the time of its start after that
	// of the machine, in ticks, of which Linux says that a second has 100.
	_, rest, _ := bytes.Cut(stat, []byte(") "))
	fields := strings.Fields(string(rest))
	require(t, len(fields) >= 20, "process %d: %q", p.pid, stat)
	ticks := must(strconv.ParseFloat(fields[19], 64))(t)
	up := must(strconv.ParseFloat(strings.Fields(string(uptime))[0], 64))(t)
	return now.Add(-time.Duration((up - ticks/100) * float64(time.Second)))
}

// agents finds the agents that run, of a kind, on the cluster's nodes.
func (c *cluster) agents(t testing.TB, kind string) []agentProcess {
	t.Helper()
	lc := must(fx.lab.Cluster(c.Name))(t)
	nodes := must(lc.Nodes())(t)
	var out []agentProcess
	for _, p := range must(processes())(t) {
		isNode := slices.ContainsFunc(nodes, func(n *lab.Node) bool { return n.Name == p.machine })
		if !isNode || len(p.args) < 2 || filepath.Base(p.args[0]) != "liqonet-agent" || p.args[1] != kind {
			continue
		}
		agent := agentProcess{pid: p.pid, kind: kind, node: p.machine}
		for _, arg := range p.args {
			if name, ok := strings.CutPrefix(arg, "--peering="); ok {
				agent.peering = name
			}
			if index, ok := strings.CutPrefix(arg, "--plane="); ok {
				agent.plane = index
			}
		}
		out = append(out, agent)
	}
	return out
}

// watchWaits looks how long threads of gateways wait for a processor. What it returns ends that, and returns the longest time of a thread
// in one second.
func watchWaits(t testing.TB, clusters ...*cluster) (longest func() time.Duration) {
	ctx, stop := context.WithCancel(t.Context())
	waited, most, done := map[string]time.Duration{}, time.Duration(0), make(chan struct{})
	look := func() {
		for _, c := range clusters {
			for _, p := range c.agents(t, "gateway") {
				threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p.pid))
				report(t, err)
				for _, file := range threads {
					// See sched-stats in the kernel's documents. One that has ended has none.
					var ran, now time.Duration
					if stat, err := os.ReadFile(file); err == nil {
						if _, err := fmt.Sscan(string(stat), &ran, &now); err != nil {
							t.Errorf("read %s: %v", file, err)
						}
					}
					if before, ok := waited[file]; ok {
						most = max(most, now-before)
					}
					waited[file] = now
				}
			}
		}
	}
	go func() {
		defer close(done)
		for tick := time.Tick(time.Second); ; {
			look()
			select {
			case <-ctx.Done():
				return
			case <-tick:
			}
		}
	}()
	return func() time.Duration {
		stop()
		<-done
		return most
	}
}

// holdUp stops an agent, and returns when no thread of it does anything any more.
func (p agentProcess) holdUp(t testing.TB, ctx context.Context) {
	t.Helper()
	try(t, syscall.Kill(p.pid, syscall.SIGSTOP))
	eventually(t, ctx, callTimeout, "the agent stops", func() string {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.pid))
		if err != nil || len(threads) == 0 {
			return fmt.Sprintf("no threads: %v", err)
		}
		for _, thread := range threads {
			// proc(5): the state comes after the name, which is in brackets.
			stat, _ := os.ReadFile(thread)
			if _, rest, _ := bytes.Cut(stat, []byte(") ")); len(rest) > 0 && rest[0] != 'T' {
				return string(stat)
			}
		}
		return ""
	})
}

// gatewayAgent is the agent of the cluster's only gateway. The one before it may still be ending.
func (c *cluster) gatewayAgent(t testing.TB) (only agentProcess) {
	t.Helper()
	kit.Within(t, callTimeout, "cluster "+c.Name+" has one gateway", func() string {
		found := c.agents(t, "gateway")
		if len(found) != 1 {
			return fmt.Sprint("it has ", found)
		}
		only = found[0]
		return ""
	})
	return only
}

// gateway is the cluster's only gateway, as a place where commands run.
func (c *cluster) gateway(t testing.TB) *vantage {
	t.Helper()
	agent := c.gatewayAgent(t)
	ns := must(os.Open(fmt.Sprintf("/proc/%d/ns/net", agent.pid)))(t)
	t.Cleanup(func() { ns.Close() })
	return &vantage{name: "gateway of " + c.Name + " on " + agent.node, ns: ns}
}

// command runs in the vantage's network, with this machine's files.
func (v *vantage) command(ctx context.Context, args ...string) *exec.Cmd {
	ns := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), v.ns.Fd())
	return exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + ns, "--"}, args...)...)
}

// during runs one script in the vantage's network now, and another one in the end.
func (v *vantage) during(t testing.TB, ctx context.Context, begin, end string) func() {
	t.Helper()
	must(v.shell(ctx, begin))(t)
	return func() { report(t, errOf(v.shell(context.WithoutCancel(ctx), end))) }
}

// shell runs a script in the vantage's network.
func (v *vantage) shell(ctx context.Context, script string) (string, error) {
	cmd := v.command(ctx, "sh", "-c", script)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %s: %w: %s", v, script, err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}
