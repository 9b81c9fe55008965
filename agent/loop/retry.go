package loop

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
)

// longestPause is that between attempts to reach an API server.
const longestPause = 5 * time.Second

// DialPauses are the pauses between attempts to reach an API server, with jitter.
func DialPauses() wait.Backoff { return retries(200*time.Millisecond, longestPause) }

// Sleep waits, and returns false if ctx ended first.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// Retry calls run until it returns nil, ctx ends, or the error is one that another
// attempt does not mend. It returns that one.
func Retry(ctx context.Context, log *slog.Logger, run func(context.Context) error) error {
	retry, last := DialPauses(), ""
	for {
		start := time.Now()
		err := run(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err == nil || !transient(err) {
			return err
		}
		if time.Since(start) > longestPause {
			retry, last = DialPauses(), "" // it has worked meanwhile
		}
		if err.Error() != last {
			last = err.Error()
			log.Warn("trying again", "error", err)
		}
		Sleep(ctx, retry.Step())
	}
}

// Keep calls run again until ctx ends, however often it returns.
func Keep(ctx context.Context, log *slog.Logger, run func(context.Context) error) {
	_ = Retry(ctx, log, func(ctx context.Context) error { return Stop{run(ctx)} })
}

// transient errors are those of the API server and of the way there, and a Stop. What
// the kernel or the configuration refuses is for whoever looks at the pod.
func transient(err error) bool {
	return errors.As(err, new(apierrors.APIStatus)) || errors.As(err, new(*url.Error)) ||
		errors.As(err, new(Stop)) || errors.Is(err, context.DeadlineExceeded)
}
