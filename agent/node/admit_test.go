package node

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/samber/lo"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/test/kit"
)

// served reports whether all of a peering's ranges lead to its gateway, and nowhere if its link is missing.
func served(d desired, p v1alpha1.Peering) bool {
	return !slices.ContainsFunc(p.RemoteRanges(), func(r netip.Prefix) bool {
		found := slices.ContainsFunc(d.overlay.Routes, func(route overlay.Route) bool {
			return route.Dst == r && route.Via.IsValid() && strings.HasPrefix(route.Dev, fmt.Sprintf("loq%d-", p.Spec.Index))
		})
		return !found || !isUnreachable(d, r) || !slices.Contains(d.nat.Remote, r)
	})
}

func isUnreachable(d desired, r netip.Prefix) bool {
	return slices.ContainsFunc(d.overlay.Routes, func(route overlay.Route) bool { return route.Unreachable && route.Dst == r })
}

// A Peering that no kernel could hold, or that conflicts with another one, stops no other. The schema rejects all of
// these as well, except the overlaps with another Peering, which it cannot know.
func TestOnePeeringStopsNoOther(t *testing.T) {
	me := local{name: "n2", address: addr("10.80.0.7")}
	for name, change := range map[string]func(p *v1alpha1.Peering){
		"an external range of IPv6":         func(p *v1alpha1.Peering) { p.Spec.Remote.ExternalCIDR = cidr("fd00::/18") },
		"an external range of a wrong size": func(p *v1alpha1.Peering) { p.Spec.Remote.ExternalCIDR = cidr("10.64.0.0/10") },
		"an overlay of IPv6": func(p *v1alpha1.Peering) {
			p.Spec.Local.InternalCIDR, p.Spec.Remote.ExternalCIDR = cidr("fd00::/115"), cidr("fd01::/114")
			p.Spec.Remote.Pods = []v1alpha1.CIDRMapping{mapping("fd02::/64", "fd02::/64")}
		},
		"all addresses":                 func(p *v1alpha1.Peering) { p.Spec.Remote.Pods[0] = mapping("0.0.0.0/0", "0.0.0.0/0") },
		"half of the other's range":     func(p *v1alpha1.Peering) { p.Spec.Remote.Pods[0] = mapping("10.244.0.0/17", "10.30.128.0/17") },
		"a range around the other's":    func(p *v1alpha1.Peering) { p.Spec.Remote.Pods[0] = mapping("10.0.0.0/12", "10.16.0.0/12") },
		"the other's external range":    func(p *v1alpha1.Peering) { p.Spec.Remote.ExternalCIDR = cidr("10.70.0.0/18") },
		"this cluster's pods":           func(p *v1alpha1.Peering) { p.Spec.Remote.Pods[0] = mapping("10.244.3.0/24", "10.244.3.0/24") },
		"one of its ranges twice":       func(p *v1alpha1.Peering) { p.Spec.Remote.Pods[0] = mapping("10.244.0.0/18", "10.71.0.0/18") },
		"an index that is too large":    func(p *v1alpha1.Peering) { p.Spec.Index = 512 },
		"this cluster's overlay":        func(p *v1alpha1.Peering) { p.Spec.Remote.Pods[0] = mapping("10.80.0.0/24", "10.80.0.0/24") },
		"ranges of different lengths":   func(p *v1alpha1.Peering) { p.Spec.Remote.Pods[0] = mapping("10.244.0.0/16", "10.40.0.0/17") },
		"a spec that could not be read": func(p *v1alpha1.Peering) { p.Spec = v1alpha1.PeeringSpec{} },
		"the other's index":             func(p *v1alpha1.Peering) { p.Spec.Index = 2 },
		"a gateway that is anywhere":    func(p *v1alpha1.Peering) { p.Status.Planes[0].PodIP = v1alpha1.IP{Addr: addr("192.0.2.1")} },
		"a gateway that is a node":      func(p *v1alpha1.Peering) { p.Status.Planes[0].PodIP = v1alpha1.IP{Addr: addr("172.18.0.2")} },
		"a gateway in the overlay":      func(p *v1alpha1.Peering) { p.Status.Planes[0].PodIP = v1alpha1.IP{Addr: addr("10.80.0.9")} },
		"a gateway of the other's peer": func(p *v1alpha1.Peering) { p.Status.Planes[0].PodIP = v1alpha1.IP{Addr: addr("10.30.0.1")} },
		"a gateway with a tiny MTU":     func(p *v1alpha1.Peering) { p.Status.Planes[0].MTU = 60 },
		"a gateway that has IPv6":       func(p *v1alpha1.Peering) { p.Status.Planes[0].PodIP = v1alpha1.IP{Addr: addr("fd00::1")} },
	} {
		t.Run(name, func(t *testing.T) {
			good := peering("good", 2, mapping("10.244.0.0/16", "10.20.0.0/16"), mapping("10.244.0.0/16", "10.30.0.0/16"), "10.70.0.0/18")
			bad := peering("bad", 1, mapping("10.244.0.0/16", "10.20.0.0/16"), mapping("10.244.0.0/16", "10.40.0.0/16"), "10.71.0.0/18")
			good.CreationTimestamp, bad.CreationTimestamp = metav1.NewTime(time.Unix(1, 0)), metav1.NewTime(time.Unix(2, 0))
			change(&bad)
			d, err := desire(me, []v1alpha1.Peering{bad, good})
			if strings.HasPrefix(name, "a gateway ") { // it says so itself, and the node stays Ready
				kit.ErrorIf(t, err != nil || len(d.leftOut) != 1 || !strings.HasPrefix(d.leftOut[0], "peering bad, plane 0: its gateway"), "left out: %q, error %v", d.leftOut, err)
			} else {
				kit.ErrorIf(t, err == nil || !strings.HasPrefix(err.Error(), "peering bad"), "the error is %v", err)
			}
			kit.ErrorIf(t, !served(d, good) || served(d, bad) || len(d.nat.Gateways) != 1,
				"routes %v, ranges %v, gateways %v", d.overlay.Routes, d.nat.Remote, d.nat.Gateways)
			for _, r := range append(d.nat.Remote, d.nat.Pods...) {
				kit.ErrorIf(t, !r.Addr().Is4(), "nftables would refuse %s", r)
			}
		})
	}
}

