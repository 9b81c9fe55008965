package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
)

// An invalid Peering or NodeNetwork does not hide the others from a command.
func TestStatusWithObjectsThatCannotBeRead(t *testing.T) {
	api := kit.Must(fakeapi.New(append(fakeapi.Objects("id-of-hub", "hub-1", "172.18.0.11", "10.244.0.0/16"), peeringWith("good", "1"))...))(t)
	t.Cleanup(api.Close)
	target := kit.Must(url.Parse(api.URL))(t)
	bad := map[string]string{
		"PeeringList":     `{"metadata": {"name": "bad", "uid": "bad"}, "spec": {"index": 3000000000}, "status": {"planes": [{"podIP": "1.2.3.4.5", "lastHandshake": "2026-01-01t00:00:00z"}]}}`,
		"NodeNetworkList": `{"metadata": {"name": "10.80.0.9", "uid": "bad"}, "spec": {"nodeName": "x"}, "status": {"podIPs": ["..."], "conditions": [{"lastTransitionTime": 7}]}}`,
	}
	added := map[string]bool{}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
		ModifyResponse: func(r *http.Response) error {
			if r.Request.Method != http.MethodGet || r.Request.URL.Query().Get("watch") != "" {
				return nil
			}
			raw, err := io.ReadAll(r.Body)
			if err != nil {
				return err
			}
			var list map[string]any
			if kind := ""; json.Unmarshal(raw, &list) == nil {
				if kind, _ = list["kind"].(string); bad[kind] != "" {
					items, _ := list["items"].([]any)
					list["items"] = append([]any{json.RawMessage(bad[kind])}, items...)
					added[kind] = true
					if raw, err = json.Marshal(list); err != nil {
						return err
					}
				}
			}
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(raw)), int64(len(raw))
			r.Header.Set("Content-Length", strconv.Itoa(len(raw)))
			return nil
		},
	}
	server := httptest.NewServer(proxy)
	t.Cleanup(server.Close)
	home := isolate(t)
	t.Setenv("KUBECONFIG", kubeconfig(t, filepath.Join(home, "kubeconfig"), "hub="+server.URL))
	code, stdout, stderr := run(t, "status", "-o", "json")
	kit.FatalIf(t, len(added) != len(bad), "only %v was asked for", added)
	var doc statusDocument
	err := json.Unmarshal([]byte(stdout), &doc)
	kit.FatalIf(t, err != nil || code != ExitUnhealthy, "exit code %d, %v\n%s%s", code, err, stdout, stderr)
	var names []string
	for _, v := range doc.Peerings {
		names = append(names, v.Name)
	}
	kit.ErrorIf(t, !strings.Contains(strings.Join(names, " "), "good"), "only %v is shown\n%s", names, stderr)
}
