package ipam_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/test/kit"
)

func request(peer, want string) ipam.Request {
	return ipam.Request{Recipient: "pod range " + want + " of cluster " + peer, Key: peer + " pods", Preferred: pfx(want)}
}

func used(cidrs ...string) []ipam.Usage {
	var out []ipam.Usage
	for _, c := range cidrs {
		out = append(out, ipam.Usage{Prefix: pfx(c), Owner: "cluster a"})
	}
	return out
}

// TestPinned checks that results do not change between releases: users' peerings depend on them.
func TestPinned(t *testing.T) {
	own := used("10.244.0.0/16", "10.96.0.0/12", "100.64.0.0/10")
	for _, c := range []struct{ peer, want, got string }{
		{"6f1f6f5e-0001", "10.244.0.0/16", "10.126.0.0/16"},
		{"6f1f6f5e-0002", "10.244.0.0/16", "10.69.0.0/16"},
		{"6f1f6f5e-0002", "10.96.0.0/12", "10.176.0.0/12"},
		{"6f1f6f5e-0002", "10.244.7.0/24", "10.118.231.0/24"},
		{"6f1f6f5e-0002", "100.64.0.0/16", "10.89.0.0/16"},
		{"6f1f6f5e-0002", "10.245.0.0/16", "10.245.0.0/16"},
	} {
		got := kit.Must(ipam.Allocate(own, request(c.peer, c.want)))(t)
		kit.Check(t, fmt.Sprintf("%s of %s: got %s", c.want, c.peer, got[0].Prefix), got[0].Prefix.String(), c.got)
	}
}

