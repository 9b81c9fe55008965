package fuzz_test

import (
	"cmp"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/kit"
)

const root = "../.."

var (
	// parses matches the functions that parsers are made of.
	parses = regexp.MustCompile(`\b(json|kjson|utiljson|yaml)\.Unmarshal|\.NewDecoder\(|Endian\.Uint|binary\.(Read|Decode)\(|icmp\.ParseMessage|base64\..*Decode|regexp\.MustCompile|bufio\.NewScanner`)
	target = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)
)

// trusted are the packages whose parsers read nothing that others wrote, or only what another package has parsed.
var trusted = map[string]string{
	"pkg/cli":      "the user's arguments",
	"pkg/engine":   "journals, which only commands write",
	"pkg/failure":  "a pattern for text that it quotes",
	"pkg/firewall": "tables in the format that the kernel has checked",
	"pkg/nat":      "connections of the kernel",
	"pkg/overlay":  "notifications of the kernel",
	"pkg/diagnose": "lines that pkg/probe defines",
}

// packages returns the texts of the Go files of each package, without or with tests.
func packages(t *testing.T, tests bool) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, dir := range []string{"pkg", "agent", "cmd"} {
		kit.NoError(t, filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") != tests || strings.Contains(path, "zz_generated") {
				return err
			}
			text, err := os.ReadFile(path)
			name := strings.TrimPrefix(filepath.Dir(path), root+"/")
			out[name] += string(text)
			return err
		}))
	}
	return out
}

// targets returns the fuzz targets of each package.
func targets(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for name, text := range packages(t, true) {
		for _, m := range target.FindAllStringSubmatch(text, -1) {
			out[name] = append(out[name], m[1])
		}
	}
	return out
}

// A package that parses has a target, or reads nothing that others wrote.
func TestParsersHaveTargets(t *testing.T) {
	all := targets(t)
	kit.ErrorIf(t, len(all) < 15, "only %d packages have targets", len(all))
	parsers := packages(t, false)
	for name, text := range parsers {
		if parses.MatchString(text) && all[name] == nil && trusted[name] == "" {
			t.Errorf("package %s parses, and has neither a fuzz target nor a reason in trusted", name)
		}
	}
	for name := range trusted {
		kit.ErrorIf(t, !parses.MatchString(parsers[name]) || all[name] != nil, "package %s needs no reason in trusted", name)
	}
}

// Each target runs for a minute, or for LIQONET_TEST_FUZZTIME.
func TestFuzz(t *testing.T) {
	if !kit.Full() {
		t.Skip("make test-long-fuzz runs it")
	}
	all := targets(t)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		for _, target := range all[name] {
			t.Run(name+"/"+target, func(t *testing.T) {
				cmd := exec.CommandContext(kit.Timeout(t, 20*time.Minute), "go", "test", "-vet=off", "./"+name, "-run", "^$", "-fuzz", "^"+target+"$",
					"-fuzztime", cmp.Or(os.Getenv("LIQONET_TEST_FUZZTIME"), "60s"))
				cmd.Dir = root
				out, err := cmd.CombinedOutput()
				kit.CheckNoError(t, err, "%s", out)
			})
		}
	}
}
