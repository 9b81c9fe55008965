package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// historyDelay is longer than agents wait until they write what has changed.
const historyDelay = 20 * time.Second

// change is an entry of status --history.
type change struct {
	Time                                            time.Time
	Cluster, Agent, Peering, What, From, To, Reason string
	Plane                                           *int32
}

// histories are what the agents of clusters have noted.
func histories(t *testing.T, ctx context.Context, clusters ...*cluster) []change {
	t.Helper()
	args := []string{"status", "--history", "-o", "json"}
	for _, c := range clusters {
		args = append(args, c.Name)
	}
	var doc struct{ Entries []change }
	r := mustLiqonet(t, ctx, args...)
	if err := json.Unmarshal([]byte(r.stdout), &doc); err != nil {
		t.Fatalf("status --history: %v\n%s", err, r.stdout)
	}
	return doc.Entries
}

// checkNoted waits until the gateways of both clusters have noted that a plane went down and came up again, in this
// order and since then, and told it by Events.
func checkNoted(t *testing.T, ctx context.Context, since time.Time, a, b *cluster) {
	t.Helper()
	for _, c := range []*cluster{a, b} {
		eventually(t, ctx, historyDelay, "history and Events of "+c.Name, func() string {
			last, peering := "", ""
			for _, e := range histories(t, ctx, a, b) {
				if e.Cluster != c.Name || e.What != "plane" || e.Time.Before(since) {
					continue
				}
				if e.Reason == "" || e.Plane == nil {
					return fmt.Sprintf("%+v has no reason, or no plane", e)
				}
				if last == "" && e.To == "down" || last == "down" && e.To == "up" {
					last, peering = e.To, e.Peering
				}
			}
			if last != "up" {
				return fmt.Sprintf("the last state of a plane is %q", last)
			}
			described, err := c.Run(ctx, "", "describe", "peering", peering)
			if err != nil {
				return err.Error()
			}
			for _, want := range []string{"PlaneDown", "PlaneUp"} {
				if !strings.Contains(described, want) {
					return "describe does not tell of " + want + ":\n" + described
				}
			}
			return ""
		})
	}
}
