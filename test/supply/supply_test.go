package supply

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/kit"
)

const root = "../.."

// runMake runs make, and returns all that it prints.
func runMake(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "make", append([]string{"--no-print-directory"}, args...)...)
	cmd.Dir, cmd.Env = root, environment()
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// environment is this program's, without what a make that runs it says to others.
func environment(more ...string) []string {
	return append(slices.DeleteFunc(os.Environ(), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return strings.HasPrefix(name, "MAKE") || slices.Contains([]string{"MFLAGS", "GOFLAGS", "VERSION", "IMAGE"}, name)
	}), more...)
}

// The database of the test has two entries. One is of a function that we call, the other
// of one next to it that nobody calls.
func TestPlantedVulnerabilityIsFound(t *testing.T) {
	database := kit.Must(filepath.Abs("testdata/vulndb"))(t)
	// One small package: all of them take a minute.
	out, err := runMake(t.Context(), "vuln", "VULNDB=file://"+database, "PACKAGES=./pkg/link")
	for _, want := range []string{
		"GO-2026-90001", "link.Open calls netlink.NewHandle", "Your code is affected by 1 vulnerability",
		"also found 1 vulnerability in packages you import", "Error 3",
	} {
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("%v, and no %q in:\n%s", err, want, out)
		}
	}
	if strings.Contains(out, "GO-2026-90002") {
		t.Errorf("what nobody calls is reported:\n%s", out)
	}
}

// A check without a database is no check that found nothing.
func TestNoDatabase(t *testing.T) {
	out, err := runMake(t.Context(), "vuln", "VULNDB=file://"+t.TempDir()+"/none", "PACKAGES=./pkg/link")
	if err == nil || !strings.Contains(out, "VULNDB=file:///") || strings.Contains(out, "Error 3") {
		t.Errorf("%v:\n%s", err, out)
	}
}

// buildTimeout is for compiling everything from nothing on a busy machine.
const buildTimeout = 50 * time.Minute

// Two builds of the same sources give the same bytes: in other directories, with files of
// other times, with another umask, in a repository and without one, and by a compiler
// that finds nothing in its cache.
func TestTwoBuildsAreEqual(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles everything: make test-long-supply")
	}
	ctx, cancel := context.WithTimeout(t.Context(), buildTimeout)
	defer cancel()
	dir := t.TempDir()
	// build returns the hashes of what is in bin.
	build := func(name, prepare string, env ...string) map[string]string {
		t.Helper()
		copied := filepath.Join(dir, name)
		script := `set -e; mkdir -p "$1"
			cp -r --parents go.mod go.sum Makefile LICENSE agent cmd pkg scripts test/lab/image "$1"
			cd "$1"; ` + prepare + `
			make --no-print-directory image VERSION=v0.0.0-test; sha256sum bin/*`
		cmd := exec.CommandContext(ctx, "sh", "-c", script, "sh", copied)
		cmd.Dir, cmd.Env = root, environment(env...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		hashes := map[string]string{}
		for line := range strings.Lines(string(out)) {
			if f := strings.Fields(line); len(f) == 2 && strings.HasPrefix(f[1], "bin/") {
				hashes[f[1]] = f[0]
			}
			if strings.Contains(line, "@sha256:") {
				hashes["image"] = line
			}
		}
		return hashes
	}
	first := build("a", "git init -q; git add .; git -c user.name=t -c user.email=t@example.org commit -q -m t", "GOFLAGS=-buildvcs=true")
	second := build("another/place", "find . -exec touch -d 1990-01-01 {} +; umask 077", "GOCACHE="+filepath.Join(dir, "cache"))
	for _, name := range []string{"bin/liqonetctl", "bin/liqonet-agent", "bin/liqonet-agent.tar", "bin/LICENSES", "image"} {
		if first[name] == "" {
			t.Errorf("%s was not made: %v", name, first)
		}
	}
	kit.Check(t, "hashes", second, first)
}
