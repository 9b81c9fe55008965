package doctor

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// names is about endpoints that are names, as the client's gateway says of them: only there is the name server that it asks.
func names(x *look) {
	x.forGateways(func(p *v1alpha1.Peering, plane *v1alpha1.Plane, s *v1alpha1.PlaneStatus) {
		for _, e := range plane.Endpoints {
			host, _, err := v1alpha1.SplitEndpoint(e)
			if _, isAddr := netip.ParseAddr(host); err != nil || isAddr == nil || s == nil || s.Connected {
				continue
			}
			if _, why, found := strings.Cut(s.Message, fmt.Sprintf("endpoint %q: ", host)); found {
				x.of(p, plane.Index, x.failed("", fmt.Sprintf("the endpoint's name %s leads nowhere", host), why, "put the name into the DNS, or give another endpoint: kubectl liqonet peer "+x.pairOf(p.Spec.Remote.Name)+" --endpoint"))
			}
		}
	})
}

// keys compares what each gateway has with what the peer was told.
func keys(x *look) {
	x.forGateways(func(p *v1alpha1.Peering, plane *v1alpha1.Plane, s *v1alpha1.PlaneStatus) {
		peer, other := x.peerOf(p)
		if peer == nil {
			return
		}
		theirs, plan := other.PlaneStatus(plane.Index), other.Plane(plane.Index)
		hint := "kubectl liqonet peer " + x.pairOf(peer.Name)
		switch {
		case theirs != nil && theirs.PublicKey != "" && theirs.PublicKey != plane.RemotePublicKey:
			if !knowsAnyKey(p, other) {
				hint += " --replace" // peer cannot tell that it is the same cluster
			}
			x.of(p, plane.Index, x.failed("", fmt.Sprintf("it knows a wrong key of %s's gateway", peer.Name),
				fmt.Sprintf("plane %d: Peering %s has %.8s…, the gateway has %.8s…", plane.Index, p.Name, plane.RemotePublicKey, theirs.PublicKey), hint))
		case plan != nil && plan.PresharedKey.Fingerprint != plane.PresharedKey.Fingerprint && x.Cluster.ID < peer.ID:
			x.of(p, plane.Index, x.failed("", fmt.Sprintf("it and %s have different pre-shared keys", peer.Name), fmt.Sprintf("fingerprints of plane %d differ", plane.Index), hint))
		}
	})
}

// knowsAnyKey says that a Peering has the key of at least one of the peer's gateways.
func knowsAnyKey(p, other *v1alpha1.Peering) bool {
	return slices.ContainsFunc(p.Spec.Planes, func(plane v1alpha1.Plane) bool {
		theirs := other.PlaneStatus(plane.Index)
		return theirs != nil && theirs.PublicKey == plane.RemotePublicKey
	})
}

// down says that both ends of a plane live, and no packet passes.
func (x *look) down(p *v1alpha1.Peering, plane *v1alpha1.Plane, s *v1alpha1.PlaneStatus) bool {
	return s != nil && !s.Connected && !x.silent(v1alpha1.GatewayName(p.Name, plane.Index))
}

// carried is what this end and the other one have sent and received.
func (x *look) carried(p *v1alpha1.Peering, plane int32) (own, other Traffic, both bool) {
	own, has := x.Traffic[v1alpha1.GatewayName(p.Name, plane)]
	peer, side := x.peerOf(p)
	if !has || peer == nil || peer.silent(v1alpha1.GatewayName(side.Name, plane)) {
		return own, other, false
	}
	other, both = peer.Traffic[v1alpha1.GatewayName(side.Name, plane)]
	return own, other, both
}

func udpBlocked(x *look) {
	x.forGateways(func(p *v1alpha1.Peering, plane *v1alpha1.Plane, s *v1alpha1.PlaneStatus) {
		if plane.Role != v1alpha1.Client || !x.down(p, plane, s) {
			return
		}
		own, other, both := x.carried(p, plane.Index)
		at := strings.Join(plane.Endpoints, ", ")
		if s.Endpoint != "" {
			at = s.Endpoint
		}
		switch {
		case both && (own.Received > 0 || other.Received > 0 || own.Sent == 0):
		case !both && (s.LastHandshake != nil || own.Received > 0):
		default:
			x.of(p, plane.Index, x.failed("", fmt.Sprintf("UDP does not get to %s's gateway at %s", p.Spec.Remote.Name, at),
				fmt.Sprintf("it has sent %d bytes, and neither gateway has received any", own.Sent), fmt.Sprintf("on node %s: tcpdump -ni any udp and host %s", x.gatewayNode(p, plane.Index), hostOf(at))))
		}
	})
}

// hostOf is the host of an endpoint.
func hostOf(endpoint string) string {
	first, _, _ := strings.Cut(endpoint, ",")
	if host, _, err := v1alpha1.SplitEndpoint(first); err == nil {
		return host
	}
	return endpoint
}

