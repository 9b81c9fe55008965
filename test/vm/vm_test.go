package vm_test

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/vm"
)

var seed = flag.Uint64("seed", 0, "seed for choosing the tests to run in the virtual machine; 0 for a random one")

// always are the tests with the highest requirements on the kernel.
var always = []string{"TestDataPlane", "TestKernel", "TestTunnel"}

// some returns a pattern for the tests that always run and a tenth of all others.
func some(t *testing.T, ctx context.Context, programs ...string) string {
	t.Helper()
	var others []string
	for _, program := range programs {
		out := kit.Must(exec.CommandContext(ctx, program, "-test.list", "^Test").Output())(t)
		others = append(others, slices.DeleteFunc(strings.Fields(string(out)), func(name string) bool { return slices.Contains(always, name) })...)
	}
	if *seed == 0 {
		*seed = kit.Seed()
	}
	slices.Sort(others)
	rand.New(rand.NewPCG(*seed, 0)).Shuffle(len(others), reflect.Swapper(others))
	chosen := append(others[:len(others)/10], always...)
	t.Logf("-seed %d: %d of %d tests: %v", *seed, len(chosen), len(others)+len(always), chosen)
	return "^(" + strings.Join(chosen, "|") + ")$"
}

// TestBackends runs some tests of the data plane with Geneve and WireGuard in the kernel, others each time. If
// LIQONET_TEST_BACKENDS is "all", it runs all of them with all pairs of backends.
func TestBackends(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a virtual machine")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	tests := map[string]string{}
	for _, name := range []string{"test/dataplane", "pkg/tunnel"} {
		path := filepath.Join(t.TempDir(), "test")
		kit.NoError(t, vm.Build(ctx, "github.com/liqonet/liqonet/"+name, path))
		tests[filepath.Base(name)] = path
	}
	backends, chosen := cmp.Or(os.Getenv("LIQONET_TEST_BACKENDS"), "kernel"), "."
	if backends == "kernel" {
		chosen = some(t, ctx, slices.Collect(maps.Values(tests))...)
	}
	runs(t, ctx, tests, "LIQONET_TEST_BACKENDS="+backends, "LIQONET_TEST_RUN="+chosen)
}

// TestAttacksOnGeneve tries all attacks with packets on a kernel that has Geneve.
func TestAttacksOnGeneve(t *testing.T) {
	if os.Getenv("LIQONET_TEST_BACKENDS") != "all" {
		t.Skip("make test-long-vm runs it: it takes ten minutes")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	path := filepath.Join(t.TempDir(), "test")
	kit.NoError(t, vm.Build(ctx, "github.com/liqonet/liqonet/test/attack", path))
	runs(t, ctx, map[string]string{"attack": path}, "LIQONET_TEST_FULL=1", "LIQONET_TEST_RUN=^TestAttackPackets$/^"+string(overlay.Geneve)+"$")
}

// runs runs tests in a virtual machine, and fails for each that fails there.
func runs(t *testing.T, ctx context.Context, tests map[string]string, env ...string) {
	t.Helper()
	var console bytes.Buffer
	results, err := vm.Run(ctx, &console, tests, env...)
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
