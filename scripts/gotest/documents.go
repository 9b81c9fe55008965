package main

import (
	"embed"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/samber/lo"
)

//go:embed *.tmpl
var templates embed.FS

// drawn is the prefix of benchmarks that a picture shows, and no table. Their metrics q0 to q100 are quantiles in seconds.
const drawn = "BenchmarkChaosDistribution/"

// filledPages have tables of what benchmarks measured: one after each comment that names a result, the benchmark, and the
// columns: parts of its name, by their number after a slash, and units, each with a title. Of a part such as nodes=100-2, where
// the last number is that of processors, it is the value.
var filledPages = []string{"docs/reliability.md", "docs/limits.md"}

// documents returns the pages and pictures that show results, by path.
func documents(all []Result) (map[string]string, error) {
	readme, err := execute("README.md", all, nil, nil)
	chaos, errChaos := drawChaos(all)
	growth, errGrowth := drawGrowth(all)
	err = errors.Join(err, errChaos, errGrowth)
	out := map[string]string{resultDir + "/README.md": readme, "docs/images/chaos.svg": chaos, "docs/images/scale.svg": growth}
	for _, page := range filledPages {
		text, errPage := os.ReadFile(page)
		err = errors.Join(err, errPage)
		out[page] = fill(string(text), all)
	}
	maps.DeleteFunc(out, func(_, text string) bool { return text == "" })
	return out, err
}

// writeDocuments writes the pages and pictures that show results.
func writeDocuments() error {
	all, err := results()
	if err != nil {
		return err
	}
	texts, err := documents(all)
	if err != nil {
		return err
	}
	for path, text := range texts {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// execute runs a template. Templates of pictures call x and y: the position of a value, shifted by so many pixels.
func execute(name string, data any, x, y func(value, by float64) string) (string, error) {
	t, err := template.New("").Funcs(template.FuncMap{"x": x, "y": y}).ParseFS(templates, "*.tmpl")
	if err != nil {
		return "", err
	}
	var b strings.Builder
	err = t.ExecuteTemplate(&b, name, data)
	return b.String(), err
}

// Total is the number of tests, subtests, and benchmarks.
func (r Result) Total() int {
	return len(r.Benchmarks) + lo.Sum(lo.Values(r.Count))
}

// Day is the day of the run.
func (r Result) Day() string { return r.Date.Format(time.DateOnly) }

// Took is the duration of the run.
func (r Result) Took() time.Duration { return time.Duration(r.Seconds) * time.Second }

// IsDrawn says that a picture shows the benchmark, and no table.
func (b Benchmark) IsDrawn() bool { return strings.HasPrefix(b.Name, drawn) }

// Measured lists all values with their units.
func (b Benchmark) Measured() string {
	values := lo.MapToSlice(b.Metrics, func(unit string, value float64) string { return fmt.Sprintf("%g %s", value, unit) })
	slices.Sort(values)
	return strings.Join(values, ", ")
}

var measured = regexp.MustCompile(`(?s)(<!-- results of (\w+), (Benchmark\w+): (.*?) -->\n).*?(<!-- end -->)`)

// fill replaces the tables of a page.
func fill(page string, all []Result) string {
	return measured.ReplaceAllStringFunc(page, func(found string) string {
		m := measured.FindStringSubmatch(found)
		i := slices.IndexFunc(all, func(r Result) bool { return r.Name == m[2] })
		if i < 0 {
			return found
		}
		var columns, titles []string
		for _, column := range strings.Split(m[4], ", ") {
			key, title, _ := strings.Cut(column, "=")
			columns, titles = append(columns, key), append(titles, title)
		}
		var b strings.Builder
		fmt.Fprintf(&b, "%s| %s |\n|%s\n", m[1], strings.Join(titles, " | "), strings.Repeat("---|", len(titles)))
		for _, mark := range all[i].Benchmarks {
			if name := strings.Split(strings.ReplaceAll(mark.Name, "-", " "), "/"); name[0] == m[3] {
				fmt.Fprintf(&b, "| %s |\n", strings.Join(mark.row(name, columns), " | "))
			}
		}
		fmt.Fprintf(&b, "\nOf %s, commit %s.\n\n%s", all[i].Day(), all[i].Commit, m[5])
		return b.String()
	})
}

// row has a value for each column.
func (b Benchmark) row(name, columns []string) (out []string) {
	for _, column := range columns {
		value := fmt.Sprintf("%g", b.Metrics[column])
		if part, ok := strings.CutPrefix(column, "/"); ok {
			value = ""
			if n, err := strconv.Atoi(part); err == nil && n < len(name) {
				value = name[n]
			}
			if _, number, ok := strings.Cut(value, "="); ok {
				value, _, _ = strings.Cut(number, " ")
			}
		}
		out = append(out, value)
	}
	return out
}
