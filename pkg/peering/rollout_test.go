package peering

import (
	"strings"
	"testing"
	"time"

	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// Peer returns when the agents that were applied have taken over, whatever their predecessors have reported.
func TestRollout(t *testing.T) {
	kit.NotShort(t)
	for name, tc := range map[string]struct {
		setup func(b *Site)
		want  string
	}{
		"all is done":                      {func(*Site) {}, ""},
		"the gateway's pod is late":        {func(b *Site) { b.late = "gateway-a-0" }, "the gateway is being replaced"},
		"Leases are of those before":       {func(b *Site) { b.holder = "an-older-pod" }, "since it was replaced"},
		"a node that is not ready is late": {func(b *Site) { b.late = "b-2" }, ""},
		"a node that is ready is late":     {func(b *Site) { b.late = "b-1" }, "the node agent of b-1 is being replaced"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := TwoSites(t, kubetest.Node("b-2", false, "172.18.2.12"))
			MustPeer(t, a, b, engine.Options{})
			b.Mu.Lock()
			tc.setup(b)
			b.Mu.Unlock()
			r := kube.Reporter(kube.Quiet{})
			if tc.want != "" {
				r = &impatient{1, 5 * time.Second}
			}
			_, err := Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{Image: "image:2"}, r)
			switch {
			case tc.want == "" && err != nil:
				t.Error(err)
			case tc.want == "":
			case err == nil:
				t.Errorf("it did not wait; want an error with %q", tc.want)
			case kubetest.KindOf(t, err) != kube.NotReady || !strings.Contains(err.Error(), tc.want):
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}
