package status

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/history"
	"github.com/liqonet/liqonet/pkg/kube"
)

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
