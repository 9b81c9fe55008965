package bench

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"
	"text/tabwriter"

	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/pkg/wire"
	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/load"
)

// plainPods are addresses that nobody has to translate: of A's and of B's pods.
var plainPods = [2]netip.Prefix{netip.MustParsePrefix("10.70.0.0/16"), netip.MustParsePrefix("10.71.0.0/16")}

const plainTable = "100"

// BenchmarkTranslation compares pod to pod with equal ranges, by all rules of
// gateways and nodes, with the same way over the same links, devices and
// processes between disjoint ranges: by all rules, of which none has to translate
// then, and without any rule of ours. It is in namespaces alone: clusters would take
// a part of the cores that changes all the time.
func BenchmarkTranslation(b *testing.B) {
	ctx, cancel := context.WithTimeout(b.Context(), timeout)
	defer cancel()
	o := dataplane.Options{Overlay: overlay.VXLAN, Tunnel: tunnel.Userspace}
	n := dataplane.New(b, o)
	clusters := [2]*dataplane.Cluster{n.A, n.B}
	for i, c := range clusters {
		plainWay(b, c, plainPods[i], plainPods[1-i])
		c.Apply(b, o.Overlay)
	}
	from, to := n.A.Nodes[1].Pod, n.B.Nodes[1].Pod
	way := func(listen, address netip.Addr) load.Path {
		return load.Path{From: from.Run, To: to.Run, Listen: listen, Address: address}
	}
	plainAddr := plainAddr(plainPods[1])
	translated, untouched := way(to.Addr, to.Mapped), way(plainAddr, plainAddr)
	for b.Loop() {
		t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintf(t, "\nMEDIANS OF %d ROUNDS, IN NAMESPACES\tTRANSLATED\tNOT TRANSLATED\tRATIO\tHALF OF THEM\tGOAL\tNO RULES\tRATIO\tHALF OF THEM\n", *rounds)
		for _, links := range []struct {
			name, prefix string
			segmentation bool
		}{{"links as they are", "default", true}, {"links without segmentation offload", "single", false}} {
			for _, c := range clusters {
				c.SetSegmentation(b, links.segmentation)
			}
			r := results{}
			for round := range *rounds {
				for _, m := range measures() {
					if !slices.Contains(ofRules, m.metric) {
						continue
					}
					turns := []func(){
						func() { r.add(m.metric, mapped, must(b, ctx, m, translated)) },
						func() { r.add(m.metric, asItIs, must(b, ctx, m, untouched)) },
						func() {
							for _, c := range clusters {
								dropTables(b, c)
							}
							r.add(m.metric, noRules, must(b, ctx, m, untouched))
							for _, c := range clusters {
								c.Apply(b, o.Overlay)
							}
						},
					}
					if round%2 == 1 {
						slices.Reverse(turns)
					}
					for _, turn := range turns {
						turn()
					}
				}
			}
			fmt.Fprintf(t, "%s\t\t\t\t\t\t\t\t\n", links.name)
			for _, m := range measures() {
				values := r[m.metric]
				if len(values) == 0 {
					continue
				}
				ratio, half := spread(ratios(values[mapped], values[asItIs]))
				all, halfOfAll := spread(ratios(values[mapped], values[noRules]))
				said := "-"
				if m.gbits {
					said = verdict("goal", goalRules, ratio >= goalRules)
				}
				b.ReportMetric(ratio, fmt.Sprintf("%s-%s", links.prefix, m.metric))
				b.ReportMetric(all, fmt.Sprintf("%s-%s-to-no-rules", links.prefix, m.metric))
				fmt.Fprintf(t, "  %s, %s\t%.2f\t%.2f\t%.3f\t%s\t%s\t%.2f\t%.3f\t%s\n", m.name, m.unit,
					median(values[mapped]), median(values[asItIs]), ratio, half, said, median(values[noRules]), all, halfOfAll)
			}
		}
		kit.CheckNoError(b, t.Flush())
	}
}

