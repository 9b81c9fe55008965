package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/samber/lo"
)

// resultDir is where results are, in the repository.
const resultDir = "docs/results"

// Result is what a result file holds: the figures that documents show, and why tests failed.
type Result struct {
	// Name is that of the part, Command what was run.
	Name    string `json:"name"`
	Command string `json:"command"`
	// Commit and Date are of when it was run; Dirty says that there were changes that
	// were not committed.
	Commit string    `json:"commit"`
	Dirty  bool      `json:"dirty,omitempty"`
	Date   time.Time `json:"date"`
	// Seed repeats the random choices, where tests have printed one.
	Seed string `json:"seed,omitempty"`
	// Outcome is "pass" or "fail", Seconds how long all of it took.
	Outcome string  `json:"outcome"`
	Seconds float64 `json:"seconds"`
	// Of are the hashes of what was tested, by path: the packages with their tests, and all that they and the programs
	// import. See coverage.
	Of map[string]string `json:"of"`
	// Count is the number of tests and subtests by outcome. Of Tests, a result file keeps only those that are not
	// subtests, and those that failed.
	Count      map[string]int `json:"count,omitempty"`
	Tests      []Test         `json:"tests,omitempty"`
	Benchmarks []Benchmark    `json:"benchmarks,omitempty"`
}

// Test is the outcome of one test: "pass", "fail" or "skip". Its package is without the module.
type Test struct {
	Package, Name, Outcome string
	Seconds                float64
	// Messages are the last ones of a test that failed, a line of each.
	Messages []string
}

// Benchmark is what one benchmark has measured, by unit.
type Benchmark struct {
	Name    string             `json:"name"`
	Metrics map[string]float64 `json:"metrics"`
}

// MarshalText writes a test on one line. Lines with its messages follow.
func (t Test) MarshalText() ([]byte, error) {
	first := fmt.Sprintf("%s %.1f s %s %s", t.Outcome, t.Seconds, t.Package, t.Name)
	return []byte(strings.Join(append([]string{first}, t.Messages...), "\n")), nil
}

// UnmarshalText reads what MarshalText writes.
func (t *Test) UnmarshalText(text []byte) error {
	first, messages, failed := strings.Cut(string(text), "\n")
	if failed {
		t.Messages = strings.Split(messages, "\n")
	}
	_, err := fmt.Sscanf(first, "%s %f s %s %s", &t.Outcome, &t.Seconds, &t.Package, &t.Name)
	return err
}

// IsSubtest reports whether a test is a case of another one.
func (t Test) IsSubtest() bool { return strings.Contains(t.Name, "/") }

// short is a package without the module.
func short(pkg string) string {
	return strings.TrimPrefix(pkg, "github.com/liqonet/liqonet/")
}

// condense removes what a result file does not keep.
func (r *Result) condense() {
	r.Count = lo.CountValuesBy(r.Tests, func(t Test) string { return t.Outcome })
	r.Tests = lo.Filter(r.Tests, func(t Test, _ int) bool { return !t.IsSubtest() || t.Outcome == "fail" })
	for _, b := range r.Benchmarks {
		delete(b.Metrics, "ns/op") // of one round, which says nothing
	}
}

// path is the path of the result file.
func (r *Result) path() string { return filepath.Join(resultDir, r.Name+".json") }

// encode returns the text of the result file.
func (r *Result) encode() ([]byte, error) {
	raw, err := json.MarshalIndent(r, "", " ")
	return append(raw, '\n'), err
}

func (r *Result) write() error {
	r.condense()
	raw, err := r.encode()
	if err != nil {
		return err
	}
	return os.WriteFile(r.path(), raw, 0o644)
}

// results reads all result files, by name.
func results() ([]Result, error) {
	files, err := filepath.Glob(filepath.Join(resultDir, "*.json"))
	if err != nil {
		return nil, err
	}
	var out []Result
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		var r Result
		if err := json.Unmarshal(raw, &r); err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		out = append(out, r)
	}
	return out, nil
}

// describe says of what the result is.
func (r *Result) describe(of string, args []string) error {
	commit, err := git("rev-parse", "--short=12", "HEAD")
	if err != nil {
		return err
	}
	changes, err := git("status", "--porcelain", "--untracked-files=no", "--", ":(top,exclude)"+resultDir) // other parts may have written theirs
	if err != nil {
		return err
	}
	r.Commit, r.Dirty, r.Of = commit, changes != "", map[string]string{}
	paths, err := coverage(strings.Split(of, ","), args)
	if err != nil {
		return err
	}
	for _, path := range paths {
		if r.Of[path], err = contentHash("HEAD", path); err != nil {
			return err
		}
	}
	return nil
}