func TestAllocate(t *testing.T) {
	b := request("b", "10.244.0.0/16")
	with := func(change func(*ipam.Request)) ipam.Request {
		r := b
		change(&r)
		return r
	}
	for _, c := range []struct {
		name    string
		used    []ipam.Usage
		request ipam.Request
		want    string // empty: another one of the pools
		reason  string
		err     error
		message string
	}{
		{name: "free", used: used("10.0.0.0/16"), request: b, want: "10.244.0.0/16", reason: "free, so kept"},
		{name: "same", used: used("10.244.0.0/16"), request: b, reason: "10.244.0.0/16 overlaps 10.244.0.0/16 (cluster a)"},
		{name: "part", used: used("10.244.7.0/24"), request: b},
		{name: "inside", used: used("10.240.0.0/12"), request: b},
		{name: "class E is mapped", request: request("b", "240.10.0.0/16"), reason: "class E"},
		{name: "link-local is mapped", request: request("b", "169.254.0.0/17")},
		{name: "IPv6 in use", used: used("fd00:1::/48"), request: request("b", "fd00:1::/56"), err: ipam.ErrExhausted, message: "finds no free /56"},
		{
			name: "previous", used: used("10.244.0.0/16"),
			request: with(func(r *ipam.Request) { r.Previous = pfx("10.9.0.0/16") }), want: "10.9.0.0/16", reason: "as before",
		},
		{
			name:    "previous though the own one is free now",
			request: with(func(r *ipam.Request) { r.Previous = pfx("10.9.0.0/16") }), want: "10.9.0.0/16",
		},
		{
			name: "previous in use", used: used("10.244.0.0/16", "10.9.3.0/24"),
			request: with(func(r *ipam.Request) { r.Previous = pfx("10.9.0.0/16") }), reason: "10.9.0.0/16, the previous range, overlaps 10.9.3.0/24",
		},
		{
			name: "previous of another length", request: with(func(r *ipam.Request) { r.Previous = pfx("10.9.0.0/17") }), want: "10.244.0.0/16",
		},
		{name: "wish", request: with(func(r *ipam.Request) { r.Required = pfx("198.18.0.0/16") }), want: "198.18.0.0/16", reason: "as requested"},
		{
			name: "wish overrides previous", request: with(func(r *ipam.Request) { r.Required, r.Previous = pfx("10.1.0.0/16"), pfx("10.9.0.0/16") }), want: "10.1.0.0/16",
		},
		{
			name: "wish in use", used: used("10.1.2.0/24"), request: with(func(r *ipam.Request) { r.Required = pfx("10.1.0.0/16") }),
			err: ipam.ErrConflict, message: "cannot be 10.1.0.0/16: it overlaps 10.1.2.0/24 (cluster a)",
		},
		{
			name: "wish reserved", request: with(func(r *ipam.Request) { r.Required = pfx("127.1.0.0/16") }),
			err: ipam.ErrConflict, message: "loopback",
		},
		{
			name: "wish of another length", request: with(func(r *ipam.Request) { r.Required = pfx("10.1.0.0/17") }),
			err: ipam.ErrInvalid, message: "both must be a /16",
		},
		{
			name: "wish with host bits", request: with(func(r *ipam.Request) { r.Required = pfx("10.1.0.1/16") }),
			err: ipam.ErrInvalid, message: "did you mean 10.1.0.0/16?",
		},
		{name: "multicast", request: request("b", "224.0.0.0/16"), err: ipam.ErrInvalid, message: "cannot be routed"},
		{name: "everything", request: request("b", "0.0.0.0/0"), err: ipam.ErrInvalid},
		{name: "nothing wanted", request: ipam.Request{Recipient: "it"}, err: ipam.ErrInvalid},
		{name: "by length only", request: ipam.Request{Recipient: "it", Key: "b", Bits: 18}},
		{
			name: "a /8 that is not", used: used("10.244.0.0/16", "10.96.0.0/12"), request: request("b", "10.0.0.0/8"),
			err: ipam.ErrExhausted, message: "cannot stay 10.0.0.0/8, which overlaps 10.96.0.0/12 (cluster a), 10.244.0.0/16 (cluster a), and finds no free /8 in the pools 10.0.0.0/8, 172.16.0.0/12 (too small), 192.168.0.0/16 (too small): in use are 10.96.0.0/12 (cluster a), 10.244.0.0/16 (cluster a)",
		},
		{
			name: "no pool as large", used: used("10.1.0.0/16"), request: request("b", "10.0.0.0/7"),
			err: ipam.ErrExhausted, message: "finds no free /7 in the pools 10.0.0.0/8 (too small), 172.16.0.0/12 (too small), 192.168.0.0/16 (too small)",
		},
		{
			name: "all in use", used: used("10.0.0.0/8", "172.16.0.0/12", "192.168.4.0/24"), request: b,
			err: ipam.ErrExhausted, message: "192.168.4.0/24 (cluster a)",
		},
		{
			name: "a bad use", used: []ipam.Usage{{Owner: "someone"}}, request: b, err: ipam.ErrInvalid, message: "someone",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ipam.Allocate(c.used, c.request)
			if c.err != nil {
				kit.FatalIf(t, !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.message),
					"got %v, %v, want the error %v with %q", got, err, c.err, c.message)
				return
			}
			kit.NoError(t, err)
			kit.ErrorIf(t, c.want != "" && got[0].Prefix != pfx(c.want), "got %s, want %s", got[0].Prefix, c.want)
			if c.want == "" {
				noOverlap(t, c.used, []netip.Prefix{got[0].Prefix})
			}
			kit.ErrorIf(t, !strings.Contains(got[0].Reason, c.reason), "got the reason %q, want %q in it", got[0].Reason, c.reason)
		})
	}
}

func TestErrorsAreBounded(t *testing.T) {
	all := used("172.16.0.0/12", "192.168.0.0/16")
	for i := range 256 {
		all = append(all, ipam.Usage{Prefix: pfx(fmt.Sprintf("10.%d.0.0/16", i)), Owner: fmt.Sprintf("peer %d", i)})
	}
	_, err := ipam.Allocate(all, request("b", "10.1.0.0/16"))
	kit.FatalIf(t, !errors.Is(err, ipam.ErrExhausted) || !strings.Contains(err.Error(), "and 250 more") || len(err.Error()) > 600,
		"got %v", err)
}

