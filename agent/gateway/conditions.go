package gateway

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/samber/lo"
	"github.com/samber/lo/it"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/agent/heartbeat"
	"github.com/liqonet/liqonet/agent/history"
	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	form "github.com/liqonet/liqonet/pkg/history"
	"github.com/liqonet/liqonet/pkg/metrics"
)

// conditions are the peering's conditions, and what they depend on. Each gateway decides whether packets pass through
// its own plane, and the others rely on its status while it is alive.
type conditions struct {
	// started is when this gateway began, and connectedAt when probes through its tunnel were last not answered.
	started, connectedAt time.Time
	// last are those last reported, nil while another gateway writes them.
	last []metav1.Condition
	// degraded is why some packets do not pass.
	degraded string
	// partly are the planes through which some nodes do not reach the peer, and others do.
	partly map[int32]partlyReached
	// reports are what nodes report to the API server.
	reports map[netip.Addr]nodeReport
	// others observes the other gateways.
	others heartbeat.Observer
	// writes is set if this gateway is the one that writes conditions, and its plane works.
	writes bool
}

// nodeReport contains the planes through which a node reaches the peer, and those through which it sends packets, a bit
// for each.
type nodeReport struct{ reached, active uint8 }

// read extracts everything that the conditions depend on from the reports of nodes.
func (c *conditions) read(p *v1alpha1.Peering, nodes []v1alpha1.NodeNetwork) {
	c.reports = map[netip.Addr]nodeReport{}
	for addr, n := range overlayNodes(p, nodes) {
		var r nodeReport
		for _, plane := range p.Spec.Planes {
			g := ptr.Deref(n.Gateway(p.Name, plane.Index), v1alpha1.NodeGateway{})
			r.reached |= lo.Ternary[uint8](g.Ready, 1<<plane.Index, 0)
			r.active |= lo.Ternary[uint8](g.Active, 1<<plane.Index, 0)
		}
		c.reports[addr] = r
	}
	c.degraded = degradedCondition(p, nodes)
	c.partly = partlyReachedPlanes(p, nodes, c.partly)
	c.others.SetPlanes(p.Spec.Planes)
}

// report adds the conditions to a status. asks are the nodes that ask this gateway.
func (c *conditions) report(s *status, p *v1alpha1.Peering, asks *requesters, r *recorder) {
	own, alive := s.plane.Index, c.planesAlive(p, s.plane, asks)
	// One gateway records the peer's services. While none is connected, the last one's records stay.
	c.writes = alive[own] && c.isWriter(p, own, alive)
	if s.keepConditions = c.isUnsure(p, own, alive); s.keepConditions || !c.isWriter(p, own, alive) {
		c.last = nil // another gateway writes them now
		return
	}
	s.conditions = c.current(p, s.plane, alive, r)
	s.disputed = c.isDisputed(p, own, alive, s.conditions)
}

// isReached reports whether nodes reach the peer through this gateway's plane, whose tunnel works. If no node asks this
// gateway, either it is cut off from the nodes, and they report that they do not reach the peer, or their agents do not
// run. After the tunnel has come up, nodes get time to find out.
func (c *conditions) isReached(own int32, tunnelWorks bool, asks *requesters) bool {
	if !tunnelWorks {
		c.connectedAt = time.Now()
		return false
	}
	reaching, voters := asks.reaching(own)
	isCutOff := func(r nodeReport) bool { return r.reached&(1<<own) == 0 }
	reached := reaching > 0 || voters == 0 && !it.ContainsBy(maps.Values(c.reports), isCutOff)
	return reached || time.Since(c.connectedAt) < startGrace
}

// countNodes counts nodes by what they do with the gateway of a plane. Nodes that are gone do nothing, whatever they
// last reported.
func (c *conditions) countNodes(plane int32, requests *requesters) map[string]int {
	out := map[string]int{metrics.NodesKnown: len(c.reports), metrics.NodesReady: 0, metrics.NodesActive: 0}
	for addr, r := range c.reports {
		reached, votes, gone := requests.reach(addr)
		if !votes {
			reached = lo.Ternary(gone, 0, r.reached)
		}
		out[metrics.NodesReady] += int(reached>>plane) & 1
		out[metrics.NodesActive] += lo.Ternary(gone, 0, int(r.active>>plane)&1)
	}
	return out
}

