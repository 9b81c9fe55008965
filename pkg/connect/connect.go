// Package connect finds the clusters that a command line names, in kubeconfigs, and connects to them.
//
// Out of scope: requests to them (pkg/kube), except for their ID.
package connect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // credentials of all providers, as kubectl
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/pkg/version"
)

// identifyTimeout limits the first request to a cluster.
const identifyTimeout = 10 * time.Second

// Source is where clusters are found, and how they are accessed.
type Source struct {
	// Kubeconfig is the kubeconfig file, empty for $KUBECONFIG or the default file.
	Kubeconfig string
	// Context replaces the current context of the kubeconfig.
	Context string
	// Overrides apply to all clusters.
	Overrides clientcmd.ConfigOverrides
	// Notify, if set, tells the user what takes long.
	Notify func(string)

	// turn is held while a credential plugin runs. It guards the last failures of plugins, by their key.
	turn     sync.Mutex
	failures map[string]pluginFailure
	// running is since when one runs, nil if none does.
	running atomic.Pointer[time.Time]
}

// Identify resolves the named clusters and reads their IDs. It sets the SkipReason of those that do not respond.
func (s *Source) Identify(ctx context.Context, refs []string) ([]*kube.Cluster, error) {
	plugins := make([]*plugin, len(refs))
	out, err := lo.MapErr(refs, func(ref string, i int) (c *kube.Cluster, err error) {
		c, plugins[i], err = s.resolve(ref)
		return c, err
	})
	if err != nil {
		return nil, err
	}
	distinguish(out, refs)
	failed := s.authenticate(ctx, out, plugins)
	ctx, cancel := context.WithTimeoutCause(ctx, identifyTimeout, failure.TimeoutError(fmt.Sprintf("no answer within %s", identifyTimeout)))
	defer cancel()
	_, errs := failure.Map(out, func(c *kube.Cluster) (any, error) {
		if failed[slices.Index(out, c)] != nil {
			return nil, nil
		}
		return nil, c.Identify(ctx)
	})
	for i, c := range out {
		c.SkipReason = cmp.Or(failed[i], errs[i])
	}
	return out, nil
}

// NamedOrCurrent identifies the named clusters. Without names, it identifies the cluster of the current context, and also returns the
// contexts in which its peers may be found.
func (s *Source) NamedOrCurrent(ctx context.Context, command string, refs []string) ([]*kube.Cluster, []string, error) {
	if len(refs) > 0 {
		if s.Context != "" {
			return nil, nil, failure.Usagef("name the clusters in one way", "--context is for commands without a CLUSTER argument")
		}
		clusters, err := s.Identify(ctx, refs)
		return clusters, nil, err
	}
	_, raw, err := Kubeconfig(s.Kubeconfig)
	if err != nil {
		return nil, nil, err
	}
	current := cmp.Or(s.Context, raw.CurrentContext)
	if current == "" {
		hint := fmt.Sprintf("name a cluster (kubectl liqonet %s CLUSTER), or set one (kubectl config use-context NAME)", command)
		return nil, nil, failure.Usagef(hint, "the kubeconfig has no current context")
	}
	clusters, err := s.Identify(ctx, []string{current})
	return clusters, slices.Collect(maps.Keys(raw.Contexts)), err
}

// distinguish renames clusters whose contexts have the same name, as in two kubeadm files, to the names that the user typed.
func distinguish(clusters []*kube.Cluster, refs []string) {
	count := lo.CountValuesBy(clusters, func(c *kube.Cluster) string { return c.Name })
	for i, c := range clusters {
		if count[c.Name] > 1 {
			c.Name = refs[i]
		}
	}
}

// Resolve connects to the kubeconfig context that a CLUSTER argument names.
func (s *Source) Resolve(ref string) (*kube.Cluster, error) {
	c, _, err := s.resolve(ref)
	return c, err
}

