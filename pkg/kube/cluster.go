// Package kube reads and changes one cluster through its API server. It applies and deletes objects with the version that was
// read, retries failed requests, watches objects until a condition holds, and classifies errors.
//
// Out of scope: which objects to change, and when (pkg/engine).
package kube

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/admission"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/lock"
)

// Cluster is a connection to one cluster.
type Cluster struct {
	// Name is the user's name for the cluster.
	Name string
	// ID is the UID of the kube-system namespace, set by Identify.
	ID string
	// Client reads and writes without a cache.
	Client client.WithWatch
	// URL is the API server's URL in the kubeconfig.
	URL string
	// Server is the API server's address in the kubeconfig, invalid if the kubeconfig has a host name.
	Server netip.Addr
	// DefaultImage is the image of agents that are newly installed.
	DefaultImage string
	// Version is the version of this command.
	Version string
	// Kubectl is the kubectl command line for this cluster, for hints.
	Kubectl string
	// Now returns the time of the API server's clock.
	Now func() time.Time
	// Logs follows the log of a pod in our namespace until its container ends. The caller closes it.
	Logs func(ctx context.Context, pod string) (io.ReadCloser, error)
	// Discovery lists the kinds that the API serves.
	Discovery discovery.ServerResourcesInterface
	// SkipReason is why the cluster is not contacted: it could not be identified, or the user does not want it (ErrSkipped). If
	// not nil, only Unpeer works.
	SkipReason error
	// Responsive ends once the cluster has been unresponsive for [ResponseTimeout], see WatchResponses. Nil if that is not checked.
	Responsive context.Context
}

// ErrSkipped means that the user does not want the cluster to be contacted.
var ErrSkipped = errors.New("not contacted")

// Identify reads the cluster's ID. It is the first request of every command, so it detects an unreachable cluster.
func (c *Cluster) Identify(ctx context.Context) error {
	ns := &corev1.Namespace{}
	err := c.Client.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, ns)
	if err == nil {
		c.ID = string(ns.UID)
		return nil
	}
	e := &Error{Cluster: c.Name, Op: "read its ID from " + c.URL, Err: err}
	e.Kind, e.Hint = classifyError(err, c.Kubectl)
	if request := (*url.Error)(nil); errors.As(err, &request) {
		e.Err = request.Err // without the URL
	}
	hasAnswered := errors.As(err, new(onlyAnswer))
	if ctx.Err() != nil && !hasAnswered { // the request may have failed otherwise, with a response that was cut off
		e.Err = context.Cause(ctx)
		e.Kind, e.Hint = classifyError(e.Err, c.Kubectl)
	}
	switch {
	case errors.Is(e, context.DeadlineExceeded) && !hasAnswered: // of the very first request, whatever the cause
		e.Kind, e.Hint = Unreachable, unreachableHint(c.Kubectl)
	case apierrors.IsNotFound(err):
		e.Kind, e.Hint = Unreachable, hintNoKubernetes
	}
	return e
}

// onlyAnswer is the error of a request that got no answer but this HTTP status until its context ended.
type onlyAnswer struct {
	status int
	cause  error
}

// Error names the status. That the time has ended is no news to the user.
func (o onlyAnswer) Error() string {
	return fmt.Sprintf("the server answers %d %s", o.status, http.StatusText(o.status))
}

// Unwrap returns why the context has ended.
func (o onlyAnswer) Unwrap() error { return o.cause }

// Error is the error type of commands, see package failure.
type Error = failure.Error

// Kind is the class of an Error.
type Kind = failure.Kind

// The classes of errors.
const (
	Unexpected  = failure.Unexpected
	Usage       = failure.Usage
	Unreachable = failure.Unreachable
	Forbidden   = failure.Forbidden
	NotReady    = failure.NotReady
	Ranges      = failure.Ranges
	Identity    = failure.Identity
	OneSided    = failure.OneSided
	Busy        = failure.Busy
)

// Errorf returns an error of the given class in this cluster: what was attempted, why it failed, and a hint.
func (c *Cluster) Errorf(kind Kind, op, hint, why string, args ...any) *Error {
	return &Error{Kind: kind, Cluster: c.Name, Op: op, Hint: hint, Err: fmt.Errorf(why, args...)}
}

// Wrap wraps err with what was attempted in this cluster, and classifies it.
func (c *Cluster) Wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	if e := (*Error)(nil); errors.As(err, &e) {
		return err
	}
	kind, hint := classifyError(err, c.Kubectl)
	if answer := (onlyAnswer{}); errors.As(err, &answer) {
		err = answer // without the URL
	}
	return &Error{Kind: kind, Cluster: c.Name, Op: op, Hint: hint, Err: err}
}

