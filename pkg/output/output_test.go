package output

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pterm/pterm"

	"github.com/liqonet/liqonet/test/kit"
)

func TestOutput(t *testing.T) {
	for _, format := range []string{"table", "wide", "name", "json", "yaml", "jsonpath={.peerings[*].state}", "go-template={{.kind}}"} {
		o := &Format{}
		if err := o.Set(format); err != nil || o.String() != format {
			t.Errorf("%s: got %q, %v", format, o, err)
		}
	}
	for _, format := range []string{"xml", "jsonpath=", "jsonpath={.x", "go-template={{"} {
		if err := (&Format{}).Set(format); err == nil {
			t.Errorf("%q is no format", format)
		}
	}
}

// The last format takes precedence, and a document does not depend on earlier ones.
func TestOutputIsPrintedAgain(t *testing.T) {
	o := &Format{}
	kit.NoError(t, cmp.Or(o.Set("custom-columns=PEER:.peer"), o.Set("yaml")))
	for range 2 {
		var out bytes.Buffer
		err := o.Print(&out, "Test", map[string]int{"a": 1}, nil, nil)
		want := "a: 1\napiVersion: cli.liqonet.io/v1alpha1\nkind: Test\n"
		kit.ErrorIf(t, err != nil || out.String() != want, "got %q, %v", out.String(), err)
	}
}

func TestColumns(t *testing.T) {
	for _, format := range []string{"custom-columns=", "custom-columns=A", "custom-columns=A:", "custom-columns=A:.x[", "custom-columns=A:.x,"} {
		if err := (&Format{}).Set(format); err == nil {
			t.Errorf("%s is taken", format)
		}
	}
}

// A long value is shortened, once, between characters, and says so. Documents for programs have all of it.
func TestLongValues(t *testing.T) {
	long, fits := "x"+strings.Repeat("é", 1<<20), strings.Repeat("x", maxValue)
	short := "x" + strings.Repeat("é", 511) + "… (2096130 more bytes)"
	for in, want := range map[string]string{long: short, short: short, fits: fits} {
		kit.Check(t, "value", OneLine(in), want)
	}
	for _, format := range []string{"json", "yaml", "jsonpath={.a}"} {
		var out bytes.Buffer
		o := &Format{}
		kit.NoError(t, cmp.Or(o.Set(format), o.Print(&out, "Test", map[string]string{"a": long}, nil, nil)))
		kit.ErrorIf(t, !strings.Contains(out.String(), long), "%s: %d bytes", format, out.Len())
	}
}

// Lines are broken between words, but never within a command.
func TestWrap(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"short\n", "short\n"},
		{"one two three four five six\n", "one two three four\n  five six\n"},
		{"  one two three four five\n", "  one two three four\n    five\n"},
		{"see (kubectl get pods -n liqonet-system), please\n", "see\n  (kubectl get pods -n liqonet-system),\n  please\n"},
		{"no end of line, and long", "no end of line, and\n  long"},
		{"averyveryverylongwordthatdoesnotfit\n", "averyveryverylongwordthatdoesnotfit\n"},
	} {
		kit.Check(t, tt.in, Wrap(tt.in, 20), tt.want)
		kit.Check(t, "not to a terminal", Wrap(tt.in, 0), tt.in)
	}
}

