package e2e

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

const (
	// scrapePause is how long after each other the two scrapes are from which rates follow.
	scrapePause = 2 * time.Second
	// alertMinutes is how long Prometheus sees gateways work, and then fail.
	alertMinutes = 30
)

// point is what a time series was at a scrape, and how much it grew per minute. age is set if the series is a time: then
// value is how long ago that was, and stays so.
type point struct {
	value, perMinute float64
	age              bool
}

// scrape returns the time series of the gateways of a cluster, as a Prometheus gets them that runs on a node other than
// that one: up is 0 for those that do not answer it.
func (c *cluster) scrape(t *testing.T, ctx context.Context, gateways []agentProcess, notOn int) map[string]point {
	t.Helper()
	from := c.pods[(notOn+1)%len(c.pods)].vantage
	addresses := map[string]string{}
	for line := range strings.Lines(jsonPath(t, ctx, c, `{range .items[*]}{.metadata.labels.liqonet\.io/plane} {.status.podIP}{"\n"}{end}`,
		"-n", v1alpha1.Namespace, "get", "pods", "-l", v1alpha1.LabelPlane)) {
		if plane, address, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			addresses[plane] = address
		}
	}
	out := map[string]point{}
	for _, g := range gateways {
		labels := fmt.Sprintf("namespace=%q, pod=%q", v1alpha1.Namespace, "gateway-"+g.plane)
		first, err := from.metrics(ctx, addresses[g.plane])
		up := point{}
		if err == nil {
			up.value = 1
			time.Sleep(scrapePause)
			second, err := from.metrics(ctx, addresses[g.plane])
			if err != nil {
				second = first
			}
			for series, s := range seriesOf(second, labels) {
				if was, ok := seriesOf(first, labels)[series]; ok && s.perMinute > 0 {
					s.perMinute = (s.value - was.value) * float64(time.Minute) / float64(scrapePause)
				}
				out[series] = s
			}
		}
		out[fmt.Sprintf("up{job=%q, %s}", "liqonet-system/liqonet", labels)] = up
	}
	return out
}

// metrics asks an agent for its metrics.
func (v *vantage) metrics(ctx context.Context, address string) (map[string]*dto.MetricFamily, error) {
	client := http.Client{Timeout: shortTimeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(_ context.Context, network, to string) (conn net.Conn, err error) {
			return conn, v.do(func() error {
				conn, err = net.DialTimeout(network, to, shortTimeout)
				return err
			})
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s:%d/metrics", address, v1alpha1.MetricsPort), nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", request.URL, response.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(io.LimitReader(response.Body, 1<<20))
}

// seriesOf returns liqonet's own time series, with more labels. What may grow has a rate above 0.
func seriesOf(families map[string]*dto.MetricFamily, labels string) map[string]point {
	out := map[string]point{}
	for name, family := range families {
		if !strings.HasPrefix(name, "liqonet_") {
			continue
		}
		for _, m := range family.Metric {
			own := labels
			for _, l := range m.Label {
				own += fmt.Sprintf(", %s=%q", l.GetName(), l.GetValue())
			}
			add := func(suffix, more string, value float64, grows bool) {
				s := point{value: value}
				if grows {
					s.perMinute = 1
				}
				if strings.HasSuffix(name, "_timestamp_seconds") {
					s.value, s.age = float64(time.Now().Unix())-value, true
				}
				out[fmt.Sprintf("%s%s{%s%s}", name, suffix, own, more)] = s
			}
			switch {
			case m.Gauge != nil:
				add("", "", m.Gauge.GetValue(), false)
			case m.Counter != nil:
				add("", "", m.Counter.GetValue(), true)
			case m.Histogram != nil:
				add("_count", "", float64(m.Histogram.GetSampleCount()), true)
				for _, b := range m.Histogram.Bucket {
					add("_bucket", fmt.Sprintf(", le=%q", fmt.Sprint(b.GetUpperBound())), float64(b.GetCumulativeCount()), true)
				}
			}
		}
	}
	return out
}

// firing returns the alerts of docs/monitoring that fire at the end, if Prometheus first scrapes what was before for half
// an hour, and then what is now for so many minutes.
func firing(t *testing.T, before, now map[string]point, minutes int) []string {
	t.Helper()
	series := maps.Clone(before)
	maps.Copy(series, now)
	var input strings.Builder
	for name := range series {
		values := ""
		if was, ok := before[name]; !ok {
			values = fmt.Sprintf("_x%d", alertMinutes-1)
		} else if was.age {
			values = fmt.Sprintf("%f+60x%d", -was.value, alertMinutes-1)
		} else {
			values = fmt.Sprintf("%f+%fx%d", was.value, was.perMinute, alertMinutes-1)
		}
		switch is, ok := now[name]; {
		case !ok:
			values += " stale"
		case is.age:
			values += fmt.Sprintf(" %f+60x%d", alertMinutes*60-is.value, minutes)
		default:
			values += fmt.Sprintf(" %f+%fx%d", is.value, is.perMinute, minutes)
		}
		fmt.Fprintf(&input, "  - {series: '%s', values: '%s'}\n", name, values)
	}
	rules := must(filepath.Abs("../../docs/monitoring/alerts.yaml"))(t)
	file := filepath.Join(t.TempDir(), "faults.yaml")
	// A sample that no alert has, so that the program prints those that fire.
	test := fmt.Sprintf(`rule_files: [%q]
evaluation_interval: 1m
tests:
- interval: 1m
  input_series:
%s  promql_expr_test:
  - expr: 'ALERTS{alertstate="firing"} or vector(1)'
    eval_time: %dm
    exp_samples: [{labels: '{never="true"}', value: 1}]
`, rules, input.String(), alertMinutes+minutes)
	report(t, os.WriteFile(file, []byte(test), 0o600))
	out, err := exec.CommandContext(t.Context(), "promtool", "test", "rules", file).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "got:") {
		t.Fatalf("promtool: %v\n%s", err, out)
	}
	var fires []string
	for _, part := range strings.Split(string(out), "alertname=\"")[1:] {
		name, _, _ := strings.Cut(part, `"`)
		fires = append(fires, name)
	}
	slices.Sort(fires)
	return slices.Compact(fires)
}
