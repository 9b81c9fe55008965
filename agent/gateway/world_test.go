package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/agent/heartbeat"
	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/liveness"
	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/test/kit"
)

// world is a cluster of nodes, with the gateways of one peering. Gateway i is on node i. What they decide is the agents'
// code. Packets and the API server are played.
type world struct {
	api      client.WithWatch
	peering  *v1alpha1.Peering
	nodes    []*worldNode
	gateways []*worldGateway
	// askEvery is how often nodes ask a gateway if nothing has changed.
	askEvery time.Duration
}

// worldNode is a node. dead is set if it has no power, and hung if only its agent does not run.
type worldNode struct {
	address    netip.Addr
	dead, hung bool
	cut        atomic.Bool
	// cutOff are the gateways that it does not reach through the overlay.
	cutOff map[int]bool
	// replied and usable are when probes through each gateway were last answered, and when the session last found no
	// problem. told is what gateways were last told, and asked when.
	replied, usable []time.Time
	told            uint8
	asked           time.Time
	report          v1alpha1.NodeNetwork
	silence         *heartbeat.Silence
	stop            context.CancelFunc
}

// worldGateway is a gateway. gone is set if its pod does not run, and hung if only its agent does not. Its tunnel may be
// down, lose large packets, or end at a gateway that reaches no node.
type worldGateway struct {
	agent                           *agent
	gone, hung                      bool
	cut                             atomic.Bool
	tunnelDown, losesLarge, farHalf bool
	written                         status
	writes                          int
	renewed                         time.Time
	stop                            context.CancelFunc
}

func (n *worldNode) runs() bool    { return !n.dead && !n.hung }
func (g *worldGateway) runs() bool { return !g.gone && !g.hung }

// connect returns a client that fails while isCut returns true.
func (w *world) connect(isCut func() bool) client.WithWatch {
	fails := func() error {
		if isCut() {
			return errors.New("cut off from the API server")
		}
		return nil
	}
	return interceptor.NewClient(w.api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			return errors.Join(fails(), c.Get(ctx, key, obj, opts...))
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			if err := fails(); err != nil {
				return err
			}
			return c.SubResource(sub).Patch(ctx, obj, patch, opts...)
		},
	})
}

func newWorld(t *testing.T, planes, nodes int, askEvery time.Duration) *world {
	t.Helper()
	p := peering(t, v1alpha1.Client, newKey(t))
	p.Spec.Planes = nil
	objects := []client.Object{p}
	for i := range planes {
		p.Spec.Planes = append(p.Spec.Planes, v1alpha1.Plane{Index: int32(i), RemoteAddress: v1alpha1.IP{Addr: addr("10.70.31.254")}})
		objects = append(objects, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: v1alpha1.GatewayName("b", int32(i))}})
	}
	p.Status.Conditions = p.PendingConditions()
	w := &world{api: newBuilder(t, objects...).Build(), peering: p, askEvery: askEvery}
	for i := range planes {
		w.gateways = append(w.gateways, &worldGateway{})
		w.startGateway(t, i)
	}
	for i := range nodes {
		n := &worldNode{
			address: nodeAt(i), cutOff: map[int]bool{}, replied: make([]time.Time, planes), usable: make([]time.Time, planes),
			report: node(fmt.Sprint("n", i), nodeAt(i).String(), "172.18.0.2", 1450),
		}
		n.silence = &heartbeat.Silence{Client: w.connect(func() bool { return n.cut.Load() }), Log: slog.New(slog.DiscardHandler)}
		var ctx context.Context
		ctx, n.stop = context.WithCancel(t.Context())
		go n.silence.Run(ctx)
		w.nodes = append(w.nodes, n)
	}
	return w
}

