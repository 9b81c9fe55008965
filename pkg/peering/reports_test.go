package peering

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// An agent owns what an agent from before v0.1.0 has written by an update, and nobody else does. Reports that only agents have applied
// are not even read again.
func TestTakeOverReports(t *testing.T) {
	entry := func(manager string, operation metav1.ManagedFieldsOperationType, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{
			Manager: manager, Operation: operation, APIVersion: v1alpha1.GroupVersion.String(), FieldsType: "FieldsV1", Subresource: "status",
			FieldsV1: metav1.NewFieldsV1(`{"f:status":{` + fields + `}}`),
		}
	}
	update := entry("liqonet-agent", metav1.ManagedFieldsOperationUpdate, `"f:gateways":{},"f:underlayMTU":{}`)
	apply := entry("liqonet-node-n1", metav1.ManagedFieldsOperationApply, `"f:underlayMTU":{}`)
	n := report("n1", "10.80.0.1", nil)
	var now []metav1.ManagedFieldsEntry
	var read int
	var patches []string
	c := newCluster(t, "a", interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			read++
			err := c.Get(ctx, key, obj, opts...)
			obj.SetManagedFields(now) // the fake client knows of no subresources
			return err
		},
		Patch: func(_ context.Context, _ client.WithWatch, _ client.Object, patch client.Patch, _ ...client.PatchOption) error {
			raw, err := patch.Data(nil)
			patches = append(patches, string(raw))
			return err
		},
	}, &n)
	take := func(before, later []metav1.ManagedFieldsEntry) {
		t.Helper()
		seen := n
		seen.ManagedFields, now, read, patches = before, later, 0, nil
		if err := c.takeOverReports(t.Context(), []v1alpha1.NodeNetwork{seen}); err != nil {
			t.Fatal(err)
		}
	}
	if take([]metav1.ManagedFieldsEntry{apply}, nil); read > 0 {
		t.Error("a report that agents have applied was read again")
	}
	if take([]metav1.ManagedFieldsEntry{update}, []metav1.ManagedFieldsEntry{update}); len(patches) > 0 {
		t.Errorf("no agent applies yet: %s", patches)
	}
	take([]metav1.ManagedFieldsEntry{update}, []metav1.ManagedFieldsEntry{update, apply})
	if len(patches) != 1 {
		t.Fatalf("patches %s", patches)
	}
	var operations []struct {
		Path  string
		Value json.RawMessage
	}
	if err := json.Unmarshal([]byte(patches[0]), &operations); err != nil {
		t.Fatal(err)
	}
	var entries []metav1.ManagedFieldsEntry
	for _, o := range operations {
		if o.Path == "/metadata/managedFields" {
			if err := json.Unmarshal(o.Value, &entries); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(entries) != 1 || entries[0].Manager != apply.Manager || !strings.Contains(entries[0].FieldsV1.String(), "f:gateways") {
		t.Errorf("who owns what is now: %s", patches[0])
	}
}
