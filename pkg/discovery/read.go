package discovery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/nodes"
)

const (
	// page is the number of pods per request.
	page = 1000
	// maxPods limits the time to compare pods with the ranges in a large cluster.
	maxPods = 20_000
)

// read reads the cluster in two rounds: what every cluster has, and then what belongs to the network plugin found.
func read(ctx context.Context, r client.Reader) (*snapshot, error) {
	s := &snapshot{configMaps: map[string]*corev1.ConfigMap{}, custom: map[schema.GroupVersionKind]*unstructured.UnstructuredList{}}
	err := s.round(ctx, r, func(g *group) {
		g.do("namespace kube-system", required, func(ctx context.Context) error {
			return r.Get(ctx, types.NamespacedName{Name: "kube-system"}, &s.kubeSystem)
		})
		g.do("pods", required, func(ctx context.Context) error { return readPods(ctx, r, &s.pods) })
		g.list("nodes", required, &s.nodes)
		g.list("services", required, &s.services)
		g.list("daemonsets", optional, &s.daemonSets)
		g.list("servicecidrs", optional, &s.serviceCIDRs)
		for _, name := range configMaps() {
			g.configMap(name)
		}
	})
	if err != nil {
		return nil, err
	}
	virtual := map[string]bool{}
	s.nodes.Items = slices.DeleteFunc(s.nodes.Items, func(n corev1.Node) bool {
		virtual[n.Name] = nodes.Virtual(&n)
		return virtual[n.Name]
	})
	s.pods.Items = slices.DeleteFunc(s.pods.Items, func(p corev1.Pod) bool { return virtual[p.Spec.NodeName] })
	return s, s.round(ctx, r, func(g *group) {
		provider := s.provider().Value
		if provider == ProviderOpenShift {
			g.custom(kindOpenShiftNet)
		}
		p, _ := s.plugin(provider)
		for _, name := range p.configMaps {
			g.configMap(name)
		}
		for _, kind := range p.kinds {
			g.custom(kind)
		}
	})
}

// configMaps returns the ConfigMaps to read in every cluster.
func configMaps() []string { return []string{"kube-system/kubeadm-config", "kube-system/kube-proxy"} }

// OfPlugins returns the ConfigMaps, as namespace/name, and the foreign kinds that are read for any network plugin. If
// some are not readable, discovery may find other ranges.
func OfPlugins() (maps []string, kinds []schema.GroupVersionKind) {
	maps, kinds = configMaps(), []schema.GroupVersionKind{kindOpenShiftNet}
	for _, p := range plugins() {
		maps, kinds = append(maps, p.configMaps...), append(kinds, p.kinds...)
	}
	return maps, kinds
}

func readPods(ctx context.Context, r client.Reader, all *corev1.PodList) error {
	for next := ""; ; {
		l := &corev1.PodList{}
		err := r.List(ctx, l, client.Limit(page), client.Continue(next))
		// A continuation expires after minutes. By then, enough was read.
		if err != nil && (next == "" || !apierrors.IsResourceExpired(err)) {
			return err
		}
		all.Items = append(all.Items, l.Items...)
		if next = l.Continue; next == "" || len(all.Items) >= maxPods {
			return sortByName(all)
		}
	}
}

// sortByName makes the order of a list independent of the API.
func sortByName(l client.ObjectList) error {
	objects, err := meta.ExtractList(l)
	if err != nil {
		return err
	}
	name := func(o runtime.Object) string { return client.ObjectKeyFromObject(o.(client.Object)).String() }
	slices.SortFunc(objects, func(a, b runtime.Object) int { return strings.Compare(name(a), name(b)) })
	return meta.SetList(l, objects)
}

// group runs reads at the same time.
type group struct {
	failure.Group
	ctx    context.Context
	reader client.Reader
	s      *snapshot
	mu     sync.Mutex
}

// round runs the reads that start adds. The first error ends the others: an unreachable cluster fails once and not ten
// times.
func (s *snapshot) round(ctx context.Context, r client.Reader, start func(*group)) error {
	g := &group{reader: r, s: s}
	g.Group, g.ctx = failure.NewGroup(ctx)
	start(g)
	err := g.Wait()
	slices.Sort(s.unread)
	return err
}

// Required sources are indispensable. Optional ones may be missing or forbidden.
const (
	required = true
	optional = false
)

func (g *group) do(what string, need bool, read func(context.Context) error) {
	g.Go(func() error {
		err := read(g.ctx)
		switch {
		case err == nil || !need && missing(err):
			return nil
		case !need && (apierrors.IsForbidden(err) || apierrors.IsServiceUnavailable(err)):
			// The group may be an aggregated one (Calico's v3) whose server is down.
			g.mu.Lock()
			defer g.mu.Unlock()
			g.s.unread = append(g.s.unread, fmt.Sprintf("%s (%s)", what, apierrors.ReasonForError(err)))
			return nil
		}
		return fmt.Errorf("read %s: %w", what, err)
	})
}

func (g *group) list(what string, need bool, l client.ObjectList) {
	g.do(what, need, func(ctx context.Context) error {
		if err := g.reader.List(ctx, l); err != nil {
			return err
		}
		return sortByName(l)
	})
}

// custom reads all objects of a foreign kind.
func (g *group) custom(kind schema.GroupVersionKind) {
	l := &unstructured.UnstructuredList{}
	l.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	g.s.custom[kind] = l
	g.list(kind.Kind+"s of "+kind.Group, optional, l)
}

func (g *group) configMap(name string) {
	cm := &corev1.ConfigMap{}
	g.s.configMaps[name] = cm
	namespace, base, _ := strings.Cut(name, "/")
	g.do("configmap "+name, optional, func(ctx context.Context) error {
		return g.reader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: base}, cm)
	})
}

// missing reports whether the API does not have the object or the kind.
func missing(err error) bool {
	// An aggregated API whose server is down breaks only its own group, and nothing here depends on such a group. If the
	// cluster's own API is down, the required sources fail.
	var groups *discovery.ErrGroupDiscoveryFailed
	var resources *apiutil.ErrResourceDiscoveryFailed
	return apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) || meta.IsNoMatchError(err) ||
		errors.As(err, &groups) || errors.As(err, &resources)
}