// startGateway starts a gateway's agent.
func (w *world) startGateway(t *testing.T, i int) {
	t.Helper()
	g := w.gateways[i]
	g.gone, g.hung, g.written = false, false, status{}
	g.agent = &agent{
		local: local{plane: int32(i), key: newKey(t)}, dialer: dialer{endpoints: newEndpoints()}, livenessServer: newLivenessServer(nil), recorder: quiet(),
		conditions: conditions{started: time.Now(), others: heartbeat.Observer{
			Client: w.connect(func() bool { return g.cut.Load() }), Peering: "b", Own: int32(i),
		}},
		measurements: measurements{usableAt: time.Now()},
	}
	g.agent.livenessServer.datapathReady.Store(true)
	var ctx context.Context
	ctx, g.stop = context.WithCancel(t.Context())
	go g.agent.conditions.others.Run(ctx)
}

// passes reports whether small packets pass between a node and the peer through a gateway, and whether the session finds
// that all of them do.
func (w *world) passes(n *worldNode, i int) (packets, all bool) {
	g := w.gateways[i]
	packets = !n.dead && !n.cutOff[i] && !g.gone && !g.tunnelDown
	return packets, packets && g.isUsable()
}

// isUsable reports whether the gateway finds no problem of its tunnel.
func (g *worldGateway) isUsable() bool {
	return g.runs() && !g.tunnelDown && !g.losesLarge && !g.farHalf
}

// isAlive reports whether packets pass through a plane, for some node whose agent runs.
func (w *world) isAlive(i int) bool {
	for _, n := range w.nodes {
		packets, all := w.passes(n, i)
		if len(w.gateways) == 1 {
			all = packets && !w.gateways[i].farHalf
		}
		if n.runs() && all {
			return true
		}
	}
	return false
}

// isReachedByAll reports whether packets pass through a plane for all nodes whose agents run.
func (w *world) isReachedByAll(i int) bool {
	for _, n := range w.nodes {
		if packets, all := w.passes(n, i); n.runs() && (!packets || !all && len(w.gateways) > 1) {
			return false
		}
	}
	return true
}

// pass lets time pass.
func (w *world) pass(t *testing.T, d time.Duration) {
	t.Helper()
	for range d / time.Second {
		time.Sleep(time.Second)
		synctest.Wait()
		kit.NoError(t, w.api.Get(t.Context(), client.ObjectKeyFromObject(w.peering), w.peering))
		for _, n := range w.nodes {
			if n.runs() {
				w.runNode(n)
			} else {
				n.stop()
			}
		}
		for i, g := range w.gateways {
			if g.gone = g.gone || w.nodes[i].dead; g.runs() {
				w.runGateway(t, i, g)
			} else {
				g.stop()
			}
		}
	}
}

// runNode does what a node's agent does in a second (agent/node/planes.go).
func (w *world) runNode(n *worldNode) {
	const replyTimeout = 7 * time.Second
	reached := uint8(0)
	now := v1alpha1.NodeNetworkStatus{Address: n.report.Status.Address}
	for i := range w.gateways {
		packets, all := w.passes(n, i)
		if packets {
			n.replied[i] = time.Now()
		}
		if all || len(w.gateways) == 1 {
			n.usable[i] = time.Now()
		}
		ready := time.Since(n.replied[i]) < replyTimeout && time.Since(n.usable[i]) < replyTimeout
		if ready {
			reached |= 1 << i
		}
		now.Gateways = append(now.Gateways, v1alpha1.NodeGateway{PeeringName: "b", Plane: int32(i), Ready: ready})
	}
	if !n.cut.Load() {
		n.report.Status = now
		n.silence.Update([]v1alpha1.Peering{*w.peering.DeepCopy()}, map[string]uint8{"b": reached})
	}
	if n.told == liveness.ReachKnown|reached && time.Since(n.asked) < w.askEvery {
		return
	}
	n.told, n.asked = liveness.ReachKnown|reached, time.Now()
	for i, g := range w.gateways {
		if g.runs() && !n.cutOff[i] {
			g.agent.livenessServer.handleRequest(n.address, liveness.Request{Reached: n.told})
		}
	}
}

