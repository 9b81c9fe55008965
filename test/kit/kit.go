// Package kit has small helpers that tests of several packages share.
package kit

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// CIDR parses a prefix; the empty string is none.
func CIDR(s string) v1alpha1.CIDR {
	if s == "" {
		return v1alpha1.CIDR{}
	}
	return v1alpha1.CIDR{Prefix: netip.MustParsePrefix(s)}
}

// Mapping is that of a real range to the one by which a peer knows it.
func Mapping(real, mapped string) v1alpha1.CIDRMapping {
	return v1alpha1.CIDRMapping{Real: CIDR(real), Mapped: CIDR(mapped)}
}

// Full says that tests make all of their plays, and not a sample: in make test-long.
func Full() bool { return os.Getenv("LIQONET_TEST_FULL") != "" }

// Seed is what all random choices of a run are made by. It is in the environment as LIQONET_TEST_SEED, which make test
// prints, or chosen.
var Seed = sync.OnceValue(func() uint64 {
	if n, err := strconv.ParseUint(os.Getenv("LIQONET_TEST_SEED"), 10, 64); err == nil {
		return n
	}
	return rand.Uint64()
})

// Random makes the choices of a test, by the run's seed and the test's name.
func Random(t testing.TB) *rand.Rand {
	t.Helper()
	t.Logf("LIQONET_TEST_SEED=%d repeats the choices", Seed())
	h := fnv.New64a()
	_, _ = h.Write([]byte(t.Name())) // it never fails
	return rand.New(rand.NewPCG(Seed(), h.Sum64()))
}

// NotShort leaves a test out of -short: what it plays takes minutes with the race
// detector. Without it, make test-plays makes a sample, and all with Full.
func NotShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes long with the race detector")
	}
}

// Slow leaves a test out of `make test-unit`, which is for a minute: it plays commands from
// their beginning to their end. `make test-plays` has it, and `make test-long-race`.
func Slow(t testing.TB) {
	t.Helper()
	if testing.Short() && !race {
		t.Skip("make test-plays runs it")
	}
}

// Play is for a play that runs along with others: Slow, and in parallel.
func Play(t *testing.T) {
	t.Helper()
	Slow(t)
	t.Parallel()
}

// Timeout is the test's context, and ends after a time.
func Timeout(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// Bubble runs a subtest whose clock is synctest's.
func Bubble(t *testing.T, name string, do func(*testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, do) })
}

// WithinFor waits until nothing has been missing for some time.
func WithinFor(t testing.TB, timeout, some time.Duration, what string, missing func() string) {
	t.Helper()
	since := time.Now()
	Within(t, timeout, fmt.Sprintf("%s for %s", what, some), func() string {
		reason := missing()
		if reason != "" {
			since = time.Now()
		} else if time.Since(since) < some {
			reason = "not for long enough"
		}
		return reason
	})
}

// Within waits until nothing is missing any more, and ends the test if that takes longer than a time.
func Within(t testing.TB, timeout time.Duration, what string, missing func() string) {
	t.Helper()
	for deadline := time.Now().Add(timeout); ; {
		reason := missing()
		if reason == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s: %s", timeout, what, reason)
		}
		select {
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Eventually waits until a function returns no error, and ends the test if that takes longer than a time.
func Eventually(t testing.TB, timeout time.Duration, what string, f func() error) {
	t.Helper()
	Within(t, timeout, what, func() string {
		if err := f(); err != nil {
			return err.Error()
		}
		return ""
	})
}
