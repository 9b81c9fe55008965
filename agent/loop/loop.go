// Package loop runs an agent. It reconciles when an object or the kernel changes, retries failures with increasing
// pauses, and compares everything periodically. It writes the agent's status when that changes, and renews its Lease.
//
// It knows nothing about networks: that is the job of its Agent.
package loop

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/samber/lo"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// Resync is how often everything is compared without a reason. MeasureInterval is how often measurements are read
	// while no change is expected.
	Resync, MeasureInterval = 30 * time.Second, time.Second
	// debounce is how long the loop waits after the kernel reports a change, because such changes come in bursts.
	debounce = 100 * time.Millisecond
	// compareGap is the minimum time between two comparisons that the kernel triggers, and failingGap the same while
	// comparisons fail.
	compareGap, failingGap = 500 * time.Millisecond, 2 * time.Second
	// burst is how many reconciliations may follow each other immediately. After that there is one per compareGap:
	// others can change objects and the kernel as often as they like.
	burst = 10
	// idleShare is how many times longer the loop pauses than a comparison takes.
	idleShare = 4
)

// Agent is run by a Loop, which calls its methods one at a time.
type Agent[T any] interface {
	// Reconcile makes the kernel match the objects. It compares the kernel's state if compare is set, or if the objects
	// ask for something else than at the last call. It returns whether the kernel matches completely. The error may
	// concern a part only, and ends the loop only if it is a Stop.
	Reconcile(ctx context.Context, compare bool) (inSync bool, err error)
	// Measure measures everything that sends no notifications. It returns whether the result changes what Reconcile
	// does, and how long to wait before the next look.
	Measure(ctx context.Context) (changed bool, next time.Duration)
	// Status returns the agent's current status. problem is the last error of Reconcile. It returns false if there is no
	// object to write the status to.
	Status(problem string) (status T, ok bool)
}

// Loop runs one agent.
type Loop[T any] struct {
	Agent Agent[T]
	Log   *slog.Logger
	// Objects signals that an object has changed, Kernel that others may have changed something in the kernel, and
	// Measure that there is something new to measure.
	Objects, Kernel, Measure <-chan struct{}
	Report                   Reporter[T]
	Health                   *Health
	// Reconciled is called after each Reconcile, with its duration and error.
	Reconciled func(took time.Duration, err error)
}

// Run runs the agent. It returns nil when ctx ends, and otherwise the agent's Stop.
func (l *Loop[T]) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer l.Health.iterationStart.Store(nil)
	statuses, reported := make(chan T, 1), make(chan error, 1)
	go func() { reported <- l.Report.run(ctx, l.Log, statuses) }()
	s := state{
		dirty: true, compareAt: time.Now(), retry: retries(time.Second, time.Minute),
		pace: rate.NewLimiter(rate.Every(compareGap), burst),
	}
	for {
		l.Health.iterationStart.Store(new(time.Now()))
		if err := l.reconcile(ctx, &s); err != nil {
			return err
		}
		changed, next := l.Agent.Measure(ctx)
		if changed {
			s.dirty = true
			continue
		}
		if status, ok := l.Agent.Status(s.problem); ok {
			select {
			case <-statuses: // outdated
			default:
			}
			statuses <- status
		}
		pause := min(next, time.Until(s.compareAt))
		if s.dirty || pause <= 0 {
			pause = debounce // the rate limit did not allow it yet
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-reported:
			return err
		case <-l.Objects:
			s.dirty = true
		case <-l.Kernel:
			s.kernelChanged()
		case <-l.Measure:
		case <-time.After(pause):
		}
	}
}

// state is the state of a running loop.
type state struct {
	// dirty requests a Reconcile. At compareAt, everything is compared.
	dirty     bool
	compareAt time.Time
	// compared is the time of the last comparison, and took its duration. failing is set while the kernel does not
	// match, and problem is the reason.
	compared time.Time
	took     time.Duration
	failing  bool
	problem  string
	retry    wait.Backoff
	// pace limits how often Reconcile is called.
	pace *rate.Limiter
}

func (s *state) kernelChanged() {
	gap := max(lo.Ternary(s.failing, failingGap, compareGap), idleShare*s.took)
	s.compareAt = lo.Earliest(s.compareAt, time.Now().Add(max(debounce, gap-time.Since(s.compared))))
}

func (l *Loop[T]) reconcile(ctx context.Context, s *state) error {
	compare := !time.Now().Before(s.compareAt)
	if !s.dirty && !compare || !s.pace.Allow() {
		return nil
	}
	start := time.Now()
	inSync, err := l.Agent.Reconcile(ctx, compare)
	if stop := (Stop{}); errors.As(err, &stop) {
		return stop
	}
	now := time.Now()
	l.Reconciled(now.Sub(start), err)
	if compare {
		s.compared, s.took, s.compareAt = now, now.Sub(start), now.Add(Resync)
	}
	switch {
	case inSync:
		s.retry = retries(time.Second, time.Minute)
	case compare || !s.failing:
		s.compareAt = now.Add(s.retry.Step())
	}
	s.dirty, s.failing = false, !inSync
	if err != nil {
		s.problem = err.Error()
		l.Log.Error("cannot apply", "error", err)
	} else if s.problem != "" {
		s.problem = ""
		l.Log.Info("the desired state is applied again")
	}
	return nil
}

// maxLogged is how many changes of one comparison are logged.
const maxLogged = 100

// LogChanges logs changes. If there are very many, it logs the first ones and their number, because others can make
// an agent repeat them endlessly.
func LogChanges(log *slog.Logger, changes []string) {
	for _, change := range changes[:min(len(changes), maxLogged)] {
		log.Info(change)
	}
	if len(changes) > maxLogged {
		log.Info("more changes", "changes", len(changes)-maxLogged)
	}
}

// stuckAfter is how long one turn of the loop may take. Name servers and the kernel answer much sooner, or not at
// all.
const stuckAfter = 2 * time.Minute

// Health answers the kubelet's health checks. The zero value is healthy.
type Health struct {
	// iterationStart is when the current turn of the loop began, nil while no loop runs.
	iterationStart atomic.Pointer[time.Time]
}

// ServeHTTP fails if the loop is stuck.
func (h *Health) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	if turned := h.iterationStart.Load(); turned != nil && time.Since(*turned) > stuckAfter {
		http.Error(w, "the agent's loop is stuck", http.StatusServiceUnavailable)
		return
	}
	_, _ = w.Write([]byte("ok\n"))
}

// Serve serves HTTP at an address until ctx ends. It retries an address that cannot be used: another program of the
// host may occupy it for a while. what describes the server in errors.
func Serve(ctx context.Context, log *slog.Logger, what string, address netip.AddrPort, handler http.Handler) {
	RunForever(ctx, log, what, func(ctx context.Context) error {
		server := &http.Server{
			Addr: address.String(), Handler: handler, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second, MaxHeaderBytes: 8 << 10,
		}
		defer context.AfterFunc(ctx, func() { _ = server.Close() })()
		return server.ListenAndServe()
	})
}
