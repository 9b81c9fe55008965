package main

import (
	"errors"
	"fmt"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liqonet/liqonet/test/kit"
)

// imported are packages that made-up ones may import.
type imported map[string]*types.Package

func (i imported) Import(path string) (*types.Package, error) {
	if p := i[path]; p != nil {
		return p, nil
	}
	return nil, errors.New(path + " is not made up")
}

// shapeOf checks a made-up package m/p of these files.
func shapeOf(t *testing.T, sources map[string]string) (got []string) {
	t.Helper()
	fset, imports := token.NewFileSet(), imported{}
	for path, source := range map[string]string{
		"m/inner":  "package inner\n\ntype S struct{" + repeat("F%d, ", maxFields-1) + "Z int }",
		"mm/other": "package other\n\ntype S struct{" + repeat("F%d, ", maxFields-1) + "Z int }",
	} {
		s := kit.Must(newShape(fset, imports, "m", path, map[string]string{"x.go": source}))(t)
		imports[path] = s.types
	}
	for name, source := range sources {
		if !strings.Contains(source, "package p") {
			sources[name] = "package p\n\n" + source
		}
	}
	s := kit.Must(newShape(fset, imports, "m", "m/p", sources))(t)
	for _, f := range s.check() {
		got = append(got, fmt.Sprintf("%s:%d: %s", f.file, f.line, f.text))
	}
	return got
}

// repeat writes a text n times, with a number in place of each %d.
func repeat(text string, n int) string {
	var out strings.Builder
	for i := range n {
		out.WriteString(strings.ReplaceAll(text, "%d", fmt.Sprint(i)))
	}
	return out.String()
}

