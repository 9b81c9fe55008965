package main

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/samber/lo"
)

// curve is a line of a picture. Class "p" or "c" is its color, X and Y are where its title is.
type curve struct {
	Class, Title string
	Points       []string
	X, Y         float64
}

// axis is the position of a value, px.
type axis func(value float64) float64

// logarithm is an axis from least to most, which puts lower values at its start.
func logarithm(start, end, least, most float64) axis {
	return func(v float64) float64 {
		return start + math.Log(max(v, least)/least)/math.Log(most/least)*(end-start)
	}
}

// draw writes a picture. It is empty where nothing was measured.
func draw(name string, x, y axis, curves []curve) (string, error) {
	if len(curves) == 0 {
		return "", nil
	}
	label := func(a axis) func(value, by float64) string {
		return func(value, by float64) string { return fmt.Sprintf("%.1f", a(value)+by) }
	}
	return execute(name, curves, label(x), label(y))
}

func point(x, y float64) string { return fmt.Sprintf("%.1f,%.1f", x, y) }

// drawChaos shows how long traffic was lost in the rounds of the chaos test. The template has the figures of other tools;
// docs/reliability.md has their sources.
func drawChaos(all []Result) (string, error) {
	x, y := func(percent float64) float64 { return 70 + 7.9*percent }, logarithm(400, 50, 0.01, 100)
	var curves []curve
	for _, m := range marks(all, "chaos") {
		c := curve{Class: "p", Title: "packets", X: 70, Y: 32}
		switch m.Name {
		case drawn + "packets":
		case drawn + "tcp":
			c = curve{Class: "c", Title: "a TCP connection", X: 170, Y: 32}
		default:
			continue
		}
		for q := 0.0; q <= 100; q += 5 {
			c.Points = append(c.Points, point(x(q), y(min(m.Metrics[fmt.Sprintf("q%g", q)], 100))))
		}
		curves = append(curves, c)
	}
	return draw("chaos.svg", x, y, curves)
}

// grown are what the picture of growth shows of benchmarks: the unit and its title, by gateways ("p") or nodes ("c").
var grown = []struct{ benchmark, unit, title, class string }{
	{"BenchmarkScaleGateway", "MiB", "gateway: memory", "p"},
	{"BenchmarkScaleGateway", "%core-reports", "gateway: processor", "p"},
	{"BenchmarkScaleGateway", "kB/min-reports", "gateway: API", "p"},
	{"BenchmarkScaleCluster", "s-peer", "peer", "p"},
	{"BenchmarkScaleCluster", "s-unpeer", "unpeer", "p"},
	{"BenchmarkScaleCluster", "requests/min", "cluster: API", "p"},
	{"BenchmarkScaleNode", "MiB", "node: memory", "c"},
	{"BenchmarkScaleNode", "%core-reports", "node: processor", "c"},
	{"BenchmarkScaleNode", "kB/min-reports", "node: API", "c"},
}

// step finds how many there are of what grows, and otherwise names where there is more of something else as well.
var (
	step      = regexp.MustCompile(`=(\d+)`)
	otherwise = regexp.MustCompile(`/.*/peerings=([2-9]|1\d)`)
)

// drawGrowth shows what agents and commands cost as nodes and peerings increase, next to a straight line.
func drawGrowth(all []Result) (string, error) {
	x, y := logarithm(70, 710, 1, 250), logarithm(400, 50, 1, 250)
	var curves []curve
	for _, g := range grown {
		c := curve{Class: g.class, Title: g.title}
		var n, value float64 // of the first step
		for _, m := range marks(all, "scale", "scalelab") {
			found := step.FindStringSubmatch(m.Name)
			if !strings.HasPrefix(m.Name, g.benchmark+"/") || found == nil || otherwise.MatchString(m.Name) {
				continue
			}
			now, _ := strconv.ParseFloat(found[1], 64)
			n, value = cmp.Or(n, now), cmp.Or(value, m.Metrics[g.unit])
			c.X, c.Y = x(now/n), y(m.Metrics[g.unit]/value)
			c.Points = append(c.Points, point(c.X, c.Y))
		}
		c.X, c.Y = c.X+6, c.Y+4
		for slices.ContainsFunc(curves, func(o curve) bool { return o.Class == c.Class && math.Abs(o.Y-c.Y) < 15 }) {
			c.Y -= 15
		}
		if c.Points != nil {
			curves = append(curves, c)
		}
	}
	return draw("scale.svg", x, y, curves)
}

// marks returns the benchmarks of the named results.
func marks(all []Result, names ...string) []Benchmark {
	return lo.FlatMap(all, func(r Result, _ int) []Benchmark {
		return lo.Ternary(slices.Contains(names, r.Name), r.Benchmarks, nil)
	})
}
