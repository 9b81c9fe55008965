package discovery

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/plan"
)

// Addresses that no service can have end no command, and keep none from ending.
func TestSecurity_15_ServiceOfAnOddAddress(t *testing.T) {
	for _, ip := range []string{"fd00::1%eth0", "::", "0.0.0.0", "255.255.255.255", "fd00::1", "10.96.0.1"} {
		s := &snapshot{}
		s.services.Items = []corev1.Service{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"}, Spec: corev1.ServiceSpec{ClusterIP: ip, ClusterIPs: []string{ip}},
		}}
		f := &plan.Facts{}
		t.Logf("%s: %v", ip, s.serviceEstimate(f, s.serviceAddrs()))
	}
}
