package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// A peer that says that its pods have public addresses attracts none of them, unless the
// user wants it so.
func TestSecurity_02_PublicAddressesStayWhereTheyAre(t *testing.T) {
	ctx := begin(t)
	a, b := fx.gamma, fx.delta
	const public, inside = "198.18.0.0/24", "198.18.0.1"
	attracts := func() bool {
		out, _ := a.nodes[0].shell(ctx, "ip route get "+inside) // fails where there is no default route
		return strings.Contains(out, "dev loq")
	}
	peer := []string{"peer", a.Name, b.Name, "--pod-cidr", fmt.Sprintf("%s=%s,%s", b.Name, b.spec.PodCIDR, public)}
	if r := mustLiqonet(t, ctx, peer...); attracts() || !strings.Contains(r.stdout, public+" -> ") {
		t.Errorf("%s of %s leads to the peer: %t; it was said:\n%s", inside, a.Name, attracts(), r.stdout)
	}
	checkPair(t, ctx, a, b)
	mustLiqonet(t, ctx, append(peer, "--map", fmt.Sprintf("%s=%s=%s", b.Name, public, public))...)
	if !attracts() {
		t.Errorf("%s of %s does not lead to the peer, though the user wants it", inside, a.Name)
	}
	mustLiqonet(t, ctx, peer...)
	if !attracts() {
		t.Error("a peering that works does not keep its range")
	}
	mustLiqonet(t, ctx, "unpeer", a.Name, b.Name)
	checkNothingLeft(t, ctx)
}
