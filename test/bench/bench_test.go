package bench

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/lab"
	"github.com/liqonet/liqonet/test/load"
	"github.com/liqonet/liqonet/test/netns"
	"github.com/liqonet/liqonet/test/workload"
)

var (
	binDir   = flag.String("bin", filepath.Join("..", "..", "bin"), "directory of what make image built")
	labName  = flag.String("lab", "bench", "name of the lab")
	keep     = flag.Bool("keep", false, "use the lab if it is up, and leave it up and peered")
	rounds   = flag.Int("rounds", 9, "how often each path is measured")
	duration = flag.Duration("duration", 400*time.Millisecond, "how long each measurement takes")
)

const (
	// upTimeout includes building the lab's programs for the first time.
	upTimeout   = 20 * time.Minute
	downTimeout = time.Minute
	// timeout is for all that comes between.
	timeout = 8 * time.Minute
)

func TestMain(m *testing.M) {
	dataplane.ChildMain() // the tunnels by hand are processes of this program
	flag.Parse()
	os.Exit(m.Run())
}

// side is a cluster with what is measured of it.
type side struct {
	workload.Cluster
	cluster *lab.Cluster
	// gatewayNode is where the gateway runs, podNode the other one, pod the test
	// pod on that.
	gatewayNode, podNode *lab.Node
	pod                  workload.Pod
	ns                   *netns.NS
	// peering is the cluster's own view.
	peering v1alpha1.Peering
}

// BenchmarkDataPath measures pod to pod through the product, next to a path by
// hand with the same hops and the tunnel alone, in turn, over links between
// nodes as they are and without segmentation offload.
func BenchmarkDataPath(b *testing.B) {
	l, err := lab.New(lab.Options{Name: *labName, Images: []string{program("liqonet-agent.tar")}, Log: os.Stderr})
	if err != nil {
		b.Fatal(err)
	}
	up(b, l)
	for b.Loop() {
		run(b, l)
	}
}

func up(b *testing.B, l *lab.Lab) {
	b.Helper()
	if *keep {
		if s, err := l.Status(); err == nil && s.Healthy() {
			return
		}
	}
	down := func() {
		ctx, cancel := context.WithTimeout(context.Background(), downTimeout)
		defer cancel()
		if err := l.Down(ctx); err != nil {
			b.Fatal(err)
		}
	}
	down() // what an earlier run may have left
	if !*keep {
		b.Cleanup(down)
	}
	ctx, cancel := context.WithTimeout(b.Context(), upTimeout)
	defer cancel()
	if err := l.Up(ctx, lab.ClusterSpec{Name: "a"}, lab.ClusterSpec{Name: "b"}); err != nil {
		b.Fatal(err)
	}
}

