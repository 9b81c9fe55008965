package loop

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/liqonet/liqonet/agent/logs"
	"github.com/liqonet/liqonet/test/kit"
)

// fake is an agent whose status is its counter. The test holds mu except while it waits.
type fake struct {
	mu sync.Mutex

	start      time.Time
	err        error
	reconciled []time.Duration
	compared   []time.Duration
	status     int
	block      time.Duration
	// took is the reported duration of the last reconciliation, and failures the number of errors.
	took     time.Duration
	failures int
}

func (f *fake) measured(took time.Duration, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.took = took; err != nil {
		f.failures++
	}
}

func (f *fake) Reconcile(_ context.Context, compare bool) (bool, error) {
	f.mu.Lock()
	block := f.block
	f.mu.Unlock()
	time.Sleep(block)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reconciled = append(f.reconciled, time.Since(f.start))
	if compare {
		f.compared = append(f.compared, time.Since(f.start))
	}
	return f.err == nil, f.err
}

func (f *fake) Measure(context.Context) (bool, time.Duration) { return false, time.Second }

func (f *fake) Status(string) (int, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status, true
}

// writes records the requests of a reporter. It shares mu with the fake agent.
type writes struct {
	mu       *sync.Mutex
	statuses []time.Duration
	renewals []time.Duration
	err      error
}

func (w *writes) reporter(start time.Time) Reporter[int] {
	compare := func(now, written int) Change {
		switch {
		case now == written:
			return Same
		case now/10 == written/10:
			return Measured
		}
		return Changed
	}
	return Reporter[int]{Interval: 5 * time.Second, Compare: compare, Write: func(context.Context, int) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.statuses = append(w.statuses, time.Since(start))
		return w.err
	}, Renew: func(context.Context) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.renewals = append(w.renewals, time.Since(start))
		return nil
	}}
}

type run struct {
	*Loop[int]
	fake            *fake
	writes          *writes
	log             *bytes.Buffer
	objects, kernel chan struct{}
	result          chan error
}

// begin runs a loop. The test may read its state except while it waits.
func begin(t *testing.T, f *fake) *run {
	f.start = time.Now()
	r := &run{fake: f, writes: &writes{mu: &f.mu}, log: &bytes.Buffer{}, objects: make(chan struct{}), kernel: make(chan struct{}), result: make(chan error, 1)}
	r.Loop = &Loop[int]{
		Agent: f, Log: logs.New(r.log, slog.LevelInfo), Objects: r.objects, Kernel: r.kernel,
		Report: r.writes.reporter(f.start), Health: &Health{}, Reconciled: f.measured,
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	t.Cleanup(func() {
		cancel()
		<-ended // when a test has ended, its clock stands still
	})
	go func() {
		defer close(ended)
		r.result <- r.Run(ctx)
	}()
	synctest.Wait()
	f.mu.Lock()
	t.Cleanup(f.mu.Unlock)
	return r
}

// away lets the loop run while the test waits.
func (r *run) away(do func()) {
	r.fake.mu.Unlock()
	do()
	synctest.Wait()
	r.fake.mu.Lock()
}

func (r *run) sleep(d time.Duration) { r.away(func() { time.Sleep(d) }) }

func (r *run) signal(c chan<- struct{}) { r.away(func() { c <- struct{}{} }) }

// A failed reconciliation is retried after increasing pauses, and logged once in ten minutes.
func TestFailureIsRetriedWithBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{err: errors.New("a foreign route is in the way")}
		r := begin(t, f)
		r.sleep(time.Hour)
		if n := len(f.reconciled); n < 40 || n > 80 {
			t.Errorf("%d attempts in an hour", n)
		}
		if len(f.reconciled) > 1 && f.reconciled[1] > 2*time.Second {
			t.Errorf("the second attempt came after %v", f.reconciled[1])
		}
		if n := strings.Count(r.log.String(), "foreign route"); n < 1 || n > 6 {
			t.Errorf("it was logged %d times", n)
		}
		f.err = nil
		r.signal(r.kernel) // somebody removes the cause
		r.sleep(3 * time.Second)
		kit.ErrorIf(t, !strings.Contains(r.log.String(), "applied again"), "there is no immediate retry after the kernel has changed")
	})
}

