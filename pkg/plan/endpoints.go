package plan

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// AnnotationEndpoints is the annotation of the gateways' Service that stores the endpoints given by --endpoint.
const AnnotationEndpoints = "liqonet.io/endpoints"

const (
	// maxEndpoints is how many endpoints a plane of a Peering can hold.
	maxEndpoints = 16
	// maxNodeIPs is how many node addresses a Peering can hold. It keeps the object small enough for the API server.
	maxNodeIPs = 4096
)

// givenEndpoints returns the endpoints that the user gave for the gateway, now or in an earlier command. They belong to
// one gateway, so there is only one plane.
func (f *input) givenEndpoints() []string {
	if len(f.Overrides.Endpoints) > 0 || f.Overrides.AutoEndpoints {
		return f.Overrides.Endpoints
	}
	return endpointsOf(f.has.Service)
}

// GivenEndpoints returns the endpoints that the user gave for a server's gateway, nil if there are none.
func (c *ClusterPlan) GivenEndpoints() []string { return endpointsOf(c.Service) }

// endpointsOf returns the endpoints in the annotation of a Service, nil if there are none.
func endpointsOf(svc *corev1.Service) []string {
	if svc == nil || svc.Annotations[AnnotationEndpoints] == "" {
		return nil
	}
	return strings.Split(svc.Annotations[AnnotationEndpoints], ",")
}

// checkEndpoints validates the endpoints, as someone else may have changed the annotation of the Service.
func (f *input) checkEndpoints() error {
	var tooMany error
	given := f.givenEndpoints()
	if len(given) > maxEndpoints {
		tooMany = fmt.Errorf("there are %d, and a Peering can hold %d", len(given), maxEndpoints)
	}
	wrong := errors.Join(lo.Map(given, func(e string, _ int) error { return checkEndpoint(e) })...)
	if err := errors.Join(tooMany, wrong); err != nil {
		return f.has.refuse("read the endpoints of its gateways",
			fmt.Sprintf("give others with --endpoint %s=ADDRESS:PORT,…, or --endpoint %[1]s=auto", f.has.Network.Name), err)
	}
	return nil
}

func checkEndpoint(endpoint string) error {
	_, _, err := v1alpha1.SplitEndpoint(endpoint)
	return err
}

// chooseServiceType keeps the type of an existing Service.
func chooseServiceType(f *input) Statement {
	const what = "exposed by a Service of type"
	balancers := f.has.Network.LoadBalancers
	switch given := f.Overrides.ServiceType; {
	case !automatic(given):
		return known(what, given, "given by --service-type")
	case f.has.Service != nil:
		return known(what, string(f.has.Service.Spec.Type), "as before")
	case balancers.Value == Yes && len(f.givenEndpoints()) == 0:
		return factStatement(what, Fact[string]{string(corev1.ServiceTypeLoadBalancer), balancers.Source, balancers.Assumed})
	}
	return known(what, string(corev1.ServiceTypeNodePort), "it is not known to have load balancers: "+balancers.Source)
}

// service returns the Service that exposes the cluster's gateways.
func (f *input) service(peering string, planes []int32) *corev1.Service {
	kind := corev1.ServiceType(chooseServiceType(f).Value.String())
	s := manifests.Owned(manifests.GatewayService(peering, kind, planes), peering, f.has.Owner)
	s.Spec.Ports[0].NodePort = f.Overrides.NodePort
	s.Annotations[AnnotationEndpoints] = strings.Join(f.givenEndpoints(), ",")
	return s
}

// oneGateway returns why there can be only one gateway, because the user gave its endpoint or port. It is empty if there
// can be more.
func (f *input) oneGateway() string {
	if len(f.givenEndpoints()) > 0 {
		return "--endpoint names the endpoint of one gateway of " + f.has.Network.Name
	}
	if f.Overrides.NodePort > 0 {
		return "--service-type names the port of one gateway of " + f.has.Network.Name
	}
	return ""
}

// ServiceEndpoints returns where the Service exposes the gateway of a plane, as host:port in the order to try them.
func ServiceEndpoints(svc *corev1.Service, plane int32, nodes []Node) []string {
	hosts, port := serviceHosts(svc, plane, nodes)
	if port == 0 {
		return nil
	}
	return lo.Map(hosts, func(host string, _ int) string { return net.JoinHostPort(host, strconv.Itoa(int(port))) })
}

// serviceHosts returns the hosts at which a Service can be reached, up to maxEndpoints, and the port for the plane, 0
// while it is not known. If there are too many nodes, both internal and external addresses remain.
func serviceHosts(svc *corev1.Service, plane int32, nodes []Node) (hosts []string, port int32) {
	p := v1alpha1.ServicePort(svc, plane)
	if p == nil {
		return nil, 0 // someone has changed it, or another version with other names applied it
	}
	port = p.Port
	switch svc.Spec.Type {
	case corev1.ServiceTypeLoadBalancer:
		hosts = lo.Map(svc.Status.LoadBalancer.Ingress, func(in corev1.LoadBalancerIngress, _ int) string { return cmp.Or(in.IP, in.Hostname) })
	case corev1.ServiceTypeNodePort:
		port = p.NodePort
		internal, external := nodeHosts(nodes)
		if n := len(internal); n > 0 {
			// Each plane begins with another node, because the failure of one node must not stop two planes.
			first := int(plane) % n
			internal = slices.Concat(internal[first:], internal[:first])
		}
		room := maxEndpoints - min(len(external), maxEndpoints/2)
		addrs := slices.Concat(internal[:min(len(internal), room)], external)
		hosts = lo.Map(addrs, func(a netip.Addr, _ int) string { return a.String() })
	default:
		hosts = []string{svc.Spec.ClusterIP}
	}
	// Hosts that are not valid endpoints, such as an address with a zone, are dropped: the peer's Peering cannot hold
	// them.
	hosts = slices.DeleteFunc(hosts, func(h string) bool { return checkEndpoint(net.JoinHostPort(h, "1")) != nil })
	return hosts[:min(len(hosts), maxEndpoints)], port
}

// nodeHosts returns the addresses at which a node port can be reached.
func nodeHosts(nodes []Node) (internal, external []netip.Addr) {
	for _, n := range nodes {
		if n.Ready {
			internal, external = append(internal, n.InternalIPs...), append(external, n.ExternalIPs...)
		}
	}
	return internal, external
}

// plannedEndpoints returns where the gateway of a plane will be reachable.
func (f *input) plannedEndpoints(plane int32, svc *corev1.Service) (out []Statement) {
	if given := f.givenEndpoints(); len(given) > 0 {
		return lo.Map(given, func(e string, _ int) Statement { return known("endpoint", e, "given by --endpoint") })
	}
	want := svc.DeepCopy()
	if live := f.has.Service; live != nil && live.Spec.Type == svc.Spec.Type {
		want.Spec.ClusterIP, want.Status = live.Spec.ClusterIP, live.Status
		if has := v1alpha1.ServicePort(live, plane); has != nil {
			port := v1alpha1.ServicePort(want, plane)
			port.NodePort = cmp.Or(port.NodePort, has.NodePort)
		}
	}
	reason := map[corev1.ServiceType]string{
		corev1.ServiceTypeNodePort: "address of a ready node", corev1.ServiceTypeLoadBalancer: "address of the load balancer",
		corev1.ServiceTypeClusterIP: "cluster IP of the Service",
	}[svc.Spec.Type]
	hosts, port := serviceHosts(want, plane, f.has.Network.Nodes)
	name := fmt.Sprintf("of Service %s/%s in %s", svc.Namespace, svc.Name, f.has.Network.Name)
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
