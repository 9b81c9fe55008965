package cli

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
	"github.com/spf13/cobra"
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

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/pkg/version"
)

// identifyTimeout is how long a cluster may take to answer the first request.
const identifyTimeout = 10 * time.Second

// clusters connects to all clusters that were named, and identifies them.
func (g *globals) clusters(ctx context.Context, refs ...string) ([]*kube.Cluster, error) {
	out, err := g.identify(ctx, refs)
	err = cmp.Or(interrupted(ctx, "ask the clusters who they are"), err)
	return out, cmp.Or(append([]error{err}, reasons(out)...)...)
}

// onTwo does something with two clusters, by the arguments of a command.
type onTwo func(ctx context.Context, a, b *kube.Cluster, args []string) error

// ofTwo gives a command what those about two clusters have in common: these are its first arguments, and it has the --timeout flag.
func (g *globals) ofTwo(cmd *cobra.Command, d time.Duration, run onTwo) *cobra.Command {
	cmd.ValidArgsFunction = g.completeContexts(2)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		clusters, err := g.clusters(cmd.Context(), args[:2]...)
		if err != nil {
			return err
		}
		return run(cmd.Context(), clusters[0], clusters[1], args)
	}
	return addTimeout(cmd, d)
}

// reasons are why clusters did not answer, in their order; nil of those that did.
func reasons(clusters []*kube.Cluster) []error {
	return lo.Map(clusters, func(c *kube.Cluster, _ int) error { return c.SkipReason })
}

// interrupted says so where the user has interrupted a command, and not how the requests failed that this has canceled.
func interrupted(ctx context.Context, doing string) error {
	if !errors.Is(context.Cause(ctx), errInterrupted) {
		return nil
	}
	return &failure.Error{Kind: failure.NotReady, Doing: doing, Err: errInterrupted, Hint: "run the command again"}
}

// identify finds the kubeconfig entries of all clusters that were named, and asks the
// clusters who they are. Those that do not answer have the reason in them.
func (g *globals) identify(ctx context.Context, refs []string) ([]*kube.Cluster, error) {
	out, err := lo.MapErr(refs, func(ref string, _ int) (*kube.Cluster, error) { return g.resolve(ref) })
	if err != nil {
		return nil, err
	}
	distinguish(out, refs)
	silent := fmt.Errorf("no answer within %s: %w", identifyTimeout, context.DeadlineExceeded)
	ctx, cancel := context.WithTimeoutCause(ctx, identifyTimeout, silent)
	defer cancel()
	_, errs := inParallel(out, func(c *kube.Cluster) (any, error) { return nil, c.Identify(ctx) })
	for i, c := range out {
		c.SkipReason = errs[i]
	}
	return out, nil
}

// inParallel calls do for all of in at the same time, and returns what came of each.
func inParallel[T, R any](in []T, do func(T) (R, error)) ([]R, []error) {
	results, errs := make([]R, len(in)), make([]error, len(in))
	var wg sync.WaitGroup
	for i, x := range in {
		wg.Go(func() {
			errs[i] = failure.Caught(func() (err error) { results[i], err = do(x); return err })
		})
	}
	wg.Wait()
	return results, errs
}

// named are the clusters of a command line, after they were asked who they are. Where it names none, it is that of the current context,
// and the contexts are those in which its peers can be found.
func (g *globals) named(ctx context.Context, command string, refs []string) ([]*kube.Cluster, map[string]*clientcmdapi.Context, error) {
	_, raw, err := loadKubeconfig(g.kubeconfig)
	if err != nil {
		return nil, nil, err
	}
	if len(refs) > 0 {
		clusters, err := g.identify(ctx, refs)
		return clusters, nil, err
	}
	if raw.CurrentContext == "" {
		hint := fmt.Sprintf("name a cluster (kubectl liqonet %s CLUSTER), or set one (kubectl config use-context NAME)", command)
		return nil, nil, usageError(hint, "the kubeconfig has no current context")
	}
	clusters, err := g.identify(ctx, []string{raw.CurrentContext})
	return clusters, raw.Contexts, err
}

