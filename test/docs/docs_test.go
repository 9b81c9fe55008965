package docs

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/liqonet/liqonet/pkg/cli"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
)

const root = "../.."

// commandEnv makes this program the command instead of its tests.
const commandEnv = "DOCS_TEST_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(commandEnv) != "" {
		os.Exit(cli.Run(context.Background(), os.Args[1:], cli.Streams{Out: os.Stdout, Err: os.Stderr}))
	}
	os.Exit(m.Run())
}

// block is a block of code in a document.
type block struct {
	// name is the file and the line.
	name string
	// language is sh, console and the like; mark is the comment before it.
	language, mark, text string
}

var fence = regexp.MustCompile("^(\\s*)```(\\w*)$")

// documents are the texts by the file's name.
func documents(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		files := kit.Must(filepath.Glob(filepath.Join(root, pattern)))(t)
		for _, file := range files {
			raw := kit.Must(os.ReadFile(file))(t)
			out[strings.TrimPrefix(file, root+"/")] = string(raw)
		}
	}
	kit.FatalIf(t, len(out) < 5, "only %d documents were found", len(out))
	return out
}

// blocks are those of all documents.
func blocks(t *testing.T) (out []block) {
	t.Helper()
	texts := documents(t)
	for _, file := range slices.Sorted(maps.Keys(texts)) {
		out = append(out, blocksOf(file, texts[file])...)
	}
	return out
}

func blocksOf(file, text string) (out []block) {
	var current *block
	before := ""
	for i, line := range strings.Split(text, "\n") {
		m := fence.FindStringSubmatch(line)
		switch {
		case m != nil && current == nil:
			current = &block{name: fmt.Sprintf("%s:%d", file, i+1), language: m[2], mark: strings.TrimSpace(before)}
		case m != nil:
			out = append(out, *current)
			current = nil
		case current != nil:
			current.text += line + "\n"
		}
		before = line
	}
	return out
}

// typed are the lines of a block that a user types: all of sh, those behind a prompt of
// console.
func (b block) typed() string {
	switch b.language {
	case "sh", "bash":
		return b.text
	case "console":
		var lines []string
		for line := range strings.Lines(b.text) {
			if _, command, ok := strings.Cut(line, "$ "); ok && strings.Trim(line[:strings.Index(line, "$ ")], "= #") == "" {
				lines = append(lines, command)
			}
		}
		return strings.Join(lines, "")
	}
	return ""
}

var (
	isRun    = regexp.MustCompile(`^<!-- run -->$`)
	isRunBy  = regexp.MustCompile(`^<!-- run by (Test\w+) -->$`)
	isNotRun = regexp.MustCompile(`^<!-- not run: .{8,} -->$`)
)

// Every block of commands is run, or says why it is not.
func TestBlocksAreRunOrMarked(t *testing.T) {
	tests := tests(t)
	for _, b := range blocks(t) {
		if b.language != "sh" && b.language != "bash" {
			continue
		}
		by := isRunBy.FindStringSubmatch(b.mark)
		switch {
		case by != nil:
			kit.ErrorIf(t, !tests[by[1]], "%s: there is no %s", b.name, by[1])
		case !isRun.MatchString(b.mark) && !isNotRun.MatchString(b.mark):
			t.Errorf("%s: the line before has to be <!-- run -->, <!-- run by TestX --> or <!-- not run: REASON -->, not %q", b.name, b.mark)
		}
	}
}

// What a document tells the reader to type exists: commands, their flags, how many
// arguments they take, and targets of make.
func TestCommandsExist(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	makefile := kit.Must(os.ReadFile(filepath.Join(root, "Makefile")))(t)
	blocks := blocks(t)
	t.Chdir(t.TempDir()) // where the file that peer -f reads is
	kit.NoError(t, os.WriteFile("peering.yaml", []byte("clusters: [cluster-a, cluster-b]\n"), 0o600))
	found := 0
	for _, b := range blocks {
		text := b.typed()
		if text == "" {
			continue
		}
		syntax := exec.CommandContext(t.Context(), "bash", "-n")
		syntax.Stdin = strings.NewReader(text)
		out, err := syntax.CombinedOutput()
		kit.ErrorIf(t, err != nil && b.language != "console", "%s: %v\n%s", b.name, err, out)
		for _, words := range commands(text) {
			found++
			kit.Check(t, fmt.Sprintf("%s: %s", b.name, strings.Join(words, " ")), check(words, string(makefile)), "")
		}
	}
	kit.ErrorIf(t, found < 40, "only %d commands were found", found)
}

