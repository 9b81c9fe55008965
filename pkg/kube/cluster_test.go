package kube_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

func TestFail(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	inRequest := func(err error) error { return &url.Error{Op: "Get", URL: "https://192.0.2.1:6443/api", Err: err} }
	tests := []struct {
		name string
		err  error
		want kube.Kind
		hint bool
	}{
		{name: "anything", err: errors.New("anything"), want: kube.Unexpected},
		{name: "forbidden", err: apierrors.NewForbidden(pods, "x", nil), want: kube.Forbidden, hint: true},
		{name: "forbidden, wrapped", err: fmt.Errorf("read: %w", apierrors.NewForbidden(pods, "x", nil)), want: kube.Forbidden, hint: true},
		{name: "unauthorized", err: apierrors.NewUnauthorized("no"), want: kube.Forbidden, hint: true},
		{name: "connection refused", err: inRequest(refused), want: kube.Unreachable, hint: true},
		{name: "connection refused, bare", err: syscall.ECONNREFUSED, want: kube.Unreachable, hint: true},
		{name: "no such host", err: inRequest(&net.DNSError{Err: "no such host", Name: "x"}), want: kube.Unreachable, hint: true},
		{name: "timeout of a request", err: inRequest(context.DeadlineExceeded), want: kube.NotReady},
		{name: "interrupted", err: inRequest(context.Canceled), want: kube.NotReady},
		{name: "timeout of waiting", err: fmt.Errorf("timed out: %w", context.DeadlineExceeded), want: kube.NotReady},
		{name: "not found", err: apierrors.NewNotFound(pods, "x"), want: kube.Unexpected, hint: true},
		{name: "conflict", err: apierrors.NewConflict(pods, "x", nil), want: kube.Unexpected, hint: true},
		{name: "refused", err: apierrors.NewInternalError(errors.New("webhook")), want: kube.Unexpected, hint: true},
	}
	c := &kube.Cluster{Name: "a"}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := c.Wrap("read pods", tt.err)
			e := (*kube.Error)(nil)
			if !errors.As(err, &e) || e.Kind != tt.want || (e.Hint != "") != tt.hint {
				t.Errorf("want kind %d, got %#v", tt.want, err)
			}
			if !errors.Is(err, tt.err) {
				t.Error("the cause is lost")
			}
			if want := `cluster "a": read pods: ` + tt.err.Error(); err.Error() != want {
				t.Errorf("want %q, got %q", want, err)
			}
			if again := (&kube.Cluster{Name: "b"}).Wrap("install", err); again != err {
				t.Errorf("it was wrapped twice: %v", again)
			}
		})
	}
	if err := c.Wrap("nothing", nil); err != nil {
		t.Errorf("no error became %v", err)
	}
}

// clusterAt returns the cluster at an address. As in the CLI's client, the kinds are known beforehand.
func clusterAt(t *testing.T, cfg *rest.Config) *kube.Cluster {
	t.Helper()
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot)
	api := kit.Must(client.NewWithWatch(cfg, client.Options{Scheme: kubetest.Scheme(t), Mapper: mapper}))(t)
	return &kube.Cluster{Name: "a", Client: api, URL: cfg.Host}
}

// TestIdentifyErrors talks to a server.
func TestIdentifyErrors(t *testing.T) {
	refused := httptest.NewServer(nil)
	refused.Close()
	status := func(code int, reason metav1.StatusReason) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			_ = json.NewEncoder(w).Encode(metav1.Status{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Code: int32(code), Reason: reason, Message: string(reason),
			})
		}
	}
	hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	cutOff := func(rt http.RoundTripper) http.RoundTripper {
		return kubetest.RoundTripper(func(r *http.Request) (*http.Response, error) {
			if resp, err := rt.RoundTrip(r); err == nil {
				return resp, nil
			}
			header := http.Header{"Content-Type": {"application/vnd.kubernetes.protobuf"}}
			return &http.Response{StatusCode: http.StatusOK, Header: header, Body: http.NoBody, Request: r}, nil
		})
	}
	tests := []struct {
		name    string
		handler http.HandlerFunc
		tls     bool
		config  rest.Config
		want    kube.Kind
	}{
		{name: "connection refused", config: rest.Config{Host: refused.URL}, want: kube.Unreachable},
		{name: "no such host", config: rest.Config{Host: "http://host.invalid"}, want: kube.Unreachable},
		{name: "unauthorized", handler: status(401, metav1.StatusReasonUnauthorized), want: kube.Forbidden},
		{name: "forbidden", handler: status(403, metav1.StatusReasonForbidden), want: kube.Forbidden},
		{name: "no answer", handler: hang, want: kube.Unreachable},
		{name: "another server", handler: http.NotFound, want: kube.Unreachable},
		{name: "an answer that is cut off as the time ends", handler: hang, config: rest.Config{WrapTransport: cutOff}, want: kube.Unreachable},
		{name: "a certificate of an unknown authority", handler: status(200, ""), tls: true, want: kube.Unreachable},
		{
			name: "the API server is overloaded or starts", handler: status(503, metav1.StatusReasonServiceUnavailable), want: kube.Unreachable,
		},
		{
			name: "a credential plugin that is not installed", handler: status(200, ""), tls: true, want: kube.Forbidden,
			config: rest.Config{
				ExecProvider: &clientcmdapi.ExecConfig{
					APIVersion: "client.authentication.k8s.io/v1", Command: "there-is-no-such-plugin", InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
				},
				TLSClientConfig: rest.TLSClientConfig{Insecure: true},
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := tt.config
			cfg.QPS = -1 // as the CLI's client
			if tt.handler != nil {
				server := httptest.NewUnstartedServer(tt.handler)
				server.Config.ErrorLog = log.New(io.Discard, "", 0)
				if tt.tls {
					server.StartTLS()
				} else {
					server.Start()
				}
				defer server.Close()
				defer server.CloseClientConnections()
				cfg.Host = server.URL
			}
			c := clusterAt(t, &cfg)
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, fmt.Errorf("no answer: %w", context.DeadlineExceeded))
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- c.Identify(ctx) }()
			var err error
			select {
			case err = <-done:
			case <-time.After(5 * time.Second):
				t.Fatal("it does not return when the context ends")
			}
			e := (*kube.Error)(nil)
			if !errors.As(err, &e) || e.Kind != tt.want || e.Hint == "" {
				t.Errorf("want kind %d with a hint, got %d: %v", tt.want, e.Kind, err)
			}
			if want := fmt.Sprintf("cluster \"a\": read its ID from %s: ", cfg.Host); !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error()[len(want):], cfg.Host) {
				t.Errorf("it does not begin with %q, or has the URL twice: %v", want, err)
			}
		})
	}
}

