package e2e

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	gocmp "github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/services"
	"github.com/liqonet/liqonet/pkg/services/feed"
	"github.com/liqonet/liqonet/test/flow"
	"github.com/liqonet/liqonet/test/lab"
	"github.com/liqonet/liqonet/test/ledger"
	"github.com/liqonet/liqonet/test/workload"
)

var chaosTime = flag.Duration("chaos", 15*time.Second, "for how long TestChaos makes faults; from a minute on in three clusters, else in those of a lane")

const (
	// A fault lasts for a time between these.
	shortestFault, longestFault = 300 * time.Millisecond, 4 * time.Second
	// mostFaults and mostCommands are how many there are at once.
	mostFaults, mostCommands = 3, 2
	// commandTimeout is how long a command may take, whatever else happens, and upgradeTimeout the same for an upgrade, which
	// has to go back where packets are lost.
	commandTimeout, upgradeTimeout = 3 * time.Minute, 10 * time.Minute
	// quietTimeout is how soon after the end of all faults every pod has to reach every pod.
	quietTimeout = time.Minute
	// powerOff is the fault that ends a whole node.
	powerOff = "node powered off"
	// noted is how long packets have to be lost to be one of the outages that are printed.
	noted = 50 * time.Millisecond
)

// chaos makes faults in clusters that are all peered with each other.
type chaos struct {
	clusters []*cluster
	random   *rand.Rand
	history  *history
	// names are those of our objects, links how many of them nodes have, before the first fault.
	names map[string]string
	links map[string]string
	// outages, stalls and returns are what was measured, by the fault that was made; late is in how many rounds the test
	// itself was late.
	outages, stalls, returns map[string][]time.Duration
	late                     int
	commands                 map[string]int
	// images are two of the agents, which differ by their names. upgrades is how often a cluster was given one of them.
	images   [2]string
	upgrades map[string]int
	// rebooted are clusters whose nodes have other kernels now, and whose pods other addresses.
	rebooted map[*cluster]bool
	// sites are where the clusters have the services that they export.
	sites []*site
}

// A disturbance is a fault with its place. Where node is set, the node's own pods are not called until it ends.
type disturbance struct {
	name string
	of   *cluster
	node *node
	// machine is where one of Kubernetes' programs is stopped.
	machine string
	// begin makes it, and returns what repairs it, which may be nil.
	begin func(t *testing.T, ctx context.Context) (repair func())
}

// Agents, gateways, controllers of services, nodes, kubelets, API servers, links and commands fail at random, under load.
// After each quiet period every pod reaches every pod, each cluster has the services that its peers export, nothing of
// ours is where it should not be, and ranges are disjoint. The history of each ledger is linearizable.
func TestChaos(t *testing.T) {
	begin(t)
	ctx := t.Context()
	x := &chaos{
		clusters: []*cluster{fx.alpha, fx.beta, fx.gamma}, random: random(t), links: map[string]string{},
		outages: map[string][]time.Duration{}, stalls: map[string][]time.Duration{}, returns: map[string][]time.Duration{}, commands: map[string]int{}, upgrades: map[string]int{}, rebooted: map[*cluster]bool{},
	}
	if !isLongChaos() {
		x.clusters = fx.clusters
	}
	x.history = newHistory(rand.New(rand.NewPCG(x.random.Uint64(), 0)))
	for _, pair := range x.pairs() {
		x.mustPeer(t, ctx, pair)
	}
	x.makeImages(t, ctx)
	x.export(t, ctx)
	x.quiet(t, ctx)
	x.names = x.objects(t, ctx)
	for _, c := range x.clusters {
		for _, n := range c.nodes {
			x.links[n.Node.Name] = n.links(t, ctx)
		}
	}
	for i, begun := 0, time.Now(); time.Since(begun) < *chaosTime && !t.Failed(); i++ {
		t.Run(fmt.Sprint("round ", i), func(t *testing.T) { x.round(t, ctx) })
	}
	x.print(t)
	results := x.history.check(t)
	expect(t, len(results) == len(x.clusters), "there are histories of the ledgers of %v, want of all of %v", results, namesOf(x.clusters))
	for name, result := range results {
		expect(t, result == porcupine.Ok, "%s: the history of its ledger is %s", name, result)
	}
	x.unexport(t, ctx)
	for _, pair := range x.pairs() {
		mustLiqonet(t, ctx, "unpeer", pair[0].Name, pair[1].Name)
	}
	dropExportKinds(t, ctx, x.clusters...) // they are nobody's where a command has unpeered a cluster that had exports
	checkNothingLeft(t, ctx)
	var others []*lab.Node
	for c := range x.rebooted {
		for _, n := range labNodes(c) {
			none(t, tracesOn(ctx, n), "on %s", n.Name)
			others = append(others, n)
		}
	}
	now := must(workload.SettledSnapshots(ctx, others))(t)
	maps.Copy(fx.before, now)
	fx.nodes = append(fx.nodes, others...)
}

