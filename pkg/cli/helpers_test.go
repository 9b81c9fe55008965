package cli

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/liqonet/liqonet/pkg/output"
)

var update = flag.Bool("update", false, "write the golden files")

// golden compares output with a file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s:\n%s", file, diff)
	}
}

// isolate hides the user's kubeconfig and configuration from the test, and returns its home directory.
func isolate(t testing.TB) string {
	t.Helper()
	home := t.TempDir()
	for _, e := range os.Environ() {
		if k, _, _ := strings.Cut(e, "="); strings.HasPrefix(k, "LIQONET_") {
			t.Setenv(k, "")
		}
	}
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(home, "xdg"))
	t.Setenv("KUBECONFIG", filepath.Join(home, "none"))
	return home
}

// run runs a command line.
func run(t testing.TB, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out bytes.Buffer
	var err lockedBuffer
	code = Run(t.Context(), args, Streams{Out: &out, Err: &err})
	return code, out.String(), err.String()
}

// lockedBuffer is safe for concurrent writes, like a file.
type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

// kubeconfig writes a file with the given contexts, each as name=server. The first one is the current context.
func kubeconfig(t testing.TB, file string, contexts ...string) string {
	t.Helper()
	var clusters, list, current string
	for i, c := range contexts {
		name, server, _ := strings.Cut(c, "=")
		if i == 0 {
			current = name
		}
		if server == "" {
			server = "https://127.0.0.1:1"
		}
		clusters += "- {name: c" + name + ", cluster: {server: " + server + "}}\n"
		list += "- {name: " + name + ", context: {cluster: c" + name + ", user: u}}\n"
	}
	text := "apiVersion: v1\nkind: Config\ncurrent-context: " + current + "\nusers:\n- {name: u, user: {token: t}}\nclusters:\n" + clusters + "contexts:\n" + list
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, file, text)
	return file
}

func write(t testing.TB, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// outputOf returns --output with a value, for a command that may support more formats.
func outputOf(t *testing.T, format string, own ...string) *output.Format {
	t.Helper()
	o := output.AddFlag(pflag.NewFlagSet("", pflag.ContinueOnError), own...)
	if err := o.Set(format); err != nil {
		t.Fatal(err)
	}
	return o
}
