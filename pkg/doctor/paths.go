package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/nodes"
	"github.com/liqonet/liqonet/pkg/probe"
	"github.com/liqonet/liqonet/pkg/version"
	"github.com/liqonet/liqonet/pkg/wire"
)

// kubeletSilence is how long a kubelet may go without renewing its Lease, which it does every 10 s.
const kubeletSilence = 30 * time.Second

// strictRPFilter is the value of rp_filter with which the kernel drops packets that do not arrive through the interface of the route back
// (RFC 3704).
const strictRPFilter = 1

func nodesReady(x *examination, n *corev1.Node) {
	silence := x.Machines.NodeSilence[n.Name]
	hint := x.Kubectl + " describe node " + failure.Quote(n.Name)
	if !nodes.IsReady(n) {
		_, said := conditionOf(n, corev1.NodeReady)
		x.failNode(n.Name, fmt.Sprintf("node %s is not ready", n.Name), said, hint)
	} else if silence > kubeletSilence {
		evidence := fmt.Sprintf("it has not renewed its Lease for %s", silence.Round(time.Second))
		x.failNode(n.Name, fmt.Sprintf("the kubelet of node %s is silent", n.Name), evidence, hint)
	}
}

// conditionOf returns the status of a condition, with its reason and message.
func conditionOf(n *corev1.Node, kind corev1.NodeConditionType) (corev1.ConditionStatus, string) {
	c, is := lo.Find(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == kind })
	if !is {
		return corev1.ConditionUnknown, "it has no condition " + string(kind)
	}
	return c.Status, c.Reason + ": " + c.Message
}

func disks(x *examination, n *corev1.Node) {
	if full, said := conditionOf(n, corev1.NodeDiskPressure); full == corev1.ConditionTrue {
		x.fail(n.Name, "the disk of node "+n.Name+" is full", said, x.Kubectl+" describe node "+failure.Quote(n.Name)).Pairs = x.allPairs()
	}
}

// forNodes calls check for each node.
func forNodes(check func(*examination, *corev1.Node)) func(*examination) {
	return func(x *examination) {
		for _, n := range lo.ToSlicePtr(x.Machines.Nodes) {
			check(x, n)
		}
	}
}

// forKernels calls check for each kernel that was read, and lists the nodes whose kernel was not.
func forKernels(check func(x *examination, node string, k *probe.Kernel)) func(*examination) {
	return func(x *examination) {
		for _, node := range slices.Sorted(maps.Keys(x.Machines.Kernels)) {
			check(x, node, x.Machines.Kernels[node])
		}
		unread := lo.GroupBy(slices.Collect(maps.Keys(x.Machines.Unread)), func(node string) string { return x.Machines.Unread[node] })
		for _, why := range slices.Sorted(maps.Keys(unread)) {
			x.skip(fmt.Sprintf("the kernel of %s: %s", joinFirst(unread[why]), why))
		}
	}
}

func kernels(x *examination, node string, k *probe.Kernel) {
	needs := func(overlay v1alpha1.OverlayKind) bool {
		return slices.ContainsFunc(x.Peerings, func(p v1alpha1.Peering) bool { return p.Spec.Overlay == overlay })
	}
	hint := "load the module, or install another kernel, on " + failure.Quote(node) + "; then: " + x.liqonet("doctor")
	switch {
	case k.Nftables != "":
		x.fail(node, "nftables does not work on node "+node, k.Nftables, hint)
	case !k.VXLAN && !k.Geneve, !k.VXLAN && needs(v1alpha1.VXLAN), !k.Geneve && needs(v1alpha1.Geneve):
		x.fail(node, "the kernel of node "+node+" does not support the required overlay", fmt.Sprintf("%s: VXLAN %t, Geneve %t", k.Release, k.VXLAN, k.Geneve), hint)
	case !k.WireGuard && !k.TUN:
		x.fail(node, "node "+node+" has neither WireGuard nor /dev/net/tun", k.Release, hint)
	}
}

