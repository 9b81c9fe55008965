package main

import (
	"bytes"
	"fmt"
	"html"
	"regexp"
	"strings"
	"time"
)

const (
	// Pixels of a character, and around all of them.
	charWidth, lineHeight, margin = 8.4, 19, 14
	// last is how long the last frame stays before it begins again.
	last = 5 * time.Second
)

// colours are those of a terminal with a dark background, by the numbers of ECMA-48: 30 to 37, and 90 to 97 for the bright ones.
var colours = map[string]string{
	"31": "#ff7b72", "32": "#56d364", "33": "#e3b341", "34": "#79c0ff", "35": "#d2a8ff", "36": "#56d4dd", "90": "#8b949e",
	"91": "#ffa198", "92": "#7ee787", "93": "#f2cc60", "94": "#a5d6ff", "95": "#e2c5ff", "96": "#b3f0ff",
}

// graphics is what changes how characters look.
var graphics = regexp.MustCompile("\x1b\\[([0-9;]*)m")

// draw makes a picture of which one frame after the other is seen: they stand side by side, and are moved.
func draw(frames []frame, rows int) []byte {
	width, height := columns*charWidth+2*margin, rows*lineHeight+2*margin
	end := frames[len(frames)-1].at + last
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%d" viewBox="0 0 %.0f %d" font-family="ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="14">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, "<style>\n.frames { fill: #e6edf3; animation: play %.1fs steps(1, end) infinite }\n@keyframes play {\n", end.Seconds())
	for i, f := range frames {
		fmt.Fprintf(&b, "%.2f%% { transform: translateX(%.0fpx) }\n", 100*float64(f.at-frames[0].at)/float64(end), -width*float64(i))
	}
	// Who wants nothing to move sees the last one.
	fmt.Fprintf(&b, "}\n@media (prefers-reduced-motion) { .frames { animation: none; transform: translateX(%.0fpx) } }\n</style>\n", -width*float64(len(frames)-1))
	fmt.Fprintf(&b, `<rect width="%.0f" height="%d" rx="8" fill="#0d1117"/>`+"\n<g class=\"frames\">\n", width, height)
	ids := map[string]int{} // a line that was drawn is not drawn again
	for i, f := range frames {
		fmt.Fprintf(&b, `<g transform="translate(%.0f 0)">`+"\n", width*float64(i)+margin)
		for row, line := range strings.Split(strings.TrimRight(f.screen, "\n"), "\n") {
			id, known := ids[line]
			switch y := margin + lineHeight*row + 14; {
			case graphics.ReplaceAllString(line, "") == "":
			case known:
				fmt.Fprintf(&b, `<use href="#r%d" y="%d"/>`+"\n", id, y)
			default:
				ids[line] = len(ids)
				fmt.Fprintf(&b, `<g transform="translate(0 %d)"><text id="r%d" xml:space="preserve">%s</text></g>`+"\n", y, ids[line], spans(line))
			}
		}
		b.WriteString("</g>\n")
	}
	b.WriteString("</g>\n</svg>\n")
	return b.Bytes()
}

// spans is a line of a terminal in SVG. tmux begins each line with the graphics that hold there.
func spans(line string) string {
	var out strings.Builder
	var colour, weight string
	write := func(chars string) {
		if chars = html.EscapeString(chars); chars != "" && colour+weight != "" {
			chars = "<tspan" + colour + weight + ">" + chars + "</tspan>"
		}
		out.WriteString(chars)
	}
	at := 0
	for _, m := range graphics.FindAllStringSubmatchIndex(line, -1) {
		write(line[at:m[0]])
		for code := range strings.SplitSeq(line[m[2]:m[3]], ";") {
			switch {
			case code == "" || code == "0":
				colour, weight = "", ""
			case code == "39":
				colour = ""
			case code == "1":
				weight = ` font-weight="bold"`
			case colours[code] != "":
				colour = ` fill="` + colours[code] + `"`
			}
		}
		at = m[1]
	}
	write(line[at:])
	return out.String()
}
