package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/liqonet/liqonet/test/kit"
)

var long = strings.TrimSpace(strings.Repeat("word ", maxWords+1))

func TestCheckMarkdown(t *testing.T) {
	short := strings.TrimSpace(strings.Repeat("word ", maxWords))
	for _, tt := range []struct {
		name, text string
		want       int
	}{
		{"short", short + ".", 0},
		{"long", long + ".", 1},
		{"two sentences", short + ". W" + short[1:] + "!", 0},
		{"over several lines", strings.ReplaceAll(long, " ", "\n"), 1},
		{"an abbreviation ends no sentence", short + " e.g. this.", 1},
		{"a quoted end", short + ".) Word.", 0},
		{"two paragraphs", short + "\n\n" + short, 0},
		{"items of a list", "- " + short + "\n- " + short + "\n1. " + short, 0},
		{"a long item", "- " + short + "\n- " + long, 1},
		{"a code block", "```sh\n" + long + "\n```\n", 0},
		{"after a code block", "```sh\n```\n" + long, 1},
		{"code in a line is one word", "`" + long + "`", 0},
		{"the address of a link is no word", strings.TrimSuffix(short, " word") + " [a](b c)", 0},
		{"cells of a table", "| " + short + " | " + short + " |", 0},
		{"a long cell", "| a | " + long + " |", 1},
		{"signs are no words", short + " — | → .", 0},
	} {
		if got := checkMarkdown("x.md", tt.text); len(got) != tt.want {
			t.Errorf("%s: want %d, got %v", tt.name, tt.want, got)
		}
	}
	if got := checkMarkdown("x.md", "# Title\n\nShort.\n\n"+long); len(got) != 1 || got[0].line != 5 {
		t.Errorf("line: got %v", got)
	}
}

func TestCheckGo(t *testing.T) {
	for _, tt := range []struct{ name, code, want string }{
		{"fine", "// F does it.\nfunc F() {}", ""},
		{"an article", "// A T is one.\ntype T int", ""},
		{"none", "func F() {}", "F has no comment"},
		{"of something else", "// This does it.\nfunc F() {}", "F: the comment does not begin with the name"},
		{"a longer name", "// Fast does it.\nfunc F() {}", "F: the comment does not begin with the name"},
		{"no sentence", "// F does it\nfunc F() {}", "F: the comment is no sentence"},
		{"a list", "// F does:\n//   - it\nfunc F() {}", ""},
		{"not exported", "func f() {}", ""},
		{"method of a type that is not exported", "type t int\nfunc (t) F() {}", ""},
		{"method", "// T is one.\ntype T int\nfunc (*T) F() {}", "F has no comment"},
		{"generic method", "// T is one.\ntype T[X any] struct{}\nfunc (*T[X]) F() {}", "F has no comment"},
		{"method that everybody knows", "// T is one.\ntype T int\nfunc (T) String() string { return \"\" }", ""},
		{"a group", "// All of it.\nconst (\nA = 1\nB = 2\n)", ""},
		{"a group without a comment", "const (\nA = 1\n)", "A has no comment"},
		{"a comment behind", "const (\nA = 1 // one\n)", ""},
		{"a single one of a group", "const (\n// Also it.\nA = 1\n)", "A: the comment does not begin with the name"},
		{"a long comment", "// F " + long + ".\nfunc F() {}", "a sentence of 32 words: F word word word word word word word …"},
		{"a long comment inside", "func f() {\n// " + long + "\n}", "a sentence of 31 words: word word word word word word word word …"},
		{"an example in a comment", "// F does:\n//\n//\t" + long + "\nfunc F() {}", ""},
		{"a marker", "// +kubebuilder:" + long + "\nfunc f() {}", ""},
	} {
		file := filepath.Join(t.TempDir(), "x.go")
		kit.NoError(t, os.WriteFile(file, []byte("package p\n\n"+tt.code+"\n"), 0o644))
		found := kit.Must(checkGo("x.go", file))(t)
		var got []string
		for _, f := range found {
			got = append(got, f.text)
		}
		if strings.Join(got, "\n") != tt.want {
			t.Errorf("%s: want %q, got %q", tt.name, tt.want, got)
		}
	}
}

// Random values that others must not guess come from crypto/rand. The files that need none such still use others.
func TestGuessableValues(t *testing.T) {
	for code, want := range map[string]int{
		`import "crypto/rand"`: 0, `import "math/rand"`: 1, `import r "math/rand/v2"`: 1, `import "k8s.io/apimachinery/pkg/util/rand"`: 1,
		"var x = lo.RandomString(8, nil)": 1, "func f() { mutable.Shuffle(x) }": 1, "var x = lo.Map(y, z)": 0,
	} {
		file := filepath.Join(t.TempDir(), "x.go")
		kit.NoError(t, os.WriteFile(file, []byte("package p\n\n"+code+"\n"), 0o644))
		kit.Check(t, code, len(kit.Must(checkGo("x.go", file))(t)), want)
	}
	for _, name := range mayBeGuessed {
		file := filepath.Join("..", "..", name)
		kit.Check(t, name, len(kit.Must(checkGo(name, file))(t)), 0)
		kit.Check(t, name+" without its exception", len(kit.Must(checkGo("x.go", file))(t)), 1)
	}
}

// The exceptions only shrink, and each has a reason.
func TestExceptions(t *testing.T) {
	file := filepath.Join(t.TempDir(), "exceptions.txt")
	write := func(text string) {
		kit.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
	write("# head\na.md 3 old text\nb.md 2 old text\nc.md 1 a quotation\n")
	e := kit.Must(readExceptions(file))(t)
	kit.NoError(t, e.lower([]finding{{file: "a.md"}, {file: "c.md"}, {file: "c.md"}, {file: "d.md"}}).write(file))
	got := kit.Must(os.ReadFile(file))(t)
	kit.Check(t, "exceptions", string(got), "# head\na.md 1 old text\nc.md 1 a quotation\n")
	for _, wrong := range []string{"a.md 3", "a.md many words", "a.md"} {
		write(wrong + "\n")
		if _, err := readExceptions(file); err == nil {
			t.Errorf("%q is taken", wrong)
		}
	}
}
