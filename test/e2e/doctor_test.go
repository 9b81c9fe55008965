package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Before anything is peered, doctor says whether it would work, and leaves nothing.
func TestDoctorBeforePeering(t *testing.T) {
	ctx := begin(t)
	a, b := fx.alpha, fx.beta
	d := diagnose(t, ctx, a, b)
	expect(t, d.code == 0 && strings.HasPrefix(d.First, "No problems found"), "before peering:\n%s", d.stdout)
	cure := dropOn(t, ctx, slices.Concat(a.nodes, b.nodes), "in udp dport 30000-32767 drop")
	if d := diagnose(t, ctx, a, b); d.code != 11 || !strings.Contains(d.First, "UDP from its nodes does not reach") {
		t.Errorf("with UDP blocked:\n%s", d.stdout)
	}
	cure()
	checkNothingLeft(t, ctx)
}

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
			t.Run(c.Name, func(t *testing.T) { checkVerified(t, ctx, hub, c) })
		}
	}
	fmt.Printf("BenchmarkHealthy %d %.1f mean-s %.1f slowest-s\n", healthyRuns, all/healthyRuns, slowest)
	mustLiqonet(t, ctx, "unpeer", hub.Name, "--spokes", spokes)
	checkNothingLeft(t, ctx)
}
