package status

import (
	"cmp"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

const (
	// gatewayStaleAfter is the age of a gateway's Lease after which the gateway counts as dead.
	gatewayStaleAfter = 3 * v1alpha1.ReportInterval
	// NodeStaleAfter is the same for a node agent.
	NodeStaleAfter = 3 * v1alpha1.NodeReportInterval
)

// Heartbeats records which agents are alive. A Lease has its agent's time, which may be arbitrarily wrong, so a
// renewal is dated by this machine's monotonic clock when it is seen. A Lease seen for the first time is dated by
// comparing the API server's timestamp with the API server's clock.
type Heartbeats map[string]heartbeat

type heartbeat struct {
	lease coordinationv1.Lease
	// changed is when the Lease last changed, zero if unknown.
	changed time.Time
}

// Observe records the current Leases.
func (h Heartbeats) Observe(leases []*coordinationv1.Lease, serverNow time.Time) {
	for _, l := range leases {
		last, known := h[l.Name]
		switch stamp := LastWrite(l); {
		case known && last.lease.ResourceVersion == l.ResourceVersion:
		case known:
			h[l.Name] = heartbeat{lease: *l, changed: time.Now()}
		// One of several API servers may be slightly ahead. A timestamp further in the future is not reliable.
		case stamp.IsZero(), stamp.Sub(serverNow) > gatewayStaleAfter:
			h[l.Name] = heartbeat{lease: *l}
		default:
			h[l.Name] = heartbeat{lease: *l, changed: time.Now().Add(-max(serverNow.Sub(stamp), 0))}
		}
	}
}

// LastWrite returns when an agent last wrote its Lease or history, by the API server's clock.
func LastWrite(l client.Object) (latest time.Time) {
	for _, f := range l.GetManagedFields() {
		if f.Manager != v1alpha1.FieldManager && f.Time != nil && f.Time.After(latest) {
			latest = f.Time.Time
		}
	}
	return latest
}

// Age returns how long ago the Lease was renewed, and false if that is unknown.
func (h Heartbeats) Age(name string) (time.Duration, bool) {
	b := h[name]
	return time.Since(b.changed), !b.changed.IsZero()
}

// Alive reports whether the Lease was renewed within the given time.
func (h Heartbeats) Alive(name string, within time.Duration) bool {
	age, known := h.Age(name)
	return known && age <= within
}

// Pod returns the pod whose agent renews the Lease, empty if there is none.
func (h Heartbeats) Pod(name string) string {
	l := h[name].lease
	return cmp.Or(l.Annotations[v1alpha1.AnnotationPod], ptr.Deref(l.Spec.HolderIdentity, ""))
}

// Version returns the version of the agent that renews the Lease, empty if unknown.
func (h Heartbeats) Version(name string) string {
	return h[name].lease.Annotations[v1alpha1.AnnotationVersion]
}

// Measured returns the measurements in the agent's Lease, nil if there are none.
func (h Heartbeats) Measured(name string) *v1alpha1.Measured {
	return v1alpha1.ParseMeasured(h[name].lease.Annotations[v1alpha1.AnnotationMeasured])
}

// Starved returns by how much the agent's scheduling is delayed, in percent of a second; 0 if it reports nothing.
func (h Heartbeats) Starved(name string) int {
	percent, _ := strconv.Atoi(h[name].lease.Annotations[v1alpha1.AnnotationStarved])
	return percent
}

// since returns the time since at, which is by the agent's clock, as is the time in its Lease. It returns nil if
// unknown.
func (h Heartbeats) since(name string, at time.Time) *time.Duration {
	l := h[name].lease
	age, known := h.Age(name)
	if !known || l.Spec.RenewTime == nil {
		return nil
	}
	return new(max(l.Spec.RenewTime.Sub(at)+age, 0))
}