func firewalls(x *examination, node string, k *probe.Kernel) {
	if len(k.Blocked) > 0 {
		x.failNode(node, fmt.Sprintf("a firewall on node %s drops packets of gateways and peers", node), strings.Join(k.Blocked, "; "),
			"have it accept packets to and from interfaces "+wire.LinkPrefix+"*; on the node: nft list ruleset")
	}
}

func connections(x *examination, node string, k *probe.Kernel) {
	const nearlyFull = 95 // percent
	if t := k.Conntrack; t.Max > 0 && (t.Count*100 >= t.Max*nearlyFull || t.Refused > 0) {
		evidence := fmt.Sprintf("%d of %d, and %d were refused in the meantime", t.Count, t.Max, t.Refused)
		x.failNode(node, fmt.Sprintf("the connection tracking table of node %s is full", node), evidence, "find the programs that open them; on the node: conntrack -S")
	}
}

func foreignLinks(x *examination, node string, k *probe.Kernel) {
	for _, l := range k.Links {
		if strings.HasPrefix(l.Name, wire.LinkPrefix) && !l.IsOwn {
			x.fail(node, fmt.Sprintf("node %s has an interface %s that is not ours", node, l.Name), "it is a "+l.Kind+" without our mark", "on the node: ip link delete "+failure.Quote(l.Name))
		}
	}
}

// forwarding finds settings that were changed after the agent set them. Interfaces of pods are the network plugin's concern.
func forwarding(x *examination, node string, k *probe.Kernel) {
	for _, l := range k.Links {
		name, value, what := "forwarding", "1", "does not forward packets from "+l.Name
		switch {
		case l.Uplink && !l.Forwarding:
		case l.IsOwn && !l.Forwarding:
			what = "does not forward packets of peers from " + l.Name
		case l.IsOwn && l.RPFilter == strictRPFilter:
			name, value = "rp_filter", "2"
			what = "drops packets of peers from " + l.Name + ", as its reverse path filter is strict"
		default:
			continue
		}
		setting := "net.ipv4.conf." + l.Name + "." + name
		x.failNode(node, "node "+node+" "+what, setting+" is not "+value, "on the node: sysctl "+failure.Quote(setting+"="+value))
	}
}

func portTaken(x *examination, node string, k *probe.Kernel) {
	if k.PortTaken != "" {
		x.fail(node, fmt.Sprintf("UDP port %d on node %s is taken", wire.OverlayPort, node), k.PortTaken, fmt.Sprintf("on the node: ss -ulpn sport = :%d; ip -d link", wire.OverlayPort))
	}
}

func foreignRules(x *examination, node string, k *probe.Kernel) {
	if len(k.ForeignRules) > 0 {
		x.fail(node, fmt.Sprintf("others use our routing table or rule priority on node %s", node), strings.Join(k.ForeignRules, "; "), fmt.Sprintf("on the node: ip rule; ip route show table %d", wire.Table))
	}
}

// routesFlap finds a program that deletes our routes now, or has changed our links, rules, routes or table recently.
func routesFlap(x *examination, node string, k *probe.Kernel) {
	const often, manyRepairs = 3, 10
	what := "another program keeps deleting our routes on node " + node
	hint := "find the program; on the node: ip monitor route rule; nft monitor (systemd-networkd needs ManageForeignRoutingPolicyRules=no and ManageForeignRoutes=no)"
	repaired := fmt.Sprintf("the agent had to repair them %d times in the last hour, the last time: %s", k.Others.Recent.Repairs, k.Others.Recent.Repaired)
	switch isFrequent := k.Others.Recent.Repairs >= manyRepairs; {
	case k.RouteChanges >= often || k.RouteChanges > 0 && isFrequent:
		evidence := fmt.Sprintf("%d changes during the check: %s", k.RouteChanges, joinFirst(k.Changed))
		x.fail(node, what, lo.Ternary(isFrequent, evidence+"; "+repaired, evidence), hint)
	case isFrequent:
		x.warn(node, "another program kept changing our links, rules, routes or table on node "+node, repaired, hint)
	}
}

