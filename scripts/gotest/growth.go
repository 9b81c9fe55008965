package main

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// growthImage is a picture of what agents cost where there is more and more to do.
const growthImage = "docs/images/scale.svg"

// growthResults have what is drawn: of agents with an API server that is played, and of a cluster of the lab.
var growthResults = []string{"scale", "scalelab"}

// grown are what is drawn of them: the benchmark, the unit, its title, and whether it is of nodes agents.
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

// mostGrowth is where both axes end. They begin with the first step, and are logarithmic.
const mostGrowth = 250.0

// step finds how many there are of what grows, and otherwise names where there is more of something else as well.
var (
	step      = regexp.MustCompile(`=(\d+)`)
	otherwise = regexp.MustCompile(`/.*/peerings=([2-9]|1\d)`)
)

// growth draws the picture, empty where nothing was measured.
func growth(all []Result) string {
	var marks []Benchmark
	for _, r := range all {
		if slices.Contains(growthResults, r.Name) {
			marks = append(marks, r.Benchmarks...)
		}
	}
	if len(marks) == 0 {
		return ""
	}
	x := func(f float64) float64 { return left + math.Log(f)/math.Log(mostGrowth)*(right-150-left) }
	y := func(f float64) float64 { return bottom - math.Log(max(f, 1))/math.Log(mostGrowth)*(bottom-top) }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="Helvetica, Arial, 'DejaVu Sans', sans-serif" font-size="13" role="img" aria-labelledby="t d">
  <title id="t">What agents cost where there are more nodes and peerings</title>
  <desc id="d">Curves of memory, processor time and bytes of the API, of a gateway from 100 to 5,000 nodes and of a node agent from 1 to 250 peerings, and of the time of commands, beside a straight line.</desc>
%s  <rect class="bg" x="1" y="1" width="%d" height="%d" rx="10"/>
`, width, height, style, width-2, height-2)
	for _, f := range []float64{1, 10, 50, 250} {
		fmt.Fprintf(&b, "  <path class=\"grid\" d=\"M%d %.1f H%d\"/><text class=\"dim\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g times</text>\n", left, y(f), right-150, left-4, y(f)+4, f)
		fmt.Fprintf(&b, "  <text class=\"dim\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%g times</text>\n", x(f), bottom+22, f)
	}
	fmt.Fprintf(&b, "  <text class=\"dim\" x=\"%d\" y=\"%d\" text-anchor=\"middle\">as many nodes as 100, or peerings as 1</text>\n", (left+right-150)/2, bottom+44)
	fmt.Fprintf(&b, "  <path class=\"other\" d=\"M%.1f %.1f L%.1f %.1f\"/><text class=\"ox\" x=\"%.1f\" y=\"%.1f\">linear</text>\n", x(1), y(1), x(mostGrowth), y(mostGrowth), x(mostGrowth)+6, y(mostGrowth))
	labels := map[string]float64{}
	for _, g := range grown {
		var points []string
		var first Benchmark
		var end, at float64
		for _, m := range marks {
			found := step.FindStringSubmatch(m.Name)
			if !strings.HasPrefix(m.Name, g.benchmark+"/") || found == nil || otherwise.MatchString(m.Name) {
				continue
			}
			n, _ := strconv.ParseFloat(found[1], 64)
			if first.Name == "" {
				first, at = m, n
			}
			end = m.Metrics[g.unit] / first.Metrics[g.unit]
			points = append(points, fmt.Sprintf("%.1f,%.1f", x(n/at), y(end)))
		}
		if len(points) == 0 {
			continue
		}
		last, _, _ := strings.Cut(points[len(points)-1], ",")
		to, _ := strconv.ParseFloat(last, 64)
		beside := y(end) + 4
		for slices.ContainsFunc([]string{"p", "c"}, func(c string) bool { have, ok := labels[c]; return ok && c == g.class && math.Abs(have-beside) < 15 }) {
			beside -= 15
		}
		labels[g.class] = beside
		fmt.Fprintf(&b, "  <polyline class=\"%s\" points=\"%s\"/><text class=\"%sx\" x=\"%.1f\" y=\"%.1f\">%s</text>\n", g.class, strings.Join(points, " "), g.class, to+6, beside, g.title)
	}
	b.WriteString("</svg>\n")
	return b.String()
}
