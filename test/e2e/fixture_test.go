package e2e

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/samber/lo"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/liqonet/liqonet/test/lab"
	"github.com/liqonet/liqonet/test/workload"
)

const (
	// testTimeout bounds a test; its longest takes a fifth of that.
	testTimeout = 4 * time.Minute
	// restoreTimeout is the time that kube-proxy and the API server may take for
	// removing what is theirs and follows from what was ours: a Service's rules,
	// a CRD's APIService.
	restoreTimeout = 20 * time.Second
)

// fx is the lab, as the tests of a lane see it.
var fx *fixture

type fixture struct {
	lab *lab.Lab
	// alpha and so on may be used by others at the same time, if they are not in
	// clusters.
	alpha, beta, gamma, delta *cluster
	// clusters are those of the lane.
	clusters []*cluster
	// nodes are those of the lane's clusters that run pods.
	nodes []*lab.Node
	// before are the nodes' kernels before anything was peered.
	before workload.Snapshots
	// broken says why no further test can say anything.
	broken string
	// clean says that all clusters were found as before, and no command was run since.
	clean *atomic.Bool
}

type cluster struct {
	*workload.Cluster
	spec lab.ClusterSpec
	// pods are the test pods, one on every node; nodes are the nodes that run
	// pods, in the same order.
	pods  []pod
	nodes []node

	dynamic   dynamic.Interface
	discovery discovery.DiscoveryInterface
	// service is the address of the test pods' Service, server that of the API
	// server's, which is the first of its range.
	service netip.Addr
	server  netip.AddrPort
}

type pod struct {
	workload.Pod
	*vantage
}

type node struct {
	*lab.Node
	*vantage
}

func newFixture(ctx context.Context, l *lab.Lab, own lane) (*fixture, error) {
	f := &fixture{lab: l, clean: &atomic.Bool{}}
	clusters, err := l.Clusters()
	if err != nil {
		return nil, err
	}
	var all []*cluster
	group, gctx := errgroup.WithContext(ctx)
	for _, lc := range clusters {
		c, err := newCluster(l, lc)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
		if slices.Contains(own.clusters(), c.Name) {
			f.clusters = append(f.clusters, c)
		}
		group.Go(func() (err error) {
			// The pods of a node that the lane before has removed may still be listed.
			_ = wait.PollUntilContextTimeout(gctx, 200*time.Millisecond, podTimeout, true, func(ctx context.Context) (bool, error) {
				c.nodes, c.pods = nil, nil
				err = c.connect(ctx, lc)
				return err == nil, nil
			})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	byName := lo.KeyBy(all, func(c *cluster) string { return c.Name })
	f.alpha, f.beta, f.gamma, f.delta = byName["alpha"], byName["beta"], byName["gamma"], byName["delta"]
	if slices.Contains([]*cluster{f.alpha, f.beta, f.gamma, f.delta}, nil) {
		return nil, fmt.Errorf("lab %s has clusters %v", l.Name(), namesOf(all))
	}
	f.nodes = lo.FlatMap(f.clusters, func(c *cluster, _ int) []*lab.Node { return labNodes(c) })
	if ours, others := f.objectsLeft(ctx); ours+others != "" {
		return nil, fmt.Errorf("the lab is not new:\n%s%s", ours, others)
	}
	f.before, err = workload.SettledSnapshots(ctx, f.nodes)
	return f, err
}

// deployAll prepares all clusters of the lab, which the processes of all lanes use.
func deployAll(ctx context.Context, l *lab.Lab) error {
	clusters, err := l.Clusters()
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, lc := range clusters {
		group.Go(func() error {
			c, err := newCluster(l, lc)
			if err != nil {
				return err
			}
			return c.deploy(ctx)
		})
	}
	return group.Wait()
}

func newCluster(l *lab.Lab, lc *lab.Cluster) (*cluster, error) {
	kubectl, err := l.Kubectl()
	return &cluster{
		Cluster: &workload.Cluster{Name: lc.Spec.Name, Kubeconfig: l.Kubeconfig(), Kubectl: kubectl},
		spec:    lc.Spec,
		server:  netip.AddrPortFrom(lc.Spec.ServiceCIDR.Addr().Next(), 443),
	}, err
}

// deploy runs the test pods of a cluster.
func (c *cluster) deploy(ctx context.Context) error {
	if err := c.Deploy(ctx); err != nil {
		return err
	}
	if !c.spec.NoNodeCIDRs {
		return nil
	}
	// From where the range is known that no Node has, as of kube-router.
	_, err := c.Run(ctx, "", "annotate", "nodes", "--all", "--overwrite", "kube-router.io/pod-cidr="+c.spec.PodCIDR.String())
	return err
}

// connect finds the test pods of a cluster.
func (c *cluster) connect(ctx context.Context, lc *lab.Cluster) error {
	pods, err := c.Pods(ctx)
	if err != nil {
		return err
	}
	vantages, err := podVantages(pods)
	if err != nil {
		return fmt.Errorf("cluster %s: %w", c.Name, err)
	}
	for _, p := range pods {
		n, err := lc.Node(p.Node)
		if err != nil {
			return err
		}
		v, err := nodeVantage(n)
		if err != nil {
			return err
		}
		c.nodes = append(c.nodes, node{n, v})
		c.pods = append(c.pods, pod{p, vantages[p.Name]})
	}
	service, err := c.Run(ctx, "", "get", "service", "tester", "-o", "jsonpath={.spec.clusterIP}")
	if err != nil {
		return err
	}
	if c.service, err = netip.ParseAddr(service); err != nil {
		return err
	}
	cfg, err := c.restConfig()
	if err != nil {
		return err
	}
	if c.dynamic, err = dynamic.NewForConfig(cfg); err != nil {
		return err
	}
	c.discovery, err = discovery.NewDiscoveryClientForConfig(cfg)
	return err
}

func (c *cluster) restConfig() (*rest.Config, error) {
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: c.Kubeconfig}, &clientcmd.ConfigOverrides{CurrentContext: c.Name}).ClientConfig()
	if err != nil {
		return nil, err
	}
	cfg.QPS, cfg.Burst = -1, -1
	cfg.WarningHandler = rest.NoWarnings{} // all kinds are listed, old ones, too
	return cfg, nil
}

// reconnect finds the test pods of a cluster, some of whose nodes have been rebooted, when they answer.
func (c *cluster) reconnect(t *testing.T, ctx context.Context) {
	t.Helper()
	want := len(c.pods)
	eventually(t, ctx, podTimeout, "the test pods of "+c.Name+" run", func() string {
		lc, err := fx.lab.Cluster(c.Name)
		if err != nil {
			return err.Error()
		}
		c.nodes, c.pods = nil, nil
		if err := c.connect(ctx, lc); err != nil {
			return err.Error()
		}
		if len(c.pods) != want {
			return fmt.Sprintf("%d test pods, want %d", len(c.pods), want)
		}
		for _, p := range c.pods {
			if _, err := p.call("udp", p.IP, shortTimeout); err != nil {
				return err.Error()
			}
		}
		return ""
	})
}

// process is a program on a machine of the lab. dir is what proc(5) has of it.
type process struct {
	pid          int
	dir, machine string
	args         []string
}

// processes are all of the lab. One that ends while they are listed is none that is looked for.
func processes() (out []process, err error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		cmdline, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		cgroup, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		_, inLab, _ := strings.Cut(string(cgroup), "/liqonet-lab."+*labName+"/")
		machine, _, found := strings.Cut(inLab, "/")
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil && found {
			out = append(out, process{pid, dir, machine, strings.Split(string(cmdline), "\x00")})
		}
	}
	return out, err
}

