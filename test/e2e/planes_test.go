package e2e

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/bare"
	"github.com/liqonet/liqonet/test/flow"
	"github.com/liqonet/liqonet/test/lab"

	"github.com/samber/lo"
)

const (
	// faultTime is how long a fault lasts that does not end a process.
	faultTime = 3 * time.Second
	// steady is how long nothing is lost before a fault is made.
	steady = 3 * time.Second
	// noticed is how long ago a plane failed of which gateways may not have said so yet.
	noticed = 4 * time.Second
	// returnTimeout is longer than a node mistrusts a plane that has failed three times.
	returnTimeout = time.Minute
	// lateLimit is how late the test itself may send a packet; tooLate is how many of 25 runs may be
	// discarded by that.
	lateLimit = 50 * time.Millisecond
	tooLate   = 5
)

var faultRuns = flag.Int("runs", 15, "how often TestFailover makes each fault")

// fault ends what the gateway of a plane does, in one way.
type fault struct {
	name string
	// do makes it; at is the gateway's node. What it returns repairs it, and may be nil.
	do func(*testing.T, context.Context, *cluster, agentProcess, node) (repair func())
	// size is how many bytes the packets have that are sent until then.
	size int
	// lossless says that nobody must notice, silent that nothing is sent before the fault.
	lossless, silent bool
}

func faults() []fault {
	remove := func(flags ...string) func(*testing.T, context.Context, *cluster, agentProcess, node) func() {
		return func(t *testing.T, ctx context.Context, c *cluster, p agentProcess, _ node) func() {
			before := c.agents(t, "gateway")
			damage(t, ctx, c, [][]string{append([]string{
				"-n", "liqonet-system", "delete", "pods", "-l", v1alpha1.LabelPlane + "=" + p.plane, "--wait=false",
			}, flags...)})
			return func() {
				eventually(t, ctx, podTimeout, "the gateway has ended", func() string {
					for _, q := range c.agents(t, "gateway") {
						if q.plane == p.plane && slices.Contains(before, q) {
							return fmt.Sprint(q)
						}
					}
					return ""
				})
			}
		}
	}
	// The kernel of the gateway's node drops some of what comes in, or goes out.
	drop := func(rules ...string) func(*testing.T, context.Context, *cluster, agentProcess, node) func() {
		return func(t *testing.T, ctx context.Context, _ *cluster, _ agentProcess, at node) func() {
			repair := at.dropPackets(t, ctx, rules...)
			time.Sleep(faultTime)
			return repair
		}
	}
	kill := func(t *testing.T, p agentProcess) {
		try(t, syscall.Kill(p.pid, syscall.SIGKILL))
	}
	// The kubelet waits longer and longer before it starts a container that has ended: the next run gets a new pod.
	renew := func(t *testing.T, ctx context.Context, c *cluster, p agentProcess) func() {
		return func() { remove("--grace-period=0", "--force")(t, ctx, c, p, node{})() }
	}
	return []fault{
		{"killed", func(t *testing.T, ctx context.Context, c *cluster, p agentProcess, _ node) func() {
			kill(t, p)
			return renew(t, ctx, c, p)
		}, 8, false, false},
		{"killed three times", func(t *testing.T, ctx context.Context, c *cluster, p agentProcess, _ node) func() {
			for range 2 {
				kill(t, p)
				eventually(t, ctx, podTimeout, "the container is started again", func() string {
					for _, q := range c.agents(t, "gateway") {
						if q.plane == p.plane && q.pid != p.pid {
							p = q
							return ""
						}
					}
					return "it is not"
				})
			}
			kill(t, p)
			return renew(t, ctx, c, p)
		}, 8, false, false},
		{"stopped", func(t *testing.T, ctx context.Context, _ *cluster, p agentProcess, _ node) func() {
			p.holdUp(t, ctx)
			time.Sleep(faultTime)
			return func() {
				report(t, syscall.Kill(p.pid, syscall.SIGCONT))
			}
		}, 8, false, false},
		{"deleted", remove(), 8, true, false},
		{"deleted without grace", remove("--grace-period=0", "--force"), 8, false, false},
		{"node cut off", drop("in drop", "out drop"), 8, false, false},
		{"cut in one direction", drop("out drop"), 8, false, false},
		{"large packets dropped", drop("in meta length > 1250 drop"), 1200, false, false},
		{"killed, nothing sent before", func(t *testing.T, ctx context.Context, c *cluster, p agentProcess, _ node) func() {
			kill(t, p)
			return renew(t, ctx, c, p)
		}, 8, false, true},
		{"node cut off, nothing sent before", func(t *testing.T, ctx context.Context, _ *cluster, _ agentProcess, at node) func() {
			return at.dropPackets(t, ctx, "in drop", "out drop")
		}, 8, false, true},
	}
}