// Each reconciliation is measured, and each failure counted, even if it is not logged again.
func TestReconciliationsAreMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{block: 300 * time.Millisecond}
		r := begin(t, f)
		r.sleep(time.Second)
		kit.ErrorIf(t, f.took != f.block || f.failures != 0, "it took %v, want %v; %d failures", f.took, f.block, f.failures)
		good := len(f.reconciled)
		f.err = errors.New("a foreign route is in the way")
		r.sleep(time.Hour)
		if bad := len(f.reconciled) - good; f.failures != bad || bad < 2 {
			t.Errorf("%d failures were counted, want %d", f.failures, bad)
		}
	})
}

// However often the kernel reports changes, the agent does not compare all the time. It looks at a single change
// soon.
func TestKernelSignalsAreDebounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		r := begin(t, f)
		r.sleep(5 * time.Second)
		r.signal(r.kernel)
		r.sleep(200 * time.Millisecond)
		kit.FatalIf(t, len(f.compared) != 2, "compared at %v, want at the start and soon after the change", f.compared)
		for range 1000 {
			r.signal(r.kernel)
			r.sleep(10 * time.Millisecond)
		}
		if n := len(f.compared); n < 12 || n > 25 {
			t.Errorf("%d comparisons during 10 s of changes", n)
		}
		before := len(f.compared)
		r.sleep(10 * Resync)
		if n := len(f.compared) - before; n < 9 || n > 11 {
			t.Errorf("%d comparisons in ten times %v without a change", n, Resync)
		}
	})
}

// However often others change objects, it costs this agent no more than two reconciliations per second. It looks at a
// few changes immediately, and always at the last one.
func TestObjectsAreReconciledAtAPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		r := begin(t, f)
		r.sleep(10 * time.Second)
		for range 5 {
			r.signal(r.objects)
		}
		if n := len(f.reconciled); n != 6 {
			t.Errorf("five changes were reconciled %d times", n-1)
		}
		before := len(f.reconciled)
		for range 1000 {
			r.signal(r.objects)
			r.sleep(10 * time.Millisecond)
		}
		last := time.Since(f.start)
		r.sleep(time.Second)
		if n := len(f.reconciled) - before; n < 18 || n > 32 {
			t.Errorf("%d reconciliations during 10 s of changes", n)
		}
		if f.reconciled[len(f.reconciled)-1] < last-20*time.Millisecond {
			t.Errorf("the last change, at %v, was never reconciled: %v", last, f.reconciled[len(f.reconciled)-3:])
		}
	})
}

// The longer a comparison takes, the longer the pause before the next one.
func TestComparingLeavesTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{block: time.Second}
		r := begin(t, f)
		for range 6000 {
			r.away(func() {
				select {
				case r.kernel <- struct{}{}:
				default:
				}
				time.Sleep(10 * time.Millisecond)
			})
		}
		if n := len(f.compared); n < 10 || n > 14 {
			t.Errorf("%d comparisons of one second during a minute of changes", n)
		}
		f.block = 0 // it has to end with the test
		r.sleep(2 * time.Second)
	})
}

// An agent looks at a changed object without reading the kernel.
func TestObjectsChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		r := begin(t, f)
		r.sleep(time.Second)
		r.signal(r.objects)
		kit.ErrorIf(t, len(f.reconciled) != 2 || len(f.compared) != 1, "reconciled at %v, compared at %v", f.reconciled, f.compared)
	})
}

// A status is written when it changes, and measured values at most once per interval. Without changes, only the Lease
// is renewed.
func TestStatusOnChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{status: 10}
		r := begin(t, f)
		r.sleep(time.Minute)
		if n := len(r.writes.statuses); n != 1 {
			t.Errorf("an unchanged status was written %d times", n)
		}
		if n := len(r.writes.renewals); n < 10 || n > 14 {
			t.Errorf("the Lease was renewed %d times in a minute", n)
		}
		for range 20 { // within 20 s
			f.status++
			if f.status == 20 {
				f.status = 10
			}
			r.sleep(time.Second)
		}
		if n := len(r.writes.statuses); n < 4 || n > 6 {
			t.Errorf("measured values that change were written %d times in 20 s", n-1)
		}
		before := len(r.writes.statuses)
		f.status = 30
		r.sleep(2 * time.Second)
		if n := len(r.writes.statuses) - before; n != 1 {
			t.Errorf("a change was written %d times", n)
		}
		// Others may cause changes as often as they like.
		before = len(r.writes.statuses)
		for range 300 {
			f.status += 100
			r.sleep(200 * time.Millisecond)
		}
		if n := len(r.writes.statuses) - before; n < 20 || n > burst+32 {
			t.Errorf("300 changes in a minute were written %d times", n)
		}
	})
}

