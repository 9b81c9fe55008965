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
// its work, and unpeer removes it. Every run tries another moment.
func TestKilled(t *testing.T) { killed(t, fx.alpha, fx.beta, 2) }

// TestKilledOften is TestKilled at many moments, spread over the time that the command
// takes.
func TestKilledOften(t *testing.T) { killed(t, fx.alpha, fx.beta, 24) }

func killed(t *testing.T, a, b *cluster, moments int) {
	r := random(t)
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
	for i := range moments {
		share := (float64(i) + r.Float64()) / float64(moments)
		at := time.Duration(share * float64(whole)).Round(time.Millisecond)
		if i%2 == 0 {
			t.Run(fmt.Sprintf("number %d, then unpeer", i+1), func(t *testing.T) {
				ctx := begin(t)
				interrupted(t, ctx, at, syscall.SIGKILL, "peer", a.Name, b.Name)
				mustLiqonet(t, ctx, "unpeer", b.Name, a.Name)
				checkNothingLeft(t, ctx)
			})
			continue
		}
		// The unpeer command that follows is killed, too, and done again.
		again := time.Duration(r.Float64() * float64(removal)).Round(time.Millisecond)
		t.Run(fmt.Sprintf("number %d, then peer, unpeer killed", i+1), func(t *testing.T) {
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
func TestInterrupted(t *testing.T) { interruptedEarly(t, 1) }

// TestInterruptedOften is TestInterrupted at many moments.
func TestInterruptedOften(t *testing.T) { interruptedEarly(t, 12) }

// interruptedEarly interrupts peer commands before any of them comes to its end.
func interruptedEarly(t *testing.T, moments int) {
	a, b, r := fx.alpha, fx.beta, random(t)
	const earliest, latest = 200 * time.Millisecond, 2 * time.Second
	for i := range moments {
		at := earliest + time.Duration(r.Int64N(int64(latest-earliest))).Round(time.Millisecond)
		t.Run(fmt.Sprintf("number %d", i+1), func(t *testing.T) {
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
	t.Logf("%v: %v after %s", args, signal, at)
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
