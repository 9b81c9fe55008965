package watch

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/kit"
)

// bad are objects that some version of a definition accepted, but that no Go type can hold unchanged.
var bad = map[string][]string{
	"Peering": {
		`{"spec": {}, "status": {"planes": [{"index": 0, "podIP": "1.2.3.4.5", "connected": true}]}}`,
		`{"spec": {}, "status": {"planes": [{"index": 0, "lastHandshake": "2026-01-01t00:00:00z", "connected": true}]}}`,
		`{"spec": {}, "status": {"conditions": [{"type": "Connected", "lastTransitionTime": "2026-01-01T00:00:00ZTx"}]}}`,
		`{"spec": {}, "status": {"planes": [{"index": 0, "mtu": 3000000000}]}}`,
		`{"spec": {}, "status": {"planes": [{"index": 0, "observedGeneration": 1e20}]}}`,
		`{"spec": {}, "status": {"planes": {"index": "x"}}}`,
		`{"spec": {}, "status": "gone"}`,
		`{"spec": {"index": 3000000000, "planes": [{"index": "x"}]}}`,
		`{"spec": []}`,
		`{}`,
	},
	"NodeNetwork": {
		`{"spec": {"nodeName": "x"}, "status": {"podIPs": ["..."]}}`,
		`{"spec": {"nodeName": "x"}, "status": {"conditions": [{"lastTransitionTime": 7}]}}`,
		`{"spec": {"nodeName": 7}, "status": {"underlayMTU": -1e20}}`,
		`{}`,
	},
}

// played is an API server whose lists contain the given objects, and whose watches send the given events.
type played struct {
	lists  map[string][]any
	events map[string]chan map[string]any
}

func (p played) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	kind := map[string]string{"peerings": "Peering", "nodenetworks": "NodeNetwork"}[req.URL.Path[strings.LastIndex(req.URL.Path, "/")+1:]]
	query := req.URL.Query()
	switch {
	case kind == "" || query.Get("sendInitialEvents") != "": // clients then list
		w.WriteHeader(http.StatusUnprocessableEntity)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity})
	case query.Get("watch") == "":
		_ = json.NewEncoder(w).Encode(map[string]any{
			"apiVersion": v1alpha1.GroupVersion.String(), "kind": kind + "List", "metadata": map[string]any{"resourceVersion": "1"}, "items": p.lists[kind],
		})
	default:
		w.WriteHeader(http.StatusOK)
		for {
			_ = http.NewResponseController(w).Flush()
			select {
			case e := <-p.events[kind]:
				_ = json.NewEncoder(w).Encode(e)
			case <-req.Context().Done():
				return
			}
		}
	}
}

// written returns an object as an API server sends it.
func written(t *testing.T, kind, name string, version int, content string) map[string]any {
	t.Helper()
	var obj map[string]any
	kit.NoError(t, json.Unmarshal([]byte(content), &obj))
	obj["apiVersion"], obj["kind"] = v1alpha1.GroupVersion.String(), kind
	obj["metadata"] = map[string]any{"name": name, "uid": name, "resourceVersion": fmt.Sprint(version)}
	return obj
}

// watching starts a view of an API server. The context lasts until the test ends, for a minute at most. The returned
// client does not use the view.
func watching(t *testing.T, api http.Handler, selected map[client.Object]cache.ByObject, strip func(client.Object)) (context.Context, client.Client, *View) {
	t.Helper()
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	scheme, mapper := kinds()
	cfg := &rest.Config{Host: server.URL}
	c, err := client.New(cfg, client.Options{Scheme: scheme, Mapper: mapper})
	kit.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	view, err := Start(ctx, c, cfg, selected, strip)
	kit.NoError(t, err)
	return ctx, c, view
}

// With each bad object in the list, and another one arriving in the watch, an agent starts, sees the other objects,
// and follows their changes.
func TestOneBadObjectHidesNoOther(t *testing.T) {
	good := map[string]string{"Peering": `{"spec": {}, "status": {"planes": [{"index": 0, "mtu": %d}]}}`, "NodeNetwork": `{"spec": {"nodeName": "n"}, "status": {"underlayMTU": %d}}`}
	api := played{lists: map[string][]any{}, events: map[string]chan map[string]any{}}
	for kind, objs := range bad {
		api.events[kind] = make(chan map[string]any)
		for i, content := range objs {
			api.lists[kind] = append(api.lists[kind], written(t, kind, fmt.Sprint("bad", i), 1, content))
		}
		api.lists[kind] = append(api.lists[kind], written(t, kind, "good", 1, fmt.Sprintf(good[kind], 1400)))
	}
	ctx, c, view := watching(t, api, map[client.Object]cache.ByObject{&v1alpha1.Peering{}: {}, &v1alpha1.NodeNetwork{}: {}}, func(client.Object) {})
	var err error
	mtu := func(kind string) int32 {
		name, p, n := types.NamespacedName{Name: "good"}, v1alpha1.Peering{}, v1alpha1.NodeNetwork{}
		if kind == "NodeNetwork" {
			err = view.Get(t.Context(), name, &n)
			return n.Status.UnderlayMTU
		}
		if err = view.Get(t.Context(), name, &p); err != nil || p.PlaneStatus(0) == nil {
			return 0
		}
		return p.PlaneStatus(0).MTU
	}
	for kind, objs := range bad {
		if got := mtu(kind); err != nil || got != 1400 {
			t.Fatalf("%s: %d, %v", kind, got, err)
		}
		for i, content := range objs {
			want := int32(1300 + i)
			for _, obj := range []map[string]any{written(t, kind, fmt.Sprint("bad", i), 10+i, content), written(t, kind, "good", 10+i, fmt.Sprintf(good[kind], want))} {
				select {
				case api.events[kind] <- map[string]any{"type": "MODIFIED", "object": obj}:
				case <-ctx.Done():
					t.Fatal("the watch has ended")
				}
			}
			for mtu(kind) != want {
				select {
				case <-view.Changed:
				case <-ctx.Done():
					t.Fatalf("%s: the change to %d was not noticed", content, want)
				}
			}
		}
	}
	var list v1alpha1.PeeringList
	if err := c.List(t.Context(), &list); err != nil || len(list.Items) != len(bad["Peering"])+1 {
		t.Fatalf("a list has %d objects, %v", len(list.Items), err)
	}
	for _, p := range list.Items {
		kit.ErrorIf(t, p.Validate() == nil, "Peering %s would be applied to a kernel", p.Name)
	}
}
