package scale

import (
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/lab"
)

var (
	binDir  = flag.String("bin", filepath.Join("..", "..", "bin"), "directory of what make image built")
	labName = flag.String("lab", "scale", "name of the lab")
	// With 20, 5,000 nodes have 100,000, which is too much for a control plane on two cores: see docs/limits.md.
	podsOfNode = flag.Int("pods", 4, "pods of each node, at most 32, which gateways know one by one")
	window     = flag.Duration("window", time.Minute, "how long the API server is looked at: by default twice as long as agents wait before they renew their Leases")
	sizes      = flag.String("sizes", "100x1,100x3,1000x1,5000x1", "nodes of the large cluster, which only grows, and its peerings")
)

const (
	// commandTimeout is for a machine on which the API server, etcd, kwok and all that is played share two cores.
	commandTimeout = "20m"
	applyTimeout   = 20 * time.Minute
)

type size struct{ nodes, peerings int }

func (s size) String() string { return fmt.Sprintf("nodes=%d/peerings=%d", s.nodes, s.peerings) }

func parseSizes(text string) (out []size, err error) {
	for part := range strings.SplitSeq(text, ",") {
		var s size
		if n, err := fmt.Sscanf(part, "%dx%d", &s.nodes, &s.peerings); n != 2 || err != nil || s.nodes < 1 || s.peerings < 1 {
			return nil, fmt.Errorf("-sizes: %q: want NODESxPEERINGS, such as 100x1", part)
		}
		if len(out) > 0 && s.nodes < out[len(out)-1].nodes {
			return nil, fmt.Errorf("-sizes: %q: the cluster cannot shrink", part)
		}
		out = append(out, s)
	}
	return out, nil
}

// BenchmarkScaleCluster measures commands, a real gateway and a real node agent in a real cluster with more and more nodes.
func BenchmarkScaleCluster(b *testing.B) {
	kit.FatalIf(b, os.Geteuid() != 0, "it starts clusters: run it as root (sudo)")
	all, err := parseSizes(*sizes)
	if err != nil || *podsOfNode > podsPerNode {
		b.Fatalf("%d pods of a node: %v", *podsOfNode, err)
	}
	peers := 0
	for _, s := range all {
		peers = max(peers, s.peerings)
	}
	f := newFixture(b, peers)
	g := kit.Growth{Floor: map[string]float64{
		"s-peer": 2, "s-status": 1, "s-unpeer": 2, "MiB-peer": 8, "MiB-status": 8, "MiB-unpeer": 8, "requests/min": 60, "kB/min": 50,
		"MiB-gateway": 4, "%core-gateway": 1, "MiB-node": 2, "%core-node": 1, "ms-to-pod": 200, "ms-to-node": 200,
	}}
	for _, s := range all {
		if s.peerings == 1 {
			g.Steps = append(g.Steps, s.nodes)
		}
		b.Run(s.String(), func(b *testing.B) {
			if measured := f.measure(b, s); s.peerings == 1 {
				g.Measured = append(g.Measured, measured)
			}
		})
	}
	g.Check(b)
}

