package main

import (
	"fmt"
	"html"
	"math"
	"strings"
	"time"

	promv1 "github.com/prometheus/client_golang/api/prometheus/v1"
)

const (
	// unitX and unitY are the size of a cell of Grafana's grid, in pixels; gap is between panels.
	unitX, unitY, gap = 50, 26, 8
	// Around the lines of a panel there is room for its title, its scale and its legend.
	left, right, top, bottom = 64, 10, 32, 62
	// legendLines is how many lines the legend has, legendWidth how many characters one has.
	legendLines, legendWidth = 3, 62
)

// colours of lines, one after the other.
func colours() []string {
	return []string{"#1a7f37", "#0969da", "#b8651b", "#8250df", "#cf222e", "#1b7c83", "#9a6700", "#57606a", "#bf3989", "#4d2d00"}
}

// draw returns the picture.
func (b *board) draw(times promv1.Range) string {
	width, height := 0, 0
	for _, p := range b.Panels {
		width, height = max(width, (p.GridPos.X+p.GridPos.W)*unitX), max(height, (p.GridPos.Y+p.GridPos.H)*unitY)
	}
	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="Helvetica, Arial, 'DejaVu Sans', sans-serif" font-size="11" role="img" aria-labelledby="t">
<title id="t">%s, %s to %s</title>
<style>.bg{fill:#f6f8fa}.panel{fill:#fff;stroke:#d0d7de}.grid{stroke:#eaeef2}.line{fill:none;stroke-width:1.5}.dim{fill:#57606a}.title{font-size:13px;font-weight:bold}</style>
<rect class="bg" width="%[1]d" height="%[2]d"/>
`, width, height, html.EscapeString(b.Title), clock(times.Start), clock(times.End))
	for _, p := range b.Panels {
		p.draw(&out, times)
	}
	out.WriteString("</svg>\n")
	return out.String()
}

func clock(t time.Time) string { return t.UTC().Format("15:04") }

func (p *panel) draw(out *strings.Builder, times promv1.Range) {
	x, y := p.GridPos.X*unitX+gap/2, p.GridPos.Y*unitY+gap/2
	w, h := p.GridPos.W*unitX-gap, p.GridPos.H*unitY-gap
	fmt.Fprintf(out, "<g transform=\"translate(%d %d)\"><rect class=\"panel\" width=\"%d\" height=\"%d\" rx=\"3\"/>\n<text class=\"title\" x=\"10\" y=\"19\">%s</text>\n", x, y, w, h, html.EscapeString(p.Title))
	plotW, plotH := float64(w-left-right), float64(h-top-bottom)
	most := nice(p.most())
	for i := range 3 {
		at := float64(top) + plotH*(1-float64(i)/2)
		fmt.Fprintf(out, "<path class=\"grid\" d=\"M%d %.1fh%.1f\"/><text class=\"dim\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", left, at, plotW, left-6, at+4, format(most*float64(i)/2, p.FieldConfig.Defaults.Unit))
	}
	for i, t := range []time.Time{times.Start, times.Start.Add(times.End.Sub(times.Start) / 2), times.End} {
		fmt.Fprintf(out, "<text class=\"dim\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", left+plotW*float64(i)/2, top+plotH+15, []string{"start", "middle", "end"}[i], clock(t))
	}
	if len(p.lines) == 0 {
		fmt.Fprintf(out, "<text class=\"dim\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">no data</text>\n", left+plotW/2, top+plotH/2)
	}
	span := times.End.Sub(times.Start).Seconds()
	for i, l := range p.lines {
		var d strings.Builder
		pen := "M"
		for _, v := range l.values {
			value := float64(v.Value)
			if math.IsNaN(value) || math.IsInf(value, 0) {
				pen = "M" // there is a gap
				continue
			}
			fmt.Fprintf(&d, "%s%.1f %.1f", pen, left+plotW*v.Timestamp.Time().Sub(times.Start).Seconds()/span, top+plotH*(1-min(max(value, 0), most)/most))
			pen = "L"
		}
		fmt.Fprintf(out, "<path class=\"line\" stroke=\"%s\" d=\"%s\"/>\n", colours()[i%len(colours())], d.String())
	}
	p.legend(out, h)
	out.WriteString("</g>\n")
}

// legend names as many lines as there is room for.
func (p *panel) legend(out *strings.Builder, height int) {
	row, column := 0, 0
	for i, l := range p.lines {
		length := len(l.name) + 4
		if column > 0 && column+length > legendWidth {
			row, column = row+1, 0
		}
		at := height - bottom + 33 + 13*row
		if row == legendLines-1 && i < len(p.lines)-1 && column+length+8 > legendWidth || row >= legendLines {
			fmt.Fprintf(out, "<text class=\"dim\" x=\"%d\" y=\"%d\">and %d more</text>\n", 10+column*6, at, len(p.lines)-i)
			return
		}
		fmt.Fprintf(out, "<path d=\"M%d %dh10\" stroke=\"%s\" stroke-width=\"3\"/><text x=\"%d\" y=\"%d\">%s</text>\n", 10+column*6, at-4, colours()[i%len(colours())], 24+column*6, at, html.EscapeString(l.name))
		column += length
	}
}

// most is the largest value.
func (p *panel) most() (out float64) {
	for _, l := range p.lines {
		for _, v := range l.values {
			if f := float64(v.Value); !math.IsInf(f, 0) && f > out { // false for NaN
				out = f
			}
		}
	}
	return out
}

// nice is a round number that is not less.
func nice(most float64) float64 {
	if most <= 0 {
		return 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(most)))
	for _, n := range []float64{1, 2, 4, 6, 8} {
		if most <= n*unit*1.0001 {
			return n * unit
		}
	}
	return 10 * unit
}

// format writes a value in a unit of Grafana.
func format(value float64, unit string) string {
	if value == 0 {
		return "0"
	}
	scaled := func(units ...string) string {
		i := 0
		for ; value >= 1000 && i < len(units)-1; i++ {
			value /= 1000
		}
		return strings.TrimSpace(fmt.Sprintf("%.3g %s", value, units[i]))
	}
	switch unit {
	case "s":
		switch {
		case value < 1:
			return fmt.Sprintf("%.3g ms", value*1000)
		case value >= 2*24*3600:
			return fmt.Sprintf("%.3g d", value/24/3600)
		}
		return fmt.Sprintf("%.3g s", value)
	case "percentunit":
		return fmt.Sprintf("%.3g %%", value*100)
	case "bps":
		return scaled("bit/s", "kbit/s", "Mbit/s", "Gbit/s")
	case "pps":
		return scaled("/s", "k/s", "M/s")
	case "bytes":
		return fmt.Sprintf("%.0f B", value)
	}
	return scaled("", "k", "M")
}
