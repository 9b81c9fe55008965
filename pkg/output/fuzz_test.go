package output

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"sigs.k8s.io/yaml"

	"github.com/liqonet/liqonet/test/kit"
)

// Texts that others wrote control no terminal, in any format, and documents with them contain the same texts.
func FuzzText(f *testing.F) {
	for _, s := range []string{"plain", "\x1b[2J\u009b\u202e", "a\n\n \nb\t", "\U000e0001\ufeff", `\u001b "quoted" #`, "\xff\xfe", "- a: &b *c\n---\n", strings.Repeat("ü", 1100)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		isControl := func(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsGraphic(r) }
		for _, shown := range []string{Sanitize(s), OneLine(s), Wrap(Sanitize(s), 40)} {
			kit.ErrorIf(t, strings.ContainsFunc(shown, isControl), "%q is shown as %q", s, shown)
		}
		kit.ErrorIf(t, strings.Contains(OneLine(s), "\n") || len(OneLine(s)) > maxValue+2*maxNote, "%q in one line: %q", s, OneLine(s))
		want := string([]rune(s)) // without invalid bytes
		for _, format := range []string{"json", "yaml"} {
			o := &Format{}
			kit.NoError(t, o.Set(format))
			var document bytes.Buffer
			kit.NoError(t, o.Print(&document, "Text", map[string]string{"text": s}, nil, nil))
			kit.ErrorIf(t, strings.ContainsFunc(document.String(), isControl), "%s controls a terminal: %q", format, document.String())
			raw, err := document.Bytes(), error(nil)
			if format == "yaml" {
				raw, err = yaml.YAMLToJSON(raw)
			}
			var got struct{ Text string }
			kit.NoError(t, err, "%q", document.String())
			kit.NoError(t, json.Unmarshal(raw, &got), "%q", raw)
			kit.ErrorIf(t, got.Text != want, "%s: %q became %q", format, s, got.Text)
		}
	})
}
