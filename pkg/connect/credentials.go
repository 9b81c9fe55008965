package connect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/samber/lo"
	"k8s.io/client-go/rest"

	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
)

// pluginPatience is how long a credential plugin runs until the user is told what the command waits for.
const pluginPatience = 2 * time.Second

// failureMemory is how long a failed plugin is not run again: for contexts that share it, and for requests that waited for it. Each run may
// ask the user something.
const failureMemory = time.Second

// plugin is the credential plugin of a kubeconfig entry. It may ask the user something, or need a port that others need, too. Left to
// client-go, it would run inside of a request, in its time, and at the same time as those of other clusters.
type plugin struct {
	// name is for the user, key equal for entries that share their credentials.
	name, key string
	// transport runs the plugin unless its credentials are valid, and sends nothing. client-go keeps them for all requests.
	transport http.RoundTripper
}

// pluginFailure is the last failure of a plugin.
type pluginFailure struct {
	err error
	at  time.Time
}

// rejected is the response of a server that does not accept the credentials in the header.
type rejected struct {
	*http.Response
	credentials string
}

func (*rejected) Error() string { return "the server does not accept the credentials" }

// failRejected returns such responses as errors, so that client-go does not run the plugin inside of the request.
func failRejected(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(req)
		if err == nil && resp.StatusCode == http.StatusUnauthorized {
			return nil, &rejected{resp, req.Header.Get("Authorization")}
		}
		return resp, err
	})
}

type rejectedKey struct{}

// pluginOf returns the plugin of a kubeconfig entry, nil if it has none.
func pluginOf(cfg *rest.Config) (*plugin, error) {
	bare := rest.CopyConfig(cfg)
	bare.WrapTransport = nil
	wrapped, err := bare.TransportConfig()
	if err != nil || wrapped.WrapTransport == nil {
		return nil, err
	}
	p := &plugin{name: "plugin", transport: wrapped.WrapTransport(roundTripper(func(req *http.Request) (*http.Response, error) {
		status := http.StatusOK
		if no, _ := req.Context().Value(rejectedKey{}).(*rejected); no != nil && no.credentials == req.Header.Get("Authorization") {
			status = http.StatusUnauthorized // client-go renews the credentials, unless it has done so before
		}
		return &http.Response{StatusCode: status, Body: http.NoBody}, nil
	}))}
	if e := cfg.ExecProvider; e != nil {
		p.name, p.key = filepath.Base(e.Command), fmt.Sprintf("%q %q %q", e.Command, e.Args, e.Env)
		if e.ProvideClusterInfo {
			p.key += cfg.Host
		}
	} else if a := cfg.AuthProvider; a != nil {
		p.name, p.key = a.Name, fmt.Sprintf("%s %q", a.Name, a.Config)
	}
	return p, nil
}

// authenticate runs the plugins of the clusters, one after the other. It returns the errors of clusters that have no credentials.
func (s *Source) authenticate(ctx context.Context, clusters []*kube.Cluster, plugins []*plugin) []error {
	return lo.Map(clusters, func(c *kube.Cluster, i int) error {
		p := plugins[i]
		if p == nil {
			return nil
		}
		err := s.run(ctx, p, c.Name, nil)
		if err == nil {
			return nil
		}
		e := &kube.Error{Kind: kube.Forbidden, Cluster: c.Name, Op: "run the credential plugin " + p.name, Err: err}
		e.Hint = "the credential plugin of this kubeconfig entry does not work (try: " + c.Kubectl + " get nodes)"
		if ctx.Err() != nil {
			e.Kind, e.Hint = kube.NotReady, "find out what the plugin waits for (try: "+c.Kubectl+" get nodes), or give it more time by --timeout"
		}
		return e
	})
}

// clientOf returns the HTTP client of a cluster. Before each request, it runs the plugin if its credentials have expired. It repeats a request
// whose credentials are rejected with new ones, once. The time of a request does not include that.
func (s *Source) clientOf(cfg *rest.Config, p *plugin, cluster string) (*http.Client, error) {
	out, err := rest.HTTPClientFor(cfg)
	if err != nil || p == nil {
		return out, err
	}
	return &http.Client{Transport: roundTripper(func(req *http.Request) (*http.Response, error) {
		no := (*rejected)(nil)
		for isFirst := true; ; isFirst = false {
			if err := s.run(req.Context(), p, cluster, no); err != nil {
				return nil, fmt.Errorf("%s%w", lo.Ternary(req.Context().Err() == nil, "getting credentials: ", "wait for the credential plugin "+p.name+": "), err)
			}
			one := req.Clone(req.Context())
			if !isFirst && req.GetBody != nil {
				if one.Body, err = req.GetBody(); err != nil {
					return nil, err
				}
			}
			resp, err := out.Do(one)
			if e, is := errors.AsType[*url.Error](err); is {
				err = e.Err // this request has one of its own
			}
			is := false
			if no, is = errors.AsType[*rejected](err); !is {
				return resp, err
			} else if !isFirst {
				return no.Response, nil
			}
			_ = no.Body.Close()
		}
	})}, nil
}

// run runs a plugin for a cluster, unless its credentials are valid and not those that were rejected. If ctx ends before, the plugin continues:
// client-go cannot end it.
func (s *Source) run(ctx context.Context, p *plugin, cluster string, no *rejected) error {
	done := make(chan error, 1)
	go func() {
		done <- failure.RecoverPanic(func() error { return s.runInTurn(context.WithValue(ctx, rejectedKey{}, no), p, cluster) })
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// runInTurn runs a plugin while no other one runs.
func (s *Source) runInTurn(ctx context.Context, p *plugin, cluster string) error {
	s.turn.Lock()
	defer s.turn.Unlock()
	if last := s.failures[p.key]; ctx.Err() != nil || time.Since(last.at) < failureMemory {
		return cmp.Or(context.Cause(ctx), last.err)
	}
	s.running.Store(new(time.Now()))
	defer s.running.Store(nil)
	defer time.AfterFunc(pluginPatience, func() {
		if s.Notify != nil {
			s.Notify(fmt.Sprintf("Waiting for the credential plugin %s of %s", p.name, cluster))
		}
	}).Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://credentials.invalid", nil)
	if err == nil {
		_, err = p.transport.RoundTrip(req) //nolint:bodyclose // it has no body
	}
	if err != nil {
		err = errors.New(strings.TrimPrefix(err.Error(), "getting credentials: "))
		s.failures = lo.Assign(s.failures, map[string]pluginFailure{p.key: {err, time.Now()}})
	}
	return err
}

// IsAuthenticating reports whether a credential plugin runs, which may ask the user something. Reading valid credentials takes less time.
func (s *Source) IsAuthenticating() bool {
	const reading = 10 * time.Millisecond
	since := s.running.Load()
	return since != nil && time.Since(*since) > reading
}
