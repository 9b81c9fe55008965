package plan_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/liqonet/liqonet/test/kit"
)

// Decisions are separate from actions: no dependency of the pure packages talks to an API server or to a kernel.
func TestPure(t *testing.T) {
	for _, pkg := range []string{"plan", "ipam", "nodes", "failover", "probe", "verify", "doctor", "wire", "admission"} {
		out, err := exec.Command("go", "list", "-deps", "github.com/liqonet/liqonet/pkg/"+pkg).Output()
		kit.FatalIf(t, err != nil, "list dependencies of %s: %v", pkg, err)
		for _, dep := range strings.Fields(string(out)) {
			for _, does := range []string{
				"sigs.k8s.io/controller-runtime/", "k8s.io/client-go/", "github.com/vishvananda/net", "github.com/mdlayher/", "github.com/google/nftables",
				"golang.zx2c4.com/", "golang.org/x/sys/", "github.com/liqonet/liqonet/pkg/discovery", "github.com/liqonet/liqonet/pkg/peering",
			} {
				kit.ErrorIf(t, strings.HasPrefix(dep+"/", does), "%s depends on %s", pkg, dep)
			}
		}
	}
}
