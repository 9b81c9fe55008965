// Package discovery finds out which address ranges a cluster uses, what its network
// plugin and provider are, and what can be exposed there, from its API alone.
//
// No source is right in all clusters. The network plugin gives out addresses, so it is
// asked first, each plugin in its own way. The cluster's general configuration comes
// afterwards. Every fact says where it is from, and whether it was
// read or assumed. What was found is compared with the pods and services that run:
// an address outside of the ranges found is an error that names it.
//
// The cluster is read with few requests, independent ones at the same time, and
// nothing is written. Kinds and objects that a cluster does not have, or that the
// user may not read, are no errors as long as another source knows the fact.
//
// Out of scope: what only a node's kernel knows (its routes, links, MTU): the node
// agents report it. Credentials and APIs of cloud providers are not used.
package discovery

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/plan"
)

var (
	// ErrUnknown says that a fact cannot be found out and has to be given.
	ErrUnknown = errors.New("not known")
	// ErrOutside says that something has an address outside of the ranges found, so
	// they are wrong or not all.
	ErrOutside = errors.New("outside of the ranges found")
)

// Overrides are what the user says of a cluster, by flags. What is given here is
// not looked for, and is compared with the pods and services all the same.
type Overrides struct {
	// Name is what the user calls the cluster; errors and flags use it.
	Name string
	// PodCIDRs, ServiceCIDRs and NodeCIDRs replace what would be found.
	PodCIDRs     []netip.Prefix
	ServiceCIDRs []netip.Prefix
	NodeCIDRs    []netip.Prefix
	// Reserved are ranges that no peer may be given.
	Reserved []netip.Prefix
}

// Discover reads the facts of a cluster. The reader should not have a cache, and
// its scheme needs the types of client-go's scheme.
//
// These are its errors:
//   - ErrUnknown where a fact has to be given by the user;
//   - ErrOutside where a pod or service contradicts what was found;
//   - ipam.ErrInvalid for overrides that are no ranges;
//   - errors of the API, wrapped, so that apierrors.IsForbidden and the like work.
//
// Where node agents may tell the ranges of the pods, Facts.PodsUnknown has the error.
func Discover(ctx context.Context, reader client.Reader, o Overrides) (plan.Network, error) {
	f, err := o.facts()
	if err != nil {
		return f, err
	}
	s, err := read(ctx, reader)
	if err != nil {
		return f, err
	}
	return f, s.complete(&f)
}

// facts are those that the user gives.
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
		*of.ranges = distinct(*of.ranges)
	}
	return f, nil
}

// complete adds what was read to what is given.
func (s *snapshot) complete(f *plan.Network) (err error) {
	given := len(f.PodCIDRs) > 0
	f.ClusterID, f.Nodes, f.Provider = string(s.kubeSystem.UID), s.nodeFacts(), s.provider()
	f.LoadBalancers = s.loadBalancers(f.Provider.Value)
	_, f.CNI = s.plugin(f.Provider.Value)
	if len(s.unread) > 0 {
		warn(f, "could not be read: %s", strings.Join(s.unread, ", "))
	}
	if len(f.NodeCIDRs) == 0 {
		f.NodeCIDRs = nodeRanges(f)
	}
	if len(f.ServiceCIDRs) == 0 {
		if f.ServiceCIDRs, err = s.serviceRanges(f); err != nil {
			return err
		}
	}
	if !given {
		if f.PodCIDRs = s.podRanges(f); len(f.PodCIDRs) == 0 {
			f.PodsUnknown = s.podsUnknown(f)
		}
	}
	if err := s.check(f, given); err != nil {
		return err
	}
	if f.PodsUnknown != nil {
		f.PodAddrs = s.livePods()
	}
	return nil
}

