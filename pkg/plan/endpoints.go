package plan

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

const (
	// maxEndpoints is what a plane of a Peering has room for.
	maxEndpoints = 16
	// maxNodeIPs is how many a Peering has room for, which keeps it to a size that an
	// API server takes.
	maxNodeIPs = 4096
)

// ServiceEndpoints are where the gateway of a plane is called by the Service, as host:port in
// the order in which they should be tried.
func ServiceEndpoints(svc *corev1.Service, plane int32, nodes []Node) []string {
	hosts, port := serviceHosts(svc, plane, nodes)
	if port == 0 {
		return nil
	}
	return lo.Map(hosts, func(host string, _ int) string { return net.JoinHostPort(host, strconv.Itoa(int(port))) })
}

// serviceHosts are where a Service is called, as many as there is room for, and at
// which port of the plane, 0 while that is not known. Of many nodes, those that are left out are such
// that both internal and external addresses remain.
func serviceHosts(svc *corev1.Service, plane int32, nodes []Node) (hosts []string, port int32) {
	p := v1alpha1.ServicePort(svc, plane)
	if p == nil {
		return nil, 0 // somebody has changed it, or it was applied by a version with another name
	}
	port = p.Port
	switch svc.Spec.Type {
	case corev1.ServiceTypeLoadBalancer:
		hosts = lo.Map(svc.Status.LoadBalancer.Ingress, func(in corev1.LoadBalancerIngress, _ int) string { return cmp.Or(in.IP, in.Hostname) })
	case corev1.ServiceTypeNodePort:
		port = p.NodePort
		internal, external := nodeHosts(nodes)
		if n := len(internal); n > 0 {
			// No two planes begin by the same node: it could end both.
			first := int(plane) % n
			internal = slices.Concat(internal[first:], internal[:first])
		}
		room := maxEndpoints - min(len(external), maxEndpoints/2)
		addrs := slices.Concat(internal[:min(len(internal), room)], external)
		hosts = lo.Map(addrs, func(a netip.Addr, _ int) string { return a.String() })
	default:
		hosts = []string{svc.Spec.ClusterIP}
	}
	// What is no endpoint, such as an address with a zone, has no place in the peer's Peering.
	hosts = slices.DeleteFunc(hosts, func(h string) bool { return checkEndpoint(net.JoinHostPort(h, "1")) != nil })
	return hosts[:min(len(hosts), maxEndpoints)], port
}

func checkEndpoint(endpoint string) error {
	_, _, err := v1alpha1.SplitEndpoint(endpoint)
	return err
}

// checkEndpoints refuses what somebody else may have written into the annotation of a Service.
func (f *sheet) checkEndpoints() error {
	var tooMany error
	given := f.givenEndpoints()
	if len(given) > maxEndpoints {
		tooMany = fmt.Errorf("there are %d, and a Peering has room for %d", len(given), maxEndpoints)
	}
	wrong := errors.Join(lo.Map(given, func(e string, _ int) error { return checkEndpoint(e) })...)
	if err := errors.Join(tooMany, wrong); err != nil {
		return f.refuse("read the endpoints of its gateways",
			fmt.Sprintf("give others by --endpoint %s=ADDRESS:PORT,…, or --endpoint %s=auto", f.Name, f.Name), err)
	}
	return nil
}

// nodeHosts are the addresses at which a node port is called.
func nodeHosts(nodes []Node) (internal, external []netip.Addr) {
	for _, n := range nodes {
		if n.Ready {
			internal, external = append(internal, n.InternalIPs...), append(external, n.ExternalIPs...)
		}
	}
	return internal, external
}

// leftOut says which endpoints and addresses of nodes a peer is not told of, because
// a Peering has no room for them.
func (f *sheet) leftOut(svc *corev1.Service) (notes []string) {
	internal, external := nodeHosts(f.Nodes)
	n := len(internal) + len(external)
	if n > maxEndpoints && svc != nil && svc.Spec.Type == corev1.ServiceTypeNodePort && len(f.givenEndpoints()) == 0 {
		notes = append(notes, fmt.Sprintf("%d of %d endpoints of %s are left out, as a Peering has room for %d; "+
			"give the best ones by --endpoint %s=ADDRESS:PORT,…", n-maxEndpoints, n, f.Name, maxEndpoints, f.Name))
	}
	if n := len(nodeIPs(f.nodeOffers())); n > maxNodeIPs {
		notes = append(notes, fmt.Sprintf("%d of %d node addresses of %s are left out, as a Peering has room for %d: "+
			"peers may take them for addresses of pods", n-maxNodeIPs, n, f.Name, maxNodeIPs))
	}
	return notes
}

// plannedEndpoints are where the gateway of a plane will be called.
func (f *sheet) plannedEndpoints(plane int32, svc *corev1.Service) (out []Statement) {
	if given := f.givenEndpoints(); len(given) > 0 {
		return lo.Map(given, func(e string, _ int) Statement { return known("endpoint", e, "given by --endpoint") })
	}
	want := svc.DeepCopy()
	if live := f.Service; live != nil && live.Spec.Type == svc.Spec.Type {
		want.Spec.ClusterIP, want.Status = live.Spec.ClusterIP, live.Status
		if has := v1alpha1.ServicePort(live, plane); has != nil {
			port := v1alpha1.ServicePort(want, plane)
			port.NodePort = cmp.Or(port.NodePort, has.NodePort)
		}
	}
	reason := map[corev1.ServiceType]string{
		corev1.ServiceTypeNodePort: "address of a node that is ready", corev1.ServiceTypeLoadBalancer: "address of the load balancer",
		corev1.ServiceTypeClusterIP: "cluster IP of the Service",
	}[svc.Spec.Type]
	hosts, port := serviceHosts(want, plane, f.Nodes)
	name := fmt.Sprintf("of Service %s/%s in %s", svc.Namespace, svc.Name, f.Name)
	for _, host := range hosts {
		s := known("endpoint", net.JoinHostPort(host, strconv.Itoa(int(port))), reason)
		if port == 0 {
			s = later("endpoint", fmt.Sprintf("%s, node port %s %s", host, v1alpha1.PlanePort(plane), name), reason)
		}
		out = append(out, s)
	}
	if len(out) == 0 && svc.Spec.Type != corev1.ServiceTypeNodePort {
		out = append(out, later("endpoint", "address "+name, reason))
	}
	return out
}

// nodeIPs are the addresses of nodes, sorted. A Peering has room for maxNodeIPs of them.
func nodeIPs(nodes []NodeOffer) []v1alpha1.IP {
	addrs := lo.FlatMap(nodes, func(n NodeOffer, _ int) []netip.Addr { return n.Addresses })
	slices.SortFunc(addrs, netip.Addr.Compare)
	return lo.Map(slices.Compact(addrs), func(a netip.Addr, _ int) v1alpha1.IP { return v1alpha1.IP{Addr: a} })
}
