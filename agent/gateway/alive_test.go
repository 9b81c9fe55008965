package gateway

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/liveness"
)

// reporter is a node: the planes through which it last reported to reach the peer, and whether it still asks this
// gateway.
type reporter struct {
	ready []int32
	asks  bool
}

// situation is the state around a gateway in a peering of two planes.
type situation struct {
	plane     int32
	connected bool
	nodes     []reporter
	// writes is set if the other plane's gateway writes new handshakes.
	writes bool
}

// begin makes the gateway. The Peering still has its conditions from when both planes worked.
func (s situation) begin(t *testing.T) *agent {
	t.Helper()
	p := peering(t, v1alpha1.Client, newKey(t))
	p.Spec.Planes = append(p.Spec.Planes, v1alpha1.Plane{Index: 1})
	p.Status.Planes = []v1alpha1.PlaneStatus{{Index: 1 - s.plane, Connected: true, LastHandshake: new(metav1.Now())}}
	for _, c := range []string{v1alpha1.ConditionConnected, v1alpha1.ConditionRedundant} {
		p.Status.Conditions = append(p.Status.Conditions, metav1.Condition{Type: c, Status: metav1.ConditionTrue})
	}
	a := &agent{peering: p, local: local{plane: s.plane, key: newKey(t)}, dialer: dialer{endpoints: newEndpoints()}, livenessServer: newLivenessServer(nil), recorder: quiet()}
	a.readReports(p, s.reports())
	return a
}

func (s situation) reports() (out []v1alpha1.NodeNetwork) {
	for i, r := range s.nodes {
		n := node(fmt.Sprintf("n%d", i), nodeAt(i).String(), "172.18.0.2", 1450)
		n.Status.Gateways = nil
		for _, plane := range r.ready {
			n.Status.Gateways = append(n.Status.Gateways, v1alpha1.NodeGateway{PeeringName: "b", Plane: plane, Ready: true, Active: true})
		}
		out = append(out, n)
	}
	return out
}

func nodeAt(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 80, 0, byte(i + 1)}) }

// pass lets time pass, with the requests and writes of each second, and returns how often the gateway writes.
func (s situation) pass(a *agent, d time.Duration, written *status) (writes int) {
	for range d / time.Second {
		time.Sleep(time.Second)
		now := time.Now().Unix()
		for i, r := range s.nodes {
			if r.asks && now%10 == 0 { // as in a large cluster
				a.livenessServer.handleRequest(nodeAt(i), liveness.Request{})
			}
		}
		if s.writes && now%120 == 0 {
			a.peering.Status.Planes[0].LastHandshake = new(metav1.Now())
		}
		a.measurements.probes = liveness.ProbeStats{}
		if s.connected {
			a.measurements.probes = liveness.ProbeStats{Window: 1, LastReply: time.Now()}
		}
		a.readReports(a.peering, s.reports())
		if st, _ := a.Status(""); compareStatus(st, *written) != loop.Same {
			writes++
			*written = st
			if len(st.conditions) > 0 {
				a.peering.Status.Conditions = st.conditions
			}
		}
	}
	return writes
}

// connectedText returns the statuses of the conditions that a gateway writes, "" if it writes none.
func connectedText(conditions []metav1.Condition) string {
	var out []string
	for _, name := range []string{v1alpha1.ConditionConnected, v1alpha1.ConditionDegraded, v1alpha1.ConditionRedundant} {
		if c := meta.FindStatusCondition(conditions, name); c != nil {
			out = append(out, string(c.Status))
		}
	}
	return strings.Join(out, " ")
}

