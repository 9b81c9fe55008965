package cli

import (
	"cmp"
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

// print prints a document for programs, or rows for its items, or the names of the objects that it is about, as KIND.GROUP/NAME.
func (o *output) print(w io.Writer, document runtime.Object, items any, names []string) error {
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
		if o.format == "json" || o.format == "yaml" {
			return p.PrintObj(document, w)
		}
		if err := p.PrintObj(document, &raw); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, visible(raw.String()))
	return err
}

// documentType names a document, and the version of its fields.
func documentType(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: "cli.liqonet.io/v1alpha1", Kind: kind}
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
