package cli

import (
	"bytes"
	"testing"
	"time"

	"github.com/liqonet/liqonet/pkg/status"
	"github.com/liqonet/liqonet/test/kit"
)

func TestPrintHistory(t *testing.T) {
	at := time.Date(2026, 11, 23, 12, 0, 0, 123e6, time.UTC)
	doc := &historyDocument{Entries: []status.HistoryEntry{
		{
			Time: at, AgentTime: at.Add(-time.Hour), Cluster: "cluster-a", ClusterID: "id-a", Agent: "gateway 1", Peering: "cluster-b", Plane: new(int32(1)),
			Subject: "plane", From: "up", To: "down", Reason: "no answer for 0.3 s",
		},
		{
			Time: at.Add(time.Second), AgentTime: at.Add(time.Second), Cluster: "cluster-b", ClusterID: "id-b", Agent: "node w1", Peering: "cluster-a",
			Subject: "peer", To: "reached", Reason: "two\nlines \x1b[31m",
		},
	}}
	for format, file := range map[string]string{"json": "history.json", "table": "history.txt", "wide": "history-wide.txt", "name": "history-name.txt"} {
		t.Run(format, func(t *testing.T) {
			var out bytes.Buffer
			kit.NoError(t, printEntries(outputOf(t, format), &out, doc))
			golden(t, file, out.String())
		})
	}
	var out bytes.Buffer
	err := printEntries(outputOf(t, "table"), &out, &historyDocument{})
	kit.ErrorIf(t, err != nil || out.String() != "Nothing has changed yet.\n", "got %q, %v", out.String(), err)
}
