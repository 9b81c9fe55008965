package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/cli"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// commandEnv makes this program run the command instead of the tests.
const commandEnv = "CLI_TEST_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(commandEnv) != "" {
		main()
	}
	os.Exit(m.Run())
}

// world are the clusters a and b, and one command at a time.
type world struct {
	clusters   [2]*fakeapi.Server
	fronts     [2]*httptest.Server
	kubeconfig string
	// stdout of the command is kept unless this is set.
	stdout *os.File

	mu      sync.Mutex
	command *exec.Cmd
	// signal is sent after the write of this number, which was done, before the command knows. Only requests that count have a number.
	signal syscall.Signal
	at     int
	counts func(*http.Request) bool
	// writes is how many there were. reached is closed after the signal. Then requests wait for stalled, unless that is nil.
	writes  int
	reached chan struct{}
	stalled chan struct{}
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	clusters, contexts := "", ""
	for i, name := range []string{"a", "b"} {
		objs := fakeapi.Objects(fmt.Sprintf("%08d-id-of-%s", i, name), name+"-1", fmt.Sprintf("172.18.%d.11", i), "10.244.0.0/16")
		w.clusters[i] = kit.Must(fakeapi.New(objs...))(t)
		t.Cleanup(w.clusters[i].Close)
		front := httptest.NewServer(w.between(w.clusters[i]))
		w.fronts[i] = front
		t.Cleanup(front.Close)
		t.Cleanup(front.CloseClientConnections)
		clusters += fmt.Sprintf("- {name: %s, cluster: {server: %q}}\n", name, front.URL)
		contexts += fmt.Sprintf("- {name: %s, context: {cluster: %s, user: u}}\n", name, name)
	}
	text := "apiVersion: v1\nkind: Config\ncurrent-context: a\nusers:\n- {name: u, user: {token: t}}\nclusters:\n" + clusters + "contexts:\n" + contexts
	kit.NoError(t, os.WriteFile(w.kubeconfig, []byte(text), 0o600))
	return w
}

// between passes requests on, and sends the signal.
func (w *world) between(api http.Handler) http.Handler {
	return http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if w.stall(r); r.URL.Query().Has("watch") {
			api.ServeHTTP(out, r)
			return
		}
		answer := httptest.NewRecorder()
		api.ServeHTTP(answer, r)
		w.count(r)
		maps.Copy(out.Header(), answer.Header())
		out.WriteHeader(answer.Code)
		_, _ = out.Write(answer.Body.Bytes()) // the command may have ended
	})
}

// stall holds up requests after the signal.
func (w *world) stall(r *http.Request) {
	w.mu.Lock()
	reached, stalled := w.reached, w.stalled
	w.mu.Unlock()
	select {
	case <-reached:
	default:
		return
	}
	if stalled != nil {
		select {
		case <-stalled:
		case <-r.Context().Done():
		}
	}
}

func (w *world) count(r *http.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.counts(r) {
		if w.writes++; w.writes == w.at {
			_ = w.command.Process.Signal(w.signal) // it may have ended
			close(w.reached)
		}
	}
}

// changes counts writes, except those of locks.
func changes(r *http.Request) bool {
	return r.Method != http.MethodGet && !r.URL.Query().Has("dryRun") && !strings.HasSuffix(r.URL.Path, "reviews") && !strings.Contains(r.URL.Path, "/kube-system/leases")
}

// startsPods counts the Jobs that are created.
func startsPods(r *http.Request) bool {
	return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/jobs")
}

// ended is what a command has led to.
type ended struct {
	code           int
	stdout, stderr string
}

// start starts a command that gets a signal after a write of this number, 0 for none.
func (w *world) start(t *testing.T, signal syscall.Signal, at int, counts func(*http.Request) bool, args ...string) (wait func() ended) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = []string{commandEnv + "=1", "HOME=" + t.TempDir(), "KUBECONFIG=" + w.kubeconfig}
	var stdout, stderr bytes.Buffer
	if cmd.Stdout, cmd.Stderr = &stdout, &stderr; w.stdout != nil {
		cmd.Stdout = w.stdout
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.command, w.signal, w.at, w.counts, w.writes, w.reached = cmd, signal, at, counts, 0, make(chan struct{})
	kit.NoError(t, cmd.Start())
	return func() ended {
		err := cmd.Wait()
		if e := (*exec.ExitError)(nil); err != nil && !errors.As(err, &e) {
			t.Fatal(err)
		}
		kit.ErrorIf(t, strings.Contains(stderr.String(), "goroutine "), "a panic:\n%s", stderr.String())
		return ended{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
	}
}

func (w *world) run(t *testing.T, args ...string) ended {
	t.Helper()
	return w.start(t, 0, 0, changes, args...)()
}

func (w *world) succeeds(t *testing.T, args ...string) {
	t.Helper()
	out := w.run(t, args...)
	kit.FatalIf(t, out.code != cli.ExitOK, "%v: exit code %d\n%s%s", args, out.code, out.stdout, out.stderr)
}

// objects lists all objects of both clusters, except Events.
func (w *world) objects() []string {
	var out []string
	for i, c := range w.clusters {
		c.Client.Each(func(obj metav1.Object) {
			if kind := fmt.Sprintf("%T", obj); kind != "*v1.Event" {
				out = append(out, fmt.Sprintf("%d %s %s/%s", i, kind, obj.GetNamespace(), obj.GetName()))
			}
		})
	}
	slices.Sort(out)
	return out
}

// signals are those that interrupt a command.
var signals = []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}

