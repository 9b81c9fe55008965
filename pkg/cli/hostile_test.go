package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/status"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/schema"
)

// Whatever Peering an API server stores, status prints it and the other one with a row for each gateway, and no control characters.
func TestHostilePeeringsAreShown(t *testing.T) {
	kit.NotShort(t)
	api := kit.Must(fakeapi.New(append(fakeapi.Objects("id-of-hub", "hub-1", "172.18.0.11", "10.244.0.0/16"), peeringWith("good", "1"))...))(t)
	t.Cleanup(api.Close)
	bound := schema.NewBound(t, "status")
	c := &kube.Cluster{Name: "hub", ID: "id-of-hub", Client: api.Client, Now: time.Now}
	schema.Hostile(t, 100, schema.Examples()["Peering"], func(obj map[string]any) {
		bad := schema.Into[v1alpha1.Peering](t, obj)
		bad.ResourceVersion = ""
		said := bad.Status
		kit.NoError(t, api.Client.Create(t.Context(), &bad))
		bad.Status = said
		kit.NoError(t, api.Client.Status().Update(t.Context(), &bad))
		for _, format := range []string{"table", "wide"} {
			var out bytes.Buffer
			bound.Of(obj, func() {
				views := kit.Must(status.Views(t.Context(), c))(t)
				out.Reset()
				printViews(outputOf(t, format), &out, views)
			})
			schema.NoControl(t, format, out.String())
			// A header and a row for each gateway. Then at most one row for each range and condition, and a line for each message and hint,
			// all with a header or an empty line. -o wide prints gateways twice, and conditions in a separate table.
			gateways, conditions := 1+max(len(bad.Spec.Planes), 1), len(bad.Status.Conditions)
			least := 1 + gateways
			most := least + 2 + len(bad.Spec.Local.Pods) + 1 + 2 + conditions
			if format == "wide" {
				most += 2 + gateways + 2 + conditions
			}
			if n := strings.Count(out.String(), "\n"); n < least || n > most || !strings.Contains(out.String(), "good") {
				t.Errorf("%d lines instead of %d to %d:\n%s", n, least, most, out.String())
			}
		}
		kit.NoError(t, client.IgnoreNotFound(api.Client.Delete(t.Context(), &bad)))
	})
}