// withTests is at the end of the path of a package whose tests were run.
const withTests = " with its tests"

// coverage returns the paths of all that a result depends on: the packages among the arguments of go test, what they
// import, also indirectly, and the other paths. Where those have packages, what these import is included.
func coverage(others, args []string) (paths []string, err error) {
	tested := lo.Filter(args, func(a string, _ int) bool { return strings.HasPrefix(a, "./") })
	dirs, err := list(append([]string{"-f", "{{.Dir}}"}, tested...)...)
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		paths = append(paths, dir+withTests)
	}
	imports := append([]string{"-deps", "-test", "-f", "{{if .Module}}{{if .Module.Main}}{{.Dir}}{{end}}{{end}}"}, tested...)
	for _, path := range append(lo.Compact(others), "go.sum") {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			imports = append(imports, "./"+path+"/...")
		} else {
			paths = append(paths, path)
		}
	}
	imported, err := list(imports...)
	return lo.Uniq(append(paths, imported...)), err
}

// list runs go list, and returns paths in the repository.
func list(args ...string) ([]string, error) {
	out, err := exec.Command("go", append([]string{"list"}, args...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s: %w", strings.Join(args, " "), err)
	}
	top, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	return lo.Map(lo.Uniq(strings.Fields(string(out))), func(dir string, _ int) string {
		return strings.TrimPrefix(strings.TrimPrefix(dir, top), "/")
	}), nil
}

// contentHash returns the hash of a file, or of a directory's own content: without packages below it, and without tests
// unless they were run.
func contentHash(commit, path string) (string, error) {
	dir, tested := strings.CutSuffix(path, withTests)
	out, err := git("ls-tree", commit, dir)
	if err == nil && strings.Contains(out, " tree ") {
		out, err = git("ls-tree", commit, dir+"/")
	}
	if err != nil {
		return "", err
	}
	kept := lo.Filter(strings.Split(out, "\n"), func(line string, _ int) bool {
		_, name, _ := strings.Cut(line, "\t")
		isPackage := strings.Contains(line, " tree ") && hasPackage(commit, name)
		return !isPackage && (tested || !strings.HasSuffix(name, "_test.go") && filepath.Base(name) != "testdata")
	})
	sum := sha256.Sum256([]byte(strings.Join(kept, "\n")))
	return hex.EncodeToString(sum[:6]), nil
}

// hasPackage reports whether a directory has a package, which is a path of its own if something imports it.
func hasPackage(commit, dir string) bool {
	files, err := git("ls-tree", "--name-only", commit, dir+"/")
	return err == nil && strings.Contains(files+"\n", ".go\n") && filepath.Base(dir) != "testdata"
}

// changedPaths returns what a result is about that differs between the commit by which it was made, or a given one, and now.
func (r *Result) changedPaths(base string) (changed []string) {
	for path, was := range r.Of {
		if base != "" {
			was, _ = contentHash(base, path) // a path that was not there has changed
		}
		if now, err := contentHash("HEAD", path); err != nil || now != was {
			changed = append(changed, path)
		}
	}
	slices.Sort(changed)
	return changed
}

// listTouched prints those of some parts of make test-long that depend on something that has changed since a commit, or
// have no result.
func listTouched(w io.Writer, base string, parts []string) error {
	if _, err := git("rev-parse", "--verify", base+"^{commit}"); err != nil {
		return err
	}
	all, err := results()
	if err != nil {
		return err
	}
	for _, part := range parts {
		r, known := lo.Find(all, func(r Result) bool { return r.Name == part })
		// An old result has only directories, without what they import.
		isOld := !slices.ContainsFunc(slices.Collect(maps.Keys(r.Of)), func(path string) bool { return strings.HasSuffix(path, withTests) })
		if !known || isOld || len(r.changedPaths(base)) > 0 {
			fmt.Fprintln(w, part)
		}
	}
	return nil
}

// listStale prints which results are older than what they are about.
func listStale(w io.Writer) error {
	all, err := results()
	if err != nil {
		return err
	}
	for _, r := range all {
		if changed := r.changedPaths(""); len(changed) > 0 {
			fmt.Fprintf(w, "%s is of %s, commit %s; since then have changed: %s\n", r.path(), r.Day(), r.Commit, shorten(changed))
		}
	}
	return nil
}

// shorten names the first of many paths.
func shorten(paths []string) string {
	const most = 5
	more := lo.Ternary(len(paths) > most, fmt.Sprintf(" and %d more", len(paths)-most), "")
	return strings.Join(paths[:min(len(paths), most)], ", ") + more
}

func git(args ...string) (string, error) {
	out, err := exec.Command("git", args...).Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}
