// Package discovery finds out which address ranges a cluster uses, which network plugin and provider it has, and what it
// can expose, only from its API.
//
// No source is right in all clusters. The network plugin assigns addresses, so it is the first source, read in a
// different way for each plugin. The cluster's general configuration is the second. Every fact has a source, and is
// marked as read or assumed. The ranges are compared with the running pods and services: an address outside the ranges is
// an error that names it.
//
// Discovery sends few requests, independent ones at the same time, and writes nothing. Kinds and objects that a cluster
// does not have, or that the user may not read, are no errors if another source has the fact.
//
// Out of scope: what only a node's kernel knows (its routes, links, MTU), which the node agents report. Credentials and
// APIs of cloud providers are not used.
package discovery

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/nodes"
	"github.com/liqonet/liqonet/pkg/plan"
)

var (
	// ErrUnknown means that a fact cannot be found out, and the user must give it.
	ErrUnknown = errors.New("not known")
	// ErrOutside means that an address is outside the ranges found, so they are wrong or incomplete.
	ErrOutside = errors.New("outside of the ranges found")
)

// Overrides are facts that the user gives, with flags. They replace discovery, but are still compared with the pods and
// services.
type Overrides struct {
	// Name is the user's name of the cluster, for errors and flags.
	Name string
	// PodCIDRs, ServiceCIDRs and NodeCIDRs replace the ranges that discovery would find.
	PodCIDRs, ServiceCIDRs, NodeCIDRs []netip.Prefix
	// Reserved are ranges that no peer may get.
	Reserved []netip.Prefix
}

// Discover reads the facts of a cluster. The reader should have no cache, and its scheme must contain the types of
// client-go's scheme.
//
// It returns these errors:
//   - ErrUnknown if the user must give a fact;
//   - ErrOutside if a pod or service contradicts the ranges found;
//   - ipam.ErrInvalid for overrides that are not ranges;
//   - errors of the API, wrapped, so that apierrors.IsForbidden and the like work.
//
// If the node agents' reports may contain the ranges of the pods, the error is in Network.PodsUnknown instead.
func Discover(ctx context.Context, reader client.Reader, o Overrides) (plan.Network, error) {
	f, err := o.facts()
	if err != nil {
		return f, err
	}
	s, err := read(ctx, reader)
	if err != nil {
		return f, err
	}
	return f, (&inference{s, &f}).inferAll()
}

// facts returns the facts that the user gave.
func (o Overrides) facts() (plan.Network, error) {
	f := plan.Network{Name: o.Name}
	for _, of := range []struct {
		flag   string
		given  []netip.Prefix
		ranges *plan.Ranges
	}{
		{"--pod-cidr", o.PodCIDRs, &f.PodCIDRs},
		{"--service-cidr", o.ServiceCIDRs, &f.ServiceCIDRs},
		{"--node-cidr", o.NodeCIDRs, &f.NodeCIDRs},
		{"--reserve", o.Reserved, &f.Reserved},
	} {
		for _, p := range of.given {
			if err := (ipam.Mapping{Real: p, Mapped: p}).Validate(); err != nil {
				return f, fmt.Errorf("cluster %q: %s: %w", o.Name, of.flag, err)
			}
			*of.ranges = append(*of.ranges, plan.Range{Value: p, Source: "given by " + of.flag})
		}
		*of.ranges = withoutNested(*of.ranges)
	}
	return f, nil
}

// inferAll adds the facts read to those given.
func (s *inference) inferAll() (err error) {
	given := len(s.f.PodCIDRs) > 0
	s.f.ClusterID, s.f.Nodes, s.f.Provider = string(s.kubeSystem.UID), s.nodeFacts(), s.detectProvider()
	s.f.LoadBalancers = s.loadBalancers(s.f.Provider.Value)
	_, s.f.CNI = s.detectPlugin(s.f.Provider.Value)
	if len(s.unreadable) > 0 {
		s.warn("could not be read: %s", strings.Join(s.unreadable, ", "))
	}
	if len(s.f.NodeCIDRs) == 0 {
		s.f.NodeCIDRs = s.nodeRanges()
	}
	if len(s.f.ServiceCIDRs) == 0 {
		if s.f.ServiceCIDRs, err = s.serviceRanges(); err != nil {
			return err
		}
	}
	if !given {
		if s.f.PodCIDRs = s.podRanges(); len(s.f.PodCIDRs) == 0 {
			s.f.PodsUnknown = s.podsUnknown()
		}
	}
	if err := s.checkRanges(given); err != nil {
		return err
	}
	if s.f.PodsUnknown != nil {
		s.f.PodAddrs = s.podIPs()
	}
	return nil
}

