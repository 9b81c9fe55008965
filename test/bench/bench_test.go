package bench

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/lab"
	"github.com/liqonet/liqonet/test/load"
	"github.com/liqonet/liqonet/test/netns"
	"github.com/liqonet/liqonet/test/workload"
)

var (
	binDir   = flag.String("bin", filepath.Join("..", "..", "bin"), "directory of what make image built")
	labName  = flag.String("lab", "bench", "name of the lab")
	keep     = flag.Bool("keep", false, "use the lab if it is up, and leave it up and peered")
	rounds   = flag.Int("rounds", 7, "how often each path is measured")
	only     = flag.String("measures", "", "a regular expression: what is measured, by the names in the table")
	duration = flag.Duration("duration", 400*time.Millisecond, "how long each measurement takes")
)

const (
	// upTimeout includes building the lab's programs for the first time.
	upTimeout   = 20 * time.Minute
	downTimeout = time.Minute
	// timeout is for all that comes between.
	timeout = 25 * time.Minute
)

func TestMain(m *testing.M) {
	dataplane.ChildMain() // the tunnels by hand are processes of this program
	flag.Parse()
	os.Exit(m.Run())
}

// Places of pods.
const (
	onGateways = iota // on the nodes of the gateways
	onOthers
	places
)

var placeNames = [places]struct{ text, metric string }{{"gateways' nodes", "gateways"}, {"other nodes", "others"}}

// side is a cluster with what is measured of it.
type side struct {
	workload.Cluster
	cluster *lab.Cluster
	pods    [places]end
	// peering is the cluster's own view.
	peering v1alpha1.Peering
}

// end is a test pod and its node.
type end struct {
	node *lab.Node
	addr netip.Addr
	ns   *netns.NS
}

// BenchmarkDataPath measures pod to pod through the product, next to a path by hand with the same hops and to
// wireguard-go as it is between two nodes, in turn. Pods are on the gateways' nodes and on others, links between nodes
// as they are and without segmentation offload.
func BenchmarkDataPath(b *testing.B) {
	l := kit.Must(lab.New(lab.Options{Name: *labName, Images: []string{program("liqonet-agent.tar")}, Log: os.Stderr}))(b)
	up(b, l)
	for b.Loop() {
		run(b, l)
	}
}

func up(b *testing.B, l *lab.Lab) {
	b.Helper()
	if *keep && l.Healthy() == nil {
		return
	}
	down := func() {
		ctx, cancel := context.WithTimeout(context.Background(), downTimeout)
		defer cancel()
		kit.NoError(b, l.Down(ctx))
	}
	down() // what an earlier run may have left
	if !*keep {
		b.Cleanup(down)
	}
	ctx, cancel := context.WithTimeout(b.Context(), upTimeout)
	defer cancel()
	kit.NoError(b, l.Up(ctx, lab.ClusterSpec{Name: "a"}, lab.ClusterSpec{Name: "b"}))
}

