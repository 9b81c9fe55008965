package e2e

import (
	"bytes"
	"context"
	"maps"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

// deadly stands between a command and the API servers, and kills it after one of its writes, which was done, before it
// knows.
type deadly struct {
	kubeconfig string
	mu         sync.Mutex
	command    *exec.Cmd
	// after is the number of the write, written how many there were, last what the last one was.
	after, written int
	last           string
}

func killAfterWrites(t *testing.T, clusters ...*cluster) *deadly {
	t.Helper()
	d := &deadly{}
	d.kubeconfig = between(t, func(c *cluster, w http.ResponseWriter, r *http.Request, api http.Handler) {
		if r.Method == http.MethodGet || strings.HasSuffix(r.URL.Path, "reviews") { // questions about permissions
			api.ServeHTTP(w, r)
			return
		}
		answer := httptest.NewRecorder()
		api.ServeHTTP(answer, r)
		d.mu.Lock()
		if d.written++; d.written == d.after {
			d.last = c.Name + " " + r.Method + " " + r.URL.Path
			_ = d.command.Process.Kill()
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
	cmd := command(ctx, d.kubeconfig, args...)
	cmd.SysProcAttr = nil // this goroutine's thread may end before the command
	var errs bytes.Buffer
	cmd.Stderr = &errs
	d.mu.Lock()
	d.command, d.after, d.written, d.last = cmd, after, 0, ""
	err := cmd.Start()
	d.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last == "" && err != nil {
		t.Fatalf("%v: %v\n%s", args, err, errs.String())
	}
	t.Logf("%v, killed after write %d: %s", args, after, d.last)
	return d.last != ""
}

// A peering that is half made, or half removed, is completed by peer and removed by unpeer, whichever write of the two
// API servers was the last one.
func TestKilledAfterEachWrite(t *testing.T) {
	begin(t)
	ctx := t.Context() // there are many writes
	a, b := fx.alpha, fx.beta
	d := killAfterWrites(t, a, b)
	peer, unpeer := []string{"peer", a.Name, b.Name, "--planes", "2"}, []string{"unpeer", a.Name, b.Name}
	made := 1
	for ; d.run(t, ctx, made, peer...) && !t.Failed(); made++ {
		if made%2 == 0 {
			mustLiqonet(t, ctx, peer...)
			checkOnePacket(t, ctx, a, b)
			checkBothPlanes(t, ctx, a, b)
		}
		mustLiqonet(t, ctx, unpeer...)
		checkNothingLeft(t, ctx)
	}
	removed := 1
	for ; d.run(t, ctx, removed, unpeer...) && !t.Failed(); removed++ {
		if removed%2 == 0 {
			mustLiqonet(t, ctx, unpeer...)
			checkNothingLeft(t, ctx)
		}
		mustLiqonet(t, ctx, peer...)
		checkOnePacket(t, ctx, a, b)
		checkBothPlanes(t, ctx, a, b)
	}
	t.Logf("killed after each of %d writes of peer, and of %d of unpeer", made-1, removed-1)
	if least := 20; made < least || removed < least {
		t.Errorf("these are not all writes")
	}
	checkNothingLeft(t, ctx)
}
