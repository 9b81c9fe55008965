// Package output prints documents for programs, in the formats of kubectl, and text and tables for people. It fits text and tables to the
// width of the terminal. Values are sanitized: whatever a cluster returns neither controls a terminal nor starts a line.
//
// Out of scope: what is printed, and in which order (pkg/cli).
package output

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/pterm/pterm"
	"github.com/samber/lo"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/util/jsonpath"
)

// Format is the flag --output.
type Format struct {
	format string
	// extra are formats that only this command supports.
	extra []string
	// columns are the columns of -o custom-columns.
	columns []column
}

// AddFlag adds the flag to a command. It accepts the formats that all commands support, and those that only this one does.
func AddFlag(f *pflag.FlagSet, extra ...string) *Format {
	o := &Format{format: "table", extra: extra}
	f.VarP(o, "output", "o", strings.Join(append([]string{"table", "wide", "name", "json", "yaml"}, extra...), ", ")+", jsonpath=…, go-template=… or custom-columns=…, as in kubectl")
	return o
}

// String returns the value.
func (o *Format) String() string { return o.format }

// Type returns the type that --help shows.
func (o *Format) Type() string { return "FORMAT" }

// Completions returns the formats, for shell completion.
func (o *Format) Completions() []cobra.Completion {
	return append([]cobra.Completion{"table", "wide", "name", "json", "yaml", "jsonpath=", "go-template=", customColumns}, o.extra...)
}

// Set returns an error if the format is not supported.
func (o *Format) Set(s string) (err error) {
	o.format, o.columns = cmp.Or(s, "table"), nil
	if o.HumanReadable() || s == "name" || slices.Contains(o.extra, s) {
		return nil
	}
	if spec, isColumns := strings.CutPrefix(s, customColumns); isColumns {
		o.columns, err = parseColumns(spec)
		return err
	}
	_, err = o.printer()
	return err
}

// HumanReadable reports whether the output is text and tables.
func (o *Format) HumanReadable() bool { return o.format == "table" || o.Wide() }

// Wide reports whether tables have all columns, as wide as their longest cells.
func (o *Format) Wide() bool { return o.format == "wide" }

// printer returns a new printer for one of kubectl's formats. The YAML printer separates the documents that it prints, so each document
// needs a new one.
func (o *Format) printer() (printers.ResourcePrinter, error) {
	kind, template, _ := strings.Cut(o.format, "=")
	if source, isFile := strings.CutSuffix(kind, "file"); isFile && template != "" {
		raw, err := os.ReadFile(template)
		if err != nil {
			return nil, fmt.Errorf("read the template: %w", err)
		}
		kind, template = strings.TrimSuffix(source, "-"), string(raw)
	}
	isPath := kind == "jsonpath" || kind == "jsonpath-as-json"
	switch {
	case o.format == "json":
		return &printers.JSONPrinter{}, nil
	case o.format == "yaml":
		return &printers.YAMLPrinter{}, nil
	case o.format == "kyaml":
		return &printers.KYAMLPrinter{}, nil
	case isPath && template != "":
		p, err := printers.NewJSONPathPrinter(template)
		if err == nil {
			p.AllowMissingKeys(true)
			p.EnableJSONOutput(kind == "jsonpath-as-json")
		}
		return p, err
	case strings.TrimPrefix(kind, "go-") == "template" && template != "":
		return printers.NewGoTemplatePrinter([]byte(template))
	}
	return nil, errors.New("must be one of table, wide, name, json, yaml, jsonpath=…, go-template=…, custom-columns=…")
}

// Print prints a document of the given kind for programs, a row for each of its items, or the names of its objects as KIND.GROUP/NAME.
func (o *Format) Print(w io.Writer, kind string, fields, items any, names []string) error {
	if o.columns != nil {
		return o.printColumns(w, items)
	}
	var raw strings.Builder
	if o.format == "name" {
		for _, name := range names {
			raw.WriteString(OneLine(name) + "\n")
		}
	} else {
		p, err := o.printer()
		if err != nil {
			return err
		}
		doc := &document{TypeMeta: metav1.TypeMeta{APIVersion: "cli.liqonet.io/v1alpha1", Kind: kind}, fields: fields, format: o.format}
		if err := p.PrintObj(doc, &raw); err != nil {
			return err
		}
		text := strings.NewReplacer(doc.hidden...).Replace(raw.String())
		if o.format == "json" || strings.HasPrefix(o.format, "jsonpath-as-json") {
			text = escape(text, "")
		}
		raw.Reset()
		raw.WriteString(text)
	}
	_, err := io.WriteString(w, Sanitize(raw.String()))
	return err
}

