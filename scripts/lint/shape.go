package main

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/scanner"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"
)

// Limits for what a reader must keep in mind at once. Lines are lines of code: blank lines and
// lines with only a comment do not count, so comments are free.
const (
	maxPackageLines  = 2500
	maxFileLines     = 600
	maxFunctionLines = 60
	maxMethods       = 25
	maxFields        = 20

	// maxColumns is how long a line may be to count as one. A longer one counts as two, or
	// joining lines would be a way around all limits. A tab is four columns.
	maxColumns = 140
)

// shapeExceptions are the findings that stay, ten at most, each with the reason. A finding is
// named by what is before the colon of its text.
var shapeExceptions = map[string]string{
	"shared log/slog.Logger in agent/gateway":                                  "loggers are made to be shared, and nothing depends on their state",
	"shared sigs.k8s.io/controller-runtime/pkg/client.Client in agent/gateway": "the state that it reads and writes is that of the API server",
	"shared []net/netip.Addr in agent/gateway":                                 "nothing changes the pod's addresses; those in a desired state are others",
	"message agent/gateway.status":                                             "each call of Status makes one for the writer, of values that nothing changes later",
	"message agent/gateway.linkedNode":                                         "it exists only while a desired state is computed",
	"function agent/gateway.livenessServer.responder":                          "they are the server's own methods",
	"function agent/gateway.endpoints.lookup":                                  "it asks a name server",
	"function agent/gateway.writer.leaving":                                    "it reads one atomic value of the livenessServer",
	"struct pkg/status.View":                                                   "it is an item of status -o json, whose fields scripts read: JSON has no groups without a name",
}

func runShape(root string) error {
	findings, err := checkShape(root)
	if err != nil {
		return err
	}
	left, err := withoutExceptions(findings, shapeExceptions)
	for _, f := range left {
		fmt.Printf("%s:%d: %s\n", f.file, f.line, f.text)
	}
	if len(left) > 0 {
		err = errors.Join(err, fmt.Errorf("lint: split the %d parts of the code above", len(left)))
	}
	return err
}

// withoutExceptions removes the excepted findings. An unused exception is an error: it would
// let a later finding pass.
func withoutExceptions(findings []finding, exceptions map[string]string) (left []finding, err error) {
	unused := maps.Clone(exceptions)
	for _, f := range findings {
		what, _, _ := strings.Cut(f.text, ":")
		if _, excepted := exceptions[what]; !excepted {
			left = append(left, f)
		}
		delete(unused, what)
	}
	for what := range unused {
		err = errors.Join(err, fmt.Errorf("lint: the exception for %s is unused", what))
	}
	return left, err
}

// checkShape checks all packages of the module at root that belong to the programs.
func checkShape(root string) (out []finding, err error) {
	const format = "{{.ImportPath}}\t{{.Export}}{{with .Module}}{{if .Main}}\t{{.Path}}\t{{$.Dir}}{{range $.GoFiles}}\t{{.}}{{end}}{{end}}{{end}}"
	list := exec.Command("go", "list", "-deps", "-export", "-f", format, "./cmd/...", "./agent")
	list.Dir, list.Stderr = root, os.Stderr
	listed, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", list, err)
	}
	exports := map[string]string{}
	files := token.NewFileSet()
	imports := importer.ForCompiler(files, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for line := range strings.Lines(string(listed)) {
		parts := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		exports[parts[0]] = parts[1]
		if len(parts) == 2 {
			continue // a package of another module
		}
		sources := map[string]string{}
		for _, name := range parts[4:] {
			text, err := os.ReadFile(filepath.Join(parts[3], name))
			if err != nil {
				return nil, err
			}
			sources[name] = string(text)
		}
		// What a package imports is listed before it.
		s, err := newShape(files, imports, parts[2], parts[0], sources)
		if err != nil {
			return nil, err
		}
		out = append(out, s.check()...)
	}
	return out, nil
}

// shape is a package to check, without its generated files.
type shape struct {
	module, name string // name is the directory below the module
	fset         *token.FileSet
	types        *types.Package
	info         types.Info
	files        []*ast.File
	code         map[string][]int // of each file, as by codeLines
	methods      map[string]int   // of each type
	out          []finding
}

