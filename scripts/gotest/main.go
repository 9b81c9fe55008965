// Program gotest runs `go test`, says in the end how long each test took, and keeps
// the result of tests that do not run with every change.
//
//	gotest [-v] [-times FILE] [-result NAME -of PATH,PATH] -- ARGUMENTS OF GO TEST
//	gotest -times FILE
//	gotest -stale
//	gotest -touched COMMIT -- PART…
//	gotest -table
//
// A result is a file docs/results/NAME.json: what was run, when, of which commit,
// with which seed, the number of tests by outcome, the figures that pages show, and
// the messages of tests that failed. It also names the state of what was tested (its packages, and -of),
// by which -stale says which results are older than that, imports included. From all results, -table
// writes docs/results/README.md, and the tables and pictures of docs/reliability.md and
// docs/limits.md. Run gotest in the top directory of the repository.
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
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/samber/lo"
)

// slowest is how many tests are shown at the end.
const slowest = 20

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
	touched := flag.String("touched", "", "list the parts, of those named, that depend on something that has changed since this commit")
	table := flag.Bool("table", false, "write the pages and pictures that show results")
	times := flag.String("times", "", "keep the times of tests in this file, or show those that it has")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch {
	case *stale:
		err = listStale(os.Stdout)
	case *touched != "":
		err = listTouched(os.Stdout, *touched, flag.Args())
	case *table:
		err = writeDocuments()
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
		// Of the state at the beginning: somebody may commit during the tests.
		if err := r.describe(of, args); err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 2 * time.Minute // until a lab is down
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
		fmt.Printf("\n%d tests took %s; the slowest:\n", len(r.Tests), r.Took())
		summarize(os.Stdout, r.Tests, slowest)
	}
	if name != "" {
		return errors.Join(err, readErr, r.write(), writeDocuments())
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
	for decoder := json.NewDecoder(f); decoder.More(); {
		var some []Test
		if err := decoder.Decode(&some); err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		all = append(all, some...)
	}
	fmt.Fprintln(w, "\nThe tests that took a tenth of a second or more, slowest first:")
	summarize(w, all, len(all))
	return os.Remove(path)
}

var (
	seedPrinted = regexp.MustCompile(`(?:-seed |LIQONET_TEST_SEED=)(\d+)`)
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
			t := Test{Package: short(e.Package), Name: e.Test, Outcome: e.Action, Seconds: e.Elapsed}
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

// summarize prints how long tests took, slowest first and at most so many, then which tests failed, and what they said last.
func summarize(w io.Writer, all []Test, most int) {
	slow := lo.Filter(all, func(t Test, _ int) bool { return !t.IsSubtest() && t.Seconds >= 0.1 })
	slices.SortStableFunc(slow, func(a, b Test) int { return cmp.Compare(b.Seconds, a.Seconds) })
	for _, t := range slow[:min(len(slow), most)] {
		fmt.Fprintf(w, "%8.1f s  %-4s  %s %s\n", t.Seconds, t.Outcome, t.Package, t.Name)
	}
	for _, t := range all {
		if t.Outcome == "fail" {
			fmt.Fprintf(w, "FAIL  %s\n", strings.Join(append([]string{t.Package + " " + t.Name}, t.Messages...), "\n      "))
		}
	}
}
