package diagnose

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/samber/lo"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/doctor"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/probe"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// Before doctor starts pods, it says how many, where, and with which image. In a large cluster, they run on a sample of the nodes.
func TestPodsAreAnnounced(t *testing.T) {
	const kernel = `{"result":{"kernel":{"release":"7.0"}}}` + "\n"
	const starts = "a: starting %d temporary pods with image image-of-the-command to read the kernels, "
	for name, tt := range map[string]struct {
		nodes, pods int
		want        string
	}{
		"one node":       {1, 1, "one on each ready node"},
		"some nodes":     {3, 3, "one on each ready node"},
		"too many nodes": {105, 100, "on a sample of its 105 nodes"},
		"none is ready":  {0, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			objs := lo.Times(tt.nodes, func(i int) client.Object {
				n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%03d", i), Labels: map[string]string{corev1.LabelOSStable: "linux"}}}
				n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
				return n
			})
			c := podsOfJobs(t, kernel, running, append(objs, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "virtual"}})...)
			var said []string
			facts, err := ReadFacts(t.Context(), []*kube.Cluster{c}, func(s string) {
				said = append(said, s)
				nothingIsLeft(t, c) // nor started yet
			}, kube.Quiet{})
			kit.NoError(t, err)
			want := lo.Ternary(tt.want == "", "", fmt.Sprintf(starts, tt.pods)+tt.want)
			kit.Check(t, "it says", strings.Join(said, "\n"), want)
			m := facts.Clusters[0].Machines
			kit.ErrorIf(t, len(m.Kernels) != tt.pods || len(m.Unread) != tt.nodes-tt.pods,
				"%d kernels were read, and %d not: %v", len(m.Kernels), len(m.Unread), m.Unread)
			nothingIsLeft(t, c)
			for _, check := range doctor.Examine(facts).Checks {
				if says := fmt.Sprint(check.Findings); check.Name == "liqonet-kernel-01" && strings.Contains(says, "sample") != (tt.pods < tt.nodes) {
					t.Errorf("the report does not tell whether it is of a sample: %s", says)
				}
			}
		})
	}
}

// The announcement counts the nodes with a problem, and names clusters between which UDP is tested.
func TestAnnouncements(t *testing.T) {
	site := func(name string, probes int, choice doctor.Choice) *clusterReader {
		x := &clusterReader{Cluster: &kube.Cluster{Name: name, DefaultImage: "image"}, facts: &doctor.Cluster{}, choice: choice}
		x.probes = make([]*Probe, probes)
		return x
	}
	a, b := site("a", 2, doctor.Choice{Nodes: []string{"1", "2"}, Of: 9, Unwell: 5, LeftOut: 4}), site("b", 0, doctor.Choice{})
	test := func(unseen string) *udpTest {
		return &udpTest{UDPTest: doctor.UDPTest{From: "a", To: "b", SkipReason: unseen}, server: b, caller: a}
	}
	got := strings.Join(announcements([]*clusterReader{a, b}, []*udpTest{test("it cannot run"), test("")}), "\n")
	const want = "a: starting 2 temporary pods with image image to read the kernels, on a sample of its 9 nodes " +
		"(without 4 of the 5 nodes whose agent is silent or reports a problem)\n" +
		"a, b: starting a temporary pod in each with image image to test UDP between them"
	kit.ErrorIf(t, got != want, "got %s\nwant %s", got, want)
}

// Pods ping gateways by the addresses of their Pods, not by those that agents report.
func TestReportedAddressesAreNotPinged(t *testing.T) {
	ip := func(s string) v1alpha1.IP { return v1alpha1.IP{Addr: netip.MustParseAddr(s)} }
	p := v1alpha1.Peering{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	p.Spec.Planes = []v1alpha1.Plane{{Index: 1, RemoteAddress: ip("10.1.2.3")}}
	p.Status.Planes = []v1alpha1.PlaneStatus{{Index: 1, MTU: 1400, PodIP: ip("169.254.169.254")}}
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1alpha1.LabelPeering: "p", v1alpha1.LabelPlane: "1"}}}
	pod.Status.PodIPs = []corev1.PodIP{{IP: "10.244.0.9"}, {IP: "fd00::9"}}
	x := &clusterReader{Cluster: &kube.Cluster{}, facts: &doctor.Cluster{Peerings: []v1alpha1.Peering{p}, Own: doctor.Objects{Pods: []corev1.Pod{pod}}}}
	kit.Check(t, "losses", fmt.Sprint(x.kernelTask("n").Losses), "[{10.1.2.3 500 0}]")
	kit.Check(t, "pings", fmt.Sprint(x.kernelTask("n").Ping), "[{10.1.2.3 [100 1400] []} {10.244.0.9 [100] []}]")
}

