package gateway

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/liveness"
	"github.com/liqonet/liqonet/test/kit"
)

func TestConditions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := peering(t, v1alpha1.Client, newKey(t))
		a := &agent{peering: p, local: local{key: newKey(t)}, recorder: quiet()}
		check := func(when, connected, degraded, message string) {
			t.Helper()
			s, ok := a.Status("")
			kit.FatalIf(t, !ok || len(s.conditions) != 3+min(len(a.peering.Spec.Planes), 2), "%s: %t, conditions %v", when, ok, s.conditions)
			c, d := meta.FindStatusCondition(s.conditions, v1alpha1.ConditionConnected), meta.FindStatusCondition(s.conditions, v1alpha1.ConditionDegraded)
			kit.ErrorIf(t, string(c.Status) != connected || string(d.Status) != degraded || !strings.Contains(d.Message, message),
				"%s: %+v, %+v", when, c, d)
			ready := meta.FindStatusCondition(s.conditions, v1alpha1.ConditionReady)
			if decides := map[bool]*metav1.Condition{true: d, false: c}[connected == "True"]; (ready.Status == metav1.ConditionTrue) != (connected == "True" && degraded == "False") ||
				ready.Reason != decides.Reason || ready.Message != decides.Message {
				t.Errorf("%s: %+v does not sum up %+v and %+v", when, ready, c, d)
			}
		}
		check("never connected", "False", "False", "nothing passes")
		a.measurements.probes = liveness.ProbeStats{Window: 1, LastReply: time.Now()}
		check("connected", "True", "False", "")
		since := a.conditions.last[0].LastTransitionTime
		a.conditions.degraded = "2 nodes"
		time.Sleep(time.Second)
		check("some nodes are not", "True", "True", "2 nodes")
		kit.ErrorIf(t, !a.conditions.last[0].LastTransitionTime.Equal(&since), "the transition time changed without a transition")
		time.Sleep(replyTimeout)
		check("silent", "False", "False", "nothing passes")
		p.Status.Planes = []v1alpha1.PlaneStatus{{Index: 1, Connected: true}}
		check("of a plane that is not there", "False", "False", "")
		p.Spec.Planes = append(p.Spec.Planes, v1alpha1.Plane{Index: 1})
		check("none of two planes is", "False", "False", "nothing passes")
		n := node("n1", "10.80.0.1", "172.18.0.2", 1450)
		n.Status.Gateways = []v1alpha1.NodeGateway{{PeeringName: p.Name, Plane: 1, Ready: true}}
		a.readReports(p, []v1alpha1.NodeNetwork{n})
		a.local.plane = 1
		a.measurements.probes = liveness.ProbeStats{Window: 1, LastReply: time.Now()}
		check("the other gateway reports it", "True", "True", "no packets pass through plane 0")
		p.Spec.Planes = p.Spec.Planes[1:]
		a.conditions.degraded = ""
		check("one plane again", "True", "False", "all nodes and pods")
	})
}

func TestKeysFresh(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	made := func(days int) *metav1.Time {
		return new(metav1.NewTime(now.Add(-time.Duration(days) * 24 * time.Hour)))
	}
	p := &v1alpha1.Peering{}
	for _, tt := range []struct {
		times           []*metav1.Time
		status, message string
	}{
		{[]*metav1.Time{made(1), made(90)}, "True", "no key is older than 90 days"},
		{[]*metav1.Time{made(-1)}, "True", "no key is older"}, // by a clock that is slow
		{[]*metav1.Time{made(1), nil}, "Unknown", "without recording the time"},
		{[]*metav1.Time{nil, made(91)}, "False", "of plane 1 (2026-08-24); `kubectl liqonet rotate-keys`"},
		{[]*metav1.Time{made(100), made(91)}, "False", "of planes 0 (2026-08-15), 1 (2026-08-24)"},
	} {
		p.Spec.Planes = nil
		for i, at := range tt.times {
			p.Spec.Planes = append(p.Spec.Planes, v1alpha1.Plane{Index: int32(i), KeyTime: at})
		}
		if c := keysFreshCondition(p, now); string(c.Status) != tt.status || !strings.Contains(c.Message, tt.message) {
			t.Errorf("%v: %+v", tt.times, c)
		}
	}
}

func TestDegraded(t *testing.T) {
	p := peering(t, v1alpha1.Client, newKey(t))
	ready := func(name, address string) v1alpha1.NodeNetwork {
		n := node(name, address, "172.18.0.2", 1450)
		for i := range n.Status.Gateways {
			n.Status.Gateways[i].Ready = true
		}
		return n
	}
	going, outdated, outside := node("going", "10.80.0.3", "172.18.0.2", 1450), node("outdated", "10.99.0.3", "172.18.0.2", 1450), ready("n4", "10.80.0.4")
	going.DeletionTimestamp = new(metav1.Now())
	outside.Status.PodIPs = []v1alpha1.IP{{Addr: p.Spec.Local.Pods[0].Real.Addr().Next()}, {Addr: addr("192.168.77.5")}}
	if got := degradedCondition(p, []v1alpha1.NodeNetwork{ready("n1", "10.80.0.1"), going, outdated}); got != "" {
		t.Errorf("all is well, but it reports %q", got)
	}
	nodes := []v1alpha1.NodeNetwork{ready("n1", "10.80.0.1"), outside}
	for _, name := range []string{"x5", "x4", "x3", "x2"} {
		nodes = append(nodes, node(name, "10.80.0.9", "172.18.0.2", 1450))
	}
	want := "the peer is not reached from 4 nodes (x2, x3, x4 and others); " +
		p.OutsidePodMessage(nodes)
	if got := degradedCondition(p, nodes); got != want || !strings.Contains(got, "pod 192.168.77.5 of node n4 is outside") {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// A node that is cut off from one of two gateways loses the packets that the peer sends through it. If no node reaches the
// peer through a plane, the plane is down, which is reported elsewhere.
func TestDegradedThroughOnePlane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, 3, time.Second)
		message := func() string {
			kit.NoError(t, w.api.Get(t.Context(), client.ObjectKeyFromObject(w.peering), w.peering))
			return meta.FindStatusCondition(w.peering.Status.Conditions, v1alpha1.ConditionDegraded).Message
		}
		w.pass(t, time.Minute)
		kit.MustBe(t, "all is well", w.text(), "True True False True")
		w.nodes[2].cutOff[1] = true
		w.pass(t, time.Minute)
		kit.Check(t, "one node", w.text()+": "+message(), "False True True True: the peer is not reached through plane 1 from node "+w.nodes[2].report.Name)
		for _, n := range w.nodes {
			n.cutOff[1] = true
		}
		w.pass(t, time.Minute)
		kit.Check(t, "all nodes", w.text()+": "+message(), "False True True False: no packets pass through plane 1")
		for _, n := range w.nodes {
			clear(n.cutOff)
		}
		w.pass(t, 2*time.Minute)
		kit.Check(t, "all is well again", w.text(), "True True False True")
	})
}
