package e2e

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// deadly stands between a command and the API servers, and sends it a signal after one of its writes, which was done, before
// it knows.
type deadly struct {
	kubeconfig string
	signal     syscall.Signal
	// reached gets what the write was.
	reached chan string
	mu      sync.Mutex
	command *exec.Cmd
	// after is the number of the write, written how many there were, last what the last one was.
	after, written int
	last           string
}

func signalAfterWrites(t *testing.T, signal syscall.Signal, clusters ...*cluster) *deadly {
	t.Helper()
	d := &deadly{signal: signal, reached: make(chan string, 1)}
	d.kubeconfig = between(t, func(c *cluster, w http.ResponseWriter, r *http.Request, api http.Handler) {
		// Neither dry runs, nor questions about permissions, nor locks change what the command works on.
		if r.Method == http.MethodGet || r.URL.Query().Has("dryRun") || strings.HasSuffix(r.URL.Path, "reviews") || strings.Contains(r.URL.Path, "/namespaces/kube-system/leases") {
			api.ServeHTTP(w, r)
			return
		}
		answer := httptest.NewRecorder()
		api.ServeHTTP(answer, r)
		d.mu.Lock()
		if d.written++; d.written == d.after {
			d.last = c.Name + " " + r.Method + " " + r.URL.Path
			_ = d.command.Process.Signal(d.signal)
			d.reached <- d.last
		}
		d.mu.Unlock()
		maps.Copy(w.Header(), answer.Header())
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes())
	}, clusters...)
	return d
}

// run runs a command that is killed after so many writes. It says false if the command has fewer of them, and came to
// its end.
func (d *deadly) run(t *testing.T, ctx context.Context, after int, args ...string) (killed bool) {
	t.Helper()
	cmd, errs := d.start(t, ctx, after, args...)
	err := cmd.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	require(t, d.last != "" || err == nil, "%v: %v\n%s", args, err, errs.String())
	t.Logf("%v, killed after write %d: %s", args, after, d.last)
	if d.last == "" {
		return false
	}
	<-d.reached
	return true
}

// start starts a command that gets the signal after so many writes.
func (d *deadly) start(t *testing.T, ctx context.Context, after int, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	cmd := command(ctx, d.kubeconfig, args...)
	cmd.SysProcAttr = nil // this goroutine's thread may end before the command
	var errs bytes.Buffer
	cmd.Stderr = &errs
	d.mu.Lock()
	defer d.mu.Unlock()
	d.command, d.after, d.written, d.last = cmd, after, 0, ""
	try(t, cmd.Start())
	return cmd, &errs
}

// leastWrites is how many writes peer and unpeer have at least.
const leastWrites = 20

// A peering that is half made is completed by peer and removed by unpeer, whichever write of the two API servers was
// the last one.
func TestKilledAfterEachWrite(t *testing.T) {
	begin(t)
	a, b := fx.alpha, fx.beta
	peer, unpeer := peerAndUnpeer(a, b)
	killedAfterEach(t, peer, func(ctx context.Context, after int) {
		if after%2 == 0 {
			mustLiqonet(t, ctx, peer...)
			checkOnePacket(t, ctx, a, b)
			checkBothPlanes(t, ctx, a, b)
		}
		mustLiqonet(t, ctx, unpeer...)
		checkNothingLeft(t, ctx)
	}, a, b)
	mustLiqonet(t, t.Context(), unpeer...)
	checkNothingLeft(t, t.Context())
}

// The same with one that is half removed.
func TestKilledAfterEachWriteOfUnpeer(t *testing.T) {
	begin(t)
	a, b := fx.gamma, fx.delta
	peer, unpeer := peerAndUnpeer(a, b)
	established := func(ctx context.Context) {
		mustLiqonet(t, ctx, peer...)
		checkOnePacket(t, ctx, a, b)
		checkBothPlanes(t, ctx, a, b)
	}
	established(t.Context())
	killedAfterEach(t, unpeer, func(ctx context.Context, after int) {
		if after%2 == 0 {
			mustLiqonet(t, ctx, unpeer...)
			checkNothingLeft(t, ctx)
		}
		established(ctx)
	}, a, b)
	checkNothingLeft(t, t.Context())
}

func peerAndUnpeer(a, b *cluster) (peer, unpeer []string) {
	return []string{"peer", a.Name, b.Name, "--planes", "2"}, []string{"unpeer", a.Name, b.Name}
}

// killedAfterEach runs a command that is killed after its first write, then after its second one, until it has no more.
// Each time, mend has to find what it left repairable.
func killedAfterEach(t *testing.T, args []string, mend func(ctx context.Context, after int), clusters ...*cluster) {
	t.Helper()
	ctx := t.Context() // there are many writes
	d := signalAfterWrites(t, syscall.SIGKILL, clusters...)
	after := 1
	for ; d.run(t, ctx, after, args...) && !t.Failed(); after++ {
		mend(ctx, after)
	}
	// As benchmarks are printed, which are kept with the result.
	fmt.Printf("BenchmarkKilledAfterEachWrite/%s 1 %d writes\n", args[0], after-1)
	if after <= leastWrites {
		t.Errorf("these are not all writes of %s", args[0])
	}
}
