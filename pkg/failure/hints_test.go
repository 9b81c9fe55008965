package failure_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/liqonet/liqonet/test/kit"
)

// command matches a command in a format, up to what may end it.
var command = regexp.MustCompile(`kubectl liqonet [a-z-]+[^;,)` + "`" + `]*`)

// verb matches a verb of a format, and its index if it has one.
var verb = regexp.MustCompile(`%(?:\[(\d+)\])?[+#]?[a-z]`)

// unquoted returns the arguments of a call that formats a command, if they are not quoted for a shell.
func unquoted(call *ast.CallExpr, quoted map[string]bool) (out []string, found int) {
	for i, arg := range call.Args {
		format := literal(arg)
		for _, span := range command.FindAllStringIndex(format, -1) {
			next := i + 1
			for _, at := range verb.FindAllStringSubmatchIndex(format, -1) {
				if at[2] >= 0 {
					index, _ := strconv.Atoi(format[at[2]:at[3]])
					next = i + index
				}
				if at[0] >= span[0] && at[1] <= span[1] && next < len(call.Args) {
					if found++; !isQuoted(call.Args[next], quoted) {
						out = append(out, format[span[0]:span[1]])
					}
				}
				next++
			}
		}
	}
	return out, found
}

// literal returns the text of a string, also of one in several parts.
func literal(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
			return text
		}
	case *ast.BinaryExpr:
		return literal(e.X) + literal(e.Y)
	}
	return ""
}

// isQuoted reports whether an argument is a call of Quote, or a variable that has been set to one.
func isQuoted(e ast.Expr, quoted map[string]bool) bool {
	switch e := e.(type) {
	case *ast.CallExpr:
		selector, is := e.Fun.(*ast.SelectorExpr)
		return is && selector.Sel.Name == "Quote"
	case *ast.Ident:
		return quoted[e.Name]
	}
	return false
}

// Each name in a command that a message or a hint shows is quoted for a shell: users copy it.
func TestCommandsQuoteNames(t *testing.T) {
	found, files := 0, token.NewFileSet()
	kit.NoError(t, filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || !strings.HasPrefix(path, "../../pkg/") && !strings.HasPrefix(path, "../../agent/") {
			return err
		}
		file, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			return err
		}
		for _, d := range file.Decls {
			quoted := map[string]bool{}
			ast.Inspect(d, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.AssignStmt:
					for i := range n.Lhs {
						if name, is := n.Lhs[i].(*ast.Ident); is && len(n.Lhs) == len(n.Rhs) {
							quoted[name.Name] = isQuoted(n.Rhs[i], quoted)
						}
					}
				case *ast.CallExpr:
					bad, names := unquoted(n, quoted)
					found += names
					kit.ErrorIf(t, len(bad) > 0, "%s: not quoted: %q", files.Position(n.Pos()), bad)
				}
				return true
			})
		}
		return nil
	}))
	kit.ErrorIf(t, found < 30, "only %d names were found: this proves little", found)
}
