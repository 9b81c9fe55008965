package cli

import (
	"context"
	"strings"
	"testing"

	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/test/kit"
)

// Status, doctor and commands that wait for a lock name its holder, and the Lease to delete.
func TestWhoHoldsTheLock(t *testing.T) {
	a, _, _ := twoAPIs(t)
	_, held, err := lock.Acquire(t.Context(), "upgrade", func(ctx context.Context, _ string, until func(context.Context) error) error { return until(ctx) },
		lock.Cluster{API: a.Client, ID: "id-of-a", Name: "a", Exclusive: true})
	kit.NoError(t, err)
	command(t, "status", "a", "b").prints("In progress in a: upgrade of ", " (Lease kube-system/liqonet-cluster)")
	code, stdout, _ := run(t, "status", "a", "-o", "jsonpath={.locks[0]}")
	kit.ErrorIf(t, !strings.HasPrefix(stdout, "a: upgrade of "), "exit code %d\n%s", code, stdout)
	command(t, "doctor", "a", "--objects-only").ends(ExitOK).prints("\nIn progress in a: upgrade of ", "Leftovers and drift: 4 of 4 ")
	code, stdout, _ = run(t, "doctor", "a", "--objects-only", "-o", "jsonpath={.locks[0]}")
	kit.ErrorIf(t, code != 0 || !strings.HasPrefix(stdout, "a: upgrade of "), "doctor: exit code %d\n%s", code, stdout)
	for _, args := range [][]string{ // the own cluster's lock, and the other one's
		{"expose-host", "a", "b", "192.0.2.7", "--timeout", "4s"},
		{"peer", "b", "a", "--timeout", "4s"},
	} {
		command(t, args...).ends(ExitBusy).warns("a: waiting for upgrade of ", "which has run for ")
	}
	held.Release()
	command(t, "status", "a").stdoutLacks("In progress")
}
