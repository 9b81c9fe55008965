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
	// own are formats that only this command has.
	own []string
	// columns are those of -o custom-columns.
	columns []column
}

func addOutput(f *pflag.FlagSet, own ...string) *output {
	o := &output{format: "table", own: own}
	f.VarP(o, "output", "o", strings.Join(append([]string{"table", "wide", "name", "json", "yaml"}, own...), ", ")+", jsonpath=…, go-template=… or custom-columns=…, as with kubectl")
	return o
}

// String returns the value.
func (o *output) String() string { return o.format }

// Type is what --help shows.
func (o *output) Type() string { return "format" }

func (o *output) completions() []cobra.Completion {
	return append([]cobra.Completion{"table", "wide", "name", "json", "yaml", "jsonpath=", "go-template=", customColumns}, o.own...)
}

// Set refuses what cannot be printed.
func (o *output) Set(s string) (err error) {
	o.format, o.columns = cmp.Or(s, "table"), nil
	if o.forPeople() || s == "name" || slices.Contains(o.own, s) {
		return nil
	}
	if spec, isColumns := strings.CutPrefix(s, customColumns); isColumns {
		o.columns, err = parseColumns(spec)
		return err
	}
	_, err = o.printer()
	if genericclioptions.IsNoCompatiblePrinterError(err) {
		err = errors.New("it is none of table, wide, name, json, yaml, jsonpath=…, go-template=… and custom-columns=…")
	}
	return err
}

// forPeople says that the output is text and tables.
func (o *output) forPeople() bool { return o.format == "table" || o.wide() }

func (o *output) wide() bool { return o.format == "wide" }

// printer is a new one for a format of kubectl's. That of YAML counts what it prints, so each document gets its own.
func (o *output) printer() (printers.ResourcePrinter, error) {
	flags := genericclioptions.NewPrintFlags("")
	flags.OutputFormat = &o.format
	return flags.ToPrinter()
}

// print prints a document of a kind for programs, or rows for its items, or the names of the objects that it is about, as KIND.GROUP/NAME.
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
	_, err := io.WriteString(w, visible(raw.String()))
	return err
}

// document is what programs read: its kind and the version of its fields, followed by these.
type document struct {
	metav1.TypeMeta
	fields any
}

// DeepCopyObject returns the same document: nobody changes it.
func (d *document) DeepCopyObject() runtime.Object { return d }

// MarshalJSON writes the fields of both as those of one object.
func (d *document) MarshalJSON() ([]byte, error) {
	head, headErr := json.Marshal(d.TypeMeta)
	fields, err := json.Marshal(d.fields)
	return slices.Concat(bytes.TrimSuffix(head, []byte("}")), []byte(","), bytes.TrimPrefix(fields, []byte("{"))), cmp.Or(headErr, err)
}

// printTable prints rows under a head. Columns whose name begins with "+" are those of
// -o wide.
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
		shown = fit(names, shown, columns(w))
	}
	t := tabwriter.NewWriter(w, 0, 0, gap, ' ', 0)
	for _, cells := range append([][]string{names}, shown...) {
		text{t}.printf("%s\n", lines(strings.Join(cells, "\t")))
	}
	_ = t.Flush() // an error is the writer's
}

// printPart prints a table that has rows below an empty line.
func (o *output) printPart(w io.Writer, head []string, rows [][]any) {
	if len(rows) > 0 {
		text{w}.printf("\n")
		o.printTable(w, head, rows)
	}
}

// customColumns is -o custom-columns=NAME:PATH,…, as with kubectl.
const customColumns = "custom-columns="

// column is one of -o custom-columns.
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

// of is what a column has of an item.
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

// text is what people read: all that is printed goes through it, but json and yaml, which
// write such characters by rules of their own.
//
// Values come from clusters: from agents, whose account somebody may have, from
// administrators of the other cluster, and from whatever answers in the place of its API.
// None of them must control the reader's terminal, or write lines of their own.
type text struct{ w io.Writer }

// printf prints values in a format, in lines that a terminal has room for. Only the format begins lines.
func (t text) printf(format string, values ...any) {
	for i, v := range values {
		values[i] = printable(v)
	}
	_, _ = io.WriteString(t.w, wrap(fmt.Sprintf(format, values...), columns(t.w))) // an error is the writer's
}

// printEach prints each of some values in a format.
func (t text) printEach(format string, values []string) {
	for _, value := range values {
		t.printf(format, value)
	}
}

// lines is a text whose values have been made printable already.
type lines string

// printable is a value without what controls a terminal. Numbers stay as they are.
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

// oneLine makes a line of a text.
func oneLine(s string) string {
	return strings.NewReplacer("\n", "; ", "\t", " ").Replace(visible(strings.Trim(s, "\n")))
}

// visible replaces what controls a terminal, but for tabs and the ends of lines.
func visible(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsGraphic(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}

// explain is an error, and below it what the user can do, where it says so. The errors of
// several pairs have that already.
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

// page is the output of a command, which is as wide and high as a terminal; 0 and 0 where it is none.
type page struct {
	*bufio.Writer
	width, height int
}

func newPage(w, to io.Writer) page {
	width, height := size(to)
	return page{bufio.NewWriter(w), width, height}
}

// size is how many characters a line has, and how many lines there are.
func size(w io.Writer) (width, height int) {
	switch w := w.(type) {
	case page:
		return w.width, w.height
	case *os.File:
		if width, height, err := term.GetSize(int(w.Fd())); err == nil {
			return cmp.Or(width, 80), cmp.Or(height, 24) // some terminals do not say it
		}
	}
	return 0, 0
}

// columns is how many characters a line of w may have, 0 where it is no terminal: then nothing is wrapped or shortened, since programs
// read it.
func columns(w io.Writer) int {
	width, _ := size(w)
	return width
}

// word is what no line ends within: a command can be copied as it is, with what is around it.
var word = regexp.MustCompile("\\(?`?kubectl [^;,()`]*[^;,()` ]`?[;,.)]*|\\S+")

// wrap breaks lines that are longer than a terminal is wide. What follows is indented.
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

// wrapLine breaks one line. Those that follow are indented as it is, and by hang.
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
			at = -1 // the end of the line before has no column
		}
		out += between + w
		at += utf8.RuneCountInString(between + w)
		between = " "
	}
	return out + line[len(whole):]
}

// gap is what is between the columns of a table.
const gap = 3

// leastCell is how short a cell may become, and leastText how narrow a last column of sentences.
const leastCell, leastText = 9, 28

// fit makes the rows of a table not longer than a terminal is wide, if that can be. Sentences, in the last column, go on in rows of their
// own. The longest of the other cells are shortened in their middle.
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
	total := gap*last + lo.Sum(widths)
	shortened := widths
	if slices.ContainsFunc(rows, func(cells []string) bool { return strings.Contains(cells[last], " ") }) {
		shortened = widths[:last]
		narrow := min(widths[last], max(leastText, widths[last]-max(0, total-columns)))
		total, widths[last] = total-widths[last]+narrow, narrow
	}
	for ; total > columns; total-- {
		widest, i := lo.MaxIndex(shortened)
		if widest <= leastCell {
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

// shorten replaces what is in the middle of a text that is longer than that.
func shorten(s string, most int) string {
	runes := []rune(s)
	if len(runes) <= most {
		return s
	}
	head := most / 2
	return string(runes[:head]) + "…" + string(runes[len(runes)-(most-1-head):])
}
