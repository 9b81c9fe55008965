package main

import (
	"bufio"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/liqonet/liqonet/pkg/cli"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// closedPipe returns a pipe whose reader has ended, as in `command | true`.
func closedPipe(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	kit.NoError(t, err)
	kit.NoError(t, r.Close())
	t.Cleanup(func() { _ = w.Close() })
	return w
}

// A command whose output cannot be written ends with another exit code than 0, and without a panic. Commands that change something do that
// nevertheless, and say so, as nobody has read their result.
func TestOutputIsLost(t *testing.T) {
	kit.Slow(t)
	reading := strings.Split("--help|version|version -o json|completion bash|status a b|status a b -o wide|status a -o json|status a -o yaml|status a -o name|"+
		"status a -o custom-columns=PEER:.peer|status a --history|status a --history -o json|status a --watch|status a --watch -o json|status a --wait|graph a|graph a -o dot|"+
		"doctor a b --objects-only|doctor a b --objects-only -o json|doctor a b --objects-only -o yaml|doctor a b --objects-only -o junit|map a b 10.244.1.7|"+
		"peer a b --dry-run|peer a b --dry-run -o json|peer a b --dry-run -o yaml|upgrade a --dry-run|upgrade a --dry-run -o json|unpeer a b --dry-run|unpeer a b --dry-run -o yaml", "|")
	changing := strings.Split("peer a b|peer a b -o json|rotate-keys a b|rotate-keys a b -o yaml|upgrade a b|upgrade a b -o json|expose-host a b 192.168.1.50|expose-host a b 192.168.1.50 --remove|"+
		"doctor a b --objects-only --fix|unpeer a b", "|")
	for _, where := range []string{"a full disk", "a closed pipe"} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			before := w.objects()
			try := func(line string, changes bool) {
				t.Helper()
				if where == "a full disk" {
					w.stdout = kit.Must(os.OpenFile("/dev/full", os.O_WRONLY, 0))(t)
				} else {
					w.stdout = closedPipe(t)
				}
				out := w.run(t, strings.Fields(line)...)
				w.stdout = nil
				says := map[string]string{"a full disk": "no space left on device", "a closed pipe": "broken pipe"}[where]
				wrong := out.code != cli.ExitUnexpected
				if changes {
					says += "; the command itself has ended without an error"
				}
				if changes || where == "a full disk" {
					wrong = wrong || strings.Count(out.stderr, "Error: ") != 1 || !strings.Contains(out.stderr, says+"\n")
				} else {
					wrong = wrong || strings.Contains(out.stderr, "Error: ")
				}
				kit.ErrorIf(t, wrong, "%s: exit code %d\n%s", line, out.code, out.stderr)
			}
			try(changing[0], true)
			for _, line := range kubetest.Some(t, slices.Clone(reading), 8, len(reading)) {
				try(line, false)
			}
			for _, line := range changing {
				try(line, true)
				if line == "expose-host a b 192.168.1.50" {
					try("expose-host a b --list", false)
				}
			}
			kit.Check(t, "objects", w.objects(), before)
		})
	}
}

// The reason for which a command failed is printed even if its output cannot be written.
func TestFailureWithLostOutput(t *testing.T) {
	kit.Slow(t)
	w := newWorld(t)
	w.fronts[1].Close()
	for _, line := range []string{"peer a b -o json", "peer a b", "status b -o json"} {
		w.stdout = closedPipe(t)
		out := w.run(t, strings.Fields(line)...)
		kit.ErrorIf(t, out.code != cli.ExitUnreachable || !strings.Contains(out.stderr, `cluster "b": read its ID`), "%s: exit code %d\n%s", line, out.code, out.stderr)
	}
}

// A watch ends when its reader does, even if there is nothing more to print.
func TestWatchEndsWithItsReader(t *testing.T) {
	kit.Slow(t)
	for _, line := range []string{"status a --watch", "status a --watch -o json"} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.succeeds(t, "peer", "a", "b")
			r, stdout, err := os.Pipe()
			kit.NoError(t, err)
			w.stdout = stdout
			wait := w.start(t, 0, 0, changes, strings.Fields(line)...)
			kit.NoError(t, stdout.Close())
			first := kit.Must(bufio.NewReader(r).ReadString('\n'))(t)
			kit.NoError(t, r.Close())
			over := make(chan ended, 1)
			go func() { over <- wait() }()
			select {
			case out := <-over:
				kit.ErrorIf(t, out.code != cli.ExitUnexpected || out.stderr != "", "exit code %d\n%s", out.code, out.stderr)
			case <-time.After(20 * time.Second):
				kit.NoError(t, w.command.Process.Kill())
				t.Fatalf("it still runs after its reader has ended, having read %q", first)
			}
		})
	}
}
