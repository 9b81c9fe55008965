package status

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/history"
	"github.com/liqonet/liqonet/pkg/kube"
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
		case stamp.IsZero(), stamp.Sub(serverNow) > 3*v1alpha1.ReportInterval:
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

// Age returns how long ago the Lease was renewed, nil if that is unknown.
func (h Heartbeats) Age(name string) *time.Duration {
	if h[name].changed.IsZero() {
		return nil
	}
	return new(time.Since(h[name].changed))
}

// Alive reports whether the agent that renews the Lease does not count as dead.
func (h Heartbeats) Alive(name string) bool {
	age := h.Age(name)
	return age != nil && *age <= v1alpha1.MaxSilence(name)
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
	age := h.Age(name)
	if age == nil || l.Spec.RenewTime == nil {
		return nil
	}
	return new(max(l.Spec.RenewTime.Sub(at)+*age, 0))
}

// HistoryEntry is one state change that an agent recorded.
type HistoryEntry struct {
	// Time is the time of the change by the reference clock.
	Time time.Time `json:"time"`
	// AgentTime is the time of the change by the agent's clock.
	AgentTime time.Time `json:"agentTime"`
	Cluster   string    `json:"cluster"`
	ClusterID string    `json:"clusterID"`
	// Agent is "gateway PLANE" or "node NAME".
	Agent string `json:"agent"`
	// Peering is the name of the Peering in this cluster, Plane the index of the plane, nil if the change is about all planes.
	Peering string `json:"peering"`
	Plane   *int32 `json:"plane,omitempty"`
	// What changed, from which state to which, and why.
	What   string `json:"what"`
	From   string `json:"from,omitempty"`
	To     string `json:"to"`
	Reason string `json:"reason,omitempty"`
}

// History returns the state changes that the cluster's agents recorded, oldest first, in the time of the reference's
// API server.
func History(ctx context.Context, c *kube.Cluster, reference *kube.Cluster) (out []HistoryEntry, err error) {
	records, err := HistoryRecords(ctx, c)
	if err != nil {
		return nil, err
	}
	between := history.Between(c.Now(), reference.Now())
	for i := range records {
		r := &records[i]
		correction := between + clockCorrection(r)
		for _, e := range history.Decode(r.Data) {
			out = append(out, HistoryEntry{
				Time: e.Time.Add(correction).UTC(), AgentTime: e.Time.UTC(), Cluster: c.Name, ClusterID: c.ID, Agent: agentOf(r),
				Peering: e.Peering, Plane: e.Plane, What: e.What, From: e.From, To: e.To, Reason: e.Reason,
			})
		}
	}
	SortHistory(out)
	return out, nil
}

// SortHistory sorts entries by time.
func SortHistory(entries []HistoryEntry) {
	slices.SortStableFunc(entries, func(a, b HistoryEntry) int { return cmp.Or(a.Time.Compare(b.Time), strings.Compare(a.Agent, b.Agent)) })
}

// HistoryRecords returns the ConfigMaps in which agents record state changes.
func HistoryRecords(ctx context.Context, c *kube.Cluster) ([]corev1.ConfigMap, error) {
	var list corev1.ConfigMapList
	if err := c.List(ctx, &list, client.InNamespace(v1alpha1.Namespace), client.MatchingLabels{v1alpha1.LabelManagedBy: v1alpha1.FieldManager}); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(m corev1.ConfigMap) bool { return !strings.HasPrefix(m.Name, v1alpha1.HistoryPrefix) }), nil
}

// clockCorrection returns the offset from an agent's clock to the API server's clock. The record holds the agent's time
// of writing, and its managed fields that of the API server.
func clockCorrection(record *corev1.ConfigMap) time.Duration {
	clock, err := time.Parse(time.RFC3339Nano, record.Data[history.ClockKey])
	stamp := LastWrite(record)
	if err != nil || stamp.IsZero() {
		return 0
	}
	return history.Correction(clock, stamp)
}

// agentOf returns the agent that wrote the record.
func agentOf(record *corev1.ConfigMap) string {
	if node, isNode := strings.CutPrefix(record.Name, v1alpha1.NodeHistory("")); isNode {
		return "node " + node
	}
	return "gateway " + record.Labels[v1alpha1.LabelPlane]
}