func earlierRules(x *examination, node string, k *probe.Kernel) {
	if len(k.Others.EarlierRules) > 0 {
		x.warn(node, "rules on node "+node+" come before ours, and take packets to peers elsewhere: "+joinFirst(k.Others.EarlierRules),
			"packets to which they apply are dropped, as they would leave unencrypted; EKS has such rules for pods with their own security group",
			"exempt the peers' ranges from them; on the node: ip rule")
	}
}

// unencrypted finds drops of encrypted-only. If there was one earlier only, its cause may be gone.
func unencrypted(x *examination, node string, k *probe.Kernel) {
	const hint = "find the route that they take; on the node: ip rule; nft list chain ip liqonet encrypted-only"
	if k.Others.Unencrypted > 0 {
		x.failNode(node, fmt.Sprintf("node %s drops packets to peers, because they would leave it unencrypted", node),
			fmt.Sprintf("counter postrouting/unencrypted: %d during the check, %d in the last hour", k.Others.Unencrypted, k.Others.Recent.Unencrypted), hint)
	} else if k.Others.Recent.Unencrypted > 0 {
		x.warn(node, fmt.Sprintf("node %s has dropped packets to peers, because they would have left it unencrypted", node),
			fmt.Sprintf("counter postrouting/unencrypted: %d in the last hour", k.Others.Recent.Unencrypted), hint)
	}
}

func partialDrops(x *examination, node string, k *probe.Kernel) {
	if len(k.Others.PartialDrops) > 0 {
		x.warn(node, fmt.Sprintf("rules on node %s drop some packets of peers or gateways: %s", node, joinFirst(k.Others.PartialDrops)),
			"they are not ours, and our accept rules do not override them", "remove them, unless they are meant; on the node: nft list ruleset")
	}
}

// checksums finds wrong checksums. A few are damaged on the wire; a network card that computes them wrongly makes many.
func checksums(x *examination, node string, k *probe.Kernel) {
	const many = 3
	if k.Others.WrongChecksums >= many {
		x.failNode(node, fmt.Sprintf("packets arrive on node %s with wrong checksums", node),
			fmt.Sprintf("InCsumErrors in /proc/net/snmp grew by %d during the check", k.Others.WrongChecksums),
			"a network card or its driver may compute them wrongly, of encapsulated packets above all; on the sending nodes: ethtool -K INTERFACE tx off")
	}
}

func proxyARP(x *examination, node string, k *probe.Kernel) {
	for _, l := range k.Links {
		if l.Uplink && l.ProxyARP {
			x.failNode(node, fmt.Sprintf("node %s answers ARP for other addresses", node), "proxy_arp is on at "+l.Name,
				"on the node: sysctl "+failure.Quote("net.ipv4.conf."+l.Name+".proxy_arp=0"))
		}
	}
}

// answersOfNetwork returns the hardware addresses by which the network itself answers ARP, as with proxy ARP and on Azure. They are those
// of routers, and those that stand for several nodes without being a node's.
func (x *examination) answersOfNetwork(owners map[string]string) map[string]bool {
	pairs := map[[2]string]bool{} // a hardware address, and a node that is reached by it
	for node, k := range x.Machines.Kernels {
		for addr, mac := range k.Neighbors {
			pairs[[2]string{mac, owners[addr]}] = true
		}
		for _, mac := range k.Duplicates {
			pairs[[2]string{mac, node}] = true
		}
	}
	counts := lo.CountValuesBy(lo.Keys(pairs), func(pair [2]string) string { return pair[0] })
	isOfNetwork := lo.MapValues(counts, func(count int, _ string) bool { return count > 1 })
	for _, k := range x.Machines.Kernels {
		for _, l := range k.Links {
			delete(isOfNetwork, l.MAC)
		}
	}
	for _, mac := range lo.FlatMap(lo.Values(x.Machines.Kernels), func(k *probe.Kernel, _ int) []string { return k.Routers }) {
		isOfNetwork[mac] = true
	}
	return isOfNetwork
}