func TestShapeLimits(t *testing.T) {
	// With its first and its last line, a function has two lines more than its body.
	body := maxFunctionLines - 2
	column := strings.Repeat("x", maxColumns-len(`    _ = ""`))
	for _, tt := range []struct{ name, source, want string }{
		{"a function", "func f() {\n" + repeat("_ = 1\n", body) + "}", ""},
		{"a long function", "func f() {\n" + repeat("_ = 1\n", body+1) + "}", "p/x.go:3: function p.f: 61 lines, at most 60"},
		{"a long method", "type t[X, Y any] int\n\nfunc (*t[X, Y]) f() {\n" + repeat("_ = 1\n", body+1) + "}", "p/x.go:5: function p.t.f: 61 lines, at most 60"},
		{"blank lines and comments", "func f() {\n" + repeat("_ = 1\n", body) + repeat("\n// a\n/* b\nc */\n", 10) + "}", ""},
		{"comments behind code", "func f() {\n" + repeat("_ = 1 // a\n", body+1) + "}", "p/x.go:3: function p.f: 61 lines, at most 60"},
		{"a text of several lines", "func f() {\n_ = `\n" + repeat("// a\n", body-2) + "\n`\n}", ""},
		{"a long text", "func f() {\n_ = `\n" + repeat("// a\n", body-1) + "\n`\n}", "p/x.go:3: function p.f: 61 lines, at most 60"},
		{"a wide line", "func f() {\n\t_ = \"" + column + "\"\n" + repeat("_ = 1\n", body-1) + "}", ""},
		{"a line that is too wide", "func f() {\n\t_ = \"" + column + "x\"\n" + repeat("_ = 1\n", body-1) + "}", "p/x.go:3: function p.f: 61 lines, at most 60"},
		{"a wide line in another alphabet", "func f() {\n\t_ = \"" + strings.ReplaceAll(column, "x", "ä") + "\"\n" + repeat("_ = 1\n", body-1) + "}", ""},
		{"long in a long one", "func f() {\nfunc() {\n" + repeat("_ = 1\n", body+1) + "}()\n}", "p/x.go:3: function p.f: 63 lines, at most 60"},
		{"long in a variable", "var v = func() {\n" + repeat("_ = 1\n", body+1) + "}", "p/x.go:3: function p.v: 61 lines, at most 60"},

		{"a table", "func f() []int {\nreturn []int{\n" + repeat("1,\n", body+1) + "}\n}", ""},
		{"a table by address", "func f() *[99]int {\nreturn &[99]int{\n" + repeat("1,\n", body+1) + "}\n}", ""},
		{"more than a table", "func f() []int {\n_ = 1\nreturn []int{\n" + repeat("1,\n", body+1) + "}\n}", "p/x.go:3: function p.f: 64 lines, at most 60"},
		{"a call with a table", "func f() []int {\nreturn append([]int{\n" + repeat("1,\n", body+1) + "}, 1)\n}", "p/x.go:3: function p.f: 63 lines, at most 60"},
		{"a function in a table", "func f() []func() {\nreturn []func(){\nfunc() {\n" + repeat("_ = 1\n", body+1) + "},\n}\n}", "p/x.go:5: function p.f: 61 lines, at most 60"},
		{"a switch", "func f(i int) {\nswitch i {\n" + repeat("case %d: _ = 1\n", body+1) + "}\n}", ""},
		{"more than a switch", "func f(i int) {\nswitch i {\n" + repeat("case %d: _ = 1\n", body) + "}\n_ = 1\n}", "p/x.go:3: function p.f: 63 lines, at most 60"},
		{"a switch over variables", "func f(i, j int) {\nswitch i {\n" + repeat("case %d: _ = 1\n", body) + "case j:\n}\n}", "p/x.go:3: function p.f: 63 lines, at most 60"},
		{"a switch without a value", "func f() {\nswitch {\n" + repeat("case 1 == %d: _ = 1\n", body+1) + "}\n}", "p/x.go:3: function p.f: 63 lines, at most 60"},

		{"a struct", "type s struct {" + repeat("f%d, ", maxFields-1) + "z int }", ""},
		{"a large struct", "type s struct {" + repeat("f%d, ", maxFields) + "z int }", "p/x.go:3: struct p.s: 21 fields, at most 20"},
		{"a large struct without a name", "func f() { _ = struct {" + repeat("f%d, ", maxFields) + "z int }{} }", "p/x.go:3: struct p.f: 21 fields, at most 20"},
		{"an embedded struct", "import \"m/inner\"\n\ntype s struct { inner.S }", ""},
		{"a large embedded struct", "import \"m/inner\"\n\ntype s struct { *inner.S; z int }", "p/x.go:5: struct p.s: 21 fields, at most 20"},
		{"an embedded struct of others", "import \"mm/other\"\n\ntype s struct { other.S;" + repeat("f%d, ", maxFields-2) + "z int }", ""},
		{"a field that is a struct", "import \"m/inner\"\n\ntype s struct { S inner.S; z int }", ""},

		{"methods", "type t int\n" + repeat("func (t) f%d() {}\n", maxMethods), ""},
		{"many methods", "type t[X any] int\n" + repeat("func (*t[X]) f%d() {}\n", maxMethods+1), "p/x.go:3: type p.t: 26 methods, at most 25"},
		{"an interface", "type i interface {" + repeat("f%d();", maxMethods) + "}", ""},
		{"a large interface", "type i interface {" + repeat("f%d();", maxMethods+1) + "}", "p/x.go:3: interface p.i: 26 methods, at most 25"},
	} {
		kit.Check(t, tt.name, strings.Join(shapeOf(t, map[string]string{"x.go": tt.source}), "\n"), tt.want)
	}
}

// What is generated does not count.
func TestShapeSizes(t *testing.T) {
	const line = "const _ = 1\n"
	for _, tt := range []struct {
		name  string
		files []int // with how many lines of code
		want  []string
	}{
		{"a file", []int{maxFileLines}, nil},
		{"a large file", []int{1, maxFileLines + 1}, []string{"p/1.go:1: file p/1.go: 601 lines, at most 600"}},
		{"a package", []int{500, 500, 500, 500, 500}, nil},
		{"a large package", []int{500, 500, 500, 500, 501}, []string{"p/0.go:1: package p: 2501 lines, at most 2500"}},
	} {
		sources := map[string]string{"zz.go": "// Code generated by hand. DO NOT EDIT.\n\npackage p\n\n" + repeat(line, maxFileLines+1)}
		for i, n := range tt.files {
			sources[fmt.Sprintf("%d.go", i)] = repeat(line, n-1) // and the package clause
		}
		kit.Check(t, tt.name, shapeOf(t, sources), tt.want)
	}
}

