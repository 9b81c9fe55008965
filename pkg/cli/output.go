package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/samber/lo"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/util/jsonpath"
)

// output is the flag --output.
type output struct {
	format string
	// own are formats that only this command has.
	own []string
	// printer is that of a format of kubectl's, and columns are those of -o custom-columns.
	printer printers.ResourcePrinter
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
	o.format = cmp.Or(s, "table")
	if o.forPeople() || s == "name" || slices.Contains(o.own, s) {
		return nil
	}
	if spec, isColumns := strings.CutPrefix(s, customColumns); isColumns {
		o.columns, err = parseColumns(spec)
		return err
	}
	flags := genericclioptions.NewPrintFlags("")
	flags.OutputFormat = &o.format
	o.printer, err = flags.ToPrinter()
	if genericclioptions.IsNoCompatiblePrinterError(err) {
		err = errors.New("it is none of table, wide, name, json, yaml, jsonpath=…, go-template=… and custom-columns=…")
	}
	return err
}

// forPeople says that the output is text and tables.
func (o *output) forPeople() bool { return o.format == "table" || o.wide() }

func (o *output) wide() bool { return o.format == "wide" }

// print prints a document of a kind for programs, or rows for its items, or the names of the objects that it is about, as KIND.GROUP/NAME.
func (o *output) print(w io.Writer, kind string, fields, items any, names []string) error {
	doc := &document{metav1.TypeMeta{APIVersion: "cli.liqonet.io/v1alpha1", Kind: kind}, fields}
	var raw strings.Builder
	switch o.format {
	case "json", "yaml":
		return o.printer.PrintObj(doc, w)
	case "name":
		raw.WriteString(strings.Join(append(names, ""), "\n"))
	default:
		if o.columns != nil {
			return o.printColumns(w, items)
		}
		if err := o.printer.PrintObj(doc, &raw); err != nil {
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