// loadBalancers returns whether services of type LoadBalancer get addresses.
func (s *snapshot) loadBalancers(provider string) plan.Fact[string] {
	out := plan.Fact[string]{Source: "there is no service of type LoadBalancer"}
	for _, svc := range s.services.Items {
		if svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
			continue
		}
		name := svc.Namespace + "/" + svc.Name
		for _, in := range svc.Status.LoadBalancer.Ingress {
			return plan.Fact[string]{Value: plan.Yes, Source: "service " + name + " has the address " + in.IP + in.Hostname}
		}
		out = plan.Fact[string]{Value: plan.No, Source: "service " + name + " has no address"}
	}
	if out.Value != "" {
		return out
	}
	switch provider {
	case ProviderAKS, ProviderEKS, ProviderGKE:
		return plan.Fact[string]{Value: plan.Yes, Source: "the provider " + provider + " has load balancers", Assumed: true}
	}
	for _, ds := range s.daemonSets.Items {
		// MetalLB's speakers, from its manifests or its chart.
		if ds.Status.DesiredNumberScheduled > 0 && (ds.Labels["app"] == "metallb" || strings.HasPrefix(ds.Namespace, "metallb")) {
			return plan.Fact[string]{Value: plan.Yes, Source: "MetalLB runs as DaemonSet " + ds.Namespace + "/" + ds.Name, Assumed: true}
		}
	}
	return out
}

// checkRanges compares the ranges with the running pods and services. The pods' ranges become unknown again if the user
// did not give them, and no range that an object names contains pods.
func (s *inference) checkRanges(given bool) error {
	pods := s.podAddrs()
	if err := s.checkAddresses("pods", s.f.PodCIDRs, pods, "--pod-cidr", "kubectl get pods -A -o wide"); err != nil {
		named := lo.Filter(s.f.PodCIDRs, func(r plan.Range, _ int) bool { return !r.Assumed })
		if given || slices.ContainsFunc(pods, func(p addressOwner) bool { return named.Contains(p.addr) }) {
			return err
		}
		s.f.PodsUnknown, s.f.PodCIDRs = err, nil
	}
	if err := s.checkAddresses("services", s.f.ServiceCIDRs, s.serviceAddrs(), "--service-cidr", "kubectl get services -A"); err != nil {
		return err
	}
	for _, p := range s.f.PodCIDRs {
		for _, svc := range s.f.ServiceCIDRs {
			if p.Value.Overlaps(svc.Value) {
				s.warn("the pods' range %s (%s) overlaps the services' range %s (%s)", p.Value, p.Source, svc.Value, svc.Source)
			}
		}
	}
	return nil
}

// checkAddresses returns an error if objects have addresses outside the ranges found. Addresses of a family without any
// range are not exchanged with peers: a warning names the first one.
func (s *inference) checkAddresses(what string, ranges plan.Ranges, addrs []addressOwner, flag, command string) error {
	var outside []addressOwner
	warned := len(ranges) == 0
	for _, h := range addrs {
		sameFamily := func(r plan.Range) bool { return r.Value.Addr().Is4() == h.addr.Is4() }
		switch {
		case ranges.Contains(h.addr):
		case slices.ContainsFunc(ranges, sameFamily):
			outside = append(outside, h)
		case !warned:
			s.warn("%s also have addresses such as %s, but no range of that family was found; these addresses are not exchanged", what, h.addr)
			warned = true
		}
	}
	if len(outside) == 0 {
		return nil
	}
	first, others := outside[0], ""
	if more := len(outside) - 1; more > 0 {
		others = fmt.Sprintf(" (and %d more)", more)
	}
	var sources, all []string
	for _, r := range ranges {
		assumed := lo.Ternary(r.Assumed, " (assumed)", "")
		sources, all = append(sources, r.Value.String()+": "+r.Source+assumed), append(all, r.Value.String())
	}
	all = append(all, "RANGE-OF-"+first.addr.String())
	return fmt.Errorf("cluster %q: %s has the address %s%s, which is %w for %s [%s]; "+
		"give all of them with %s %s=%s (to see the addresses: %s)", s.f.Name, first.object, first.addr, others, ErrOutside, what,
		strings.Join(sources, "; "), flag, s.f.Name, strings.Join(all, ","), command)
}

