// Command lint checks what the linters of others do not: that each exported name of the
// product has a comment which is a sentence about it, and that sentences in documents and
// comments are short enough to be read once. Nor may code use random values that others can guess.
//
// Files that broke these rules when they were made are listed in exceptions.txt with the
// number of findings in each. A file may have fewer than that, never more.
//
// With -shape it checks the shape of the programs' code instead: how large packages, files,
// types and functions are, that files of a package do not call each other in circles, and that
// the parts of a gateway's agent do not share mutable state.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// maxWords is how many words a sentence may have.
const maxWords = 30

// exceptionsFile lists the files that may have findings.
const exceptionsFile = "scripts/lint/exceptions.txt"

// finding is one offence.
type finding struct {
	file string
	line int
	text string
}

func main() {
	update := flag.Bool("update", false, "lower the numbers in "+exceptionsFile+" to what is found")
	all := flag.Bool("all", false, "print all findings, also those that are excepted")
	shape := flag.Bool("shape", false, "check the size of packages, files, types and functions, circles of files, and what parts share")
	flag.Parse()
	var err error
	if *shape {
		err = runShape(".")
	} else {
		err = run(*update, *all)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(update, all bool) error {
	findings, err := check(".")
	if err != nil {
		return err
	}
	e, err := readExceptions(exceptionsFile)
	if err != nil {
		return err
	}
	if update {
		return e.lower(findings).write(exceptionsFile)
	}
	byFile := map[string][]finding{}
	for _, f := range findings {
		byFile[f.file] = append(byFile[f.file], f)
	}
	failed := false
	for _, file := range slices.Sorted(maps.Keys(byFile)) {
		tooMany := len(byFile[file]) > e.allowed[file]
		failed = failed || tooMany
		if !all && !tooMany {
			continue
		}
		for _, f := range byFile[file] {
			fmt.Printf("%s:%d: %s\n", f.file, f.line, f.text)
		}
		if tooMany {
			fmt.Printf("%s: %d findings, %d allowed\n", file, len(byFile[file]), e.allowed[file])
		}
	}
	if failed {
		return errors.New("lint: shorten the sentences and complete the comments above")
	}
	for file, n := range e.allowed {
		if len(byFile[file]) < n {
			fmt.Printf("%s: %d findings, fewer than the %d allowed: go run ./scripts/lint -update\n", file, len(byFile[file]), n)
		}
	}
	return nil
}

// check looks through all documents and the product's Go files below root.
func check(root string) (out []finding, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		name, errRel := filepath.Rel(root, path)
		if err != nil || errRel != nil {
			return errors.Join(err, errRel)
		}
		top, _, _ := strings.Cut(name, "/")
		isProduct := slices.Contains([]string{"agent", "cmd", "pkg"}, top)
		switch {
		case d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && name != "." || d.Name() == "bin"):
			return filepath.SkipDir
		case d.IsDir():
			return nil
		case strings.HasSuffix(name, ".md") && !strings.HasPrefix(name, "docs/reference/") && !strings.HasPrefix(name, "docs/results/"):
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			out = append(out, checkMarkdown(name, string(text))...)
		case isProduct && strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") && !strings.HasPrefix(d.Name(), "zz_generated"):
			found, err := checkGo(name, path)
			if err != nil {
				return err
			}
			out = append(out, found...)
		}
		return nil
	})
	return out, err
}

// checkGo looks at the comments of one file.
func checkGo(name, path string) (out []finding, err error) {
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, path, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, group := range f.Comments {
		line := files.Position(group.Pos()).Line
		for _, s := range longSentences(commentText(group)) {
			out = append(out, finding{name, line, s})
		}
	}
	for _, decl := range f.Decls {
		out = append(out, checkDecl(name, files, decl)...)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if isGuessable(n) && !slices.Contains(mayBeGuessed, name) {
			out = append(out, finding{name, files.Position(n.Pos()).Line, "others can guess these random values: use crypto/rand, or add the file to mayBeGuessed"})
		}
		return true
	})
	return out, nil
}

