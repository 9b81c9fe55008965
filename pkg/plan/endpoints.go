package plan

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/discovery"
)

const (
	// maxEndpoints is what a plane of a Peering has room for.
	maxEndpoints = 16
	// maxNodeIPs is how many a Peering has room for, which keeps it to a size that an
	// API server takes.
	maxNodeIPs = 4096
)

// ServiceEndpoints are where a gateway is called by its Service, as host:port in
// the order in which they should be tried. Of many nodes, those that are left out
// are such that both internal and external addresses remain.
func ServiceEndpoints(svc *corev1.Service, nodes []discovery.Node) []string {
	out, external := allEndpoints(svc, nodes)
	internal := maxEndpoints - min(len(external), maxEndpoints/2)
	out = append(out[:min(len(out), internal)], external...)
	return out[:min(len(out), maxEndpoints)]
}

// allEndpoints are those of which ServiceEndpoints takes as many as there is room
// for.
func allEndpoints(svc *corev1.Service, nodes []discovery.Node) (out, external []string) {
	endpoint := func(host string, port int32) []string {
		if host == "" || port == 0 {
			return nil
		}
		return []string{net.JoinHostPort(host, strconv.Itoa(int(port)))}
	}
	port := svc.Spec.Ports[0]
	switch svc.Spec.Type {
	case corev1.ServiceTypeLoadBalancer:
		for _, in := range svc.Status.LoadBalancer.Ingress {
			out = append(out, endpoint(in.IP, port.Port)...)
			out = append(out, endpoint(in.Hostname, port.Port)...)
		}
	case corev1.ServiceTypeNodePort:
		for _, n := range nodes {
			if !n.Ready {
				continue
			}
			for _, a := range n.InternalIPs {
				out = append(out, endpoint(a.String(), port.NodePort)...)
			}
			for _, a := range n.ExternalIPs {
				external = append(external, endpoint(a.String(), port.NodePort)...)
			}
		}
	default:
		out = endpoint(svc.Spec.ClusterIP, port.Port)
	}
	return out, external
}

// leftOut says which endpoints and addresses of nodes a peer is not told of, because
// a Peering has no room for them.
func (f *FactSheet) leftOut(gateways []GatewayPlan) (notes []string) {
	for _, g := range gateways {
		if g.Service == nil || len(f.GivenEndpoints(g.Plane)) > 0 {
			continue
		}
		svc := g.Service.DeepCopy()
		if live := f.Planes[g.Plane].Service; live != nil {
			svc.Status = live.Status
		}
		// Any port and address: only how many there are matters.
		svc.Spec.Ports[0].NodePort, svc.Spec.ClusterIP = 1, "0.0.0.0"
		all, external := allEndpoints(svc, f.Nodes)
		if n := len(all) + len(external); n > maxEndpoints {
			notes = append(notes, fmt.Sprintf("%d of %d endpoints of %s are left out, as a Peering has room for %d; give the best ones by --endpoint %s=ADDRESS:PORT,…",
				n-maxEndpoints, n, f.Name, maxEndpoints, f.Name))
		}
	}
	if n := len(allNodeIPs(f.Nodes)); n > maxNodeIPs {
		notes = append(notes, fmt.Sprintf("%d of %d node addresses of %s are left out, as a Peering has room for %d: peers may take them for addresses of pods",
			n-maxNodeIPs, n, f.Name, maxNodeIPs))
	}
	return notes
}

// plannedEndpoints are where the gateway of a plane will be called. Where the
// Service has no address or port yet, that is named.
func (f *FactSheet) plannedEndpoints(plane int32, svc *corev1.Service) (out []Statement) {
	statements := func(endpoints []string, reason string, duringRun bool) []Statement {
		for _, e := range endpoints {
			out = append(out, Statement{What: "endpoint", Value: e, Reason: reason, DuringRun: duringRun})
		}
		return out
	}
	if given := f.GivenEndpoints(plane); len(given) > 0 {
		return statements(given, "given by --endpoint", false)
	}
	want := svc.DeepCopy()
	reason := map[corev1.ServiceType]string{
		corev1.ServiceTypeNodePort: "address of a node that is ready", corev1.ServiceTypeLoadBalancer: "address of the load balancer",
		corev1.ServiceTypeClusterIP: "cluster IP of the Service",
	}[svc.Spec.Type]
	if live := f.Planes[plane].Service; live != nil && live.Spec.Type == svc.Spec.Type {
		want.Spec.ClusterIP, want.Status = live.Spec.ClusterIP, live.Status
		if port := &want.Spec.Ports[0]; port.NodePort == 0 {
			port.NodePort = live.Spec.Ports[0].NodePort
		}
	}
	if known := ServiceEndpoints(want, f.Nodes); len(known) > 0 {
		return statements(known, reason, false)
	}
	name := fmt.Sprintf("of Service %s/%s in %s>", svc.Namespace, svc.Name, f.Name)
	port := strconv.Itoa(int(svc.Spec.Ports[0].Port))
	switch svc.Spec.Type {
	case corev1.ServiceTypeLoadBalancer:
		return statements([]string{"<address " + name + ":" + port}, reason, true)
	case corev1.ServiceTypeNodePort:
		// Any port: it is replaced by its description.
		want.Spec.Ports[0].NodePort = 1
		var hosts []string
		for _, e := range ServiceEndpoints(want, f.Nodes) {
			host, _, _ := net.SplitHostPort(e)
			if strings.Contains(host, ":") {
				host = "[" + host + "]"
			}
			hosts = append(hosts, host+":<node port "+name)
		}
		return statements(hosts, reason, true)
	default:
		return statements([]string{"<cluster IP " + name + ":" + port}, reason, true)
	}
}

// nodeIPs are the addresses of nodes that a Peering has room for, sorted.
func nodeIPs(nodes []discovery.Node) []v1alpha1.IP {
	all := allNodeIPs(nodes)
	return all[:min(len(all), maxNodeIPs)]
}

func allNodeIPs(nodes []discovery.Node) []v1alpha1.IP {
	var out []v1alpha1.IP
	for _, n := range nodes {
		for _, a := range slices.Concat(n.InternalIPs, n.ExternalIPs) {
			out = append(out, v1alpha1.IP{Addr: a})
		}
	}
	slices.SortFunc(out, func(a, b v1alpha1.IP) int { return a.Compare(b.Addr) })
	return slices.Compact(out)
}
