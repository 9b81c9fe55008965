package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/liqonet/liqonet/test/kit"
)

var (
	declaration = regexp.MustCompile(`func (Test\w+)\(`)
	mention     = regexp.MustCompile("`(Test\\w+)`")
)

// tests are the names of all tests.
func tests(t *testing.T) map[string]bool {
	t.Helper()
	tests := map[string]bool{}
	kit.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		raw, err := os.ReadFile(path)
		for _, m := range declaration.FindAllStringSubmatch(string(raw), -1) {
			tests[m[1]] = true
		}
		return err
	}))
	return tests
}

// Each line of the threat model names tests that there are. What somebody cannot do has one.
func TestThreatModel(t *testing.T) {
	tests := tests(t)
	const page = "docs/security.md"
	rows := 0
	for line := range strings.Lines(documents(t)[page]) {
		for _, m := range mention.FindAllStringSubmatch(line, -1) {
			kit.ErrorIf(t, !tests[m[1]], "%s: there is no test %s", page, m[1])
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 3 {
			continue
		}
		able, test := strings.TrimSpace(cells[0]), strings.TrimSpace(cells[2])
		if able != "can" && able != "cannot" {
			continue
		}
		rows++
		kit.ErrorIf(t, !mention.MatchString(test) && (able == "cannot" || test != "open"), "%s: no test is named: %s", page, line)
	}
	kit.ErrorIf(t, rows < 20, "%s: only %d lines of the threat model were found", page, rows)
}
