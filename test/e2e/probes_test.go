package e2e

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// lossy drops half of the probes that come by the tunnel: questions with only the flag that they measure.
const lossy = `set -e
nft add table ip lossy
nft 'add chain ip lossy input { type filter hook input priority -5; }'
nft add rule ip lossy input iifname wg0 udp dport 6098 @th,112,8 8 numgen random mod 2 0 counter drop
`

var packetsCounted = regexp.MustCompile(`counter packets (\d+)`)

// On a link that loses packets probes are lost, too. That is no reason to throw the
// tunnel's session away, with all packets on their way.
func lostProbes(t *testing.T, ctx context.Context, a, b *cluster) {
	gateways := []*vantage{a.gateway(t), b.gateway(t)}
	before := settledHandshake(t, ctx, a)
	fs := startFlows(t, ctx, a, b, 0, len(b.pods)-1)
	for _, g := range gateways {
		if _, err := g.shell(ctx, lossy); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if _, err := g.shell(context.WithoutCancel(ctx), "nft delete table ip lossy"); err != nil {
				t.Error(err)
			}
		}()
	}
	for _, g := range gateways {
		const enough = 15
		eventually(t, ctx, podTimeout, "probes are lost", func() string {
			out, err := g.shell(ctx, "nft list table ip lossy")
			found := packetsCounted.FindStringSubmatch(out)
			if err != nil || found == nil {
				return fmt.Sprint(out, err)
			}
			if n, err := strconv.Atoi(found[1]); err != nil || n < enough {
				return found[0]
			}
			return ""
		})
	}
	fs.lossless(t, "while half of the probes were lost")
	if now := handshake(t, ctx, a); now != before {
		t.Errorf("the last handshake was at %s before, and at %s after probes were lost", before, now)
	}
	if v := viewOf(t, status(t, ctx, 0, a, b), a, b); v.State != "Connected" {
		t.Errorf("it is %s: %s", v.State, v.Message)
	}
}

// settledHandshake is the last one after WireGuard itself has had the time to try
// again: a server that had something to send before it was called does so after 5 s,
// whatever has come in between. Its gateway reports that within the next interval.
func settledHandshake(t *testing.T, ctx context.Context, c *cluster) (last string) {
	t.Helper()
	eventually(t, ctx, podTimeout, "WireGuard has done its handshakes", func() string {
		last = handshake(t, ctx, c)
		at, err := time.Parse(time.RFC3339, last)
		if err != nil || time.Since(at) < 7*time.Second+v1alpha1.ReportInterval {
			return fmt.Sprintf("the last one was at %s, %v", last, err)
		}
		return ""
	})
	return last
}

// handshake is when the cluster's only gateway says that the last one was.
func handshake(t *testing.T, ctx context.Context, c *cluster) string {
	t.Helper()
	out, err := c.Run(ctx, "", "get", "peerings", "-o", "jsonpath={.items[*].status.planes[*].lastHandshake}")
	if err != nil || out == "" {
		t.Fatalf("no handshake: %q, %v", out, err)
	}
	return out
}
