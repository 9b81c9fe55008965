package metrics_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/liqonet/liqonet/pkg/metrics"
	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/test/kit"
)

// filled returns an agent's metrics, with a value in each of them.
func filled(c metrics.Component) *metrics.Agent {
	a := metrics.New(c, "v1.2.3")
	if c == metrics.ServicesController {
		a.Reconciled(20*time.Millisecond, nil)
		a.SetSource(func() (metrics.Snapshot, error) {
			return metrics.Snapshot{Services: &metrics.ServiceNumbers{Exported: 1, Received: 2, Imported: 3, Conflicts: 4, Withdrawn: 5}}, nil
		})
		return a
	}
	var services *metrics.Services
	if c == metrics.Gateway {
		services = &metrics.Services{Told: 6, Received: 7, Synced: true, Refused: map[string]int{"address": 8}}
	}
	answered, lost := a.Probes("b", 0)
	answered(3 * time.Millisecond)
	lost()
	a.Reconciled(20*time.Millisecond, nil)
	a.Reconciled(time.Minute, errors.New("a foreign route is in the way"))
	a.SetSource(func() (metrics.Snapshot, error) {
		return metrics.Snapshot{
			Planes: []metrics.Plane{{
				Peering: "b", Link: "loq0-0", State: metrics.Up, MTU: 1440, Active: true, Handshake: time.Unix(1000, 5e8), Key: time.Unix(500, 0),
				Traffic:  &metrics.Traffic{ReceivedBytes: 10, SentBytes: 20, ReceivedPackets: 1, SentPackets: 2},
				Services: services,
				Nodes:    map[string]int{metrics.NodesKnown: 3, metrics.NodesReady: 2, metrics.NodesActive: 1},
			}},
			Drops: []nat.Drop{
				{Link: "loq0-0", Hook: "input", Reason: "not-allowed", Packets: 7},
				{Hook: "input", Reason: "to-node", Packets: 8},
				{Link: "loq1-0", Hook: "input", Reason: "not-allowed", Packets: 9},
			},
		}, nil
	})
	if c == metrics.Node {
		a.StartSwitchCounters("b")
		a.Switched("b", metrics.Down)
	}
	return a
}

// scrape returns the lines of our metrics, without comments.
func scrape(t *testing.T, a *metrics.Agent) (status int, lines []string) {
	t.Helper()
	w := httptest.NewRecorder()
	a.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, metrics.Path, nil))
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, "liqonet_") && !strings.Contains(line, "_bucket{") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return w.Code, lines
}