func TestLastFreeRangeIsFound(t *testing.T) {
	for free := range 256 {
		all := used("172.16.0.0/12", "192.168.0.0/16")
		for i := range 256 {
			if i != free {
				all = append(all, ipam.Usage{Prefix: pfx(fmt.Sprintf("10.%d.3.0/24", i)), Owner: "x"})
			}
		}
		got, err := ipam.Allocate(all, ipam.Request{Recipient: "it", Key: "k", Bits: 16})
		want := pfx(fmt.Sprintf("10.%d.0.0/16", free))
		kit.FatalIf(t, err != nil || got[0].Prefix != want, "got %v, %v, want %s", got, err, want)
	}
}

func TestRequestsDoNotTakeFromEachOther(t *testing.T) {
	// The second one is free, and the first one's choice must not be inside it, in either order.
	own := usedBut("10.2.0.0/15")
	mapped, free := request("b", "10.1.0.0/16"), request("b", "10.2.0.0/16")
	one := kit.Must(ipam.Allocate(own, mapped, free))(t)
	two := kit.Must(ipam.Allocate(own, free, mapped))(t)
	kit.ErrorIf(t, one[1].Prefix != free.Preferred || one[0] != two[1] || one[1] != two[0], "got %v and %v", one, two)
}

func TestCommonRangesAreUsedLast(t *testing.T) {
	// 10.224/12 is common (AKS), 10.244/16 is in use: the rest of 10.240/12 is better.
	own := append(usedBut("10.224.0.0/11"), used("10.244.0.0/16")...)
	for i := range 20 {
		got := kit.Must(ipam.Allocate(own, request(fmt.Sprint(i), "10.244.0.0/16")))(t)
		for _, c := range ipam.CommonRanges() {
			kit.ErrorIf(t, got[0].Prefix.Overlaps(c), "got the common range %s", got[0].Prefix)
		}
	}
	got, err := ipam.Allocate(usedBut("10.96.0.0/15"), request("b", "10.244.0.0/16"))
	kit.ErrorIf(t, err != nil || !pfx("10.96.0.0/15").Overlaps(got[0].Prefix),
		"got %v, %v, want one of the common ranges, as there is nothing else", got, err)
}

// TestNeverAnOverlap allocates ranges for many peers one after the other.
func TestNeverAnOverlap(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 7))
		own := randomUses(r, r.IntN(300), 12, 32)
		all := slices.Clone(own)
		var given []netip.Prefix
		for i := range 60 {
			got, err := ipam.AllocatePeer(all, ipam.Peer{
				ID: fmt.Sprint(r.Uint64()), Name: fmt.Sprint(i),
				Pods: []netip.Prefix{randomUse(r, 14, 20), randomUse(r, 14, 20)},
			})
			if errors.Is(err, ipam.ErrExhausted) || errors.Is(err, ipam.ErrInvalid) {
				continue
			}
			kit.NoError(t, err)
			for _, m := range got.Mappings() {
				kit.NoError(t, m.Validate())
			}
			given = append(given, append(got.Mappings().Mapped(), got.External)...)
			all = append(all, uses(got, fmt.Sprint(i))...)
		}
		noOverlap(t, own, given)
	}
}

// TestStable removes peers and adds them again, with all others in place.
func TestStable(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	own := randomUses(r, 50, 16, 28)
	var peers []ipam.Peer
	for i := range 40 {
		peers = append(peers, ipam.Peer{ID: fmt.Sprint(r.Uint64()), Name: fmt.Sprint(i), Pods: []netip.Prefix{own[i].Prefix}})
	}
	ranges := allocateAll(t, own, peers)
	for i, p := range peers {
		all := slices.Clone(own)
		for j, other := range peers {
			if i != j {
				all = append(all, uses(ranges[other.ID], other.Name)...)
			}
		}
		p.PreviousPods, p.PreviousExternal = ranges[p.ID].Mappings(), ranges[p.ID].External
		got := kit.Must(ipam.AllocatePeer(all, p))(t)
		kit.Check(t, "peer again, known", got.Mappings(), ranges[p.ID].Mappings(), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }))
		kit.ErrorIf(t, got.External != ranges[p.ID].External, "peer again, known: external %s, before %s", got.External, ranges[p.ID].External)
		// A peer that got its first choice gets it again without Previous, too.
		p.PreviousPods, p.PreviousExternal = nil, netip.Prefix{}
		first := kit.Must(ipam.AllocatePeer(own, p))(t)
		if first.Pods[0].Mapped != ranges[p.ID].Pods[0].Mapped {
			continue // it had to give way
		}
		again, err := ipam.AllocatePeer(all, p)
		kit.ErrorIf(t, err != nil || again.Pods[0].Mapped != ranges[p.ID].Pods[0].Mapped,
			"peer again, forgotten: got %v, %v, want %v", again, err, ranges[p.ID])
	}
}