// udpOneWay is said by the end that receives nothing while the other one does.
func udpOneWay(x *look) {
	x.forGateways(func(p *v1alpha1.Peering, plane *v1alpha1.Plane, s *v1alpha1.PlaneStatus) {
		if !x.down(p, plane, s) {
			return
		}
		own, other, both := x.carried(p, plane.Index)
		if both && own.Received == 0 && other.Received > 0 && other.Sent > 0 {
			x.of(p, plane.Index, x.failed("", fmt.Sprintf("UDP passes one way only: nothing of %s gets here", p.Spec.Remote.Name),
				fmt.Sprintf("%s has received %d bytes and sent %d, and none came", p.Spec.Remote.Name, other.Received, other.Sent), fmt.Sprintf("on node %s: tcpdump -ni any udp", x.gatewayNode(p, plane.Index))))
		}
	})
}

func natForgets(x *look) {
	const often = 2
	x.forGateways(func(p *v1alpha1.Peering, plane *v1alpha1.Plane, s *v1alpha1.PlaneStatus) {
		t := x.Traffic[v1alpha1.GatewayName(p.Name, plane.Index)]
		seen := slices.Compact(slices.Sorted(slices.Values(t.Endpoints)))
		hosts := map[string]bool{}
		for _, e := range seen {
			hosts[hostOf(e)] = true
		}
		if plane.Role == v1alpha1.Server && len(seen) >= often && len(hosts) == 1 {
			x.of(p, plane.Index, x.failed("", fmt.Sprintf("a NAT on the way to %s forgets the tunnel", p.Spec.Remote.Name), "it calls from "+strings.Join(seen, ", "),
				"have the NAT remember UDP for 30 s; see: kubectl liqonet status "+x.pairOf(p.Spec.Remote.Name)+" --history"))
		}
	})
}

func tunnels(x *look) {
	x.forGateways(func(p *v1alpha1.Peering, plane *v1alpha1.Plane, s *v1alpha1.PlaneStatus) {
		if x.down(p, plane, s) {
			x.of(p, plane.Index, x.failed("", fmt.Sprintf("no packet passes to %s", p.Spec.Remote.Name), s.Message, "kubectl liqonet status "+x.pairOf(p.Spec.Remote.Name)+" --history"))
		}
	})
}

// overlays is about nodes that do not reach the peer while the tunnel works.
func overlays(x *look) {
	for _, node := range slices.Sorted(maps.Keys(x.Reports)) {
		r := x.Reports[node]
		if x.silent(r.Lease()) || !slices.ContainsFunc(x.Cluster.Nodes, func(n corev1.Node) bool { return n.Name == node }) {
			continue
		}
		x.forGateways(func(p *v1alpha1.Peering, plane *v1alpha1.Plane, s *v1alpha1.PlaneStatus) {
			if s == nil || !s.Connected || x.silent(v1alpha1.GatewayName(p.Name, plane.Index)) {
				return
			}
			if g := r.Gateway(p.Name, plane.Index); g != nil && g.Ready && g.ObservedGeneration == p.Generation {
				return
			}
			at := x.gatewayNode(p, plane.Index)
			what := fmt.Sprintf("UDP %d does not pass between node %s and the gateway on %s", overlayPort, node, at)
			evidence := "the tunnel works, and the node does not reach the peer"
			if k := x.Kernels[node]; k != nil {
				for _, ping := range k.Pings {
					if ping.To == s.PodIP.Addr && len(ping.Answered) == 0 {
						what, evidence = fmt.Sprintf("node %s does not reach pods on node %s", node, at), "the gateway's pod "+s.PodIP.String()+" answers no ping"
					}
				}
			}
			f := x.of(p, plane.Index, x.failed(node, what, evidence, fmt.Sprintf("on node %s: tcpdump -ni any udp port %d", node, overlayPort)))
			f.Node = node
		})
	}
}

// fullSize looks at which sizes got through.
func fullSize(x *look) {
	for _, node := range slices.Sorted(maps.Keys(x.Kernels)) {
		for _, ping := range x.Kernels[node].Pings {
			if len(ping.Answered) == 0 || len(ping.Answered) == len(ping.Sizes) {
				continue
			}
			x.forGateways(func(p *v1alpha1.Peering, plane *v1alpha1.Plane, s *v1alpha1.PlaneStatus) {
				if plane.RemoteAddress.Addr != ping.To || len(x.found) > 0 {
					return
				}
				most := slices.Max(ping.Answered)
				f := x.of(p, plane.Index, x.failed(node, fmt.Sprintf("large packets to %s get lost: %d bytes pass, and %d do not", p.Spec.Remote.Name, most, slices.Max(ping.Sizes)),
					fmt.Sprintf("from node %s to its gateway %s; the MTU is %d", node, ping.To, s.MTU), "have all hops send ICMP errors; see docs/troubleshooting.md, or: kubectl liqonet status "+x.pairOf(p.Spec.Remote.Name)+" -o wide"))
				f.Node = node
			})
		}
	}
}
