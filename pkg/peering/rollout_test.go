package peering

import (
	"strings"
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/kit"
)

// Peer returns when the agents that were applied have taken over, whatever those
// before them have reported.
func TestRollout(t *testing.T) {
	kit.NotShort(t)
	for name, tc := range map[string]struct {
		setup func(b *site)
		want  string
	}{
		"all is done":                      {func(*site) {}, ""},
		"the gateway's pod is late":        {func(b *site) { b.late = "gateway-a-0" }, "the gateway is being replaced"},
		"Leases are of those before":       {func(b *site) { b.holder = "an-older-pod" }, "since it was replaced"},
		"a node that is not ready is late": {func(b *site) { b.late = "b-2" }, ""},
		"a node that is ready is late":     {func(b *site) { b.late = "b-1" }, "the node agent of b-1 is being replaced"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := twoSites(t, node("b-2", false, "172.18.2.12"))
			mustPeer(t, a, b, Options{})
			b.mu.Lock()
			tc.setup(b)
			b.mu.Unlock()
			r := Reporter(Silent{})
			if tc.want != "" {
				r = &impatient{1, 5 * time.Second}
			}
			_, err := Peer(t.Context(), a.Cluster, b.Cluster, Options{Image: "image:2"}, r)
			switch {
			case tc.want == "" && err != nil:
				t.Error(err)
			case tc.want == "":
			case err == nil:
				t.Errorf("it did not wait; want an error with %q", tc.want)
			case kindOf(t, err) != NotReady || !strings.Contains(err.Error(), tc.want):
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}
