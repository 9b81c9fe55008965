package e2e

import (
	"context"
	"encoding/json"
	"testing"
	"time"
)

// historyDelay is longer than agents wait until they write what has changed.
const historyDelay = 20 * time.Second

// change is an entry of status --history.
type change struct {
	Time                                   time.Time
	Cluster, Agent, What, From, To, Reason string
}

// histories are what the agents of clusters have noted.
func histories(t *testing.T, ctx context.Context, clusters ...*cluster) []change {
	var doc struct{ Entries []change }
	r := mustLiqonet(t, ctx, append([]string{"status", "--history", "-o", "json"}, namesOf(clusters)...)...)
	if err := json.Unmarshal([]byte(r.stdout), &doc); err != nil {
		t.Fatalf("status --history: %v\n%s", err, r.stdout)
	}
	return doc.Entries
}