// isLongChaos says that faults are made in three clusters, which are those of no lane.
func isLongChaos() bool { return *chaosTime >= time.Minute }

func (x *chaos) pairs() (out [][2]*cluster) {
	for i, a := range x.clusters {
		for _, b := range x.clusters[i+1:] {
			out = append(out, [2]*cluster{a, b})
		}
	}
	return out
}

func (x *chaos) mustPeer(t *testing.T, ctx context.Context, pair [2]*cluster) {
	t.Helper()
	args := []string{"peer", pair[0].Name, pair[1].Name, "--planes", "2", "--services"}
	if !slices.Contains(pair[:], x.clusters[1]) { // one of the three
		args = append(args, "--planes-mode", "spread")
	}
	r := liqonet(t, ctx, x.history.kubeconfig(t, x.clusters...), args...)
	if r.code != 0 {
		t.Fatalf("peer %s %s: exit code %d\n%s", pair[0].Name, pair[1].Name, r.code, r.stderr)
	}
}

// makeImages gives the nodes the agents' image by another name, too.
func (x *chaos) makeImages(t *testing.T, ctx context.Context) {
	x.images = [2]string{
		sameImage(t, ctx, x.clusters...), jsonPath(t, ctx, x.clusters[0], "{.spec.template.spec.containers[0].image}", "-n", "liqonet-system", "get", "daemonset", v1alpha1.NodeAgentName),
	}
}

// mustUpgrade does an upgrade again, which may have been interrupted or may have gone back.
func (x *chaos) mustUpgrade(t *testing.T, ctx context.Context, c chaosCommand) {
	r := liqonet(t, ctx, c.kubeconfig, c.args...)
	require(t, r.code == 0, "%v: exit code %d\n%s", c.args, r.code, r.stderr)
}

// round makes some faults while packets are sent, and then looks whether all is well.
func (x *chaos) round(t *testing.T, ctx context.Context) {
	faults := x.choose()
	// In half of the rounds one thing happens, so that its outage can be told.
	commands := 0
	if x.random.IntN(2) == 0 {
		commands = 1 + x.random.IntN(mostCommands)
	} else if x.random.IntN(3) > 0 {
		faults = faults[:1]
	}
	var calls []chaosCommand
	for range commands {
		calls = append(calls, x.command(t))
	}
	load := x.startLoad(t, ctx, faults)

	var all sync.WaitGroup
	for _, c := range calls {
		all.Go(func() { c.run(t, ctx) })
	}
	var names []string
	var repairs, last []func() // what takes long comes last
	for _, f := range faults {
		what := f.name + " in " + f.of.Name
		if f.node != nil {
			what = f.name + " at " + f.node.Node.Name
		}
		t.Log(what)
		names = append(names, f.name)
		repair := f.begin(t, ctx)
		switch {
		case repair == nil:
		case f.name == powerOff:
			last = append(last, repair)
		case f.machine != "":
			repairs = append([]func(){repair}, repairs...) // others ask the API server
		default:
			repairs = append(repairs, repair)
		}
	}
	time.Sleep(shortestFault + time.Duration(x.random.Int64N(int64(longestFault-shortestFault))))
	for _, repair := range slices.Concat(repairs, last) {
		repair()
	}
	repaired := time.Now()
	all.Wait()
	broken := map[[2]string]bool{} // pairs that are not peered any more, maybe
	for _, c := range calls {
		x.commands[c.args[0]]++
		if c.args[0] == "unpeer" {
			broken[[2]string{c.args[1], c.args[2]}], broken[[2]string{c.args[2], c.args[1]}] = true, true
		}
	}
	if len(calls) > 0 {
		repaired = time.Now()
		x.ready(t, ctx) // a new peering with two planes is refused where a node is still starting
		for _, pair := range x.pairs() {
			if slices.ContainsFunc(calls, func(c chaosCommand) bool { return c.args[0] != "expose-host" && c.of(pair) }) {
				x.mustPeer(t, ctx, pair)
			}
		}
		for _, c := range calls {
			if c.args[0] == "upgrade" {
				x.mustUpgrade(t, ctx, c)
			}
		}
	}
	x.quiet(t, ctx)
	name := names[0]
	if len(names)+len(calls) > 1 {
		name = "several at once"
	}
	x.returns[name] = append(x.returns[name], time.Since(repaired))
	load.end(t, x, name, broken)
	x.checkPlaces(t, ctx)
}