// The last report of a dead node does not keep a condition True. A gateway that is alive writes the conditions. One
// that is cut off from nodes does not overrule the others.
func TestConditionsAfterDeaths(t *testing.T) {
	both, zero, one, none := []int32{0, 1}, []int32{0}, []int32{1}, []int32{}
	const (
		allWell, oneLeft, nothing, notMine = "True False True", "True True False", "False False False", ""
		soon, late                         = requesterTimeout + 10*time.Second, handshakeTimeout + 10*time.Second
	)
	for name, tt := range map[string]struct {
		situation
		after time.Duration
		want  string
	}{
		"all is well":                                                            {situation{0, true, []reporter{{both, true}, {both, true}}, true}, late, allWell},
		"all is well, seen by the other gateway":                                 {situation{1, true, []reporter{{both, true}, {both, true}}, true}, late, notMine},
		"the node of plane 1's gateway is dead":                                  {situation{0, true, []reporter{{zero, true}, {both, false}, {zero, true}}, false}, soon, oneLeft},
		"it may be alive, as it asked a moment ago":                              {situation{0, true, []reporter{{zero, true}, {both, false}, {zero, true}}, false}, requesterTimeout - time.Second, allWell},
		"the node of plane 0's gateway is dead":                                  {situation{1, true, []reporter{{both, false}, {one, true}, {one, true}}, false}, soon, oneLeft},
		"and then plane 1's tunnel fails":                                        {situation{1, false, []reporter{{both, false}, {none, true}, {none, true}}, false}, soon, nothing},
		"plane 0 has no gateway, and plane 1's tunnel fails":                     {situation{1, false, []reporter{{none, true}, {none, true}}, false}, soon, nothing},
		"the node of plane 0's gateway is dead, and plane 1 failed before":       {situation{1, false, []reporter{{zero, false}, {none, true}}, false}, late, nothing},
		"all nodes but the gateway's own are dead":                               {situation{1, true, []reporter{{both, false}, {both, false}, {one, true}}, false}, soon, oneLeft},
		"plane 0's gateway does not reach the API server":                        {situation{1, true, []reporter{{both, true}, {both, true}}, false}, late, allWell},
		"the gateway has just started":                                           {situation{1, false, []reporter{{both, false}, {both, false}}, true}, time.Second, notMine},
		"agents of all nodes are away for long":                                  {situation{0, true, []reporter{{both, false}, {both, false}}, true}, late, allWell},
		"the same, and plane 1's gateway is dead":                                {situation{0, true, []reporter{{both, false}, {both, false}}, false}, late, oneLeft},
		"this gateway is cut off from all nodes":                                 {situation{1, false, []reporter{{zero, false}, {zero, false}}, true}, late, notMine},
		"this gateway is cut off from all nodes but its own":                     {situation{1, false, []reporter{{zero, false}, {none, true}}, true}, late, notMine},
		"the same, and its tunnel works":                                         {situation{1, true, []reporter{{zero, false}, {one, true}}, true}, late, notMine},
		"one node of three does not reach the API server, and plane 0 is dead":   {situation{1, true, []reporter{{both, true}, {one, true}, {one, true}}, false}, late, oneLeft},
		"no node reaches the peer by this plane, whose tunnel works":             {situation{0, true, []reporter{{one, true}, {one, true}}, true}, late, notMine},
		"the same, seen by the other gateway":                                    {situation{1, true, []reporter{{one, true}, {one, true}}, true}, late, oneLeft},
		"a node is cut off from the API server since before plane 1 worked":      {situation{0, true, []reporter{{zero, true}, {both, true}}, true}, late, allWell},
		"one node of two does not reach the API server, and plane 1 is dead":     {situation{0, true, []reporter{{both, true}, {zero, true}}, false}, late, oneLeft},
		"a node is cut off from gateways, and not from the API server":           {situation{0, true, []reporter{{both, true}, {none, false}}, true}, late, "True True True"},
		"a node is dead that has no gateway":                                     {situation{0, true, []reporter{{both, true}, {both, false}}, true}, late, allWell},
		"no node reaches the peer by plane 1 but one that is dead":               {situation{0, true, []reporter{{zero, true}, {both, false}}, true}, soon, oneLeft},
		"the node of plane 1's gateway is dead, and no other agent runs for now": {situation{0, true, []reporter{{zero, false}, {both, false}}, false}, late, oneLeft},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := tt.begin(t)
				var written status
				tt.pass(a, tt.after, &written)
				if got := connectedText(written.conditions); got != tt.want {
					t.Errorf("Connected, Degraded, Redundant are %q, want %q", got, tt.want)
				}
			})
		})
	}
}

// A starting gateway leaves the conditions unchanged until it has enough information. Reports of nodes that died
// before do not count.
func TestConditionsOfAGatewayThatStarts(t *testing.T) {
	both, zero := []int32{0, 1}, []int32{0}
	const before, well, left = "True True", "True False True", "True True False"
	for name, tt := range map[string]struct {
		situation
		there       metav1.ConditionStatus
		early, late string
	}{
		"the other plane's gateway is dead":                 {situation{0, true, []reporter{{zero, true}, {both, false}}, false}, metav1.ConditionTrue, before, left},
		"the same, and the conditions are Unknown":          {situation{0, true, []reporter{{zero, true}, {both, false}}, false}, metav1.ConditionUnknown, left, left},
		"its own tunnel does not work yet":                  {situation{0, false, []reporter{{zero, true}, {both, false}}, false}, metav1.ConditionTrue, before, "False False False"},
		"the other plane works":                             {situation{0, true, []reporter{{both, true}, {both, true}}, true}, metav1.ConditionTrue, well, well},
		"the other plane works, and this one is the second": {situation{1, true, []reporter{{both, true}, {both, true}}, true}, metav1.ConditionTrue, before, before},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := tt.begin(t)
				a.conditions.started = time.Now()
				a.peering.Status.Conditions[0].Status = tt.there
				var written status
				if tt.pass(a, 15*time.Second, &written); connectedText(a.peering.Status.Conditions) != tt.early {
					t.Errorf("early the conditions are %q, want %q", connectedText(a.peering.Status.Conditions), tt.early)
				}
				if s, _ := a.Status(""); s.keepConditions != (tt.early != well && tt.late != before) {
					t.Errorf("early they stay unchanged: %v", s.keepConditions)
				}
				if tt.pass(a, requesterTimeout, &written); connectedText(a.peering.Status.Conditions) != tt.late {
					t.Errorf("late the conditions are %q, want %q", connectedText(a.peering.Status.Conditions), tt.late)
				}
				if s, _ := a.Status(""); s.keepConditions {
					t.Error("late they stay unchanged")
				}
			})
		})
	}
}

