package cli

import (
	"context"
	"strings"
	"testing"

	"github.com/liqonet/liqonet/pkg/lock"
)

// Status, doctor and commands that wait for a lock name its holder, and the Lease to delete.
func TestWhoHoldsTheLock(t *testing.T) {
	a, _, _ := twoAPIs(t)
	_, held, err := lock.Take(t.Context(), "upgrade", func(ctx context.Context, _ string, until func(context.Context) error) error { return until(ctx) },
		lock.Cluster{API: a.Client, ID: "id-of-a", Name: "a", Exclusive: true})
	if err != nil {
		t.Fatal(err)
	}
	if code, stdout, stderr := run(t, "status", "a", "b"); !strings.Contains(stdout, "In progress in a: upgrade of ") || !strings.Contains(stdout, " (Lease kube-system/liqonet-cluster)") {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
	if code, stdout, _ := run(t, "status", "a", "-o", "jsonpath={.locks[0]}"); !strings.HasPrefix(stdout, "a: upgrade of ") {
		t.Errorf("exit code %d\n%s", code, stdout)
	}
	if code, stdout, _ := run(t, "doctor", "a", "--objects-only"); code != 0 || !strings.Contains(stdout, "\nIn progress in a: upgrade of ") || !strings.Contains(stdout, "Leftovers and drift: 4 of 4 ") {
		t.Errorf("doctor: exit code %d\n%s", code, stdout)
	}
	if code, stdout, _ := run(t, "doctor", "a", "--objects-only", "-o", "jsonpath={.locks[0]}"); code != 0 || !strings.HasPrefix(stdout, "a: upgrade of ") {
		t.Errorf("doctor: exit code %d\n%s", code, stdout)
	}
	for name, args := range map[string][]string{
		"the own cluster's":   {"expose-host", "a", "b", "192.0.2.7", "--timeout", "2s"},
		"the other cluster's": {"peer", "b", "a", "--timeout", "2s"},
	} {
		if code, _, stderr := run(t, args...); code != ExitBusy || !strings.Contains(stderr, "a: waiting for upgrade of ") || !strings.Contains(stderr, "which has run for ") {
			t.Errorf("%s: exit code %d\n%s", name, code, stderr)
		}
	}
	held.Release()
	if code, stdout, stderr := run(t, "status", "a"); strings.Contains(stdout, "In progress") {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
}
