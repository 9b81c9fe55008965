package kube

import (
	"context"
	"crypto/tls"
	"net/http"
)

// KeyExchange is how the two ends of a TLS connection agreed on its key: this program, and whatever ends TLS at the server's address.
type KeyExchange string

const (
	// Hybrid keeps recorded packets closed also to a quantum computer, by ML-KEM beside a curve.
	Hybrid KeyExchange = "hybrid"
	// Classical is by a curve alone.
	Classical KeyExchange = "classical"
	// UnknownKeyExchange is that of a connection without TLS, and of a write that was not followed by its annotation.
	UnknownKeyExchange KeyExchange = "unknown"
)

// exchangeKey is the key of a context's *KeyExchange.
type exchangeKey struct{}

// WithKeyExchange returns a context for one request. WatchKeyExchange then writes the key exchange of its response to that place.
func WithKeyExchange(ctx context.Context, to *KeyExchange) context.Context {
	*to = UnknownKeyExchange
	return context.WithValue(ctx, exchangeKey{}, to)
}

// WatchKeyExchange serves WithKeyExchange. It has to be outside of what repeats requests, to see the response that is accepted.
func WatchKeyExchange(next http.RoundTripper) http.RoundTripper { return exchangeWatcher{next} }

type exchangeWatcher struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (w exchangeWatcher) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := w.next.RoundTrip(req)
	if err == nil {
		SetExchange(req.Context(), exchangeOf(resp.TLS))
	}
	return resp, err
}

// SetExchange tells whoever asked by WithKeyExchange.
func SetExchange(ctx context.Context, by KeyExchange) {
	if to, ok := ctx.Value(exchangeKey{}).(*KeyExchange); ok {
		*to = by
	}
}

// exchangeOf goes by the group. There is none in TLS 1.2 if the server's certificate has the key that encrypts.
func exchangeOf(state *tls.ConnectionState) KeyExchange {
	if state == nil || state.CurveID == 0 {
		return UnknownKeyExchange
	}
	switch state.CurveID {
	case tls.X25519MLKEM768, tls.SecP256r1MLKEM768, tls.SecP384r1MLKEM1024:
		return Hybrid
	}
	return Classical
}
