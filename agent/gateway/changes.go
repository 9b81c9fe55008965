package gateway

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/agent/history"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	form "github.com/liqonet/liqonet/pkg/history"
	"github.com/liqonet/liqonet/pkg/metrics"
)

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
		r.uid, r.begun, r.plane, r.mtu, r.endpoint = uid, time.Now(), "", "", ""
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
	from, event := "", lo.Ternary(now.Status == metav1.ConditionTrue, "", "Not")+now.Type
	if before != nil && before.Reason == v1alpha1.ReasonPending {
		before = nil
	}
	switch {
	case before == nil && now.Status != metav1.ConditionTrue, before != nil && before.Status == now.Status:
		return
	case before != nil:
		from = string(before.Status)
	}
	r.add(now.Type, from, string(now.Status), now.Message, event, !v1alpha1.IsHealthy(now), false)
}
