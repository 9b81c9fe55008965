package loop

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"
)

// stuckAfter is how long one turn of the loop may take. Name servers and the kernel
// answer much sooner, or not at all.
const stuckAfter = 2 * time.Minute

// Health answers the kubelet. The zero value is healthy.
type Health struct {
	// turned is when the loop began its last turn; nil while no loop runs.
	turned atomic.Pointer[time.Time]
}

// ServeHTTP fails if the loop does not turn any more.
func (h *Health) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	if turned := h.turned.Load(); turned != nil && time.Since(*turned) > stuckAfter {
		http.Error(w, "the agent's loop is stuck", http.StatusServiceUnavailable)
		return
	}
	_, _ = w.Write([]byte("ok\n"))
}

// Serve answers by a handler at an address until ctx ends. One that cannot be used is tried again: a
// host's other programs may have it for a while. what is said of an error.
func Serve(ctx context.Context, log *slog.Logger, what, address string, handler http.Handler) {
	Keep(ctx, log, func(ctx context.Context) error {
		server := &http.Server{Addr: address, Handler: handler, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second, MaxHeaderBytes: 8 << 10}
		defer context.AfterFunc(ctx, func() { _ = server.Close() })()
		return fmt.Errorf("%s: %w", what, server.ListenAndServe())
	})
}
