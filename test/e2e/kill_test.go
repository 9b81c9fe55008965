package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// A peer command that is killed does no harm: the next peer command completes
// its work, and unpeer removes it.
func TestKilled(t *testing.T) {
	a, b, r := fx.alpha, fx.beta, random(t)
	// How long it takes, here and now.
	var whole, removal time.Duration
	if !t.Run("not killed", func(t *testing.T) {
		ctx := begin(t)
		// By files, of which both name their context alike.
		r := liqonet(t, ctx, "/nonexistent", "peer", kubeadmFile(t, t.TempDir(), a), kubeadmFile(t, t.TempDir(), b)+"#"+kubeadmContext)
		if whole = r.took; r.code != 0 {
			t.Fatalf("exit code %d\n%s%s", r.code, r.stdout, r.stderr)
		}
		removal = mustLiqonet(t, ctx, "unpeer", a.Name, b.Name).took
		checkNothingLeft(t, ctx)
	}) {
		return
	}
	// They are spread over the time that the command takes.
	const moments = 24
	for _, i := range sample(r, moments, 1) {
		share := (float64(i) + r.Float64()) / moments
		at := time.Duration(share * float64(whole)).Round(time.Millisecond)
		if i%2 == 0 {
			t.Run(fmt.Sprintf("number %d, then unpeer", i+1), func(t *testing.T) {
				ctx := begin(t)
				interrupted(t, ctx, "", at, syscall.SIGKILL, "peer", a.Name, b.Name)
				unpeered(t, ctx, b, a)
			})
			continue
		}
		// The unpeer command that follows is killed, too, and done again.
		again := time.Duration(r.Float64() * float64(removal)).Round(time.Millisecond)
		t.Run(fmt.Sprintf("number %d, then peer, unpeer killed", i+1), func(t *testing.T) {
			ctx := begin(t)
			interrupted(t, ctx, "", at, syscall.SIGKILL, "peer", a.Name, b.Name)
			mustLiqonet(t, ctx, "peer", b.Name, a.Name)
			checkOnePacket(t, ctx, a, b)
			interrupted(t, ctx, "", again, syscall.SIGKILL, "unpeer", a.Name, b.Name)
			unpeered(t, ctx, a, b)
		})
	}
}

// Ctrl-C takes back what was done, before the command comes to its end.
func TestInterrupted(t *testing.T) {
	a, b, r := fx.alpha, fx.beta, random(t)
	const earliest, latest = 200 * time.Millisecond, 2 * time.Second
	for _, i := range sample(r, 12, 1) {
		at := earliest + time.Duration(r.Int64N(int64(latest-earliest))).Round(time.Millisecond)
		t.Run(fmt.Sprintf("number %d", i+1), func(t *testing.T) {
			ctx := begin(t)
			r := interrupted(t, ctx, "", at, os.Interrupt, "peer", a.Name, b.Name)
			r.refused(t, 130)
			checkMessage(t, r, "interrupted")
			checkNothingLeft(t, ctx)
		})
	}
}

// interrupted sends a signal to a command at some moment, and waits for its end.
func interrupted(t *testing.T, ctx context.Context, kubeconfig string, at time.Duration, signal os.Signal, args ...string) result {
	t.Helper()
	t.Logf("%v: %v after %s", args, signal, at)
	// The command is killed with the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := command(ctx, kubeconfig, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	start := time.Now()
	if err := cmd.Start(); err != nil {
		t.Error(err)
		return result{code: -1}
	}
	timer := time.AfterFunc(at, func() { _ = cmd.Process.Signal(signal) })
	defer timer.Stop()
	err := cmd.Wait()
	r := result{args: args, stdout: out.String(), stderr: errs.String(), took: time.Since(start)}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		r.code = exit.ExitCode()
		t.Logf("%v after %.1f s: %v\n%s", args, r.took.Seconds(), err, r.stderr)
	} else {
		t.Logf("%v came to its end after %.1f s: %v", args, r.took.Seconds(), err)
	}
	return r
}