// classifyError returns the class of an error, and what the user can do.
func classifyError(err error, kubectl string) (Kind, string) {
	refused := admission.Hint(err.Error())
	switch {
	case errors.Is(err, errTooLarge):
		return Unexpected, "check that the address in the kubeconfig leads to a Kubernetes API server"
	case refused != "" && errors.As(err, new(apierrors.APIStatus)):
		return Forbidden, refused
	case apierrors.IsForbidden(err) && isRefusedToAll(err.Error()):
		return Forbidden, "a rule of the cluster refuses it to everybody, whoever runs the command: exempt the namespace " + v1alpha1.Namespace + " from it, or meet it"
	case apierrors.IsForbidden(err):
		return Forbidden, "use a kubeconfig whose user may do this (cluster-admin can), or have an administrator run the command"
	case apierrors.IsUnauthorized(err):
		return Forbidden, "the cluster does not accept the credentials of this kubeconfig entry: renew them (try: " + kubectl + " get nodes)"
	case strings.Contains(err.Error(), "getting credentials:"):
		return Forbidden, "the credential plugin of this kubeconfig entry does not work (try: " + kubectl + " get nodes)"
	case apierrors.IsServiceUnavailable(err), apierrors.IsTooManyRequests(err), errors.As(err, new(onlyAnswer)):
		return Unreachable, hintOverloaded
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return NotReady, ""
	case errors.As(err, new(*url.Error)), errors.As(err, new(net.Error)), errors.Is(err, syscall.ECONNREFUSED):
		return Unreachable, unreachableHint(kubectl)
	case errors.Is(err, lock.ErrOvertaken):
		return Busy, ""
	case IsRemoved(err):
		return NotReady, "see kubectl liqonet status, and run the command again if it is still wanted"
	case isUnserved(err):
		return Unreachable, hintNoKubernetes
	case apierrors.IsNotFound(err), apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return Unexpected, "it was changed at the same time: try again"
	case errors.As(err, new(apierrors.APIStatus)):
		return Unexpected, "the API server rejected it because of an admission webhook, a quota or an internal error: try again, or look at its log"
	}
	return Unexpected, ""
}

// isRefusedToAll reports whether an object is forbidden by admission, by its message. Authorization names the user.
func isRefusedToAll(message string) bool {
	return strings.Contains(message, `" is forbidden: `) && !strings.Contains(strings.ToLower(message), "user ") &&
		!strings.Contains(message, "it is being terminated")
}

// isUnserved reports whether the server does not know the path of a request. Of our own kinds, the definition may have been removed.
func isUnserved(err error) bool {
	status := apierrors.APIStatus(nil)
	return apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) && apierrors.IsNotFound(err) &&
		errors.As(err, &status) && status.Status().Details.Group != v1alpha1.GroupVersion.Group
}

const hintNoKubernetes = "the server answers, but not as a Kubernetes API server: check the address in the kubeconfig (is it a proxy, or is a path missing?)"

const hintOverloaded = "the API server is starting or overloaded: try again"

func unreachableHint(kubectl string) string {
	return "check that the API server runs and that the address in the kubeconfig is right (try: " + kubectl + " cluster-info)"
}

// ContextError returns the reason for which ctx ended, instead of the error of the request that was in flight.
func ContextError(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	e, cause := &Error{}, context.Cause(ctx)
	if !errors.As(err, &e) && !errors.Is(err, cause) {
		return err
	}
	if error(e) == cause { // replaced before, by a caller that says more
		return err
	}
	if errors.As(cause, new(*Error)) {
		return cause
	}
	if e.Hint != "" && (errors.Is(e.Err, cause) || errors.As(err, new(onlyAnswer))) {
		return err
	}
	return &Error{
		Kind: NotReady, Cluster: e.Cluster, Op: e.Op, Err: cause,
		Hint: "run the command again, with a longer --timeout if needed",
	}
}

// ErrUninstalling means that another command is removing the ledger.
var ErrUninstalling = errors.New("liqonet is being removed from the cluster")

// ErrUnpeered means that the peer's ledger entry is gone, or is being removed.
var ErrUnpeered = errors.New("the clusters are being unpeered by another command")

// IsRemoved reports whether another command has removed what this command works on.
func IsRemoved(err error) bool { return errors.Is(err, ErrUnpeered) || errors.Is(err, ErrUninstalling) }

const (
	// ResponseTimeout is how long a cluster may be unresponsive before commands on two clusters abort.
	ResponseTimeout = 20 * time.Second
	// probeTimeout is how long a response to a probe may take: a cluster that is slow all the time holds up others, too. At least minFailedProbes
	// have to fail, as this process may have been suspended.
	probeTimeout    = time.Second
	minFailedProbes = 3
)

