package node

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/agent/watch"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/liveness"
	"github.com/liqonet/liqonet/pkg/metrics"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

func newAgent(t *testing.T) *agent {
	t.Helper()
	own := &v1alpha1.NodeNetwork{}
	own.Name = "n1"
	return &agent{
		Config: Config{NodeName: "n1", Log: slog.New(slog.DiscardHandler), metrics: metrics.New(metrics.Node, "")}, view: &watch.View{Reader: newClient(t, interceptor.Funcs{})},
		local: local{name: "n1", address: addr("10.80.0.1"), planesInUse: map[string]planesInUse{}}, objects: objects{own: own, node: newNode("n1", "1")},
		probers: map[planeKey]*prober{}, machine: machine{paths: map[pathKey]pathInfo{}}, applied: applied{reconciled: true},
	}
}

// The status mentions everything that does not fit into the report.
func TestWhatIsCutOffIsSaid(t *testing.T) {
	a := newAgent(t)
	status := func(problem string, status metav1.ConditionStatus, reason string) (s v1alpha1.NodeNetworkStatus, text string) {
		t.Helper()
		s, _ = a.Status(problem)
		if c := s.Conditions[0]; c.Status != status || c.Reason != reason || c.Message == "" {
			t.Errorf("the condition is %v", c)
		}
		return s, (&v1alpha1.NodeNetwork{Status: s}).Problem()
	}
	if _, text := status("", metav1.ConditionTrue, "Applied"); text != "" {
		t.Errorf("without problems it reports %q", text)
	}
	a.applied.reconciled = false
	if _, text := status("", metav1.ConditionFalse, "Starting"); text != "" {
		t.Errorf("a starting agent reports %q", text)
	}
	a.applied.reconciled = true
	for i := range v1alpha1.MaxPodIPs + 7 {
		a.objects.pods = append(a.objects.pods, corev1.Pod{Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: fmt.Sprintf("10.9.%d.%d", i>>8, i&255)}}}})
	}
	var routes []netip.Prefix
	for i := range maxRoutes + 5 {
		routes = append(routes, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24))
	}
	kept, omitted := summarizeRoutes(routes)
	a.machine.routes, a.machine.omittedRoutes = v1alpha1.NewCIDRs(kept...), omitted
	if _, text := status("", metav1.ConditionTrue, "AppliedWithProblems"); !strings.HasPrefix(text, "5 of this node's routes") {
		t.Errorf("with everything applied it reports %q", text)
	}
	s, text := status("x", metav1.ConditionFalse, "CannotApply")
	kit.ErrorIf(t, len(s.PodIPs) != v1alpha1.MaxPodIPs || len(s.Routes) != maxRoutes, "%d pods, %d routes", len(s.PodIPs), len(s.Routes))
	for _, want := range []string{"x; ", "5 of this node's routes", "7 pods are not reported"} {
		kit.ErrorIf(t, !strings.Contains(text, want), "%q does not contain %q", text, want)
	}
}

// The agent asks again for missing abilities of the kernel, and writes the changes.
func TestKernelIsAskedAgain(t *testing.T) {
	ns := netns.New(t, "node")
	a := newAgent(t)
	a.kernel = netns.In(t, ns, overlay.New)
	t.Cleanup(a.kernel.Close)
	ns.Do(t, a.readKernelFeatures)
	has := a.machine.facts
	kit.FatalIf(t, !has.VXLAN, "this kernel has no VXLAN: %+v", has)
	lacks := v1alpha1.KernelFacts{Release: has.Release} // somebody loads the modules later
	a.machine.facts = lacks
	before, _ := a.Status("")
	ns.Do(t, a.readKernelFeatures)
	kit.ErrorIf(t, a.machine.facts != lacks, "the kernel is read all the time")
	a.machine.factsAt = time.Now().Add(-loop.Resync)
	ns.Do(t, a.readKernelFeatures)
	after, _ := a.Status("")
	if *after.Kernel != has {
		t.Errorf("the kernel has %+v, but the agent reports %+v", has, *after.Kernel)
	}
	if got := compareStatus(after, before); got != loop.Changed {
		t.Errorf("the kernel's new abilities are not written: %v", got)
	}
}

