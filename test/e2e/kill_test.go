package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// killMoments is how many moments of a peer command are tried, spread over the
// time that it takes. Every run tries other ones.
const killMoments = 6

// A peer command that is killed does no harm: the next peer command completes
// its work, and unpeer removes it.
func TestKilled(t *testing.T) {
	a, b := fx.alpha, fx.beta
	// How long it takes, here and now.
	var whole, removal time.Duration
	if !t.Run("not killed", func(t *testing.T) {
		ctx := begin(t)
		whole = mustLiqonet(t, ctx, "peer", a.Name, b.Name).took
		removal = mustLiqonet(t, ctx, "unpeer", a.Name, b.Name).took
		checkNothingLeft(t, ctx)
	}) {
		return
	}
	for i := range killMoments {
		share := (float64(i) + rand.Float64()) / killMoments
		at := time.Duration(share * float64(whole)).Round(time.Millisecond)
		if i%2 == 0 {
			t.Run(fmt.Sprintf("after %s, then unpeer", at), func(t *testing.T) {
				ctx := begin(t)
				interrupted(t, ctx, at, syscall.SIGKILL, "peer", a.Name, b.Name)
				mustLiqonet(t, ctx, "unpeer", b.Name, a.Name)
				checkNothingLeft(t, ctx)
			})
			continue
		}
		// The unpeer command that follows is killed, too, and done again.
		again := time.Duration(rand.Float64() * float64(removal)).Round(time.Millisecond)
		t.Run(fmt.Sprintf("after %s, then peer, unpeer killed after %s", at, again), func(t *testing.T) {
			ctx := begin(t)
			interrupted(t, ctx, at, syscall.SIGKILL, "peer", a.Name, b.Name)
			mustLiqonet(t, ctx, "peer", b.Name, a.Name)
			checkOnePacket(t, ctx, a, b)
			interrupted(t, ctx, again, syscall.SIGKILL, "unpeer", a.Name, b.Name)
			mustLiqonet(t, ctx, "unpeer", a.Name, b.Name)
			checkNothingLeft(t, ctx)
		})
	}
}

// Ctrl-C takes back what was done.
func TestInterrupted(t *testing.T) {
	a, b := fx.alpha, fx.beta
	for _, at := range []time.Duration{500 * time.Millisecond, 2 * time.Second} {
		t.Run("after "+at.String(), func(t *testing.T) {
			ctx := begin(t)
			r := interrupted(t, ctx, at, os.Interrupt, "peer", a.Name, b.Name)
			if r.code != 130 || r.stdout != "" {
				t.Errorf("exit code %d, want 130; stdout %q, want none\n%s", r.code, r.stdout, r.stderr)
			}
			checkMessage(t, r, "interrupted")
			checkNothingLeft(t, ctx)
		})
	}
}

// interrupted sends a signal to a command at some moment, and waits for its end.
func interrupted(t *testing.T, ctx context.Context, at time.Duration, signal os.Signal, args ...string) result {
	t.Helper()
	// The command is killed with the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := command(ctx, "", args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	start := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(at, func() { _ = cmd.Process.Signal(signal) })
	defer timer.Stop()
	err := cmd.Wait()
	r := result{stdout: out.String(), stderr: errs.String(), took: time.Since(start)}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		r.code = exit.ExitCode()
		t.Logf("%v after %.1f s: %v\n%s", args, r.took.Seconds(), err, r.stderr)
	} else {
		t.Logf("%v came to its end after %.1f s: %v", args, r.took.Seconds(), err)
	}
	return r
}
