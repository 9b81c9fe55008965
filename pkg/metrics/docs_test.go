package metrics_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liqonet/liqonet/pkg/metrics"
	"github.com/liqonet/liqonet/test/kit"
)

// described is a metric as described in its row of the documentation.
type described struct{ Type, Labels string }

// page returns the documentation.
func page(t *testing.T) string {
	t.Helper()
	raw := kit.Must(os.ReadFile("../../docs/monitoring.md"))(t)
	return string(raw)
}

// shown returns the metrics of both agents.
func shown(t *testing.T) map[string]described {
	t.Helper()
	out := map[string]described{}
	for _, c := range []metrics.Component{metrics.Gateway, metrics.Node, metrics.ServicesController} {
		families := kit.Must(filled(c).Gatherer().Gather())(t)
		for _, f := range families {
			if !strings.HasPrefix(f.GetName(), "liqonet_") {
				continue
			}
			var labels []string
			for _, l := range f.GetMetric()[0].GetLabel() {
				labels = append(labels, l.GetName())
			}
			out[f.GetName()] = described{strings.ToLower(f.GetType().String()), strings.Join(labels, ", ")}
		}
	}
	return out
}

var code = regexp.MustCompile("`([^`]+)`")

func TestDocumentedMetrics(t *testing.T) {
	got := map[string]described{}
	for line := range strings.Lines(page(t)) {
		cells := strings.Split(line, " |")
		if !strings.HasPrefix(line, "| `liqonet_") || len(cells) < 4 {
			continue
		}
		for _, name := range code.FindAllStringSubmatch(cells[0], -1) {
			got[name[1]] = described{strings.TrimSpace(cells[1]), strings.TrimSpace(cells[2])}
		}
	}
	kit.Check(t, "docs/monitoring.md differs from the metrics (-shown +documented)", got, shown(t))
}

// Each reason for which a table drops packets is documented.
func TestDocumentedReasons(t *testing.T) {
	documented := map[string]bool{}
	_, table, _ := strings.Cut(page(t), "## Drop reasons")
	table, _, _ = strings.Cut(table, "\nA few")
	for line := range strings.Lines(table) {
		for _, name := range code.FindAllStringSubmatch(strings.Split(line, " |")[0], -1) {
			documented[name[1]] = true
		}
	}
	inCode := map[string]bool{}
	files := kit.Must(filepath.Glob("../nat/*.go"))(t)
	for _, file := range files {
		raw := kit.Must(os.ReadFile(file))(t)
		for _, m := range regexp.MustCompile(`drop\(\w+, "([a-z0-9-]+)"|(?:icmpError|reasonForged|forgedOverlay|outsideOverlay|toNode|tunnelEnd|Unencrypted) += "([a-z-]+)"`).FindAllStringSubmatch(string(raw), -1) {
			inCode[m[1]+m[2]] = true
		}
	}
	diff := cmp.Diff(inCode, documented)
	kit.ErrorIf(t, diff != "" || len(documented) < 10, "%v", diff)
}
