package status

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
	"github.com/liqonet/liqonet/test/schema"
)

// What an agent may write is tried with hostile values: custom resources here and in the packages that read them, the rest
// below. Nothing reads Events.
func TestWhatAgentsWriteIsTried(t *testing.T) {
	kit.Check(t, "resources", schema.Writable(), []string{
		"configmaps", "endpointslices", "endpointslices/restricted", "events", "exportedservices", "leases", "nodenetworks", "nodenetworks/status",
		"peerings/status", "receivedservices", "serviceexports/status", "serviceimports", "serviceimports/status", "services",
	})
}

// leases are those of a world, of an API server that has just been asked. other is that of a hostile agent.
func leases(name string, other coordinationv1.Lease, names ...string) (out []*coordinationv1.Lease) {
	stamp := metav1.NewTime(time.Now().Add(-time.Second))
	for _, n := range append(names, name) {
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: n, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "agent", Time: &stamp}}}}
		l.Spec.RenewTime = &metav1.MicroTime{Time: agentsNow}
		if n == name {
			l = other.DeepCopy()
			l.Name = name // roles and policies fix it
		}
		out = append(out, l)
	}
	return out
}

// Whatever an agent writes into its Lease, status shows the other peering and the other nodes as before.
func TestHostileLeases(t *testing.T) {
	kit.NotShort(t)
	c := kubetest.ClusterOf("a", nil)
	schema.BuiltIn(t, 10, func(field string, hostile coordinationv1.Lease) {
		w := newWorld()
		n1, n2 := w.nodes[1].LeaseName(), w.nodes[0].LeaseName()
		for name, others := range map[string][]string{"gateway-other-0": {"gateway-b-0", n1, n2}, n1: {"gateway-b-0", n2}} {
			beats := Heartbeats{}
			beats.Observe(leases(name, hostile, others...), time.Now())
			v, err := ViewFrom(c, w.peering, w.nodes, w.ready, nil, beats)
			kit.FatalIf(t, err != nil, "%s of %s: %v", field, name, err)
			i := slices.IndexFunc(v.Nodes, func(n NodeView) bool { return n.Name == "n2" })
			if !v.Nodes[i].Ready || !v.Planes[0].Connected || v.Planes[0].MTU != 1390 || name != n1 && v.State != Connected {
				t.Errorf("%s of %s: %+v", field, name, v)
			}
			// A Lease that is seen twice.
			beats.Observe(leases(name, hostile, others...), time.Now())
			if _, err := ViewFrom(c, w.peering, w.nodes, w.ready, nil, beats); err != nil {
				t.Errorf("%s of %s: %v", field, name, err)
			}
		}
	})
}

// Whatever an agent writes into its history, the other agents' entries are shown.
func TestHostileHistories(t *testing.T) {
	kit.NotShort(t)
	const entry = `{"number":1,"time":"2026-01-01T00:00:00Z","peering":"b","what":"plane","to":"up"}`
	record := func(name string) *corev1.ConfigMap {
		return &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: name, Labels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager}},
			Data:       map[string]string{"001": entry},
		}
	}
	good := record(v1alpha1.GatewayHistoryName("b", 0))
	try := func(field string, hostile corev1.ConfigMap) {
		own := record(v1alpha1.NodeHistoryName("n1"))
		hostile.Namespace, hostile.Name = own.Namespace, own.Name
		if hostile.Labels == nil {
			hostile.Labels = map[string]string{}
		}
		hostile.Labels[v1alpha1.LabelManagedBy] = v1alpha1.FieldManager
		c := kubetest.NewCluster(t, "a", interceptor.Funcs{List: func(ctx context.Context, api client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if maps, isOne := list.(*corev1.ConfigMapList); isOne {
				maps.Items = []corev1.ConfigMap{hostile, *good}
				return nil
			}
			return api.List(ctx, list, opts...)
		}})
		all, err := History(t.Context(), c, c)
		kit.FatalIf(t, err != nil, "%s: %v", field, err)
		if !slices.ContainsFunc(all, func(e HistoryEntry) bool {
			return strings.HasPrefix(e.Agent, "gateway") && e.Subject == "plane" && e.To == "up"
		}) {
			t.Errorf("%s: the other agent's entry is missing among %+v", field, all)
		}
	}
	schema.BuiltIn(t, 5, try)
	for field, odd := range map[string][]string{
		"number": {"1", "-1", "9223372036854775807", "1e300", `"x"`, "null"}, "plane": {"-1", "99", "2147483647", "null", `"x"`},
		"time": {`"9999-12-31T23:59:59Z"`, `"0000-01-01T00:00:00Z"`, `"10000-01-01T00:00:00Z"`, "null", "7"}, "peering": {`"c"`, `""`, `"\u001b[2J"`, "7"},
		"what": {`"\u009b2J"`, `"` + strings.Repeat("x", 2000) + `"`, "{}"}, "to": {`"\u202e"`, "[]"}, "from": {"null", "1"}, "reason": {`"\u0000"`, "1"},
	} {
		for _, value := range odd {
			hostile := record("x")
			hostile.Data = map[string]string{"001": `{"number":1,"time":"2026-01-01T00:00:00Z","peering":"b","what":"plane","to":"up","` + field + `":` + value + `}`}
			try(field+" "+value, *hostile)
		}
	}
}