// dropPackets has a node's kernel drop what comes in or goes out by its interface, as rules say.
func (n node) dropPackets(t *testing.T, ctx context.Context, rules ...string) (repair func()) {
	t.Helper()
	script := "nft 'add table netdev e2e-cut; add chain netdev e2e-cut in { type filter hook ingress device eth0 priority -500; }; " +
		"add chain netdev e2e-cut out { type filter hook egress device eth0 priority -500; }"
	for _, rule := range rules {
		script += "; add rule netdev e2e-cut " + rule
	}
	return n.during(t, ctx, script+"'", "nft delete table netdev e2e-cut")
}

// dropOn is dropPackets of several nodes.
func dropOn(t *testing.T, ctx context.Context, nodes []node, rules ...string) (repair func()) {
	t.Helper()
	return onAll(nodes, func(n node) func() { return n.dropPackets(t, ctx, rules...) })
}

// onAll does something on nodes. What it returns ends that.
func onAll(nodes []node, do func(node) (end func())) func() {
	ends := lo.Map(nodes, func(n node, _ int) func() { return do(n) })
	return func() {
		for _, end := range ends {
			end()
		}
	}
}

// With two planes, a gateway that is killed interrupts nobody for long, be it the server's or the client's. TestFailover has both.
func TestPlanes(t *testing.T) {
	var chosen []string
	for _, i := range sample(random(t), len(roles()), 1) {
		chosen = append(chosen, roles()[i])
	}
	failover(t, fx.gamma, fx.delta, faults()[:1], chosen, bare.Runs)
}

// persistent are the faults whose effect lasts until they are repaired, by name.
var persistent = []string{"stopped", "node cut off", "cut in one direction", "large packets dropped"}

