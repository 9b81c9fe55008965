package agents

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/metrics"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/flow"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

var dashboard = flag.Duration("dashboard", 0, "how long Prometheus scrapes agents, with faults, before docs/monitoring/dashboard.svg is drawn")

// scrape returns the metrics at an address for a process in a namespace. An agent answers five requests per second.
func scrape(ns *netns.NS, at netip.Addr) (text string, err error) {
	time.Sleep(200 * time.Millisecond)
	return get(ns, netip.AddrPortFrom(at, v1alpha1.MetricsPort).String()+metrics.Path)
}

// get returns an agent's page, as a process in a namespace reads it.
func get(ns *netns.NS, page string) (text string, err error) {
	dial := func(ctx context.Context, network, address string) (c net.Conn, err error) {
		err = ns.Run(func() (err error) {
			c, err = (&net.Dialer{}).DialContext(ctx, network, address)
			return err
		})
		return c, err
	}
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	resp, err := client.Get("http://" + page)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, raw)
	}
	return string(raw), err
}

// value returns the value of the first series of a metric that has all of these labels, -1 if there is none.
func value(text, name string, labels ...string) float64 {
	for _, m := range regexp.MustCompile(`(?m)^`+name+`(?:{(.*)})? (\S+)$`).FindAllStringSubmatch(text, -1) {
		has := true
		for _, l := range labels {
			has = has && strings.Contains(m[1], l)
		}
		if has {
			v, _ := strconv.ParseFloat(m[2], 64) // 0 if it is not a number
			return v
		}
	}
	return -1
}

// Agents expose metrics only to those who may read them.
func TestMetrics(t *testing.T) {
	t.Parallel()
	clusters := newClusters(t, dataplane.Options{Overlay: overlay.VXLAN, Tunnel: tunnel.Userspace})
	settled(t, clusters)
	a, b := clusters[0], clusters[1]
	gateway, node := b.nodes[0].gatewayIP, b.nodes[0].addr
	loopback := netip.MustParseAddr("127.0.0.1")
	for _, tt := range []struct {
		name    string
		from    *netns.NS
		at      netip.Addr
		reaches bool
	}{
		{"a pod of the gateway's node", b.nodes[0].pod, gateway, true},
		{"the gateway's node", b.nodes[0].NS, gateway, false},
		{"the peer's pod", a.nodes[0].pod, netip.MustParseAddr("10.61.1.10"), false},
		{"a node its own agent's", a.nodes[0].NS, loopback, true},
		{"a node its own agent's, by its address", a.nodes[0].NS, a.nodes[0].addr, false},
		{"a pod those of an agent with --metrics-address", b.nodes[0].pod, node, true},
		{"the peer's pod the same", a.nodes[0].pod, netip.MustParseAddr("10.62.0.1"), false},
	} {
		if _, err := scrape(tt.from, tt.at); (err == nil) != tt.reaches {
			t.Errorf("%s reads: %v, want %v (%v)", tt.name, err == nil, tt.reaches, err)
		}
	}
	read := func(at netip.Addr) string {
		t.Helper()
		return kit.Must(scrape(b.nodes[0].pod, at))(t)
	}
	there := send(t, b, a, 8)
	kit.Within(t, flow.Patience, "packets pass", func() string { return there.Unanswered(50, flow.Patience) })
	flow.End(there)
	using := b.nodes[0].plane(t)
	plane := fmt.Sprintf(`plane="%d"`, using)
	text, nodeText := read(b.nodes[using].gatewayIP), read(node)
	for _, m := range []struct {
		text, name string
		labels     []string
		least      float64
	}{
		{text, "liqonet_build_info", []string{`component="gateway"`}, 1},
		{text, "liqonet_gateway_plane_state", []string{plane, `state="up"`}, 1},
		{text, "liqonet_gateway_nodes", []string{plane, `state="known"`}, 2},
		{text, "liqonet_gateway_nodes", []string{plane, `state="ready"`}, 2},
		{text, "liqonet_gateway_rtt_seconds_count", []string{plane}, 5},
		{text, "liqonet_gateway_last_handshake_timestamp_seconds", []string{plane}, float64(time.Now().Add(-5 * time.Minute).Unix())},
		{text, "liqonet_gateway_mtu_bytes", []string{plane}, 1280},
		{text, "liqonet_gateway_bytes_total", []string{plane, `direction="receive"`}, 1000},
		{text, "liqonet_gateway_bytes_total", []string{plane, `direction="transmit"`}, 1000},
		{text, "liqonet_gateway_packets_total", []string{plane, `direction="receive"`}, 50},
		{text, "liqonet_gateway_packets_total", []string{plane, `direction="transmit"`}, 50},
		{text, "liqonet_gateway_drops_total", []string{plane, `hook="input"`, `reason="not-allowed"`}, 1},
		{text, "liqonet_gateway_reconcile_duration_seconds_count", nil, 1},
		{nodeText, "liqonet_node_plane_state", []string{plane, `state="up"`}, 1},
		{nodeText, "liqonet_node_plane_active", []string{plane}, 1},
		{nodeText, "liqonet_node_rtt_seconds_count", []string{plane}, 5},
		{nodeText, "liqonet_node_packets_total", []string{plane, `direction="transmit"`}, 50},
		{nodeText, "liqonet_node_mtu_bytes", []string{plane}, 1280},
	} {
		if got := value(m.text, m.name, m.labels...); got < m.least {
			t.Errorf("%s%v is %v, want at least %v", m.name, m.labels, got, m.least)
		}
	}
	before := value(nodeText, "liqonet_node_plane_switches_total", `reason="down"`)
	b.gateways[using].kill()
	kit.Within(t, switchTimeout, "the node's plane switch is counted", func() string {
		if got := value(read(node), "liqonet_node_plane_switches_total", `reason="down"`); got <= before {
			return fmt.Sprintf("it is %v, and was %v", got, before)
		}
		return ""
	})
	kit.Within(t, switchTimeout, "the peer's gateway reports that the plane is down", func() string {
		got, err := scrape(a.nodes[1-using].pod, a.nodes[using].gatewayIP)
		if state := value(got, "liqonet_gateway_plane_state", plane, `state="down"`); err != nil || state != 1 {
			return fmt.Sprintf("state down is %v: %v", state, err)
		}
		return ""
	})
	b.gateways[using].start(t)
	t.Run("a node is powered off", func(t *testing.T) { tryPowerOff(t, clusters) })
}