// export has each cluster export a service that all have, and one that only it has. They lead to the test pods.
func (x *chaos) export(t *testing.T, ctx context.Context) {
	for _, c := range x.clusters {
		s := newSite(t, c, "default")
		x.sites = append(x.sites, s)
		for _, name := range x.services(c) {
			svc := newService(name)
			svc.Spec.Selector = map[string]string{"app": "tester"}
			s.create(t, ctx, svc, newExport(name))
		}
	}
	t.Cleanup(func() { x.unexport(t, context.WithoutCancel(ctx)) })
}

// services are the names of those that a cluster exports.
func (x *chaos) services(c *cluster) []string { return []string{"chaos", "chaos-" + c.Name} }

func (x *chaos) unexport(t *testing.T, ctx context.Context) {
	for _, s := range x.sites {
		for _, name := range x.services(s.cluster) {
			s.delete(t, ctx, newExport(name), newService(name))
		}
	}
}

func (x *chaos) siteOf(c *cluster) *site {
	return x.sites[slices.IndexFunc(x.sites, func(s *site) bool { return s.cluster == c })]
}

// receivedDiffers compares what a cluster has recorded of a peer's services with what the peer exports, as that has to tell it.
func receivedDiffers(ctx context.Context, exporter, importer *site) string {
	var exported v1alpha1.ExportedServiceList
	var received v1alpha1.ReceivedServiceList
	var nodes v1alpha1.NodeNetworkList
	there, here := &v1alpha1.Peering{}, &v1alpha1.Peering{}
	if err := errors.Join(
		exporter.api.List(ctx, &exported), exporter.api.List(ctx, &nodes), exporter.api.Get(ctx, client.ObjectKey{Name: importer.Name}, there),
		importer.api.List(ctx, &received, client.MatchingLabels{v1alpha1.LabelPeering: exporter.Name}), importer.api.Get(ctx, client.ObjectKey{Name: exporter.Name}, here),
	); err != nil {
		return err.Error()
	}
	ownNodes := map[netip.Addr]bool{}
	for _, n := range nodes.Items {
		for _, ip := range n.Status.NodeIPs {
			ownNodes[ip.Addr] = true
		}
	}
	want, got := map[string]string{}, map[string]string{}
	for i := range exported.Items {
		e := &exported.Items[i]
		if !services.IsFor(&e.Spec, there.Name) {
			continue
		}
		told, _ := services.ToPeer(&e.Spec.ServiceRecord, there, ownNodes)
		usable, _, err := services.FromPeer(told, here)
		if err != nil {
			return err.Error()
		}
		want[here.Name+"."+e.Name] = feed.NewTold(told, there).Hash + " of " + services.Hash(usable)
	}
	for i := range received.Items {
		r := &received.Items[i]
		got[r.Name] = r.Spec.Hash + " of " + services.Hash(&r.Spec.ServiceRecord)
	}
	return unless(len(want) > 0, "nothing is exported") + gocmp.Diff(want, got)
}

