package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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
	if err := r.read(strings.NewReader(events), &said, false); err != nil {
		t.Fatal(err)
	}
	want := Result{
		Seed:       "42",
		Tests:      []Test{{"p", "TestGood", "pass", 1.5, nil}, {"p", "TestBad", "fail", 0.2, []string{"a_test.go:3: want more"}}},
		Benchmarks: []Benchmark{{"BenchmarkX-2", map[string]float64{"ns/op": 12, "ratio": 0.91}}, {"BenchmarkY-2", map[string]float64{"ns/op": 13}}},
	}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Error(diff)
	}
	for text, shown := range map[string]bool{"good\n": false, "bad\n": true, "cut off\n": true, "not JSON\n": true} {
		if strings.Contains(said.String(), text) != shown {
			t.Errorf("%q is shown: %v, want %v", text, !shown, shown)
		}
	}
}

// The table is what the result files say.
func TestTableIsCurrent(t *testing.T) {
	all, err := results()
	if err != nil {
		t.Fatal(err)
	}
	have, err := os.ReadFile(filepath.Join("..", "..", resultDir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(markdown(all), string(have)); diff != "" {
		t.Errorf("run `go run ./scripts/gotest -table`:\n%s", diff)
	}
	for _, name := range measuredPages {
		page, err := os.ReadFile(filepath.Join("..", "..", name))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(fill(string(page), all), string(page)); diff != "" {
			t.Errorf("run `go run ./scripts/gotest -table`:\n%s", diff)
		}
	}
	for name, draw := range images {
		if image, err := os.ReadFile(filepath.Join("..", "..", name)); err == nil && string(image) != draw(all) {
			t.Errorf("run `go run ./scripts/gotest -table`: %s is not of the last result", name)
		}
	}
}
