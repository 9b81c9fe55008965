package ipam_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/test/kit"
)

func TestOnlyPrivateRangesAreKept(t *testing.T) {
	for _, want := range []string{"10.0.0.0/8", "10.20.0.0/16", "172.16.0.0/12", "172.31.255.0/24", "192.168.0.0/16", "100.64.0.0/10", "100.127.255.255/32", "fd00::/56", "fc00::/7"} {
		got, err := ipam.Allocate(nil, request("b", want))
		kit.ErrorIf(t, err != nil || got[0].Prefix != pfx(want), "private %s: got %v, %v", want, got, err)
	}
	for _, want := range []string{
		"8.8.8.0/24", "8.8.0.0/16", "25.0.0.0/16", "30.0.0.0/12", "198.18.0.0/15", "192.0.2.0/24", "203.0.113.0/24", "100.63.0.0/16", "100.128.0.0/16",
		"172.15.0.0/16", "172.32.0.0/16", "192.167.0.0/16", "192.169.0.0/16", "9.255.255.255/32", "11.0.0.0/24", "16.0.0.0/8",
	} {
		got, err := ipam.Allocate(nil, request("b", want))
		kit.ErrorIf(t, err != nil || !ipam.IsPrivate(got[0].Prefix) || !strings.Contains(got[0].Reason, want+" is neither private"),
			"public %s: got %v, %v", want, got, err)
		// A peer gets it if the user requests it, and keeps it if it has it already.
		for _, r := range []ipam.Request{
			{Key: "k", Preferred: pfx(want), Required: pfx(want)},
			{Key: "k", Preferred: pfx(want), Previous: pfx(want)},
		} {
			got, err := ipam.Allocate(nil, r)
			kit.ErrorIf(t, err != nil || got[0].Prefix != pfx(want), "public %s: got %v, %v", want, got, err)
		}
	}
	// A partly private range is not private. There is no room for ranges larger than the pools.
	for _, want := range []string{"172.0.0.0/10", "100.0.0.0/9", "192.0.0.0/9", "8.0.0.0/7", "16.0.0.0/4", "2001:db8::/56"} {
		got, err := ipam.Allocate(used("10.0.0.0/8"), request("b", want))
		kit.ErrorIf(t, !errors.Is(err, ipam.ErrExhausted), "%s: got %v, %v", want, got, err)
	}
}

// Whatever pod ranges a peer claims, this cluster routes only private addresses to it.
func TestNoPeerAttractsWhatIsNotPrivate(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 2))
		own := randomUses(r, r.IntN(30), 12, 32)
		var pods []netip.Prefix
		for range 1 + r.IntN(8) {
			pods = append(pods, netip.PrefixFrom(randomAddr4(r), 9+r.IntN(17)).Masked())
		}
		got, err := ipam.AllocatePeer(own, ipam.Peer{ID: fmt.Sprint(seed), Name: "b", Pods: pods})
		if errors.Is(err, ipam.ErrExhausted) || errors.Is(err, ipam.ErrInvalid) || errors.Is(err, ipam.ErrTooLarge) {
			continue
		}
		kit.NoError(t, err)
		all, addresses := append(got.Mappings().Mapped(), got.External), uint64(0)
		noOverlap(t, own, all)
		for _, p := range all {
			kit.FatalIf(t, !ipam.IsPrivate(p), "seed %d: %v is given to a peer: %v", seed, p, got)
		}
		for _, p := range got.Mappings().Mapped() {
			addresses += 1 << (32 - p.Bits())
		}
		kit.FatalIf(t, addresses > 1<<24, "seed %d: a peer has %d addresses: %v", seed, addresses, got)
	}
}

func TestAPeerHasASlash8AtMost(t *testing.T) {
	many := func(n int) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprintf("10.%d.0.0/16", i))
		}
		return out
	}
	for _, c := range []struct {
		name     string
		pods     []string
		previous []string
		refused  string
	}{
		{name: "a /8", pods: []string{"10.0.0.0/8"}},
		{name: "a /8 in parts", pods: many(256)},
		{name: "a /8 twice", pods: []string{"10.0.0.0/8", "10.3.0.0/16", "10.0.0.0/8"}},
		{name: "one address more", pods: []string{"10.0.0.0/8", "192.168.0.0/32"}, refused: "10.0.0.0/8, 192.168.0.0/32, have more"},
		{name: "a /7", pods: []string{"16.0.0.0/7"}, refused: "16.0.0.0/7, have more"},
		{name: "in parts", pods: append(many(256), "192.168.0.0/24"), refused: "10.7.0.0/16 and 249 more, have more"},
		{name: "all of it is known", pods: []string{"10.0.0.0/8", "172.16.0.0/12"}, previous: []string{"10.0.0.0/8", "172.16.0.0/12"}},
		{name: "a part of it is known", pods: []string{"10.0.0.0/8", "172.16.0.0/12"}, previous: []string{"10.0.0.0/8"}, refused: "have more"},
	} {
		b := ipam.Peer{ID: "b", Name: "b"}
		for _, p := range c.pods {
			b.Pods = append(b.Pods, pfx(p))
		}
		for _, p := range c.previous {
			b.PreviousPods = append(b.PreviousPods, ipam.Mapping{Real: pfx(p), Mapped: pfx(p)})
		}
		_, err := ipam.AllocatePeer(nil, b)
		kit.ErrorIf(t, c.refused == "" && err != nil, "%s: %v", c.name, err)
		if c.refused != "" && (!errors.Is(err, ipam.ErrTooLarge) || !strings.Contains(err.Error(), c.refused) || !strings.Contains(err.Error(), "--pod-cidr b=")) {
			t.Errorf("%s: got %v", c.name, err)
		}
	}
}
