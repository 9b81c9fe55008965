package watch

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/kit"
)

// An agent whose API server cannot stream the initial list requests it in pages, and strips each page before it
// requests the next one. So it never holds all objects in full.
func TestListedInPages(t *testing.T) {
	const count = 3*pageSize + 1
	var mu sync.Mutex
	var lists []url.Values
	stripped, late := 0, 0 // how many objects, and how many pages were sent before the previous ones were stripped
	api := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		query := req.URL.Query()
		w.Header().Set("Content-Type", "application/json")
		if query.Get("sendInitialEvents") != "" {
			w.WriteHeader(http.StatusUnprocessableEntity)
			_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity})
			return
		}
		if query.Get("watch") != "" {
			_ = http.NewResponseController(w).Flush()
			<-req.Context().Done()
			return
		}
		first, _ := strconv.Atoi(query.Get("continue"))
		mu.Lock()
		lists = append(lists, query)
		if stripped < first {
			late++
		}
		mu.Unlock()
		last, next := count, ""
		if n, _ := strconv.Atoi(query.Get("limit")); n > 0 && query.Get("resourceVersion") != "0" && first+n < count {
			last, next = first+n, strconv.Itoa(first+n)
		}
		var items []any
		for i := first; i < last; i++ {
			items = append(items, written(t, "NodeNetwork", fmt.Sprint("n", i), i+1, `{"spec": {"nodeName": "n"}, "status": {"kernel": {"release": "long"}}}`))
		}
		_ = json.NewEncoder(w).Encode(map[string]any{
			"apiVersion": v1alpha1.GroupVersion.String(), "kind": "NodeNetworkList", "metadata": map[string]any{"resourceVersion": "1", "continue": next}, "items": items,
		})
	})
	ctx, _, view := watching(t, api, map[client.Object]cache.ByObject{&v1alpha1.NodeNetwork{}: {}}, func(obj client.Object) {
		mu.Lock()
		defer mu.Unlock()
		stripped++
		obj.(*v1alpha1.NodeNetwork).Status.Kernel = nil
	})
	var all v1alpha1.NodeNetworkList
	kit.NoError(t, view.List(ctx, &all, Shared))
	seen := map[string]bool{}
	for _, n := range all.Items {
		seen[n.Name] = true
		kit.ErrorIf(t, n.Status.Kernel != nil || !strings.HasPrefix(n.Name, "n"), "%s has not been stripped", n.Name)
	}
	mu.Lock()
	defer mu.Unlock()
	kit.ErrorIf(t, len(seen) != count || len(lists) != 4 || late > 0,
		"%d of %d objects in %d requests, %d of which came before the previous page was stripped", len(seen), count, len(lists), late)
	for _, query := range lists {
		kit.ErrorIf(t, query.Get("limit") != strconv.Itoa(pageSize) || query.Get("resourceVersion") != "", "requested %v", query)
	}
}