// While a gateway does not work, whatever the fault, the condition Redundant is False within 30 s, by what kubectl waits
// for, and an alert fires. If no plane works, Connected and Ready are False too, and if no gateway of a cluster runs any
// more, they are Unknown: then the alert fires that wakes people.
func TestConditionsDuringFaults(t *testing.T) {
	a, b := fx.alpha, fx.beta
	begin(t)
	ctx := t.Context() // several faults, each with its repair
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--planes", "2", "--server", a.Name)
	checkPair(t, ctx, a, b)
	becomes := func(t *testing.T, condition, timeout string) {
		t.Helper()
		a.kubectl(t, ctx, "wait", "--for=condition="+condition, "--timeout="+timeout, "peering/"+b.Name)
	}
	const soon, repaired = "35s", "120s" // kubectl itself takes a while
	const unreachable = "LiqonetPeerUnreachable"
	planeAlerts := []string{"LiqonetPlaneDown", "LiqonetGatewayGone", "LiqonetAgentDown"}
	for _, f := range faults() {
		if !slices.Contains(persistent, f.name) {
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			gateway := inUse(t, ctx, a, b, b.nodes[0])
			at := a.at(gateway.node)
			gateways := a.agents(t, "gateway")
			before := a.scrape(t, ctx, gateways, at)
			fires := firing(t, before, before, 10)
			expect(t, len(fires) == 0, "before the fault fires %v", fires)
			fs := flowsOf(t, ctx, status(t, ctx, 0, a, b), a, b, (at+1)%len(a.nodes), 0, f.size)
			fs.answeredFor(t, ctx, steady, callTimeout)
			repair := sync.OnceFunc(f.do(t, ctx, a, gateway, a.nodes[at]))
			defer func() {
				repair()
				logFailure(t, ctx, a, b)
			}()
			becomes(t, "Redundant=False", soon)
			becomes(t, "Connected=True", "5s")
			fires = firing(t, before, a.scrape(t, ctx, gateways, at), 10)
			t.Log("alerts: ", fires)
			expect(t, len(lo.Intersect(fires, planeAlerts)) > 0 && !slices.Contains(fires, unreachable), "one plane fails: fires %v", fires)
			repair()
			becomes(t, "Redundant=True", repaired)
			flow.End(fs...)
		})
	}
	t.Run("no plane works", func(t *testing.T) {
		gateways := a.agents(t, "gateway")
		before := a.scrape(t, ctx, gateways, 0)
		repair := dropOn(t, ctx, b.nodes, "in drop", "out drop")
		defer repair()
		becomes(t, "Connected=False", soon)
		becomes(t, "Ready=False", "5s")
		becomes(t, "Redundant=False", "5s")
		fires := firing(t, before, a.scrape(t, ctx, gateways, 0), 3)
		expect(t, slices.Contains(fires, unreachable), "no plane works: fires %v", fires)
	})
	becomes(t, "Redundant=True", repaired)
	t.Run("no gateway runs", func(t *testing.T) {
		before := a.scrape(t, ctx, a.agents(t, "gateway"), 0)
		scale := func(to string) {
			a.kubectl(t, ctx, "-n", "liqonet-system", "scale", "deployments", "-l", v1alpha1.LabelPeering+"="+b.Name, "--replicas="+to)
		}
		scale("0")
		defer scale("1")
		eventually(t, ctx, podTimeout, "the gateways have ended", func() string {
			if left := a.agents(t, "gateway"); len(left) > 0 {
				return fmt.Sprint(left)
			}
			return ""
		})
		becomes(t, "Ready=Unknown", soon)
		becomes(t, "Connected=Unknown", "5s")
		becomes(t, "Redundant=False", "5s")
		fires := firing(t, before, nil, 3)
		expect(t, slices.Contains(fires, unreachable), "no gateway runs: fires %v", fires)
	})
	becomes(t, "Ready=True", repaired)
	becomes(t, "Redundant=True", repaired)
	checkRepaired(t, ctx, a, b)
	unpeered(t, ctx, a, b)
}

// roles are those of the clusters between which a gateway fails, the first one's first.
func roles() []string { return []string{"server", "client"} }

// Every fault, on either side, many times where ranges are equal. It prints how long packets were lost, and
// what a TCP connection felt.
func TestFailover(t *testing.T) { failover(t, fx.alpha, fx.beta, faults(), roles(), *faultRuns) }

// The same at one side, where ranges are different and nodes send by both planes.
func TestFailoverOfOtherRanges(t *testing.T) {
	side := roles()[random(t).IntN(len(roles()))]
	failover(t, fx.gamma, fx.delta, faults(), []string{side}, bare.Runs, "--planes-mode", "spread")
}

func failover(t *testing.T, a, b *cluster, faults []fault, chosen []string, runs int, flags ...string) {
	begin(t)
	ctx := t.Context() // many runs take long
	both := []*cluster{a, b}
	mustLiqonet(t, ctx, append([]string{"peer", a.Name, b.Name, "--planes", "2", "--server", a.Name}, flags...)...)
	checkPair(t, ctx, a, b)
	limit := bare.Limit(t)
	for _, f := range faults {
		for i, role := range roles() {
			if !slices.Contains(chosen, role) {
				continue
			}
			n := runs
			if i > 0 {
				n = bare.Runs // one combination is measured often
			}
			t.Run(f.name+" at the "+role, func(t *testing.T) { f.measure(t, ctx, both[i], both[1-i], role, n, limit) })
		}
	}
	checkRepaired(t, ctx, a, b)
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--planes", "1", "--planes-mode", "single")
	checkPair(t, ctx, a, b)
	for _, c := range both {
		budgets := jsonPath(t, ctx, c, "{.items[*].metadata.name}", "-n", "liqonet-system", "get", "poddisruptionbudgets")
		expect(t, budgets == "", "%s keeps a budget for one gateway: %s", c.Name, budgets)
	}
	unpeered(t, ctx, a, b)
}

