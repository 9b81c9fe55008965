package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // credentials of all providers, as kubectl
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/peering"
	"github.com/liqonet/liqonet/pkg/version"
)

// identifyTimeout is how long a cluster may take to answer the first request.
const identifyTimeout = 10 * time.Second

// clusters connects to all clusters that were named, and identifies them.
func (g *globals) clusters(ctx context.Context, refs ...string) ([]*peering.Cluster, error) {
	out, errs, err := g.identify(ctx, refs)
	return out, cmp.Or(append(errs, err)...)
}

// identify finds the kubeconfig entries of all clusters that were named, and asks the
// clusters who they are. Of those that do not answer, it returns why.
func (g *globals) identify(ctx context.Context, refs []string) (out []*peering.Cluster, errs []error, err error) {
	out, errs = make([]*peering.Cluster, len(refs)), make([]error, len(refs))
	for i, ref := range refs {
		if out[i], err = g.resolve(ref); err != nil {
			return nil, nil, err
		}
	}
	distinguish(out, refs)
	ctx, cancel := withIdentifyTimeout(ctx)
	defer cancel()
	var wg sync.WaitGroup
	for i, c := range out {
		wg.Go(func() { errs[i] = c.Identify(ctx) })
	}
	wg.Wait()
	return out, errs, nil
}

func withIdentifyTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, identifyTimeout, fmt.Errorf("no answer within %s: %w", identifyTimeout, context.DeadlineExceeded))
}

// distinguish gives clusters whose contexts have the same name, as those of two
// kubeadm files have, the names that the user typed.
func distinguish(clusters []*peering.Cluster, refs []string) {
	count := map[string]int{}
	for _, c := range clusters {
		count[c.Name]++
	}
	for i, c := range clusters {
		if count[c.Name] > 1 {
			c.Name = refs[i]
		}
	}
}

// resolve finds the kubeconfig entry that a CLUSTER argument names.
func (g *globals) resolve(ref string) (*peering.Cluster, error) {
	rules, raw, err := g.kubeconfigs()
	if err != nil {
		return nil, err
	}
	if _, ok := raw.Contexts[ref]; ok {
		return connect(ref, "kubectl --context "+ref, raw, ref, rules)
	}
	file, contextName, _ := strings.Cut(ref, "#")
	if info, err := os.Stat(file); err == nil && !info.IsDir() {
		return fromFile(file, contextName)
	}
	known := slices.Sorted(maps.Keys(raw.Contexts))
	hint := "known contexts: " + strings.Join(known, ", ")
	if len(known) == 0 {
		hint = "no context found in " + strings.Join(rules.GetLoadingPrecedence(), ", ") + "; set $KUBECONFIG or --kubeconfig, or name a file"
	}
	return nil, &peering.Error{
		Kind: peering.Usage, Doing: fmt.Sprintf("cluster %q is neither a context of the kubeconfig nor a kubeconfig file", ref), Hint: hint,
	}
}

// completeContexts offers the contexts of the kubeconfig for the first n
// arguments, and files as well.
func (g *globals) completeContexts(n int) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) >= n {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		_, raw, err := g.kubeconfigs()
		if err != nil {
			return nil, cobra.ShellCompDirectiveDefault
		}
		names := slices.Sorted(maps.Keys(raw.Contexts))
		return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(args, name) }), cobra.ShellCompDirectiveDefault
	}
}

// kubeconfigs merges the kubeconfig files as kubectl does.
func (g *globals) kubeconfigs() (clientcmd.ConfigAccess, clientcmdapi.Config, error) {
	flags := genericclioptions.NewConfigFlags(false)
	if g.kubeconfig != "" {
		flags.KubeConfig = &g.kubeconfig
	}
	loader := flags.ToRawKubeConfigLoader()
	raw, err := loader.RawConfig()
	rules := loader.ConfigAccess()
	if err != nil {
		return rules, raw, &peering.Error{
			Kind: peering.Usage, Doing: "read the kubeconfig", Err: err,
			Hint: "check $KUBECONFIG and --kubeconfig (try: kubectl config view)",
		}
	}
	return rules, raw, nil
}

