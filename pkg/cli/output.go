package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"

	"github.com/samber/lo"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/util/jsonpath"

	"github.com/liqonet/liqonet/pkg/kube"
)

// output is the flag --output.
type output struct {
	format string
	// own are formats that only this command supports.
	own []string
	// columns are the columns of -o custom-columns.
	columns []column
}

func addOutputFlag(f *pflag.FlagSet, own ...string) *output {
	o := &output{format: "table", own: own}
	f.VarP(o, "output", "o", strings.Join(append([]string{"table", "wide", "name", "json", "yaml"}, own...), ", ")+", jsonpath=…, go-template=… or custom-columns=…, as in kubectl")
	return o
}

// String returns the value.
func (o *output) String() string { return o.format }

// Type returns the type that --help shows.
func (o *output) Type() string { return "format" }

func (o *output) completions() []cobra.Completion {
	return append([]cobra.Completion{"table", "wide", "name", "json", "yaml", "jsonpath=", "go-template=", customColumns}, o.own...)
}

// Set returns an error if the format is not supported.
func (o *output) Set(s string) (err error) {
	o.format, o.columns = cmp.Or(s, "table"), nil
	if o.humanReadable() || s == "name" || slices.Contains(o.own, s) {
		return nil
	}
	if spec, isColumns := strings.CutPrefix(s, customColumns); isColumns {
		o.columns, err = parseColumns(spec)
		return err
	}
	_, err = o.printer()
	if genericclioptions.IsNoCompatiblePrinterError(err) {
		err = errors.New("must be one of table, wide, name, json, yaml, jsonpath=…, go-template=…, custom-columns=…")
	}
	return err
}

// humanReadable reports whether the output is text and tables.
func (o *output) humanReadable() bool { return o.format == "table" || o.wide() }

func (o *output) wide() bool { return o.format == "wide" }

// printer returns a new printer for one of kubectl's formats. The YAML printer separates the documents that it prints, so each document
// needs a new one.
func (o *output) printer() (printers.ResourcePrinter, error) {
	flags := genericclioptions.NewPrintFlags("")
	flags.OutputFormat = &o.format
	return flags.ToPrinter()
}

// print prints a document of the given kind for programs, a row for each of its items, or the names of its objects as KIND.GROUP/NAME.
func (o *output) print(w io.Writer, kind string, fields, items any, names []string) error {
	if o.columns != nil {
		return o.printColumns(w, items)
	}
	var raw strings.Builder
	if o.format == "name" {
		raw.WriteString(strings.Join(append(names, ""), "\n"))
	} else {
		p, err := o.printer()
		if err != nil {
			return err
		}
		doc := &document{metav1.TypeMeta{APIVersion: "cli.liqonet.io/v1alpha1", Kind: kind}, fields}
		if o.format == "json" || o.format == "yaml" {
			return p.PrintObj(doc, w)
		}
		if err := p.PrintObj(doc, &raw); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, sanitize(raw.String()))
	return err
}

// document is the output for programs: kind and apiVersion, followed by the fields.
type document struct {
	metav1.TypeMeta
	fields any
}

// DeepCopyObject returns the same document, as printers do not change it.
func (d *document) DeepCopyObject() runtime.Object { return d }

// MarshalJSON writes TypeMeta and the fields as one object.
func (d *document) MarshalJSON() ([]byte, error) {
	head, headErr := json.Marshal(d.TypeMeta)
	fields, err := json.Marshal(d.fields)
	return slices.Concat(bytes.TrimSuffix(head, []byte("}")), []byte(","), bytes.TrimPrefix(fields, []byte("{"))), cmp.Or(headErr, err)
}

// printTable prints rows below a header, or nothing without rows. Columns whose name begins with "+" are shown only by -o wide.
func (o *output) printTable(w io.Writer, head []string, rows [][]any) {
	if len(rows) == 0 {
		return
	}
	kept := lo.Filter(lo.Range(len(head)), func(i, _ int) bool { return o.wide() || !strings.HasPrefix(head[i], "+") })
	names := lo.Map(kept, func(i, _ int) string { return strings.ToUpper(strings.TrimPrefix(head[i], "+")) })
	shown := lo.Map(rows, func(cells []any, _ int) []string {
		return lo.Map(kept, func(i, _ int) string { return fmt.Sprint(printable(cells[i])) })
	})
	if !o.wide() {
		shown = fit(names, shown, terminalWidth(w))
	}
	t := tabwriter.NewWriter(w, 0, 0, columnGap, ' ', 0)
	for _, cells := range append([][]string{names}, shown...) {
		text{t}.printf("%s\n", lines(strings.Join(cells, "\t")))
	}
	_ = t.Flush() // the writer keeps the error
}

