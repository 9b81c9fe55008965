package kubeapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/liqonet/liqonet/test/kit"
)

func newClient(t *testing.T, handler http.HandlerFunc) *Client {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return &Client{server: server.URL, http: server.Client()}
}

func nodeJSON(name, cidr, ready string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"podCIDR":%q},"status":{
		"addresses":[{"type":"Hostname","address":"x"},{"type":"InternalIP","address":"172.18.1.11"}],
		"conditions":[{"type":"MemoryPressure","status":"False"},{"type":"Ready","status":%q,"message":"m"}]}}`, name, cidr, ready)
}

func TestFollowNodes(t *testing.T) {
	lists := 0
	c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Query().Get("watch") == "":
			lists++
			fmt.Fprintf(w, `{"metadata":{"resourceVersion":"%d"},"items":[%s]}`, lists, nodeJSON("a", "", "False"))
		case lists == 1: // the version is too old
			fmt.Fprint(w, `{"type":"ERROR","object":{"code":410}}`)
		default:
			fmt.Fprintf(w, `{"type":"ADDED","object":%s}{"type":"BOOKMARK","object":{}}`, nodeJSON("b", "10.244.1.0/24", "False"))
			fmt.Fprintf(w, `{"type":"MODIFIED","object":%s}`, nodeJSON("a", "10.244.0.0/24", "True"))
			fmt.Fprintf(w, `{"type":"DELETED","object":%s}`, nodeJSON("b", "10.244.1.0/24", "False"))
		}
	})
	var counts []int
	var last map[string]Node
	kit.NoError(t, c.FollowNodes(context.Background(), func(nodes map[string]Node) bool {
		counts, last = append(counts, len(nodes)), nodes
		return !nodes["a"].Ready || len(nodes) > 1
	}))
	if got, want := fmt.Sprint(counts), "[1 1 2 2 1]"; got != want {
		t.Errorf("numbers of nodes: got %s, want %s", got, want)
	}
	want := Node{
		Name: "a", PodCIDR: netip.MustParsePrefix("10.244.0.0/24"), Internal: netip.MustParseAddr("172.18.1.11"),
		Ready: true, Message: "m",
	}
	if last["a"] != want {
		t.Errorf("got %+v, want %+v", last["a"], want)
	}
}

func TestFollowNodesEnds(t *testing.T) {
	c := newClient(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	if err := c.FollowNodes(ctx, func(map[string]Node) bool { return true }); !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
}

func TestErrors(t *testing.T) {
	c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		http.Error(w, "no", http.StatusForbidden)
	})
	var status *StatusError
	if err := c.Ready(context.Background()); !errors.As(err, &status) || status.Code != http.StatusForbidden || status.Body != "no\n" {
		t.Errorf("got %v", err)
	}
	kit.CheckNoError(t, c.Delete(context.Background(), "/x"), "delete what is not there")
}