// planesAlive returns the planes through which packets pass. If a plane's gateway is not alive, more than half of the
// nodes that ask this one have to reach the peer through it: one of them may be compromised.
func (c *conditions) planesAlive(p *v1alpha1.Peering, own v1alpha1.PlaneStatus, asks *requesters) map[int32]bool {
	alive := map[int32]bool{}
	for _, plane := range p.Spec.Planes {
		if s := p.PlaneStatus(plane.Index); c.others.IsAlive(plane.Index) {
			alive[plane.Index] = s != nil && s.Connected
		} else {
			reaching, voters := asks.reaching(plane.Index)
			alive[plane.Index] = 2*reaching > voters
		}
	}
	alive[own.Index] = own.Connected
	return alive
}

// isUnsure reports whether the conditions must stay unchanged: this gateway has just started, and does not know yet
// which other gateways are alive, or packets do not pass yet. They may change if its own plane works and the peering is
// not reported as connected.
func (c *conditions) isUnsure(p *v1alpha1.Peering, own int32, alive map[int32]bool) bool {
	if time.Since(c.started) >= heartbeat.Timeout || alive[own] && !meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionConnected) {
		return false
	}
	isOther := func(plane v1alpha1.Plane) bool { return plane.Index != own }
	isUnknown := func(plane v1alpha1.Plane) bool { return isOther(plane) && !c.others.IsAlive(plane.Index) }
	return slices.ContainsFunc(p.Spec.Planes, isUnknown) ||
		slices.ContainsFunc(p.Spec.Planes, isOther) && !slices.Contains(slices.Collect(maps.Values(alive)), true)
}

// isWriter reports whether this gateway writes the conditions. The writer is the gateway of the lowest plane through
// which packets pass, among those that can write. If there is none, every gateway that is alive writes. They write the
// same values.
func (c *conditions) isWriter(p *v1alpha1.Peering, own int32, alive map[int32]bool) bool {
	for _, plane := range p.Spec.Planes {
		if alive[plane.Index] && (plane.Index == own || c.others.IsAlive(plane.Index)) {
			return plane.Index == own
		}
	}
	return true
}

// isDisputed reports whether to rewrite conditions that a node agent or another gateway has overwritten. Two gateways
// must not overwrite each other forever: if packets pass through the plane of neither, the lower one decides.
func (c *conditions) isDisputed(p *v1alpha1.Peering, own int32, alive map[int32]bool, mine []metav1.Condition) bool {
	isLower := func(other v1alpha1.Plane) bool { return other.Index < own && c.others.IsAlive(other.Index) }
	decides := alive[own] || !slices.ContainsFunc(p.Spec.Planes, isLower)
	return slices.ContainsFunc(mine, func(now metav1.Condition) bool {
		there := ptr.Deref(meta.FindStatusCondition(p.Status.Conditions, now.Type), metav1.Condition{})
		return there.Status != now.Status && (decides || there.Reason == v1alpha1.ReasonGatewaysSilent)
	})
}

