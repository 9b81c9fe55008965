package discovery

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

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
		f.NodeCIDRs = s.nodeRanges()
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
