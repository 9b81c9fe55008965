package kube

import (
	"context"
	"crypto/tls"
	"net/http"
)

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
