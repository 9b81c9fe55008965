package scale

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/vishvananda/netlink"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/lab"
	"github.com/liqonet/liqonet/test/netns/enter"
	"github.com/liqonet/liqonet/test/workload"
)

const (
	// upTimeout includes building the lab's programs for the first time, and kwok.
	upTimeout   = 25 * time.Minute
	downTimeout = time.Minute
	// patience is how long kwok may take until it is told of a pod again.
	patience = 5 * time.Second
	// nodeLease is how long Leases of nodes are valid, as testdata/kwok.yaml has it. Kubelets renew theirs every 10 s, which would
	// leave two cores no time for anything else.
	nodeLease = 8 * time.Hour
	// big is the cluster with the crowd. Its real nodes have the gateways.
	big = "big"
)

// fixture is a large cluster and its peers.
type fixture struct {
	lab   *lab.Lab
	peers []string
	api   client.WithWatch
	raw   *kubernetes.Clientset
	// crowd are the nodes that are objects only.
	crowd []*corev1.Node
}

func peerName(i int) string { return fmt.Sprintf("small-%d", i+1) }

// newFixture starts the lab and kwok.
func newFixture(b *testing.B, peers int) *fixture {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), upTimeout)
	defer cancel()
	l := kit.Must(lab.New(lab.Options{Name: *labName, Images: []string{program("liqonet-agent.tar")}, Log: os.Stderr}))(b)
	f := &fixture{lab: l}
	kwok := kit.Must(l.BuildCrowd(ctx))(b)
	down := func() {
		ctx, cancel := context.WithTimeout(context.Background(), downTimeout)
		defer cancel()
		kit.CheckNoError(b, l.Down(ctx))
	}
	down() // what an earlier run may have left, killed by SIGKILL
	specs := []lab.ClusterSpec{{Name: big, PodCIDR: podRange, NoNodeCIDRs: true, NodeGrace: nodeLease}}
	for i := range peers {
		f.peers = append(f.peers, peerName(i))
		specs = append(specs, lab.ClusterSpec{Name: peerName(i), Workers: 1})
	}
	b.Cleanup(down)
	kit.NoError(b, l.Up(ctx, specs...))
	kit.NoError(b, f.connect())
	kit.NoError(b, f.tellPodRange(ctx))
	f.startKwok(b, kwok)
	return f
}

// connect makes clients of the large cluster.
func (f *fixture) connect() error {
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: f.lab.Kubeconfig()}, &clientcmd.ConfigOverrides{CurrentContext: big}).ClientConfig()
	if err != nil {
		return err
	}
	cfg.QPS, cfg.WarningHandler = -1, rest.NoWarnings{}
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), coordinationv1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return err
	}
	if f.raw, err = kubernetes.NewForConfig(cfg); err != nil {
		return err
	}
	// Its kinds are read when one is needed that is not known.
	f.api, err = client.NewWithWatch(cfg, client.Options{Scheme: scheme})
	return err
}

// tellPodRange says from where the real nodes' pods have their addresses, as kube-router does: no Node has a range.
func (f *fixture) tellPodRange(ctx context.Context) error {
	var list corev1.NodeList
	if err := f.api.List(ctx, &list); err != nil {
		return err
	}
	for i := range list.Items {
		n := &list.Items[i]
		before := client.MergeFrom(n.DeepCopy())
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		n.Annotations["kube-router.io/pod-cidr"] = podRange.String()
		if err := f.api.Patch(ctx, n, before); err != nil {
			return err
		}
	}
	return nil
}

// startKwok runs it until the benchmark ends, or this process.
func (f *fixture) startKwok(b *testing.B, kwok string) {
	b.Helper()
	all := kit.Must(clientcmd.LoadFromFile(f.lab.Kubeconfig()))(b)
	all.CurrentContext = big
	dir := b.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	kit.NoError(b, clientcmd.WriteToFile(*all, kubeconfig))
	log := kit.Must(os.Create(filepath.Join(dir, "log")))(b)
	cmd := exec.Command("sh", "-c", `"$0" "$@" </dev/null & read -r _; kill $!`, kwok,
		"--kubeconfig", kubeconfig, "--config", filepath.Join("testdata", "kwok.yaml"), "-v", "WARN")
	cmd.Stdout, cmd.Stderr = log, log
	alive, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	kit.NoError(b, err)
	b.Cleanup(func() {
		_ = alive.Close()
		_ = cmd.Wait()
		if said, _ := os.ReadFile(log.Name()); b.Failed() {
			b.Logf("kwok's last words:\n%s", said[max(0, len(said)-5000):])
		}
		_ = log.Close()
	})
}

// grow makes the crowd as large as that, and waits until all pods run. It may be a little larger already: new nodes stay.
func (f *fixture) grow(b *testing.B, size int) {
	b.Helper()
	ctx, start := b.Context(), time.Now()
	added := kit.Must(create(ctx, f.api, len(f.crowd), max(size, len(f.crowd))))(b)
	f.crowd = append(f.crowd, added...)
	created := time.Since(start)
	kit.Within(b, 10*time.Minute, "all pods run", func() string {
		var pods corev1.PodList
		if err := f.api.List(ctx, &pods, client.InNamespace("default"), client.MatchingFields{"status.phase": "Pending"}, client.Limit(200)); err != nil {
			return err.Error()
		}
		for i := range pods.Items {
			if pod := &pods.Items[i]; time.Since(pod.CreationTimestamp.Time) > patience {
				if err := nudge(ctx, f.api, pod); err != nil {
					return err.Error()
				}
			}
		}
		if len(pods.Items) > 0 {
			time.Sleep(patience) // the API server has to look at all pods
			return fmt.Sprintf("%s does not", pods.Items[0].Name)
		}
		return ""
	})
	b.Logf("%d nodes made in %.0f s, their pods run after %.0f s", len(added), created.Seconds(), time.Since(start).Seconds())
}