// runGateway does what a gateway's agent does in a second.
func (w *world) runGateway(t *testing.T, i int, g *worldGateway) {
	t.Helper()
	a := g.agent
	if !g.tunnelDown {
		a.measurements.probes = liveness.ProbeStats{Window: 1, LastReply: time.Now()}
	}
	if len(w.gateways) > 1 {
		session := liveness.New(netip.Addr{}, netip.AddrPort{}, 1, notify.NewSignal())
		session.Assumed = g.isUsable()
		a.livenessServer.follow(session)
	}
	if a.tunnelHealth().isUsable() {
		a.measurements.usableAt = time.Now()
	}
	if a.peering == nil || !g.cut.Load() {
		a.peering = w.peering.DeepCopy()
		var reports []v1alpha1.NodeNetwork
		for _, n := range w.nodes {
			reports = append(reports, *n.report.DeepCopy())
		}
		a.readReports(a.peering, reports)
	}
	s, _ := a.Status("")
	if g.cut.Load() {
		return
	}
	if compareStatus(s, g.written) != loop.Same {
		now := &v1alpha1.Peering{}
		kit.NoError(t, w.api.Get(t.Context(), client.ObjectKeyFromObject(w.peering), now))
		planes := []v1alpha1.PlaneStatus{s.plane}
		for _, other := range now.Status.Planes {
			if other.Index != s.plane.Index {
				planes = append(planes, other)
			}
		}
		now.Status.Planes = planes
		for _, c := range s.conditions {
			meta.SetStatusCondition(&now.Status.Conditions, c)
		}
		kit.NoError(t, w.api.Status().Update(t.Context(), now))
		g.written = s
		g.writes++
	}
	if time.Since(g.renewed) >= v1alpha1.ReportInterval {
		lease := &coordinationv1.Lease{}
		kit.NoError(t, w.api.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.Namespace, Name: v1alpha1.GatewayName("b", int32(i))}, lease))
		lease.Spec.RenewTime = new(metav1.NowMicro())
		kit.NoError(t, w.api.Update(t.Context(), lease))
		g.renewed = time.Now()
	}
}

// text returns the statuses of Ready, Connected, Degraded and Redundant.
func (w *world) text() string {
	var out []string
	for _, name := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionConnected, v1alpha1.ConditionDegraded, v1alpha1.ConditionRedundant} {
		if c := meta.FindStatusCondition(w.peering.Status.Conditions, name); c != nil {
			out = append(out, string(c.Status))
		}
	}
	return strings.Join(out, " ")
}

// wrong returns what is wrong with the conditions 30 s after the last failure, "" if nothing is.
func (w *world) wrong(t *testing.T) string {
	t.Helper()
	kit.NoError(t, w.api.Get(t.Context(), client.ObjectKeyFromObject(w.peering), w.peering))
	status := func(of string) metav1.ConditionStatus {
		return meta.FindStatusCondition(w.peering.Status.Conditions, of).Status
	}
	alive, writers, works := 0, 0, false
	for i, g := range w.gateways {
		if w.isAlive(i) {
			alive++
		}
		if g.runs() && !g.cut.Load() {
			writers++
			works = works || w.isReachedByAll(i)
		}
	}
	connected, ready := status(v1alpha1.ConditionConnected), status(v1alpha1.ConditionReady)
	switch {
	case alive == 0 && (connected == metav1.ConditionTrue || ready == metav1.ConditionTrue):
		return "nothing passes, but it is connected or ready"
	case alive == 0 && writers > 0 && (connected != metav1.ConditionFalse || ready != metav1.ConditionFalse):
		return "nothing passes and a gateway is alive, but it is not reported as disconnected"
	case alive < 2 && len(w.gateways) > 1 && status(v1alpha1.ConditionRedundant) != metav1.ConditionFalse:
		return "one plane is left at most, but it is redundant"
	case works && connected != metav1.ConditionTrue:
		return "a plane works, but it is not connected"
	}
	return ""
}