// loadBalancers says whether services of type LoadBalancer get addresses.
func (s *snapshot) loadBalancers(provider string) plan.Fact[string] {
	out := plan.Fact[string]{Source: "there is no service of type LoadBalancer"}
	for _, svc := range s.services.Items {
		if svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
			continue
		}
		name := svc.Namespace + "/" + svc.Name
		for _, in := range svc.Status.LoadBalancer.Ingress {
			return plan.Fact[string]{Value: plan.Yes, Source: "service " + name + " has got " + in.IP + in.Hostname}
		}
		out = plan.Fact[string]{Value: plan.No, Source: "service " + name + " has got no address"}
	}
	if out.Value != "" {
		return out
	}
	switch provider {
	case ProviderAKS, ProviderEKS, ProviderGKE:
		return plan.Fact[string]{Value: plan.Yes, Source: "the provider " + provider + " has load balancers", Assumed: true}
	}
	for _, ds := range s.daemonSets.Items {
		// MetalLB's speakers, by its manifests and by its chart.
		if ds.Status.DesiredNumberScheduled > 0 && (ds.Labels["app"] == "metallb" || strings.HasPrefix(ds.Namespace, "metallb")) {
			return plan.Fact[string]{Value: plan.Yes, Source: "MetalLB runs as DaemonSet " + ds.Namespace + "/" + ds.Name, Assumed: true}
		}
	}
	return out
}

// holder is an object and an address that it has.
type holder struct {
	object string
	addr   netip.Addr
}

// check compares the ranges with the pods and services that run. Where the pods'
// ranges were not given, and no object names one in which there are pods, they are
// not known after all.
func (s *snapshot) check(f *plan.Network, given bool) error {
	pods := s.podAddrs()
	if err := compare(f, "pods", f.PodCIDRs, pods, "--pod-cidr", "kubectl get pods -A -o wide"); err != nil {
		named := lo.Filter(f.PodCIDRs, func(r plan.Range, _ int) bool { return !r.Assumed })
		if given || slices.ContainsFunc(pods, func(p holder) bool { return named.Contain(p.addr) }) {
			return err
		}
		f.PodsUnknown, f.PodCIDRs = err, nil
	}
	if err := compare(f, "services", f.ServiceCIDRs, s.serviceAddrs(), "--service-cidr", "kubectl get services -A"); err != nil {
		return err
	}
	for _, p := range f.PodCIDRs {
		for _, svc := range f.ServiceCIDRs {
			if p.Value.Overlaps(svc.Value) {
				warn(f, "the pods' range %s (%s) overlaps the services' range %s (%s)", p.Value, p.Source, svc.Value, svc.Source)
			}
		}
	}
	return nil
}

// compare returns an error if objects have addresses outside of the ranges found. Those of
// a family without any range are not exchanged: a warning names the first one.
func compare(f *plan.Network, what string, found plan.Ranges, have []holder, flag, command string) error {
	var outside []holder
	warned := len(found) == 0
	for _, h := range have {
		sameFamily := func(r plan.Range) bool { return r.Value.Addr().Is4() == h.addr.Is4() }
		switch {
		case found.Contain(h.addr):
		case slices.ContainsFunc(found, sameFamily):
			outside = append(outside, h)
		case !warned:
			warn(f, "%s have addresses as %s, too, but no range of that family was found; those are not exchanged", what, h.addr)
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
	for _, r := range found {
		assumed := lo.Ternary(r.Assumed, " (assumed)", "")
		sources, all = append(sources, r.Value.String()+": "+r.Source+assumed), append(all, r.Value.String())
	}
	all = append(all, "RANGE-OF-"+first.addr.String())
	return fmt.Errorf("cluster %q: %s has the address %s%s, which is %w for %s [%s]; give all of them by %s %s=%s (to see the addresses: %s)",
		f.Name, first.object, first.addr, others, ErrOutside, what, strings.Join(sources, "; "), flag, f.Name, strings.Join(all, ","), command)
}

func warn(f *plan.Network, format string, args ...any) {
	f.Warnings = append(f.Warnings, fmt.Sprintf(format, args...))
}
