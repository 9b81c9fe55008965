package connect

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
)

// pluginPatience is how long a credential plugin runs until the user is told what the command waits for.
const pluginPatience = 2 * time.Second

// plugin is the credential plugin of a kubeconfig entry. It may ask the user something, or need a port that others need, too. Left to
// client-go, it would run inside of the first request, in its time, and at the same time as those of other clusters.
type plugin struct {
	// name is for the user, key equal for entries that share their credentials.
	name, key string
	// transport runs the plugin unless its credentials are still valid, and sends nothing. client-go keeps them for all requests.
	transport http.RoundTripper
}

// pluginOf returns the plugin of a kubeconfig entry, nil if it has none.
func pluginOf(cfg *rest.Config) (*plugin, error) {
	bare := rest.CopyConfig(cfg)
	bare.WrapTransport = nil
	wrapped, err := bare.TransportConfig()
	if err != nil || wrapped.WrapTransport == nil {
		return nil, err
	}
	p := &plugin{name: "plugin", transport: wrapped.WrapTransport(roundTripper(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
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

// authenticate runs the plugins of the clusters, one after the other, and returns the clusters that have no credentials, with the reasons. A
// plugin that has failed is not run for the next cluster that shares it.
func (s *Source) authenticate(ctx context.Context, clusters []*kube.Cluster) map[*kube.Cluster]error {
	failed, failedPlugins := map[*kube.Cluster]error{}, map[string]error{}
	for _, c := range clusters {
		p := s.plugins[c]
		if p == nil {
			continue
		}
		err, hasFailed := failedPlugins[p.key]
		if !hasFailed {
			err = s.run(ctx, p, c.Name)
		}
		if err != nil {
			failedPlugins[p.key] = err
			e := &kube.Error{Kind: kube.Forbidden, Cluster: c.Name, Op: "run the credential plugin " + p.name, Err: err}
			e.Hint = "the credential plugin of this kubeconfig entry does not work (try: " + c.Kubectl + " get nodes)"
			if ctx.Err() != nil {
				e.Kind, e.Hint = kube.NotReady, "find out what the plugin waits for (try: "+c.Kubectl+" get nodes), or give it more time by --timeout"
			}
			failed[c] = e
		}
	}
	return failed
}

// run runs a plugin for a cluster. If ctx ends before, the plugin continues: client-go cannot end it.
func (s *Source) run(ctx context.Context, p *plugin, cluster string) error {
	done := make(chan error, 1)
	go func() {
		done <- failure.RecoverPanic(func() error {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://credentials.invalid", nil)
			if err == nil {
				_, err = p.transport.RoundTrip(req) //nolint:bodyclose // it has no body
			}
			if err != nil {
				err = errors.New(strings.TrimPrefix(err.Error(), "getting credentials: "))
			}
			return err
		})
	}()
	for late := time.After(pluginPatience); ; {
		select {
		case err := <-done:
			return err
		case <-late:
			if s.Notify != nil {
				s.Notify(fmt.Sprintf("Waiting for the credential plugin %s of %s", p.name, cluster))
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
