package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/version"
	"github.com/liqonet/liqonet/pkg/wire"
)

// endpointNames finds endpoint names that the client's gateway cannot resolve. It relies on the gateway's message, as other machines may
// use another name server.
func endpointNames(g gateway) {
	for _, e := range g.Endpoints {
		host, _, err := v1alpha1.SplitEndpoint(e)
		if _, isAddr := netip.ParseAddr(host); err != nil || isAddr == nil || g.status == nil || g.status.Connected {
			continue
		}
		if _, why, found := strings.Cut(g.status.Message, fmt.Sprintf("endpoint %q: ", host)); found {
			g.failed(fmt.Sprintf("the endpoint's name %s does not resolve", host), why,
				"add the name to DNS, or set another endpoint: "+g.x.liqonet("peer", g.peer())+" --endpoint")
		}
	}
}

// gatewayKeys compares the keys that each gateway was given for its peer with those that the peer has.
func gatewayKeys(g gateway) {
	peer, other := g.x.peerOf(g.peering)
	if other == nil {
		return
	}
	theirs, plan := other.PlaneStatus(g.Index), other.Plane(g.Index)
	hint := g.x.liqonet("peer", peer.Name)
	switch {
	case theirs != nil && theirs.PublicKey != "" && theirs.PublicKey != g.RemotePublicKey:
		if !knowsAnyKey(g.peering, other) {
			hint += " --replace" // peer cannot verify that it is the same cluster
		}
		g.failed(fmt.Sprintf("it has a wrong key for %s's gateway", peer.Name), fmt.Sprintf("plane %d: Peering %s has %.8s…, the gateway has %.8s…",
			g.Index, g.peering.Name, g.RemotePublicKey, theirs.PublicKey), hint)
	case plan != nil && plan.PresharedKey.Fingerprint != g.PresharedKey.Fingerprint && g.x.Cluster.ID < peer.ID:
		g.failed(fmt.Sprintf("it and %s have different pre-shared keys", peer.Name), fmt.Sprintf("fingerprints of plane %d differ", g.Index), hint)
	}
}

// knowsAnyKey reports whether a Peering has the key of at least one of the peer's gateways.
func knowsAnyKey(p, other *v1alpha1.Peering) bool {
	return slices.ContainsFunc(p.Spec.Planes, func(plane v1alpha1.Plane) bool {
		theirs := other.PlaneStatus(plane.Index)
		return theirs != nil && theirs.PublicKey == plane.RemotePublicKey
	})
}

// carried returns the traffic of both ends of a tunnel. If both is false, that of the other end is unknown.
func (g gateway) carried() (own, other Traffic, both bool) {
	own, has := g.x.Traffic[g.lease()]
	peer, side := g.x.peerOf(g.peering)
	if !has || side == nil || peer.silent(v1alpha1.GatewayName(side.Name, g.Index)) {
		return own, other, false
	}
	other, both = peer.Traffic[v1alpha1.GatewayName(side.Name, g.Index)]
	return own, other, both
}

func udpBlocked(g gateway) {
	if g.Role != v1alpha1.Client || !g.down() {
		return
	}
	own, other, both := g.carried()
	at := cmp.Or(g.status.Endpoint, strings.Join(g.Endpoints, ", "))
	switch {
	case both && (own.Received > 0 || other.Received > 0 || own.Sent == 0):
	case !both && (g.status.LastHandshake != nil || own.Received > 0):
	default:
		g.failed(fmt.Sprintf("UDP does not reach %s's gateway at %s", g.peer(), at),
			fmt.Sprintf("it has sent %d bytes, and neither gateway has received any", own.Sent),
			fmt.Sprintf("on node %s: tcpdump -ni any udp and host %s", g.node(), hostOf(at)))
	}
}

// hostOf returns the host of an endpoint.
func hostOf(endpoint string) string {
	first, _, _ := strings.Cut(endpoint, ",")
	if host, _, err := v1alpha1.SplitEndpoint(first); err == nil {
		return host
	}
	return endpoint
}

