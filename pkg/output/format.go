// Package output prints documents for programs, in the formats of kubectl, and text and tables for people. It fits text and tables to the
// width of the terminal. Values are sanitized: whatever a cluster returns neither controls a terminal nor starts a line.
//
// Out of scope: what is printed, and in which order (pkg/cli).
package output

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/samber/lo"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/util/jsonpath"
)

// Format is the flag --output.
type Format struct {
	format string
	// own are formats that only this command supports.
	own []string
	// columns are the columns of -o custom-columns.
	columns []column
}

// AddFlag adds the flag to a command. It accepts the formats that all commands support, and those that only this one does.
func AddFlag(f *pflag.FlagSet, own ...string) *Format {
	o := &Format{format: "table", own: own}
	f.VarP(o, "output", "o", strings.Join(append([]string{"table", "wide", "name", "json", "yaml"}, own...), ", ")+", jsonpath=…, go-template=… or custom-columns=…, as in kubectl")
	return o
}

// String returns the value.
func (o *Format) String() string { return o.format }

// Type returns the type that --help shows.
func (o *Format) Type() string { return "FORMAT" }

// Completions returns the formats, for shell completion.
func (o *Format) Completions() []cobra.Completion {
	return append([]cobra.Completion{"table", "wide", "name", "json", "yaml", "jsonpath=", "go-template=", customColumns}, o.own...)
}

// Set returns an error if the format is not supported.
func (o *Format) Set(s string) (err error) {
	o.format, o.columns = cmp.Or(s, "table"), nil
	if o.HumanReadable() || s == "name" || slices.Contains(o.own, s) {
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

// Table prints rows below a header, or nothing without rows. Columns whose name begins with "+" are shown only by -o wide.
func (o *Format) Table(w io.Writer, head []string, rows [][]any) {
	if len(rows) == 0 {
		return
	}
	kept := lo.Filter(lo.Range(len(head)), func(i, _ int) bool { return o.Wide() || !strings.HasPrefix(head[i], "+") })
	names := lo.Map(kept, func(i, _ int) string { return strings.ToUpper(strings.TrimPrefix(head[i], "+")) })
	columns := Width(w)
	shown := lo.Map(rows, func(cells []any, _ int) []string {
		return lo.Map(kept, func(i, _ int) string { return Named(fmt.Sprint(printable(cells[i], columns > 0))) })
	})
	if o.Wide() {
		columns = 0
	}
	shown, widths := fit(names, shown, columns)
	for _, cells := range append([][]string{names}, shown...) {
		last := len(cells) - 1
		for i, cell := range cells[:last] {
			cells[i] = cell + strings.Repeat(" ", widths[i]-Visible(cell)+columnGap)
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

// of returns the column's cell for an item.
func (c column) of(item any) (any, error) {
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
		return lo.MapErr(o.columns, func(c column, _ int) (any, error) { return c.of(item) })
	})
	if err == nil {
		o.Table(w, lo.Map(o.columns, func(c column, _ int) string { return c.name }), rows)
	}
	return err
}
