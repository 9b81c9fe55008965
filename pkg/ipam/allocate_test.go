package ipam_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liqonet/liqonet/pkg/ipam"
)

func request(peer, want string) ipam.Request {
	return ipam.Request{What: "pod range " + want + " of cluster " + peer, Key: peer + " pods", Want: pfx(want)}
}

func used(cidrs ...string) []ipam.Use {
	var out []ipam.Use
	for _, c := range cidrs {
		out = append(out, ipam.Use{Prefix: pfx(c), By: "cluster a"})
	}
	return out
}

// TestPinned shows that results do not change between releases: peerings of users
// depend on it.
func TestPinned(t *testing.T) {
	s := ipam.Space{Used: used("10.244.0.0/16", "10.96.0.0/12", "100.64.0.0/10", "fd00::/48")}
	s.Pools = append(ipam.DefaultPools(), pfx("fd00::/8"))
	for _, c := range []struct{ peer, want, got string }{
		{"6f1f6f5e-0001", "10.244.0.0/16", "10.49.0.0/16"},
		{"6f1f6f5e-0002", "10.244.0.0/16", "172.21.0.0/16"},
		{"6f1f6f5e-0002", "10.96.0.0/12", "10.208.0.0/12"},
		{"6f1f6f5e-0002", "10.244.7.0/24", "10.64.0.0/24"},
		{"6f1f6f5e-0002", "100.64.0.0/16", "10.60.0.0/16"},
		{"6f1f6f5e-0002", "fd00::/56", "fda6:33b9:f439:2800::/56"},
		{"6f1f6f5e-0002", "10.245.0.0/16", "10.245.0.0/16"},
	} {
		got, err := ipam.Allocate(s, request(c.peer, c.want))
		if err != nil {
			t.Fatal(err)
		}
		if got[0].Prefix.String() != c.got {
			t.Errorf("%s of %s: got %s, want %s", c.want, c.peer, got[0].Prefix, c.got)
		}
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
		space   ipam.Space
		request ipam.Request
		want    string // empty: another one of the pools
		reason  string
		err     error
		message string
	}{
		{name: "free", space: ipam.Space{Used: used("10.0.0.0/16")}, request: b, want: "10.244.0.0/16", reason: "kept as it is"},
		{name: "free outside of the pools", request: request("b", "100.64.0.0/10"), want: "100.64.0.0/10"},
		{name: "public and free", request: request("b", "203.0.112.0/22"), want: "203.0.112.0/22"},
		{name: "same", space: ipam.Space{Used: used("10.244.0.0/16")}, request: b, reason: "10.244.0.0/16 overlaps 10.244.0.0/16 (cluster a)"},
		{name: "part", space: ipam.Space{Used: used("10.244.7.0/24")}, request: b},
		{name: "inside", space: ipam.Space{Used: used("10.240.0.0/12")}, request: b},
		{name: "class E is mapped", request: request("b", "240.10.0.0/16"), reason: "class E"},
		{name: "link-local is mapped", request: request("b", "169.254.0.0/17")},
		{name: "IPv6", space: ipam.Space{Used: used("fd00:1::/48"), Pools: []netip.Prefix{pfx("fd00::/8")}}, request: request("b", "fd00:1::/56")},
		{name: "IPv6 without a pool", space: ipam.Space{Used: used("fd00:1::/48")}, request: request("b", "fd00:1::/56"), err: ipam.ErrExhausted, message: "no pool of its family"},
		{
			name: "previous", space: ipam.Space{Used: used("10.244.0.0/16")},
			request: with(func(r *ipam.Request) { r.Previous = pfx("10.9.0.0/16") }), want: "10.9.0.0/16", reason: "as before",
		},
		{
			name:    "previous though the own one is free now",
			request: with(func(r *ipam.Request) { r.Previous = pfx("10.9.0.0/16") }), want: "10.9.0.0/16",
		},
		{
			name: "previous in use", space: ipam.Space{Used: used("10.244.0.0/16", "10.9.3.0/24")},
			request: with(func(r *ipam.Request) { r.Previous = pfx("10.9.0.0/16") }), reason: "10.9.0.0/16, which it was before, overlaps 10.9.3.0/24",
		},
		{
			name: "previous of another length", request: with(func(r *ipam.Request) { r.Previous = pfx("10.9.0.0/17") }), want: "10.244.0.0/16",
		},
		{name: "wish", request: with(func(r *ipam.Request) { r.Wish = pfx("198.18.0.0/16") }), want: "198.18.0.0/16", reason: "as wished"},
		{
			name: "wish overrules previous", request: with(func(r *ipam.Request) { r.Wish, r.Previous = pfx("10.1.0.0/16"), pfx("10.9.0.0/16") }), want: "10.1.0.0/16",
		},
		{
			name: "wish in use", space: ipam.Space{Used: used("10.1.2.0/24")}, request: with(func(r *ipam.Request) { r.Wish = pfx("10.1.0.0/16") }),
			err: ipam.ErrConflict, message: "cannot be 10.1.0.0/16: it overlaps 10.1.2.0/24 (cluster a)",
		},
		{
			name: "wish reserved", request: with(func(r *ipam.Request) { r.Wish = pfx("127.1.0.0/16") }),
			err: ipam.ErrConflict, message: "loopback",
		},
		{
			name: "wish of another length", request: with(func(r *ipam.Request) { r.Wish = pfx("10.1.0.0/17") }),
			err: ipam.ErrInvalid, message: "both have to be a /16",
		},
		{
			name: "wish with host bits", request: with(func(r *ipam.Request) { r.Wish = pfx("10.1.0.1/16") }),
			err: ipam.ErrInvalid, message: "did you mean 10.1.0.0/16?",
		},
		{name: "multicast", request: request("b", "224.0.0.0/16"), err: ipam.ErrInvalid, message: "cannot be routed"},
		{name: "everything", request: request("b", "0.0.0.0/0"), err: ipam.ErrInvalid},
		{name: "nothing wanted", request: ipam.Request{What: "it"}, err: ipam.ErrInvalid},
		{name: "by length only", request: ipam.Request{What: "it", Key: "b", Bits: 18}},
		{name: "a /8 that is free", request: request("b", "10.0.0.0/8"), want: "10.0.0.0/8"},
		{
			name: "a /8 that is not", space: ipam.Space{Used: used("10.244.0.0/16", "10.96.0.0/12")}, request: request("b", "10.0.0.0/8"),
			err: ipam.ErrExhausted, message: "cannot stay 10.0.0.0/8, which overlaps 10.96.0.0/12 (cluster a), 10.244.0.0/16 (cluster a), and finds no free /8 in the pools 10.0.0.0/8, 172.16.0.0/12 (too small), 192.168.0.0/16 (too small): in use are 10.96.0.0/12 (cluster a), 10.244.0.0/16 (cluster a)",
		},
		{
			name: "no pool as large", space: ipam.Space{Used: used("10.0.0.0/8"), Pools: []netip.Prefix{pfx("172.16.0.0/12")}}, request: request("b", "10.0.0.0/8"),
			err: ipam.ErrExhausted, message: "none is as large as a /8",
		},
		{
			name: "all in use", space: ipam.Space{Used: used("10.0.0.0/8", "172.16.0.0/12", "192.168.4.0/24")}, request: b,
			err: ipam.ErrExhausted, message: "192.168.4.0/24 (cluster a)",
		},
		{
			name: "a bad pool", space: ipam.Space{Pools: []netip.Prefix{{}}}, request: b, err: ipam.ErrInvalid,
		},
		{
			name: "a bad use", space: ipam.Space{Used: []ipam.Use{{By: "someone"}}}, request: b, err: ipam.ErrInvalid, message: "someone",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ipam.Allocate(c.space, c.request)
			if c.err != nil {
				if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.message) {
					t.Fatalf("got %v, %v, want the error %v with %q", got, err, c.err, c.message)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if c.want != "" && got[0].Prefix != pfx(c.want) {
				t.Errorf("got %s, want %s", got[0].Prefix, c.want)
			}
			if c.want == "" {
				noOverlap(t, c.space.Used, []netip.Prefix{got[0].Prefix})
			}
			if !strings.Contains(got[0].Reason, c.reason) {
				t.Errorf("got the reason %q, want %q in it", got[0].Reason, c.reason)
			}
		})
	}
}

