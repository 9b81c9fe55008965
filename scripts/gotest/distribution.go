package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// distributionImage is a picture of how long was lost in all rounds of the chaos test, beside what is known of others.
const distributionImage = "docs/images/chaos.svg"

// distributed is the benchmark whose metrics are drawn: q0 to q100 are quantiles, in seconds.
const distributed = "BenchmarkChaosDistribution"

// others are figures of other tools, s, with sources in docs/reliability.md.
var others = []struct {
	name    string
	seconds float64
}{
	{"BFD, 3 times 300 ms: 0.9 s", 0.9}, {"Submariner, by a lease: 17 s", 17},
}

// The picture is width by height. Its axes begin at left and end at bottom. Times are from shortest to longest, s, on a logarithmic
// scale; what is shorter is at the bottom.
const (
	width, height, left, right, top, bottom = 900, 460, 70, 860, 50, 400
	shortest, longest                       = 0.01, 100.0
)

// style is that of all pictures, for light and dark pages.
const style = `  <style>
    .bg{fill:#fff;stroke:#d0d7de} text{fill:#1f2328} .dim{fill:#57606a} .grid{stroke:#d0d7de} .other{stroke:#b8651b;stroke-dasharray:5 4} .ox{fill:#b8651b}
    .p{stroke:#1a7f37;stroke-width:3;fill:none} .px{fill:#1a7f37} .c{stroke:#2f6fb5;stroke-width:3;fill:none} .cx{fill:#2f6fb5}
    @media (prefers-color-scheme: dark) {
    .bg{fill:#0d1117;stroke:#30363d} text{fill:#e6edf3} .dim{fill:#9198a1} .grid{stroke:#30363d} .other{stroke:#e0954a} .ox{fill:#e0954a}
    .p{stroke:#3fb950} .px{fill:#3fb950} .c{stroke:#58a6ff} .cx{fill:#58a6ff}
    }
  </style>
`

// distribution draws the picture, empty where nothing was measured.
func distribution(all []Result) string {
	i := slices.IndexFunc(all, func(r Result) bool { return r.Name == "chaos" })
	if i < 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="Helvetica, Arial, 'DejaVu Sans', sans-serif" font-size="13" role="img" aria-labelledby="t d">
  <title id="t">How long was lost in a round of chaos</title>
  <desc id="d">Two curves, of packets and of a TCP connection: the part of all rounds against the longest time without an answer, from 0.01 to 100 s.</desc>
%s  <rect class="bg" x="1" y="1" width="%d" height="%d" rx="10"/>
`, width, height, style, width-2, height-2)
	for _, s := range []float64{0.01, 0.1, 1, 10, 100} {
		fmt.Fprintf(&b, "  <path class=\"grid\" d=\"M%d %.1f H%d\"/><text class=\"dim\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g s</text>\n", left, atSeconds(s), right, left-8, atSeconds(s)+4, s)
	}
	for q := 0; q <= 100; q += 25 {
		fmt.Fprintf(&b, "  <text class=\"dim\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%d %%</text>\n", atQuantile(q), bottom+22, q)
	}
	fmt.Fprintf(&b, "  <text class=\"dim\" x=\"%d\" y=\"%d\" text-anchor=\"middle\">part of all rounds in which no more was lost</text>\n", (left+right)/2, bottom+44)
	for _, o := range others {
		fmt.Fprintf(&b, "  <path class=\"other\" d=\"M%d %.1f H%d\"/><text class=\"ox\" x=\"%d\" y=\"%.1f\">%s</text>\n", left, atSeconds(o.seconds), right, left+10, atSeconds(o.seconds)-6, o.name)
	}
	for n, of := range []struct{ what, class, title string }{{"packets", "p", "packets"}, {"tcp", "c", "a TCP connection"}} {
		j := slices.IndexFunc(all[i].Benchmarks, func(m Benchmark) bool { return m.Name == distributed+"/"+of.what })
		if j < 0 {
			continue
		}
		var points []string
		for q := 0; q <= 100; q += 5 {
			points = append(points, fmt.Sprintf("%.1f,%.1f", atQuantile(q), atSeconds(all[i].Benchmarks[j].Metrics[fmt.Sprintf("q%d", q)])))
		}
		fmt.Fprintf(&b, "  <polyline class=\"%s\" points=\"%s\"/><text class=\"%sx\" x=\"%d\" y=\"32\" font-weight=\"bold\">%s</text>\n", of.class, strings.Join(points, " "), of.class, left+n*100, of.title)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func atQuantile(q int) float64 { return left + float64(q)*(right-left)/100 }

func atSeconds(s float64) float64 {
	s = min(max(s, shortest), longest)
	return bottom - math.Log(s/shortest)/math.Log(longest/shortest)*(bottom-top)
}
