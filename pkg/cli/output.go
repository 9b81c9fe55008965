package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

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
func (o *output) Set(s string) error {
	o.format = cmp.Or(s, "table")
	if o.forPeople() || s == "name" || slices.Contains(o.own, s) {
		return nil
	}
	if spec, isColumns := strings.CutPrefix(s, customColumns); isColumns {
		_, err := parseColumns(spec)
		return err
	}
	_, err := o.printer()
	if genericclioptions.IsNoCompatiblePrinterError(err) {
		err = errors.New("it is none of table, wide, name, json, yaml, jsonpath=…, go-template=… and custom-columns=…")
	}
	return err
}

// forPeople says that the output is text and tables.
func (o *output) forPeople() bool { return o.format == "table" || o.wide() }

func (o *output) wide() bool { return o.format == "wide" }

func (o *output) printer() (printers.ResourcePrinter, error) {
	flags := genericclioptions.NewPrintFlags("")
	flags.OutputFormat = &o.format
	return flags.ToPrinter()
}

// print prints a document of a kind for programs, or rows for its items, or the names of the objects that it is about, as KIND.GROUP/NAME.
func (o *output) print(w io.Writer, kind string, fields, items any, names []string) error {
	if strings.HasPrefix(o.format, customColumns) {
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
	var names []string
	shown := make([][]string, len(rows))
	for i, name := range head {
		name, extra := strings.CutPrefix(name, "+")
		if extra && !o.wide() {
			continue
		}
		names = append(names, strings.ToUpper(name))
		for k, cells := range rows {
			shown[k] = append(shown[k], fmt.Sprint(printable(cells[i])))
		}
	}
	if !o.wide() {
		shown = fit(names, shown, columns(w))
	}
	t := tabwriter.NewWriter(w, 0, 0, gap, ' ', 0)
	for _, cells := range append([][]string{names}, shown...) {
		text{t}.printf("%s\n", lines(strings.Join(cells, "\t")))
	}
	_ = t.Flush() // an error is the writer's
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

// printColumns prints a row for each item of a list.
func (o *output) printColumns(w io.Writer, list any) error {
	cols, err := parseColumns(strings.TrimPrefix(o.format, customColumns))
	if err != nil {
		return err
	}
	raw, err := json.Marshal(list)
	if err != nil {
		return err
	}
	var items []any
	if err := json.Unmarshal(raw, &items); err != nil {
		return err
	}
	var head []string
	for _, c := range cols {
		head = append(head, c.name)
	}
	var rows [][]any
	for _, item := range items {
		var row []any
		for _, c := range cols {
			found, err := c.path.FindResults(item)
			if err != nil {
				return fmt.Errorf("column %s: %w", c.name, err)
			}
			var values []string
			for _, set := range found {
				for _, v := range set {
					values = append(values, fmt.Sprint(v.Interface()))
				}
			}
			if len(values) == 0 {
				values = []string{"<none>"}
			}
			row = append(row, strings.Join(values, ","))
		}
		rows = append(rows, row)
	}
	o.printTable(w, head, rows)
	return nil
}