func run(b *testing.B, l *lab.Lab) {
	ctx, cancel := context.WithTimeout(b.Context(), timeout)
	defer cancel()
	sides := peer(b, ctx, l)
	mtu := int(sides[0].peering.PlaneStatus(0).MTU)
	hands := byHand(b, ctx, mtu, sides)
	mapped, err := sides[0].seen(sides[1].pod.IP)
	if err != nil {
		b.Fatal(err)
	}
	paths := []path{
		{name: product, Path: load.Path{From: sides[0].ns.Run, To: sides[1].ns.Run, Listen: sides[1].pod.IP, Address: mapped}},
		{name: handmade, Path: handPath(hands)},
		{name: bare, Path: barePath(hands)},
		{name: plain, Path: barePath(hands), plain: true},
	}
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\nMEDIANS OF %d ROUNDS\tPRODUCT\tBY HAND\tRATIO\tGOAL\tTUNNEL\tRATIO\tGOAL\tTUNNEL, SINGLE PACKETS\n", *rounds)
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
			for _, m := range measures {
				if links.narrow && !m.headline {
					continue
				}
				// What is compared comes right after each other, and no path
				// always comes first.
				turn := slices.Clone(paths)
				if round%2 == 1 {
					slices.Reverse(turn)
				}
				for _, p := range turn {
					if p.plain && !m.headline {
						continue
					}
					value, err := p.measure(b, ctx, hands, m)
					if err != nil {
						b.Fatalf("%s, %s: %v", m.name, p.name, err)
					}
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
	if err := t.Flush(); err != nil {
		b.Error(err)
	}
	gateways := loaded{name: "gateways", path: paths[0].Path}
	for _, s := range sides {
		proc, err := gatewayProcess(s.gatewayNode)
		if err != nil {
			b.Fatal(err)
		}
		pid, err := strconv.Atoi(filepath.Base(proc))
		if err != nil {
			b.Fatal(err)
		}
		gateways.processes = append(gateways.processes, pid)
	}
	printMemory(b, ctx, []loaded{gateways})
}

// Names of paths.
const (
	product  = "product"
	handmade = "by hand"
	bare     = "tunnel"
	plain    = "tunnel, single packets"
)

type path struct {
	load.Path
	name string
	// plain switches aggregation off.
	plain bool
}

// measure is one line of the table.
type measure struct {
	name, unit, metric string
	// headline lines have a goal.
	headline bool
	of       func(context.Context, load.Path) (float64, error)
}

var measures = []measure{
	{"TCP, 1 stream", "Gbit/s", "tcp1", true, throughput(1)},
	{"TCP, 4 streams", "Gbit/s", "tcp4", true, throughput(4)},
	{"TCP, 16 streams", "Gbit/s", "tcp16", true, throughput(16)},
	{"requests, 1 client", "1/s", "requests1", false, requests(1, load.Answers.Rate)},
	{"requests, 16 clients", "1/s", "requests16", false, requests(16, load.Answers.Rate)},
	{"99 % answered within, 1 client", "ms", "p99", false, requests(1, func(a load.Answers) float64 { return a.P99.Seconds() * 1000 })},
}

func throughput(streams int) func(context.Context, load.Path) (float64, error) {
	return func(ctx context.Context, p load.Path) (float64, error) {
		bits, err := load.Throughput(ctx, p, streams, *duration)
		return bits / 1e9, err
	}
}

func requests(clients int, value func(load.Answers) float64) func(context.Context, load.Path) (float64, error) {
	return func(ctx context.Context, p load.Path) (float64, error) {
		answers, err := load.Requests(ctx, p, clients, *duration)
		return value(answers), err
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

func (p path) measure(b *testing.B, ctx context.Context, hands [2]*hand, m measure) (float64, error) {
	b.Helper()
	if p.plain {
		for _, h := range hands {
			h.aggregate(b, false)
			defer h.aggregate(b, true)
		}
	}
	return m.of(ctx, p.Path)
}

// Goals of the ratios of throughput.
const (
	goalHand = 0.98
	goalBare = 0.95
)

func (r results) print(b *testing.B, t *tabwriter.Writer, links, prefix string) {
	fmt.Fprintf(t, "%s\t\t\t\t\t\t\t\t\n", links)
	for _, m := range measures {
		values := r[m.metric]
		if len(values) == 0 {
			continue
		}
		digits := "%.2f"
		if m.unit == "1/s" {
			digits = "%.0f"
		}
		value := func(path string) string {
			if len(values[path]) == 0 {
				return "-"
			}
			return fmt.Sprintf(digits, median(values[path]))
		}
		compare := func(path string, goal float64) (string, string) {
			ratio := median(ratios(values[product], values[path]))
			b.ReportMetric(ratio, fmt.Sprintf("%s-%s-to-%s", prefix, m.metric, strings.NewReplacer(" ", "-", ",", "").Replace(path)))
			said := "-"
			if m.headline {
				said = fmt.Sprintf("%.2f, missed", goal)
				if ratio >= goal {
					said = fmt.Sprintf("%.2f, met", goal)
				}
			}
			return fmt.Sprintf("%.2f", ratio), said
		}
		handRatio, handSaid := compare(handmade, goalHand)
		bareRatio, bareSaid := compare(bare, goalBare)
		fmt.Fprintf(t, "  %s, %s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", m.name, m.unit, value(product),
			value(handmade), handRatio, handSaid, value(bare), bareRatio, bareSaid, value(plain))
	}
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
		nodes, err := s.cluster.Nodes()
		if err != nil {
			b.Fatal(err)
		}
		for _, n := range nodes {
			dataplane.SetSegmentation(b, node(b, n), on)
		}
	}
}

// narrow makes the way from the sending side's gateway to the other one as narrow as
// a link between sites is, so that the cores of this machine have time to spare.
func narrow(b *testing.B, from *side) {
	b.Helper()
	onNode(b, from.gatewayNode, "tc", strings.Fields("qdisc add dev eth0 root tbf rate 200mbit burst 128k latency 20ms")...)
}

func widen(b *testing.B, from *side) {
	b.Helper()
	onNode(b, from.gatewayNode, "tc", strings.Fields("qdisc del dev eth0 root")...)
}

// peer peers the clusters and finds out where everything runs.
func peer(b *testing.B, ctx context.Context, l *lab.Lab) (sides [2]*side) {
	b.Helper()
	kubectl, err := l.Kubectl()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, program("kubectl-liqonet"), "peer", "a", "b", "--planes", "1")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+l.Kubeconfig())
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("peer: %v: %s", err, out)
	}
	for i, name := range []string{"a", "b"} {
		s := &side{Cluster: workload.Cluster{Name: name, Kubeconfig: l.Kubeconfig(), Kubectl: kubectl}}
		sides[i] = s
		if s.cluster, err = l.Cluster(name); err != nil {
			b.Fatal(err)
		}
		if err := s.find(b, ctx); err != nil {
			b.Fatalf("cluster %s: %v", name, err)
		}
	}
	return sides
}

func (s *side) find(b *testing.B, ctx context.Context) error {
	b.Helper()
	if err := s.Deploy(ctx); err != nil {
		return err
	}
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
	if s.gatewayNode, err = s.cluster.Node(s.peering.PlaneStatus(0).NodeName); err != nil {
		return err
	}
	pods, err := s.Pods(ctx)
	if err != nil {
		return err
	}
	for _, p := range pods {
		if p.Node == s.gatewayNode.Name {
			continue
		}
		s.pod = p
		if s.podNode, err = s.cluster.Node(p.Node); err != nil {
			return err
		}
		file, err := p.NetworkNamespace(*labName)
		if err != nil {
			return err
		}
		s.ns = netns.Open(b, p.String(), file)
		return nil
	}
	return fmt.Errorf("no test pod runs beside the gateway on %s", s.gatewayNode.Name)
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
func program(name string) string {
	abs, err := filepath.Abs(filepath.Join(*binDir, name))
	if err != nil {
		return filepath.Join(*binDir, name)
	}
	return abs
}