// A command that gets a signal after any of its writes ends with the documented exit code, and says so. Until then, peer has rolled back, and
// what the others leave works, and is completed or removed by the next command.
func TestSignals(t *testing.T) {
	kit.Slow(t)
	for name, command := range map[string]struct {
		args   []string
		peered bool
		again  [][]string
	}{
		"peer":                  {args: []string{"peer", "a", "b"}},
		"unpeer":                {[]string{"unpeer", "a", "b"}, true, [][]string{{"unpeer", "a", "b"}}},
		"unpeer, and then peer": {[]string{"unpeer", "a", "b"}, true, [][]string{{"peer", "a", "b"}, {"status", "a", "b"}, {"unpeer", "a", "b"}}},
		"rotate-keys":           {[]string{"rotate-keys", "a", "b"}, true, [][]string{{"status", "a", "b"}, {"rotate-keys", "a", "b"}, {"unpeer", "a", "b"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			before := w.objects()
			prepare := func() {
				if command.peered {
					w.succeeds(t, "peer", "a", "b")
				}
			}
			prepare()
			w.succeeds(t, command.args...)
			moments := kubetest.Moments(t, w.writes, 2)
			w.succeeds(t, "unpeer", "a", "b")
			kit.Check(t, "objects without a signal", w.objects(), before)
			for i, at := range moments {
				signal := signals[(i+at)%len(signals)]
				prepare()
				out := w.start(t, signal, at, changes, command.args...)()
				what := fmt.Sprintf("%s at write %d: exit code %d\n%s%s", signal, at, out.code, out.stdout, out.stderr)
				switch {
				case out.code == cli.ExitOK: // there was nothing left to do
				case out.code != cli.ExitInterrupted || !strings.Contains(out.stderr, "interrupted"):
					t.Error(what)
				case !command.peered:
					kit.Check(t, what, w.objects(), before)
				}
				for _, args := range command.again {
					w.succeeds(t, args...)
				}
				if !command.peered {
					w.succeeds(t, "unpeer", "a", "b")
				}
				kit.Check(t, what, w.objects(), before)
			}
		})
	}
}

// Commands that run pods remove them when they get a signal, and doctor prints what it has found so far, in each format.
func TestSignalsWhilePodsRun(t *testing.T) {
	kit.Slow(t)
	for i, line := range []string{"doctor a b", "doctor a b -o json", "doctor a b -o junit", "doctor a b --fix", "verify a b"} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if strings.HasPrefix(line, "verify") {
				w.succeeds(t, "peer", "a", "b")
			}
			before := w.objects()
			out := w.start(t, signals[i%len(signals)], 1, startsPods, strings.Fields(line)...)()
			what := fmt.Sprintf("exit code %d\n%s%s", out.code, out.stdout, out.stderr)
			kit.ErrorIf(t, out.code != cli.ExitInterrupted || !strings.Contains(out.stderr, "interrupted"), "%s", what)
			kit.Check(t, what, w.objects(), before)
			switch {
			case strings.HasSuffix(line, "json"):
				kit.ErrorIf(t, !json.Valid([]byte(out.stdout)), "%s", what)
			case strings.HasSuffix(line, "junit"):
				kit.CheckContains(t, "junit", out.stdout, "<testcase ", "</testsuites>\n")
			case strings.HasPrefix(line, "doctor"):
				kit.CheckContains(t, "what was found", out.stdout, "API servers, objects, permissions: ", " checks passed")
			}
		})
	}
}

// A watch that is interrupted has done what it was told. One that waits has not got what it waits for.
func TestSignalWhileStatusRuns(t *testing.T) {
	kit.Slow(t)
	for i, signal := range signals {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.succeeds(t, "peer", "a", "b")
			reads := func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/peerings") }
			line := []string{"status a --watch", "status a --watch -o json", "status a b --watch -o yaml"}[i]
			out := w.start(t, signal, 5, reads, strings.Fields(line)...)()
			kit.ErrorIf(t, out.code != cli.ExitOK || out.stdout == "" || out.stderr != "", "%s: exit code %d\n%s%s", line, out.code, out.stdout, out.stderr)
			w.fronts[1].Close()
			out = w.start(t, signal, 5, reads, "status", "a", "b", "--wait")()
			kit.ErrorIf(t, out.code != cli.ExitInterrupted || !strings.Contains(out.stderr, "interrupted"), "exit code %d\n%s%s", out.code, out.stdout, out.stderr)
		})
	}
}

// While a command rolls back, the same signal does not end it at once, as users press Ctrl-C twice. Later it does, and the next command cleans up.
func TestSecondSignal(t *testing.T) {
	kit.Slow(t)
	w := newWorld(t)
	before := w.objects()
	w.stalled = make(chan struct{})
	wait := w.start(t, syscall.SIGINT, 12, changes, "peer", "a", "b")
	<-w.reached
	began := time.Now()
	over := make(chan ended, 1)
	go func() { over <- wait() }()
	var out ended
	for ticks := time.NewTicker(50 * time.Millisecond); out == (ended{}); {
		select {
		case out = <-over:
			ticks.Stop()
		case <-ticks.C:
			_ = w.command.Process.Signal(syscall.SIGINT) // it may have ended
		}
	}
	took := time.Since(began)
	kit.ErrorIf(t, out.code != cli.ExitInterrupted || took < impatience || took > 3*impatience, "exit code %d after %s\n%s", out.code, took, out.stderr)
	close(w.stalled)
	w.succeeds(t, "unpeer", "a", "b")
	kit.Check(t, "objects", w.objects(), before)
}
