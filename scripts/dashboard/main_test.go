package main

import (
	"encoding/xml"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/liqonet/liqonet/test/kit"
)

// Each expression of the dashboard is asked for, and what comes is drawn.
func TestRun(t *testing.T) {
	asked := map[string]bool{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.FormValue("query")
		asked[query] = true
		result := `{"metric":{"peering":"b","direction":"receive","pod":"<x>"},"values":[[1000,"1"],[1030,"NaN"],[1060,"3000"]]}`
		if strings.Contains(query, "_mtu_bytes") {
			result = ""
		}
		_, _ = io.WriteString(w, `{"status":"success","data":{"resultType":"matrix","result":[`+result+`]}}`)
	}))
	defer server.Close()
	out := filepath.Join(t.TempDir(), "out.svg")
	kit.NoError(t, run(server.URL, "../../docs/monitoring/dashboard.json", out, "1970-01-01T00:17:40Z", 60e9))
	picture := string(kit.Must(os.ReadFile(out))(t))
	for want, n := range map[string]int{"no data": 1, "b receive": 2, "3 kbit/s": 0, "4 kbit/s": 1, "&lt;x&gt;": 1, ">Traffic<": 1, "<x>": 0} {
		kit.Check(t, "how often the picture has "+want, strings.Count(picture, want), n)
	}
	if len(asked) < 15 {
		t.Errorf("%d expressions were asked for", len(asked))
	}
	for query := range asked {
		if strings.Contains(query, "$") {
			t.Errorf("a variable is left in %s", query)
		}
	}
	kit.NoError(t, xml.Unmarshal([]byte(picture), &struct{}{}))
}

// Without an answer there is an error, and no picture.
func TestNoAnswer(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	out := filepath.Join(t.TempDir(), "out.svg")
	kit.CheckError(t, "without an answer", run(server.URL, "../../docs/monitoring/dashboard.json", out, "", 60e9), `panel "Traffic"`)
	if _, err := os.Stat(out); err == nil {
		t.Error("there is a picture")
	}
}