// slicesDiffer compares the endpoints of a peer's services with what the peer's API server has, by the addresses that status tells.
func slicesDiffer(t testing.TB, ctx context.Context, exporter, importer *site, known view) string {
	var exports mcs.ServiceExportList
	if err := exporter.api.List(ctx, &exports, client.InNamespace(exporter.namespace)); err != nil {
		return err.Error()
	}
	for _, e := range exports.Items {
		var sources discoveryv1.EndpointSliceList
		err := exporter.api.List(ctx, &sources, client.InNamespace(exporter.namespace), client.MatchingLabels{discoveryv1.LabelServiceName: e.Name})
		made, errMade := importer.slicesOf(ctx, e.Name, exporter.Name)
		if err := errors.Join(err, errMade); err != nil {
			return err.Error()
		}
		var want, got []string
		for i := range sources.Items {
			for _, address := range readyEndpoints(&sources.Items[i]) {
				addr, err := netip.ParseAddr(address)
				if err != nil {
					return err.Error()
				}
				want = append(want, known.seenAs(t, addr).String())
			}
		}
		for i := range made {
			got = append(got, readyEndpoints(&made[i])...)
		}
		slices.Sort(want)
		slices.Sort(got)
		if len(want) == 0 || !slices.Equal(want, got) {
			return fmt.Sprintf("%s has the ready endpoints %v, want %v", e.Name, got, want)
		}
	}
	return unless(len(exports.Items) > 0, "nothing is exported")
}

// choose returns some faults at random places: of the nodes of a cluster at most one is disturbed itself, and nothing
// else is stopped on it, which may be powered off.
func (x *chaos) choose() (out []disturbance) {
	kinds := []func(*cluster) disturbance{
		x.agent("gateway killed", "gateway", syscall.SIGKILL), x.agent("gateway stopped", "gateway", syscall.SIGSTOP),
		x.agent("node agent killed", "node", syscall.SIGKILL), x.agent("node agent stopped", "node", syscall.SIGSTOP),
		x.agent("controller of services killed", "services", syscall.SIGKILL), x.agent("controller of services stopped", "services", syscall.SIGSTOP),
		x.cutNode("node cut off", "in drop", "out drop"), x.cutNode("cut inwards", "in drop"), x.cutNode("cut outwards", "out drop"),
		x.cutNode("30 % lost", "in numgen random mod 100 < 30 drop"),
		x.component("kubelet", false), x.component("kube-apiserver", true), x.powerOff,
	}
	for range 1 + x.random.IntN(mostFaults) {
		c := x.clusters[x.random.IntN(len(x.clusters))]
		f := kinds[x.random.IntN(len(kinds))](c)
		if !slices.ContainsFunc(out, f.excludes) {
			out = append(out, f)
		}
	}
	return out
}

// excludes says whether two disturbances cannot be made at the same time.
func (d disturbance) excludes(other disturbance) bool {
	switch {
	case d.node != nil && other.node != nil:
		return d.of == other.of
	case d.node != nil:
		return d.node.Node.Name == other.machine
	case other.node != nil:
		return other.node.Node.Name == d.machine
	}
	return d.machine != "" && d.machine == other.machine
}

// agent is what happens to one of the agents of a kind.
func (x *chaos) agent(name, kind string, signal syscall.Signal) func(*cluster) disturbance {
	which := x.random.Uint32()
	return func(c *cluster) disturbance {
		return disturbance{name: name, of: c, begin: func(t *testing.T, ctx context.Context) func() {
			agents := c.agents(t, kind)
			if len(agents) == 0 {
				return nil // a command has just removed them
			}
			p := agents[int(which)%len(agents)]
			_ = syscall.Kill(p.pid, signal) // it may have ended
			return func() {
				if signal == syscall.SIGSTOP {
					_ = syscall.Kill(p.pid, syscall.SIGCONT)
					return
				}
				// The kubelet waits longer and longer before it starts a container again: the next one is in a new pod.
				args := []string{"-n", "liqonet-system", "delete", "pods", "--ignore-not-found", "--grace-period=0", "--force", "--field-selector", "spec.nodeName=" + p.node, "-l"}
				selector := "app.kubernetes.io/component=" + kind
				if kind == "gateway" {
					selector = v1alpha1.LabelPeering + "=" + p.peering
				}
				report(t, errOf(c.Run(ctx, "", append(args, selector)...)))
			}
		}}
	}
}