// duplicates compares the nodes' neighbor tables with the addresses that each node has.
func duplicates(x *examination) {
	owners := map[string]string{} // nodes by address
	for _, n := range lo.ToSlicePtr(x.Machines.Nodes) {
		for _, a := range nodes.Addresses(n, corev1.NodeInternalIP) {
			owners[a.String()] = n.Name
		}
	}
	said, isOfNetwork := map[string]bool{}, x.answersOfNetwork(owners)
	say := func(node, addr, mac, evidence string) {
		if !said[addr] && !isOfNetwork[mac] {
			said[addr] = true
			hint := "find the machine with " + failure.Quote(mac) + ": arping -D " + failure.Quote(addr)
			x.failNode(node, fmt.Sprintf("another machine has the address %s of node %s", addr, node), evidence, hint)
		}
	}
	forKernels(func(_ *examination, node string, k *probe.Kernel) {
		for _, addr := range slices.Sorted(maps.Keys(k.Duplicates)) {
			say(node, addr, k.Duplicates[addr], k.Duplicates[addr]+" answers for it")
		}
	})(x)
	for _, seer := range slices.Sorted(maps.Keys(x.Machines.Kernels)) {
		for _, addr := range slices.Sorted(maps.Keys(x.Machines.Kernels[seer].Neighbors)) {
			mac, node := x.Machines.Kernels[seer].Neighbors[addr], owners[addr]
			own := lo.FromPtr(x.Machines.Kernels[node]).Links
			if len(own) > 0 && !slices.ContainsFunc(own, func(l probe.Link) bool { return l.MAC == mac }) {
				say(node, addr, mac, fmt.Sprintf("node %s sends to %s, which is not its MAC address", seer, mac))
			}
		}
	}
}

// uplinkMTU compares the MTUs of nodes in one subnet.
func uplinkMTU(x *examination) {
	type uplink struct {
		node, link string
		mtu        int
	}
	subnets := map[netip.Prefix][]uplink{}
	forKernels(func(_ *examination, node string, k *probe.Kernel) {
		for _, l := range k.Links {
			for _, a := range l.Addresses {
				if l.Uplink && a.Addr().Is4() && !a.IsSingleIP() {
					subnets[a.Masked()] = append(subnets[a.Masked()], uplink{node, l.Name, l.MTU})
				}
			}
		}
	})(x)
	for subnet, links := range subnets {
		count := lo.CountValuesBy(links, func(l uplink) int { return l.mtu })
		// The MTU of most nodes is assumed to be right; of equally frequent ones, the larger.
		usual := slices.MaxFunc(slices.Collect(maps.Keys(count)), func(a, b int) int { return cmp.Or(count[a]-count[b], a-b) })
		for _, l := range links {
			if l.mtu != usual {
				x.fail(l.node, fmt.Sprintf("the uplink of node %s has an MTU of %d, others have %d", l.node, l.mtu, usual),
					fmt.Sprintf("%s, in %s", l.link, subnet), fmt.Sprintf("on the node: ip link set %s mtu %d", failure.Quote(l.link), usual))
			}
		}
	}
}