// A renewed Lease means that the status is correct.
func TestLeaseOnlyWithStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{status: 10}
		r := begin(t, f)
		r.sleep(20 * time.Second)
		r.writes.err = errors.New("not allowed")
		f.status = 20
		r.sleep(2 * time.Second)
		before, tried := len(r.writes.renewals), len(r.writes.statuses)
		r.sleep(time.Minute)
		if n := len(r.writes.renewals) - before; n != 0 {
			t.Errorf("the Lease was renewed %d times, while the status could not be written", n)
		}
		if n := len(r.writes.statuses) - tried; n < 8 || n > 16 {
			t.Errorf("the status was tried %d times in a minute", n)
		}
		if n := strings.Count(r.log.String(), "not allowed"); n != 1 {
			t.Errorf("it was logged %d times", n)
		}
	})
}

func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("the address is gone")
		f := &fake{}
		r := begin(t, f)
		r.writes.err = Stop{gone}
		f.status = 50
		var err error
		if r.away(func() { err = <-r.result }); !errors.Is(err, gone) {
			t.Errorf("the loop ended with %v", err)
		}
		r = begin(t, &fake{err: errors.Join(errors.New("more"), Stop{gone})})
		if r.away(func() { err = <-r.result }); !errors.Is(err, gone) {
			t.Errorf("the loop ended with %v", err)
		}
	})
}

func TestHealthFailsWhenTheLoopIsStuck(t *testing.T) {
	get := func(h *Health) int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
		return w.Code
	}
	synctest.Test(t, func(t *testing.T) {
		h := &Health{}
		time.Sleep(time.Hour) // the agent waits for an API server
		if code := get(h); code != 200 {
			t.Errorf("before the loop: %d", code)
		}
		f := &fake{}
		r := begin(t, f)
		r.sleep(time.Hour)
		if code := get(r.Health); code != 200 {
			t.Errorf("with a loop that turns: %d", code)
		}
		f.block = 2 * stuckAfter // for example, a name server
		r.sleep(Resync + stuckAfter + 2*time.Second)
		if code := get(r.Health); code != 503 {
			t.Errorf("with a loop that is stuck: %d", code)
		}
		f.block = 0
		r.sleep(2 * stuckAfter)
	})
}

// An agent survives an API server that refuses or fails for a while.
func TestStartIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &bytes.Buffer{}
		bad := []error{
			apierrors.NewForbidden(schema.GroupResource{}, "", nil), apierrors.NewInternalError(errors.New("x")),
			&url.Error{Op: "Get", Err: errors.New("connection refused")}, context.DeadlineExceeded,
			Stop{errors.New("address lost")},
		}
		tries := 0
		err := Retry(t.Context(), logs.New(log, slog.LevelInfo), func(context.Context) error {
			if tries++; tries <= 4*len(bad) {
				return bad[(tries-1)/4]
			}
			return nil
		})
		kit.ErrorIf(t, err != nil || tries != 4*len(bad)+1, "after %d tries: %v", tries, err)
		if n := strings.Count(log.String(), "\n"); n != len(bad) {
			t.Errorf("%d lines of log:\n%s", n, log)
		}
		wrong := errors.New("the key is no key")
		if err := Retry(t.Context(), slog.New(slog.DiscardHandler), func(context.Context) error { return wrong }); !errors.Is(err, wrong) {
			t.Errorf("a permanent error was returned as %v", err)
		}
	})
}

// Somebody who makes an agent change very much does not fill the log of its node.
func TestLogIsBounded(t *testing.T) {
	var out strings.Builder
	LogChanges(slog.New(slog.NewTextHandler(&out, nil)), slices.Repeat([]string{"added a route"}, 1000))
	if lines := strings.Count(out.String(), "\n"); lines != maxLogged+1 || !strings.Contains(out.String(), "changes=900") {
		t.Errorf("%d lines, the last ones %q", lines, out.String()[len(out.String())-200:])
	}
}