// ofRules are the measures of what rules cost.
var ofRules = []string{"tcp1", "tcp4", "requests1", "requests16", roundTrip}

// goalRules is what all rules may leave of throughput.
const goalRules = 0.98

const (
	mapped  = "mapped"
	asItIs  = "as it is"
	noRules = "no rules"
)

// spread returns the median of ratios, and between what half of them are.
func spread(ratios []float64) (middle float64, half string) {
	all := slices.Sorted(slices.Values(ratios))
	return median(all), fmt.Sprintf("%.2f to %.2f", all[len(all)/4], all[len(all)-1-len(all)/4])
}

// must measures twice: for a moment after a change of its rules the kernel is slower.
func must(b *testing.B, ctx context.Context, m measure, p load.Path) (v float64) {
	b.Helper()
	for range 2 {
		var err error
		if v, err = m.of(ctx, p); err != nil {
			b.Fatalf("%s to %s: %v", m.name, p.Address, err)
		}
	}
	return v
}

// plainAddr is that of the pod on the second node.
func plainAddr(pods netip.Prefix) netip.Addr {
	a := pods.Addr().As4()
	return netip.AddrFrom4([4]byte{a[0], a[1], 2, 20})
}

// plainWay gives the pod on a cluster's second node an address that is not
// translated, and makes the way between it and the peer's.
func plainWay(b *testing.B, c *dataplane.Cluster, own, peer netip.Prefix) {
	b.Helper()
	node, gateway := &c.Nodes[1], c.Gateway
	addr := plainAddr(own).String()
	ip := func(h dataplane.Host, args ...string) {
		b.Helper()
		h.Output(b, "ip", args...)
	}
	mtu := fmt.Sprint(dataplane.MTU)
	ip(node.Pod, "addr", "add", addr+"/32", "dev", "eth0")
	ip(node.Pod, "route", "add", peer.String(), "via", "10.244.2.1", "dev", "eth0", "src", addr, "mtu", mtu)
	ip(node.Host, "route", "add", addr+"/32", "dev", "veth-pod")
	ip(node.Host, "rule", "add", "priority", "10", "to", peer.String(), "lookup", plainTable)
	ip(node.Host, "route", "add", peer.String(), "via", c.Overlay.Addr.String(), "dev", wire.NodeLink(0, 0), "onlink", "mtu", mtu, "table", plainTable)
	for _, p := range []netip.Prefix{own, peer} {
		ip(gateway, "rule", "add", "priority", "10", "to", p.String(), "lookup", plainTable)
	}
	ip(gateway, "route", "add", own.String(), "via", node.Overlay.Addr.String(), "dev", wire.GatewayLink(2), "onlink", "table", plainTable)
	ip(gateway, "route", "add", peer.String(), "dev", tunnel.InterfaceName, "table", plainTable)
	// Without our rules the plugin would masquerade what goes to the gateway and from it.
	for i := range c.Nodes {
		c.Nodes[i].Output(b, "nft", fmt.Sprintf("add table ip bench; "+
			"add chain ip bench in { type filter hook prerouting priority -300; }; add chain ip bench out { type filter hook output priority -300; }; "+
			"add rule ip bench in udp dport %[1]d notrack; add rule ip bench out udp dport %[1]d notrack", overlay.Port))
	}
	c.Plain.Own, c.Plain.Peer = own, peer
	c.Config.Peer.AllowedIPs = append(slices.Clone(c.Config.Peer.AllowedIPs), peer)
	c.Tunnel.Configure(b, c.Config)
}

// dropTables takes all our rules away but that of the aggregation.
func dropTables(b *testing.B, c *dataplane.Cluster) {
	b.Helper()
	for _, h := range []dataplane.Host{c.Gateway, c.Nodes[0].Host, c.Nodes[1].Host} {
		h.Output(b, "nft", "delete", "table", "ip", "liqonet")
	}
}
