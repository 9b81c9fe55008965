package ipam_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/test/kit"
)

func TestAllocatePeer(t *testing.T) {
	own := used("10.244.0.0/16", "10.96.0.0/12", "10.80.0.0/19")
	b := ipam.Peer{ID: "b-id", Name: "b", Pods: []netip.Prefix{pfx("100.64.0.0/16"), pfx("10.244.0.0/16"), pfx("10.244.7.0/24")}}
	got := kit.Must(ipam.AllocatePeer(own, b))(t)
	if len(got.Pods) != 2 || got.Pods[0].Real != pfx("10.244.0.0/16") || got.Pods[0].Mapped == got.Pods[0].Real || got.Pods[1].Mapped != got.Pods[1].Real {
		t.Errorf("got %v", got.Pods)
	}
	kit.ErrorIf(t, got.External.Bits() != ipam.ExternalBits, "got external %s", got.External)
	noOverlap(t, own, append(got.Mappings().Mapped(), got.External))
	// A third cluster gets another one.
	c, err := ipam.AllocatePeer(append(slices.Clone(own), uses(got, "b")...), ipam.Peer{ID: "c-id", Name: "c", Pods: []netip.Prefix{pfx("10.10.0.0/16")}})
	kit.ErrorIf(t, err != nil || c.External.Overlaps(got.External) || c.External.Bits() != ipam.ExternalBits, "got %v, %v", c, err)
	// The first peer's range does not depend on whether it was the first.
	alone, err := ipam.AllocatePeer(own, ipam.Peer{ID: "c-id", Name: "c", Pods: []netip.Prefix{pfx("10.10.0.0/16")}})
	kit.ErrorIf(t, err != nil || alone.External != c.External,
		"as the only peer c gets %s, as the second one %s (%v)", alone.External, c.External, err)
}

func TestMapWishes(t *testing.T) {
	two := []netip.Prefix{pfx("10.1.0.0/16"), pfx("10.2.0.0/16")}
	for _, c := range []struct {
		name string
		pods []netip.Prefix
		wish ipam.Mapping
		err  string
		want string
	}{
		{name: "the only one", pods: two[:1], wish: ipam.Mapping{Mapped: pfx("10.9.0.0/16")}, want: "10.9.0.0/16"},
		{name: "named", pods: two, wish: ipam.Mapping{Real: two[0], Mapped: pfx("10.9.0.0/16")}, want: "10.9.0.0/16"},
		{name: "which?", pods: two, wish: ipam.Mapping{Mapped: pfx("10.9.0.0/16")}, err: "does not match exactly one range"},
		{name: "another length", pods: two, wish: ipam.Mapping{Real: two[0], Mapped: pfx("10.9.0.0/20")}, err: "1:1"},
		{name: "not there", pods: two, wish: ipam.Mapping{Real: pfx("10.3.0.0/16"), Mapped: pfx("10.9.0.0/16")}, err: "is not a pod range"},
	} {
		got, err := ipam.AllocatePeer(nil, ipam.Peer{ID: "b", Name: "b", Pods: c.pods, Map: ipam.Mappings{c.wish}})
		if c.err != "" {
			kit.ErrorIf(t, !errors.Is(err, ipam.ErrInvalid) || !strings.Contains(err.Error(), c.err), "%s: got %v", c.name, err)
			continue
		}
		kit.ErrorIf(t, err != nil || got.Pods[0].Mapped != pfx(c.want), "%s: got %v, %v", c.name, got, err)
	}
}

func TestSplitExternal(t *testing.T) {
	nodes, singles, err := ipam.SplitExternal(pfx("10.70.0.0/18"))
	kit.ErrorIf(t, err != nil || nodes != pfx("10.70.0.0/19") || singles != pfx("10.70.32.0/19"), "got %s, %s, %v", nodes, singles, err)
	m := kit.Must(ipam.ExternalMapping(ipam.DefaultInternal(), pfx("172.16.64.0/18")))(t)
	got, ok := m.Translate(netip.MustParseAddr("10.80.1.5"))
	kit.ErrorIf(t, !ok || got != netip.MustParseAddr("172.16.65.5"), "got %s, %v", got, ok)
	if _, err := ipam.ExternalMapping(pfx("10.80.0.0/20"), pfx("172.16.64.0/18")); !errors.Is(err, ipam.ErrInvalid) {
		t.Errorf("got %v", err)
	}
	for _, bad := range []netip.Prefix{{}, pfx("10.0.0.1/18"), pfx("10.0.0.1/32")} {
		_, _, err := ipam.SplitExternal(bad)
		kit.ErrorIf(t, !errors.Is(err, ipam.ErrInvalid), "%s: got %v", bad, err)
	}
	nodes6, singles6, err := ipam.SplitExternal(pfx("fd00::/64"))
	kit.ErrorIf(t, err != nil || nodes6 != pfx("fd00::/65") || singles6 != pfx("fd00:0:0:0:8000::/65"),
		"got %s, %s, %v", nodes6, singles6, err)
}

func TestDefaultsDoNotOverlapReserved(t *testing.T) {
	for _, p := range append(ipam.DefaultPools(), ipam.DefaultInternal()) {
		noOverlap(t, nil, []netip.Prefix{p})
	}
}
