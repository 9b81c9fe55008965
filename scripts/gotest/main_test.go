package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/liqonet/liqonet/test/kit"
)

// What go test says becomes a result; what a test prints is shown only if it failed.
func TestRead(t *testing.T) {
	const events = `{"Action":"output","Package":"p","Output":"random choices by -seed 42\n"}
{"Action":"output","Package":"p","Test":"TestGood","Output":"good\n"}
{"Action":"pass","Package":"p","Test":"TestGood","Elapsed":1.5}
{"Action":"output","Package":"p","Test":"TestBad","Output":"bad\n"}
{"Action":"output","Package":"p","Test":"TestBad","Output":"    a_test.go:3: want more\n        than this\n"}
{"Action":"fail","Package":"p","Test":"TestBad","Elapsed":0.2}
{"Action":"output","Package":"p","Test":"BenchmarkX","Output":"BenchmarkX-2  \t 1\t 12 ns/op\t 0.91 ratio\n"}
{"Action":"output","Package":"p","Test":"BenchmarkY","Output":"BenchmarkY-2  \t"}
{"Action":"output","Package":"q","Test":"TestZ","Output":"=== RUN   TestZ\n"}
{"Action":"output","Package":"p","Test":"BenchmarkY","Output":" 1\t 13 ns/op\n"}
{"Action":"output","Package":"p","Test":"TestCut","Output":"cut off\n"}
{"Action":"fail","Package":"p","Elapsed":2}
not JSON
`
	var r Result
	var said strings.Builder
	kit.NoError(t, r.read(strings.NewReader(events), &said, false))
	want := Result{
		Seed:       "42",
		Tests:      []Test{{"p", "TestGood", "pass", 1.5, nil}, {"p", "TestBad", "fail", 0.2, []string{"a_test.go:3: want more"}}},
		Benchmarks: []Benchmark{{"BenchmarkX-2", map[string]float64{"ns/op": 12, "ratio": 0.91}}, {"BenchmarkY-2", map[string]float64{"ns/op": 13}}},
	}
	kit.Check(t, "result", r, want)
	for text, shown := range map[string]bool{"good\n": false, "bad\n": true, "cut off\n": true, "not JSON\n": true} {
		if strings.Contains(said.String(), text) != shown {
			t.Errorf("%q is shown: %v, want %v", text, !shown, shown)
		}
	}
}

// A result file keeps a line for each test that is not a subtest, and for each test that failed.
func TestResultFile(t *testing.T) {
	r := Result{
		Name: "n",
		Tests: []Test{
			{"pkg/p", "TestGood/case", "pass", 0.5, nil},
			{"pkg/p", "TestGood", "pass", 1.5, nil},
			{"pkg/p", "TestBad/case", "fail", 0.2, []string{"a_test.go:3: want more", "a_test.go:4: and this"}},
			{"pkg/p", "TestBad", "fail", 0.3, nil},
		},
		Benchmarks: []Benchmark{{"BenchmarkX-2", map[string]float64{"ns/op": 12, "ratio": 0.91}}},
	}
	want := r
	want.Count = map[string]int{"pass": 2, "fail": 2}
	want.Tests = slices.Clone(r.Tests[1:])
	want.Benchmarks = []Benchmark{{"BenchmarkX-2", map[string]float64{"ratio": 0.91}}}

	r.condense()
	text := kit.Must(r.encode())(t)
	var have Result
	kit.NoError(t, json.Unmarshal(text, &have))
	kit.Check(t, "result", have, want)
	if line := `"pass 1.5 s pkg/p TestGood"`; !strings.Contains(string(text), line) {
		t.Errorf("no %s in\n%s", line, text)
	}
}

// Pages and pictures show what the result files say, and result files have the current form.
func TestDocumentsAreCurrent(t *testing.T) {
	t.Chdir(filepath.Join("..", ".."))
	all := kit.Must(results())(t)
	files := kit.Must(documents(all))(t)
	for _, r := range all {
		text := kit.Must(r.encode())(t)
		files[r.path()] = string(text)
	}
	for path, want := range files {
		have := kit.Must(os.ReadFile(path))(t)
		kit.Check(t, path+": run `go run ./scripts/gotest -table`", string(have), want)
	}
}

// A result covers what its packages import, also indirectly, the tests of these packages only, and programs with all
// that they import.
func TestCoverage(t *testing.T) {
	t.Chdir(filepath.Join("..", ".."))
	paths := kit.Must(coverage([]string{"agent", "Makefile"}, []string{"-count=1", "-run", "x", "./pkg/ipam"}))(t)
	for path, want := range map[string]bool{
		"pkg/ipam" + withTests: true, "test/kit": true, "pkg/api/v1alpha1": true, "Makefile": true, "go.sum": true,
		"agent/gateway": true, "pkg/liveness": true, "agent/gateway" + withTests: false, "pkg/cli": false, "test/e2e": false,
	} {
		if slices.Contains(paths, path) != want {
			t.Errorf("%s is covered: %v, want %v", path, !want, want)
		}
	}
}

// A result is stale if something that it covers has changed, not if only tests of what it imports have, or another
// package below it.
func TestStale(t *testing.T) {
	t.Chdir(t.TempDir())
	commit := func(files map[string]string) string {
		for path, text := range files {
			kit.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			kit.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		}
		kit.Must(git("add", "-A"))(t)
		kit.Must(git("-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "m"))(t)
		return kit.Must(git("rev-parse", "HEAD"))(t)
	}
	kit.Must(git("init", "-q"))(t)
	first := commit(map[string]string{
		"p/a.go": "1", "p/a_test.go": "1", "p/testdata/x": "1", "p/crds/x": "1", "p/sub/b.go": "1", "t/t.go": "1", "t/t_test.go": "1", "t/testdata/x": "1", "f": "1",
	})
	r := Result{Name: "n", Of: map[string]string{"p": "", "t" + withTests: "", "f": ""}}
	for path := range r.Of {
		r.Of[path] = kit.Must(contentHash("HEAD", path))(t)
	}
	raw := kit.Must(r.encode())(t)
	base := first
	for _, step := range []struct {
		path string
		want string
	}{
		{"p/a_test.go", ""},
		{"p/testdata/x", ""},
		{"p/sub/b.go", ""},
		{"q/c.go", ""},
		{"p/a.go", "p"},
		{"p/crds/x", "p"},
		{"t/t_test.go", "t" + withTests},
		{"t/testdata/x", "t" + withTests},
		{"f", "f"},
	} {
		now := commit(map[string]string{step.path: "changed"})
		kit.Check(t, step.path, strings.Join(r.changedPaths(base), ","), step.want)
		base = now
	}
	kit.Check(t, "since the result", strings.Join(r.changedPaths(""), ","), "f,p,t"+withTests)
	kit.NoError(t, os.MkdirAll(resultDir, 0o755))
	kit.NoError(t, os.WriteFile(r.path(), raw, 0o644))
	for since, want := range map[string]string{first: "n\nnone\n", base: "none\n"} {
		var out strings.Builder
		kit.NoError(t, listTouched(&out, since, []string{"n", "none"}))
		kit.Check(t, "touched", out.String(), want)
	}
	kit.ErrorIf(t, listTouched(&strings.Builder{}, "nonsense", nil) == nil, "there is no such commit")
}