// TestOrder measures how much the order of peerings matters if all of them conflict, and checks that it does not matter
// if no two first choices overlap.
func TestOrder(t *testing.T) {
	own := used("10.244.0.0/16", "10.96.0.0/12", "172.18.0.0/24", "10.80.0.0/19")
	for _, c := range []struct {
		bits       string
		n          int
		atMostDiff float64
	}{{"/16", 3, 0.05}, {"/16", 10, 0.15}, {"/20", 10, 0.03}, {"/24", 64, 0.08}} {
		r := rand.New(rand.NewPCG(5, 6))
		total, differ, rounds := 0, 0, 50
		if testing.Short() {
			rounds = 10
		}
		for range rounds {
			var peers []ipam.Peer
			for i := range c.n {
				peers = append(peers, ipam.Peer{ID: fmt.Sprint(r.Uint64()), Name: fmt.Sprint(i), Pods: []netip.Prefix{pfx("10.244.0.0" + c.bits)}})
			}
			one := allocateAll(t, own, peers)
			r.Shuffle(len(peers), func(i, j int) { peers[i], peers[j] = peers[j], peers[i] })
			two := allocateAll(t, own, peers)
			for id := range one {
				total++
				if one[id].Pods[0].Mapped != two[id].Pods[0].Mapped {
					differ++
				}
			}
		}
		share := float64(differ) / float64(total)
		t.Logf("%d peers with a conflicting %s: %.2f %% get another range in another order", c.n, c.bits, 100*share)
		kit.ErrorIf(t, share > c.atMostDiff, "%d peers with a conflicting %s: %.2f %% get another range in another order", c.n, c.bits, 100*share)
	}
}

func allocateAll(t *testing.T, own []ipam.Usage, peers []ipam.Peer) map[string]ipam.PeerRanges {
	t.Helper()
	all := slices.Clone(own)
	out := map[string]ipam.PeerRanges{}
	for _, p := range peers {
		got := kit.Must(ipam.AllocatePeer(all, p))(t)
		out[p.ID] = got
		all = append(all, uses(got, p.Name)...)
	}
	return out
}

func FuzzAllocate(f *testing.F) {
	f.Add(uint64(1), uint8(16), uint8(100), "10.244.0.0/16", "10.9.0.0/16")
	f.Add(uint64(2), uint8(24), uint8(255), "fd00::/56", "")
	f.Fuzz(func(t *testing.T, seed uint64, bits, n uint8, want, previous string) {
		r := rand.New(rand.NewPCG(seed, 1))
		own := randomUses(r, int(n), 8+int(bits%8), 32)
		w, _ := netip.ParsePrefix(want)
		p, _ := netip.ParsePrefix(previous)
		requests := []ipam.Request{
			{Recipient: "one", Key: "k", Preferred: w, Previous: p, Bits: int(bits)},
			{Recipient: "two", Key: "l", Preferred: w, Bits: int(bits)},
			{Recipient: "three", Key: "l", Bits: 24},
		}
		got, err := ipam.Allocate(own, requests...)
		if err != nil {
			kit.FatalIf(t, !errors.Is(err, ipam.ErrExhausted) && !errors.Is(err, ipam.ErrInvalid), "untyped error %v", err)
			_ = err.Error()
			return
		}
		var given []netip.Prefix
		for i, a := range got {
			kit.FatalIf(t, requests[i].Preferred.IsValid() && a.Prefix.Bits() != w.Bits(), "got %s for %s", a.Prefix, w)
			given = append(given, a.Prefix)
		}
		noOverlap(t, own, given)
		again, err := ipam.Allocate(own, requests...)
		kit.FatalIf(t, err != nil || fmt.Sprint(again) != fmt.Sprint(got), "not stable: %v, %v, %v", got, again, err)
	})
}