// Prometheus scrapes a cluster's agents while gateways fail, and the dashboard is drawn from its data.
func TestDashboard(t *testing.T) {
	if *dashboard == 0 {
		t.Skip("draws docs/monitoring/dashboard.svg, with -dashboard 30m")
	}
	clusters := newClusters(t, dataplane.Options{Overlay: overlay.VXLAN, Tunnel: tunnel.Userspace})
	settled(t, clusters)
	a, b := clusters[0], clusters[1]
	dir := t.TempDir()
	config := "global: {scrape_interval: 5s}\nscrape_configs:\n- job_name: liqonet-system/liqonet\n  static_configs:\n"
	for i, n := range b.nodes {
		config += fmt.Sprintf("  - {targets: ['%s:%d'], labels: {namespace: liqonet-system, pod: gateway-a-%d}}\n", n.gatewayIP, v1alpha1.MetricsPort, i)
		config += fmt.Sprintf("  - {targets: ['%s:%d'], labels: {namespace: liqonet-system, pod: liqonet-node-%s}}\n", n.addr, v1alpha1.MetricsPort, n.name)
	}
	file := filepath.Join(dir, "prometheus.yml")
	kit.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	pod := b.nodes[0].pod
	pod.Up(t, "lo")
	for _, n := range b.nodes {
		n.Do(t, dataplane.AcceptForward) // pods reach other nodes
	}
	server := exec.Command("prometheus", "--config.file="+file, "--storage.tsdb.path="+dir, "--web.listen-address=127.0.0.1:9090")
	kit.NoError(t, pod.Start(server))
	defer func() {
		_ = server.Process.Kill()
		_ = server.Wait() // it was killed
	}()
	there, back := send(t, b, a, largeSize), send(t, a, b, 8)
	for i, begun := 0, time.Now(); time.Since(begun) < *dashboard; i++ {
		time.Sleep(*dashboard / 8)
		g := clusters[i%2].gateways[b.nodes[0].plane(t)]
		g.kill()
		for range 10 {
			if _, err := scrape(b.nodes[1].NS, b.nodes[0].gatewayIP); err == nil { // scrape waits for a second
				t.Error("a node reads a gateway's metrics")
			}
		}
		g.start(t)
	}
	flow.End(there, back)
	draw := filepath.Join(dir, "dashboard")
	if out, err := exec.Command("go", "build", "-o", draw, "../../scripts/dashboard").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Log(pod.Output(t, draw, "-range", dashboard.String(), "-dashboard", "../../docs/monitoring/dashboard.json", "-o", "../../docs/monitoring/dashboard.svg"))
}
