package e2e

import (
	"context"
	"strings"
	"testing"
)

// badStatusIsRefused writes what a gateway or a node agent that was taken over might: a real API
// server refuses it by the definitions.
func badStatusIsRefused(t *testing.T, ctx context.Context, c, peer *cluster) {
	nodes, err := c.Run(ctx, "", "get", "nodenetworks", "-o", "name")
	if err != nil {
		t.Fatal(err)
	}
	node := strings.Fields(nodes)[0]
	for _, bad := range []struct{ what, status string }{
		{"peering/" + peer.Name, `{"planes":[{"index":0,"connected":true,"podIP":"1.2.3.4.5"}]}`},
		{"peering/" + peer.Name, `{"planes":[{"index":0,"connected":true,"lastHandshake":"2026-01-01t00:00:00z"}]}`},
		{"peering/" + peer.Name, `{"planes":[{"index":0,"connected":true,"observedGeneration":100000000000000000000}]}`},
		{"peering/" + peer.Name, `{"planes":[{"index":0,"connected":true,"message":"` + strings.Repeat("a", 5000) + `"}]}`},
		{"peering/" + peer.Name, `{"conditions":[{"type":"Connected","status":"True","reason":"R","message":"","lastTransitionTime":"2026-01-01T00:00:00ZTx"}]}`},
		{node, `{"podIPs":["..."]}`},
		{node, `{"underlayMTU":3000000000}`},
	} {
		out, err := c.Run(ctx, "", "patch", bad.what, "--subresource=status", "--type=merge", "-p", `{"status":`+bad.status+`}`)
		if err == nil || !strings.Contains(err.Error()+out, "nvalid") {
			t.Errorf("%s: %.120s: %s, %v", bad.what, bad.status, out, err)
		}
	}
}