// measure makes the fault so many times to a gateway of c, prints the outages, and compares their median with a limit.
func (f fault) measure(t *testing.T, ctx context.Context, c, peer *cluster, role string, runs int, limit time.Duration) {
	var packets, stalls []time.Duration
	late := 0
	for len(packets) < runs {
		outage, stall, lateness := f.once(t, ctx, c, peer)
		if t.Failed() {
			return
		}
		if lateness > lateLimit {
			if late++; late > tooLate*(runs+24)/25 {
				t.Fatalf("in %d of %d runs the test itself was late by more than %s", late, late+len(packets), lateLimit)
			}
			continue
		}
		packets, stalls = append(packets, outage), append(stalls, stall)
	}
	slices.Sort(packets)
	slices.Sort(stalls)
	t.Logf("%s at the %s: outages %v, stalls %v, %d runs discarded", f.name, role, packets, stalls, late)
	if median := packets[runs/2]; median > limit {
		t.Errorf("%s at the %s: the median of %v is %s, limit %s", f.name, role, packets, median, limit)
	}
	if runs > bare.Runs {
		// As benchmarks are printed, which are kept with the result.
		fmt.Printf("BenchmarkFailover/%s/%s 1 %d runs %.3f median-s %.3f worst-s %.3f median-stall-s %.3f worst-stall-s %d discarded\n",
			strings.ReplaceAll(f.name, " ", "-"), role, runs, packets[runs/2].Seconds(), packets[runs-1].Seconds(), stalls[runs/2].Seconds(), stalls[runs-1].Seconds(), late)
	}
}

// once makes the fault while packets are sent. It returns how long packets were lost, how long a TCP connection
// stood still, and how late the test sent a packet. A run in which the test was late says nothing.
func (f fault) once(t *testing.T, ctx context.Context, c, peer *cluster) (outage, stall, late time.Duration) {
	// What the peer's first node sends comes by this gateway. The pods that it calls are on another
	// node, which is not cut off.
	gateway := inUse(t, ctx, c, peer, peer.nodes[0])
	at := c.at(gateway.node)
	other := (at + 1) % len(c.nodes)
	views := status(t, ctx, 0, c, peer)
	var fs flows
	var tcp *flow.Conversation
	send := func() { fs = flowsOf(t, ctx, views, c, peer, other, 0, f.size) }
	if !f.silent {
		send()
		tcp = converse(t, ctx, peer.pods[0], c, peer, c.pods[other])
		fs.answeredFor(t, ctx, steady, callTimeout)
	}
	repair := f.do(t, ctx, c, gateway, c.nodes[at])
	if f.silent {
		send()
	}
	fs.answering(t, ctx, moveTimeout)
	if repair != nil {
		repair()
	}
	for _, r := range flow.End(fs...) {
		outage, late = max(outage, r.Gap), max(late, r.Late)
		if r.Late <= lateLimit && f.lossless && r.Lost > 0 {
			t.Errorf("%s: %s", f.name, r)
		} else if r.Lost > 0 {
			t.Logf("%s: %s", f.name, r)
		}
	}
	if tcp != nil {
		var err error
		if stall, err = tcp.End(); err != nil {
			t.Errorf("%s: the TCP connection has ended: %v", f.name, err)
		}
	}
	logFailure(t, ctx, c, peer)
	return outage, stall, late
}

// logFailure prints the agents' logs of the last minute if the test has failed.
func logFailure(t *testing.T, ctx context.Context, clusters ...*cluster) {
	if !t.Failed() {
		return
	}
	for _, c := range clusters {
		logs, err := c.Run(ctx, "", "logs", "-n", "liqonet-system", "-l", "app.kubernetes.io/name=liqonet", "--prefix", "--since=60s", "--tail=-1")
		t.Logf("%s: what agents said in the last minute: %v\n%s", c.Name, err, logs)
	}
}

