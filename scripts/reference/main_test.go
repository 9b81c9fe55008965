package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/liqonet/liqonet/test/kit"
)

// The pages in docs/reference are what the program and the definitions say now.
func TestPagesAreCurrent(t *testing.T) {
	for name, want := range kit.Must(pages())(t) {
		got := kit.Must(os.ReadFile(filepath.Join("..", "..", name)))(t)
		kit.Check(t, name+" is stale, run make generate", string(got), want)
	}
}
