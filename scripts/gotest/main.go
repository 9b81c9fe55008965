// Program gotest runs `go test`, says in the end how long each test took, and keeps
// the result of tests that do not run with every change.
//
//	gotest [-v] [-times FILE] [-result NAME -of PATH,PATH] -- ARGUMENTS OF GO TEST
//	gotest -times FILE
//	gotest -stale
//	gotest -table
//
// A result is a file docs/results/NAME.json: what was run, when, of which commit,
// with which seed, and the outcome of each test. It also names the state of what
// was tested (-of), by which -stale says which results are older than that. From all
// results -table writes docs/results/README.md, and the tables and pictures of docs/reliability.md and docs/limits.md.
//
// With -times the times of tests are added to a file; without arguments of go test,
// all that are in it are shown, and the file is removed.
package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// resultDir is where results are, in the repository.
const resultDir = "docs/results"

// slowest is how many tests are shown at the end.
const slowest = 20

// Result is what a result file holds.
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
	Of         map[string]string `json:"of"`
	Tests      []Test            `json:"tests,omitempty"`
	Benchmarks []Benchmark       `json:"benchmarks,omitempty"`
}

// Test is the outcome of one test: "pass", "fail" or "skip".
type Test struct {
	Package string  `json:"package"`
	Name    string  `json:"name"`
	Outcome string  `json:"outcome"`
	Seconds float64 `json:"seconds"`
	// Messages are the last ones of a test that failed, a line of each.
	Messages []string `json:"messages,omitempty"`
}

// Benchmark is what one benchmark has measured, by unit.
type Benchmark struct {
	Name    string             `json:"name"`
	Metrics map[string]float64 `json:"metrics"`
}

// event is a line of `go test -json`, see `go doc test2json`.
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

func main() {
	verbose := flag.Bool("v", false, "print what tests print as they print it, not only if they fail")
	name := flag.String("result", "", "keep the result by this name")
	of := flag.String("of", "", "what the result is about: paths in the repository, with commas between")
	stale := flag.Bool("stale", false, "list the results that are older than what they are about")
	table := flag.Bool("table", false, "write "+resultDir+"/README.md")
	times := flag.String("times", "", "keep the times of tests in this file, or show those that it has")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch {
	case *stale:
		err = listStale(os.Stdout)
	case *table:
		err = writeTable()
	case flag.NArg() == 0 && *times != "":
		err = showTimes(*times, os.Stdout)
	default:
		err = run(ctx, flag.Args(), *verbose, *name, *of, *times)
	}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		os.Exit(max(exit.ExitCode(), 1)) // the tests have said why
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, verbose bool, name, of, times string) error {
	r := Result{Name: name, Command: "go test " + strings.Join(args, " "), Date: time.Now().UTC().Truncate(time.Second), Outcome: "pass"}
	if name != "" {
		// Of the state at the beginning: somebody may commit meanwhile.
		if err := r.describe(of); err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 2 * time.Minute // a lab is taken down meanwhile
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("run go test: %w", err)
	}
	readErr := r.read(out, os.Stdout, verbose)
	err = cmd.Wait()
	r.Seconds = time.Since(start).Round(time.Second).Seconds()
	if err != nil {
		r.Outcome = "fail"
	}
	if times != "" {
		readErr = errors.Join(readErr, r.keepTimes(times))
	} else {
		fmt.Printf("\n%d tests took %s; the slowest:\n", len(r.Tests), time.Duration(r.Seconds)*time.Second)
		printTimes(os.Stdout, r.Tests, slowest)
		printFailed(os.Stdout, r.Tests)
	}
	if name != "" {
		return errors.Join(err, readErr, r.write())
	}
	return errors.Join(err, readErr)
}

// keepTimes adds the times of tests to a file.
func (r *Result) keepTimes(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(json.NewEncoder(f).Encode(r.Tests), f.Close())
}

// showTimes shows the times of tests that a file has, and removes it.
func showTimes(path string, w io.Writer) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var all []Test
	for decoder := json.NewDecoder(f); ; {
		var some []Test
		if err := decoder.Decode(&some); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		all = append(all, some...)
	}
	fmt.Fprintln(w, "\nThe tests that took a tenth of a second or more, slowest first:")
	printTimes(w, all, len(all))
	printFailed(w, all)
	return os.Remove(path)
}

var (
	seedPrinted = regexp.MustCompile(`-seed (\d+)`)
	message     = regexp.MustCompile(`(?m)^ {4}\w+\.go:\d+: .+$`)
	benchmarked = regexp.MustCompile(`^(Benchmark\S*)\s+\d+\s+(\S.*)$`)
)