// processOf is a program on a machine of the lab.
func processOf(t *testing.T, machine, program string) int {
	t.Helper()
	for _, p := range must(processes())(t) {
		if p.machine == machine && filepath.Base(p.args[0]) == program {
			return p.pid
		}
	}
	t.Fatalf("%s has no %s", machine, program)
	return 0
}

// begin starts a test that peers clusters. When the test ends, the clusters have
// to be as they were.
func begin(t testing.TB) context.Context {
	t.Helper()
	if fx.broken != "" {
		t.Fatal(fx.broken)
	}
	fx.clean.Store(false)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		if t.Failed() {
			t.Log(fx.diagnosis(ctx))
		}
		if !t.Failed() && fx.clean.Load() {
			return
		}
		left := fx.left(ctx, 0)
		if left == "" {
			return
		}
		if !t.Failed() {
			t.Errorf("the test left behind:\n%s", left)
		}
		// So that the next test fails by its own faults only.
		if err := fx.scrub(ctx); err != nil {
			fx.broken = fmt.Sprintf("the clusters could not be cleaned after %s: %v", t.Name(), err)
			t.Error(fx.broken)
		}
	})
	return ctx
}

// checkNothingLeft fails the test unless all clusters are as before any peering:
// no object of ours, and the kernels of all nodes equal.
func checkNothingLeft(t testing.TB, ctx context.Context) {
	t.Helper()
	ours, others := fx.objectsLeft(ctx)
	// What is ours has to be gone when the command returns.
	expect(t, ours == "", "objects of ours are left:\n%s", ours)
	left := ours + others
	if left != "" {
		left = fx.left(ctx, restoreTimeout)
	} else if diff := fx.kernelDiff(ctx, restoreTimeout); diff != "" {
		left = diff
	}
	expect(t, left == "", "not as before:\n%s", left)
	fx.clean.Store(left == "" && !t.Failed())
}

// unpeered unpeers two clusters, which leaves nothing.
func unpeered(t testing.TB, ctx context.Context, a, b *cluster) {
	t.Helper()
	mustLiqonet(t, ctx, "unpeer", a.Name, b.Name)
	checkNothingLeft(t, ctx)
}

// bothWays yields two clusters in either order.
func bothWays(a, b *cluster) iter.Seq2[*cluster, *cluster] {
	return func(yield func(from, to *cluster) bool) { _ = yield(a, b) && yield(b, a) }
}

