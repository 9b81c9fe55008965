package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/history"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/status"
)

// DeleteHistory removes the Events about a deleted peering, and its entries in the records of nodes' agents. Agents remove
// these themselves only with their next write.
func DeleteHistory(ctx context.Context, c *kube.Cluster, peering string) error {
	if err := deleteEvents(ctx, c, peering); err != nil {
		return err
	}
	records, err := status.HistoryRecords(ctx, c)
	if err != nil {
		return err
	}
	g, ctx := failure.NewGroup(ctx)
	g.SetLimit(16)
	for _, m := range kube.Pointers(records) {
		values := map[string]any{}
		for _, e := range history.Decode(m.Data) {
			if e.Peering == peering {
				values[history.Key(e.Number)] = nil
			}
		}
		if len(values) > 0 {
			raw, _ := json.Marshal(map[string]any{"data": values}) // strings can always be encoded
			g.Go(func() error {
				err := c.Client.Patch(ctx, m, client.RawPatch(types.MergePatchType, raw), client.FieldOwner(v1alpha1.FieldManager))
				return c.Fail("write "+kube.Describe(m), client.IgnoreNotFound(err))
			})
		}
	}
	return g.Wait()
}

// deleteEvents deletes the Events about a Peering, or about all Peerings if the name is empty.
func deleteEvents(ctx context.Context, c *kube.Cluster, peering string) error {
	about := client.MatchingFields{"involvedObject.kind": "Peering", "involvedObject.apiVersion": v1alpha1.GroupVersion.String()}
	if peering != "" {
		about["involvedObject.name"] = peering
	}
	err := c.Client.DeleteAllOf(ctx, &corev1.Event{}, client.InNamespace(metav1.NamespaceDefault), about)
	return c.Fail(fmt.Sprintf("delete the Events about Peering %s", peering), client.IgnoreNotFound(err))
}

// DeleteMisplacedEvents deletes Events about our Services from the default namespace. Kubernetes' Endpoints controller sets
// no namespace in Events about Endpoints that it could not create.
func DeleteMisplacedEvents(ctx context.Context, c *kube.Cluster) error {
	var events corev1.EventList
	if err := c.List(ctx, &events, client.InNamespace(metav1.NamespaceDefault), client.MatchingFields{"involvedObject.kind": "Endpoints"}); err != nil {
		return err
	}
	for i := range events.Items {
		if e := &events.Items[i]; strings.Contains(e.Message, " "+v1alpha1.Namespace+"/") {
			if err := c.Delete(ctx, e); err != nil {
				return err
			}
		}
	}
	return nil
}