func run(b *testing.B, l *lab.Lab) {
	ctx, cancel := context.WithTimeout(b.Context(), timeout)
	defer cancel()
	sides := peer(b, ctx, l)
	hands := byHand(b, ctx, int(sides[0].peering.PlaneStatus(0).MTU), sides)
	gateways := loaded{name: "gateways"}
	for _, s := range sides {
		gateways.processes = append(gateways.processes, gatewayPID(b, s.pods[onGateways].node))
	}
	var paths []path
	for place, name := range placeNames {
		mapped := kit.Must(sides[0].seen(sides[1].pods[place].addr))(b)
		from, to := sides[0].pods[place], sides[1].pods[place]
		p := load.Path{From: from.ns.Run, To: to.ns.Run, Listen: to.addr, Address: mapped}
		paths = append(paths, path{name: product + name.text, Path: p}, path{name: handmade + name.text, Path: handPath(hands, place)})
		gateways.path = p // the last one has all hops
	}
	for i, of := range []struct {
		name string
		env  []string
	}{{baseline, nil}, {oneThread, []string{"GOMAXPROCS=1"}}} {
		p := &pair{name: of.name, link: fmt.Sprint("bench", i), port: uint16(handTunnel + 1 + i)}
		for j, s := range sides {
			n := s.pods[onGateways].node
			p.ends[j] = &tunnelEnd{ns: node(b, n), outer: n.Address, inner: v4(10, 39, i, j+1)}
		}
		p.start(b, dataplane.Upstream, of.env...)
		for j, s := range sides {
			share(b, s.pods[onGateways].node, p.ends[j].tunnel.PID())
		}
		paths = append(paths, path{name: of.name, Path: p.path()})
	}
	congestion := kit.Must(os.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control"))(b)
	fmt.Printf("\nTCP's congestion control: %s", congestion)
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\nMEDIANS OF %d ROUNDS\tPRODUCT\tBY HAND\tRATIO\tMUST\tTO 1 STREAM (BY HAND, BASELINE)\tMUST\tBASELINE\tRATIO\tGOAL\tITS 1 THREAD\n", *rounds)
	for _, links := range []struct {
		name, prefix    string
		offload, narrow bool
	}{
		{"links as they are", "default", true, false},
		{"links without segmentation offload", "single", false, false},
		{"the same, 200 Mbit/s between the clusters", "narrow", false, true},
	} {
		offload(b, sides, links.offload)
		r := results{}
		if links.narrow {
			narrow(b, sides[0])
		}
		for round := range *rounds {
			for _, m := range measures() {
				if links.narrow && !m.gbits {
					continue
				}
				// What is compared comes right after each other, and no path
				// always comes first.
				turn := slices.Clone(paths)
				if round%2 == 1 {
					slices.Reverse(turn)
				}
				for _, p := range turn {
					value, err := m.of(ctx, p.Path)
					kit.NoError(b, err, "%s, %s", m.name, p.name)
					r.add(m.metric, p.name, value)
				}
			}
		}
		if links.narrow {
			widen(b, sides[0])
		}
		offload(b, sides, true)
		r.print(b, t, links.name, links.prefix)
	}
	kit.CheckNoError(b, t.Flush())
	printMemory(b, ctx, []loaded{gateways})
}

// Names of paths, the first two with a place.
const (
	product   = "product, "
	handmade  = "by hand, "
	baseline  = "baseline"
	oneThread = "baseline with one thread"
)

type path struct {
	load.Path
	name string
}

// measure is one line of the table.
type measure struct {
	name, unit, metric, format string
	// gbits are musts, and compared with the goals. streams are compared with one. less is better.
	gbits, streams, less bool
	of                   func(context.Context, load.Path) (float64, error)
}

const roundTrip = "rtt"

// measures are those that were asked for.
func measures() []measure {
	asked := regexp.MustCompile(*only)
	return slices.DeleteFunc(slices.Clone(allMeasures), func(m measure) bool { return !asked.MatchString(m.name) })
}

var allMeasures = []measure{
	{name: "TCP, 1 stream", unit: "Gbit/s", metric: "tcp1", format: "%.2f", gbits: true, of: throughput(1)},
	{name: "TCP, 4 streams", unit: "Gbit/s", metric: "tcp4", format: "%.2f", gbits: true, streams: true, of: throughput(4)},
	{name: "TCP, 16 streams", unit: "Gbit/s", metric: "tcp16", format: "%.2f", gbits: true, streams: true, of: throughput(16)},
	{name: "iperf3, 4 streams", unit: "Gbit/s", metric: "iperf4", format: "%.2f", gbits: true, of: iperf(4)},
	{name: "CPU for a Gbit, 4 streams", unit: "s", metric: "cpu", format: "%.2f", less: true, of: processorTime(4)},
	{name: "requests, 1 client", unit: "1/s", metric: "requests1", format: "%.0f", of: requests(1, load.Answers.Rate)},
	{name: "requests, 16 clients", unit: "1/s", metric: "requests16", format: "%.0f", of: requests(16, load.Answers.Rate)},
	{name: "connections, 16 clients", unit: "1/s", metric: "connections", format: "%.0f", of: connections(16)},
	{name: "round trip", unit: "ms", metric: roundTrip, format: "%.2f", less: true, of: requests(1, func(a load.Answers) float64 { return a.Median.Seconds() * 1000 })},
	{name: "99 % answered within, with 4 streams", unit: "ms", metric: "p99", format: "%.2f", less: true, of: underLoad(4)},
}

func throughput(streams int) func(context.Context, load.Path) (float64, error) {
	return func(ctx context.Context, p load.Path) (float64, error) {
		bits, err := load.Throughput(ctx, p, streams, lasting(streams))
		return bits / 1e9, err
	}
}

func iperf(streams int) func(context.Context, load.Path) (float64, error) {
	return func(ctx context.Context, p load.Path) (float64, error) {
		bits, err := load.IPerf(ctx, p, streams)
		return bits / 1e9, err
	}
}

func requests(clients int, value func(load.Answers) float64) func(context.Context, load.Path) (float64, error) {
	return func(ctx context.Context, p load.Path) (float64, error) {
		answers, err := load.Requests(ctx, p, clients, *duration)
		return value(answers), err
	}
}

func connections(clients int) func(context.Context, load.Path) (float64, error) {
	return func(ctx context.Context, p load.Path) (float64, error) {
		return load.Connections(ctx, p, clients, *duration)
	}
}

// underLoad is about one client's requests.
func underLoad(streams int) func(context.Context, load.Path) (float64, error) {
	return func(ctx context.Context, p load.Path) (ms float64, err error) {
		var wg errgroup.Group
		wg.Go(func() error {
			_, err := load.Throughput(ctx, p, streams, *duration*settling)
			return err
		})
		answers, err := load.Requests(ctx, p, 1, *duration*settling)
		return answers.P99.Seconds() * 1000, errors.Join(err, wg.Wait())
	}
}

// processorTime is that of all processes and the kernel.
func processorTime(streams int) func(context.Context, load.Path) (float64, error) {
	return func(ctx context.Context, p load.Path) (float64, error) {
		had, before := busy()
		start := time.Now()
		bits, err := load.Throughput(ctx, p, streams, *duration*settling)
		took := time.Since(start)
		has, after := busy()
		return (has - had).Seconds() / took.Seconds() / (bits / 1e9), errors.Join(before, err, after)
	}
}

// results are values by measure and path, one of each round.
type results map[string]map[string][]float64

func (r results) add(metric, path string, value float64) {
	if r[metric] == nil {
		r[metric] = map[string][]float64{}
	}
	r[metric][path] = append(r[metric][path], value)
}

// What is required of ratios of the product: to what is made by hand, to one stream, and to the baseline by place.
const (
	requiredOfHand    = 0.95
	requiredOfStreams = 0.95
	// requiredTrip is by how many ms a round trip may be longer than the baseline's.
	requiredTrip = 0.1
)

var goals = [places]float64{onGateways: 0.9, onOthers: 0.6}

func (r results) print(b *testing.B, t *tabwriter.Writer, links, prefix string) {
	for place, where := range placeNames {
		fmt.Fprintf(t, "%s; pods on %s\t\t\t\t\t\t\t\t\t\t\n", links, where.text)
		product, handmade := product+where.text, handmade+where.text
		for _, m := range measures() {
			values := r[m.metric]
			if len(values) == 0 {
				continue
			}
			said := func(path string) string { return fmt.Sprintf(m.format, median(values[path])) }
			ratio := func(of, to []float64, name string) float64 {
				ratio := median(ratios(of, to))
				b.ReportMetric(ratio, fmt.Sprintf("%s-%s-%s-to-%s", prefix, where.metric, m.metric, name))
				return ratio
			}
			hand, base := ratio(values[product], values[handmade], "hand"), ratio(values[product], values[baseline], "baseline")
			kind, ofBase, streams, ofStreams := "goal", "-", "-", "-"
			if m.gbits {
				kind = "must"
				ofBase = verdict("goal", goals[place], base >= goals[place])
			}
			if m.metric == roundTrip {
				more := median(values[product]) - median(values[baseline])
				ofBase = verdict("must", requiredTrip, more <= requiredTrip) + fmt.Sprintf(" (%+.2f ms)", more)
			}
			if one := r["tcp1"]; m.streams && one != nil {
				of := ratio(values[product], one[product], "one")
				streams = fmt.Sprintf("%.2f (%.2f, %.2f)", of, median(ratios(values[handmade], one[handmade])), median(ratios(values[baseline], one[baseline])))
				ofStreams = verdict("must", requiredOfStreams, of >= requiredOfStreams)
			}
			required, met := requiredOfHand, hand >= requiredOfHand
			if m.less {
				required, met = 1/requiredOfHand, hand <= 1/requiredOfHand
			}
			fmt.Fprintf(t, "  %s, %s\t%s\t%s\t%.2f\t%s\t%s\t%s\t%s\t%.2f\t%s\t%s\n", m.name, m.unit, said(product), said(handmade), hand,
				verdict(kind, required, met), streams, ofStreams, said(baseline), base, ofBase, said(oneThread))
		}
	}
}

// verdict is what is required, and whether it is met.
func verdict(kind string, required float64, met bool) string {
	return fmt.Sprintf("%s %.4g, %s", kind, required, map[bool]string{true: "met", false: "MISSED"}[met])
}

// ratios pairs what was measured in the same round.
func ratios(a, b []float64) []float64 {
	var out []float64
	for i := range a {
		out = append(out, a[i]/b[i])
	}
	return out
}

func median(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	if len(s)%2 == 0 {
		return (s[len(s)/2-1] + s[len(s)/2]) / 2
	}
	return s[len(s)/2]
}

// offload switches what lets nodes send large packets to each other. Real
// network cards without it, and receivers without aggregation, see single ones.
func offload(b *testing.B, sides [2]*side, on bool) {
	b.Helper()
	for _, s := range sides {
		for _, n := range kit.Must(s.cluster.Nodes())(b) {
			dataplane.SetSegmentation(b, node(b, n), on)
		}
	}
}

// narrow makes the way from the sending side's gateway to the other one as narrow as
// a link between sites is, so that the cores of this machine have time to spare.
func narrow(b *testing.B, from *side) {
	b.Helper()
	onNode(b, from.pods[onGateways].node, "tc", strings.Fields("qdisc add dev eth0 root tbf rate 200mbit burst 128k latency 20ms")...)
}

func widen(b *testing.B, from *side) {
	b.Helper()
	onNode(b, from.pods[onGateways].node, "tc", strings.Fields("qdisc del dev eth0 root")...)
}

// peer peers the clusters and finds out where everything runs.
func peer(b *testing.B, ctx context.Context, l *lab.Lab) (sides [2]*side) {
	b.Helper()
	liqonet(b, ctx, l, "peer", "a", "b", "--planes", "1")
	for i, name := range []string{"a", "b"} {
		sides[i] = newSide(b, ctx, l, name)
		kit.NoError(b, sides[i].find(b, ctx), "cluster %s", name)
	}
	return sides
}

// liqonet runs a command on the lab's clusters.
func liqonet(b *testing.B, ctx context.Context, l *lab.Lab, args ...string) {
	b.Helper()
	cmd := exec.CommandContext(ctx, program("kubectl-liqonet"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+l.Kubeconfig())
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("%v: %v: %s", args, err, out)
	}
}

// newSide returns a cluster of the lab in which test pods run.
func newSide(b *testing.B, ctx context.Context, l *lab.Lab, name string) *side {
	b.Helper()
	kubectl := kit.Must(l.Kubectl())(b)
	s := &side{Cluster: workload.Cluster{Name: name, Kubeconfig: l.Kubeconfig(), Kubectl: kubectl}}
	s.cluster = kit.Must(l.Cluster(name))(b)
	kit.NoError(b, s.Deploy(ctx), "cluster %s", name)
	return s
}

// ends returns the test pods.
func (s *side) ends(b *testing.B, ctx context.Context) (out []end, err error) {
	b.Helper()
	pods, err := s.Pods(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range pods {
		n, err := s.cluster.Node(p.Node)
		if err != nil {
			return nil, err
		}
		file, err := p.NetworkNamespace(*labName)
		if err != nil {
			return nil, err
		}
		out = append(out, end{node: n, addr: p.IP, ns: netns.Open(b, p.String(), file)})
	}
	return out, nil
}

// find finds out which pods are on which nodes.
func (s *side) find(b *testing.B, ctx context.Context) error {
	b.Helper()
	raw, err := s.Run(ctx, "", "get", "peerings.liqonet.io", "-o", "json")
	if err != nil {
		return err
	}
	var list v1alpha1.PeeringList
	if err := json.Unmarshal([]byte(raw), &list); err != nil {
		return err
	}
	if len(list.Items) != 1 || list.Items[0].PlaneStatus(0) == nil {
		return fmt.Errorf("there is no peering with a status: %s", raw)
	}
	s.peering = list.Items[0]
	ends, err := s.ends(b, ctx)
	if err != nil {
		return err
	}
	for _, e := range ends {
		place := onOthers
		if e.node.Name == s.peering.PlaneStatus(0).NodeName {
			place = onGateways
		}
		s.pods[place] = e
	}
	for _, p := range s.pods {
		if p.ns == nil {
			return fmt.Errorf("test pods are not both on the gateway's node and on another: %v", ends)
		}
	}
	return nil
}

// seen is how this cluster knows a pod of its peer.
func (s *side) seen(addr netip.Addr) (netip.Addr, error) {
	for _, m := range s.peering.Spec.Remote.Pods {
		if mapped, ok := (ipam.Mapping{Real: m.Real.Prefix, Mapped: m.Mapped.Prefix}).Translate(addr); ok {
			return mapped, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("cluster %s knows no address of %s", s.Name, addr)
}

// program is the path of something that make image built.
func program(name string) string { return filepath.Join(*binDir, name) }