// faults are all that can happen to a node or gateway with a number.
var faults = []struct {
	name string
	do   func(t *testing.T, w *world, node, gateway int)
}{
	{"node dies", func(_ *testing.T, w *world, n, _ int) { w.nodes[n].dead = true }},
	{"node agent hangs", func(_ *testing.T, w *world, n, _ int) { w.nodes[n].hung = true }},
	{"node agent is cut off from the API server", func(_ *testing.T, w *world, n, _ int) { w.nodes[n].cut.Store(true) }},
	{"node is cut off from a gateway", func(_ *testing.T, w *world, n, g int) { w.nodes[n].cutOff[g] = true }},
	{"gateway is Pending", func(_ *testing.T, w *world, _, g int) { w.gateways[g].gone = true }},
	{"gateway's agent hangs", func(_ *testing.T, w *world, _, g int) { w.gateways[g].hung = true }},
	{"gateway is cut off from the API server", func(_ *testing.T, w *world, _, g int) { w.gateways[g].cut.Store(true) }},
	{"gateway is cut off from all nodes", func(_ *testing.T, w *world, _, g int) {
		for _, n := range w.nodes {
			n.cutOff[g] = true
		}
	}},
	{"tunnel is down", func(_ *testing.T, w *world, _, g int) { w.gateways[g].tunnelDown = true }},
	{"tunnel loses large packets", func(_ *testing.T, w *world, _, g int) { w.gateways[g].losesLarge = len(w.gateways) > 1 }},
	{"peer's gateway reaches no node", func(_ *testing.T, w *world, _, g int) { w.gateways[g].farHalf = len(w.gateways) > 1 }},
	{"gateway starts again", func(t *testing.T, w *world, _, g int) {
		if !w.nodes[g].dead {
			w.gateways[g].stop()
			w.startGateway(t, g)
		}
	}},
	{"gateway reaches the API server again", func(_ *testing.T, w *world, _, g int) { w.gateways[g].cut.Store(false) }},
	{"tunnel is up again", func(_ *testing.T, w *world, _, g int) { w.gateways[g].tunnelDown = false }},
}

// lastOfAgents is the last fault that ends what a node's agent can write.
const lastOfAgents = 2

// survives reports whether the agent of another node runs and reaches the API server.
func (w *world) survives(node int) bool {
	for i, n := range w.nodes {
		if i != node && n.runs() && !n.cut.Load() {
			return true
		}
	}
	return false
}

// Whoever died, when, and of what: 30 s after the last failure, the conditions are true, as long as one node agent
// reaches the API server.
func TestConditionsAreTrue(t *testing.T) {
	random := kit.Random(t)
	worlds := 100
	if testing.Short() {
		worlds = 10
	}
	for i := range worlds {
		planes := 1 + random.IntN(3)
		nodes := planes + random.IntN(3)
		askEvery := time.Duration(1+random.IntN(10)) * time.Second
		steps := make([]struct {
			after                time.Duration
			fault, node, gateway int
		}, 1+random.IntN(6))
		for j := range steps {
			s := &steps[j]
			s.after, s.fault = time.Duration(random.IntN(40))*time.Second, random.IntN(len(faults))
			s.node, s.gateway = random.IntN(nodes), random.IntN(planes)
		}
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, planes, nodes, askEvery)
				w.pass(t, 25*time.Second)
				if want := "True True False True"; w.text() != want[:len(w.text())] {
					t.Errorf("at first: %s", w.text())
				}
				was := []string{fmt.Sprintf("%d planes, %d nodes that ask every %v: %s", planes, nodes, askEvery, w.text())}
				for _, s := range steps {
					w.pass(t, s.after)
					if s.fault <= lastOfAgents && !w.survives(s.node) {
						continue // nobody would be left who could write
					}
					faults[s.fault].do(t, w, s.node, s.gateway)
					was = append(was, fmt.Sprintf("%v later, of node %d or gateway %d: %s", s.after, s.node, s.gateway, faults[s.fault].name))
				}
				w.pass(t, 30*time.Second)
				if wrong := w.wrong(t); wrong != "" {
					t.Errorf("%s: Ready, Connected, Degraded, Redundant are %s\n%s", wrong, w.text(), strings.Join(was, "\n"))
				}
			})
		})
	}
}