// The longest cells are shortened in the middle, and sentences continue below, no more than necessary.
func TestFit(t *testing.T) {
	head := []string{"CLUSTER", "STATE"}
	const long = "arn:aws:eks:eu-central-1:123456789012:cluster/one"
	for _, tt := range []struct {
		columns int
		rows    [][]string
		want    string
	}{
		{32, [][]string{{long, "Connected"}, {"short", "Degraded"}}, "[[arn:aws:ek…uster/one Connected] [short Degraded]]"},
		{0, [][]string{{long, "Connected"}}, "[[" + long + " Connected]]"},
		{5, [][]string{{"cluster-a", "Connected"}}, "[[cluster-a Connected]]"},
		{40, [][]string{{"cluster-a", "packets pass from all nodes by both planes"}}, "[[cluster-a packets pass from all nodes] [ by both planes]]"},
		{40, [][]string{{"a-cluster-of-long-name", "packets pass from all nodes by both planes"}}, "[[a-cl…name packets pass from all nodes] [ by both planes]]"},
	} {
		rows, _ := fit(head, tt.rows, tt.columns)
		kit.Check(t, fmt.Sprintf("%d columns", tt.columns), fmt.Sprint(rows), tt.want)
	}
}

// On a terminal, values have their color, which takes no column. Elsewhere, they are plain.
func TestColors(t *testing.T) {
	if !pterm.PrintColor { // the environment of the test has NO_COLOR or the like
		pterm.EnableColor()
		t.Cleanup(pterm.DisableColor)
	}
	red := func(s string) Colored { return Colored{s, pterm.FgRed} }
	rows := [][]any{{red("Disconnected"), "a"}, {red("x\x1b[0my"), "b"}}
	for _, tt := range []struct {
		format string
		width  int
		want   string
	}{
		{"table", 0, "STATE          NAME\nDisconnected   a\nx�[0my         b\n"},
		{"table", 80, "STATE          NAME\n\x1b[31mDisconnected\x1b[0m   a\n\x1b[31mx�[0my\x1b[0m         b\n"},
		{"table", 16, "STATE       NAME\n\x1b[31mDisc…cted\x1b[0m   a\n\x1b[31mx�[0my\x1b[0m      b\n"},
		{"wide", 16, "STATE          NAME\n\x1b[31mDisconnected\x1b[0m   a\n\x1b[31mx�[0my\x1b[0m         b\n"},
	} {
		var out bytes.Buffer
		w := Page{bufio.NewWriter(&out), tt.width, 0}
		(&Format{format: tt.format}).Table(w, []string{"state", "name"}, rows)
		_ = w.Flush()
		kit.Check(t, fmt.Sprintf("%s of %d columns", tt.format, tt.width), out.String(), tt.want)
	}
	var out bytes.Buffer
	w := Page{bufio.NewWriter(&out), 13, 0}
	To(w).Printf("a: %s, b: %s\n", red("lost"), red("it"))
	_ = w.Flush()
	kit.Check(t, "text", out.String(), "a: \x1b[31mlost\x1b[0m, b:\n  \x1b[31mit\x1b[0m\n")
}

// Formats of kubectl with a template, from the command line or from a file.
func TestTemplates(t *testing.T) {
	for _, tt := range []struct{ format, template, want string }{
		{"jsonpath", "{.a}", "1"},
		{"jsonpath-as-json", "{.a}", "[\n    1\n]\n"},
		{"jsonpath", "{.missing}", ""},
		{"go-template", "{{.kind}}\x1b", "Test\ufffd"},
		{"template", "{{.kind}}", "Test"},
	} {
		file := filepath.Join(t.TempDir(), "template")
		kit.NoError(t, os.WriteFile(file, []byte(tt.template), 0o600))
		formats := map[string]string{"jsonpath": "jsonpath-file", "go-template": "go-template-file", "template": "templatefile"}
		for _, format := range []string{tt.format + "=" + tt.template, formats[tt.format] + "=" + file} {
			o, out := &Format{}, bytes.Buffer{}
			if strings.HasPrefix(format, "=") {
				continue
			}
			if err := cmp.Or(o.Set(format), o.Print(&out, "Test", map[string]int{"a": 1}, nil, nil)); err != nil || out.String() != tt.want {
				t.Errorf("%s: got %q, %v", format, out.String(), err)
			}
		}
	}
	if err := (&Format{}).Set("go-template-file=/does/not/exist"); err == nil {
		t.Error("a missing file is a template")
	}
}