// printSection prints a table that has rows, after an empty line.
func (o *output) printSection(w io.Writer, head []string, rows [][]any) {
	if len(rows) > 0 {
		text{w}.printf("\n")
		o.printTable(w, head, rows)
	}
}

// customColumns is the prefix of -o custom-columns=NAME:PATH,…, as in kubectl.
const customColumns = "custom-columns="

// column is a column of -o custom-columns.
type column struct {
	name string
	path *jsonpath.JSONPath
}

func parseColumns(spec string) (out []column, err error) {
	for part := range strings.SplitSeq(spec, ",") {
		name, path, isPair := strings.Cut(part, ":")
		if !isPair || name == "" || path == "" {
			return nil, errors.New("columns are NAME:PATH,NAME:PATH, as in CLUSTER:.cluster,STATE:.state")
		}
		path = strings.TrimPrefix(strings.TrimSuffix(strings.TrimPrefix(path, "{"), "}"), ".")
		c := column{name, jsonpath.New(name).AllowMissingKeys(true)}
		if err := c.path.Parse("{." + path + "}"); err != nil {
			return nil, fmt.Errorf("column %s: %w", name, err)
		}
		out = append(out, c)
	}
	return out, nil
}

// of returns the column's cell for an item.
func (c column) of(item any) (any, error) {
	found, err := c.path.FindResults(item)
	if err != nil {
		return nil, fmt.Errorf("column %s: %w", c.name, err)
	}
	values := lo.Map(slices.Concat(found...), func(v reflect.Value, _ int) string { return fmt.Sprint(v.Interface()) })
	if len(values) == 0 {
		return "<none>", nil
	}
	return strings.Join(values, ","), nil
}

// printColumns prints a row for each item of a list.
func (o *output) printColumns(w io.Writer, list any) error {
	raw, err := json.Marshal(list)
	var items []any
	if err := cmp.Or(err, json.Unmarshal(raw, &items)); err != nil {
		return err
	}
	rows, err := lo.MapErr(items, func(item any, _ int) ([]any, error) {
		return lo.MapErr(o.columns, func(c column, _ int) (any, error) { return c.of(item) })
	})
	if err == nil {
		o.printTable(w, lo.Map(o.columns, func(c column, _ int) string { return c.name }), rows)
	}
	return err
}

// text prints all output except JSON and YAML, which have their own rules for escaping control characters.
//
// Values come from clusters: from agents, whose account may be compromised, from administrators of the other cluster, and from whatever
// responds instead of its API server. They must neither control the user's terminal nor start new lines.
type text struct{ w io.Writer }

// printf formats values, and wraps lines to the width of the terminal. Only the format can start new lines.
func (t text) printf(format string, values ...any) {
	for i, v := range values {
		values[i] = printable(v)
	}
	_, _ = io.WriteString(t.w, wrap(named(fmt.Sprintf(format, values...)), terminalWidth(t.w))) // the writer keeps the error
}

// printEach calls printf for each of the values.
func (t text) printEach(format string, values []string) {
	for _, value := range values {
		t.printf(format, value)
	}
}

// lines is text whose values have already been sanitized.
type lines string

// printable returns the value as one sanitized line if it is text, or else the value itself.
func printable(value any) any {
	switch v := value.(type) {
	case lines:
		return string(v)
	case error:
		return oneLine(v.Error())
	case fmt.Stringer:
		return oneLine(v.String())
	}
	if v := reflect.ValueOf(value); v.Kind() == reflect.String {
		return oneLine(v.String())
	}
	return value
}

// oneLine sanitizes a text and joins its lines, except empty ones.
func oneLine(s string) string {
	return strings.ReplaceAll(emptyLines.ReplaceAllString(sanitize(strings.Trim(s, "\n")), "; "), "\t", " ")
}

// emptyLines matches a newline with the empty lines that follow it.
var emptyLines = regexp.MustCompile(`\n(\s*\n)*`)

