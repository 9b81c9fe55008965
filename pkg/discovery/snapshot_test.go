package discovery

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/plan"
)

func TestFlagValue(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"kube-controller-manager", "--cluster-cidr=10.0.0.0/16"}, "10.0.0.0/16"},
		{[]string{"server", "--cluster-cidr", "10.0.0.0/16"}, "10.0.0.0/16"},
		{[]string{"/bin/sh", "-c", "exec kube-proxy --cluster-cidr=10.0.0.0/16 --v=2"}, "10.0.0.0/16"},
		{[]string{"--other-cluster-cidr=10.0.0.0/16"}, ""},
		{[]string{"--cluster-cidr"}, ""},
	} {
		if got := flagValue(c.args, "cluster-cidr"); got != c.want {
			t.Errorf("%v: got %q, want %q", c.args, got, c.want)
		}
	}
}

// A service IP with a zone, which no service can have, is left out: no range begins there, and the search for one would
// not end.
func TestSecurity_15_ServiceOfAnOddAddress(t *testing.T) {
	for ip, want := range map[string]int{"fd00::1%eth0": 0, "::": 1, "0.0.0.0": 1, "255.255.255.255": 1, "fd00::1": 1, "10.96.0.1": 1} {
		s := &inference{&snapshot{}, &plan.Network{}}
		s.services.Items = []corev1.Service{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"}, Spec: corev1.ServiceSpec{ClusterIPs: []string{ip}},
		}}
		if got := s.serviceEstimate(s.serviceAddrs()); len(got) != want {
			t.Errorf("%s: %v", ip, got)
		}
	}
}
