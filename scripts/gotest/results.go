package main

import (
	"encoding/json"
	"fmt"
	"io"
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
	// Of are the hashes of the trees that were tested, by path.
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
func (r *Result) describe(of string) error {
	commit, err := git("rev-parse", "--short=12", "HEAD")
	if err != nil {
		return err
	}
	changes, err := git("status", "--porcelain", "--untracked-files=no", "--", ":(top,exclude)"+resultDir) // other parts may have written theirs
	if err != nil {
		return err
	}
	r.Commit, r.Dirty, r.Of = commit, changes != "", map[string]string{}
	for path := range strings.SplitSeq(of, ",") {
		if r.Of[path], err = git("rev-parse", "--short=12", "HEAD:"+path); err != nil {
			return err
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
		var changed []string
		for path, was := range r.Of {
			// A path that is gone has changed, too.
			if now, err := git("rev-parse", "--short=12", "HEAD:"+path); err != nil || now != was {
				changed = append(changed, path)
			}
		}
		slices.Sort(changed)
		if len(changed) > 0 {
			fmt.Fprintf(w, "%s is of %s, commit %s; since then have changed: %s\n", r.path(), r.Day(), r.Commit, strings.Join(changed, ", "))
		}
	}
	return nil
}

func git(args ...string) (string, error) {
	out, err := exec.Command("git", args...).Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}