// endpointNames finds endpoint names that the client's gateway cannot resolve. It relies on the gateway's message, as other machines may
// use another name server.
func endpointNames(g gateway) {
	for _, e := range g.Endpoints {
		host, _, err := v1alpha1.SplitEndpoint(e)
		if _, isAddr := netip.ParseAddr(host); err != nil || isAddr == nil || g.status == nil || g.status.Connected {
			continue
		}
		if _, why, found := strings.Cut(g.status.Message, fmt.Sprintf("endpoint %q: ", host)); found {
			g.fail(fmt.Sprintf("the endpoint's name %s does not resolve", host), why,
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
		g.fail("it has a wrong key for "+peer.Name+"'s gateway", fmt.Sprintf("plane %d: Peering %s has %.8s…, the gateway has %.8s…",
			g.Index, g.peering.Name, g.RemotePublicKey, theirs.PublicKey), hint)
	case plan != nil && plan.PresharedKey.Fingerprint != g.PresharedKey.Fingerprint && g.x.Cluster.ID < peer.ID:
		g.fail("it and "+peer.Name+" have different pre-shared keys", fmt.Sprintf("fingerprints of plane %d differ", g.Index), hint)
	}
}

// knowsAnyKey reports whether a Peering has the key of at least one of the peer's gateways.
func knowsAnyKey(p, other *v1alpha1.Peering) bool {
	return slices.ContainsFunc(p.Spec.Planes, func(plane v1alpha1.Plane) bool {
		theirs := other.PlaneStatus(plane.Index)
		return theirs != nil && theirs.PublicKey == plane.RemotePublicKey
	})
}

// traffic returns the traffic of both ends of a tunnel. If both is false, that of the other end is unknown.
func (g gateway) traffic() (own, other Traffic, both bool) {
	own, has := g.x.Traffic[g.lease()]
	peer, side := g.x.peerOf(g.peering)
	if !has || side == nil || peer.isSilent(v1alpha1.GatewayName(side.Name, g.Index)) {
		return own, other, false
	}
	other, both = peer.Traffic[v1alpha1.GatewayName(side.Name, g.Index)]
	return own, other, both
}

func udpBlocked(g gateway) {
	if g.Role != v1alpha1.Client || !g.isDown() {
		return
	}
	own, other, both := g.traffic()
	at := cmp.Or(g.status.Endpoint, strings.Join(g.Endpoints, ", "))
	switch {
	case both && (own.Received > 0 || other.Received > 0 || own.Sent == 0):
	case !both && (g.status.LastHandshake != nil || own.Received > 0):
	default:
		g.fail(fmt.Sprintf("UDP does not reach %s's gateway at %s", g.peer(), at),
			fmt.Sprintf("it has sent %d bytes, and neither gateway has received any", own.Sent),
			fmt.Sprintf("on node %s: tcpdump -ni any udp and host %s", failure.Quote(g.node()), failure.Quote(hostOf(at))))
	}
}

// hostOf returns the host of an endpoint.
func hostOf(endpoint string) string {
	first, _, _ := strings.Cut(endpoint, ",")
	host, _, _ := v1alpha1.SplitEndpoint(first) // empty with an error
	return cmp.Or(host, endpoint)
}

// udpOneWay adds a finding at the end that receives nothing while the other one does.
func udpOneWay(g gateway) {
	if own, other, both := g.traffic(); g.isDown() && both && own.Received == 0 && other.Received > 0 && other.Sent > 0 {
		g.fail(fmt.Sprintf("UDP passes in one direction only: nothing from %s arrives", g.peer()),
			fmt.Sprintf("%s has received %d bytes and sent %d, and none arrived", g.peer(), other.Received, other.Sent),
			fmt.Sprintf("on node %s: tcpdump -ni any udp", failure.Quote(g.node())))
	}
}

func natDropsMapping(g gateway) {
	const often = 2
	seen := slices.Compact(slices.Sorted(slices.Values(lo.Compact(g.x.Traffic[g.lease()].Endpoints))))
	hosts := lo.UniqMap(seen, func(e string, _ int) string { return hostOf(e) })
	if g.Role == v1alpha1.Server && len(seen) >= often && len(hosts) == 1 {
		g.fail(fmt.Sprintf("a NAT on the path to %s drops the tunnel's mapping", g.peer()), "it connects from "+strings.Join(seen, ", "),
			"configure the NAT to keep UDP mappings for 30 s; see: "+g.x.liqonet("status", g.peer())+" --history")
	}
}

// callers finds gateways that are called by two gateways with the same key.
func callers(g gateway) {
	if g.status != nil && g.status.OtherCaller != "" && !g.isSilent() {
		g.fail(fmt.Sprintf("two gateways call with the key of %s's gateway: a copy of the cluster is running, or a node that is cut off", g.peer()),
			fmt.Sprintf("WireGuard's packets alternate between %s and %s", g.status.Endpoint, g.status.OtherCaller),
			fmt.Sprintf("stop the copy, then: %s; the keys of a copy become invalid", g.x.liqonet("rotate-keys", g.peer())))
	}
}

// maxLoss is the percentage of lost probes from which users notice the loss.
const maxLoss = 5

// losses finds tunnels and overlay links that work, but lose packets. What pods have measured counts. Without it, only the
// last probes of agents are known: too few for a small loss, and those of minutes ago are among them.
func losses(x *examination) {
	for _, g := range x.gateways() {
		if g.status == nil || !g.status.Connected || g.isSilent() {
			continue
		}
		measured := x.lossesTo(g.RemoteAddress.Addr)
		loss, evidence := x.Heartbeats[g.lease()].LossPercent, "probes between the gateways"
		if len(measured) > 0 {
			loss, evidence = lo.Min(lo.Values(measured)), "pings of all nodes"
		}
		if loss > maxLoss {
			g.fail(fmt.Sprintf("%d %% of packets to %s get lost", loss, g.peer()), evidence, x.liqonet("status", g.peer(), "--history"))
			continue // nodes send through it
		}
		for _, node := range slices.Sorted(maps.Keys(x.Reports)) {
			r := x.Reports[node]
			own := lo.FromPtr(r.Gateway(g.peering.Name, g.Index))
			loss := lo.ValueOr(measured, node, int(own.LossPercent))
			if own.Ready && loss > maxLoss && !x.isSilent(r.LeaseName()) {
				g.attribute(x.fail(node, fmt.Sprintf("%d %% of packets between node %s and %s get lost", loss, node, g.peer()),
					"probes and pings of the node", x.liqonet("status", g.peer(), "-o wide")))
			}
		}
	}
}

// lossesTo returns the loss of each node's pings to an address, in percent, rounded up. A node whose pings are all lost has
// another problem.
func (c *Cluster) lossesTo(to netip.Addr) map[string]int {
	out := map[string]int{}
	for node, kernel := range c.Machines.Kernels {
		l, _ := lo.Find(kernel.Others.Losses, func(l probe.Loss) bool { return l.To == to })
		if l.Lost < l.Sent {
			out[node] = (l.Lost*100 + l.Sent - 1) / l.Sent
		}
	}
	return out
}

func tunnels(g gateway) {
	if g.isDown() {
		g.fail("no packets pass to "+g.peer(), g.status.Message, g.x.liqonet("status", g.peer())+" --history")
	}
}

// overlays finds nodes that do not reach the peer although the tunnel works.
func overlays(x *examination) {
	for _, node := range slices.Sorted(maps.Keys(x.Reports)) {
		r := x.Reports[node]
		if x.isSilent(r.LeaseName()) || !slices.ContainsFunc(x.Machines.Nodes, func(n corev1.Node) bool { return n.Name == node }) {
			continue
		}
		for _, g := range x.gateways() {
			own := r.Gateway(g.peering.Name, g.Index)
			reaches := own != nil && own.Ready && own.ObservedGeneration == g.peering.Generation
			if reaches || g.status == nil || !g.status.Connected || g.isSilent() {
				continue
			}
			what := fmt.Sprintf("UDP %d does not pass between node %s and the gateway on %s", wire.OverlayPort, node, g.node())
			evidence := "the tunnel works, and the node does not reach the peer"
			for _, ping := range lo.FromPtr(x.Machines.Kernels[node]).Pings {
				if ping.To == g.status.PodIP.Addr && len(ping.Answered) == 0 {
					what = fmt.Sprintf("node %s does not reach pods on node %s", node, g.node())
					evidence = "the gateway's pod " + g.status.PodIP.String() + " answers no ping"
				}
			}
			g.attribute(x.fail(node, what, evidence, fmt.Sprintf("on node %s: tcpdump -ni any udp port %d", failure.Quote(node), wire.OverlayPort)))
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
				evidence := fmt.Sprintf("from node %s to its gateway %s; the MTU is %d", node, ping.To, g.status.MTU)
				hint := "make sure that all hops send ICMP errors; see " + version.DocURL("troubleshooting.md") + ", or: "
				g.attribute(x.fail(node, what, evidence, hint+x.liqonet("status", g.peer())+" -o wide"))
			}
		}
	}
}
