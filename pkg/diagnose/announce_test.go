package diagnose

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/doctor"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/test/kit"
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