// inUse is the gateway of a cluster in the plane by which a node of its peer sends packets, or in one of these planes, when
// both have worked for longer than gateways take to notice that one does not.
func inUse(t *testing.T, ctx context.Context, c, peer *cluster, n node) (found agentProcess) {
	t.Helper()
	since := time.Now()
	eventually(t, ctx, returnTimeout, "both planes work for "+noticed.String(), func() string {
		problem := missingPlane(t, ctx, c, peer)
		if problem != "" {
			since = time.Now()
		} else if time.Since(since) < noticed {
			problem = "not for long enough"
		}
		return problem
	})
	eventually(t, ctx, returnTimeout, "the plane in use", func() string {
		plane := jsonPath(t, ctx, peer, `{.items[?(@.metadata.name=="`+n.Node.Name+`")].status.gateways[?(@.active==true)].plane}`, "get", "nodenetworks")
		used := strings.Fields(plane)
		gateways := slices.DeleteFunc(c.agents(t, "gateway"), func(p agentProcess) bool { return !slices.Contains(used, p.plane) })
		if len(gateways) != len(used) || len(used) == 0 {
			return fmt.Sprintf("planes %q: %v", used, gateways)
		}
		found = gateways[random(t).IntN(len(gateways))]
		return ""
	})
	return found
}

// converse asks a pod of another cluster by one TCP connection, all the time.
func converse(t testing.TB, ctx context.Context, from pod, of, peer *cluster, to pod) *flow.Conversation {
	t.Helper()
	views := anyStatus(t, ctx, of, peer)
	return flow.Converse(ctx, openLasting(t, from.vantage, viewOf(t, views, of, peer).seenAs(t, to.IP)).ask)
}

// All nodes of the cluster that is called are drained and replaced, one by one, until none of the first ones is left,
// and three times over. Nothing is lost.
func TestPlanesOnReplacedNodes(t *testing.T) {
	const replaced = 10
	server := useClusters(t, lab.ClusterSpec{Name: "drained", PodCIDR: netip.MustParsePrefix("10.62.0.0/16"), Workers: 3})[0]
	client := fx.alpha
	begin(t)
	ctx := t.Context()
	lc := must(fx.lab.Cluster(server.Name))(t)
	mustLiqonet(t, ctx, "peer", server.Name, client.Name, "--planes", "2", "--server", server.Name, "--service-type=NodePort")
	checkPair(t, ctx, server, client)
	nodes := labNodes(server)
	for i := range replaced {
		added := must(lc.AddNode(ctx))(t)
		nodes = append(nodes, added)
		from, _ := server.podOn(t, ctx, added)
		victim := nodes[0]
		nodes = nodes[1:]
		// Of those that stay, the next one to go has most often a gateway.
		stays, _ := server.podOn(t, ctx, nodes[0])
		// The agent of the new node may not have reported yet.
		views := anyStatus(t, ctx, server, client)
		calls := client.pods[0]
		ours, theirs := viewOf(t, views, server, client), viewOf(t, views, client, server)
		start := func() flows {
			fs := flows{
				startFlow(t, ctx, calls.vantage, ours.seenAs(t, stays.IP), 8), startFlow(t, ctx, client.nodes[0].vantage, ours.seenAs(t, from.IP), 8),
				startFlow(t, ctx, stays.vantage, theirs.seenAs(t, calls.IP), 8), startFlow(t, ctx, from.vantage, theirs.seenAs(t, calls.IP), 8),
			}
			fs.answering(t, ctx, callTimeout)
			return fs
		}
		flow.End(start()...) // the first packets of the new node may be sent before the gateways know it
		fs := start()
		server.drain(t, ctx, victim.Name)
		server.removeNode(t, ctx, victim)
		fx.nodes = slices.DeleteFunc(fx.nodes, func(n *lab.Node) bool { return n.Name == victim.Name })
		delete(fx.before, victim.Name)
		checkBothPlanes(t, ctx, server, client)
		if fs.lossless(t, fmt.Sprintf("%d: %s was drained and removed", i, victim.Name)); t.Failed() {
			t.FailNow() // what happened is in the diagnosis
		}
		from.ns.Close()
		stays.ns.Close()
	}
	mustLiqonet(t, ctx, "unpeer", server.Name, client.Name)
}

