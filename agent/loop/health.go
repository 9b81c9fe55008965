package loop

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"
)

// stuckAfter is how long one turn of the loop may take. Name servers and the kernel answer much sooner, or not at
// all.
const stuckAfter = 2 * time.Minute

// Health answers the kubelet's health checks. The zero value is healthy.
type Health struct {
	// turned is when the current turn of the loop began, nil while no loop runs.
	turned atomic.Pointer[time.Time]
}

// ServeHTTP fails if the loop is stuck.
func (h *Health) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	if turned := h.turned.Load(); turned != nil && time.Since(*turned) > stuckAfter {
		http.Error(w, "the agent's loop is stuck", http.StatusServiceUnavailable)
		return
	}
	_, _ = w.Write([]byte("ok\n"))
}

// Serve serves HTTP at an address until ctx ends. It retries an address that cannot be used: another program of the
// host may occupy it for a while. what describes the server in errors.
func Serve(ctx context.Context, log *slog.Logger, what string, address netip.AddrPort, handler http.Handler) {
	Keep(ctx, log, func(ctx context.Context) error {
		server := &http.Server{
			Addr: address.String(), Handler: handler, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second, MaxHeaderBytes: 8 << 10,
		}
		defer context.AfterFunc(ctx, func() { _ = server.Close() })()
		return fmt.Errorf("%s: %w", what, server.ListenAndServe())
	})
}