func (s *inference) warn(format string, args ...any) {
	s.f.Warnings = append(s.f.Warnings, fmt.Sprintf(format, args...))
}

const (
	// pageSize is the number of pods per request.
	pageSize = 1000
	// maxPods limits the time to compare pods with the ranges in a large cluster.
	maxPods = 20_000
)

// read reads the cluster in two rounds: what every cluster has, and then what belongs to the network plugin found.
func read(ctx context.Context, r client.Reader) (*snapshot, error) {
	s := &snapshot{configMaps: map[string]*corev1.ConfigMap{}, custom: map[schema.GroupVersionKind]*unstructured.UnstructuredList{}}
	err := s.round(ctx, r, func(g *group) {
		g.run("namespace kube-system", required, func(ctx context.Context) error {
			return r.Get(ctx, client.ObjectKey{Name: "kube-system"}, &s.kubeSystem)
		})
		g.run("pods", required, func(ctx context.Context) error { return readPods(ctx, r, &s.pods) })
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
		virtual[n.Name] = nodes.IsVirtual(&n)
		return virtual[n.Name]
	})
	s.pods.Items = slices.DeleteFunc(s.pods.Items, func(p corev1.Pod) bool { return virtual[p.Spec.NodeName] })
	return s, s.round(ctx, r, func(g *group) {
		provider := s.detectProvider().Value
		if provider == ProviderOpenShift {
			g.custom(kindOpenShiftNet)
		}
		p, _ := s.detectPlugin(provider)
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

// PluginSources returns the ConfigMaps, as namespace/name, and the foreign kinds that are read for any network plugin.
// If some are not readable, discovery may find other ranges.
func PluginSources() (maps []string, kinds []schema.GroupVersionKind) {
	maps, kinds = configMaps(), []schema.GroupVersionKind{kindOpenShiftNet}
	for _, p := range plugins {
		maps, kinds = append(maps, p.configMaps...), append(kinds, p.kinds...)
	}
	return maps, kinds
}

func readPods(ctx context.Context, r client.Reader, all *corev1.PodList) error {
	for next := ""; ; {
		l := &corev1.PodList{}
		err := r.List(ctx, l, client.Limit(pageSize), client.Continue(next))
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
	slices.Sort(s.unreadable)
	return err
}

// Required sources are indispensable. Optional ones may be missing or forbidden.
const (
	required = true
	optional = false
)

func (g *group) run(what string, isRequired bool, read func(context.Context) error) {
	g.Go(func() error {
		err := read(g.ctx)
		switch {
		case err == nil || !isRequired && isUnavailable(err):
			return nil
		case !isRequired && (apierrors.IsForbidden(err) || apierrors.IsServiceUnavailable(err)):
			// The group may be an aggregated one (Calico's v3) whose server is down.
			g.mu.Lock()
			defer g.mu.Unlock()
			g.s.unreadable = append(g.s.unreadable, fmt.Sprintf("%s (%s)", what, apierrors.ReasonForError(err)))
			return nil
		}
		return fmt.Errorf("read %s: %w", what, err)
	})
}

func (g *group) list(what string, isRequired bool, l client.ObjectList) {
	g.run(what, isRequired, func(ctx context.Context) error {
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
	g.run("configmap "+name, optional, func(ctx context.Context) error {
		return g.reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: base}, cm)
	})
}

// isUnavailable reports whether the API does not have the object or the kind.
func isUnavailable(err error) bool {
	// An aggregated API whose server is down breaks only its own group, and nothing here depends on such a group. If the
	// cluster's own API is down, the required sources fail.
	return apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) || meta.IsNoMatchError(err) ||
		errors.As(err, new(*discovery.ErrGroupDiscoveryFailed)) || errors.As(err, new(*apiutil.ErrResourceDiscoveryFailed))
}