// When a node dies and returns, another node's gateway writes the conditions once each time: each write is sent to
// all nodes.
func TestConditionsAreWrittenOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var written status
		well := situation{0, true, []reporter{{[]int32{0, 1}, true}, {[]int32{0, 1}, true}}, true}
		dead := situation{0, true, []reporter{{[]int32{0}, true}, {[]int32{0, 1}, false}}, false}
		a := well.begin(t)
		for _, step := range []struct {
			situation
			writes int
			want   string
		}{{well, 1, "True False True"}, {dead, 1, "True True False"}, {well, 1, "True False True"}} {
			writes := step.pass(a, 10*time.Minute, &written)
			if got := connectedText(written.conditions); writes != step.writes || got != step.want {
				t.Errorf("%d writes, want %d; conditions %q, want %q", writes, step.writes, got, step.want)
			}
		}
	})
}

// A wrong Connected is corrected, but not while another gateway may be right.
func TestDisputes(t *testing.T) {
	well := situation{0, true, []reporter{{[]int32{0, 1}, true}}, true}
	down := situation{1, false, []reporter{{nil, true}}, false}
	downWithOther := situation{1, false, []reporter{{nil, true}}, true}
	for name, tt := range map[string]struct {
		situation
		there metav1.ConditionStatus
		want  bool
	}{
		"it is unchanged":                                            {well, metav1.ConditionTrue, false},
		"a node considers the gateways dead":                         {well, metav1.ConditionUnknown, true},
		"the same while nothing passes":                              {downWithOther, metav1.ConditionUnknown, true},
		"a gateway whose tunnel is down reports that":                {well, metav1.ConditionFalse, true},
		"a dead gateway has reported that packets pass":              {down, metav1.ConditionTrue, true},
		"a gateway reports that packets pass, and its tunnel is new": {downWithOther, metav1.ConditionTrue, false},
		"it has gone": {well, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := tt.begin(t)
				tt.pass(a, handshakeTimeout+10*time.Second, &status{})
				a.peering.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionConnected, Status: tt.there}}
				if tt.there == "" {
					a.peering.Status.Conditions = nil
				}
				if s, _ := a.Status(""); len(s.conditions) == 0 || s.disputed != tt.want {
					t.Errorf("conditions %v, disputed: %v, want %v", s.conditions, s.disputed, tt.want)
				}
			})
		})
	}
}

// Requests from unknown addresses take no memory, nor do removed nodes: anyone can ask, from any number of
// addresses.
func TestStrangersAreForgotten(t *testing.T) {
	a := situation{0, true, []reporter{{nil, true}, {nil, true}}, true}.begin(t)
	for i := range 1000 {
		a.livenessServer.handleRequest(netip.AddrFrom4([4]byte{10, 80, byte(i >> 8), byte(i)}), liveness.Request{InUse: true})
	}
	users := slices.DeleteFunc(slices.Collect(maps.Values(a.livenessServer.nodes.known)), func(n requester) bool { return !n.isSender() })
	if nodes := len(a.livenessServer.nodes.known); nodes != 2 || len(users) != 2 {
		t.Errorf("of 1000 requesters and two nodes, it knows %d, and %d use it", nodes, len(users))
	}
	a.readReports(a.peering, nil)
	if nodes := len(a.livenessServer.nodes.known); nodes != 0 {
		t.Errorf("it still knows %d removed nodes", nodes)
	}
}

// Another gateway counts as alive while its handshakes change. A new pod has had none.
func TestOtherGatewayWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := situation{0, true, nil, true}.begin(t)
		for _, step := range []struct {
			name      string
			handshake *metav1.Time
			after     time.Duration
			want      bool
		}{
			{"a new pod", nil, 0, false},
			{"its first handshake", new(metav1.Now()), 0, true},
			{"the same for long", new(metav1.Now()), handshakeTimeout, false},
			{"the next one", new(metav1.NewTime(time.Now().Add(time.Hour))), handshakeTimeout - time.Second, true}, // whatever its clock
		} {
			a.peering.Status.Planes[0].LastHandshake = step.handshake
			a.readReports(a.peering, nil)
			time.Sleep(step.after)
			a.readReports(a.peering, nil)
			if got := a.conditions.isWriting(1); got != step.want {
				t.Errorf("%s: %v, want %v", step.name, got, step.want)
			}
		}
	})
}
