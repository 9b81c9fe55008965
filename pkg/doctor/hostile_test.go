package doctor_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/doctor"
	"github.com/liqonet/liqonet/test/schema"
)

// Examine does not panic, whatever an API server stores.
func TestHostile(t *testing.T) {
	look := func(p v1alpha1.Peering, n v1alpha1.NodeNetwork) {
		c := &doctor.Cluster{
			Name: "hub", ID: "id-of-hub", Own: doctor.Objects{Installed: true}, Now: time.Now(), Peerings: []v1alpha1.Peering{p},
			Machines: doctor.Machines{Nodes: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{corev1.LabelOSStable: "linux"}}}}},
			Reports:  map[string]*v1alpha1.NodeNetwork{"n": &n},
		}
		peer := *c
		peer.Name, peer.ID = "peer", p.Spec.Remote.ClusterID
		doctor.Examine(&doctor.Facts{Clusters: []*doctor.Cluster{c, &peer}})
	}
	schema.Hostile(t, 200, schema.Examples()["Peering"], func(obj map[string]any) { look(schema.Into[v1alpha1.Peering](t, obj), v1alpha1.NodeNetwork{}) })
	schema.Hostile(t, 200, schema.Examples()["NodeNetwork"], func(obj map[string]any) { look(v1alpha1.Peering{}, schema.Into[v1alpha1.NodeNetwork](t, obj)) })
}
