package output

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"unicode"

	"github.com/pterm/pterm"
)

// Plugin is how commands are spelled in messages.
const Plugin = "kubectl liqonet"

// program is what users type to run this program: through kubectl, or the program itself by its other name.
var program = map[bool]string{true: standalone, false: Plugin}[strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe") == standalone]

const standalone = "liqonetctl"

// Named returns the text with the commands that it has in the spelling by which this program was called.
func Named(s string) string { return strings.ReplaceAll(s, Plugin, program) }

// Text prints all output except JSON and YAML, which have their own rules for escaping control characters.
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
	_, _ = io.WriteString(t.w, Wrap(Named(fmt.Sprintf(format, values...)), columns)) // the writer keeps the error
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

// OneLine sanitizes a text and joins its lines, except empty ones.
func OneLine(s string) string {
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