// checkDistinct refuses two names of one cluster.
func checkDistinct(clusters ...*kube.Cluster) error {
	for _, same := range lo.PartitionBy(clusters, func(c *kube.Cluster) string { return c.ID }) {
		if same[0].ID != "" && len(same) > 1 {
			const hint = "name different clusters; see kubectl config get-contexts"
			return usageError(hint, "%q and %q are the same cluster", same[0].Name, same[1].Name)
		}
	}
	return nil
}

// distinguish gives clusters whose contexts have the same name, as those of two
// kubeadm files have, the names that the user typed.
func distinguish(clusters []*kube.Cluster, refs []string) {
	count := lo.CountValuesBy(clusters, func(c *kube.Cluster) string { return c.Name })
	for i, c := range clusters {
		if count[c.Name] > 1 {
			c.Name = refs[i]
		}
	}
}

// resolve finds the kubeconfig entry that a CLUSTER argument names.
func (g *globals) resolve(ref string) (*kube.Cluster, error) {
	rules, raw, err := loadKubeconfig(g.kubeconfig)
	if err != nil {
		return nil, err
	}
	if raw.Contexts[ref] != nil {
		return connect(ref, ref, raw, rules)
	}
	file, contextName, _ := strings.Cut(ref, "#")
	if info, err := os.Stat(file); err != nil || info.IsDir() {
		known := cmp.Or(contextNames(raw), "none in "+strings.Join(rules.GetLoadingPrecedence(), ", ")+"; set $KUBECONFIG or --kubeconfig, or name a file")
		return nil, usageError("known contexts: "+known, "cluster %q is neither a context of the kubeconfig nor a kubeconfig file", ref)
	}
	if rules, raw, err = loadKubeconfig(file); err != nil {
		return nil, err
	}
	name := contextName
	if contextName == "" {
		contextName = raw.CurrentContext
		name = strings.TrimLeft(filepath.Base(file), ".")
		name = strings.TrimSuffix(name, filepath.Ext(name))
	}
	if raw.Contexts[contextName] == nil {
		return nil, usageError("its contexts: "+contextNames(raw)+"; name one as FILE#CONTEXT", "kubeconfig %s has no context %q", file, contextName)
	}
	return connect(name, contextName, raw, rules)
}

func contextNames(raw *clientcmdapi.Config) string {
	return strings.Join(slices.Sorted(maps.Keys(raw.Contexts)), ", ")
}

// completeContexts offers the contexts of the kubeconfig for the first n
// arguments, and files as well.
func (g *globals) completeContexts(n int) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) >= n {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		_, raw, err := loadKubeconfig(g.kubeconfig)
		if err != nil {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return lo.Without(slices.Sorted(maps.Keys(raw.Contexts)), args...), cobra.ShellCompDirectiveDefault
	}
}

// loadKubeconfig reads a kubeconfig file. Without a name it merges the default ones, as
// kubectl does.
func loadKubeconfig(file string) (*clientcmd.ClientConfigLoadingRules, *clientcmdapi.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = file
	raw, err := rules.Load()
	if err != nil {
		return nil, nil, usageError("is it a kubeconfig that you may read? (try: kubectl config view)", "read kubeconfig %s: %v",
			strings.Join(rules.GetLoadingPrecedence(), ", "), err)
	}
	return rules, raw, nil
}