// current returns the conditions if packets pass through the planes in alive, and records their changes.
func (c *conditions) current(p *v1alpha1.Peering, own v1alpha1.PlaneStatus, alive map[int32]bool, r *recorder) []metav1.Condition {
	if c.last == nil {
		c.last = slices.Clone(p.Status.Conditions)
	}
	const yes, no = metav1.ConditionTrue, metav1.ConditionFalse
	planes, problem := len(p.Spec.Planes), c.degraded
	lost := lo.FilterMap(p.Spec.Planes, func(plane v1alpha1.Plane, _ int) (string, bool) {
		return fmt.Sprint(plane.Index), !alive[plane.Index]
	})
	callers := callersOf(p, own)
	problem = strings.TrimPrefix(problem+callers, "; ")
	connected := loop.Condition(v1alpha1.ConditionConnected, yes, "ProbesAnswered", "probes through the tunnel are answered")
	if len(lost) == planes {
		connected = loop.Condition(connected.Type, no, "NoAnswer", own.Message)
	}
	degraded := loop.Condition(v1alpha1.ConditionDegraded, no, "AllReached", "all nodes and pods that are known can use the peering")
	redundant := loop.Condition(v1alpha1.ConditionRedundant, yes, "SeveralPlanes", "more than one plane carries packets")
	if len(lost) > 0 && planes > 1 {
		problem = strings.TrimPrefix(problem+"; no packets pass through "+pluralize("plane", lost), "; ")
	}
	for _, plane := range p.Spec.Planes {
		// A plane that fails or starts is not noticed by all nodes at the same time.
		if partly, is := c.partly[plane.Index]; is && alive[plane.Index] && time.Since(partly.since) >= partlyAfter {
			problem = strings.TrimPrefix(fmt.Sprintf("%s; the peer is not reached through plane %d from %s", problem, plane.Index, partly.from), "; ")
		}
	}
	switch {
	case connected.Status == no:
		degraded.Reason, degraded.Message = "NotConnected", "nothing passes at all"
	case problem != "":
		degraded = loop.Condition(degraded.Type, yes, lo.Ternary(callers == "", "PartlyReached", "TwoCallers"), loop.Truncate(problem))
	}
	if planes-len(lost) < 2 {
		message := "no packets pass through " + pluralize("plane", lost) + ": the next failure ends all connections"
		redundant = loop.Condition(redundant.Type, no, "OnePlaneLeft", message)
	}
	all := []metav1.Condition{connected, degraded, redundant}
	if planes < 2 {
		all = all[:2]
		meta.RemoveStatusCondition(&c.last, v1alpha1.ConditionRedundant)
	}
	for _, now := range append(all, keysFreshCondition(p, time.Now())) {
		now.ObservedGeneration = own.ObservedGeneration
		r.noteCondition(meta.FindStatusCondition(c.last, now.Type), now)
		meta.SetStatusCondition(&c.last, now)
	}
	meta.SetStatusCondition(&c.last, v1alpha1.ReadyCondition(c.last))
	return slices.Clone(c.last)
}

// callersOf returns which planes two gateways call with one key. own is the status of this gateway's plane.
func callersOf(p *v1alpha1.Peering, own v1alpha1.PlaneStatus) (out string) {
	for _, s := range p.Status.Planes {
		if s.Index == own.Index {
			s = own
		}
		if s.OtherCaller != "" {
			out += fmt.Sprintf("; plane %d: %s", s.Index, callersMessage(s.Endpoint, s.OtherCaller))
		}
	}
	return out
}

// keysFreshCondition reports the age of the gateways' keys. The API server's clock may be some seconds or minutes off,
// which does not matter for months.
func keysFreshCondition(p *v1alpha1.Peering, now time.Time) metav1.Condition {
	c := loop.Condition(v1alpha1.ConditionKeysFresh, metav1.ConditionTrue, "Young", "no key is older than 90 days")
	var old []string
	for _, plane := range p.Spec.Planes {
		if plane.KeyTime == nil {
			c.Status, c.Reason, c.Message = metav1.ConditionUnknown, "NoTime", "an older version created a key without recording the time"
		} else if now.Sub(plane.KeyTime.Time) > v1alpha1.MaxKeyAge {
			old = append(old, fmt.Sprintf("%d (%s)", plane.Index, plane.KeyTime.UTC().Format(time.DateOnly)))
		}
	}
	if len(old) > 0 {
		c.Status, c.Reason = metav1.ConditionFalse, "Old"
		c.Message = "older than 90 days: the keys of " + pluralize("plane", old) + "; `kubectl liqonet rotate-keys` makes new ones"
	}
	return c
}

// pluralize names several things of a kind.
func pluralize(what string, names []string) string {
	return what + lo.Ternary(len(names) > 1, "s ", " ") + strings.Join(names, ", ")
}

// maxNamed is how many nodes a message names.
const maxNamed = 3

