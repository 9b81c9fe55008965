// Package bare measures a baseline of failover on this machine, now: a bare probe over a pair of veth interfaces, which
// moves packets to another pair when it is not answered. Limits of tests are multiples of that.
package bare

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/liqonet/liqonet/test/flow"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

const (
	// Runs is of how many runs a median is.
	Runs = 5
	// Documented is how many times longer than the bare probe's a failover of the product takes, the median of Runs, as
	// docs/reliability.md says. Slack is by how much a run of a test may exceed that.
	Documented, Slack = 1.5, 3
	// A probe is sent each interval. Packets are moved if none has been answered for timeout.
	interval, timeout = 25 * time.Millisecond, 200 * time.Millisecond
	port              = 7
)

var near, far = netip.MustParsePrefix("10.99.8.8/32"), netip.MustParsePrefix("10.99.9.9/32")

// at is the address of an end of a pair of interfaces.
func at(pair, end byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 99, pair, end}) }

// Limit is how long the median of Runs failovers may take: a multiple of what the bare probe takes now.
func Limit(t testing.TB) time.Duration {
	t.Helper()
	outage := Outage(t)
	limit := time.Duration(Slack * Documented * float64(outage))
	t.Logf("a bare probe takes %s for a failover: the limit is %s", outage.Round(time.Millisecond), limit.Round(time.Millisecond))
	return limit
}

// Median is the median of several times.
func Median(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/2]
}

// Outage is for how long packets are lost if one pair of interfaces drops them, the median of Runs.
func Outage(t testing.TB) time.Duration {
	t.Helper()
	a, b := netns.New(t, "bare-near"), netns.New(t, "bare-far")
	for _, ns := range []*netns.NS{a, b} {
		ns.Up(t, "lo")
		ns.Sysctl(t, "ipv4/conf/all/rp_filter", "0")
		ns.Sysctl(t, "ipv4/conf/default/rp_filter", "0")
	}
	for pair, name := range []string{"bare0", "bare1"} {
		netns.Veth(t, a, name, b, name)
		a.Addr(t, name, netip.PrefixFrom(at(byte(pair), 1), 24))
		b.Addr(t, name, netip.PrefixFrom(at(byte(pair), 2), 24))
		a.Up(t, name)
		b.Up(t, name)
	}
	a.Addr(t, "lo", near)
	b.Addr(t, "lo", far)
	b.Route(t, near, at(0, 1))
	echo(t, b, far.Addr())
	echo(t, b, at(0, 2))
	var outages []time.Duration
	for range Runs {
		outages = append(outages, once(t, a, b))
	}
	return Median(outages)
}

// once loses the packets of the first pair.
func once(t testing.TB, a, b *netns.NS) time.Duration {
	t.Helper()
	use(t, a, 0)
	packets, probe := dial(t, a, near.Addr(), far.Addr()), dial(t, a, at(0, 1), at(0, 2))
	defer func() { kit.CheckNoError(t, packets.Close()) }()
	defer func() { kit.CheckNoError(t, probe.Close()) }()
	f := kit.Must(flow.Start(t.Context(), packets, "bare", 8))(t)
	kit.Within(t, flow.Patience, "packets pass", func() string { return f.Unanswered(20, flow.Patience) })
	repair := b.Drop(t, "bare0", true, false, 0)
	defer repair()
	for answered := time.Now(); time.Since(answered) < timeout; {
		next := time.Now().Add(interval)
		kit.NoError(t, kit.Err(probe.Write([]byte("12345678"))))
		kit.NoError(t, probe.SetReadDeadline(next))
		if _, err := probe.Read(make([]byte, 64)); err == nil {
			answered = time.Now()
		}
		time.Sleep(time.Until(next)) // this is the interval
	}
	use(t, a, 1)
	moved := time.Now()
	kit.Within(t, flow.Patience, "packets pass by the other pair", func() string { return f.NoneSince(moved) })
	return flow.End(f)[0].Gap
}

// use sends packets by a pair.
func use(t testing.TB, a *netns.NS, pair byte) {
	t.Helper()
	a.Do(t, func() error {
		return netlink.RouteReplace(&netlink.Route{Dst: &net.IPNet{IP: far.Addr().AsSlice(), Mask: net.CIDRMask(32, 32)}, Gw: at(pair, 2).AsSlice()})
	})
}

func dial(t testing.TB, ns *netns.NS, from, to netip.Addr) *net.UDPConn {
	t.Helper()
	return netns.In(t, ns, func() (*net.UDPConn, error) {
		return net.DialUDP("udp4", &net.UDPAddr{IP: from.AsSlice()}, &net.UDPAddr{IP: to.AsSlice(), Port: port})
	})
}

// echo answers packets as test pods do: a line, and what was sent.
func echo(t testing.TB, ns *netns.NS, on netip.Addr) {
	t.Helper()
	conn := netns.In(t, ns, func() (*net.UDPConn, error) {
		return net.ListenUDP("udp4", &net.UDPAddr{IP: on.AsSlice(), Port: port})
	})
	t.Cleanup(func() { kit.CheckNoError(t, conn.Close()) })
	go func() {
		b := make([]byte, 1<<11)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(b[1:])
			if err != nil {
				return // the test ends
			}
			b[0] = '\n'
			_, _ = conn.WriteToUDPAddrPort(b[:n+1], from) // a lost answer is what is measured
		}
	}()
}