func fromFile(file, contextName string) (*peering.Cluster, error) {
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: file}
	raw, err := rules.Load()
	if err != nil {
		return nil, &peering.Error{Kind: peering.Usage, Doing: "read kubeconfig " + file, Err: err, Hint: "is it a kubeconfig that you may read?"}
	}
	name := contextName
	if contextName == "" {
		contextName = raw.CurrentContext
		name = strings.TrimLeft(filepath.Base(file), ".")
		name = strings.TrimSuffix(name, filepath.Ext(name))
	}
	if _, ok := raw.Contexts[contextName]; !ok {
		return nil, &peering.Error{
			Kind: peering.Usage, Doing: fmt.Sprintf("kubeconfig %s has no context %q", file, contextName),
			Hint: "its contexts: " + strings.Join(slices.Sorted(maps.Keys(raw.Contexts)), ", ") + "; name one as FILE#CONTEXT",
		}
	}
	return connect(name, fmt.Sprintf("kubectl --kubeconfig %s --context %s", file, contextName), *raw, contextName, rules)
}

func connect(name, kubectl string, raw clientcmdapi.Config, contextName string, access clientcmd.ConfigAccess) (*peering.Cluster, error) {
	cfg, err := clientcmd.NewNonInteractiveClientConfig(raw, contextName, &clientcmd.ConfigOverrides{}, access).ClientConfig()
	if err != nil {
		return nil, &peering.Error{
			Kind: peering.Usage, Cluster: name, Doing: fmt.Sprintf("read context %q of the kubeconfig", contextName), Err: err,
			Hint: "try: " + kubectl + " get nodes",
		}
	}
	// Commands send many small requests in parallel; the server limits them by
	// its own priority and fairness.
	cfg.QPS, cfg.Burst = -1, -1
	cfg.UserAgent = "kubectl-liqonet"
	cfg.WarningHandler = rest.NoWarnings{}
	clock := &serverClock{}
	cfg.Wrap(clock.watch)
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	// What asks for kinds does not know of contexts, so it gets a time of its own.
	asking := rest.CopyConfig(cfg)
	asking.Timeout = identifyTimeout
	d, err := discovery.NewDiscoveryClientForConfig(asking)
	if err != nil {
		return nil, fmt.Errorf("cluster %q: %w", name, err)
	}
	cfg.Wrap(peering.Patient)
	c, err := client.NewWithWatch(cfg, client.Options{Scheme: scheme, Mapper: kinds{
		known: knownKinds(scheme), RESTMapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(d)),
	}})
	if err != nil {
		return nil, fmt.Errorf("cluster %q: %w", name, err)
	}
	return &peering.Cluster{Name: name, Client: c, Discovery: d, DefaultImage: version.AgentImage(version.String()), Kubectl: kubectl, Now: clock.now}, nil
}

// kinds asks the API server only for kinds that are not known beforehand.
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

// knownKinds are those that commands write or always read.
func knownKinds(s *runtime.Scheme) meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	for scope, objs := range map[meta.RESTScope][]runtime.Object{
		meta.RESTScopeRoot: {
			&corev1.Namespace{}, &corev1.Node{}, &rbacv1.ClusterRole{}, &rbacv1.ClusterRoleBinding{},
			&apiextensionsv1.CustomResourceDefinition{}, &authorizationv1.SelfSubjectAccessReview{},
			&v1alpha1.ClusterNetwork{}, &v1alpha1.Peering{}, &v1alpha1.NodeNetwork{},
		},
		meta.RESTScopeNamespace: {
			&corev1.Pod{}, &corev1.Service{}, &corev1.Secret{}, &corev1.ConfigMap{}, &corev1.ServiceAccount{}, &corev1.Event{},
			&corev1.ResourceQuota{}, &coordinationv1.Lease{}, &rbacv1.Role{}, &rbacv1.RoleBinding{},
			&discoveryv1.EndpointSlice{}, &appsv1.DaemonSet{}, &appsv1.Deployment{}, &appsv1.ReplicaSet{}, &appsv1.ControllerRevision{},
		},
	} {
		for _, obj := range objs {
			gvks, _, err := s.ObjectKinds(obj)
			if err != nil {
				continue
			}
			m.Add(gvks[0], scope)
		}
	}
	return m
}

func newScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(
		coordinationv1.AddToScheme(s), corev1.AddToScheme(s), discoveryv1.AddToScheme(s), appsv1.AddToScheme(s), rbacv1.AddToScheme(s), networkingv1.AddToScheme(s),
		authorizationv1.AddToScheme(s), apiextensionsv1.AddToScheme(s), v1alpha1.AddToScheme(s),
	)
}