// read takes the events of go test, and prints what go test prints without -json.
func (r *Result) read(events io.Reader, print io.Writer, verbose bool) error {
	printed := map[string]string{} // of tests that have not ended
	begun := map[string]string{}   // by package, the line that has not ended: a benchmark's name comes long before its values
	lines := bufio.NewScanner(events)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			fmt.Fprintln(print, lines.Text()) // not of a test: what the compiler says
			continue
		}
		key := e.Package + " " + e.Test
		switch e.Action {
		case "output", "build-output":
			if m := seedPrinted.FindStringSubmatch(e.Output); m != nil && r.Seed == "" {
				r.Seed = m[1]
			}
			if begun[e.Package] += e.Output; strings.HasSuffix(e.Output, "\n") {
				if m := benchmarked.FindStringSubmatch(strings.TrimSpace(begun[e.Package])); m != nil {
					r.Benchmarks = append(r.Benchmarks, Benchmark{m[1], metrics(m[2])})
				}
				delete(begun, e.Package)
			}
			printed[key] += e.Output
			if verbose || e.Test == "" && e.Output != "PASS\n" && !strings.HasSuffix(e.Output, "[no test files]\n") {
				fmt.Fprint(print, e.Output)
			}
		case "pass", "fail", "skip":
			t := Test{Package: e.Package, Name: e.Test, Outcome: e.Action, Seconds: e.Elapsed}
			if e.Action == "fail" && e.Test != "" {
				t.Messages = messages(printed[key])
				if !verbose {
					fmt.Fprint(print, printed[key])
				}
			}
			delete(printed, key)
			if e.Test != "" {
				r.Tests = append(r.Tests, t)
			}
		}
	}
	// Tests that did not end, as those of a process that has.
	for key, text := range printed {
		if !verbose && !strings.HasSuffix(key, " ") {
			fmt.Fprint(print, text)
		}
	}
	return lines.Err()
}

// messages are the first lines of the last messages in what a test has printed.
func messages(output string) (out []string) {
	const most, longest = 5, 400
	for _, m := range message.FindAllString(output, -1) {
		out = append(out, strings.TrimSpace(m[:min(len(m), longest)]))
	}
	return out[max(len(out)-most, 0):]
}

// metrics reads "1.2 unit 3 other-unit".
func metrics(text string) map[string]float64 {
	out := map[string]float64{}
	fields := strings.Fields(text)
	for i := 0; i+1 < len(fields); i += 2 {
		if value, err := strconv.ParseFloat(fields[i], 64); err == nil {
			out[fields[i+1]] = value
		}
	}
	return out
}

// printFailed prints which tests failed, and what they said last.
func printFailed(w io.Writer, all []Test) {
	for _, t := range all {
		if t.Outcome == "fail" {
			fmt.Fprintf(w, "FAIL  %s %s\n", short(t.Package), t.Name)
			for _, m := range t.Messages {
				fmt.Fprintf(w, "      %s\n", m)
			}
		}
	}
}

// printTimes prints how long tests took, slowest first, and at most so many.
func printTimes(w io.Writer, all []Test, most int) {
	tests := slices.DeleteFunc(slices.Clone(all), func(t Test) bool { return strings.Contains(t.Name, "/") || t.Seconds < 0.1 })
	slices.SortStableFunc(tests, func(a, b Test) int { return cmp.Compare(b.Seconds, a.Seconds) })
	for _, t := range tests[:min(len(tests), most)] {
		fmt.Fprintf(w, "%8.1f s  %-4s  %s %s\n", t.Seconds, t.Outcome, short(t.Package), t.Name)
	}
}

// short is a package without the module.
func short(pkg string) string {
	return strings.TrimPrefix(pkg, "github.com/liqonet/liqonet/")
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

func (r *Result) write() error {
	top, err := git("rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	raw, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(top, resultDir), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(top, resultDir, r.Name+".json"), append(raw, '\n'), 0o644); err != nil {
		return err
	}
	return writeTable()
}

// results reads all result files, by name.
func results() ([]Result, error) {
	top, err := git("rev-parse", "--show-toplevel")
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(top, resultDir, "*.json"))
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
			fmt.Fprintf(w, "%s/%s.json is of %s, commit %s; since then have changed: %s\n", resultDir, r.Name, r.Date.Format(time.DateOnly), r.Commit, strings.Join(changed, ", "))
		}
	}
	return nil
}

// writeTable writes what people read of the results.
func writeTable() error {
	all, err := results()
	if err != nil {
		return err
	}
	top, err := git("rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	for _, name := range measuredPages {
		page := filepath.Join(top, name)
		text, err := os.ReadFile(page)
		if err != nil {
			return err
		}
		if err := os.WriteFile(page, []byte(fill(string(text), all)), 0o644); err != nil {
			return err
		}
	}
	for name, draw := range images {
		if image := draw(all); image != "" {
			if err := os.WriteFile(filepath.Join(top, name), []byte(image), 0o644); err != nil {
				return err
			}
		}
	}
	return os.WriteFile(filepath.Join(top, resultDir, "README.md"), []byte(markdown(all)), 0o644)
}