func connect(name, contextName string, raw *clientcmdapi.Config, rules *clientcmd.ClientConfigLoadingRules) (*kube.Cluster, error) {
	kubectl := "kubectl --context " + contextName
	if rules.ExplicitPath != "" {
		kubectl = fmt.Sprintf("kubectl --kubeconfig %s --context %s", rules.ExplicitPath, contextName)
	}
	cfg, err := clientcmd.NewNonInteractiveClientConfig(*raw, contextName, &clientcmd.ConfigOverrides{}, rules).ClientConfig()
	if err != nil {
		return nil, usageError("try: "+kubectl+" get nodes", "cluster %q: read context %q of the kubeconfig: %v", name, contextName, err)
	}
	// Commands send many small requests in parallel; the server limits them by
	// its own priority and fairness.
	cfg.QPS, cfg.Burst = -1, -1
	cfg.UserAgent = "kubectl-liqonet"
	cfg.WarningHandler = rest.NoWarnings{}
	clock := &serverClock{}
	cfg.Wrap(clock.watch)
	scheme, schemeErr := newScheme()
	// Requests for kinds have no context, so they get a timeout of their own.
	asking := rest.CopyConfig(cfg)
	asking.Timeout = identifyTimeout
	d, discoveryErr := discovery.NewDiscoveryClientForConfig(asking)
	cfg.Wrap(lock.Guard) // within what repeats requests
	cfg.Wrap(kube.Retrying)
	cfg.Wrap(kube.WatchKeyExchange)
	c, clientErr := client.NewWithWatch(cfg, client.Options{Scheme: scheme, Mapper: kinds{
		known: knownKinds(scheme), RESTMapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(d)),
	}})
	core, coreErr := corev1client.NewForConfig(cfg)
	if err := cmp.Or(schemeErr, discoveryErr, clientErr, coreErr); err != nil {
		return nil, fmt.Errorf("cluster %q: %w", name, err)
	}
	logs := func(ctx context.Context, pod string) (io.ReadCloser, error) {
		return core.Pods(v1alpha1.Namespace).GetLogs(pod, &corev1.PodLogOptions{Follow: true}).Stream(ctx)
	}
	return &kube.Cluster{
		Name: name, Client: c, URL: cfg.Host, Server: serverAddress(cfg), Discovery: d, Logs: logs,
		DefaultImage: version.AgentImage(version.String()), Version: version.String(), Kubectl: kubectl, Now: clock.now,
	}, nil
}

// serverAddress is the API server's address, invalid if it is named: a name leads
// nodes elsewhere than the user, maybe.
func serverAddress(cfg *rest.Config) netip.Addr {
	server, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return netip.Addr{}
	}
	addr, _ := netip.ParseAddr(server.Hostname())
	return addr
}

// kinds asks the API server only for kinds that are not known beforehand. Other than with
// meta.FirstHitRESTMapper, the class of an error can be told.
type kinds struct {
	meta.RESTMapper
	known meta.RESTMapper
}

// RESTMapping finds the resource of a kind.
func (k kinds) RESTMapping(gk schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	if m, err := k.known.RESTMapping(gk, versions...); err == nil {
		return m, nil
	}
	return k.RESTMapper.RESTMapping(gk, versions...)
}

// knownKinds are the kinds of the scheme. Commands use those here that are of the whole
// cluster; all others are of a namespace.
func knownKinds(s *runtime.Scheme) meta.RESTMapper {
	ofCluster := sets.New("Namespace", "Node", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "SelfSubjectAccessReview",
		"ServiceCIDR", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ClusterNetwork", "Peering", "NodeNetwork")
	m := meta.NewDefaultRESTMapper(nil)
	for kind := range s.AllKnownTypes() {
		m.Add(kind, lo.Ternary(ofCluster.Has(kind.Kind), meta.RESTScopeRoot, meta.RESTScopeNamespace))
	}
	return m
}

func newScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(clientgoscheme.AddToScheme(s), apiextensionsv1.AddToScheme(s), v1alpha1.AddToScheme(s))
}

// serverClock is the API server's clock, to the second, read from its answers. Objects are
// dated by it, while the clock of this machine may be wrong.
type serverClock struct{ ahead atomic.Int64 }

func (c *serverClock) now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// watch reads the clock from every answer.
func (c *serverClock) watch(next http.RoundTripper) http.RoundTripper {
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

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