func TestErrorsAreBounded(t *testing.T) {
	var uses []ipam.Use
	for i := range 256 {
		uses = append(uses, ipam.Use{Prefix: pfx(fmt.Sprintf("10.%d.0.0/16", i)), By: fmt.Sprintf("peer %d", i)})
	}
	_, err := ipam.Allocate(ipam.Space{Used: uses, Pools: []netip.Prefix{pfx("10.0.0.0/8")}}, request("b", "10.1.0.0/16"))
	var e *ipam.ExhaustedError
	if !errors.As(err, &e) || len(e.Used)+e.UsedMore != 256 || !strings.Contains(err.Error(), "and 248 more") || len(err.Error()) > 600 {
		t.Fatalf("got %v", err)
	}
}

func TestLastFreeRangeIsFound(t *testing.T) {
	for free := range 256 {
		var uses []ipam.Use
		for i := range 256 {
			if i != free {
				uses = append(uses, ipam.Use{Prefix: pfx(fmt.Sprintf("10.%d.3.0/24", i)), By: "x"})
			}
		}
		got, err := ipam.Allocate(ipam.Space{Used: uses, Pools: []netip.Prefix{pfx("10.0.0.0/8")}}, ipam.Request{What: "it", Key: "k", Bits: 16})
		if want := pfx(fmt.Sprintf("10.%d.0.0/16", free)); err != nil || got[0].Prefix != want {
			t.Fatalf("got %v, %v, want %s", got, err, want)
		}
	}
}

