package cli

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/pflag"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/output"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
)

var update = flag.Bool("update", false, "write the golden files")

// golden compares output with a file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		kit.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want := kit.Must(os.ReadFile(file))(t)
	kit.Check(t, file, got, string(want))
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

// startCluster starts the API server of a cluster with one node and equal ranges, and with more objects. Its ID is "id-of-NAME".
func startCluster(t testing.TB, name string, more ...client.Object) *fakeapi.Server {
	t.Helper()
	return startNumbered(t, 0, "id-of-"+name, name, more...)
}

// startNumbered starts a cluster of an ID, whose node is in a network with the number.
func startNumbered(t testing.TB, number int, id, name string, more ...client.Object) *fakeapi.Server {
	t.Helper()
	objs := fakeapi.Objects(id, name+"-1", fmt.Sprintf("172.18.%d.11", number), "10.244.0.0/16")
	s := kit.Must(fakeapi.New(append(objs, more...)...))(t)
	t.Cleanup(s.Close)
	return s
}

// useContexts isolates the test, with a kubeconfig that has these contexts, each as name=server. It returns the home directory.
func useContexts(t testing.TB, contexts ...string) string {
	t.Helper()
	home := isolate(t)
	t.Setenv("KUBECONFIG", kubeconfig(t, filepath.Join(home, "kubeconfig"), contexts...))
	return home
}

// silentServer accepts connections and never responds.
func silentServer(t testing.TB) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(s.Close)
	t.Cleanup(s.CloseClientConnections)
	return s
}

// run runs a command line.
func run(t testing.TB, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out bytes.Buffer
	var err lockedBuffer
	code = Run(t.Context(), args, Streams{Out: &out, Err: &err})
	return code, out.String(), err.String()
}

// ended is what a command line has led to.
type ended struct {
	t              testing.TB
	line           string
	code           int
	stdout, stderr string
}

func command(t testing.TB, args ...string) ended {
	t.Helper()
	code, stdout, stderr := run(t, args...)
	return ended{t, strings.Join(args, " "), code, stdout, stderr}
}

func (o ended) is(what string, wrong bool) ended {
	o.t.Helper()
	kit.ErrorIf(o.t, wrong, "%s: want %s; exit code %d\n%s\n%s", o.line, what, o.code, o.stdout, o.stderr)
	return o
}

// ends reports another exit code.
func (o ended) ends(code int) ended {
	o.t.Helper()
	return o.is(fmt.Sprint("exit code ", code), o.code != code)
}

func (o ended) stdoutIs(want string) ended {
	o.t.Helper()
	return o.is(fmt.Sprintf("the output %q", want), o.stdout != want)
}

func (o ended) stderrIs(want string) ended {
	o.t.Helper()
	return o.is(fmt.Sprintf("the errors %q", want), o.stderr != want)
}

// prints reports what is missing in the output, and warns what is missing in the errors.
func (o ended) prints(texts ...string) ended {
	o.t.Helper()
	for _, text := range texts {
		o.is(fmt.Sprintf("output with %q", text), !strings.Contains(o.stdout, text))
	}
	return o
}

func (o ended) warns(texts ...string) ended {
	o.t.Helper()
	for _, text := range texts {
		o.is(fmt.Sprintf("errors with %q", text), !strings.Contains(o.stderr, text))
	}
	return o
}

func (o ended) stdoutLacks(text string) ended {
	o.t.Helper()
	return o.is(fmt.Sprintf("no %q in the output", text), strings.Contains(o.stdout, text))
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

// nobody is an address at which nothing listens.
const nobody = "https://127.0.0.1:1"

// kubeconfig writes a file with the given contexts, each as name=server. The first one is the current context.
func kubeconfig(t testing.TB, file string, contexts ...string) string {
	t.Helper()
	var clusters, list, current string
	for i, c := range contexts {
		name, server, _ := strings.Cut(c, "=")
		if i == 0 {
			current = name
		}
		clusters += "- {name: c" + name + ", cluster: {server: " + cmp.Or(server, nobody) + "}}\n"
		list += "- {name: " + name + ", context: {cluster: c" + name + ", user: u}}\n"
	}
	text := "apiVersion: v1\nkind: Config\ncurrent-context: " + current + "\nusers:\n- {name: u, user: {token: t}}\nclusters:\n" + clusters + "contexts:\n" + list
	write(t, file, text)
	return file
}

func write(t testing.TB, file, text string) {
	t.Helper()
	kit.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	kit.NoError(t, os.WriteFile(file, []byte(text), 0o600))
}

// outputOf returns --output with a value, for a command that may support more formats.
func outputOf(t *testing.T, format string, own ...string) *output.Format {
	t.Helper()
	o := output.AddFlag(pflag.NewFlagSet("", pflag.ContinueOnError), own...)
	kit.NoError(t, o.Set(format))
	return o
}