// check says what is wrong with a command of this project.
func check(words []string, makefile string) string {
	switch name := filepath.Base(words[0]); {
	case name == "make":
		for _, target := range words[1:] {
			if !strings.HasPrefix(target, "-") && !strings.Contains(target, "=") && !regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(target)+`:`).MatchString(makefile) {
				return "there is no target " + target
			}
		}
	case name == "kubectl" && len(words) > 1 && words[1] == "liqonet":
		return checkOwn(words[2:])
	case name == "kubectl-liqonet" || name == "liqonetctl":
		return checkOwn(words[1:])
	}
	return ""
}

// checkOwn parses a command line as the command does.
func checkOwn(args []string) string {
	cmd, rest, err := cli.NewCommand(cli.Streams{Out: &bytes.Buffer{}, Err: &bytes.Buffer{}}).Find(args)
	if err != nil {
		return err.Error()
	}
	cmd.InitDefaultHelpFlag()
	if err := cmd.ParseFlags(rest); err != nil {
		return err.Error()
	}
	if help, _ := cmd.Flags().GetBool("help"); help || cmd.Args == nil {
		return ""
	}
	if err := cmd.Args(cmd, cmd.Flags().Args()); err != nil {
		return err.Error()
	}
	return ""
}

// commands are those in a text of the shell, each as its words. What the shell would put
// in is one word "X". Commands in $(…) and in quoted scripts are commands too.
func commands(text string) (out [][]string) {
	text = strings.ReplaceAll(text, "\\\n", " ")
	var words []string
	word, inWord := "", false
	endWord := func() {
		// An assignment before a command is no part of it.
		if inWord && !(len(words) == 0 && regexp.MustCompile(`^\w+=`).MatchString(word)) {
			words = append(words, word)
		}
		word, inWord = "", false
	}
	endCommand := func() {
		endWord()
		for len(words) > 0 && slices.Contains([]string{"if", "then", "do", "until", "while", "!", "else", "timeout", "sudo", "exec", "time"}, words[0]) {
			words = words[1:]
		}
		if len(words) > 0 {
			out = append(out, words)
		}
		words = nil
	}
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\'' || c == '"':
			n := closing(text[i+1:], c)
			quoted := text[i+1 : i+1+n]
			if c == '\'' && strings.ContainsAny(quoted, " ") || strings.Contains(quoted, "$(") {
				out = append(out, commands(quoted)...)
			}
			word, inWord, i = word+quoted, true, i+1+n
		case c == '$' && i+1 < len(text) && text[i+1] == '(':
			n := closing(text[i+2:], ')')
			out = append(out, commands(text[i+2:i+2+n])...)
			word, inWord, i = word+"X", true, i+2+n
		case c == '#' && !inWord:
			for i+1 < len(text) && text[i+1] != '\n' {
				i++
			}
		case c == ' ' || c == '\t':
			endWord()
		case c == '>' || c == '<': // what it is redirected to is no argument
			endWord()
			for i+1 < len(text) && strings.IndexByte(" &", text[i+1]) >= 0 {
				i++
			}
			for i+1 < len(text) && strings.IndexByte(" \n;|&)", text[i+1]) < 0 {
				i++
			}
		case strings.IndexByte("\n;|&()", c) >= 0:
			endCommand()
		default:
			word, inWord = word+string(c), true
		}
	}
	endCommand()
	return out
}

