package discovery

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/test/kit"
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
		kit.Check(t, fmt.Sprint(c.args), flagValue(c.args, "cluster-cidr"), c.want)
	}
}

// A service IP with a zone, which no service can have, is left out: no range begins there, and the search for one would
// not end.
func TestServiceOfAnOddAddress(t *testing.T) {
	for ip, want := range map[string]int{"fd00::1%eth0": 0, "::": 1, "0.0.0.0": 1, "255.255.255.255": 1, "fd00::1": 1, "10.96.0.1": 1} {
		s := &inference{&snapshot{}, &plan.Network{}}
		s.services.Items = []corev1.Service{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"}, Spec: corev1.ServiceSpec{ClusterIPs: []string{ip}},
		}}
		got := s.serviceEstimate(s.serviceAddrs())
		kit.ErrorIf(t, len(got) != want, "%s: %v", ip, got)
	}
}
