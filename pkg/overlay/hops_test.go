package overlay_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/test/kit"
)

// spread is the state of a node that sends through two gateways, with spare routes of a higher metric.
func spread() overlay.State {
	w := wanted()
	w.Links = append(w.Links, overlay.Link{
		Name: "loq0-1", Kind: overlay.VXLAN, VNI: 8, Local: addr("10.80.0.1"), Peer: addr("10.80.31.253"),
		LocalMAC: overlay.MAC{2, 3}, PeerMAC: overlay.MAC{2, 4}, Remote: addr("192.0.2.4"), MTU: 1400,
	})
	both := w.Routes[1]
	both.Dev, both.Via = "", netip.Addr{}
	both.Hops = []overlay.Hop{{Dev: "loq0-0", Via: addr("10.80.31.254")}, {Dev: "loq0-1", Via: addr("10.80.31.253")}}
	w.Routes[1] = both
	for i, h := range both.Hops {
		spare := both
		spare.Hops, spare.Dev, spare.Via, spare.Metric = nil, h.Dev, h.Via, 200+i
		w.Routes = append(w.Routes, spare)
	}
	return w
}

// devices counts the destinations of a range for which the kernel uses each link.
func (f *fixture) devices() map[string]int {
	f.t.Helper()
	out := map[string]int{}
	f.ns.Do(f.t, func() error {
		for i := range byte(64) {
			routes, err := netlink.RouteGet([]byte{10, 61, 0, i + 1})
			if err != nil {
				return err
			}
			dev, err := netlink.LinkByIndex(routes[0].LinkIndex)
			if err != nil {
				return err
			}
			out[dev.Attrs().Name]++
		}
		return nil
	})
	return out
}

func TestHops(t *testing.T) {
	const both = "10.61.0.0/16 nexthop via 10.80.31.254 dev loq0-0 nexthop via 10.80.31.253 dev loq0-1 table 27761 src 10.80.0.1 mtu 1340"
	const one = "10.61.0.0/16 via 10.80.31.254 dev loq0-0 table 27761 src 10.80.0.1 mtu 1340"
	f := open(t)
	before := f.all()
	f.apply(wanted())
	if got := f.apply(spread()); !slices.Contains(got, "replaced route "+both+": was "+one) {
		t.Errorf("two gateways instead of one: changed %q", got)
	}
	if got := f.apply(spread()); got != nil {
		t.Errorf("a second apply changed %q", got)
	}
	if got := f.devices(); len(got) != 2 || min(got["loq0-0"], got["loq0-1"]) < 8 {
		t.Errorf("64 destinations are sent over %v", got)
	}
	for command, want := range map[string]string{
		"ip route change 10.61.0.0/16 table 27761 proto 108 src 10.80.0.1 mtu 1340 nexthop via 10.80.31.254 dev loq0-0 onlink weight 3 nexthop via 10.80.31.253 dev loq0-1 onlink": "replaced route " + both,
		"ip route replace 10.61.0.0/16 table 27761 proto 108 src 10.80.0.1 mtu 1340 via 10.80.31.254 dev loq0-0 onlink":                                                            "replaced route " + both,
		"ip route del 10.61.0.0/16 table 27761 metric 0": "added route " + both,
		"ip link set loq0-1 down":                        "changed link loq0-1",
		"ip link del loq0-1":                             "added route " + both,
	} {
		f.run(command)
		if strings.HasPrefix(command, "ip link") {
			if got := f.devices(); got["loq0-0"] != 64 {
				t.Errorf("%s: 64 destinations are sent over %v", command, got)
			}
		}
		if got := f.apply(spread()); !slices.ContainsFunc(got, func(c string) bool { return strings.HasPrefix(c, want) }) {
			t.Errorf("%s: repaired %q, want %q", command, got, want)
		}
		if got := f.devices(); len(got) != 2 {
			t.Errorf("%s: repaired, 64 destinations are sent over %v", command, got)
		}
	}
	// Apply does not change the routes that ReplaceRoutes has set.
	alone := spread()
	alone.Routes[1] = wanted().Routes[1]
	for _, w := range []overlay.State{alone, spread()} {
		kit.NoError(t, f.kernel.ReplaceRoutes(w.Routes[1:2]))
		if got := f.apply(w); got != nil {
			t.Errorf("after Switch, Apply changed %q", got)
		}
	}
	f.apply(overlay.State{})
	kit.Check(t, "not as before", sortLines(f.all()), sortLines(before))
}

// If a kernel refuses a route over several links, packets use one of them.
func TestHopsRefused(t *testing.T) {
	f := open(t)
	for i := range 2 {
		w := spread()
		w.Routes[1].Hops = slices.Clone(w.Routes[1].Hops)
		w.Routes[1].Hops[i].Via = w.Links[0].Local // the kernel refuses its own address
		_, err := f.kernel.Apply(context.Background(), w)
		if want := fmt.Sprintf("by loq0-%d only", 1-i); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("hop %d is refused: %v, want %q", i, err, want)
		}
		expectPartial(t, err)
		if got := f.devices(); got[fmt.Sprintf("loq0-%d", 1-i)] != 64 {
			t.Errorf("hop %d is refused: 64 destinations are sent over %v", i, got)
		}
	}
}
