// Command dashboard draws docs/monitoring/dashboard.json as a picture, from what a Prometheus has. It asks
// for each expression of each panel as Grafana does, so a panel that is empty in the picture is empty there.
//
//	go run ./scripts/dashboard -prometheus http://127.0.0.1:9090
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/api"
	promv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
)

// points is how many values a line has.
const points = 120

// board is what of a dashboard is drawn.
type board struct {
	Title  string
	Panels []panel
}

type panel struct {
	Title, Description string
	GridPos            struct{ X, Y, W, H int }
	FieldConfig        struct{ Defaults struct{ Unit string } }
	Targets            []struct{ Expr, LegendFormat string }
	lines              []line
}

// line is one series of a panel.
type line struct {
	name   string
	values []model.SamplePair
}

func main() {
	var address, in, out, end string
	var length time.Duration
	flag.StringVar(&address, "prometheus", "http://127.0.0.1:9090", "address of Prometheus' HTTP API")
	flag.StringVar(&in, "dashboard", "docs/monitoring/dashboard.json", "the dashboard")
	flag.StringVar(&out, "o", "docs/monitoring/dashboard.svg", "the picture")
	flag.StringVar(&end, "end", "", "the last moment that is drawn, RFC 3339 (default now)")
	flag.DurationVar(&length, "range", time.Hour, "how long before that it begins")
	flag.Parse()
	if err := run(address, in, out, end, length); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(address, in, out, end string, length time.Duration) error {
	last := time.Now()
	if end != "" {
		var err error
		if last, err = time.Parse(time.RFC3339, end); err != nil {
			return fmt.Errorf("-end: %w", err)
		}
	}
	raw, err := os.ReadFile(in)
	if err != nil {
		return err
	}
	var b board
	if err := json.Unmarshal(raw, &b); err != nil {
		return fmt.Errorf("read %s: %w", in, err)
	}
	client, err := api.NewClient(api.Config{Address: address})
	if err != nil {
		return fmt.Errorf("call %s: %w", address, err)
	}
	times := promv1.Range{Start: last.Add(-length), End: last, Step: length / points}
	empty, err := b.fill(context.Background(), promv1.NewAPI(client), times)
	if err != nil {
		return err
	}
	if err := os.WriteFile(out, []byte(b.draw(times)), 0o644); err != nil {
		return err
	}
	fmt.Printf("%s: %d panels\n", out, len(b.Panels))
	if len(empty) > 0 {
		fmt.Printf("empty: %s\n", strings.Join(empty, ", "))
	}
	return nil
}

// fill asks for all lines, and returns the titles of panels that have none.
func (b *board) fill(ctx context.Context, from promv1.API, times promv1.Range) (empty []string, err error) {
	for i := range b.Panels {
		p := &b.Panels[i]
		for _, t := range p.Targets {
			// All values of the only variable of expressions.
			value, _, askErr := from.QueryRange(ctx, strings.ReplaceAll(t.Expr, "$peering", ".*"), times)
			if askErr != nil {
				err = errors.Join(err, fmt.Errorf("panel %q: %w", p.Title, askErr))
				continue
			}
			matrix, ok := value.(model.Matrix)
			if !ok {
				err = errors.Join(err, fmt.Errorf("panel %q: the answer is of type %s", p.Title, value.Type()))
			}
			for _, s := range matrix {
				p.lines = append(p.lines, line{legend(t.LegendFormat, s.Metric), s.Values})
			}
		}
		slices.SortStableFunc(p.lines, func(a, b line) int { return strings.Compare(a.name, b.name) })
		if len(p.lines) == 0 {
			empty = append(empty, p.Title)
		}
	}
	return empty, err
}

var placeholder = regexp.MustCompile(`{{\s*(\w+)\s*}}`)

// legend is a line's name as Grafana has it.
func legend(format string, labels model.Metric) string {
	return placeholder.ReplaceAllStringFunc(format, func(s string) string {
		return string(labels[model.LabelName(placeholder.FindStringSubmatch(s)[1])])
	})
}
