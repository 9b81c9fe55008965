package discovery

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"github.com/samber/lo"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/plan"
)

// serviceRanges returns the ranges of the services' cluster IPs.
func (s *snapshot) serviceRanges(f *plan.Network) (plan.Ranges, error) {
	objects := lo.FlatMap(s.serviceCIDRs.Items, func(sc networkingv1.ServiceCIDR, _ int) []plan.Range {
		return stated(strings.Join(sc.Spec.CIDRs, ","), "from ServiceCIDR object "+sc.Name)
	})
	if len(objects) > 0 {
		return distinct(objects), nil
	}
	have := s.serviceAddrs()
	for _, found := range []plan.Ranges{
		s.customRanges(kindOpenShiftNet, "status.serviceNetwork"),
		s.podFlag("kube-apiserver", "service-cluster-ip-range"),
		s.podFlag("kube-controller-manager", "service-cluster-ip-range"),
		s.configured("kube-system/kubeadm-config", "ClusterConfiguration", "networking", "serviceSubnet"),
		s.nodeArgs("service-cidr"),
		s.ovnConfig("svc_cidr"),
		s.podFlag("kube-router", "service-cluster-ip-range"),
	} {
		// A configuration that services contradict is an old one.
		if len(found) > 0 && lo.EveryBy(have, func(h holder) bool { return found.Contain(h.addr) }) {
			return distinct(found), nil
		}
	}
	if out := s.serviceEstimate(f, have); len(out) > 0 {
		return distinct(out), nil
	}
	command := cmp.Or(map[string]string{
		ProviderEKS: "aws eks describe-cluster --name NAME --query cluster.kubernetesNetworkConfig",
		ProviderAKS: "az aks show -g GROUP -n NAME --query networkProfile.serviceCidrs",
		ProviderGKE: "gcloud container clusters describe NAME --format='value(servicesIpv4Cidr)'",
	}[f.Provider.Value], "kubectl get servicecidrs, or look for --service-cluster-ip-range among the arguments of kube-apiserver")
	return nil, fmt.Errorf("cluster %q: the range of the services is %w: no source names it and there is no service default/kubernetes; "+
		"give --service-cidr %s=RANGE (to find it: %s)", f.Name, ErrUnknown, f.Name, command)
}

// serviceAddrs returns the services' cluster IPs.
func (s *snapshot) serviceAddrs() (out []holder) {
	for _, svc := range s.services.Items {
		for _, ip := range svc.Spec.ClusterIPs {
			// One with a zone is none of a service.
			if a, err := netip.ParseAddr(ip); err == nil && a.Zone() == "" {
				out = append(out, holder{"service " + svc.Namespace + "/" + svc.Name, a})
			}
		}
	}
	return out
}

// serviceEstimate concludes the range from the cluster IPs: the first address of the
// range is the one of the service kubernetes.
func (s *snapshot) serviceEstimate(f *plan.Network, have []holder) (out plan.Ranges) {
	avoid := append(f.NodeCIDRs.Prefixes(), s.nodePods()...)
	for _, h := range have {
		if h.object != "service default/kubernetes" {
			continue
		}
		base := h.addr.Prev()
		all := netip.PrefixFrom(base, base.BitLen())
		for _, o := range have {
			if o.addr.Is4() == base.Is4() {
				all = ipam.Cover(all, netip.PrefixFrom(o.addr, o.addr.BitLen()))
			}
		}
		// It is no larger than where it begins allows. Usual ones that nobody configured
		// are of kubeadm and GKE; all others are a /16 at the most.
		bits := 16
		switch {
		case base == netip.MustParseAddr("10.96.0.0"):
			bits = 12
		case base == netip.MustParseAddr("34.118.224.0"):
			bits = 20
		case base.Is6():
			bits = 108
		}
		for netip.PrefixFrom(base, bits).Masked().Addr() != base {
			bits++
		}
		source := "from services' cluster IPs, rounded up; it begins at the service kubernetes, " + h.addr.String()
		out = append(out, plan.Range{Value: ipam.Widen(all, bits, avoid), Assumed: true, Source: source})
	}
	return out
}
