package discovery

import (
	"context"
	"errors"
	"fmt"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

const (
	// page is how many pods one request asks for.
	page = 1000
	// maxPods bounds the time that comparing pods with the ranges takes in a large
	// cluster. Facts.PodsChecked and Facts.Pods tell that not all were compared.
	maxPods = 20_000
)

// snapshot is all that was read of a cluster.
type snapshot struct {
	kubeSystem   corev1.Namespace
	nodes        []corev1.Node
	pods         []corev1.Pod
	podCount     int
	services     []corev1.Service
	daemonSets   []appsv1.DaemonSet
	serviceCIDRs []networkingv1.ServiceCIDR
	// configMaps are by namespace/name.
	configMaps map[string]map[string]string
	// custom are the objects of foreign kinds.
	custom map[schema.GroupVersionKind][]unstructured.Unstructured
	// unread are the optional sources that exist and could not be read, and why.
	unread []string
}

// The ConfigMaps that are asked for in every cluster.
func configMapNames() []types.NamespacedName {
	return []types.NamespacedName{
		{Namespace: "kube-system", Name: "kubeadm-config"},
		{Namespace: "kube-system", Name: "kube-proxy"},
	}
}

// read reads the cluster in two rounds: what every cluster has, and then what
// exists with the network plugin found.
func read(ctx context.Context, r client.Reader) (*snapshot, error) {
	s := &snapshot{
		configMaps: map[string]map[string]string{},
		custom:     map[schema.GroupVersionKind][]unstructured.Unstructured{},
	}
	g := newGroup(ctx, r, s)
	g.required("namespace kube-system", func(ctx context.Context) error {
		return r.Get(ctx, types.NamespacedName{Name: "kube-system"}, &s.kubeSystem)
	})
	g.required("nodes", func(ctx context.Context) error {
		l := &corev1.NodeList{}
		err := r.List(ctx, l)
		s.nodes = l.Items
		return err
	})
	g.required("pods", func(ctx context.Context) error { return s.readPods(ctx, r) })
	g.required("services", func(ctx context.Context) error {
		l := &corev1.ServiceList{}
		err := r.List(ctx, l)
		s.services = l.Items
		return err
	})
	g.optional("daemonsets", func(ctx context.Context) error {
		l := &appsv1.DaemonSetList{}
		err := r.List(ctx, l)
		s.daemonSets = l.Items
		return err
	})
	g.optional("servicecidrs", func(ctx context.Context) error {
		l := &networkingv1.ServiceCIDRList{}
		err := r.List(ctx, l)
		s.serviceCIDRs = l.Items
		return err
	})
	for _, name := range configMapNames() {
		g.configMap(name)
	}
	if err := g.wait(); err != nil {
		return nil, err
	}
	s.sort()
	g = newGroup(ctx, r, s)
	s.readPlugin(g)
	if err := g.wait(); err != nil {
		return nil, err
	}
	s.sort()
	return s, nil
}

func (s *snapshot) readPods(ctx context.Context, r client.Reader) error {
	next := ""
	for {
		l := &corev1.PodList{}
		if err := r.List(ctx, l, client.Limit(page), client.Continue(next)); err != nil {
			// A continuation expires after minutes. Enough was seen by then.
			if next != "" && apierrors.IsResourceExpired(err) {
				return nil
			}
			return err
		}
		s.pods = append(s.pods, l.Items...)
		s.podCount = len(s.pods)
		if next = l.Continue; next == "" || len(s.pods) >= maxPods {
			if n := l.RemainingItemCount; n != nil {
				s.podCount += int(*n)
			}
			return nil
		}
	}
}

// group runs reads at the same time and collects what they found. The first error
// ends the others: a cluster that cannot be reached fails once and not ten times.
type group struct {
	ctx    context.Context
	cancel context.CancelFunc
	reader client.Reader
	s      *snapshot

	wg  sync.WaitGroup
	mu  sync.Mutex
	err error
}

func newGroup(ctx context.Context, reader client.Reader, s *snapshot) *group {
	g := &group{reader: reader, s: s}
	g.ctx, g.cancel = context.WithCancel(ctx)
	return g
}

// required reads something that no cluster can be understood without.
func (g *group) required(what string, f func(context.Context) error) {
	g.wg.Go(func() {
		if err := f(g.ctx); err != nil {
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.err == nil {
				g.err = fmt.Errorf("read %s: %w", what, err)
			}
			g.cancel()
		}
	})
}

// optional reads something that may be missing or forbidden.
func (g *group) optional(what string, f func(context.Context) error) {
	g.required(what, func(ctx context.Context) error {
		err := f(ctx)
		if apierrors.IsForbidden(err) {
			g.unread(what, "not allowed")
			return nil
		}
		if missing(err) {
			return nil
		}
		return err
	})
}

func (g *group) unread(what, why string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.s.unread = append(g.s.unread, what+" ("+why+")")
}

func (g *group) configMap(name types.NamespacedName) {
	g.optional("configmap "+name.String(), func(ctx context.Context) error {
		cm := &corev1.ConfigMap{}
		if err := g.reader.Get(ctx, name, cm); err != nil {
			return err
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		g.s.configMaps[name.String()] = cm.Data
		return nil
	})
}

// list reads all objects of a foreign kind.
func (g *group) list(gvk schema.GroupVersionKind) {
	what := gvk.Kind + "s of " + gvk.Group
	g.optional(what, func(ctx context.Context) error {
		l := &unstructured.UnstructuredList{}
		l.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
		err := g.reader.List(ctx, l)
		if apierrors.IsServiceUnavailable(err) {
			// The group may be an aggregated one (Calico's v3) whose server is down.
			g.unread(what, "unavailable")
			return nil
		}
		if err != nil {
			return err
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		g.s.custom[gvk] = l.Items
		return nil
	})
}

func (g *group) wait() error {
	g.wg.Wait()
	g.cancel()
	return g.err
}

// missing says that the API does not have the object or the kind.
func missing(err error) bool {
	// An aggregated API whose server is down breaks its group only, and nothing here
	// depends on such a group. Where the cluster's own API is down, what is
	// required fails.
	var groups *discovery.ErrGroupDiscoveryFailed
	var resources *apiutil.ErrResourceDiscoveryFailed
	return apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) || meta.IsNoMatchError(err) ||
		errors.As(err, &groups) || errors.As(err, &resources)
}