func TestScrape(t *testing.T) {
	both := []string{
		`liqonet_build_info{component="X",version="v1.2.3"} 1`,
		`liqonet_X_bytes_total{direction="receive",peering="b",plane="0"} 10`,
		`liqonet_X_bytes_total{direction="transmit",peering="b",plane="0"} 20`,
		`liqonet_X_drops_total{hook="input",peering="b",plane="0",reason="not-allowed"} 7`,
		`liqonet_X_drops_total{hook="input",peering="",plane="",reason="to-node"} 8`,
		`liqonet_X_mtu_bytes{peering="b",plane="0"} 1440`,
		`liqonet_X_packets_total{direction="receive",peering="b",plane="0"} 1`,
		`liqonet_X_packets_total{direction="transmit",peering="b",plane="0"} 2`,
		`liqonet_X_plane_state{peering="b",plane="0",state="down"} 0`,
		`liqonet_X_plane_state{peering="b",plane="0",state="leaving"} 0`,
		`liqonet_X_plane_state{peering="b",plane="0",state="up"} 1`,
		`liqonet_X_probes_lost_total{peering="b",plane="0"} 1`,
		`liqonet_X_reconcile_duration_seconds_sum 60.02`,
		`liqonet_X_reconcile_duration_seconds_count 2`,
		`liqonet_X_reconcile_errors_total 1`,
		`liqonet_X_rtt_seconds_sum{peering="b",plane="0"} 0.003`,
		`liqonet_X_rtt_seconds_count{peering="b",plane="0"} 1`,
	}
	own := map[metrics.Component][]string{
		metrics.Gateway: {
			`liqonet_gateway_key_created_timestamp_seconds{peering="b",plane="0"} 500`,
			`liqonet_gateway_last_handshake_timestamp_seconds{peering="b",plane="0"} 1000.5`,
			`liqonet_gateway_nodes{peering="b",plane="0",state="active"} 1`,
			`liqonet_gateway_nodes{peering="b",plane="0",state="known"} 3`,
			`liqonet_gateway_nodes{peering="b",plane="0",state="ready"} 2`,
			`liqonet_gateway_other_caller{peering="b",plane="0"} 0`,
			`liqonet_gateway_services{direction="received",peering="b",plane="0"} 7`,
			`liqonet_gateway_services{direction="told",peering="b",plane="0"} 6`,
			`liqonet_gateway_services_synced{peering="b",plane="0"} 1`,
			`liqonet_gateway_services_refused_total{peering="b",plane="0",reason="address"} 8`,
		},
		metrics.Node: {
			`liqonet_node_plane_active{peering="b",plane="0"} 1`,
			`liqonet_node_plane_switches_total{peering="b",reason="down"} 1`,
			`liqonet_node_plane_switches_total{peering="b",reason="leaving"} 0`,
			`liqonet_node_plane_switches_total{peering="b",reason="preferred"} 0`,
		},
	}
	for c, want := range own {
		for _, line := range both {
			want = append(want, strings.ReplaceAll(line, "X", string(c)))
		}
		status, got := scrape(t, filled(c))
		set := func(lines []string) map[string]bool {
			out := map[string]bool{}
			for _, l := range lines {
				out[l] = true
			}
			return out
		}
		want[len(own[c])] = strings.ReplaceAll(both[0], "X", string(c))
		diff := cmp.Diff(set(want), set(got))
		kit.ErrorIf(t, diff != "" || status != http.StatusOK, "%s: %d %s", c, status, diff)
	}
}

func TestLint(t *testing.T) {
	for _, c := range []metrics.Component{metrics.Gateway, metrics.Node, metrics.ServicesController} {
		problems, err := testutil.GatherAndLint(filled(c).Gatherer())
		kit.ErrorIf(t, err != nil || len(problems) > 0, "%s: %v, %v", c, problems, err)
	}
}

// Values that an agent does not know, or cannot read now, are left out. The others are exported.
func TestUnknown(t *testing.T) {
	a := filled(metrics.Gateway)
	a.SetSource(func() (metrics.Snapshot, error) {
		return metrics.Snapshot{Planes: []metrics.Plane{{Peering: "b", State: metrics.Down}}}, errors.New("the kernel does not answer")
	})
	status, lines := scrape(t, a)
	got := strings.Join(lines, "\n")
	for name, want := range map[string]bool{"state=\"down\"} 1": true, "_rtt_": true, "_mtu_": false, "_timestamp_": false, "_bytes_total": false, "_drops_": false} {
		kit.ErrorIf(t, strings.Contains(got, name) != want || status != http.StatusOK,
			"status %d, %s exists: %v", status, name, !want)
	}
	a.SetSource(nil)
	_, lines = scrape(t, a)
	kit.ErrorIf(t, strings.Contains(strings.Join(lines, ""), "plane_state"), "there is an unknown plane")
}

// The series of removed objects end.
func TestForget(t *testing.T) {
	a := filled(metrics.Node)
	a.DeleteProbes("b", 0)
	a.DeleteSwitchCounters("b")
	_, lines := scrape(t, a)
	for _, l := range lines {
		kit.ErrorIf(t, strings.Contains(l, "_rtt_") || strings.Contains(l, "_lost_") || strings.Contains(l, "_switches_"), "%s", l)
	}
}

// Frequent scrapes do not take processor time from packets.
func TestScrapesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := filled(metrics.Gateway).Handler()
		codes := map[int]int{}
		for range 1000 {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, metrics.Path, nil))
			codes[w.Code]++
			time.Sleep(10 * time.Millisecond)
		}
		n := codes[http.StatusOK]
		kit.ErrorIf(t, n < 50 || n > 70 || codes[http.StatusTooManyRequests] != 1000-n, "in 10 s: %v", codes)
	})
}
