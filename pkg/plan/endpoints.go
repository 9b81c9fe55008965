package plan

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

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
func ServiceEndpoints(svc *corev1.Service, plane int32, nodes []Node) (out []string) {
	hosts, port := serviceHosts(svc, plane, nodes)
	for _, host := range hosts {
		if port != 0 {
			out = append(out, net.JoinHostPort(host, strconv.Itoa(int(port))))
		}
	}
	return out
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
		for _, in := range svc.Status.LoadBalancer.Ingress {
			hosts = append(hosts, cmp.Or(in.IP, in.Hostname))
		}
	case corev1.ServiceTypeNodePort:
		port = p.NodePort
		internal, external := nodeHosts(nodes)
		if n := len(internal); n > 0 {
			// No two planes begin by the same node: it could end both.
			first := int(plane) % n
			internal = slices.Concat(internal[first:], internal[:first])
		}
		room := maxEndpoints - min(len(external), maxEndpoints/2)
		hosts = append(internal[:min(len(internal), room)], external...)
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
	var errs []error
	given := f.givenEndpoints()
	if len(given) > maxEndpoints {
		errs = append(errs, fmt.Errorf("there are %d, and a Peering has room for %d", len(given), maxEndpoints))
	}
	for _, e := range given {
		errs = append(errs, checkEndpoint(e))
	}
	if err := errors.Join(errs...); err != nil {
		return f.refuse("read the endpoints of its gateways",
			fmt.Sprintf("give others by --endpoint %s=ADDRESS:PORT,…, or --endpoint %s=auto", f.Name, f.Name), err)
	}
	return nil
}

// nodeHosts are the addresses at which a node port is called.
func nodeHosts(nodes []Node) (internal, external []string) {
	for _, n := range nodes {
		if !n.Ready {
			continue
		}
		for _, a := range n.InternalIPs {
			internal = append(internal, a.String())
		}
		for _, a := range n.ExternalIPs {
			external = append(external, a.String())
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
		notes = append(notes, fmt.Sprintf("%d of %d endpoints of %s are left out, as a Peering has room for %d; give the best ones by --endpoint %s=ADDRESS:PORT,…",
			n-maxEndpoints, n, f.Name, maxEndpoints, f.Name))
	}
	if n := len(nodeIPs(f.nodeOffers())); n > maxNodeIPs {
		notes = append(notes, fmt.Sprintf("%d of %d node addresses of %s are left out, as a Peering has room for %d: peers may take them for addresses of pods",
			n-maxNodeIPs, n, f.Name, maxNodeIPs))
	}
	return notes
}

// plannedEndpoints are where the gateway of a plane will be called.
func (f *sheet) plannedEndpoints(plane int32, svc *corev1.Service) (out []Statement) {
	for _, e := range f.givenEndpoints() {
		out = append(out, known("endpoint", e, "given by --endpoint"))
	}
	if len(out) > 0 {
		return out
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
func nodeIPs(nodes []NodeOffer) (out []v1alpha1.IP) {
	for _, n := range nodes {
		for _, a := range n.Addresses {
			out = append(out, v1alpha1.IP{Addr: a})
		}
	}
	slices.SortFunc(out, func(a, b v1alpha1.IP) int { return a.Compare(b.Addr) })
	return slices.Compact(out)
}