// cutNode has the kernel of a node drop packets.
func (x *chaos) cutNode(name string, rules ...string) func(*cluster) disturbance {
	return func(c *cluster) disturbance {
		n := &c.nodes[x.random.IntN(len(c.nodes))]
		return disturbance{name: name, of: c, node: n, begin: func(t *testing.T, ctx context.Context) func() {
			return n.dropPackets(t, ctx, rules...)
		}}
	}
}

// component stops one of Kubernetes' programs: the kubelet of a node, or what the control plane has.
func (x *chaos) component(program string, ofControlPlane bool) func(*cluster) disturbance {
	return func(c *cluster) disturbance {
		machine := c.Name + "-cp"
		if !ofControlPlane {
			machine = c.nodes[x.random.IntN(len(c.nodes))].Node.Name
		}
		return disturbance{name: program + " stopped", of: c, machine: machine, begin: func(t *testing.T, _ context.Context) func() {
			return paused(t, processOf(t, machine, program))
		}}
	}
}

// powerOff takes the power from a node. It starts again when that is repaired.
func (x *chaos) powerOff(c *cluster) disturbance {
	n := &c.nodes[x.random.IntN(len(c.nodes))]
	return disturbance{name: powerOff, of: c, node: n, begin: func(t *testing.T, ctx context.Context) func() {
		machine := n.Node
		try(t, machine.Kill(ctx))
		// Its kernel will be another one, and the other nodes lead packets to another pod.
		x.rebooted[c] = true
		fx.nodes = slices.DeleteFunc(fx.nodes, func(n *lab.Node) bool {
			return slices.ContainsFunc(labNodes(c), func(other *lab.Node) bool { return other.Name == n.Name })
		})
		for _, n := range labNodes(c) {
			delete(fx.before, n.Name)
		}
		return func() {
			try(t, machine.Restart(ctx))
			c.reconnect(t, ctx)
		}
	}}
}

// chaosCommand is a command of which nobody knows how it ends.
type chaosCommand struct {
	args       []string
	kubeconfig string
	// signal is sent after some time; 0 does nothing, see kill(2).
	signal syscall.Signal
	after  time.Duration
}

func (x *chaos) command(t *testing.T) chaosCommand {
	pairs := x.pairs()
	pair := pairs[x.random.IntN(len(pairs))]
	if x.random.IntN(2) == 0 {
		pair[0], pair[1] = pair[1], pair[0]
	}
	c := chaosCommand{kubeconfig: x.history.kubeconfig(t, x.clusters...), after: time.Duration(x.random.Int64N(int64(5 * time.Second)))}
	a, b, host := pair[0].Name, pair[1].Name, fmt.Sprintf("192.0.2.%d", 1+x.random.IntN(9))
	c.args = [][]string{
		{"peer", a, b, "--planes", "2"},
		{"unpeer", a, b},
		{"expose-host", a, b, host},
		{"expose-host", a, b, host, "--remove"},
		{"rotate-keys", a, b},
		{"upgrade", a, "--agent-image", x.images[x.upgrades[a]%len(x.images)]},
	}[x.random.IntN(6)]
	if c.args[0] == "upgrade" {
		x.upgrades[a]++
	}
	c.signal = []syscall.Signal{0, syscall.SIGKILL, syscall.SIGINT}[x.random.IntN(3)]
	return c
}

func (c chaosCommand) of(pair [2]*cluster) bool {
	return slices.Contains(c.args[1:3], pair[0].Name) && slices.Contains(c.args[1:3], pair[1].Name)
}