func newShape(fset *token.FileSet, imports types.Importer, module, path string, sources map[string]string) (*shape, error) {
	s := &shape{module: module, name: strings.TrimPrefix(path, module+"/"), fset: fset, code: map[string][]int{}, methods: map[string]int{}}
	var all []*ast.File
	for _, base := range slices.Sorted(maps.Keys(sources)) {
		name := filepath.Join(s.name, base)
		f, err := parser.ParseFile(fset, name, sources[base], parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		if all = append(all, f); !ast.IsGenerated(f) {
			s.files = append(s.files, f)
			s.code[name] = codeLines(sources[base])
		}
	}
	s.info = types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}}
	var err error
	s.types, err = (&types.Config{Importer: imports}).Check(path, fset, all, &s.info)
	return s, err
}

// codeLines returns how many lines of code each line counts as. The first line is at index 1.
func codeLines(source string) []int {
	lines := strings.Split("\n"+source, "\n")
	out := make([]int, len(lines))
	file := token.NewFileSet().AddFile("", -1, len(source))
	var s scanner.Scanner
	s.Init(file, []byte(source), nil, 0)
	for pos, tok, text := s.Scan(); tok != token.EOF; pos, tok, text = s.Scan() {
		if text == "\n" {
			continue // an automatic semicolon
		}
		for i := range strings.Count(text, "\n") + 1 { // a string may have several lines
			line := lines[file.Line(pos)+i]
			switch {
			case strings.TrimSpace(line) == "":
			case utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    ")) > maxColumns:
				out[file.Line(pos)+i] = 2
			default:
				out[file.Line(pos)+i] = 1
			}
		}
	}
	return out
}

func (s *shape) check() []finding {
	total := 0
	for _, f := range s.files {
		n := s.lines(f.FileStart, f.FileEnd)
		total += n
		s.limit(f.Package, "file "+s.fset.Position(f.Package).Filename, n, maxFileLines, "lines")
		for _, decl := range f.Decls {
			s.checkDecl(decl)
		}
	}
	if len(s.files) > 0 {
		s.limit(s.files[0].Package, "package "+s.name, total, maxPackageLines, "lines")
	}
	for t, n := range s.methods {
		s.limit(s.types.Scope().Lookup(t).Pos(), "type "+s.name+"."+t, n, maxMethods, "methods")
	}
	s.checkCircles()
	s.checkSharing()
	slices.SortStableFunc(s.out, func(a, b finding) int {
		return cmp.Or(strings.Compare(a.file, b.file), cmp.Compare(a.line, b.line), strings.Compare(a.text, b.text))
	})
	return s.out
}

// lines counts the lines of code from one position to another of the same file.
func (s *shape) lines(from, to token.Pos) (n int) {
	first, last := s.fset.Position(from), s.fset.Position(to)
	for _, l := range s.code[first.Filename][first.Line : last.Line+1] {
		n += l
	}
	return n
}

func (s *shape) limit(at token.Pos, what string, n, most int, unit string) {
	if n > most {
		s.add(at, fmt.Sprintf("%s: %d %s, at most %d", what, n, unit, most))
	}
}

func (s *shape) add(at token.Pos, text string) {
	pos := s.fset.Position(at)
	s.out = append(s.out, finding{pos.Filename, pos.Line, text})
}

// checkDecl checks all functions, structs and interfaces of a declaration. An unnamed one gets
// the name of the declaration that contains it.
func (s *shape) checkDecl(decl ast.Decl) {
	name := s.name
	ast.Inspect(decl, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if name += "." + n.Name.Name; n.Recv != nil {
				of := receiver(n.Recv)
				name = s.name + "." + of + "." + n.Name.Name
				s.methods[of]++
			}
			return s.checkFunction(n, name, n.Body)
		case *ast.FuncLit:
			return s.checkFunction(n, name, n.Body)
		case *ast.TypeSpec:
			name = s.name + "." + n.Name.Name
		case *ast.ValueSpec:
			if _, atTop := decl.(*ast.GenDecl); atTop {
				name = s.name + "." + n.Names[0].Name
			}
		case *ast.StructType:
			s.limit(n.Pos(), "struct "+name, s.fields(s.info.TypeOf(n).(*types.Struct)), maxFields, "fields")
		case *ast.InterfaceType:
			s.limit(n.Pos(), "interface "+name, n.Methods.NumFields(), maxMethods, "methods")
		}
		return true
	})
}

