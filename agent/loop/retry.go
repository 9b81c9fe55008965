package loop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
)

// Stop is an error that ends the loop.
type Stop struct{ Reason error }

// Error returns the text of the reason.
func (s Stop) Error() string { return s.Reason.Error() }

// Unwrap returns the reason.
func (s Stop) Unwrap() error { return s.Reason }

// retries returns the pauses between attempts after a failure.
func retries(initial, limit time.Duration) wait.Backoff {
	return wait.Backoff{Duration: initial, Factor: 2, Jitter: 0.2, Steps: 64, Cap: limit}
}

// longestPause is the longest pause between attempts to reach an API server.
const longestPause = 5 * time.Second

// DialPauses returns the pauses between attempts to reach an API server, with jitter.
func DialPauses() wait.Backoff { return retries(200*time.Millisecond, longestPause) }

// Sleep waits, and returns false if ctx ends first.
func Sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// Retry calls run until it returns nil, ctx ends, or the error is one that a retry cannot fix. It returns that error. It
// logs every attempt: the agents' loggers omit repetitions.
func Retry(ctx context.Context, log *slog.Logger, run func(context.Context) error) error {
	retry := DialPauses()
	for {
		start := time.Now()
		err := run(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err == nil || !isTransient(err) {
			return err
		}
		if time.Since(start) > longestPause {
			retry = DialPauses() // it worked in between
		}
		log.Warn("retrying", "error", err)
		Sleep(ctx, retry.Step())
	}
}

// RunForever calls run again each time that it returns, until ctx ends. name describes run in errors.
func RunForever(ctx context.Context, log *slog.Logger, name string, run func(context.Context) error) {
	_ = Retry(ctx, log, func(ctx context.Context) error { return Stop{fmt.Errorf("%s: %w", name, run(ctx))} })
}

// isTransient reports whether a retry may fix an error. It may fix errors of the API server and of the network to it,
// and a Stop. Errors of the kernel or the configuration are for a person who looks at the pod.
func isTransient(err error) bool {
	return errors.As(err, new(apierrors.APIStatus)) || errors.As(err, new(*url.Error)) ||
		errors.As(err, new(Stop)) || errors.Is(err, context.DeadlineExceeded)
}