// Packets to a rejected Peering's ranges go nowhere. Ranges that this cluster or another peering uses stay as they are.
func TestRejectedIsUnreachable(t *testing.T) {
	me := local{name: "n2", address: addr("10.80.0.7"), nodeIPs: []netip.Addr{addr("172.18.0.2")}}
	for name, test := range map[string]struct {
		change  func(p *v1alpha1.Peering)
		blocked []string
	}{
		"the other's index": {func(p *v1alpha1.Peering) { p.Spec.Index = 2 }, []string{"10.40.0.0/16", "10.71.0.0/18"}},
		"the other's range": {func(p *v1alpha1.Peering) { p.Spec.Remote.ExternalCIDR = cidr("10.70.0.0/18") }, []string{"10.40.0.0/16"}},
		"half of the other's range": {
			func(p *v1alpha1.Peering) { p.Spec.Remote.Pods[0] = mapping("10.244.0.0/17", "10.30.128.0/17") }, []string{"10.71.0.0/18"},
		},
		"a range around the other's": {
			func(p *v1alpha1.Peering) { p.Spec.Remote.Pods[0] = mapping("10.0.0.0/11", "10.0.0.0/11") }, []string{"10.0.0.0/11", "10.71.0.0/18"},
		},
		"all addresses": {func(p *v1alpha1.Peering) { p.Spec.Remote.Pods[0] = mapping("0.0.0.0/0", "0.0.0.0/0") }, []string{"10.71.0.0/18"}},
		"a node's range": {
			func(p *v1alpha1.Peering) {
				p.Spec.Index, p.Spec.Remote.Pods[0] = 2, mapping("172.18.0.0/16", "172.18.0.0/16")
			}, []string{"10.71.0.0/18"},
		},
		"IPv6": {func(p *v1alpha1.Peering) { p.Spec.Remote.ExternalCIDR = cidr("fd00::/18") }, []string{"10.40.0.0/16"}},
	} {
		t.Run(name, func(t *testing.T) {
			good := peering("good", 2, mapping("10.244.0.0/16", "10.20.0.0/16"), mapping("10.244.0.0/16", "10.30.0.0/16"), "10.70.0.0/18")
			bad := peering("bad", 1, mapping("10.244.0.0/16", "10.20.0.0/16"), mapping("10.244.0.0/16", "10.40.0.0/16"), "10.71.0.0/18")
			good.CreationTimestamp, bad.CreationTimestamp = metav1.NewTime(time.Unix(1, 0)), metav1.NewTime(time.Unix(2, 0))
			alone := kit.Must(desire(me, []v1alpha1.Peering{good}))(t)
			test.change(&bad)
			d, err := desire(me, []v1alpha1.Peering{bad, good})
			kit.ErrorIf(t, err == nil || !served(d, good), "%v: %v", err, d.overlay.Routes)
			added := d.nat.Remote[len(alone.nat.Remote):]
			kit.Check(t, "blocked", lo.Map(added, func(r netip.Prefix, _ int) string { return r.String() }), test.blocked)
			for _, r := range added {
				kit.ErrorIf(t, !isUnreachable(d, r), "%s is not unreachable", r)
			}
		})
	}
}

// A rejected Peering takes nothing from a newer one.
func TestRefusedTakesNothing(t *testing.T) {
	me := local{name: "n2", address: addr("10.80.0.7")}
	good := peering("good", 1, mapping("10.244.0.0/16", "10.20.0.0/16"), mapping("10.244.0.0/16", "10.30.0.0/16"), "10.70.0.0/18")
	bad := peering("bad", 1, mapping("10.244.0.0/16", "10.20.0.0/16"), mapping("10.244.0.0/16", "10.30.0.0/16"), "10.70.0.0/18")
	bad.CreationTimestamp, good.CreationTimestamp = metav1.NewTime(time.Unix(1, 0)), metav1.NewTime(time.Unix(2, 0))
	bad.Spec.Remote.Pods = append(bad.Spec.Remote.Pods, mapping("10.80.0.0/24", "10.80.0.0/24"))
	d, err := desire(me, []v1alpha1.Peering{bad, good})
	kit.ErrorIf(t, err == nil || !strings.HasPrefix(err.Error(), "peering bad") || strings.Contains(err.Error(), "good"),
		"the error is %v", err)
	kit.ErrorIf(t, !served(d, good), "routes %v, ranges %v", d.overlay.Routes, d.nat.Remote)
}

// Two Peerings that do not overlap are both served, however close their ranges are.
func TestNeighboursAreServed(t *testing.T) {
	me := local{name: "n2", address: addr("10.80.0.7")}
	a := peering("a", 1, mapping("10.244.0.0/16", "10.20.0.0/16"), mapping("10.244.0.0/17", "10.30.0.0/17"), "10.70.0.0/18")
	b := peering("b", 2, mapping("10.244.0.0/16", "10.20.0.0/16"), mapping("10.244.128.0/17", "10.30.128.0/17"), "10.70.64.0/18")
	d, err := desire(me, []v1alpha1.Peering{a, b})
	kit.ErrorIf(t, err != nil || !served(d, a) || !served(d, b), "%v: %v", err, d.overlay.Routes)
}