type (
	responsiveKey     struct{}
	authenticatingKey struct{}
)

// WithAuthentication returns a context for commands whose requests may wait for the user's credentials. That time is not the API server's.
func WithAuthentication(ctx context.Context, isAuthenticating func() bool) context.Context {
	return context.WithValue(ctx, authenticatingKey{}, isAuthenticating)
}

func isAuthenticating(ctx context.Context) bool {
	is, _ := ctx.Value(authenticatingKey{}).(func() bool)
	return is != nil && is()
}

// WatchResponses returns a context that ends, with an Error, once the cluster is unresponsive, and a copy of the
// cluster with it.
func (c *Cluster) WatchResponses(ctx context.Context) (watched *Cluster, watching context.Context, stop context.CancelFunc) {
	responding, end := context.WithCancelCause(context.WithoutCancel(ctx))
	before, _ := ctx.Value(responsiveKey{}).(context.Context)
	responsive, _ := withCancelOn(cmp.Or(before, context.Background()), responding)
	watching, _ = withCancelOn(context.WithValue(ctx, responsiveKey{}, responsive), responding)
	go func() {
		awaitUnresponsive(responding, c.Client)
		end(c.unresponsive())
	}()
	own := *c
	own.Responsive = responding
	own.Client = timed(ctx, c.Client, func() { end(c.unresponsive()) })
	return &own, watching, func() { end(context.Canceled) }
}

// unresponsive is the error of a command that no longer waits for a response.
func (c *Cluster) unresponsive() error {
	hint := "run the command again when it answers (try: " + c.Kubectl + " cluster-info)"
	return c.Errorf(Busy, "wait for its API server", hint, "it has answered nothing, or very slowly, for %s", ResponseTimeout)
}

// awaitUnresponsive returns once an API server has been unresponsive for [ResponseTimeout], or ctx ends. Any response counts.
func awaitUnresponsive(ctx context.Context, api client.Client) {
	answered, unanswered := time.Now(), 0
	for unanswered < minFailedProbes || time.Since(answered) < ResponseTimeout {
		if !failure.Pause(ctx, lock.RenewInterval) {
			return
		}
		asked := time.Now()
		asking, cancel := context.WithTimeout(ctx, probeTimeout)
		err := api.Get(asking, client.ObjectKey{Name: metav1.NamespaceSystem}, &corev1.Namespace{})
		cancel()
		if unanswered++; err == nil || errors.As(err, new(apierrors.APIStatus)) || isAuthenticating(ctx) {
			answered, unanswered = asked, 0
		}
	}
}

// withCancelOn returns a context that also ends when other does, with the same cause.
func withCancelOn(ctx, other context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return ctx, func() { stop(); cancel(nil) }
}

// IsAbandoned reports whether to leave the rest to the next command: a lock was taken over, or a cluster is
// unresponsive.
func IsAbandoned(ctx context.Context) bool {
	return errors.As(context.Cause(ctx), new(*Error)) || lock.Lost(ctx) != nil
}

// Isolated returns a context for changes in one cluster, even if another one is unresponsive. It outlives the command's
// own timeout, needs only that cluster's locks, and ends when that cluster is unresponsive.
func (c *Cluster) Isolated(ctx context.Context, atMost time.Duration) (context.Context, context.CancelFunc) {
	return detached(lock.InCluster(ctx, c.ID), atMost, c.Responsive)
}

// detached returns a context that outlives ctx, and ends with until unless that is nil.
func detached(ctx context.Context, atMost time.Duration, until context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := withCancelOn(context.WithoutCancel(ctx), cmp.Or(until, context.Background()))
	ctx, cancel := context.WithTimeoutCause(ctx, atMost, fmt.Errorf("not done after %s", atMost))
	return ctx, func() { cancel(); stop() }
}

// timed returns a client that calls expire when a single request gets no response within [ResponseTimeout], even while
// others get one. It counts time in steps, as this process may have been suspended.
func timed(ctx context.Context, api client.WithWatch, expire func()) client.WithWatch {
	return around{WithWatch: api, pass: func(_ written, send func() error) error {
		answered := make(chan struct{})
		defer close(answered)
		go func() {
			for steps := ResponseTimeout / lock.RenewInterval; steps > 0; {
				select {
				case <-time.After(lock.RenewInterval):
				case <-answered:
					return
				}
				if !isAuthenticating(ctx) {
					steps--
				}
			}
			expire()
		}()
		return send()
	}}
}

// PodsHint returns the command that shows why our pods do not start.
func (c *Cluster) PodsHint() string {
	return fmt.Sprintf("%s -n %s describe pods", c.Kubectl, v1alpha1.Namespace)
}

