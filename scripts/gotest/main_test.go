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