// left waits until everything is as before, and says what is not.
func (f *fixture) left(ctx context.Context, timeout time.Duration) string {
	deadline := time.Now().Add(timeout)
	for {
		ours, others := f.objectsLeft(ctx)
		if ours+others == "" || time.Now().After(deadline) {
			return ours + others + f.kernelDiff(ctx, time.Until(deadline))
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// kernelDiff waits until the kernels are as before, and says what differs.
func (f *fixture) kernelDiff(ctx context.Context, timeout time.Duration) string {
	ctx, cancel := context.WithTimeout(ctx, max(timeout, time.Millisecond))
	defer cancel()
	diff, err := f.before.Restored(ctx, f.nodes)
	if err != nil {
		return diff + err.Error()
	}
	return diff
}

// scrub removes by force what the product has left, with nothing of the product
// but the agents' purge.
func (f *fixture) scrub(ctx context.Context) error {
	for _, c := range f.clusters {
		if ours, others := f.objectsLeft(ctx, c); ours+others == "" {
			continue
		}
		for _, args := range [][]string{
			{"delete", "namespace", "liqonet-system", "--ignore-not-found", "--timeout=30s"},
			{"patch", "clusternetworks.liqonet.io", "cluster", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`},
			{"delete", "crd", "-l", "app.kubernetes.io/managed-by=liqonet", "--timeout=20s"},
			{"delete", "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings", "-l", "app.kubernetes.io/managed-by=liqonet"},
			{"delete", "events", "-n", "default", "--field-selector=involvedObject.kind=Peering"},
			{"delete", "events", "-n", "default", "--field-selector=involvedObject.kind=Endpoints"},
			{"delete", "roles,rolebindings", "-n", "default", "-l", "app.kubernetes.io/managed-by=liqonet"},
			{"delete", "leases", "-n", "kube-system", "-l", "app.kubernetes.io/managed-by=liqonet"},
			{"delete", "services,endpointslices", "-A", "-l", "multicluster.kubernetes.io/service-name"},
			{"delete", "crd", "serviceexports.multicluster.x-k8s.io", "serviceimports.multicluster.x-k8s.io", "--ignore-not-found", "--timeout=20s"},
		} {
			_, _ = c.Run(ctx, "", args...) // what matters is looked at below
		}
	}
	for _, n := range f.nodes {
		if out, err := n.NetCommand(ctx, program("liqonet-agent"), "purge").CombinedOutput(); err != nil {
			return fmt.Errorf("purge node %s: %w: %s", n.Name, err, out)
		}
	}
	if left := f.left(ctx, restoreTimeout); left != "" {
		return fmt.Errorf("still there:\n%s", left)
	}
	return nil
}

// diagnosis is what helps to understand a failure.
func (f *fixture) diagnosis(ctx context.Context) string {
	var b strings.Builder
	history := []string{"status", "--history"}
	for _, c := range f.clusters {
		if ours, _ := f.objectsLeft(ctx, c); ours == "" {
			continue
		}
		history = append(history, c.Name)
		for _, args := range [][]string{
			{"get", "pods", "-n", "liqonet-system", "-o", "wide"},
			{"get", "events", "-n", "liqonet-system", "--field-selector=type!=Normal"},
			{"get", "clusternetworks,peerings,nodenetworks", "-o", "jsonpath={range .items[*]}{.kind} {.metadata.name} {.spec} {.status}{\"\\n\"}{end}"},
			{"logs", "-n", "liqonet-system", "-l", "app.kubernetes.io/name=liqonet", "--prefix", "--tail=10"},
		} {
			out, err := c.Run(ctx, "", args...)
			fmt.Fprintf(&b, "--- %s: kubectl %s\n%s", c.Name, strings.Join(args, " "), out)
			if err != nil {
				fmt.Fprintln(&b, err)
			}
		}
	}
	if len(history) > 2 {
		out, err := command(ctx, "", history...).Output()
		fmt.Fprintf(&b, "--- history\n%s", out)
		if err != nil {
			fmt.Fprintln(&b, err)
		}
	}
	return b.String()
}

// eventually waits until a condition gives no reason against it any more.
func eventually(t testing.TB, ctx context.Context, within time.Duration, what string, reason func() string) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		r := reason()
		if r == "" {
			return
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			t.Errorf("%s: not within %s: %s", what, within, r)
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// writeFile writes a file of the test's own.
func writeFile(t testing.TB, path, content string) string {
	t.Helper()
	try(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// background runs a program in a node's network until what is returned is called.
func background(t *testing.T, n *lab.Node, program string, args ...string) (stop func()) {
	t.Helper()
	var said bytes.Buffer
	cmd := n.NetCommand(context.Background(), program, args...)
	cmd.Env = append(os.Environ(), "NODE_NAME="+n.Name) // as pods of a DaemonSet have it
	cmd.Stdout, cmd.Stderr = &said, &said
	try(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	what := filepath.Base(program) + " of " + n.Name
	return func() {
		select {
		case err := <-ended:
			t.Errorf("%s ended by itself: %v\n%s", what, err, said.String())
		default:
			_ = cmd.Process.Signal(syscall.SIGTERM) // it has not ended
			<-ended
		}
		if t.Failed() {
			t.Logf("%s:\n%s", what, said.String())
		}
	}
}