func TestShapeCircles(t *testing.T) {
	for _, tt := range []struct {
		name    string
		sources map[string]string
		want    string
	}{
		{"one way", map[string]string{"a.go": "func a() { b() }", "b.go": "func b() { c() }", "c.go": "func c() {}"}, ""},
		{"both ways", map[string]string{"a.go": "func a() { b() }", "b.go": "func b() {\na() }"}, "a b"},
		{"over a third", map[string]string{"a.go": "func a() { b() }", "b.go": "func b() { c() }", "c.go": "func c() { a() }", "d.go": "func d() { a() }"}, "a b c"},
		{"two circles", map[string]string{"a.go": "func a() { b() }", "b.go": "func b() { a(); c() }", "c.go": "func c() { d() }", "d.go": "func d() { c() }"}, "a b|c d"},
		{"inside a file", map[string]string{"a.go": "func a() { b() }\nfunc b() { a() }"}, ""},
		{"methods", map[string]string{"a.go": "type t[X any] int\nfunc (t[X]) a() { t[int](1).b() }", "b.go": "func (t[X]) b() { t[int](1).a() }"}, "a b"},
		{"types and constants", map[string]string{"a.go": "type t int\nconst c = 1\nfunc a() { b() }", "b.go": "func b() { _ = t(c) }"}, ""},
		{"handed over", map[string]string{"a.go": "func a() { b() }", "b.go": "func b() { go func(f func()) { f() }(a) }"}, "a b"},
		{"a method of an interface", map[string]string{"a.go": "type i interface { f() }\nfunc a() { b(nil) }", "b.go": "func b(x i) { x.f() }"}, ""},
		{"generated", map[string]string{"a.go": "func a() { b() }", "b.go": "// Code generated by hand. DO NOT EDIT.\n\npackage p\n\nfunc b() { a() }"}, ""},
	} {
		var got []string
		for _, f := range shapeOf(t, tt.sources) {
			head, _, _ := strings.Cut(f, "\n")
			_, files, _ := strings.Cut(head, ": circle of ")
			got = append(got, strings.NewReplacer("p/", "", ".go", "", ",", "", ":", "").Replace(files))
		}
		if strings.Join(got, "|") != tt.want {
			t.Errorf("%s: want %q, got %q", tt.name, tt.want, got)
		}
	}
	got := shapeOf(t, map[string]string{"a.go": "func a() {\nb()\nb() }", "b.go": "func b() { a() }"})
	want := []string{"p/a.go:4: circle of p/a.go, p/b.go:\n\ta.go calls of b.go b:4 b:5\n\tb.go calls of a.go a:3"}
	kit.Check(t, "findings", got, want)
}

// The packages are those that the programs consist of, without tests.
func TestCheckShape(t *testing.T) {
	root := t.TempDir()
	long := "\nfunc long() {\n" + repeat("_ = 1\n", maxFunctionLines) + "}\n"
	for name, source := range map[string]string{
		"go.mod":          "module m\n\ngo 1.26\n",
		"cmd/c/main.go":   "package main\n\nimport _ \"m/pkg/used\"\n\nfunc main() {}\n",
		"agent/main.go":   "package main\n\nfunc main() {}\n" + long,
		"agent/a_test.go": "package main\n" + long,
		"pkg/used/a.go":   "package used\n\nimport \"unsafe\"\n\nvar _ unsafe.Pointer\n" + long,
		"pkg/unused/a.go": "package unused\n" + long,
	} {
		file := filepath.Join(root, name)
		kit.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		kit.NoError(t, os.WriteFile(file, []byte(source), 0o644))
	}
	got := kit.Must(checkShape(root))(t)
	want := []finding{
		{"agent/main.go", 5, "function agent.long: 62 lines, at most 60"},
		{"pkg/used/a.go", 7, "function pkg/used.long: 62 lines, at most 60"},
	}
	slices.SortFunc(got, func(a, b finding) int { return strings.Compare(a.file, b.file) })
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(finding{})); diff != "" {
		t.Error(diff)
	}
}

func TestShapeExceptions(t *testing.T) {
	if len(shapeExceptions) > 10 {
		t.Errorf("%d exceptions, at most 10", len(shapeExceptions))
	}
	for what, reason := range shapeExceptions {
		if reason == "" {
			t.Errorf("the exception of %s has no reason", what)
		}
	}
	findings := []finding{{text: "file a.go: 601 lines"}, {text: "file b.go: 601 lines"}}
	left, err := withoutExceptions(findings, map[string]string{"file a.go": "a table"})
	if err != nil || len(left) != 1 || left[0] != findings[1] {
		t.Errorf("got %v, %v", left, err)
	}
	if _, err := withoutExceptions(findings, map[string]string{"file c.go": "a table"}); err == nil || !strings.Contains(err.Error(), "file c.go") {
		t.Errorf("an exception that nothing needs: got %v", err)
	}
}