// checkFunction reports whether to check the functions inside too: inside one that is too long,
// they would be repeated findings.
func (s *shape) checkFunction(n ast.Node, name string, body *ast.BlockStmt) bool {
	before := len(s.out)
	if body != nil && !s.isTable(body.List) {
		s.limit(n.Pos(), "function "+name, s.lines(n.Pos(), n.End()), maxFunctionLines, "lines")
	}
	return len(s.out) == before
}

// isTable reports whether a function consists of one composite literal, or of one switch over
// constants. Such a function is not read from top to bottom.
func (s *shape) isTable(body []ast.Stmt) bool {
	if len(body) != 1 {
		return false
	}
	varies := func(e ast.Expr) bool { return s.info.Types[e].Value == nil }
	switch only := body[0].(type) {
	case *ast.ReturnStmt:
		return len(only.Results) == 1 && isLiteral(only.Results[0])
	case *ast.SwitchStmt:
		return only.Tag != nil && !slices.ContainsFunc(only.Body.List, func(c ast.Stmt) bool {
			return slices.ContainsFunc(c.(*ast.CaseClause).List, varies)
		})
	}
	return false
}

func isLiteral(e ast.Expr) bool {
	if address, ok := e.(*ast.UnaryExpr); ok {
		e = address.X
	}
	_, ok := e.(*ast.CompositeLit)
	return ok
}

// fields counts fields, including those of embedded structs of this module: moving fields to an
// embedded struct makes nothing smaller.
func (s *shape) fields(t *types.Struct) (n int) {
	for f := range t.Fields() {
		of := f.Type()
		if pointer, ok := of.(*types.Pointer); ok {
			of = pointer.Elem()
		}
		named, _ := types.Unalias(of).(*types.Named)
		inner, isStruct := of.Underlying().(*types.Struct)
		if f.Embedded() && isStruct && strings.HasPrefix(named.Obj().Pkg().Path()+"/", s.module+"/") {
			n += s.fields(inner)
		} else {
			n++
		}
	}
	return n
}

// checkCircles finds files that call each other, directly or through other files: a reader of one
// must read them all. A function that is passed as a value counts as called. A method of an
// interface does not: its caller need not know the implementation.
func (s *shape) checkCircles() {
	calls := map[string]map[string][]*ast.Ident{}
	for _, f := range s.files {
		from := s.fset.Position(f.Package).Filename
		calls[from] = map[string][]*ast.Ident{}
		ast.Inspect(f, func(n ast.Node) bool {
			id, _ := n.(*ast.Ident)
			called, ok := s.info.Uses[id].(*types.Func)
			if !ok || called.Pkg() != s.types {
				return true
			}
			recv := called.Signature().Recv()
			to := s.fset.Position(called.Pos()).Filename
			if to != from && (recv == nil || !types.IsInterface(recv.Type())) {
				calls[from][to] = append(calls[from][to], id)
			}
			return true
		})
	}
	for _, circle := range circles(calls) {
		text, first := "circle of "+strings.Join(circle, ", ")+":", token.NoPos
		for _, from := range circle {
			for _, to := range circle {
				var names []string
				for _, id := range calls[from][to] {
					first = cmp.Or(first, id.Pos())
					names = append(names, fmt.Sprintf("%s:%d", id.Name, s.fset.Position(id.Pos()).Line))
				}
				if len(names) > 0 {
					text += fmt.Sprintf("\n\t%s calls of %s %s", filepath.Base(from), filepath.Base(to), strings.Join(names, " "))
				}
			}
		}
		s.add(first, text)
	}
}

// circles returns the largest sets of files that all reach each other.
func circles(calls map[string]map[string][]*ast.Ident) (out [][]string) {
	reached := map[string]map[string]bool{}
	var visit func(from, at string)
	visit = func(from, at string) {
		for to := range calls[at] {
			if !reached[from][to] {
				reached[from][to] = true
				visit(from, to)
			}
		}
	}
	all := slices.Sorted(maps.Keys(calls))
	for _, file := range all {
		reached[file] = map[string]bool{}
		visit(file, file)
	}
	for _, file := range all {
		circle := slices.DeleteFunc(slices.Clone(all), func(other string) bool { return !reached[file][other] || !reached[other][file] })
		if len(circle) > 1 && circle[0] == file {
			out = append(out, circle)
		}
	}
	return out
}