// usage is what the API server of the large cluster has been asked about the kinds of objects that agents read and write.
type usage struct{ requests, bytes float64 }

var agentsKinds = []string{"peerings", "nodenetworks", "clusternetworks", "leases", "configmaps"}

func (f *fixture) usage(ctx context.Context) (u usage, err error) {
	raw, err := f.raw.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return u, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(raw))
	if err != nil {
		return u, err
	}
	for name, to := range map[string]*float64{"apiserver_request_total": &u.requests, "apiserver_response_sizes": &u.bytes, "apiserver_watch_events_sizes": &u.bytes} {
		family := families[name]
		if family == nil {
			return u, fmt.Errorf("the API server has no metric %s", name)
		}
		for _, m := range family.Metric {
			for _, label := range m.Label {
				if label.GetName() == "resource" && slices.Contains(agentsKinds, label.GetValue()) {
					*to += m.GetCounter().GetValue() + m.GetHistogram().GetSampleSum()
				}
			}
		}
	}
	return u, nil
}

// perMinute is what the API server is asked in a minute, while that is waited for.
func (f *fixture) perMinute(b *testing.B, d time.Duration) usage {
	b.Helper()
	before, err := f.usage(b.Context())
	start := time.Now()
	time.Sleep(d)
	now, errNow := f.usage(b.Context())
	kit.NoError(b, errors.Join(err, errNow))
	minutes := time.Since(start).Minutes()
	return usage{(now.requests - before.requests) / minutes, (now.bytes - before.bytes) / minutes}
}

func program(name string) string { return filepath.Join(*binDir, name) }

// ended is what a command has taken.
type ended struct {
	took time.Duration
	peak int64 // bytes
}

// command runs the CLI to its end.
func (f *fixture) command(b *testing.B, args ...string) (e ended) {
	b.Helper()
	cmd := exec.CommandContext(b.Context(), program("kubectl-liqonet"), args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "KUBECONFIG=" + f.lab.Kubeconfig()}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	start := time.Now()
	kit.NoError(b, cmd.Start())
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	// What rusage has is of this program too, whose memory the command has until it is executed.
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		select {
		case err := <-done:
			e.took = time.Since(start)
			what := "kubectl liqonet " + strings.Join(args, " ")
			if err != nil {
				b.Fatalf("%s: %v after %.1f s\n%s%s", what, err, e.took.Seconds(), out.String(), errs.String())
			}
			b.Logf("%s: %.1f s, %d MiB\n%s", what, e.took.Seconds(), e.peak>>20, errs.String())
			return e
		case <-tick.C:
			if peak, err := kit.PeakMemory(cmd.Process.Pid); err == nil {
				e.peak = peak
			}
		}
	}
}

// process is the number of the one process of the agents' program on a real node of the large cluster, by its first argument.
func (f *fixture) process(b *testing.B, kind string) int {
	b.Helper()
	proc := kit.Must(workload.FindProcess(*labName, big+"-w", func(program, argument string, _ []string) bool {
		return program == "liqonet-agent" && argument == kind
	}))(b)
	return kit.Must(strconv.Atoi(filepath.Base(proc)))(b)
}

// routes tells when a kernel gets routes, by a process in its network namespace.
type routes struct {
	ns     *os.File
	events chan route
}

type route struct {
	to netip.Prefix
	at time.Time
}

func openRoutes(b *testing.B, pid int) *routes {
	b.Helper()
	ns := kit.Must(os.Open(fmt.Sprintf("/proc/%d/ns/net", pid)))(b)
	b.Cleanup(func() { ns.Close() })
	return &routes{ns: ns}
}

// count is how many there are to single addresses.
func (r *routes) count(b *testing.B) (n int) {
	b.Helper()
	kit.NoError(b, enter.Do(r.ns, func() error {
		list, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{}, netlink.RT_FILTER_TABLE)
		for _, r := range list {
			if r.Dst != nil && podRange.Contains(toPrefix(r.Dst).Addr()) {
				n++
			}
		}
		return err
	}))
	return n
}

// await returns when a route came, or ends the benchmark.
func (r *routes) await(b *testing.B, to netip.Prefix) time.Time {
	b.Helper()
	for deadline := time.After(time.Minute); ; {
		select {
		case got, ok := <-r.events:
			kit.FatalIf(b, !ok, "the kernel does not tell of routes any more")
			if got.to == to {
				return got.at
			}
		case <-deadline:
			b.Fatalf("no route to %s within a minute", to)
		}
	}
}

// follow has the kernel tell of routes until the benchmark ends.
func (r *routes) follow(b *testing.B) {
	b.Helper()
	updates, done := make(chan netlink.RouteUpdate, 1<<10), make(chan struct{})
	b.Cleanup(func() { close(done) })
	kit.NoError(b, enter.Do(r.ns, func() error { return netlink.RouteSubscribe(updates, done) }))
	r.events = make(chan route, 1<<16)
	go func() {
		defer close(r.events)
		for u := range updates {
			if u.Dst != nil {
				r.events <- route{toPrefix(u.Dst), time.Now()}
			}
		}
	}()
}