// measuredPages have tables of what benchmarks measured: one after each comment that names a result, the benchmark, and the
// columns: parts of its name, by their number after a slash, and units, each with a title. Of a part such as nodes=100-2, where
// the last number is that of processors, it is the value.
var measuredPages = []string{"docs/reliability.md", "docs/limits.md"}

// images are pictures of results, by file, and what draws them: nothing where there is no result.
var images = map[string]func([]Result) string{distributionImage: distribution, growthImage: growth}

var measured = regexp.MustCompile(`(?s)(<!-- results of (\w+), (Benchmark\w+): (.*?) -->\n).*?(<!-- end -->)`)

// fill writes the tables of a page anew.
func fill(page string, all []Result) string {
	return measured.ReplaceAllStringFunc(page, func(found string) string {
		m := measured.FindStringSubmatch(found)
		i := slices.IndexFunc(all, func(r Result) bool { return r.Name == m[2] })
		if i < 0 {
			return found
		}
		var columns, titles []string
		for _, column := range strings.Split(m[4], ", ") {
			key, title, _ := strings.Cut(column, "=")
			columns, titles = append(columns, key), append(titles, title)
		}
		var b strings.Builder
		fmt.Fprintf(&b, "%s| %s |\n|%s\n", m[1], strings.Join(titles, " | "), strings.Repeat("---|", len(titles)))
		for _, mark := range all[i].Benchmarks {
			if name := strings.Split(strings.ReplaceAll(mark.Name, "-", " "), "/"); name[0] == m[3] {
				fmt.Fprintf(&b, "| %s |\n", strings.Join(mark.row(name, columns), " | "))
			}
		}
		fmt.Fprintf(&b, "\nOf %s, commit %s.\n\n%s", all[i].Date.Format(time.DateOnly), all[i].Commit, m[5])
		return b.String()
	})
}

// row has a value for each column.
func (b Benchmark) row(name, columns []string) (out []string) {
	for _, column := range columns {
		value := fmt.Sprintf("%g", b.Metrics[column])
		if part, ok := strings.CutPrefix(column, "/"); ok {
			value = ""
			if n, err := strconv.Atoi(part); err == nil && n < len(name) {
				value = name[n]
			}
			if _, number, ok := strings.Cut(value, "="); ok {
				value, _, _ = strings.Cut(number, " ")
			}
		}
		out = append(out, value)
	}
	return out
}

const introduction = `# Results of the long tests

Written by ` + "`make test-long`" + ` and ` + "`make bench`" + `, not by hand. ` + "`make test`" + ` says which of them are older than what they test.
`

func markdown(all []Result) string {
	var b strings.Builder
	b.WriteString(introduction)
	if len(all) > 0 {
		b.WriteString("\n| part | outcome | tests | time | date | commit | seed |\n|---|---|---|---|---|---|---|\n")
	}
	for _, r := range all {
		commit := r.Commit
		if r.Dirty {
			commit += ", changed"
		}
		fmt.Fprintf(&b, "| %s | %s | %d | %s | %s | %s | %s |\n", r.Name, r.Outcome, len(r.Tests)+len(r.Benchmarks),
			(time.Duration(r.Seconds) * time.Second).String(), r.Date.Format(time.DateOnly), commit, cmp.Or(r.Seed, "-"))
	}
	for _, r := range all {
		fmt.Fprintf(&b, "\n## %s\n\n`%s`\n", r.Name, r.Command)
		if len(r.Tests) > 0 {
			b.WriteString("\n| test | outcome | seconds |\n|---|---|---|\n")
		}
		for _, t := range r.Tests {
			if !strings.Contains(t.Name, "/") {
				fmt.Fprintf(&b, "| %s %s | %s | %.1f |\n", short(t.Package), t.Name, t.Outcome, t.Seconds)
			}
		}
		if len(r.Benchmarks) > 0 {
			b.WriteString("\n| benchmark | measured |\n|---|---|\n")
		}
		for _, m := range r.Benchmarks {
			if strings.HasPrefix(m.Name, distributed+"/") {
				continue // it is drawn
			}
			var values []string
			for unit, value := range m.Metrics {
				if unit != "ns/op" { // of one round, which says nothing
					values = append(values, fmt.Sprintf("%g %s", value, unit))
				}
			}
			slices.Sort(values)
			fmt.Fprintf(&b, "| %s | %s |\n", m.Name, strings.Join(values, ", "))
		}
	}
	return b.String()
}

func git(args ...string) (string, error) {
	out, err := exec.Command("git", args...).Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}
