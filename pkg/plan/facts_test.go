package plan

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// Of two reports of a node the one counts that was written last, in whatever order they
// are read.
func TestReportsByNode(t *testing.T) {
	report := func(node, name, version string) v1alpha1.NodeNetwork {
		return v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}, Spec: v1alpha1.NodeNetworkSpec{NodeName: node}}
	}
	old, other, last := report("n1", "10.80.0.1", "99"), report("n2", "10.80.0.2", "100"), report("n1", "10.80.0.3", "101")
	for _, reports := range [][]v1alpha1.NodeNetwork{{old, other, last}, {last, other, old}} {
		got := ReportsByNode(reports)
		if len(got) != 2 || got["n1"].Name != last.Name || got["n2"].Name != other.Name {
			t.Errorf("of %s, %s and %s it takes %s for n1", reports[0].Name, reports[1].Name, reports[2].Name, got["n1"].Name)
		}
	}
}
