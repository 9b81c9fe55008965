package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// healthyRuns is how often clusters without a fault are looked at.
const healthyRuns = 50

// Six clusters with different pod networks are peered, one with each of the others. Whoever looks at them, nothing is called broken.
func TestHealthyNetworks(t *testing.T) {
	added := useNetworks(t)
	begin(t)
	ctx := t.Context()
	hub := fx.alpha
	spokes := strings.Join(namesOf(added), ",")
	mustLiqonet(t, ctx, "peer", hub.Name, "--spokes", spokes, "--service-type=NodePort", "--timeout=3m")
	slowest, all := 0.0, 0.0
	for i := range healthyRuns {
		c := added[i%len(added)]
		liqonet(t, ctx, "", "status", hub.Name, c.Name).ends(t, 0)
		d := diagnose(t, ctx, hub, c)
		expect(t, d.code == 0, "run %d: doctor: exit code %d\n%s", i, d.code, d.stdout)
		all += d.took.Seconds()
		slowest = max(slowest, d.took.Seconds())
		if i < len(added) {
			t.Logf("%s: %s", c.Name, d.First)
		}
	}
	fmt.Printf("BenchmarkHealthy %d %.1f mean-s %.1f slowest-s\n", healthyRuns, all/healthyRuns, slowest)
	mustLiqonet(t, ctx, "unpeer", hub.Name, "--spokes", spokes)
	checkNothingLeft(t, ctx)
}
