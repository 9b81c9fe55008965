package gateway

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/liveness"
	"github.com/liqonet/liqonet/test/kit"
)

func nodeAt(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 80, 0, byte(i + 1)}) }

// Requests from unknown addresses take no memory, nor do removed nodes: anyone can ask, from any number of
// addresses.
func TestStrangersAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, 2, time.Second)
		w.pass(t, time.Minute)
		a := w.gateways[0].agent
		for i := range 1000 {
			a.livenessServer.handleRequest(netip.AddrFrom4([4]byte{10, 80, byte(i >> 8), byte(i)}), liveness.Request{InUse: true})
		}
		users := slices.DeleteFunc(slices.Collect(maps.Values(a.livenessServer.nodes.known)), func(n requester) bool { return !n.isSender() })
		if nodes := len(a.livenessServer.nodes.known); nodes != 2 || len(users) != 2 {
			t.Errorf("of 1000 requesters and two nodes, it knows %d, and %d use it", nodes, len(users))
		}
		a.readReports(a.peering, nil)
		kit.ErrorIf(t, len(a.livenessServer.nodes.known) != 0, "it still knows removed nodes")
	})
}

// When a node dies and returns, the conditions are written once each time: each write is sent to all nodes.
func TestConditionsAreWrittenOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, 3, 10*time.Second)
		w.pass(t, time.Minute)
		before := w.gateways[0].writes
		for _, step := range []struct {
			name   string
			do     func()
			writes int
			want   string
		}{
			{"all is well", func() {}, 0, "True True False True"},
			{"a node dies", func() { w.nodes[1].dead = true }, 1, "False True True False"},
			{"it is back", func() {
				w.nodes[1].dead = false
				w.startGateway(t, 1)
			}, 1, "True True False True"},
		} {
			step.do()
			w.pass(t, 3*time.Minute)
			kit.Check(t, step.name, w.text(), step.want)
			if writes := w.gateways[0].writes - before; writes != step.writes {
				t.Errorf("%s: %d writes, want %d", step.name, writes, step.writes)
			}
			before = w.gateways[0].writes
		}
	})
}

// What others have written is corrected within 6 s by a gateway that knows better.
func TestDisputes(t *testing.T) {
	for name, tt := range map[string]struct {
		down bool
		of   string
		set  metav1.Condition
		want string
	}{
		"a node considers the gateways dead":       {false, v1alpha1.ConditionConnected, metav1.Condition{Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonGatewaysSilent}, "True True False True"},
		"a node reaches one plane":                 {false, v1alpha1.ConditionRedundant, metav1.Condition{Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonGatewaysSilent}, "True True False True"},
		"another gateway reports that all is lost": {false, v1alpha1.ConditionConnected, metav1.Condition{Status: metav1.ConditionFalse, Reason: "NoAnswer"}, "True True False True"},
		"a dead gateway has reported success":      {true, v1alpha1.ConditionConnected, metav1.Condition{Status: metav1.ConditionTrue, Reason: "ProbesAnswered"}, "False False False False"},
		"a node considers both dead":               {true, v1alpha1.ConditionConnected, metav1.Condition{Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonGatewaysSilent}, "False False False False"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 2, 2, time.Second)
				w.gateways[0].tunnelDown, w.gateways[1].tunnelDown = tt.down, tt.down
				w.pass(t, time.Minute)
				kit.MustBe(t, "before", w.text(), tt.want)
				tt.set.Type = tt.of
				meta.SetStatusCondition(&w.peering.Status.Conditions, tt.set)
				kit.NoError(t, w.api.Status().Update(t.Context(), w.peering))
				w.pass(t, 7*time.Second)
				kit.Check(t, "after", w.text(), tt.want)
			})
		})
	}
}

// One gateway writes the conditions: each write is sent to all nodes. A gateway that cannot write is not waited for, even if
// packets pass through it.
func TestOneGatewayWrites(t *testing.T) {
	for name, tt := range map[string]struct {
		fault func(w *world)
		want  string
	}{
		"all is well":              {func(*world) {}, "[0]"},
		"the first tunnel is down": {func(w *world) { w.gateways[0].tunnelDown = true }, "[1]"},
		"the first agent is dead":  {func(w *world) { w.gateways[0].hung = true }, "[1]"},
		"the first cannot write":   {func(w *world) { w.gateways[0].cut.Store(true) }, "[1]"},
		"only the last one works":  {func(w *world) { w.gateways[0].cut.Store(true); w.gateways[1].tunnelDown = true }, "[2]"},
		"no tunnel works, so all write": {func(w *world) {
			w.gateways[0].tunnelDown, w.gateways[1].tunnelDown, w.gateways[2].tunnelDown = true, true, true
		}, "[0 1 2]"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 3, 3, time.Second)
				w.pass(t, time.Minute)
				tt.fault(w)
				w.pass(t, time.Minute)
				var writers []int
				for i, g := range w.gateways {
					if g.runs() && !g.cut.Load() && len(g.written.conditions) > 0 {
						writers = append(writers, i)
					}
				}
				kit.Check(t, "writers", fmt.Sprint(writers), tt.want)
			})
		})
	}
}