func TestRequestsDoNotTakeFromEachOther(t *testing.T) {
	// The second one is free, and the first one's choice must not be inside of it,
	// in whichever order they are.
	s := ipam.Space{Used: used("10.1.0.0/16", "172.16.0.0/12", "192.168.0.0/16"), Pools: []netip.Prefix{pfx("10.0.0.0/14")}, Avoid: []netip.Prefix{}}
	mapped, free := request("b", "10.1.0.0/16"), request("b", "10.2.0.0/16")
	one, err := ipam.Allocate(s, mapped, free)
	if err != nil {
		t.Fatal(err)
	}
	two, err := ipam.Allocate(s, free, mapped)
	if err != nil {
		t.Fatal(err)
	}
	if one[1].Prefix != free.Want || one[0] != two[1] || one[1] != two[0] {
		t.Errorf("got %v and %v", one, two)
	}
}

func TestCommonRangesAreUsedLast(t *testing.T) {
	s := ipam.Space{Used: used("10.244.0.0/16"), Pools: []netip.Prefix{pfx("10.240.0.0/14"), pfx("10.244.0.0/15")}}
	// 10.240/14 is common (AKS), 10.244/16 is in use: 10.245/16 is what remains.
	for i := range 20 {
		got, err := ipam.Allocate(ipam.Space{Used: s.Used, Pools: []netip.Prefix{pfx("10.224.0.0/11")}}, request(fmt.Sprint(i), "10.244.0.0/16"))
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range ipam.CommonRanges() {
			if got[0].Prefix.Overlaps(c) {
				t.Errorf("got the common range %s", got[0].Prefix)
			}
		}
	}
	got, err := ipam.Allocate(ipam.Space{Used: s.Used, Pools: []netip.Prefix{pfx("10.96.0.0/15")}}, request("b", "10.244.0.0/16"))
	if err != nil || !pfx("10.96.0.0/15").Overlaps(got[0].Prefix) {
		t.Errorf("got %v, %v, want one of the common ranges, as there is nothing else", got, err)
	}
}

// TestNeverAnOverlap allocates for many peers one after the other.
func TestNeverAnOverlap(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 7))
		uses := randomUses(r, r.IntN(300), 12, 32)
		s := ipam.Space{Used: uses}
		var given []netip.Prefix
		for i := range 60 {
			got, err := ipam.AllocatePeer(s, ipam.Peer{
				ID: fmt.Sprint(r.Uint64()), Name: fmt.Sprint(i),
				Pods: []netip.Prefix{randomUse(r, 14, 20), randomUse(r, 14, 20)},
			})
			if errors.Is(err, ipam.ErrExhausted) || errors.Is(err, ipam.ErrInvalid) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := got.Mappings().Validate(); err != nil {
				t.Fatal(err)
			}
			given = append(given, append(got.Mappings().Mapped(), got.External)...)
			s.Used = append(s.Used, got.Uses(fmt.Sprint(i))...)
		}
		noOverlap(t, uses, given)
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
		s := ipam.Space{Used: own}
		for j, other := range peers {
			if i != j {
				s.Used = append(s.Used, ranges[other.ID].Uses(other.Name)...)
			}
		}
		p.PreviousPods, p.PreviousExternal = ranges[p.ID].Mappings(), ranges[p.ID].External
		got, err := ipam.AllocatePeer(s, p)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(ranges[p.ID].Mappings(), got.Mappings(), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			t.Errorf("peer again, known: %s", diff)
		}
		if got.External != ranges[p.ID].External {
			t.Errorf("peer again, known: external %s, before %s", got.External, ranges[p.ID].External)
		}
		// What the first choice was stays the choice without memory, too.
		p.PreviousPods, p.PreviousExternal = nil, netip.Prefix{}
		first, err := ipam.AllocatePeer(ipam.Space{Used: own}, p)
		if err != nil {
			t.Fatal(err)
		}
		if first.Pods[0].Mapped != ranges[p.ID].Pods[0].Mapped {
			continue // it had to give way
		}
		again, err := ipam.AllocatePeer(s, p)
		if err != nil || again.Pods[0].Mapped != ranges[p.ID].Pods[0].Mapped {
			t.Errorf("peer again, forgotten: got %v, %v, want %v", again, err, ranges[p.ID])
		}
	}
}