// document is the output for programs: kind and apiVersion, followed by the fields.
type document struct {
	metav1.TypeMeta
	fields any
	format string
	// hidden are pairs of placeholders and the YAML that replaces them.
	hidden []string
}

// DeepCopyObject returns the same document, as printers do not change it.
func (d *document) DeepCopyObject() runtime.Object { return d }

// MarshalJSON writes TypeMeta and the fields as one object. It escapes what controls a terminal, which encoding/json does for ASCII only.
// The YAML printer reads the JSON, which has no surrogates then, and escapes even less. So texts that need it have placeholders in it.
func (d *document) MarshalJSON() ([]byte, error) {
	head, headErr := json.Marshal(d.TypeMeta)
	fields, err := json.Marshal(d.fields)
	out := slices.Concat(bytes.TrimSuffix(head, []byte("}")), []byte(","), bytes.TrimPrefix(fields, []byte("{")))
	if d.format != "yaml" {
		return []byte(escape(string(out), "%c")), cmp.Or(headErr, err)
	}
	return jsonString.ReplaceAllFunc(out, func(literal []byte) []byte {
		text := ""
		if json.Unmarshal(literal, &text) != nil || Sanitize(text) == text { // it is always valid
			return literal
		}
		placeholder := rand.Text() // which no cluster can guess
		d.hidden = append(d.hidden, placeholder, escape(string(literal), `\U%08x`))
		return []byte(strconv.Quote(placeholder))
	}), cmp.Or(headErr, err)
}

// jsonString matches a string in JSON.
var jsonString = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// escape escapes the characters in the strings of a JSON document that control a terminal. Those of more than 16 bits get the given format,
// or become surrogates if it is empty.
func escape(document, large string) string {
	var out strings.Builder
	for _, r := range document {
		high, low := utf16.EncodeRune(r)
		switch {
		case r == '\n', r == '\t', unicode.IsGraphic(r):
			out.WriteRune(r)
		case r <= math.MaxUint16:
			out.WriteString(fmt.Sprintf(`\u%04x`, r))
		case large == "":
			out.WriteString(fmt.Sprintf(`\u%04x\u%04x`, high, low))
		default:
			out.WriteString(fmt.Sprintf(large, r))
		}
	}
	return out.String()
}

// EscapeXML escapes the characters in the texts of an XML document that control a terminal.
func EscapeXML(document string) string {
	var out strings.Builder
	for _, r := range document {
		if r == '\n' || unicode.IsGraphic(r) {
			out.WriteRune(r)
		} else {
			out.WriteString(fmt.Sprintf("&#x%x;", r))
		}
	}
	return out.String()
}

// Sanitized returns a writer that passes on what it is given without what controls a terminal.
func Sanitized(w io.Writer) io.Writer { return sanitizer{w} }

type sanitizer struct{ w io.Writer }

func (s sanitizer) Write(p []byte) (int, error) {
	_, err := io.WriteString(s.w, Sanitize(string(p)))
	return len(p), err
}

// Table prints rows below a header, or nothing without rows. Columns whose name begins with "+" are shown only by -o wide.
func (o *Format) Table(w io.Writer, head []string, rows [][]any) {
	if len(rows) == 0 {
		return
	}
	kept := lo.Filter(lo.Range(len(head)), func(i, _ int) bool { return o.Wide() || !strings.HasPrefix(head[i], "+") })
	names := lo.Map(kept, func(i, _ int) string { return OneLine(strings.ToUpper(strings.TrimPrefix(head[i], "+"))) })
	columns := Width(w)
	shown := lo.Map(rows, func(cells []any, _ int) []string {
		return lo.Map(kept, func(i, _ int) string { return WithProgramName(fmt.Sprint(printable(cells[i], columns > 0))) })
	})
	if o.Wide() {
		columns = 0
	}
	shown, widths := fit(names, shown, columns)
	for _, cells := range append([][]string{names}, shown...) {
		last := len(cells) - 1
		for i, cell := range cells[:last] {
			cells[i] = cell + strings.Repeat(" ", widths[i]-DisplayWidth(cell)+columnGap)
		}
		_, _ = io.WriteString(w, strings.Join(cells, "")+"\n") // the writer keeps the error
	}
}