// While a peer is down, the agent neither reads the kernel nor probes the peer all the time.
func TestDeadPeerCostsLittle(t *testing.T) {
	a := newAgent(t)
	g := gateway{peering: "b", pod: addr("10.244.9.1"), remote: addr("10.70.0.1"), link: "loq0-0", isOnlyPlane: true}
	// There is no kernel to ask here.
	a.machine.paths[pathKey{pod: g.pod}] = pathInfo{source: addr("192.0.2.1"), mtu: 1450}
	a.applied.gateways = []gateway{g}
	if s, _ := a.Status(""); len(s.Gateways) != 1 || s.Gateways[0].Source.Addr != addr("192.0.2.1") {
		t.Errorf("gateways %+v", s.Gateways)
	}

	synctest.Test(t, func(t *testing.T) {
		key := g.key()
		p := liveness.NewProber(a.local.address, netip.AddrPortFrom(g.remote, liveness.Port), probeInterval)
		ended, end := context.WithCancel(t.Context()) // nothing is sent
		end()
		a.probers[key] = &prober{probes: p, cancel: func() {}, probing: ended, gateway: g, ready: true}
		if a.Measure(t.Context()); len(a.machine.paths) > 0 {
			t.Error("the peer is no longer reached, but the path is not read again")
		}
		look := func() time.Duration {
			_, next := a.Measure(t.Context())
			return next
		}
		const fast = 100 * time.Millisecond * 2 / 3
		if next := look(); next != fast {
			t.Errorf("at first it looks again after %v", next)
		}
		time.Sleep(10 * time.Minute)
		if next := look(); next != loop.MeasureInterval {
			t.Errorf("later it looks again after %v", next)
		}
		a.updateProbers(t.Context(), []gateway{g})
		if next := look(); next != loop.MeasureInterval {
			t.Errorf("with the same gateway it looks again after %v", next)
		}
		g.connected = true // as its gateway reports
		a.updateProbers(t.Context(), []gateway{g})
		if next := look(); next != fast {
			t.Errorf("after the gateway has connected it looks again after %v", next)
		}
	})
}

// A node reports a gateway to which TCP does not pass. While the gateway does not answer at all, that is not worth
// saying, and does not count afterwards.
func TestTCPIsReported(t *testing.T) {
	a := newAgent(t)
	g := gateway{peering: "b", pod: addr("10.244.9.1"), remote: addr("10.70.0.1"), link: "loq0-0", isOnlyPlane: true}
	a.machine.paths[pathKey{pod: g.pod}] = pathInfo{source: addr("192.0.2.1"), mtu: 1450}
	a.applied.gateways, a.applied.reconciled = []gateway{g}, true
	p := &prober{probes: liveness.NewProber(a.local.address, netip.AddrPortFrom(g.remote, liveness.Port), probeInterval), gateway: g, ready: true}
	a.probers[g.key()] = p
	says := func(isReady bool, failed int32) bool {
		p.ready = isReady
		p.failedTCP.Store(failed)
		s, _ := a.Status("")
		return strings.Contains(meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionReady).Message, "TCP does not pass between this node and gateway 10.244.9.1")
	}
	kit.ErrorIf(t, says(true, maxTCPFailures-1), "it is reported too early")
	kit.ErrorIf(t, says(false, maxTCPFailures), "it is reported although UDP does not pass either")
	kit.ErrorIf(t, !says(true, maxTCPFailures), "it is not reported")
	a.Measure(t.Context())
	kit.ErrorIf(t, p.ready || p.failedTCP.Load() != 0, "failures count that happened before probes failed")
}