// A server that is overloaded or starting answers 429 or 503, usually with the time after which to try again. The error tells that answer,
// not only that the time has ended.
func TestOverloadedFromTheStart(t *testing.T) {
	for name, tt := range map[string]struct {
		status     int
		retryAfter string
		// until is the reason why the time ends, nil if the answer is final.
		until error
		want  string
	}{
		"overloaded, to be tried again": {
			429, "1", failure.TimeoutError("no answer within 1s"),
			"the server answers 429 Too Many Requests",
		},
		"starting, to be tried again": {
			503, "1", failure.TimeoutError("timed out after 1s"),
			"the server answers 503 Service Unavailable",
		},
		"behind a proxy, to be tried again": {
			502, "1", failure.TimeoutError("no answer within 1s"),
			"the server answers 502 Bad Gateway",
		},
		"overloaded": {429, "", nil, "the server has received too many requests and has asked us to try again later (get namespaces kube-system)"},
		"starting":   {503, "", nil, "the server is currently unable to handle the request (get namespaces kube-system)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, end := context.WithCancelCause(t.Context())
			defer end(nil)
			var requests atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if tt.retryAfter != "" {
					w.Header().Set("Retry-After", tt.retryAfter)
				}
				if requests.Add(1) > 1 { // the client has the first answer
					end(tt.until)
				}
				w.WriteHeader(tt.status)
			}))
			defer server.Close()
			c := clusterAt(t, &rest.Config{Host: server.URL, WrapTransport: kube.RetryTransport, QPS: -1})
			err := c.Identify(ctx)
			e := (*kube.Error)(nil)
			if !errors.As(err, &e) || e.Kind != kube.Unreachable || !strings.Contains(e.Hint, "starting or overloaded") {
				t.Fatalf("got %#v", err)
			}
			if want := fmt.Sprintf("cluster \"a\": read its ID from %s: %s", server.URL, tt.want); err.Error() != want {
				t.Errorf("got %s\nwant %s", err, want)
			}
			if tt.until != nil && (!errors.Is(err, tt.until) || kube.ContextError(ctx, err) != err) {
				t.Error("the command replaces this error by the end of its time")
			}
		})
	}
}

// Stopping a command or giving it too short a timeout yields an error that says so, and what to do.
func TestEnded(t *testing.T) {
	stopped := errors.New("interrupted")
	ctx, stop := context.WithCancelCause(t.Context())
	failed := &kube.Error{Cluster: "a", Op: "read nodes", Err: errors.New("connection reset")}
	if err := kube.ContextError(ctx, failed); err != failed {
		t.Errorf("before it ends: %v", err)
	}
	stop(stopped)
	for name, e := range map[string]*kube.Error{
		"it waited for a lock":     {},
		"a request was under way":  failed,
		"it waited":                {Cluster: "a", Op: "wait for an address", Err: stopped},
		"it waited for what it is": {Cluster: "a", Op: "wait for agents", Err: fmt.Errorf("no report (%w)", stopped), Hint: "look at their logs"},
	} {
		got, err := (*kube.Error)(nil), error(e)
		if e.Op == "" {
			err = fmt.Errorf("cluster %q: %w", "a", stopped) // of a package that knows no classes
		}
		if !errors.As(kube.ContextError(ctx, err), &got) || !errors.Is(got.Err, stopped) || got.Hint == "" || got.Op != e.Op || e.Hint != "" && got != e {
			t.Errorf("%s: got %+v", name, got)
		}
	}
	if err := kube.ContextError(ctx, nil); err != nil {
		t.Error(err)
	}
	if other := errors.New("no such file"); kube.ContextError(ctx, other) != other {
		t.Error("an error with another cause is replaced")
	}
}

// A path that the server does not know is no race, except for kinds whose definition may have been removed.
func TestUnknownPathIsNoRace(t *testing.T) {
	for group, isRace := range map[string]bool{"": false, "apps": false, "liqonet.io": true} {
		of := schema.GroupResource{Group: group, Resource: "things"}
		err := (&kube.Cluster{Name: "a"}).Wrap("list things", apierrors.NewGenericServerResponse(404, "get", of, "", "404 page not found", 0, true))
		e := (*kube.Error)(nil)
		kit.ErrorIf(t, !errors.As(err, &e) || strings.Contains(e.Hint, "changed at the same time") != isRace || strings.Contains(e.Hint, "not as a Kubernetes API server") == isRace,
			"group %q: %v", group, err)
	}
}
