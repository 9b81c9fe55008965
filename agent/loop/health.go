package loop

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// stuckAfter is how long one turn of the loop may take. Name servers and the kernel
// answer much sooner, or not at all.
const stuckAfter = 2 * time.Minute

// Health answers the kubelet.
type Health struct {
	start time.Time
	// turned is when the loop began its last turn, as time since start; 0 while no loop
	// runs.
	turned atomic.Int64
	ready  atomic.Bool
}

// NewHealth makes one that is healthy, and not ready.
func NewHealth() *Health { return &Health{start: time.Now()} }

func (h *Health) turn() { h.turned.Store(int64(max(time.Since(h.start), 1))) }

func (h *Health) rest() { h.turned.Store(0) }

// ServeHTTP answers /healthz, which fails if the loop does not turn any more, and
// /readyz, which fails until the agent has written its status.
func (h *Health) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	turned := time.Duration(h.turned.Load())
	switch {
	case r.URL.Path != "/healthz" && r.URL.Path != "/readyz":
		http.NotFound(w, r)
	case turned > 0 && time.Since(h.start)-turned > stuckAfter:
		http.Error(w, "the agent's loop is stuck", http.StatusServiceUnavailable)
	case r.URL.Path == "/readyz" && !h.ready.Load():
		http.Error(w, "the agent has not written its status yet", http.StatusServiceUnavailable)
	default:
		_, _ = w.Write([]byte("ok\n"))
	}
}

// Serve answers at an address until ctx ends. An address that cannot be used is tried
// again: a host's other programs may have it for a while.
func (h *Health) Serve(ctx context.Context, log *slog.Logger, address string) {
	retry, failed := retries(time.Second, time.Minute), ""
	for ctx.Err() == nil {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err == nil {
			server := &http.Server{Handler: h, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second, MaxHeaderBytes: 8 << 10}
			stop := context.AfterFunc(ctx, func() { _ = server.Close() })
			err = server.Serve(l)
			stop()
		}
		if ctx.Err() != nil || errors.Is(err, http.ErrServerClosed) {
			return
		}
		if err.Error() != failed {
			failed = err.Error()
			log.Error("cannot answer health checks; trying again", "error", err)
		}
		Sleep(ctx, retry.Step())
	}
}
