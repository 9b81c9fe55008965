package output

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/pterm/pterm"
	"sigs.k8s.io/yaml"

	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/schema"
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
		w := Page{bufio.NewWriter(&out), tt.width, 0, nil}
		(&Format{format: tt.format}).Table(w, []string{"state", "name"}, rows)
		_ = w.Flush()
		kit.Check(t, fmt.Sprintf("%s of %d columns", tt.format, tt.width), out.String(), tt.want)
	}
	var out bytes.Buffer
	w := Page{bufio.NewWriter(&out), 13, 0, nil}
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

// invisible returns texts with all characters that a terminal may interpret, or that hide what follows: controls, C1, bidirectional and
// format characters, separators, private and unassigned ones.
func invisible() (out []string) {
	var text strings.Builder
	for r := range rune(0x10ffff) {
		if !unicode.IsGraphic(r) && utf8.ValidRune(r) && (r < 0x3000 || r%997 == 0 || unicode.In(r, unicode.Cf, unicode.Cc, unicode.Zl, unicode.Zp)) {
			fmt.Fprintf(&text, "%c-", r)
		}
		if text.Len() > 1000 || r == 0x10fffe {
			out = append(out, text.String(), "# "+text.String()+"\n: 'x'\n--- \"y\" \\ \t")
			text.Reset()
		}
	}
	return out
}

// Whatever a text has, no document controls a terminal, and each is valid and has the text.
func TestDocumentsRoundTrip(t *testing.T) {
	texts := invisible()
	kit.FatalIf(t, len(texts) < 4, "%d texts", len(texts))
	for i, text := range texts {
		fields := map[string]any{"name": text, text[:min(len(text), 100)]: "key", "list": []string{text, "plain"}}
		if !utf8.ValidString(text[:min(len(text), 100)]) {
			delete(fields, text[:100])
		}
		for format, decode := range map[string]func([]byte, any) error{
			"json": json.Unmarshal, "yaml": func(raw []byte, to any) error { return yaml.Unmarshal(raw, to) }, "kyaml": func(raw []byte, to any) error { return yaml.Unmarshal(raw, to) },
			"jsonpath-as-json={@}": func(raw []byte, to any) error { return json.Unmarshal(raw, &[]any{to}) },
		} {
			o, out, got := &Format{}, bytes.Buffer{}, map[string]any{}
			kit.NoError(t, o.Set(format))
			kit.NoError(t, o.Print(&out, "Test", fields, nil, nil))
			schema.NoControl(t, format, out.String())
			if err := decode(out.Bytes(), &got); err != nil {
				t.Errorf("%s, text %d: %v\n%.300s", format, i, err, out.String())
				continue
			}
			kit.Check(t, fmt.Sprintf("%s, text %d", format, i), got["name"], any(text))
			kit.Check(t, format+": a list", fmt.Sprint(got["list"]), fmt.Sprint(fields["list"]))
			kit.Check(t, format+": number of keys", len(got), len(fields)+2)
		}
		type element struct {
			Attribute string `xml:"attribute,attr"`
			Text      string `xml:",chardata"`
		}
		raw, err := xml.MarshalIndent(element{text, text}, "", "  ")
		kit.NoError(t, err)
		escaped, got := EscapeXML(string(raw)), element{}
		schema.NoControl(t, "xml", escaped)
		kit.NoError(t, xml.Unmarshal([]byte(escaped), &got))
		// XML has no C0 controls, nor the last two characters of a plane, in any form.
		want := strings.Map(func(r rune) rune {
			if r < ' ' && !strings.ContainsRune("\t\n\r", r) || r == 0xfffe || r == 0xffff {
				return unicode.ReplacementChar
			}
			return r
		}, text)
		kit.Check(t, fmt.Sprintf("xml, text %d", i), got, element{want, want})
	}
}

// A name that a cluster returns is one line of -o name.
func TestNamesAreLines(t *testing.T) {
	o, out := &Format{}, bytes.Buffer{}
	kit.NoError(t, o.Set("name"))
	kit.NoError(t, o.Print(&out, "Test", nil, nil, []string{"peering/a\npeering/b", "peering/c\r\x1b\u202e"}))
	kit.Check(t, "the names", out.String(), "peering/a; peering/b\npeering/c\ufffd\ufffd\ufffd\n")
}

type stringer string

func (s stringer) String() string { return string(s) }

// Whatever the type of a value, it is one line that does not control the terminal. So are the heads of tables.
func TestValuesAreLines(t *testing.T) {
	const hostile, want = "\na\n\n \n\tb\x1b[2J\u202e\n", "a;  b\ufffd[2J\ufffd"
	for _, v := range []any{hostile, errors.New(hostile), stringer(hostile), Colored{Value: hostile}, Colored{Value: errors.New(hostile)}} {
		var out bytes.Buffer
		To(&out).Printf("%v\n", v)
		kit.Check(t, fmt.Sprintf("%T", v), out.String(), want+"\n")
		out.Reset()
		(&Format{}).Table(&out, []string{hostile, "end"}, [][]any{{v, "end"}})
		kit.Check(t, fmt.Sprintf("table of %T", v), out.String(), strings.ToUpper(want)+"   END\n"+want+"   end\n")
	}
}

// What libraries log, such as what an API server answers, does not control the terminal.
func TestSanitized(t *testing.T) {
	var out bytes.Buffer
	n, err := Sanitized(&out).Write([]byte("a\x1b[2J\u202e\n"))
	kit.ErrorIf(t, err != nil || n != 9 || out.String() != "a\ufffd[2J\ufffd\n", "%d, %v: %q", n, err, out.String())
}
