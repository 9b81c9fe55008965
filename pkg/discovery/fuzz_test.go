package discovery

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/test/kit"
)

// The ranges in the arguments, annotations and documents that a cluster has are valid.
func FuzzRanges(f *testing.F) {
	f.Add("/bin/sh -c exec kube-proxy --cluster-cidr=10.0.0.0/16,fd00::/48 --v=2", "networking:\n  serviceSubnet: [10.96.0.1/12, x]\n")
	f.Add("--cluster-cidr", "networking: &a\n  serviceSubnet: *a\n")
	f.Add("10.244.0.0/16/24, 10.1.0.0/16", "[]")
	f.Fuzz(func(t *testing.T, args, document string) {
		s := &snapshot{}
		s.configMaps = map[string]*corev1.ConfigMap{"kube-system/kubeadm-config": {ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kubeadm-config"}, Data: map[string]string{"ClusterConfiguration": document}}}
		for _, found := range []string{flagValue(strings.Fields(args), "cluster-cidr"), args} {
			for _, r := range withoutNested(parseRanges(found, "x")) {
				kit.ErrorIf(t, !r.Value.IsValid() || r.Value != r.Value.Masked(), "%q: %s", found, r.Value)
			}
		}
		for _, r := range s.configMapRanges("kube-system/kubeadm-config", "ClusterConfiguration", "networking", "serviceSubnet") {
			kit.ErrorIf(t, !r.Value.IsValid(), "%q: %s", document, r.Value)
		}
	})
}
