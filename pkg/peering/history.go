package peering

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/history"
)

// HistoryEntry is one change of state, as an agent of a cluster has noted it.
type HistoryEntry struct {
	// Time is when it was, by the clock that all entries are brought to.
	Time time.Time `json:"time"`
	// AgentTime is the same by the agent's own clock.
	AgentTime time.Time `json:"agentTime"`
	Cluster   string    `json:"cluster"`
	ClusterID string    `json:"clusterID"`
	// Agent is "gateway PLANE" or "node NAME".
	Agent string `json:"agent"`
	// Peering is the name of the Peering in this cluster, Plane the plane's index; nil where it is about all.
	Peering string `json:"peering"`
	Plane   *int32 `json:"plane,omitempty"`
	// What has changed: from one state to another, for a reason.
	What   string `json:"what"`
	From   string `json:"from,omitempty"`
	To     string `json:"to"`
	Reason string `json:"reason,omitempty"`
}

// History returns what the cluster's agents have noted, the oldest first, in times by the API server's clock of the
// reference.
func (c *Cluster) History(ctx context.Context, reference *Cluster) (out []HistoryEntry, err error) {
	records, err := c.records(ctx)
	if err != nil {
		return nil, err
	}
	between := history.Between(c.Now(), reference.Now())
	for i := range records {
		r := &records[i]
		correction := between + correctionOf(r)
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

// records are the ConfigMaps in which agents note changes.
func (c *Cluster) records(ctx context.Context) ([]corev1.ConfigMap, error) {
	var list corev1.ConfigMapList
	if err := c.list(ctx, &list, client.InNamespace(v1alpha1.Namespace), client.MatchingLabels{v1alpha1.LabelManagedBy: v1alpha1.FieldManager}); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(m corev1.ConfigMap) bool { return !strings.HasPrefix(m.Name, v1alpha1.HistoryPrefix) }), nil
}

// correctionOf is what to add to times of a record, to have them by the API server's clock. The agent
// has written the time of its clock, and the API server its own one beside it.
func correctionOf(record *corev1.ConfigMap) time.Duration {
	clock, err := time.Parse(time.RFC3339Nano, record.Data[history.ClockKey])
	stamp := stampOf(record)
	if err != nil || stamp.IsZero() {
		return 0
	}
	return history.Correction(clock, stamp)
}

// agentOf says whose record it is.
func agentOf(record *corev1.ConfigMap) string {
	if node, isNode := strings.CutPrefix(record.Name, v1alpha1.NodeHistory("")); isNode {
		return "node " + node
	}
	return "gateway " + record.Labels[v1alpha1.LabelPlane]
}

// forget removes what tells of a peering that is not any more: Events, and entries in the records of nodes' agents. These
// forget it themselves, but only with their next write.
func (c *Cluster) forget(ctx context.Context, peering string) error {
	if err := c.deleteEvents(ctx, peering); err != nil {
		return err
	}
	records, err := c.records(ctx)
	if err != nil {
		return err
	}
	g, ctx := failure.NewGroup(ctx)
	g.SetLimit(16)
	for _, m := range pointers(records) {
		values := map[string]any{}
		for _, e := range history.Decode(m.Data) {
			if e.Peering == peering {
				values[history.Key(e.Number)] = nil
			}
		}
		if len(values) > 0 {
			raw, _ := json.Marshal(map[string]any{"data": values}) // names can always be written
			g.Go(func() error {
				err := c.Client.Patch(ctx, m, client.RawPatch(types.MergePatchType, raw), client.FieldOwner(v1alpha1.FieldManager))
				return c.fail("write "+describe(m), client.IgnoreNotFound(err))
			})
		}
	}
	return g.Wait()
}

// deleteEvents deletes the Events about a Peering, or about all if the name is empty.
func (c *Cluster) deleteEvents(ctx context.Context, peering string) error {
	about := client.MatchingFields{"involvedObject.kind": "Peering", "involvedObject.apiVersion": v1alpha1.GroupVersion.String()}
	if peering != "" {
		about["involvedObject.name"] = peering
	}
	err := c.Client.DeleteAllOf(ctx, &corev1.Event{}, client.InNamespace(metav1.NamespaceDefault), about)
	return c.fail(fmt.Sprintf("delete the Events about Peering %s", peering), client.IgnoreNotFound(err))
}

// deleteMisplaced deletes Events about Services of our namespace that are in the default one. The Endpoints controller of
// Kubernetes names no namespace where it could not make Endpoints.
func (c *Cluster) deleteMisplaced(ctx context.Context) error {
	var events corev1.EventList
	if err := c.list(ctx, &events, client.InNamespace(metav1.NamespaceDefault), client.MatchingFields{"involvedObject.kind": "Endpoints"}); err != nil {
		return err
	}
	for i := range events.Items {
		if e := &events.Items[i]; strings.Contains(e.Message, " "+v1alpha1.Namespace+"/") {
			if err := c.delete(ctx, e); err != nil {
				return err
			}
		}
	}
	return nil
}
