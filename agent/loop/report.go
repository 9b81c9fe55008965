package loop

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// writeTimeout is how long an API server may take to answer a write. writeRetry and
// writeRetryMost are the first and the longest pause after a failure.
const writeTimeout, writeRetry, writeRetryMost = 10 * time.Second, time.Second, 5 * time.Second

// Change is how much a status differs from the one that was written.
type Change int

// Same is not written, Measured at most once per interval, and Changed at once.
const (
	Same Change = iota
	Measured
	Changed
)

// Reporter writes an agent's status when it changes, and renews the agent's Lease. It
// works beside the loop, one request at a time: an API server that is silent must not
// keep an agent from looking after its kernel.
//
// The Lease is renewed only while the last write of the status has succeeded. So a fresh
// Lease says that the status is what the agent sees. Its holder is the agent that wrote it.
type Reporter[T any] struct {
	compare  func(now, written T) Change
	write    func(context.Context, T) error
	renew    func(context.Context) error
	interval time.Duration

	done chan error
	busy bool
	// writing is nil while the Lease is being renewed.
	writing, written *T
	wroteAt, renewAt time.Time
	// failed is the last error, unwritten that it was of the status.
	failed    string
	unwritten bool
	retry     wait.Backoff
	retryAt   time.Time
}

// NewReporter makes one that has written nothing yet.
func NewReporter[T any](interval time.Duration, compare func(now, written T) Change,
	write func(context.Context, T) error, renew func(context.Context) error,
) *Reporter[T] {
	return &Reporter[T]{
		compare: compare, write: write, renew: renew, interval: interval,
		done: make(chan error, 1), retry: retries(writeRetry, writeRetryMost),
	}
}

// WriteFirst writes a status before the loop runs.
func (r *Reporter[T]) WriteFirst(ctx context.Context, status T) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if err := r.write(ctx, status); err != nil {
		return err
	}
	r.written, r.wroteAt = &status, time.Now()
	return nil
}

// offer begins to write the status if that is due, or else to renew the Lease.
func (r *Reporter[T]) offer(ctx context.Context, status T) {
	now := time.Now()
	if r.busy || now.Before(r.retryAt) {
		return
	}
	var request func(context.Context) error
	r.writing = nil
	renew := r.written != nil && !r.unwritten && !now.Before(r.renewAt)
	switch {
	case renew:
		request = r.renew
	case r.written == nil || r.due(status, now):
		r.writing = &status
		request = func(ctx context.Context) error { return r.write(ctx, status) }
	default:
		return
	}
	r.busy = true
	go func() {
		ctx, cancel := context.WithTimeout(ctx, writeTimeout)
		defer cancel()
		r.done <- request(ctx)
	}()
}

func (r *Reporter[T]) due(status T, now time.Time) bool {
	switch r.compare(status, *r.written) {
	case Changed:
		return true
	case Measured:
		return now.Sub(r.wroteAt) >= r.interval
	default:
		return false
	}
}

// note ends a request, and logs why it has failed where that is news.
func (r *Reporter[T]) note(log *slog.Logger, err error) {
	r.busy = false
	now, isStatus := time.Now(), r.writing != nil
	if isStatus {
		r.unwritten = err != nil
	}
	if err != nil {
		at := &r.renewAt // a Lease that is not there must not delay the status
		if isStatus {
			at = &r.retryAt
		}
		*at = now.Add(r.retry.Step())
		if err.Error() != r.failed {
			log.Error("cannot report", "error", err)
		}
		r.failed = err.Error()
		return
	}
	r.failed, r.retry = "", retries(writeRetry, writeRetryMost)
	if isStatus {
		r.written, r.wroteAt = r.writing, now
	} else {
		// Agents that were started at once need not write at once.
		r.renewAt = now.Add(wait.Jitter(r.interval*9/10, 0.2))
	}
}

// Moved says that a measured time has changed by a factor of two.
func Moved(now, before int64) bool { return now > 2*before || before > 2*now }