// mayBeGuessed are the files whose random values others may guess: they only spread requests over time, or choose the same in each run.
var mayBeGuessed = []string{"agent/heartbeat/heartbeat.go", "agent/node/lost.go", "agent/node/tcp.go", "pkg/failover/failover.go", "pkg/ipam/allocate.go"}

// guessable are the packages whose random values others can guess, and functions of packages that also do something else.
var guessable = []string{
	`"math/rand"`, `"math/rand/v2"`, `"k8s.io/apimachinery/pkg/util/rand"`, `"k8s.io/apiserver/pkg/storage/names"`,
	"lo.RandomString", "lo.Sample", "lo.SampleBy", "lo.Samples", "lo.SamplesBy", "lo.Shuffle", "mutable.Shuffle",
}

func isGuessable(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.ImportSpec:
		return slices.Contains(guessable, n.Path.Value)
	case *ast.SelectorExpr:
		of, is := n.X.(*ast.Ident)
		return is && slices.Contains(guessable, of.Name+"."+n.Sel.Name)
	}
	return false
}

// commentText is a comment without markers for tools and without indented examples, a
// paragraph or list item in a line.
func commentText(group *ast.CommentGroup) []string {
	var lines []string
	for line := range strings.Lines(group.Text()) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "\t") || strings.HasPrefix(line, "+") {
			line = ""
		}
		lines = append(lines, line)
	}
	return paragraphs(lines)
}

// checkDecl looks whether all exported names of a declaration have a comment.
func checkDecl(file string, files *token.FileSet, decl ast.Decl) (out []finding) {
	add := func(id *ast.Ident, doc string) {
		if problem := commentProblem(id.Name, doc); problem != "" {
			out = append(out, finding{file, files.Position(id.Pos()).Line, problem})
		}
	}
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() && (d.Recv == nil || ast.IsExported(receiver(d.Recv))) {
			add(d.Name, d.Doc.Text())
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				if s.Name.IsExported() {
					add(s.Name, s.Doc.Text()+d.Doc.Text())
				}
			case *ast.ValueSpec:
				// One comment for a group is enough, and so is one behind the value.
				if s.Names[0].IsExported() && (s.Doc != nil || s.Comment == nil && (d.Doc == nil || !d.Lparen.IsValid())) {
					add(s.Names[0], s.Doc.Text()+d.Doc.Text())
				}
			}
		}
	}
	return out
}

// receiver is the name of the type that a method belongs to.
func receiver(recv *ast.FieldList) string {
	t := recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.ParenExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		default:
			return x.(*ast.Ident).Name
		}
	}
}

// commentProblem says what is wrong with the comment of an exported name.
func commentProblem(name, doc string) string {
	doc = strings.TrimSpace(doc)
	first := append(paragraphs(strings.Split(doc, "\n")), "")[0]
	rest := strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(first, "A "), "An "), "The ")
	switch {
	case doc == "" && (name == "Error" || name == "Unwrap" || name == "String"):
		return "" // methods that everybody knows
	case doc == "":
		return name + " has no comment"
	case !strings.HasPrefix(rest, name) || wordGoesOn.MatchString(rest[len(name):]):
		return name + ": the comment does not begin with the name"
	case !strings.HasSuffix(first, ".") && !strings.HasSuffix(first, ":"):
		return name + ": the comment is no sentence"
	}
	return ""
}

var (
	wordGoesOn = regexp.MustCompile(`^\w`)

	fence = regexp.MustCompile("^\\s*(```|~~~)")
	item  = regexp.MustCompile(`^\s*([-*+]|\d+[.)])\s`)
	link  = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
	code  = regexp.MustCompile("`[^`]*`")
	end   = regexp.MustCompile(`[.!?]["')*]*\s+`)
)

