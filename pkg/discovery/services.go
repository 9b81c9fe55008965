package discovery

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/liqonet/liqonet/pkg/ipam"
)

// serviceRanges returns the ranges of the services' cluster IPs.
func (s *snapshot) serviceRanges(o Overrides, f Facts) ([]Fact[netip.Prefix], error) {
	if len(o.ServiceCIDRs) > 0 {
		return given(o.ServiceCIDRs, "--service-cidr"), nil
	}
	var out []Fact[netip.Prefix]
	for _, sc := range s.serviceCIDRs {
		out = append(out, facts(parsePrefixes(strings.Join(sc.Spec.CIDRs, ",")), "from ServiceCIDR object "+sc.Name, false)...)
	}
	if len(out) > 0 {
		return distinct(out), nil
	}
	addrs := s.clusterIPs()
	for _, found := range [][]Fact[netip.Prefix]{
		s.openShift("serviceNetwork"),
		s.podFlag("kube-apiserver", "service-cluster-ip-range"),
		s.podFlag("kube-controller-manager", "service-cluster-ip-range"),
		s.kubeadm("serviceSubnet"),
		s.nodeArgs("service-cidr"),
		s.ovnConfig("svc_cidr"),
		s.podFlag("kube-router", "service-cluster-ip-range"),
	} {
		// A configuration that services contradict is an old one.
		if len(found) > 0 && !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !covers(found, a) }) {
			return distinct(found), nil
		}
	}
	if out = s.serviceEstimate(f); len(out) > 0 {
		return out, nil
	}
	return nil, &UnknownError{
		Cluster: f.Name, What: "range of the services", Reason: "no source names it and there is no service default/kubernetes",
		Flag: "--service-cidr " + f.Name + "=RANGE", Command: serviceCommand(f.Provider.Value),
	}
}

// clusterIPs returns the services' addresses.
func (s *snapshot) clusterIPs() []netip.Addr {
	var out []netip.Addr
	for _, svc := range s.services {
		out = append(out, serviceAddrs(svc)...)
	}
	return out
}

func serviceAddrs(svc corev1.Service) []netip.Addr {
	if len(svc.Spec.ClusterIPs) > 0 {
		return parseAddrs(svc.Spec.ClusterIPs)
	}
	return parseAddrs([]string{svc.Spec.ClusterIP})
}

// serviceDefaults are what clusters have that nobody configured.
func serviceDefaults() []netip.Prefix {
	return parsePrefixes("10.96.0.0/12,10.43.0.0/16,10.100.0.0/16,172.20.0.0/16,172.30.0.0/16,10.0.0.0/16,34.118.224.0/20,10.152.183.0/24")
}

// serviceEstimate concludes the range from the cluster IPs: the first address of the
// range is the one of the service kubernetes.
func (s *snapshot) serviceEstimate(f Facts) []Fact[netip.Prefix] {
	var out []Fact[netip.Prefix]
	addrs := s.clusterIPs()
	var pods []netip.Prefix
	for _, n := range s.nodes {
		pods = append(pods, nodePodCIDRs(n)...)
	}
	avoid := append(valuesOf(f.NodeCIDRs), pods...)
	for _, svc := range s.services {
		if svc.Namespace != "default" || svc.Name != "kubernetes" {
			continue
		}
		for _, first := range serviceAddrs(svc) {
			base := netip.PrefixFrom(first.Prev(), first.BitLen())
			all := base
			for _, a := range addrs {
				if a.Is4() == first.Is4() {
					all = ipam.Cover(all, netip.PrefixFrom(a, a.BitLen()))
				}
			}
			i := slices.IndexFunc(serviceDefaults(), func(d netip.Prefix) bool { return d.Addr() == base.Addr() && contains(d, all) })
			if i >= 0 {
				out = append(out, Fact[netip.Prefix]{serviceDefaults()[i], "a usual default that begins at the service kubernetes, " + first.String(), true})
				continue
			}
			// The range begins at base, so it cannot be larger than base's alignment.
			bits := 16
			if !first.Is4() {
				bits = 108
			}
			for bits < all.Bits() && netip.PrefixFrom(base.Addr(), bits).Masked().Addr() != base.Addr() {
				bits++
			}
			out = append(out, Fact[netip.Prefix]{ipam.Widen(all, bits, avoid), "from services' cluster IPs, rounded up; it begins at the service kubernetes, " + first.String(), true})
		}
	}
	return distinct(out)
}

// kubeadm returns a range of kubeadm's ClusterConfiguration.
func (s *snapshot) kubeadm(field string) []Fact[netip.Prefix] {
	var c struct {
		Networking map[string]string `json:"networking"`
	}
	if yaml.Unmarshal([]byte(s.configMaps["kube-system/kubeadm-config"]["ClusterConfiguration"]), &c) != nil {
		return nil
	}
	return facts(parsePrefixes(c.Networking[field]), "from networking."+field+" of ConfigMap kube-system/kubeadm-config", false)
}

func serviceCommand(provider string) string {
	switch provider {
	case ProviderEKS:
		return "aws eks describe-cluster --name NAME --query cluster.kubernetesNetworkConfig"
	case ProviderAKS:
		return "az aks show -g GROUP -n NAME --query networkProfile.serviceCidrs"
	case ProviderGKE:
		return "gcloud container clusters describe NAME --format='value(servicesIpv4Cidr)'"
	}
	return "kubectl get servicecidrs, or look for --service-cluster-ip-range among the arguments of kube-apiserver"
}