// closing is where a quotation or a substitution ends.
func closing(text string, end byte) int {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == end && depth == 0:
			return i
		case end == ')' && c == '(':
			depth++
		case end == ')' && c == ')':
			depth--
		case end == ')' && (c == '\'' || c == '"'):
			i += 1 + closing(text[i+1:], c)
		case end == '"' && c == '$' && strings.HasPrefix(text[i+1:], "("):
			i += 2 + closing(text[i+2:], ')')
		}
	}
	return len(text)
}

// Links between documents lead to a file that exists, and to a heading that it has.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading := regexp.MustCompile(`(?m)^#+ (.*)$`)
	code := regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")
	texts := documents(t)
	found := 0
	for file, text := range texts {
		for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(text, ""), -1) {
			target, anchor, hasAnchor := strings.Cut(m[1], "#")
			if strings.Contains(target, ":") {
				continue // another site's
			}
			found++
			to := file
			if target != "" {
				to = filepath.Join(filepath.Dir(file), target)
			}
			if _, err := os.Stat(filepath.Join(root, to)); err != nil {
				t.Errorf("%s: %s does not exist", file, m[1])
				continue
			}
			var anchors []string
			for _, h := range heading.FindAllStringSubmatch(texts[to], -1) {
				anchors = append(anchors, slug(h[1]))
			}
			kit.ErrorIf(t, hasAnchor && !slices.Contains(anchors, anchor), "%s: %s has no heading %q, but %v", file, to, anchor, anchors)
		}
	}
	kit.ErrorIf(t, found < 50, "only %d links were found", found)
}

// slug is the anchor that a heading gets.
func slug(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
}

// Blocks that say so are run, with clusters that are played.
func TestRunBlocks(t *testing.T) {
	var list []block
	for _, b := range blocks(t) {
		if isRun.MatchString(b.mark) {
			list = append(list, b)
		}
	}
	kit.FatalIf(t, len(list) == 0, "no block is run")
	for _, b := range list {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			home, bin := t.TempDir(), t.TempDir()
			var contexts []string
			for i, name := range []string{"cluster-a", "cluster-b", "cluster-c", "hub", "home", "cloud"} {
				s := kit.Must(fakeapi.New(fakeapi.Objects("id-of-"+name, name+"-1", fmt.Sprintf("172.18.%d.11", i), "10.244.0.0/16")...))(t)
				t.Cleanup(s.Close)
				contexts = append(contexts, name+" "+s.URL)
			}
			write(t, filepath.Join(home, ".kube", "config"), kubeconfig(contexts...))
			write(t, filepath.Join(home, "a.conf"), kubeconfig(strings.Replace(contexts[0], "cluster-a", "kubernetes-admin@kubernetes", 1)))
			write(t, filepath.Join(home, "b.conf"), kubeconfig(contexts[1]))
			write(t, filepath.Join(bin, "kubectl-liqonet"), "#!/bin/sh\n"+commandEnv+"=1 exec "+os.Args[0]+" \"$@\"\n")
			write(t, filepath.Join(bin, "kubectl"), "#!/bin/sh\n[ \"$1\" = liqonet ] || exit 1\nshift\nexec kubectl-liqonet \"$@\"\n")
			cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", b.text)
			cmd.Dir = home
			cmd.Env = []string{"HOME=" + home, "PATH=" + bin + ":" + os.Getenv("PATH")}
			out, err := cmd.CombinedOutput()
			kit.ErrorIf(t, err != nil, "%v\n%s", err, out)
		})
	}
}

// kubeconfig is a file with contexts, each as NAME SERVER.
func kubeconfig(contexts ...string) string {
	var clusters, list, current string
	for _, c := range contexts {
		name, server, _ := strings.Cut(c, " ")
		if current == "" {
			current = name
		}
		clusters += "- {name: " + name + ", cluster: {server: " + server + "}}\n"
		list += "- {name: " + name + ", context: {cluster: " + name + ", user: u}}\n"
	}
	return "apiVersion: v1\nkind: Config\ncurrent-context: " + current + "\nusers:\n- {name: u, user: {token: t}}\nclusters:\n" + clusters + "contexts:\n" + list
}

func write(t *testing.T, file, text string) {
	t.Helper()
	kit.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	kit.NoError(t, os.WriteFile(file, []byte(text), 0o755))
}