func (c chaosCommand) run(t *testing.T, ctx context.Context) {
	timeout := commandTimeout
	if c.args[0] == "upgrade" || c.args[0] == "rotate-keys" { // which waits for upgrades
		timeout = upgradeTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	r := interrupted(t, ctx, c.kubeconfig, c.after, c.signal, c.args...)
	t.Logf("%v, %v after %s: exit code %d\n%s", c.args, c.signal, c.after, r.code, r.stderr)
	expect(t, ctx.Err() == nil, "%v did not end within %s:\n%s", c.args, timeout, r.stderr)
	expect(t, !strings.Contains(r.stderr, "goroutine "), "%v:\n%s", c.args, r.stderr)
}

// load are packets and TCP connections between pods of all pairs, both ways.
type load struct {
	flows map[[2]string]*flow.Flow
	tcp   map[[2]string]*flow.Conversation
}

// startLoad calls pods on nodes that are not disturbed themselves.
func (x *chaos) startLoad(t *testing.T, ctx context.Context, faults []disturbance) *load {
	choose := func(c *cluster) pod {
		pods := slices.DeleteFunc(slices.Clone(c.pods), func(p pod) bool {
			return slices.ContainsFunc(faults, func(f disturbance) bool { return f.node != nil && f.node.Node.Name == p.Node })
		})
		return pods[x.random.IntN(len(pods))]
	}
	l := &load{map[[2]string]*flow.Flow{}, map[[2]string]*flow.Conversation{}}
	for _, pair := range x.pairs() {
		for from, to := range bothWays(pair[0], pair[1]) {
			key := [2]string{from.Name, to.Name}
			source, target := choose(from), choose(to)
			views := anyStatus(t, ctx, from, to)
			l.flows[key] = startFlow(t, ctx, source.vantage, viewOf(t, views, to, from).seenAs(t, target.IP), 8)
			l.tcp[key] = converse(t, ctx, source, to, from, target)
		}
	}
	for _, f := range l.flows {
		answering(t, ctx, f, callTimeout)
	}
	return l
}

// end ends the load, and notes how long packets were lost and connections stood still, between clusters that were peered
// all the time.
func (l *load) end(t *testing.T, x *chaos, name string, broken map[[2]string]bool) {
	t.Helper()
	var outage, stall, late time.Duration
	for _, r := range flow.End(slices.Collect(maps.Values(l.flows))...) {
		for key, f := range l.flows {
			if f.Name == r.Name && !broken[key] {
				outage, late = max(outage, r.Gap), max(late, r.Late)
				if r.Gap > noted {
					t.Logf("%s, late by %s", r, r.Late.Round(time.Millisecond))
				}
			}
		}
	}
	for key, c := range l.tcp {
		s, err := c.End()
		if broken[key] {
			continue
		}
		stall = max(stall, s)
		// TCP waits as long again before it sends the next time, and the test does not wait for ever.
		expect(t, err == nil || (errors.Is(err, os.ErrDeadlineExceeded) && outage > callTimeout/4),
			"the TCP connection of %v has ended: %v", key, err)
	}
	if late > lateLimit {
		x.late++
		return
	}
	x.outages[name], x.stalls[name] = append(x.outages[name], outage), append(x.stalls[name], stall)
}

// quiet waits until every pod reaches every pod.
func (x *chaos) quiet(t *testing.T, ctx context.Context) {
	t.Helper()
	x.ready(t, ctx)
	for _, pair := range x.pairs() {
		views := anyStatus(t, ctx, pair[0], pair[1])
		eventually(t, ctx, quietTimeout, "every pod reaches every pod", func() string { return unreached(t, views, pair[0], pair[1]) })
		for from, to := range bothWays(pair[0], pair[1]) {
			exporter, importer := x.siteOf(from), x.siteOf(to)
			known := viewOf(t, views, from, to)
			eventually(t, ctx, quietTimeout, fmt.Sprintf("%s has received what %s exports", to.Name, from.Name), func() string {
				return cmp.Or(receivedDiffers(ctx, exporter, importer), slicesDiffer(t, ctx, exporter, importer, known))
			})
		}
	}
}

// ready waits until all nodes are.
func (x *chaos) ready(t *testing.T, ctx context.Context) {
	t.Helper()
	for _, c := range x.clusters {
		c.kubectl(t, ctx, "wait", "--for=condition=Ready", "nodes", "--all", "--timeout="+podTimeout.String())
	}
}

// checkPlaces looks whether there is of ours what there was before the first fault, and nothing else, and whether
// nothing was given out twice.
func (x *chaos) checkPlaces(t *testing.T, ctx context.Context) {
	eventually(t, ctx, quietTimeout, "our objects", func() string { return gocmp.Diff(x.names, x.objects(t, ctx)) })
	for _, c := range x.clusters {
		for _, n := range c.nodes {
			eventually(t, ctx, quietTimeout, "links of "+n.Node.Name, func() string {
				now := n.links(t, ctx)
				return unless(now == x.links[n.Node.Name], "were %s, are %s", x.links[n.Node.Name], now)
			})
		}
		r := must(c.reader())(t)
		err := ledger.Check(ctx, r, len(x.clusters)-1, []netip.Prefix{c.spec.ServiceCIDR, c.spec.NodeSubnet, c.spec.PodCIDR}...)
		expect(t, err == nil, "%s: %v", c.Name, err)
	}
}

// generation is that of a key, and number the index of a peering, which are others after it was peered again.
var generation = regexp.MustCompile(`-\d+$`)

// objects are the names of ours that do not come and go by themselves.
func (x *chaos) objects(t *testing.T, ctx context.Context) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, c := range x.clusters {
		objects := must(c.objects(ctx, managed))(t)
		for _, u := range objects {
			if slices.Contains([]string{"Pod", "PodMetrics", "ReplicaSet", "ControllerRevision", "EndpointSlice", "Endpoints", "Event"}, u.GetKind()) {
				continue
			}
			if u.GetKind() == "Lease" && u.GetNamespace() == "kube-system" {
				continue // a lock that tells a command that was killed by whom it was overtaken
			}
			if strings.HasSuffix(u.GetName(), "."+mcs.GroupName) {
				continue // a definition that is nobody's after a cluster with exports was unpeered
			}
			out[c.Name+": "+u.GetKind()+" "+u.GetNamespace()+"/"+withoutGeneration(u)] = ""
		}
	}
	return out
}

