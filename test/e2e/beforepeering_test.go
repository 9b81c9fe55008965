package e2e

import (
	"slices"
	"strings"
	"testing"
)

// Before anything is peered, doctor says whether it would work, and leaves nothing.
func TestDoctorBeforePeering(t *testing.T) {
	ctx := begin(t)
	a, b := fx.alpha, fx.beta
	d := diagnose(t, ctx, a, b)
	expect(t, d.code == 0 && strings.HasPrefix(d.First, "Nothing found"), "before peering:\n%s", d.stdout)
	cure := dropOn(t, ctx, slices.Concat(a.nodes, b.nodes), "in udp dport 30000-32767 drop")
	if d := diagnose(t, ctx, a, b); d.code != 11 || !strings.Contains(d.First, "UDP from its nodes does not reach") {
		t.Errorf("with UDP blocked:\n%s", d.stdout)
	}
	cure()
	checkNothingLeft(t, ctx)
}
