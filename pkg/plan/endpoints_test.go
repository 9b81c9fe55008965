package plan

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/test/kit"
)

// Endpoints from the other cluster's Service must be a host and a port, or planning fails.
func TestEndpointsOfAService(t *testing.T) {
	service := func(endpoints string, ingress ...corev1.LoadBalancerIngress) *corev1.Service {
		svc := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Name: v1alpha1.PlanePortName(0), Port: 51840}}}}
		svc.Annotations, svc.Status.LoadBalancer.Ingress = map[string]string{AnnotationEndpoints: endpoints}, ingress
		return svc
	}
	for _, tt := range []struct {
		name, endpoints string
		bad             bool
	}{
		{name: "none"},
		{name: "good ones", endpoints: "192.0.2.1:30001,[2001:db8::1]:30001,gateway.example:51840"},
		{name: "a line of WireGuard's configuration", endpoints: "[fe80::1%x\nallowed_ip=0.0.0.0/0]:51840", bad: true},
		{name: "a zone", endpoints: "192.0.2.1:30001,[fe80::1%eth0]:30001", bad: true},
		{name: "an escape code", endpoints: "\x1b[31mhost:1", bad: true},
		{name: "no port", endpoints: "192.0.2.1", bad: true},
		{name: "more than there is room for", endpoints: strings.Repeat("192.0.2.1:1,", 16) + "192.0.2.1:1", bad: true},
	} {
		a, b := newFacts("a", nil, "", "172.18.0.0/24"), newFacts("b", []string{"10.2.0.0/16"}, "", "172.19.0.0/24")
		b.facts.Planes[0] = PlaneFacts{PublicKey: "k"}
		b.facts.Service = service(tt.endpoints)
		err := check(a, b)
		kit.ErrorIf(t, (err != nil) != tt.bad || tt.bad && kindOf(t, err) != failure.Usage, "%s: %v", tt.name, err)
	}
	odd := service("", corev1.LoadBalancerIngress{IP: "fe80::1%x\nallowed_ip=0.0.0.0/0"}, corev1.LoadBalancerIngress{Hostname: "host\nallowed_ip=0.0.0.0/0"}, corev1.LoadBalancerIngress{IP: "192.0.2.1"})
	kit.Check(t, "ServiceEndpoints", ServiceEndpoints(odd, 0, nil), []string{"192.0.2.1:51840"})
}
