package discovery

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// exposure finds out by what a gateway can be reached from outside.
func (s *snapshot) exposure(f Facts) Exposure {
	e := Exposure{
		LoadBalancer:    s.loadBalancer(f.Provider.Value),
		NodeExternalIPs: Fact[Answer]{Value: No, Source: "no schedulable node has an ExternalIP"},
		NodePublicIPs:   Fact[Answer]{Value: No, Source: "no schedulable node has a public InternalIP"},
	}
	for _, n := range f.Nodes {
		if !n.Ready || !n.Schedulable {
			continue
		}
		if len(n.ExternalIPs) > 0 && e.NodeExternalIPs.Value == No {
			e.NodeExternalIPs = Fact[Answer]{Value: Yes, Source: fmt.Sprintf("node %s has %s", n.Name, n.ExternalIPs[0])}
		}
		for _, a := range n.InternalIPs {
			if a.IsGlobalUnicast() && !a.IsPrivate() && !sharedSpace(a) && e.NodePublicIPs.Value == No {
				e.NodePublicIPs = Fact[Answer]{Value: Yes, Source: fmt.Sprintf("node %s has %s", n.Name, a)}
			}
		}
	}
	return e
}

func (s *snapshot) loadBalancer(provider string) Fact[Answer] {
	waiting := ""
	for _, svc := range s.services {
		if svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
			continue
		}
		name := svc.Namespace + "/" + svc.Name
		for _, in := range svc.Status.LoadBalancer.Ingress {
			return Fact[Answer]{Value: Yes, Source: "service " + name + " has got " + in.IP + in.Hostname}
		}
		if waiting == "" {
			waiting = name
		}
	}
	if waiting != "" {
		return Fact[Answer]{Value: No, Source: "service " + waiting + " has got no address"}
	}
	switch provider {
	case ProviderAKS, ProviderEKS, ProviderGKE:
		return Fact[Answer]{Value: Yes, Source: "the provider " + provider + " has load balancers", Assumed: true}
	}
	for _, ds := range s.daemonSets {
		// MetalLB's speakers, by its manifests and by its chart.
		if ds.Status.DesiredNumberScheduled > 0 && (ds.Labels["app"] == "metallb" || strings.HasPrefix(ds.Namespace, "metallb")) {
			return Fact[Answer]{Value: Yes, Source: "MetalLB runs as DaemonSet " + ds.Namespace + "/" + ds.Name, Assumed: true}
		}
	}
	if provider == ProviderK3s {
		return Fact[Answer]{Value: Unknown, Source: "k3s has ServiceLB unless it was disabled, and there is no service of type LoadBalancer"}
	}
	return Fact[Answer]{Value: Unknown, Source: "there is no service of type LoadBalancer"}
}
