package gateway

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/samber/lo"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/agent/history"
	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	form "github.com/liqonet/liqonet/pkg/history"
	"github.com/liqonet/liqonet/pkg/metrics"
)

// reachReport is a node's report that it reaches the peer through a plane.
type reachReport struct {
	node netip.Addr
	// own is set if the node also reports this for this gateway's plane.
	own bool
}

// handshake is the last one that a gateway has written, zero for none, and when this gateway first saw it.
type handshake struct {
	at, seen time.Time
}

// conditions are the peering's conditions, and what they depend on.
type conditions struct {
	// started is when this gateway began.
	started time.Time
	// last are those last reported, nil while another gateway writes them.
	last []metav1.Condition
	// degraded is why some packets do not pass.
	degraded string
	// reports are the nodes that report that they reach the peer, and handshakes those that gateways have written, both
	// by plane.
	reports    map[int32][]reachReport
	handshakes map[int32]handshake
}

// read extracts everything that the conditions depend on from the reports of nodes and gateways. own is this gateway's
// plane.
func (c *conditions) read(p *v1alpha1.Peering, own int32, nodes []v1alpha1.NodeNetwork) {
	c.reports = map[int32][]reachReport{}
	for addr, n := range overlayNodes(p, nodes) {
		reaches := func(plane int32) bool { return ptr.Deref(n.Gateway(p.Name, plane), v1alpha1.NodeGateway{}).Ready }
		for _, plane := range p.Spec.Planes {
			if reaches(plane.Index) {
				c.reports[plane.Index] = append(c.reports[plane.Index], reachReport{addr, reaches(own)})
			}
		}
	}
	c.handshakes = lo.SliceToMap(p.Status.Planes, func(s v1alpha1.PlaneStatus) (int32, handshake) {
		h, known := c.handshakes[s.Index]
		if at := ptr.Deref(s.LastHandshake, metav1.Time{}).Time; !known || !h.at.Equal(at) {
			h = handshake{at, time.Now()}
		}
		return s.Index, h
	})
	c.degraded = degradedCondition(p, nodes)
}

// report adds the conditions to a status. asks are the nodes that ask this gateway.
func (c *conditions) report(s *status, p *v1alpha1.Peering, asks *requesters, r *recorder) {
	own, alive := s.plane.Index, c.planesAlive(p, s.plane, asks)
	if s.keepConditions = c.isUnsure(p, own, alive); s.keepConditions || !c.isWriter(p, own, alive) {
		c.last = nil // another gateway writes them now
		return
	}
	s.conditions = c.current(p, s.plane, alive, r)
	s.disputed = c.isDisputed(p, own, alive, meta.FindStatusCondition(s.conditions, v1alpha1.ConditionConnected))
}

// planesAlive returns the planes through which packets pass: this gateway's own as measured, the others as reported by
// nodes that are alive. If these nodes reach the peer only through other planes, its own does not count either: the
// other gateways know only what the nodes report.
func (c *conditions) planesAlive(p *v1alpha1.Peering, own v1alpha1.PlaneStatus, asks *requesters) map[int32]bool {
	alive, confirmed, asking := map[int32]bool{}, map[int32]int{}, asks.count()
	all := 0
	for plane, claims := range c.reports {
		confirmed[plane] = lo.CountBy(claims, func(by reachReport) bool {
			isAsking, _ := asks.state(by.node)
			return isAsking
		})
		all += confirmed[plane]
	}
	for _, plane := range p.Spec.Planes {
		if c.isWriting(plane.Index) && !c.isStarting() {
			isTrue := func(by reachReport) bool { return c.confirms(by, plane.Index, asks) }
			alive[plane.Index] = slices.ContainsFunc(c.reports[plane.Index], isTrue)
		} else {
			// A node that is compromised or does not reach the API server does not withdraw its report.
			alive[plane.Index] = 2*confirmed[plane.Index] > asking
		}
	}
	alive[own.Index] = own.Connected && (confirmed[own.Index] > 0 || all == 0)
	return alive
}

// isStarting reports whether this gateway has been listening for less time than nodes get to ask.
func (c *conditions) isStarting() bool { return time.Since(c.started) < requesterTimeout }

// isUnsure reports whether the conditions must stay unchanged: this gateway is starting, and does not know yet
// whether packets pass through the other planes. They may change if its own plane works and the peering is not
// reported as connected.
func (c *conditions) isUnsure(p *v1alpha1.Peering, own int32, alive map[int32]bool) bool {
	if !c.isStarting() || alive[own] && !meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionConnected) {
		return false
	}
	return slices.ContainsFunc(p.Spec.Planes, func(other v1alpha1.Plane) bool { return other.Index != own && !alive[other.Index] })
}

// confirms reports whether a claim is still true. If a node is silent, either it is dead or this gateway is cut off
// from it. The second case must not look like the end of the peering. There the node reports that it does not reach
// the peer through this gateway, and the other plane's gateway continues to write.
func (c *conditions) confirms(by reachReport, plane int32, asks *requesters) bool {
	isAsking, gone := asks.state(by.node)
	return isAsking || !(gone && by.own) && c.isWriting(plane)
}

// isWriting reports whether another plane's tunnel works and its gateway reaches the API server.
func (c *conditions) isWriting(plane int32) bool {
	h := c.handshakes[plane]
	return !h.at.IsZero() && time.Since(h.seen) < handshakeTimeout
}

// isWriter reports whether this gateway writes the conditions. The writer is the gateway of the lowest plane through
// which packets pass, among those that can write. If there is none, every gateway that is alive writes, since none
// knows which others are alive. They write the same values.
func (c *conditions) isWriter(p *v1alpha1.Peering, own int32, alive map[int32]bool) bool {
	for _, plane := range p.Spec.Planes {
		if alive[plane.Index] && (plane.Index == own || c.isWriting(plane.Index)) {
			return plane.Index == own
		}
	}
	return true
}

// isDisputed reports whether to rewrite Connected after a node agent or another gateway has overwritten it. It returns
// false if that gateway may be right: two gateways must not overwrite each other forever.
func (c *conditions) isDisputed(p *v1alpha1.Peering, own int32, alive map[int32]bool, mine *metav1.Condition) bool {
	connected := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionConnected)
	there := ptr.Deref(connected, metav1.Condition{Status: metav1.ConditionUnknown}).Status
	return there != mine.Status && (alive[own] || there == metav1.ConditionUnknown ||
		!slices.ContainsFunc(p.Spec.Planes, func(other v1alpha1.Plane) bool { return other.Index != own && c.isWriting(other.Index) }))
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
		reason := lo.Ternary(s.OtherCaller == "", "WireGuard does not return to an address that it has left", callersMessage(s.Endpoint, s.OtherCaller))
		r.add("callers", r.callers, callers, reason, lo.Ternary(s.OtherCaller == "", "OneCaller", "TwoCallers"), s.OtherCaller != "", true)
	}
	r.callers = callers
	if s.OtherCaller != "" {
		return // the endpoint alternates
	}
	r.recordChange(&r.endpoint, s.Endpoint, "endpoint", "WireGuard sends to another address of the peer", "EndpointChanged")
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