// degradedCondition returns why packets do not pass from all nodes or for all pods; "" if they do.
func degradedCondition(p *v1alpha1.Peering, nodes []v1alpha1.NodeNetwork) string {
	var unreached, small []string
	for _, n := range overlayNodes(p, nodes) {
		if slices.ContainsFunc(p.Spec.Planes, func(plane v1alpha1.Plane) bool { return mtuTooSmall(n, n.Gateway(p.Name, plane.Index)) }) {
			small = append(small, n.Name)
			continue
		}
		if !slices.ContainsFunc(p.Spec.Planes, func(plane v1alpha1.Plane) bool {
			return ptr.Deref(n.Gateway(p.Name, plane.Index), v1alpha1.NodeGateway{}).Ready
		}) {
			unreached = append(unreached, n.Name)
		}
	}
	problem := ""
	if len(unreached) > 0 {
		problem = "the peer is not reached from " + summarizeNames(unreached)
	}
	tooSmall := ""
	if len(small) > 0 {
		tooSmall = fmt.Sprintf("left out, with an MTU below %d bytes, or below %d bytes to a gateway: %s", minUnderlayMTU, minNodeMTU, summarizeNames(small))
	}
	return strings.Join(lo.Compact([]string{problem, tooSmall, p.OutsidePodMessage(nodes)}), "; ")
}

// partlyReached are the nodes that do not reach the peer through a plane, and since when there are any.
type partlyReached struct {
	from  string
	since time.Time
}

// partlyAfter is how long that lasts until it is reported.
const partlyAfter = 30 * time.Second

// partlyReachedPlanes returns the planes through which some nodes reach the peer, and others only through another one. The
// peer's packets to those get lost on that plane. before is the last result.
func partlyReachedPlanes(p *v1alpha1.Peering, nodes []v1alpha1.NodeNetwork, before map[int32]partlyReached) map[int32]partlyReached {
	ready := func(n *v1alpha1.NodeNetwork, plane int32) bool {
		return ptr.Deref(n.Gateway(p.Name, plane), v1alpha1.NodeGateway{}).Ready
	}
	out := map[int32]partlyReached{}
	for _, plane := range p.Spec.Planes {
		var not []string
		isReached := false
		for _, n := range overlayNodes(p, nodes) {
			if ready(n, plane.Index) {
				isReached = true
			} else if slices.ContainsFunc(p.Spec.Planes, func(other v1alpha1.Plane) bool { return ready(n, other.Index) }) {
				not = append(not, n.Name)
			}
		}
		if isReached && len(not) > 0 {
			last, was := before[plane.Index]
			out[plane.Index] = partlyReached{summarizeNames(not), lo.Ternary(was, last.since, time.Now())}
		}
	}
	return out
}

// summarizeNames names the first nodes in alphabetical order, and how many there are.
func summarizeNames(names []string) string {
	if len(names) == 1 {
		return "node " + names[0]
	}
	slices.Sort(names)
	more := lo.Ternary(len(names) > maxNamed, " and others", "")
	return fmt.Sprintf("%d nodes (%s%s)", len(names), strings.Join(names[:min(len(names), maxNamed)], ", "), more)
}

// startGrace is how long a new gateway may take until packets pass, before its plane counts as down.
const startGrace = 10 * time.Second

// planeStarting is the initial state of a plane.
const planeStarting = "starting"

// recorder records changes of this gateway's plane in the history, and remembers the last state.
type recorder struct {
	record *history.Record
	// peering and index identify the plane. uid is the Peering's: a recreated one has no past.
	peering string
	index   int32

	uid   types.UID
	begun time.Time
	// plane, mtu and endpoint are empty while they are not known.
	plane, mtu, endpoint string
	// callers is "two" while two gateways call with one key.
	callers string
	// leftOut are the announced endpoints that this gateway does not call.
	leftOut string
}

func newRecorder(cfg Config, c client.Client) recorder {
	return recorder{peering: cfg.Peering, index: int32(cfg.Plane), record: history.New(&history.Record{
		Client: c, Log: cfg.Log, Name: v1alpha1.GatewayHistoryName(cfg.Peering, int32(cfg.Plane)),
		Manager: v1alpha1.GatewayManager(cfg.Plane), Interval: v1alpha1.ReportInterval, Pod: cfg.PodName, Node: cfg.NodeName,
	})}
}