// udpOneWay adds a finding at the end that receives nothing while the other one does.
func udpOneWay(g gateway) {
	if own, other, both := g.carried(); g.down() && both && own.Received == 0 && other.Received > 0 && other.Sent > 0 {
		g.failed(fmt.Sprintf("UDP passes in one direction only: nothing from %s arrives", g.peer()),
			fmt.Sprintf("%s has received %d bytes and sent %d, and none arrived", g.peer(), other.Received, other.Sent),
			fmt.Sprintf("on node %s: tcpdump -ni any udp", g.node()))
	}
}

func natForgets(g gateway) {
	const often = 2
	seen := slices.Compact(slices.Sorted(slices.Values(lo.Compact(g.x.Traffic[g.lease()].Endpoints))))
	hosts := lo.UniqMap(seen, func(e string, _ int) string { return hostOf(e) })
	if g.Role == v1alpha1.Server && len(seen) >= often && len(hosts) == 1 {
		g.failed(fmt.Sprintf("a NAT on the path to %s drops the tunnel's mapping", g.peer()), "it connects from "+strings.Join(seen, ", "),
			"configure the NAT to keep UDP mappings for 30 s; see: "+g.x.liqonet("status", g.peer())+" --history")
	}
}

func tunnels(g gateway) {
	if g.down() {
		g.failed("no packets pass to "+g.peer(), g.status.Message, g.x.liqonet("status", g.peer())+" --history")
	}
}

// overlays finds nodes that do not reach the peer although the tunnel works.
func overlays(x *examination) {
	for _, node := range slices.Sorted(maps.Keys(x.Reports)) {
		r := x.Reports[node]
		if x.silent(r.Lease()) || !slices.ContainsFunc(x.Machines.Nodes, func(n corev1.Node) bool { return n.Name == node }) {
			continue
		}
		for _, g := range x.gateways() {
			own := r.Gateway(g.peering.Name, g.Index)
			reaches := own != nil && own.Ready && own.ObservedGeneration == g.peering.Generation
			if reaches || g.status == nil || !g.status.Connected || g.silent() {
				continue
			}
			what := fmt.Sprintf("UDP %d does not pass between node %s and the gateway on %s", wire.OverlayPort, node, g.node())
			evidence := "the tunnel works, and the node does not reach the peer"
			if k := x.Machines.Kernels[node]; k != nil {
				for _, ping := range k.Pings {
					if ping.To == g.status.PodIP.Addr && len(ping.Answered) == 0 {
						what = fmt.Sprintf("node %s does not reach pods on node %s", node, g.node())
						evidence = "the gateway's pod " + g.status.PodIP.String() + " answers no ping"
					}
				}
			}
			g.about(x.failed(node, what, evidence, fmt.Sprintf("on node %s: tcpdump -ni any udp port %d", node, wire.OverlayPort)))
		}
	}
}

// fullSize compares the sizes of pings that were answered.
func fullSize(x *examination) {
	for _, node := range slices.Sorted(maps.Keys(x.Machines.Kernels)) {
		for _, ping := range x.Machines.Kernels[node].Pings {
			if len(ping.Answered) == 0 || len(ping.Answered) == len(ping.Sizes) {
				continue
			}
			for _, g := range x.gateways() {
				if g.status == nil || g.RemoteAddress.Addr != ping.To || len(x.found) > 0 {
					continue
				}
				what := fmt.Sprintf("large packets to %s get lost: %d bytes pass, but %d do not", g.peer(), slices.Max(ping.Answered), slices.Max(ping.Sizes))
				g.about(x.failed(node, what, fmt.Sprintf("from node %s to its gateway %s; the MTU is %d", node, ping.To, g.status.MTU),
					"make sure that all hops send ICMP errors; see "+version.DocURL("troubleshooting.md")+", or: "+x.liqonet("status", g.peer())+" -o wide"))
			}
		}
	}
}
