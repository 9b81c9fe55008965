package docs

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	declaration = regexp.MustCompile(`func (Test\w+)\(|"(TestSecurity_\w+)"`)
	mention     = regexp.MustCompile("`(Test\\w+)`")
)

// Each line of the threat model names tests that there are. What somebody cannot do has one.
func TestThreatModel(t *testing.T) {
	tests := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		raw, err := os.ReadFile(path)
		for _, m := range declaration.FindAllStringSubmatch(string(raw), -1) {
			tests[m[1]+m[2]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	const page = "docs/security.md"
	rows, named := 0, map[string]bool{}
	for line := range strings.Lines(documents(t)[page]) {
		for _, m := range mention.FindAllStringSubmatch(line, -1) {
			if named[m[1]] = true; !tests[m[1]] {
				t.Errorf("%s: there is no test %s", page, m[1])
			}
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
		if !mention.MatchString(test) && (able == "cannot" || test != "open") {
			t.Errorf("%s: no test is named: %s", page, line)
		}
	}
	if rows < 20 {
		t.Errorf("%s: only %d lines of the threat model were found", page, rows)
	}
	// Whoever adds a test of a finding says on the page what it means, by one test at least.
	numbers := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		if number, ok := strings.CutPrefix(name, "TestSecurity_"); ok {
			numbers[number[:2]] = numbers[number[:2]] || named[name]
		}
	}
	for number, isNamed := range numbers {
		if !isNamed {
			t.Errorf("%s: no test of finding %s is named", page, number)
		}
	}
}
