package vm_test

import (
	"bytes"
	"cmp"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/vm"
)

// TestBackends runs the data plane's tests with Geneve and WireGuard in the
// kernel, or with all pairs of backends if LIQONET_TEST_BACKENDS is "all".
func TestBackends(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a virtual machine")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	tests := map[string]string{}
	for _, name := range []string{"test/dataplane", "pkg/tunnel"} {
		path := filepath.Join(t.TempDir(), "test")
		if err := vm.Build(ctx, "github.com/liqonet/liqonet/"+name, path); err != nil {
			t.Fatal(err)
		}
		tests[filepath.Base(name)] = path
	}
	var console bytes.Buffer
	results, err := vm.Run(ctx, &console, tests, "LIQONET_TEST_BACKENDS="+cmp.Or(os.Getenv("LIQONET_TEST_BACKENDS"), "kernel"))
	for _, r := range results {
		t.Run(r.Name, func(t *testing.T) {
			if r.Skipped {
				t.Skip("skipped in the virtual machine")
			}
			if !r.Passed {
				t.Error("failed in the virtual machine")
			}
		})
	}
	if err != nil {
		t.Error(err)
	}
	if len(results) == 0 {
		t.Error("no test ran")
	}
	if t.Failed() {
		t.Logf("console:\n%s", console.String())
	}
}