// resolve also returns the cluster's credential plugin, nil if it has none.
func (s *Source) resolve(ref string) (*kube.Cluster, *plugin, error) {
	rules, raw, err := Kubeconfig(s.Kubeconfig)
	if err == nil && raw.Contexts[ref] != nil {
		return s.connect(ref, ref, raw, rules)
	}
	file, contextName, _ := strings.Cut(ref, "#")
	// A file may name a program that is run. So a mistyped context must not open a file in a directory to which others may write.
	isPath := strings.ContainsAny(file, "/"+string(os.PathSeparator))
	if info, statErr := os.Stat(file); !isPath || statErr != nil || info.IsDir() {
		if err == nil {
			hint := "known contexts: " + names(raw) + lo.Ternary(!isPath && statErr == nil, "; for the file, give its path, such as ./"+file, "")
			err = failure.Usagef(hint, "cluster %q is neither a context of the kubeconfig nor the path of a kubeconfig file", ref)
		}
		return nil, nil, err
	}
	if rules, raw, err = Kubeconfig(file); err != nil {
		return nil, nil, err
	}
	name := contextName
	if contextName == "" {
		contextName = raw.CurrentContext
		name = strings.TrimLeft(filepath.Base(file), ".")
		name = strings.TrimSuffix(name, filepath.Ext(name))
	}
	if raw.Contexts[contextName] == nil {
		return nil, nil, failure.Usagef("its contexts: "+names(raw)+"; name one as FILE#CONTEXT", "kubeconfig %s has no context %q", file, contextName)
	}
	return s.connect(name, contextName, raw, rules)
}

// names lists the contexts of a kubeconfig.
func names(raw *clientcmdapi.Config) string {
	return strings.Join(slices.Sorted(maps.Keys(raw.Contexts)), ", ")
}

// Kubeconfig reads a kubeconfig file. Without a name, it merges the default files, as kubectl does.
func Kubeconfig(file string) (*clientcmd.ClientConfigLoadingRules, *clientcmdapi.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = file
	raw, err := rules.Load()
	files := strings.Join(rules.GetLoadingPrecedence(), ", ")
	switch {
	case err != nil:
		return nil, nil, failure.Usagef("check that the file is a kubeconfig and readable (try: ls -l "+files+")", "read kubeconfig %s: %v", files, err)
	case len(raw.Contexts) == 0:
		const hint = "set $KUBECONFIG or --kubeconfig, or name a kubeconfig file instead of a context"
		return nil, nil, failure.Usagef(hint, "no kubeconfig with a context found (looked at: %s)", files)
	}
	return rules, raw, nil
}

func (s *Source) connect(name, contextName string, raw *clientcmdapi.Config, rules *clientcmd.ClientConfigLoadingRules) (*kube.Cluster, *plugin, error) {
	kubectl := "kubectl" + lo.Ternary(rules.ExplicitPath == "", "", " --kubeconfig "+failure.Quote(rules.ExplicitPath)) + " --context " + failure.Quote(contextName)
	if cluster := raw.Contexts[contextName].Cluster; raw.Clusters[cluster] == nil {
		return nil, nil, failure.Usagef("try: kubectl config get-contexts", "context %q names cluster %q, which the kubeconfig does not have", contextName, cluster)
	}
	cfg, err := clientcmd.NewNonInteractiveClientConfig(*raw, contextName, &s.Overrides, rules).ClientConfig()
	if err != nil {
		return nil, nil, failure.Usagef("try: "+kubectl+" get nodes", "cluster %q: read context %q of the kubeconfig: %v", name, contextName, err)
	}
	// Commands send many small requests in parallel. The API server limits them by priority and fairness.
	cfg.QPS, cfg.Burst = -1, -1
	cfg.UserAgent = "kubectl-liqonet"
	cfg.WarningHandler = rest.NoWarnings{}
	cfg.Wrap(kube.LimitTransport)
	own, pluginErr := pluginOf(cfg)
	clock := &serverClock{}
	cfg.Wrap(clock.wrap)
	scheme, schemeErr := newScheme()
	// Discovery requests have no context, so they need a separate timeout.
	asking := rest.CopyConfig(cfg)
	asking.Timeout = identifyTimeout
	asking.Wrap(refuseRedirects)
	if own != nil {
		asking.Wrap(failRejected)
	}
	asker, askerErr := s.clientOf(asking, own, name)
	d, discoveryErr := discovery.NewDiscoveryClientForConfigAndClient(asking, asker)
	cfg.Wrap(lock.Guard) // called for each attempt of a retried request
	cfg.Wrap(kube.RetryTransport)
	cfg.Wrap(refuseRedirects)
	if own != nil {
		cfg.Wrap(failRejected)
	}
	sender, senderErr := s.clientOf(cfg, own, name)
	c, clientErr := client.NewWithWatch(cfg, client.Options{HTTPClient: sender, Scheme: scheme, Mapper: kindMapper{
		static: staticMapper(scheme), RESTMapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(d)),
	}})
	core, coreErr := corev1client.NewForConfigAndClient(cfg, sender)
	if err := cmp.Or(pluginErr, schemeErr, askerErr, discoveryErr, senderErr, clientErr, coreErr); err != nil {
		return nil, nil, fmt.Errorf("cluster %q: %w", name, err)
	}
	logs := func(ctx context.Context, pod string) (io.ReadCloser, error) {
		return core.Pods(v1alpha1.Namespace).GetLogs(pod, &corev1.PodLogOptions{Follow: true}).Stream(ctx)
	}
	connected := &kube.Cluster{
		Name: name, Client: kube.Paged(c), URL: cfg.Host, Server: serverAddress(cfg), Discovery: d, Logs: logs,
		DefaultImage: version.AgentImage(version.String()), Version: version.String(), Kubectl: kubectl, Now: clock.now,
	}
	return connected, own, nil
}