// measure peers the large cluster, looks at what that costs, and unpeers it.
func (f *fixture) measure(b *testing.B, s size) map[string]float64 {
	const MiB = 1 << 20
	f.grow(b, s.nodes)
	m := map[string]float64{}
	alone := f.perMinute(b, *window)

	p := newPlayer(f.api)
	p.start(b.Context(), f.crowd)
	b.Cleanup(func() {
		if err := p.end(); err != nil && b.Failed() {
			b.Log(err)
		}
	})
	start := time.Now()
	peer := f.peer(b, 0)
	m["s-peer"], m["MiB-peer"] = peer.took.Seconds(), float64(peer.peak)/MiB
	gateway, node := f.process(b, "gateway"), f.process(b, "node")
	r := openRoutes(b, gateway)
	kit.Within(b, applyTimeout, "the gateway knows all pods", func() string {
		if n := r.count(b); n < *podsOfNode*s.nodes {
			time.Sleep(time.Second) // it takes a while to list them
			return fmt.Sprint(n, " routes")
		}
		return ""
	})
	m["s-all-served"] = time.Since(start).Seconds()
	for i := 1; i < s.peerings; i++ {
		m["s-peer-more"] += f.peer(b, i).took.Seconds() / float64(s.peerings-1)
	}

	const times = 3
	for range times {
		e := f.command(b, append([]string{"status", big}, f.peers[:s.peerings]...)...)
		m["s-status"] += e.took.Seconds() / times
		m["MiB-status"] = max(m["MiB-status"], float64(e.peak)/MiB)
	}

	usedByGateway, usedByNode, since := kit.Must(kit.CPUTime(gateway))(b), kit.Must(kit.CPUTime(node))(b), time.Now()
	peered := f.perMinute(b, *window)
	passed := time.Since(since).Seconds()
	m["requests/min"], m["kB/min"] = peered.requests-alone.requests, (peered.bytes-alone.bytes)/1000
	m["requests/min-without"], m["kB/min-without"] = alone.requests, alone.bytes/1000
	m["%core-gateway"] = 100 * (kit.Must(kit.CPUTime(gateway))(b) - usedByGateway).Seconds() / passed
	m["%core-node"] = 100 * (kit.Must(kit.CPUTime(node))(b) - usedByNode).Seconds() / passed

	r.follow(b)
	for i := range times {
		m["ms-to-pod"] += f.newPodServed(b, r, i).Seconds() * 1000 / times
		m["ms-to-node"] += f.newNodeServed(b, p, r).Seconds() * 1000 / times
	}
	m["MiB-gateway"], m["MiB-node"] = float64(kit.Must(kit.PeakMemory(gateway))(b))/MiB, float64(kit.Must(kit.PeakMemory(node))(b))/MiB

	for i := s.peerings - 1; i > 0; i-- {
		m["s-unpeer-more"] += f.command(b, "unpeer", big, f.peers[i], "--timeout", commandTimeout).took.Seconds() / float64(s.peerings-1)
	}
	unpeer := f.command(b, "unpeer", big, f.peers[0], "--timeout", commandTimeout)
	m["s-unpeer"], m["MiB-unpeer"] = unpeer.took.Seconds(), float64(unpeer.peak)/MiB
	for unit, value := range m {
		b.ReportMetric(value, unit)
	}
	return m
}

// peer peers the large cluster with one of the others, which is called: of the large one's nodes most cannot be.
func (f *fixture) peer(b *testing.B, i int) ended {
	b.Helper()
	return f.command(b, "peer", big, f.peers[i], "--planes", "1", "--server", f.peers[i], "--timeout", commandTimeout)
}

// newPodServed is how long the gateway has no route to a pod on a real node, from when the API server says that it has an address.
func (f *fixture) newPodServed(b *testing.B, r *routes, i int) time.Duration {
	b.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("served-%d", i)},
		Spec: corev1.PodSpec{
			NodeName: big + "-w1", TerminationGracePeriodSeconds: new(int64(0)),
			Containers: []corev1.Container{{Name: "pause", Image: lab.TesterImage, Args: []string{"pause"}, ImagePullPolicy: corev1.PullIfNotPresent}},
		},
	}
	w := kit.Must(f.api.Watch(b.Context(), &corev1.PodList{}, client.InNamespace(pod.Namespace), client.MatchingFields{"metadata.name": pod.Name}))(b)
	defer w.Stop()
	kit.NoError(b, f.api.Create(b.Context(), pod))
	defer func() {
		kit.CheckNoError(b, f.api.Delete(b.Context(), pod))
	}()
	deadline := time.After(time.Minute)
	for {
		select {
		case event := <-w.ResultChan():
			got, ok := event.Object.(*corev1.Pod)
			kit.FatalIf(b, !ok, "watch pod %s: %+v", pod.Name, event)
			if addr, err := netip.ParseAddr(got.Status.PodIP); err == nil {
				start := time.Now()
				return max(r.await(b, netip.PrefixFrom(addr, 32)).Sub(start), 0)
			}
		case <-deadline:
			b.Fatalf("pod %s has no address", pod.Name)
		}
	}
}

// newNodeServed is how long the gateway has no route to a pod of a new node, from when its agent sends its first report.
func (f *fixture) newNodeServed(b *testing.B, p *player, r *routes) time.Duration {
	b.Helper()
	index := len(f.crowd)
	added := kit.Must(create(b.Context(), f.api, index, index+1))(b)
	f.crowd = append(f.crowd, added...)
	a := p.add(b.Context(), index, added[0])
	at := r.await(b, netip.PrefixFrom(podIPs(index)[0].Addr, 32))
	return at.Sub(*a.reported.Load())
}

func toPrefix(n *net.IPNet) netip.Prefix {
	addr, _ := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), bits)
}
