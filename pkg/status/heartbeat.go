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
	// silence is how long after the last renewal of its Lease a gateway is taken for dead.
	silence = 3 * v1alpha1.ReportInterval
	// NodeSilence is the same for a node agent.
	NodeSilence = 3 * v1alpha1.NodeReportInterval
)

// Heartbeats tell which agents are alive. A Lease has the time of its agent's clock,
// which may be wrong by any amount. So what counts is when it was seen to change, by
// the clock of this machine that no one sets. A Lease that is seen for the first time
// has the API server's own stamp, compared with the API server's own clock.
type Heartbeats map[string]heartbeat

type heartbeat struct {
	lease coordinationv1.Lease
	// changed is when it last changed, zero if that is not known.
	changed time.Time
}

// Note takes what is seen now.
func (h Heartbeats) Note(leases []*coordinationv1.Lease, serverNow time.Time) {
	for _, l := range leases {
		last, known := h[l.Name]
		switch stamp := StampOf(l); {
		case known && last.lease.ResourceVersion == l.ResourceVersion:
		case known:
			h[l.Name] = heartbeat{lease: *l, changed: time.Now()}
		// One of several API servers may be a little ahead. More than that is no stamp to
		// go by.
		case stamp.IsZero(), stamp.Sub(serverNow) > silence:
			h[l.Name] = heartbeat{lease: *l}
		default:
			h[l.Name] = heartbeat{lease: *l, changed: time.Now().Add(-max(serverNow.Sub(stamp), 0))}
		}
	}
}

// StampOf is when an agent last wrote its Lease, or its history, by the API server's clock.
func StampOf(l client.Object) (latest time.Time) {
	for _, f := range l.GetManagedFields() {
		if f.Manager != v1alpha1.FieldManager && f.Time != nil && f.Time.After(latest) {
			latest = f.Time.Time
		}
	}
	return latest
}

// Age is how long ago the Lease was renewed. It says false where it never was, as far
// as is known.
func (h Heartbeats) Age(name string) (time.Duration, bool) {
	b := h[name]
	return time.Since(b.changed), !b.changed.IsZero()
}

// Alive says that the Lease was renewed within the time.
func (h Heartbeats) Alive(name string, within time.Duration) bool {
	age, known := h.Age(name)
	return known && age <= within
}

// Pod is the one whose agent renews the Lease, empty if there is none.
func (h Heartbeats) Pod(name string) string {
	l := h[name].lease
	return cmp.Or(l.Annotations[v1alpha1.AnnotationPod], ptr.Deref(l.Spec.HolderIdentity, ""))
}

// Version is that of the agent that renews the Lease, empty where that is not known.
func (h Heartbeats) Version(name string) string {
	return h[name].lease.Annotations[v1alpha1.AnnotationVersion]
}

// Measured is what the agent tells with its Lease, nil where that is not known.
func (h Heartbeats) Measured(name string) *v1alpha1.Measured {
	return v1alpha1.ParseMeasured(h[name].lease.Annotations[v1alpha1.AnnotationMeasured])
}

// Starved is how late the agent is, in percent of a second; 0 where it does not say so.
func (h Heartbeats) Starved(name string) int {
	percent, _ := strconv.Atoi(h[name].lease.Annotations[v1alpha1.AnnotationStarved])
	return percent
}

// sinceOf is how long ago something was that the agent has told with its own clock,
// nil where that is not known. The Lease has a time of the same clock.
func (h Heartbeats) sinceOf(name string, at time.Time) *time.Duration {
	l := h[name].lease
	age, known := h.Age(name)
	if !known || l.Spec.RenewTime == nil {
		return nil
	}
	return new(max(l.Spec.RenewTime.Sub(at)+age, 0))
}