// sanitize replaces characters that control a terminal, except tabs and newlines.
func sanitize(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsGraphic(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}

// explain returns the error's message, and its hint on a second line. A pairsError already contains the hints.
func explain(err error, indent string) lines {
	if p := (*pairsError)(nil); errors.As(err, &p) {
		return p.text
	}
	text := oneLine(err.Error())
	if e := (*kube.Error)(nil); errors.As(err, &e) && e.Hint != "" {
		text += "\n" + indent + oneLine(e.Hint)
	}
	return lines(text)
}

// pairsError lists the failed ones of several pairs or clusters.
type pairsError struct {
	text lines
	// partial is true if others did not fail.
	partial bool
	// first is the first of the errors.
	first error
}

func (e *pairsError) Error() string { return string(e.text) }

func (e *pairsError) Unwrap() error { return e.first }

// failuresOf returns a pairsError of the failed elements, or nil if none failed. For a single element, it returns that element's error.
func failuresOf[T any](kind string, all []T, of func(T) (name string, err error)) error {
	var first error
	var failed []string
	for _, one := range all {
		if name, err := of(one); err != nil {
			first = cmp.Or(first, err)
			failed = append(failed, fmt.Sprintf("  %s: %s", oneLine(name), explain(err, "    ")))
		}
	}
	if first == nil || len(all) == 1 {
		return first
	}
	text := fmt.Sprintf("%d of %d %s failed\n%s", len(failed), len(all), kind, strings.Join(failed, "\n"))
	return &pairsError{lines(text), len(failed) < len(all), first}
}

// page is the buffered output of a command, with the size of its terminal, or 0 and 0 if it is not a terminal.
type page struct {
	*bufio.Writer
	width, height int
}

func newPage(w, to io.Writer) page {
	width, height := terminalSize(to)
	return page{bufio.NewWriter(w), width, height}
}

// terminalSize returns the columns and rows of a terminal, or 0 and 0 if w is not a terminal.
func terminalSize(w io.Writer) (width, height int) {
	switch w := w.(type) {
	case page:
		return w.width, w.height
	case *os.File:
		if width, height, err := term.GetSize(int(w.Fd())); err == nil {
			return cmp.Or(width, 80), cmp.Or(height, 24) // some terminals report 0
		}
	}
	return 0, 0
}

// terminalWidth returns the columns of a terminal, or 0 if w is not a terminal: programs may read it, so nothing is wrapped or shortened.
func terminalWidth(w io.Writer) int {
	width, _ := terminalSize(w)
	return width
}

// word matches text that is never broken across lines. Commands stay on one line, so that they can be copied.
var word = regexp.MustCompile("\\(?`?kubectl [^;,()`]*[^;,()` ]`?[;,.)]*|\\S+")

// wrap breaks lines that are longer than the given number of columns, and indents the continuation lines.
func wrap(s string, columns int) string {
	if columns == 0 {
		return s
	}
	var out strings.Builder
	for line := range strings.Lines(s) {
		out.WriteString(wrapLine(line, columns, "  "))
	}
	return out.String()
}

// wrapLine breaks one line. Continuation lines have its indentation, followed by hang.
func wrapLine(line string, columns int, hang string) string {
	whole := strings.TrimSuffix(line, "\n")
	if utf8.RuneCountInString(whole) <= columns {
		return line
	}
	indent := whole[:len(whole)-len(strings.TrimLeft(whole, " "))]
	out, at, between := "", 0, indent
	for _, w := range word.FindAllString(whole, -1) {
		if length := utf8.RuneCountInString(between + w); out != "" && at+length > columns {
			between = "\n" + indent + hang
			at = -1 // the newline takes no column
		}
		out += between + w
		at += utf8.RuneCountInString(between + w)
		between = " "
	}
	return out + line[len(whole):]
}

// columnGap is the number of spaces between the columns of a table.
const columnGap = 3

// minCell is the minimum width of a shortened cell, minText that of a last column of sentences.
const minCell, minText = 9, 28

// fit fits the rows of a table into the given number of columns, if possible. Sentences in the last column continue in additional rows.
// The longest of the other cells are shortened in the middle.
func fit(head []string, rows [][]string, columns int) [][]string {
	if columns == 0 {
		return rows
	}
	last := len(head) - 1
	widths := make([]int, len(head))
	for _, cells := range slices.Concat([][]string{head}, rows) {
		for i, cell := range cells {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	total := columnGap*last + lo.Sum(widths)
	shortened := widths
	if slices.ContainsFunc(rows, func(cells []string) bool { return strings.Contains(cells[last], " ") }) {
		shortened = widths[:last]
		narrow := min(widths[last], max(minText, widths[last]-max(0, total-columns)))
		total, widths[last] = total-widths[last]+narrow, narrow
	}
	for ; total > columns; total-- {
		widest, i := lo.MaxIndex(shortened)
		if widest <= minCell {
			break
		}
		shortened[i]--
	}
	var out [][]string
	for _, cells := range rows {
		for i := range shortened {
			cells[i] = shorten(cells[i], widths[i])
		}
		for _, line := range strings.Split(wrapLine(cells[last], widths[last], ""), "\n") {
			cells[last] = line
			out = append(out, cells)
			cells = make([]string, len(head))
		}
	}
	return out
}

// shorten replaces the middle of a text that is longer than most characters.
func shorten(s string, most int) string {
	runes := []rune(s)
	if len(runes) <= most {
		return s
	}
	head := most / 2
	return string(runes[:head]) + "…" + string(runes[len(runes)-(most-1-head):])
}