// RetryTimeout is how long a request is retried while an API server is unavailable.
const RetryTimeout = 30 * time.Second

// conflictBackoff spreads concurrent writers of one object: twenty commands may change a ledger at once.
var conflictBackoff = wait.Backoff{Duration: 10 * time.Millisecond, Factor: 1.15, Jitter: 0.5, Steps: 40}

// RetryOnConflict repeats a write that failed because the object was changed concurrently. A webhook may use the same status to refuse it.
func RetryOnConflict(fn func() error) error {
	isConflict := func(err error) bool { return apierrors.IsConflict(err) && admission.Hint(err.Error()) == "" }
	return retry.OnError(conflictBackoff, isConflict, fn)
}

// RetryTransport retries requests while an API server, or the path to it, is unavailable: it restarts, is overloaded, or has
// lost its storage. A request may have been executed even without a response, so callers must send idempotent
// requests. It does not retry if another command has taken over the lock, or if the server has never answered, unless to ask for a retry. If
// the context ends before, the error names the last status. It records the key exchange of the last response for
// [WithKeyExchange].
func RetryTransport(next http.RoundTripper) http.RoundTripper { return &retrier{next: next} }

type retrier struct {
	next         http.RoundTripper
	hasResponded atomic.Bool
}

// RoundTrip implements http.RoundTripper.
func (p *retrier) RoundTrip(req *http.Request) (*http.Response, error) {
	backoff := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 30, Cap: 2 * time.Second}
	isWatch := req.URL.Query().Has("watch") // an informer has its own back-off
	start, status, retries := time.Now(), 0, false
	for isFirst := true; ; isFirst = false {
		resp, err := p.next.RoundTrip(req)
		if err == nil {
			SetKeyExchange(req.Context(), classifyKeyExchange(resp.TLS))
		}
		serves := err == nil && isFinal(resp.StatusCode, isFirst)
		if serves {
			p.hasResponded.Store(true)
		}
		retries = retries || p.hasResponded.Load() || err == nil && resp.Header.Get("Retry-After") != ""
		if serves || isWatch || !retries || errors.Is(err, lock.ErrOvertaken) {
			return resp, err
		}
		if err == nil {
			status = resp.StatusCode
			resp.Header.Del("Retry-After") // client-go would start again
		} else if req.Context().Err() == nil {
			status = 0 // it no longer answers
		}
		isLate := time.Since(start) > RetryTimeout || isRefused(resp) && time.Since(start) > RefusalTimeout
		hasEnded := !isLate && !failure.Pause(req.Context(), backoff.Step())
		if isLate || hasEnded && status == 0 {
			return resp, err
		}
		if resp != nil {
			_ = resp.Body.Close()
		}
		if hasEnded {
			return nil, onlyAnswer{status, context.Cause(req.Context())}
		}
		req = req.Clone(req.Context())
		if req.GetBody != nil {
			if req.Body, err = req.GetBody(); err != nil {
				return nil, err
			}
		}
	}
}

// isRefused reports whether the cluster's own rules refuse a request, by a message that may be read again.
func isRefused(resp *http.Response) bool {
	if resp == nil {
		return false
	}
	body := resp.Body
	start, _ := io.ReadAll(io.LimitReader(body, 1<<16)) // the reader of the rest gets the error
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(start), body), body}
	return admission.Hint(string(start)) != ""
}

// isFinal reports whether a status is a final answer to the request.
func isFinal(status int, isFirst bool) bool {
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

// keyExchangeKey is the context key of a *KeyExchange.
type keyExchangeKey struct{}

// WithKeyExchange returns a context for one request. RetryTransport stores the key exchange of its response in to.
func WithKeyExchange(ctx context.Context, to *KeyExchange) context.Context {
	*to = UnknownKeyExchange
	return context.WithValue(ctx, keyExchangeKey{}, to)
}

// SetKeyExchange stores the key exchange for WithKeyExchange.
func SetKeyExchange(ctx context.Context, exchange KeyExchange) {
	if to, ok := ctx.Value(keyExchangeKey{}).(*KeyExchange); ok {
		*to = exchange
	}
}

// classifyKeyExchange classifies the negotiated group. TLS 1.2 with RSA key transport has none.
func classifyKeyExchange(state *tls.ConnectionState) KeyExchange {
	if state == nil || state.CurveID == 0 {
		return UnknownKeyExchange
	}
	switch state.CurveID {
	case tls.X25519MLKEM768, tls.SecP256r1MLKEM768, tls.SecP384r1MLKEM1024:
		return Hybrid
	}
	return Classical
}