// add records one change. event is the reason of its Event. bad is set for a change for the worse, and ofPlane if
// the change concerns the plane.
func (r *recorder) add(what, from, to, reason, event string, bad, ofPlane bool) {
	c := history.Change{
		Entry:         form.Entry{Peering: r.peering, Subject: what, From: from, To: to, Reason: reason},
		IsDegradation: bad, Event: event, PeeringUID: r.uid,
	}
	if ofPlane {
		c.Plane = &r.index
	}
	r.record.Add(c)
}

// update records how the plane has changed since the last call.
func (r *recorder) update(uid types.UID, s v1alpha1.PlaneStatus, state, why string) {
	if r.uid != uid {
		r.uid, r.begun, r.plane, r.mtu, r.endpoint, r.callers = uid, time.Now(), "", "", "", ""
		r.setPlane(planeStarting, "the gateway runs on node "+s.NodeName)
	}
	if r.plane == metrics.Down && state == metrics.Leaving {
		return // the peer's gateway announced this before, and is gone by now
	}
	if r.plane != planeStarting || state != metrics.Down || time.Since(r.begun) >= startGrace {
		r.setPlane(state, why)
	}
	mtu := lo.Ternary(s.MTU > 0, fmt.Sprint(s.MTU), "")
	r.recordChange(&r.mtu, mtu, "MTU", "the MTU that both sides support has changed", "MTUChanged")
	callers := lo.Ternary(s.OtherCaller == "", "one", "two")
	if r.callers != callers && (r.callers != "" || s.OtherCaller != "") {
		reason := lo.Ternary(s.OtherCaller == "", "all probes come from one gateway again", callersMessage(s.Endpoint, s.OtherCaller))
		r.add("callers", r.callers, callers, reason, lo.Ternary(s.OtherCaller == "", "OneCaller", "TwoCallers"), s.OtherCaller != "", true)
	}
	r.callers = callers
	if s.OtherCaller != "" {
		return // the endpoint alternates
	}
	r.recordChange(&r.endpoint, s.Endpoint, "endpoint", "WireGuard sends to another address of the peer", "EndpointChanged")
}

// recordLeftOut records endpoints that the peer announces, although they are addresses of this cluster.
func (r *recorder) recordLeftOut(now string) {
	if now != "" && now != r.leftOut {
		r.add("endpoint", "", now, "the peer announces this endpoint, which is an address of this cluster, and is not called", "EndpointLeftOut", true, true)
	}
	r.leftOut = now
}

// recordChange records a change of a value from the last known one. An empty value is not known.
func (r *recorder) recordChange(last *string, now, what, why, event string) {
	if now != "" && *last != "" && now != *last {
		r.add(what, *last, now, why, event, false, true)
	}
	*last = cmp.Or(now, *last)
}

func (r *recorder) setPlane(state, why string) {
	if r.plane == state {
		return
	}
	bad := state == metrics.Down || state == metrics.Leaving
	r.add("plane", r.plane, state, why, "Plane"+strings.ToUpper(state[:1])+state[1:], bad, true)
	r.plane = state
}

// leave records that this gateway ends.
func (r *recorder) leave() {
	if r.uid != "" {
		r.setPlane(metrics.Leaving, "this gateway ends")
	}
}

// noteCondition records a condition of the peering if its status has changed. before is nil for a new condition,
// which is recorded only if it is True.
func (r *recorder) noteCondition(before *metav1.Condition, now metav1.Condition) {
	from, event := metav1.ConditionStatus(""), lo.Ternary(now.Status == metav1.ConditionTrue, "", "Not")+now.Type
	if before != nil && before.Reason != v1alpha1.ReasonPending {
		from = before.Status
	}
	if from == now.Status || from == "" && now.Status != metav1.ConditionTrue {
		return
	}
	r.add(now.Type, string(from), string(now.Status), now.Message, event, !v1alpha1.IsHealthy(now), false)
}