// serverAddress returns the API server's address, invalid if it is a name: nodes may resolve the name to another address than the user.
func serverAddress(cfg *rest.Config) netip.Addr {
	server, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return netip.Addr{}
	}
	addr, _ := netip.ParseAddr(server.Hostname())
	return addr
}

// kindMapper queries the API server only for kinds that are not known beforehand. Unlike meta.FirstHitRESTMapper, it preserves the class
// of an error.
type kindMapper struct {
	meta.RESTMapper
	static meta.RESTMapper
}

// RESTMapping returns the resource of a kind.
func (k kindMapper) RESTMapping(gk schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	if m, err := k.static.RESTMapping(gk, versions...); err == nil {
		return m, nil
	}
	return k.RESTMapper.RESTMapping(gk, versions...)
}

// staticMapper returns a mapper of the scheme's kinds. It lists the cluster-scoped kinds that commands use, and treats all others as
// namespaced.
func staticMapper(s *runtime.Scheme) meta.RESTMapper {
	ofCluster := sets.New("Namespace", "Node", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "SelfSubjectAccessReview",
		"ServiceCIDR", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ClusterNetwork", "Peering", "NodeNetwork",
		"ExportedService", "ReceivedService")
	m := meta.NewDefaultRESTMapper(nil)
	for kind := range s.AllKnownTypes() {
		m.Add(kind, lo.Ternary(ofCluster.Has(kind.Kind), meta.RESTScopeRoot, meta.RESTScopeNamespace))
	}
	return m
}

func newScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(clientgoscheme.AddToScheme(s), apiextensionsv1.AddToScheme(s), v1alpha1.AddToScheme(s), mcs.AddToScheme(s))
}

// serverClock is the API server's clock, to the second, from the Date headers of its responses. Timestamps of objects are in its time,
// while this machine's clock may be wrong.
type serverClock struct{ ahead atomic.Int64 }

func (c *serverClock) now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// wrap reads the clock from every response.
func (c *serverClock) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(r)
		if err == nil {
			if date, dateErr := http.ParseTime(resp.Header.Get("Date")); dateErr == nil {
				c.ahead.Store(int64(time.Until(date)))
			}
		}
		return resp, err
	})
}

// refuseRedirects fails requests that the server redirects. Another server would get the credentials, and its answers, such as the key that
// proves an identity, would be taken for those of this one.
func refuseRedirects(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(r)
		if err != nil || resp.Header.Get("Location") == "" || resp.StatusCode < 300 || resp.StatusCode > 399 {
			return resp, err
		}
		_ = resp.Body.Close()
		return nil, fmt.Errorf("the server redirects to %q: redirects of API servers are not followed", resp.Header.Get("Location"))
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
