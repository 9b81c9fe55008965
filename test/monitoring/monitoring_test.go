package monitoring

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/liqonet/liqonet/test/kit"
)

const (
	directory = "../../docs/monitoring"
	page      = "../../docs/monitoring.md"
	// runbook is where alerts lead.
	runbook = "https://github.com/liqonet/liqonet/blob/main/docs/monitoring.md#"
)

func read(t *testing.T, path string) string {
	t.Helper()
	return string(kit.Must(os.ReadFile(path))(t))
}

// decode reads a file of docs/monitoring.
func decode(t *testing.T, name string, into any) {
	t.Helper()
	kit.NoError(t, yaml.Unmarshal([]byte(read(t, filepath.Join(directory, name))), into))
}

// alert is one of alerts.yaml.
type alert struct {
	Alert, Expr         string
	Labels, Annotations map[string]string
}

func alerts(t *testing.T) (out []alert) {
	t.Helper()
	var file struct{ Groups []struct{ Rules []alert } }
	decode(t, "alerts.yaml", &file)
	for _, g := range file.Groups {
		out = append(out, g.Rules...)
	}
	if len(out) == 0 {
		t.Fatal("there are no alerts")
	}
	return out
}

// Prometheus' own program takes the rules, and tries them.
func TestPromtool(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a package of the distribution")
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
		cmd := exec.Command("promtool", args...)
		cmd.Dir = directory
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}

// Each alert fires in a case, does not in the quiet hour, and is explained where it leads.
func TestCases(t *testing.T) {
	var file struct {
		Tests []struct {
			Name  string
			Cases []struct {
				At     string            `json:"eval_time"`
				Alert  string            `json:"alertname"`
				Expect []json.RawMessage `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		}
	}
	decode(t, "alerts_test.yaml", &file)
	fires, quiet := map[string]bool{}, map[string][]string{}
	for _, test := range file.Tests {
		for _, c := range test.Cases {
			switch {
			case test.Name == "quiet hour" && len(c.Expect) == 0:
				quiet[c.Alert] = append(quiet[c.Alert], c.At)
			case test.Name == "quiet hour":
				t.Errorf("%s fires in the quiet hour", c.Alert)
			case len(c.Expect) > 0:
				fires[c.Alert] = true
			}
		}
	}
	text := read(t, page)
	for _, a := range alerts(t) {
		if !fires[a.Alert] {
			t.Errorf("%s: there is no fault under which it fires", a.Alert)
		}
		// All of the ranges and pauses in expressions are shorter than the time before.
		kit.Check(t, a.Alert+" in the quiet hour", quiet[a.Alert], []string{"75m", "90m", "105m", "120m", "135m"})
		if !strings.Contains(text, "\n### "+a.Alert+"\n") || a.Annotations["runbook_url"] != runbook+strings.ToLower(a.Alert) {
			t.Errorf("%s leads to %q: is there a section?", a.Alert, a.Annotations["runbook_url"])
		}
		if !slices.Contains([]string{"critical", "warning", "info"}, a.Labels["severity"]) || a.Annotations["summary"] == "" {
			t.Errorf("%s: severity %q, summary %q", a.Alert, a.Labels["severity"], a.Annotations["summary"])
		}
	}
	for _, section := range regexp.MustCompile(`(?m)^### (Liqonet\w+)$`).FindAllStringSubmatch(text, -1) {
		if !slices.ContainsFunc(alerts(t), func(a alert) bool { return a.Alert == section[1] }) {
			t.Errorf("there is no alert %s", section[1])
		}
	}
}

// documented are the metrics in the table of the page, which a test of package metrics compares with agents.
func documented(t *testing.T) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	for line := range strings.Lines(read(t, page)) {
		if !strings.HasPrefix(line, "| `liqonet_") {
			continue
		}
		cells := strings.Split(line, " |")
		for _, name := range regexp.MustCompile("`(liqonet_\\w+)`").FindAllStringSubmatch(cells[0], -1) {
			out[name[1]] = true
			if strings.TrimSpace(cells[1]) == "histogram" {
				for _, part := range []string{"_bucket", "_sum", "_count"} {
					out[name[1]+part] = true
				}
			}
		}
	}
	return out
}

var metric = regexp.MustCompile(`\bliqonet_[a-z_]+\b`)

// used are the metrics in a text with expressions.
func used(text string) []string {
	const both = "(gateway|node)"
	out := metric.FindAllString(strings.ReplaceAll(text, both, "gateway"), -1)
	if strings.Contains(text, both) {
		out = append(out, metric.FindAllString(strings.ReplaceAll(text, both, "node"), -1)...)
	}
	return out
}

func TestMetricsAreThere(t *testing.T) {
	known := documented(t)
	texts := map[string]string{"alerts_test.yaml": read(t, filepath.Join(directory, "alerts_test.yaml"))}
	for _, a := range alerts(t) {
		texts[a.Alert] = a.Expr
	}
	maps.Copy(texts, panels(t))
	for where, text := range texts {
		names := used(text)
		if len(names) == 0 && where != "LiqonetAgentDown" {
			t.Errorf("%s uses no metric", where)
		}
		for _, name := range names {
			if !known[name] {
				t.Errorf("%s: no agent has %s", where, name)
			}
		}
	}
}

// panels are the expressions of the dashboard, by the panel's title.
func panels(t *testing.T) map[string]string {
	t.Helper()
	var board struct {
		Panels []struct {
			Type, Title string
			Targets     []struct{ Expr string }
		}
	}
	decode(t, "dashboard.json", &board)
	out := map[string]string{}
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			out["panel "+p.Title] += target.Expr + "\n"
		}
	}
	if len(out) < 10 {
		t.Fatal(fmt.Sprint(len(out), " panels"))
	}
	return out
}
