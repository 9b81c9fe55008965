package plan

import (
	"testing"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/kit"
)

// Only reports that an agent has written count.
func TestReportsByNode(t *testing.T) {
	made := report("n1", "10.80.0.1", nil)
	made.Status = v1alpha1.NodeNetworkStatus{}
	got := ReportsByNode([]v1alpha1.NodeNetwork{made, report("n2", "10.80.0.2", nil)})
	kit.ErrorIf(t, len(got) != 1 || got["n2"].Name != "n2", "got %v", got)
}
