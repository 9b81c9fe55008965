package watch

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/kit"
)

// An object that was rewritten with the same content causes no work. The comparison does not change it.
func TestSame(t *testing.T) {
	report := func(version, peering string) *v1alpha1.NodeNetwork {
		return &v1alpha1.NodeNetwork{
			ObjectMeta: metav1.ObjectMeta{Name: "n1", ResourceVersion: version},
			Status:     v1alpha1.NodeNetworkStatus{Gateways: []v1alpha1.NodeGateway{{PeeringName: peering}}},
		}
	}
	before := report("1", "b")
	for name, tt := range map[string]struct {
		now  any
		want bool
	}{
		"another version": {report("2", "b"), true},
		"another content": {report("2", "c"), false},
		"another kind":    {&v1alpha1.Peering{}, false},
	} {
		if got := isUnchanged(before, tt.now); got != tt.want {
			t.Errorf("%s: %t, want %t", name, got, tt.want)
		}
	}
	kit.ErrorIf(t, before.ResourceVersion != "1", "the cached object now has version %s", before.ResourceVersion)
}
