package kube

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/lock"
)

// PodsHint returns the command that shows why our pods do not start.
func (c *Cluster) PodsHint() string {
	return fmt.Sprintf("%s -n %s describe pods", c.Kubectl, v1alpha1.Namespace)
}

// RetryTimeout is how long a request is retried while an API server is unavailable.
const RetryTimeout = 30 * time.Second

// conflictBackoff spreads concurrent writers of one object: twenty commands may change a ledger at once.
var conflictBackoff = wait.Backoff{Duration: 10 * time.Millisecond, Factor: 1.15, Jitter: 0.5, Steps: 40}

// RetryOnConflict repeats a write that failed because the object was changed concurrently.
func RetryOnConflict(do func() error) error { return retry.RetryOnConflict(conflictBackoff, do) }

// Retrying retries requests while an API server, or the path to it, is unavailable: it restarts, is overloaded, or has
// lost its storage. A request may have been executed even without a response, so callers must send idempotent
// requests. It does not retry if the server has never answered, or if another command has taken over the lock.
func Retrying(next http.RoundTripper) http.RoundTripper { return &retrier{next: next} }

type retrier struct {
	next     http.RoundTripper
	answered atomic.Bool
}

// statusKey is the context key of an *int, for the status of the last response to a request.
type statusKey struct{}

// RoundTrip implements http.RoundTripper.
func (p *retrier) RoundTrip(req *http.Request) (*http.Response, error) {
	backoff := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 30, Cap: 2 * time.Second}
	isWatch := req.URL.Query().Has("watch") // an informer has its own back-off
	start := time.Now()
	for isFirst := true; ; isFirst = false {
		resp, err := p.next.RoundTrip(req)
		if last, isWanted := req.Context().Value(statusKey{}).(*int); isWanted && err == nil {
			*last = resp.StatusCode
		}
		serves := err == nil && isServed(resp.StatusCode, isFirst)
		if serves {
			p.answered.Store(true)
		}
		if serves || isWatch || !p.answered.Load() || errors.Is(err, lock.ErrOvertaken) || time.Since(start) > RetryTimeout {
			return resp, err
		}
		select {
		case <-time.After(backoff.Step()):
		case <-req.Context().Done():
			return resp, err
		}
		if resp != nil {
			_ = resp.Body.Close()
		}
		req = req.Clone(req.Context())
		if req.GetBody != nil {
			if req.Body, err = req.GetBody(); err != nil {
				return nil, err
			}
		}
	}
}

// isServed reports whether a status is a final answer to the request.
func isServed(status int, isFirst bool) bool {
	switch status {
	case http.StatusForbidden, http.StatusUnauthorized:
		// A server that has just started does not yet know permissions and tokens.
		return isFirst
	case http.StatusTooManyRequests:
		return false
	}
	return status < http.StatusInternalServerError || status == http.StatusNotImplemented
}

// KeyExchange is the kind of key exchange of a TLS connection between this program and the server that terminates TLS.
type KeyExchange string

const (
	// Hybrid combines ML-KEM with an elliptic curve, which protects recorded traffic even from a quantum computer.
	Hybrid KeyExchange = "hybrid"
	// Classical uses an elliptic curve only.
	Classical KeyExchange = "classical"
	// UnknownKeyExchange is for connections without TLS, and for writes whose annotation is missing.
	UnknownKeyExchange KeyExchange = "unknown"
)

// exchangeKey is the context key of a *KeyExchange.
type exchangeKey struct{}

// WithKeyExchange returns a context for one request. WatchKeyExchange stores the key exchange of its response in to.
func WithKeyExchange(ctx context.Context, to *KeyExchange) context.Context {
	*to = UnknownKeyExchange
	return context.WithValue(ctx, exchangeKey{}, to)
}

// WatchKeyExchange records key exchanges for WithKeyExchange. It must wrap the transport that retries, to see the
// final response.
func WatchKeyExchange(next http.RoundTripper) http.RoundTripper { return exchangeWatcher{next} }

type exchangeWatcher struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (w exchangeWatcher) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := w.next.RoundTrip(req)
	if err == nil {
		SetExchange(req.Context(), classify(resp.TLS))
	}
	return resp, err
}

// SetExchange stores the key exchange for WithKeyExchange.
func SetExchange(ctx context.Context, by KeyExchange) {
	if to, ok := ctx.Value(exchangeKey{}).(*KeyExchange); ok {
		*to = by
	}
}

// classify classifies the negotiated group. TLS 1.2 with RSA key transport has none.
func classify(state *tls.ConnectionState) KeyExchange {
	if state == nil || state.CurveID == 0 {
		return UnknownKeyExchange
	}
	switch state.CurveID {
	case tls.X25519MLKEM768, tls.SecP256r1MLKEM768, tls.SecP384r1MLKEM1024:
		return Hybrid
	}
	return Classical
}