// Section prints a table that has rows, after an empty line.
func (o *Format) Section(w io.Writer, head []string, rows [][]any) {
	if len(rows) > 0 {
		Text{w}.Printf("\n")
		o.Table(w, head, rows)
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

// cell returns the column's cell for an item.
func (c column) cell(item any) (any, error) {
	found, err := c.path.FindResults(item)
	if err != nil {
		return nil, fmt.Errorf("column %s: %w", c.name, err)
	}
	values := lo.Map(slices.Concat(found...), func(v reflect.Value, _ int) string { return fmt.Sprint(v.Interface()) })
	return lo.Ternary(len(values) == 0, "<none>", strings.Join(values, ",")), nil
}

// printColumns prints a row for each item of a list.
func (o *Format) printColumns(w io.Writer, list any) error {
	raw, err := json.Marshal(list)
	var items []any
	if err := cmp.Or(err, json.Unmarshal(raw, &items)); err != nil {
		return err
	}
	rows, err := lo.MapErr(items, func(item any, _ int) ([]any, error) {
		return lo.MapErr(o.columns, func(c column, _ int) (any, error) { return c.cell(item) })
	})
	if err == nil {
		o.Table(w, lo.Map(o.columns, func(c column, _ int) string { return c.name }), rows)
	}
	return err
}

// PluginCommand is how commands are spelled in messages.
const PluginCommand = "kubectl liqonet"

// program is what users type to run this program: through kubectl, or the program itself by its other name.
var program = map[bool]string{true: standalone, false: PluginCommand}[strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe") == standalone]

const standalone = "liqonetctl"

// WithProgramName returns the text with the commands that it has in the spelling by which this program was called.
func WithProgramName(s string) string { return strings.ReplaceAll(s, PluginCommand, program) }

// Text prints all output except documents for programs.
//
// Values come from clusters: from agents, whose account may be compromised, from administrators of the other cluster, and from whatever
// responds instead of its API server. They must neither control the user's terminal nor start new lines.
type Text struct{ w io.Writer }

// To returns a Text for a writer.
func To(w io.Writer) Text { return Text{w} }

// Printf formats values, and wraps lines to the width of the terminal. Only the format can start new lines.
func (t Text) Printf(format string, values ...any) {
	columns := Width(t.w)
	for i, v := range values {
		values[i] = printable(v, columns > 0)
	}
	_, _ = io.WriteString(t.w, Wrap(WithProgramName(fmt.Sprintf(format, values...)), columns)) // the writer keeps the error
}

// PrintEach calls Printf for each of the values.
func (t Text) PrintEach(format string, values []string) {
	for _, value := range values {
		t.Printf(format, value)
	}
}

// Lines is text whose values have already been sanitized.
type Lines string

// Colored is a value that has a color on terminals, unless the user has turned off colors.
type Colored struct {
	Value any
	Color pterm.Color
}

// printable returns the value as one sanitized line if it is text, or else the value itself.
func printable(value any, onTerminal bool) any {
	switch v := value.(type) {
	case Colored:
		text := printable(v.Value, onTerminal)
		if onTerminal {
			text = v.Color.Sprint(text)
		}
		return text
	case Lines:
		return string(v)
	case error:
		return OneLine(v.Error())
	case fmt.Stringer:
		return OneLine(v.String())
	}
	if v := reflect.ValueOf(value); v.Kind() == reflect.String {
		return OneLine(v.String())
	}
	return value
}

// maxValue is how many bytes of a value are shown, and maxNote the space for how many are not. A cluster may return texts of any length.
const maxValue, maxNote = 1024, 32

// OneLine sanitizes a text, joins its lines, except empty ones, and shortens it to [maxValue].
func OneLine(s string) string {
	line := strings.ReplaceAll(emptyLines.ReplaceAllString(Sanitize(strings.Trim(s, "\n")), "; "), "\t", " ")
	if len(line) > maxValue+maxNote { // otherwise it may have been shortened before
		shown := strings.ToValidUTF8(line[:maxValue], "")
		return fmt.Sprintf("%s… (%d more bytes)", shown, len(line)-len(shown))
	}
	return line
}

// emptyLines matches a newline with the empty lines that follow it.
var emptyLines = regexp.MustCompile(`\n(\s*\n)*`)

// Sanitize replaces characters that control a terminal, except tabs and newlines.
func Sanitize(s string) string {
	return strings.Map(func(r rune) rune {
		return lo.Ternary(r == '\n' || r == '\t' || unicode.IsGraphic(r), r, unicode.ReplacementChar)
	}, s)
}

// Page is the buffered output of a command, with the size of its terminal, or 0 and 0 if it is not a terminal.
type Page struct {
	*bufio.Writer
	Width, Height int
	terminal      io.Writer
}

// NewPage returns a buffer before w, for a text that is shown on terminal, if that is a terminal.
func NewPage(w, terminal io.Writer) Page {
	width, height := Size(terminal)
	return Page{bufio.NewWriter(w), width, height, terminal}
}

// Size returns the columns and rows of a terminal, or 0 and 0 if w is not a terminal.
func Size(w io.Writer) (width, height int) {
	switch w := w.(type) {
	case Page:
		return w.Width, w.Height
	case *os.File:
		if width, height, err := term.GetSize(int(w.Fd())); err == nil {
			return cmp.Or(width, 80), cmp.Or(height, 24) // some terminals report 0
		}
	}
	return 0, 0
}

// Width returns the columns of a terminal, or 0 if w is not a terminal: programs may read it, so nothing is wrapped or shortened.
func Width(w io.Writer) int {
	width, _ := Size(w)
	return width
}

// DisplayWidth returns how many columns of a terminal a text takes, without the sequences that set its color.
func DisplayWidth(s string) int { return utf8.RuneCountInString(pterm.RemoveColorFromString(s)) }

// unbreakable matches text that is never broken across lines. Commands and addresses stay on one line, so that they can be copied.
var unbreakable = regexp.MustCompile("see https://\\S+|\\(?`?kubectl [^;,()`]*[^;,()` ]`?[;,.)]*|\\S+")

// Wrap breaks lines that are longer than the given number of columns, and indents the continuation lines.
func Wrap(s string, columns int) string {
	if columns == 0 {
		return s
	}
	var out strings.Builder
	for line := range strings.Lines(s) {
		out.WriteString(wrapLine(line, columns, "  "))
	}
	return out.String()
}

// wrapLine breaks one line. Continuation lines have its indentation, followed by hangingIndent.
func wrapLine(line string, columns int, hangingIndent string) string {
	whole := strings.TrimSuffix(line, "\n")
	if DisplayWidth(whole) <= columns {
		return line
	}
	indent := whole[:len(whole)-len(strings.TrimLeft(whole, " "))]
	out, at, between := "", 0, indent
	for _, w := range unbreakable.FindAllString(whole, -1) {
		if length := DisplayWidth(between + w); out != "" && at+length > columns {
			between = "\n" + indent + hangingIndent
			at = -1 // the newline takes no column
		}
		out += between + w
		at += DisplayWidth(between + w)
		between = " "
	}
	return out + line[len(whole):]
}

// columnGap is the number of spaces between the columns of a table.
const columnGap = 3

// minCell is the minimum width of a shortened cell, minText that of a last column of sentences.
const minCell, minText = 9, 28

// fit fits the rows of a table into the given number of columns, if possible, or any number if it is 0. Sentences in the last column
// continue in additional rows. The longest of the other cells are shortened in the middle. It also returns the widths of the columns.
func fit(head []string, rows [][]string, columns int) (out [][]string, widths []int) {
	last := len(head) - 1
	widths = make([]int, len(head))
	for _, cells := range slices.Concat([][]string{head}, rows) {
		for i, cell := range cells {
			widths[i] = max(widths[i], DisplayWidth(cell))
		}
	}
	if columns == 0 {
		return rows, widths
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
	return out, widths
}

// shorten replaces the middle of a text that is longer than limit characters. It keeps the color.
func shorten(s string, limit int) string {
	plain := pterm.RemoveColorFromString(s)
	runes := []rune(plain)
	if len(runes) <= limit {
		return s
	}
	head := limit / 2
	return strings.Replace(s, plain, string(runes[:head])+"…"+string(runes[len(runes)-(limit-1-head):]), 1)
}
