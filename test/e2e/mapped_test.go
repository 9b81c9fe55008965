package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// What a cluster knows a peer's pods by may be a range that the peer itself uses
// for something else: for its services, or for the pods of another peer. Each
// meaning holds where it belongs, with ranges of different lengths, and nobody's
// own traffic notices.
func TestMappedRangeUsedInPeer(t *testing.T) {
	ctx := begin(t)
	a, b, c, d := fx.alpha, fx.beta, fx.gamma, fx.delta
	// What delta's pods have cannot be seen exactly from outside.
	peer := [][]string{
		{"peer", a.Name, b.Name},
		{"peer", b.Name, c.Name},
		{"peer", c.Name, d.Name, "--pod-cidr", d.Name + "=" + d.spec.PodCIDR.String()},
	}
	wants := []struct {
		in, of *cluster
		mapped netip.Prefix
	}{
		// beta knows gamma's pods by this.
		{a, b, c.spec.PodCIDR},
		{d, c, c.spec.ServiceCIDR},
		{c, d, netip.PrefixFrom(d.spec.ServiceCIDR.Addr(), d.spec.PodCIDR.Bits())},
	}
	// What else is chosen must not be there by chance.
	first := slices.Clone(peer)
	for _, want := range wants {
		for j := range first {
			if slices.Contains(first[j], want.in.Name) {
				first[j] = append(slices.Clip(first[j]), fmt.Sprintf("--reserve=%s=%s", want.in.Name, want.mapped))
			}
		}
	}
	together(t, ctx, first...)
	var inside []stream
	for _, x := range fx.clusters {
		inside = append(inside, x.ownTraffic()...)
	}
	own := probe(ctx, inside)

	for _, want := range wants {
		remap(t, ctx, want.in, want.of, want.mapped)
	}
	together(t, ctx, peer...)
	views := status(t, ctx, 0, fx.clusters...)
	for _, want := range wants {
		got := viewOf(t, views, want.of, want.in).LocalPods[0].Mapped
		expect(t, got == want.mapped, "%s knows the pods of %s by %s, want %s", want.in.Name, want.of.Name, got, want.mapped)
	}
	got := viewOf(t, views, c, b).LocalPods[0].Mapped
	expect(t, got == c.spec.PodCIDR, "%s knows the pods of %s by %s, want what they have", b.Name, c.Name, got)
	for _, pair := range [][2]*cluster{{a, b}, {b, c}, {c, d}} {
		checkPair(t, ctx, pair[0], pair[1])
	}
	// The same address is a pod of beta in alpha, and one of gamma in beta.
	checkNoTransit(t, a, c)
	own.stop(t)
	together(t, ctx, []string{"unpeer", a.Name, b.Name}, []string{"unpeer", b.Name, c.Name}, []string{"unpeer", c.Name, d.Name})
	checkNothingLeft(t, ctx)
}

// remap writes into the ledger of a cluster by what it shall know the pods of a
// peer; what is written there is kept, where it is free of conflicts.
func remap(t *testing.T, ctx context.Context, in, of *cluster, mapped netip.Prefix) {
	names := in.kubectl(t, ctx, "get", "clusternetwork", "cluster", "-o", "jsonpath={range .spec.peers[*]}{.name}{\"\\n\"}{end}")
	for i, name := range strings.Fields(names) {
		if name != of.Name {
			continue
		}
		patch := fmt.Sprintf(`[{"op":"test","path":"/spec/peers/%[1]d/name","value":%[2]q},{"op":"replace","path":"/spec/peers/%[1]d/pods/0/mapped","value":%[3]q}]`, i, name, mapped)
		in.kubectl(t, ctx, "patch", "clusternetwork", "cluster", "--type=json", "-p", patch)
		return
	}
	t.Fatalf("the ledger of %s has no entry for %s: %s", in.Name, of.Name, names)
}