// checkBothPlanes waits until both planes of a peering work.
func checkBothPlanes(t *testing.T, ctx context.Context, clusters ...*cluster) {
	t.Helper()
	eventually(t, ctx, returnTimeout, "both planes work", func() string { return missingPlane(t, ctx, clusters...) })
}

// missingPlane says which of the two planes of a peering does not work.
func missingPlane(t *testing.T, ctx context.Context, clusters ...*cluster) string {
	t.Helper()
	for _, c := range clusters {
		if ready := jsonPath(t, ctx, c, `{.items[*].status.planes[*].connected}`, "get", "peerings"); ready != "true true" {
			return c.Name + ": planes that are connected: " + ready
		}
		if all := c.agents(t, "gateway"); len(all) != 2 {
			return fmt.Sprint(all)
		}
	}
	return ""
}

// Whole clusters reboot, machine of the API server included: one, and both at once. The peering is back soon after the
// nodes are Ready, and nobody runs a command.
func TestRebootedClusters(t *testing.T) {
	// backLimit is from when the last node is Ready until nodes reach pods of the peer. Kubernetes starts pods in that time.
	const backLimit = 10 * time.Second
	both := useClusters(t, lab.ClusterSpec{Name: "reboot", Workers: 2}, lab.ClusterSpec{Name: "restart", Workers: 2})
	begin(t)
	ctx := t.Context()
	mustLiqonet(t, ctx, "peer", both[0].Name, both[1].Name, "--planes", "2")
	checkPair(t, ctx, both[0], both[1])
	for _, rebooted := range [][]*cluster{both[:1], both[1:], both} {
		var names []string
		var nodes []*lab.Node
		for _, c := range rebooted {
			lc := must(fx.lab.Cluster(c.Name))(t)
			own := must(lc.Nodes())(t)
			names, nodes = append(names, c.Name), append(nodes, own...)
		}
		t.Run(strings.Join(names, " and "), func(t *testing.T) {
			for _, n := range nodes {
				try(t, n.Kill(ctx))
			}
			// The one that has the API server first: nodes are awaited.
			slices.SortStableFunc(nodes, func(a, b *lab.Node) int {
				switch {
				case a.ControlPlane == b.ControlPlane:
					return 0
				case a.ControlPlane:
					return -1
				}
				return 1
			})
			for _, n := range nodes {
				try(t, n.Restart(ctx))
			}
			ready := time.Now()
			for _, c := range rebooted {
				c.reconnect(t, ctx)
			}
			run := time.Since(ready)
			checkReached(t, ctx, both[0], both[1])
			back := time.Since(ready)
			t.Logf("after the last node was Ready: the test pods run %s, every pod reaches every pod %s", run.Round(time.Millisecond), back.Round(time.Millisecond))
			expect(t, back <= max(backLimit, 2*run), "the peering was back after %s, want %s", back, backLimit)
			checkBothPlanes(t, ctx, both[0], both[1])
			checkReached(t, ctx, both[0], both[1])
			for _, n := range nodes {
				delete(fx.before, n.Name) // it is another kernel's now
			}
			fx.nodes = slices.DeleteFunc(fx.nodes, func(n *lab.Node) bool { return fx.before[n.Name] == nil })
		})
	}
	mustLiqonet(t, ctx, "unpeer", both[0].Name, both[1].Name)
	for _, c := range both {
		for _, n := range c.nodes {
			none(t, tracesOn(ctx, n.Node), "on %s", n.Node.Name)
		}
	}
	checkNothingLeft(t, ctx)
}

// checkReached waits until every pod reaches every pod of the other cluster.
func checkReached(t *testing.T, ctx context.Context, a, b *cluster) {
	t.Helper()
	views := anyStatus(t, ctx, a, b)
	eventually(t, ctx, recoveryTimeout, "every pod reaches every pod", func() string { return unreached(t, views, a, b) })
}