// What a pod does is bounded, whatever the Peerings say.
func TestKernelTaskIsBounded(t *testing.T) {
	p := v1alpha1.Peering{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	p.Spec.Local.InternalCIDR = kit.CIDR("10.80.0.0/19")
	for i := range maxRanges + 100 {
		p.Spec.Remote.Pods = append(p.Spec.Remote.Pods, kit.Mapping("10.1.0.0/24", fmt.Sprintf("10.%d.%d.0/24", 2+i/250, i%250)))
	}
	for i := range int32(maxLosses + 2) {
		p.Spec.Planes = append(p.Spec.Planes, v1alpha1.Plane{Index: i, RemoteAddress: v1alpha1.IP{Addr: netip.MustParseAddr("10.1.2.3")}})
		p.Status.Planes = append(p.Status.Planes, v1alpha1.PlaneStatus{Index: i, MTU: 1400})
	}
	for nodes, pings := range map[int]int{0: 500, 1: 500, 16: 250, 100: 100} {
		x := &clusterReader{Cluster: &kube.Cluster{}, facts: &doctor.Cluster{Peerings: []v1alpha1.Peering{p}}, choice: doctor.Choice{Nodes: make([]string, nodes)}}
		task := x.kernelTask("n")
		kit.Check(t, "ranges, gateways, and pings to each", []int{len(task.Remote), len(task.Losses), task.Losses[0].Sent}, []int{1000, 8, pings})
	}
}

// A node whose kubelet is silent gets no pod, even if it is still reported as ready.
func TestSilentNodesGetNoPod(t *testing.T) {
	c := twoNodes(t, running, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: corev1.NamespaceNodeLease, Name: "n2", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet", Time: new(metav1.Now())}},
	}})
	for silence, want := range map[time.Duration]string{kernelTimeout - 2*time.Second: "n1 n2", kernelTimeout + 2*time.Second: "n1"} {
		c.Now = func() time.Time { return time.Now().Add(silence) }
		x := &clusterReader{Cluster: c, facts: &doctor.Cluster{}}
		kit.NoError(t, x.readNodes(t.Context()))
		kit.NoError(t, x.planKernels(t.Context()))
		kit.Check(t, "nodes with pods", strings.Join(x.choice.Nodes, " "), want)
		kit.ErrorIf(t, (x.facts.Machines.Unread["n2"] == "the node is not ready") != (want == "n1"), "not read: %v", x.facts.Machines.Unread)
	}
}

// A cluster that refuses to answer is not called unreachable.
func TestRefusingClusterIsNotUnreachable(t *testing.T) {
	for kind, refuses := range map[kube.Kind]bool{kube.Forbidden: true, kube.NotReady: false} {
		x := &clusterReader{facts: &doctor.Cluster{}}
		x.setUnreachable(&kube.Error{Kind: kind, Op: "read", Hint: "do it"})
		got := x.facts.API
		kit.ErrorIf(t, (got.Refused != "") != refuses || (got.Unreachable == "") != refuses || got.Hint != "do it", "%v: %+v", kind, got)
	}
}

// Both pods of a UDP test have the same secret token, another one in each test.
func TestTokensOfUDPTests(t *testing.T) {
	const says = `{"ready":true}` + "\n" + `{"result":{"answers":[{"id":"0","answered":true}]}}` + "\n"
	tokens := map[string]int{}
	var mu sync.Mutex
	site := func(name, ip string) *clusterReader {
		c := podsOfJobs(t, says, running, manifests.Namespace())
		c.Name, c.ID = name, "id-of-"+name
		c.Client = interceptor.NewClient(c.Client, interceptor.Funcs{Create: func(ctx context.Context, w client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			if job, is := obj.(*batchv1.Job); is {
				args := job.Spec.Template.Spec.Containers[0].Args
				task := kit.Must(probe.Parse(args[len(args)-1]))(t)
				mu.Lock()
				tokens[task.Token]++
				mu.Unlock()
			}
			if svc, is := obj.(*corev1.Service); is {
				svc.Spec.Ports[0].NodePort = 30001
			}
			return w.Create(ctx, obj, opts...)
		}})
		x := &clusterReader{Cluster: c, facts: &doctor.Cluster{}}
		x.facts.Machines.Nodes = []corev1.Node{*kubetest.Node("n1", true, ip)}
		x.facts.Machines.Kernels = map[string]*probe.Kernel{"n1": {}}
		return x
	}
	for range 2 {
		test := &udpTest{server: site("b", "172.18.2.11"), caller: site("a", "172.18.1.11")}
		kit.NoError(t, test.run(t.Context()))
		kit.ErrorIf(t, !test.Answered || test.Address != "172.18.2.11:30001", "%+v", test.UDPTest)
		nothingIsLeft(t, test.server.Cluster, test.caller.Cluster)
	}
	for token, pods := range tokens {
		kit.ErrorIf(t, len(token) < 20 || pods != 2, "%d pods have token %q", pods, token)
	}
}