// A gateway that has just started does not yet know which others are alive. It does not report as lost what they reported.
func TestNewGatewayIsUnsure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, 2, time.Second)
		w.pass(t, time.Minute)
		w.gateways[1].tunnelDown = true
		w.startGateway(t, 1)
		for second := range 60 {
			w.pass(t, time.Second)
			kit.ErrorIf(t, !meta.IsStatusConditionTrue(w.peering.Status.Conditions, v1alpha1.ConditionConnected), "after %d s: %s", second+1, w.text())
		}
		kit.Check(t, "in the end", w.text(), "False True True False")
	})
}

// A gateway that is not alive works only if more than half of the nodes say so: one of them may be compromised. Nodes that
// do not know do not count.
func TestNodesVoteForDeadGateways(t *testing.T) {
	p := peering(t, v1alpha1.Client, newKey(t))
	p.Spec.Planes = []v1alpha1.Plane{{Index: 0}, {Index: 1}}
	for reaching, want := range []bool{false, false, false, true, true} {
		var nodes requesters
		nodes.setKnown(nodeAt(0), nodeAt(1), nodeAt(2), nodeAt(3), nodeAt(4))
		nodes.record(nodeAt(4), liveness.Request{Reached: 1 << 1}) // without ReachKnown
		for i := range 4 {
			by := uint8(liveness.ReachKnown | 1)
			if i < reaching {
				by |= 1 << 1
			}
			nodes.record(nodeAt(i), liveness.Request{Reached: by})
		}
		alive := (&conditions{}).planesAlive(p, v1alpha1.PlaneStatus{Index: 0, Connected: true}, &nodes)
		kit.Check(t, fmt.Sprintf("with %d of 4 nodes", reaching), alive, map[int32]bool{0: true, 1: want})
	}
}

// Two gateways do not overwrite each other forever: if packets pass through the plane of neither, the lower one decides. What
// a node has written while the gateways were silent is corrected by each.
func TestLowerGatewayDecides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, 2, time.Second)
		w.pass(t, time.Minute)
		mine := []metav1.Condition{{Type: v1alpha1.ConditionConnected, Status: metav1.ConditionFalse, Reason: "NoAnswer"}}
		for reason, want := range map[string][]bool{"ProbesAnswered": {true, false, true}, v1alpha1.ReasonGatewaysSilent: {true, true, true}} {
			w.peering.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionConnected, Status: metav1.ConditionTrue, Reason: reason}}
			disputed := func(own int, alive bool) bool {
				return w.gateways[own].agent.conditions.isDisputed(w.peering, int32(own), map[int32]bool{int32(own): alive}, mine)
			}
			kit.Check(t, "another has written "+reason, []bool{disputed(0, false), disputed(1, false), disputed(1, true)}, want)
		}
	})
}

// After the tunnel has come up, nodes get 10 s to find out.
func TestNodesGetTimeToReachThePeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &conditions{reports: map[netip.Addr]nodeReport{nodeAt(0): {}}}
		kit.Check(t, "reached while the tunnel is down", c.isReached(0, false, &requesters{}), false)
		for _, want := range []bool{true, false} {
			time.Sleep(startGrace/2 + time.Second)
			kit.Check(t, "reached", c.isReached(0, true, &requesters{}), want)
		}
	})
}

// The peer's nodes leave a gateway that no node of its cluster asks, unless it is the only plane. They return when nodes
// ask again. A new node has time to ask.
func TestDesertedGateway(t *testing.T) {
	peer := netip.MustParseAddr("10.70.31.254")
	for planes, leaves := range map[int]bool{1: false, 2: true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, planes, 2, time.Second)
			w.pass(t, time.Minute)
			server := &w.gateways[0].agent.livenessServer
			server.markAdopted()
			server.peerGateway.setKnown(peer)
			kit.Check(t, "leaving", server.answer(peer).Leaving, false)
			w.nodes[0].cutOff[0] = true
			w.pass(t, 10*time.Second)
			kit.Check(t, "leaving while a node asks", server.answer(peer).Leaving, false)
			w.nodes[1].cutOff[0] = true
			w.pass(t, 4*time.Second)
			kit.Check(t, "leaving while no node asks", server.answer(peer).Leaving, leaves)
			kit.Check(t, "leaving, for a node", server.answer(w.nodes[0].address).Leaving, false)
			server.nodes.setKnown(w.nodes[0].address, w.nodes[1].address, nodeAt(7))
			kit.Check(t, "leaving while a node is new", server.answer(peer).Leaving, false)
			w.nodes[1].cutOff[0] = false
			w.pass(t, 4*time.Second)
			kit.Check(t, "leaving while a node asks again", server.answer(peer).Leaving, false)
		})
	}
}