// TestOrder measures how much the order of peerings matters where all of them
// conflict, and that it does not where no two first choices overlap.
func TestOrder(t *testing.T) {
	own := used("10.244.0.0/16", "10.96.0.0/12", "172.18.0.0/24", "10.80.0.0/19")
	for _, c := range []struct {
		bits       string
		n          int
		atMostDiff float64
	}{{"/16", 3, 0.05}, {"/16", 10, 0.15}, {"/20", 10, 0.03}, {"/24", 64, 0.08}} {
		r := rand.New(rand.NewPCG(5, 6))
		total, differ := 0, 0
		for range 50 {
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
		if share > c.atMostDiff {
			t.Errorf("%d peers with a conflicting %s: %.2f %% get another range in another order", c.n, c.bits, 100*share)
		}
	}
}

func allocateAll(t *testing.T, own []ipam.Use, peers []ipam.Peer) map[string]ipam.PeerRanges {
	t.Helper()
	s := ipam.Space{Used: own}
	out := map[string]ipam.PeerRanges{}
	for _, p := range peers {
		got, err := ipam.AllocatePeer(s, p)
		if err != nil {
			t.Fatal(err)
		}
		out[p.ID] = got
		s.Used = append(s.Used, got.Uses(p.Name)...)
	}
	return out
}

func FuzzAllocate(f *testing.F) {
	f.Add(uint64(1), uint8(16), uint8(100), "10.244.0.0/16", "10.9.0.0/16")
	f.Add(uint64(2), uint8(32), uint8(255), "fd00::/56", "")
	f.Fuzz(func(t *testing.T, seed uint64, bits, n uint8, want, previous string) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := ipam.Space{
			Used:  randomUses(r, int(n), 8+int(bits%8), 32),
			Pools: append(ipam.DefaultPools(), pfx("fd00::/8")),
		}
		w, _ := netip.ParsePrefix(want)
		p, _ := netip.ParsePrefix(previous)
		requests := []ipam.Request{
			{What: "one", Key: "k", Want: w, Previous: p, Bits: int(bits)},
			{What: "two", Key: "l", Want: w, Bits: int(bits)},
			{What: "three", Key: "l", Bits: 24},
		}
		got, err := ipam.Allocate(s, requests...)
		if err != nil {
			if !errors.Is(err, ipam.ErrExhausted) && !errors.Is(err, ipam.ErrInvalid) {
				t.Fatalf("untyped error %v", err)
			}
			_ = err.Error()
			return
		}
		var given []netip.Prefix
		for i, a := range got {
			if requests[i].Want.IsValid() && a.Prefix.Bits() != w.Bits() {
				t.Fatalf("got %s for %s", a.Prefix, w)
			}
			given = append(given, a.Prefix)
		}
		noOverlap(t, s.Used, given)
		again, err := ipam.Allocate(s, requests...)
		if err != nil || fmt.Sprint(again) != fmt.Sprint(got) {
			t.Fatalf("not stable: %v, %v, %v", got, again, err)
		}
	})
}

func benchmarkSpace(n int, density string) ipam.Space {
	r := rand.New(rand.NewPCG(8, 9))
	s := ipam.Space{Used: used("10.244.0.0/16")}
	for i := range n {
		u := ipam.Use{By: fmt.Sprint("owner ", i)}
		switch density {
		case "random":
			// Nearly all of the pools is in use by 1,000 to 3,000 of them.
			u.Prefix = randomUse(r, 20, 28)
		case "half": // within 10/9, so that half of the pool is free
			a := randomAddr4(r).As4()
			a[0], a[1] = 10, a[1]&127
			u.Prefix = netip.PrefixFrom(netip.AddrFrom4(a), 18+r.IntN(11)).Masked()
		case "scattered": // one address in each of the first /24s: everything is visited
			u.Prefix = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(r.Uint32())}), 32)
		}
		s.Used = append(s.Used, u)
	}
	return s
}

func BenchmarkAllocate(b *testing.B) {
	for _, c := range []struct {
		name, density, want string
		pools               []netip.Prefix
	}{
		{"half/16", "half", "10.244.0.0/16", nil},
		{"none/16", "random", "10.244.0.0/16", nil},
		{"random/24", "random", "10.244.3.0/24", nil},
		{"scattered/24", "scattered", "10.244.3.0/24", nil},
		{"exhausted/24", "scattered", "10.244.3.0/24", []netip.Prefix{pfx("10.0.0.0/11")}},
	} {
		s := benchmarkSpace(10_000, c.density)
		s.Pools = c.pools
		b.Run(c.name, func(b *testing.B) {
			for i := range b.N {
				_, err := ipam.Allocate(s, request(fmt.Sprint(i), c.want))
				if err != nil && !errors.Is(err, ipam.ErrExhausted) {
					b.Fatal(err)
				}
			}
		})
	}
}
