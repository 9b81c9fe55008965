package peering

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
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

func TestFail(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	inRequest := func(err error) error { return &url.Error{Op: "Get", URL: "https://192.0.2.1:6443/api", Err: err} }
	tests := []struct {
		name string
		err  error
		want Kind
		hint bool
	}{
		{name: "anything", err: errors.New("anything"), want: Unexpected},
		{name: "forbidden", err: apierrors.NewForbidden(pods, "x", nil), want: Forbidden, hint: true},
		{name: "forbidden, wrapped", err: fmt.Errorf("read: %w", apierrors.NewForbidden(pods, "x", nil)), want: Forbidden, hint: true},
		{name: "unauthorized", err: apierrors.NewUnauthorized("no"), want: Forbidden, hint: true},
		{name: "connection refused", err: inRequest(refused), want: Unreachable, hint: true},
		{name: "connection refused, bare", err: syscall.ECONNREFUSED, want: Unreachable, hint: true},
		{name: "no such host", err: inRequest(&net.DNSError{Err: "no such host", Name: "x"}), want: Unreachable, hint: true},
		{name: "timeout of a request", err: inRequest(context.DeadlineExceeded), want: NotReady},
		{name: "interrupted", err: inRequest(context.Canceled), want: NotReady},
		{name: "timeout of waiting", err: fmt.Errorf("timed out: %w", context.DeadlineExceeded), want: NotReady},
		{name: "not found", err: apierrors.NewNotFound(pods, "x"), want: Unexpected, hint: true},
		{name: "conflict", err: apierrors.NewConflict(pods, "x", nil), want: Unexpected, hint: true},
		{name: "refused", err: apierrors.NewInternalError(errors.New("webhook")), want: Unexpected, hint: true},
	}
	c := &Cluster{Name: "a"}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := c.fail("read pods", tt.err)
			e := (*Error)(nil)
			if !errors.As(err, &e) || e.Kind != tt.want || (e.Hint != "") != tt.hint {
				t.Errorf("want kind %d, got %#v", tt.want, err)
			}
			if !errors.Is(err, tt.err) {
				t.Error("the cause is lost")
			}
			if want := `cluster "a": read pods: ` + tt.err.Error(); err.Error() != want {
				t.Errorf("want %q, got %q", want, err)
			}
			if again := (&Cluster{Name: "b"}).fail("install", err); again != err {
				t.Errorf("it was wrapped twice: %v", again)
			}
		})
	}
	if err := c.fail("nothing", nil); err != nil {
		t.Errorf("no error became %v", err)
	}
}

func TestErrorText(t *testing.T) {
	tests := []struct {
		err  Error
		want string
	}{
		{Error{Doing: "read"}, "read"},
		{Error{Cluster: "a", Doing: "read"}, `cluster "a": read`},
		{Error{Doing: "read", Err: errors.New("no")}, "read: no"},
		{Error{Cluster: "a", Doing: "read", Err: errors.New("no"), Hint: "try"}, `cluster "a": read: no`},
	}
	for _, tt := range tests {
		if got := tt.err.Error(); got != tt.want {
			t.Errorf("want %q, got %q", tt.want, got)
		}
	}
}

func TestIdentify(t *testing.T) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: "7"}}
	c := newCluster(t, "a", interceptor.Funcs{}, ns)
	if err := c.Identify(t.Context()); err != nil || c.ID != "7" {
		t.Errorf("got %q, %v", c.ID, err)
	}
}

// TestIdentifyErrors talks to a server. As with the CLI's client, the kinds are
// known beforehand.
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
	tests := []struct {
		name    string
		handler http.HandlerFunc
		tls     bool
		config  rest.Config
		want    Kind
	}{
		{name: "connection refused", config: rest.Config{Host: refused.URL}, want: Unreachable},
		{name: "no such host", config: rest.Config{Host: "http://host.invalid"}, want: Unreachable},
		{name: "unauthorized", handler: status(401, metav1.StatusReasonUnauthorized), want: Forbidden},
		{name: "forbidden", handler: status(403, metav1.StatusReasonForbidden), want: Forbidden},
		{name: "no answer", handler: hang, want: Unreachable},
		{name: "a certificate of an unknown authority", handler: status(200, ""), tls: true, want: Unreachable},
		{
			name: "the API server is overloaded or starts", handler: status(503, metav1.StatusReasonServiceUnavailable), want: Unreachable,
		},
		{
			name: "a credential plugin that is not installed", handler: status(200, ""), tls: true, want: Forbidden,
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
			mapper := meta.NewDefaultRESTMapper(nil)
			mapper.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot)
			cl, err := client.NewWithWatch(&cfg, client.Options{Scheme: scheme(t), Mapper: mapper})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeoutCause(t.Context(), 300*time.Millisecond, fmt.Errorf("no answer: %w", context.DeadlineExceeded))
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- (&Cluster{Name: "a", Client: cl}).Identify(ctx) }()
			select {
			case err = <-done:
			case <-time.After(5 * time.Second):
				t.Fatal("it does not return when the context ends")
			}
			e := (*Error)(nil)
			if !errors.As(err, &e) || e.Kind != tt.want || e.Hint == "" {
				t.Errorf("want kind %d with a hint, got %d: %v", tt.want, e.Kind, err)
			}
			if !strings.Contains(err.Error(), `cluster "a"`) {
				t.Errorf("it does not name the cluster: %v", err)
			}
		})
	}
}

// Who stops a command, or gives it too little time, is told so, and what to do.
func TestEnded(t *testing.T) {
	stopped := errors.New("interrupted")
	ctx, stop := context.WithCancelCause(t.Context())
	failed := &Error{Cluster: "a", Doing: "read nodes", Err: errors.New("connection reset")}
	if err := ended(ctx, failed); err != failed {
		t.Errorf("while it goes on: %v", err)
	}
	stop(stopped)
	for name, e := range map[string]*Error{
		"a request was under way":  failed,
		"it waited":                {Cluster: "a", Doing: "wait for an address", Err: stopped},
		"it waited for what it is": {Cluster: "a", Doing: "wait for agents", Err: fmt.Errorf("no report (%w)", stopped), Hint: "look at their logs"},
	} {
		got := (*Error)(nil)
		if !errors.As(ended(ctx, e), &got) || !errors.Is(got.Err, stopped) || got.Hint == "" || got.Doing != e.Doing || e.Hint != "" && got != e {
			t.Errorf("%s: got %+v", name, got)
		}
	}
	if err := ended(ctx, nil); err != nil {
		t.Error(err)
	}
}