// checkMarkdown looks at the sentences of a document.
func checkMarkdown(name, text string) (out []finding) {
	var block []string
	start, inCode := 1, false
	flush := func(next int) {
		for _, s := range longSentences(paragraphs(block)) {
			out = append(out, finding{name, start, s})
		}
		block, start = nil, next
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		switch {
		case fence.MatchString(line):
			inCode = !inCode
			flush(i + 2)
		case inCode || strings.HasPrefix(line, "    ") && len(block) == 0 || strings.HasPrefix(line, "<"):
			flush(i + 2)
		case strings.HasPrefix(strings.TrimSpace(line), "|"):
			flush(i + 1)
			for cell := range strings.SplitSeq(line, "|") {
				block = append(block, cell, "")
			}
			flush(i + 2)
		case strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#"):
			flush(i + 2)
		default:
			if item.MatchString(line) {
				flush(i + 1)
			}
			block = append(block, line)
		}
	}
	flush(0)
	return out
}

// paragraphs joins the lines between empty ones. An item of a list is a paragraph.
func paragraphs(lines []string) (out []string) {
	var current []string
	flush := func() {
		if len(current) > 0 {
			out = append(out, strings.Join(current, " "))
		}
		current = nil
	}
	for _, line := range lines {
		if strings.TrimSpace(line) == "" || item.MatchString(line) {
			flush()
		}
		if s := strings.TrimSpace(item.ReplaceAllString(line, "")); s != "" {
			current = append(current, s)
		}
	}
	flush()
	return out
}

// longSentences returns what is said of each sentence that is too long.
func longSentences(paragraphs []string) (out []string) {
	for _, p := range paragraphs {
		p = code.ReplaceAllString(link.ReplaceAllString(p, "$1"), "CODE")
		for _, s := range sentences(p) {
			if n := words(s); n > maxWords {
				out = append(out, fmt.Sprintf("a sentence of %d words: %s …", n, strings.Join(strings.Fields(s)[:8], " ")))
			}
		}
	}
	return out
}

// sentences splits a paragraph. What goes on in lower case, as after "e.g.", is the same
// sentence.
func sentences(p string) (out []string) {
	from := 0
	for _, at := range end.FindAllStringIndex(p, -1) {
		next := p[at[1]:]
		if next == "" || next[0] >= 'a' && next[0] <= 'z' {
			continue
		}
		out = append(out, p[from:at[0]])
		from = at[1]
	}
	return append(out, p[from:])
}

// words counts what has a letter or a digit.
func words(s string) (n int) {
	for word := range strings.FieldsSeq(s) {
		if strings.ContainsFunc(word, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
			n++
		}
	}
	return n
}

// exceptions are the numbers of findings that files may have.
type exceptions struct {
	head    []string
	allowed map[string]int
	reason  map[string]string
}

// readExceptions reads lines of FILE NUMBER REASON.
func readExceptions(name string) (*exceptions, error) {
	e := &exceptions{allowed: map[string]int{}, reason: map[string]string{}}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was read only
	for s := bufio.NewScanner(f); s.Scan(); {
		line := s.Text()
		if line == "" || strings.HasPrefix(line, "#") {
			e.head = append(e.head, line)
			continue
		}
		var file string
		var n int
		if _, err := fmt.Sscan(line, &file, &n); err != nil {
			return nil, fmt.Errorf("%s: %q: %w", name, line, err)
		}
		e.allowed[file] = n
		fields := strings.Fields(line)
		if e.reason[file] = strings.Join(fields[2:], " "); e.reason[file] == "" {
			return nil, fmt.Errorf("%s: %s has no reason", name, file)
		}
	}
	return e, nil
}

// lower takes the number of each file down to what is found, never up.
func (e *exceptions) lower(findings []finding) *exceptions {
	found := map[string]int{}
	for _, f := range findings {
		found[f.file]++
	}
	for file, n := range e.allowed {
		if e.allowed[file] = min(n, found[file]); e.allowed[file] == 0 {
			delete(e.allowed, file)
		}
	}
	return e
}

func (e *exceptions) write(name string) error {
	lines := slices.Clone(e.head)
	for _, file := range slices.Sorted(maps.Keys(e.allowed)) {
		lines = append(lines, fmt.Sprintf("%s %d %s", file, e.allowed[file], e.reason[file]))
	}
	return os.WriteFile(name, []byte(strings.Join(lines, "\n")+"\n"), 0o644)
}