func withoutGeneration(u *unstructured.Unstructured) string {
	if u.GetKind() == "Secret" {
		return generation.ReplaceAllString(u.GetName(), "")
	}
	return u.GetName()
}

// links are how many interfaces of ours a node has.
func (n node) links(t *testing.T, ctx context.Context) string {
	t.Helper()
	out := must(n.shell(ctx, "ip -o link show | grep -c ': loq' || true"))(t)
	return strings.TrimSpace(out)
}

// print shows what was measured.
func (x *chaos) print(t *testing.T) {
	rounds := 0
	for _, name := range slices.Sorted(maps.Keys(x.outages)) {
		outages, stalls, returns := slices.Sorted(slices.Values(x.outages[name])), slices.Sorted(slices.Values(x.stalls[name])), slices.Sorted(slices.Values(x.returns[name]))
		n := len(outages)
		rounds += n
		// As benchmarks are printed, which are kept with the result.
		fmt.Printf("BenchmarkChaos/%s 1 %d rounds %.3f median-s %.3f worst-s %.3f median-stall-s %.3f worst-stall-s %.3f worst-return-s\n",
			strings.ReplaceAll(name, " ", "-"), n, outages[n/2].Seconds(), outages[n-1].Seconds(), stalls[n/2].Seconds(), stalls[n-1].Seconds(), returns[n-1].Seconds())
	}
	for what, measured := range map[string]map[string][]time.Duration{"packets": x.outages, "tcp": x.stalls} {
		all := slices.Sorted(slices.Values(slices.Concat(slices.Collect(maps.Values(measured))...)))
		if len(all) == 0 {
			continue
		}
		line := "BenchmarkChaosDistribution/" + what + " 1"
		for q := 0; q <= 100; q += 5 {
			line += fmt.Sprintf(" %.3f q%d", all[(len(all)-1)*q/100].Seconds(), q)
		}
		fmt.Println(line)
	}
	t.Logf("%d rounds, in %d more the test itself was late; commands: %v", rounds, x.late, x.commands)
}
