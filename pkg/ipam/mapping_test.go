package ipam_test

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/test/kit"
)

func TestValidate(t *testing.T) {
	for name, m := range map[string]ipam.Mapping{
		"zero":         {},
		"host bits":    {Real: pfx("10.244.0.1/16"), Mapped: pfx("10.7.0.0/16")},
		"lengths":      {Real: pfx("10.244.0.0/16"), Mapped: pfx("10.7.0.0/17")},
		"families":     {Real: pfx("10.244.0.0/16"), Mapped: pfx("fd00::/16")},
		"IPv4 in IPv6": {Real: pfx("::ffff:10.0.0.0/104"), Mapped: pfx("fd00::/104")},
	} {
		err := m.Validate()
		kit.ErrorIf(t, !errors.Is(err, ipam.ErrInvalid), "%s: got %v, want ErrInvalid", name, err)
	}
}

func TestTranslateIsABijection(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		real, mapped, bits := randomAddr4(r), randomAddr4(r), r.IntN(33)
		if r.IntN(2) == 0 {
			real, mapped, bits = randomAddr6(r), randomAddr6(r), 8+r.IntN(121)
		}
		m := ipam.Mapping{Real: netip.PrefixFrom(real, bits).Masked(), Mapped: netip.PrefixFrom(mapped, bits).Masked()}
		kit.NoError(t, m.Validate())
		checkBijection(t, m, real)
	}
}

// checkBijection checks a mapping at an address of m.Real.
func checkBijection(t *testing.T, m ipam.Mapping, addr netip.Addr) {
	t.Helper()
	to, ok := m.Translate(addr)
	kit.FatalIf(t, !ok || !m.Mapped.Contains(to), "%s: Translate(%s) = %s, %v", m, addr, to, ok)
	back, ok := m.Reverse(to)
	kit.FatalIf(t, !ok || back != addr, "%s: Reverse(Translate(%s)) = %s, %v", m, addr, back, ok)
	// Two adjacent ones keep their distance, so no address is mapped to twice.
	if next := addr.Next(); m.Real.Contains(next) {
		got, ok := m.Translate(next)
		kit.FatalIf(t, !ok || got != to.Next(), "%s: Translate(%s) = %s, %v, want %s", m, next, got, ok, to.Next())
	}
}

func FuzzTranslate(f *testing.F) {
	f.Add("10.244.0.0/16", "10.7.0.0/16", "10.244.3.9")
	f.Add("fd00::/48", "fd01::/48", "fd00::1")
	f.Add("0.0.0.0/0", "0.0.0.0/0", "1.2.3.4")
	f.Add("10.0.0.0/33", "", "::ffff:10.0.0.1")
	f.Fuzz(func(t *testing.T, real, mapped, addr string) {
		r, _ := netip.ParsePrefix(real)
		p, _ := netip.ParsePrefix(mapped)
		a, _ := netip.ParseAddr(addr)
		m := ipam.Mapping{Real: r, Mapped: p}
		if m.Validate() != nil {
			m.Translate(a) // must not panic
			return
		}
		if m.Real.Contains(a) {
			checkBijection(t, m, a)
		} else if got, ok := m.Translate(a); ok {
			t.Fatalf("%s: Translate(%s) = %s", m, a, got)
		}
	})
}
