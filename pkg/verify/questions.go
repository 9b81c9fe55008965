// Package verify decides what probes of two peered clusters ask each other, and what the
// answers mean: facts and answers in, a report out. It is pure.
//
//	sides ─> Questions ─> probes ask (pkg/diagnose, agent/probe) ─> Judge ─> Report
//
// Out of scope: making probes, printing.
package verify

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/probe"
	"github.com/liqonet/liqonet/pkg/wire"
)

// The ports on which probes are asked: of pods by TCP and UDP, and of nodes. A node's is one that Linux gives to nobody by itself, and
// not one of NodePorts.
const (
	PodPort  = 5701
	NodePort = 22761
)

// Side is what is known of one of the two clusters.
type Side struct {
	// Letter begins the names of its probes.
	Letter string
	// Cluster is what the user calls it, and Kubectl how the user reaches it.
	Cluster, Kubectl string
	// Peering is the cluster's own object.
	Peering *v1alpha1.Peering
	// Known is by which addresses the peer knows this cluster. Remote are the ranges by which this cluster knows the peer.
	Known  ipam.Translation
	Remote []netip.Prefix
	// Nodes are those that have probes.
	Nodes []Node
	// Left says why there are not two nodes, or what else is left out.
	Left []string
	// APIServers are the endpoints of the cluster's API.
	APIServers []netip.AddrPort
	// Third are the other peers of the cluster.
	Third []Third
	// Own is a service whose endpoints are the cluster's own probes, and Abroad one with those of the peer.
	Own, Abroad Service
}

// Node is one that has probes.
type Node struct {
	Name string
	// Addresses are its own, Overlay is that in the overlay.
	Addresses []netip.Addr
	Overlay   netip.Addr
	// MTU is how many bytes its packets to the peer may have.
	MTU int
	// Gateways are the planes whose gateways run on it.
	Gateways []int32
	// Pod is the address of the probe pod on it, invalid if there is none.
	Pod netip.Addr
	// PodError and HostError are why the probe in a pod, or that of the node itself, does not run.
	PodError, HostError error
}

// Third is another peer of a cluster, and the overlay addresses of the gateways that lead to it.
type Third struct {
	Name     string
	Gateways []netip.Addr
}

// Service is one that was made for the probes.
type Service struct {
	IP netip.Addr
	// TCP and UDP are its NodePorts, 0 if it has none.
	TCP, UDP uint16
	// Error is why there is none.
	Error error
}

// PodID is the name of the probe in a pod on the node of that number, HostID that of the node's own.
func (s *Side) PodID(node int) string { return s.Letter + strconv.Itoa(node) + "-pod" }

// HostID is the name of the node's own probe.
func (s *Side) HostID(node int) string { return s.Letter + strconv.Itoa(node) + "-node" }

// Leads says whether packets to an address are led to the peer.
func (s *Side) Leads(a netip.Addr) bool {
	return slices.ContainsFunc(s.Remote, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Choose returns which nodes are watched and ask by themselves. The first has the lowest plane's gateway, all others with gateways follow. The
// last has no gateway, if there is such a node. The first and the last of them get probes in pods, too.
func Choose(nodes []Node) []Node {
	nodes = slices.SortedStableFunc(slices.Values(nodes), func(a, b Node) int {
		return cmp.Or(cmp.Compare(min(len(b.Gateways), 1), min(len(a.Gateways), 1)), slices.Compare(a.Gateways, b.Gateways))
	})
	last := len(nodes) - 1
	for i := 1; i < last; i++ {
		if len(nodes[i].Gateways) == 0 {
			return append(nodes[:i], nodes[last])
		}
	}
	return nodes
}

// Times, in milliseconds, and sizes in bytes.
const (
	// answerTime is how long an answer is waited for, and serviceTime how long until nodes know a new service.
	answerTime  = 5000
	serviceTime = 6000
	// silence is how long nobody must answer.
	silence = 1500
	// bulk is what a connection carries, more than fits into the first packets.
	bulk = 100_000
	// fragmented is what fits into no packet of a usual link.
	fragmented = 4000
)

// expectation is what has to come of a question.
type expectation int

const (
	answer expectation = iota
	refusal
	nothing
)

// Question is one call, and what it is for.
type Question struct {
	Check string
	// Asker is the probe that asks, on node.
	Asker string
	node  *Node
	Call  probe.Call
	// how is what else is to be said of the asker, to says who is asked.
	how, to string
	expect  expectation
	// by are the probes, one of which has to answer.
	by []string
	// control is what has to be answered inside of the other cluster, or the question says nothing.
	control string
}

// asking collects questions of one side to the other.
type asking struct {
	from, to *Side
	servers  []server
	// asker is the probe that asks now, on node.
	asker string
	node  *Node
	out   []Question
}

// server is a pod of the peer that answers.
type server struct {
	id string
	// at is where this side reaches it, whose says so in words.
	at    netip.AddrPort
	whose string
}

// Questions are what the probes of a side ask, those of the peer and, for comparison, its own.
func Questions(from, to *Side) []Question {
	a := &asking{from: from, to: to}
	for i, n := range to.Nodes {
		if known, ok := to.Known.Translate(n.Pod); ok {
			a.servers = append(a.servers, server{to.PodID(i), netip.AddrPortFrom(known, PodPort), knownAs(known, n.Pod, "a pod on "+n.Name)})
		}
	}
	for i := range from.Nodes {
		a.node = &from.Nodes[i]
		if a.node.Pod.IsValid() {
			a.asker = from.PodID(i)
			a.ofPod()
		}
		if a.node.HostError == nil {
			a.asker = from.HostID(i)
			a.ofNode()
		}
	}
	return a.out
}

// Calls are those of one probe.
func Calls(all []Question, asker string) []probe.Call {
	return lo.FilterMap(all, func(q Question, _ int) (probe.Call, bool) { return q.Call, q.Asker == asker })
}

// add has the asker ask. What is not set is what most have in common.
func (a *asking) add(q Question) {
	q.Asker, q.node = a.asker, a.node
	q.Call.ID = a.from.Letter + strconv.Itoa(len(a.out))
	q.Call.Timeout = cmp.Or(q.Call.Timeout, answerTime)
	a.out = append(a.out, q)
}

// knownAs is an address, and whose it is.
func knownAs(mapped, real netip.Addr, whose string) string {
	if mapped == real {
		return whose
	}
	return fmt.Sprintf("%s, %s", real, whose)
}

func (a *asking) ofPod() {
	mtu := a.node.MTU
	for _, s := range a.servers {
		ask := func(name string, expect expectation, c probe.Call) {
			c.To = s.at
			a.add(Question{Check: name, Call: c, to: s.whose, by: []string{s.id}, expect: expect})
		}
		ask(PodsTCP, answer, probe.Call{Protocol: probe.TCP, Size: bulk})
		ask(PodsUDP, answer, probe.Call{Protocol: probe.UDP})
		ask(PodsICMP, answer, probe.Call{Protocol: probe.ICMP})
		ask(PodsFragments, answer, probe.Call{Protocol: probe.UDP, Size: max(fragmented, 2*mtu)})
		if mtu > 0 {
			ask(PodsMTU, answer, probe.Call{Protocol: probe.UDP, Size: mtu, DontFragment: true, OrLess: true})
			ask(PodsTooLarge, refusal, probe.Call{Protocol: probe.UDP, Size: mtu + 1, DontFragment: true})
		}
	}
	a.services()
	a.isolation()
	a.inside()
}

// What questions of isolation depend on, but for the probes of nodes.
func ofNodePorts(s *Side) string { return s.Letter + "-node-ports" }
func ofServices(s *Side) string  { return s.Letter + "-services" }

// inside asks whether what must not be reached from the peer is reached from inside.
func (a *asking) inside() {
	s := a.from
	ask := func(what string, addr netip.Addr, port uint16) {
		to := netip.AddrPortFrom(addr, port)
		call := probe.Call{Protocol: probe.TCP, To: to, Timeout: serviceTime}
		a.add(Question{Check: control, Call: call, to: to.String(), control: what})
	}
	for i, n := range s.Nodes {
		for _, addr := range n.Addresses {
			if n.HostError == nil {
				ask(s.HostID(i), addr, NodePort)
			}
			if s.Own.TCP > 0 && n.Pod.IsValid() { // it leads to pods of that node only
				ask(ofNodePorts(s), addr, s.Own.TCP)
			}
		}
	}
	if s.Own.IP.IsValid() {
		ask(ofServices(s), s.Own.IP, PodPort)
	}
}

// services asks by a service of this cluster whose endpoints are the peer's pods.
func (a *asking) services() {
	s := a.from.Abroad
	ids := lo.Map(a.servers, func(s server, _ int) string { return s.id })
	for _, by := range []struct {
		protocol probe.Protocol
		nodePort uint16
	}{{probe.TCP, s.TCP}, {probe.UDP, s.UDP}} {
		ask := func(name string, to netip.AddrPort, what string) {
			a.add(Question{Check: name, Call: probe.Call{Protocol: by.protocol, To: to, Timeout: serviceTime}, to: what, by: ids})
		}
		if s.IP.IsValid() {
			ask(ServiceClusterIP, netip.AddrPortFrom(s.IP, PodPort), "a cluster IP of "+a.from.Cluster)
		}
		for _, n := range a.from.Nodes {
			for _, addr := range n.Addresses {
				if by.nodePort > 0 {
					ask(ServiceNodePort, netip.AddrPortFrom(addr, by.nodePort), "a NodePort of "+n.Name)
				}
			}
		}
	}
}

// isolation asks what must not answer. By addresses that the peering leads to it asks for anything; by others, which the networks around
// may lead to, what tells from where it was asked. What no probe of the other cluster serves is only connected to.
func (a *asking) isolation() {
	silent := func(name string, p probe.Protocol, to netip.Addr, port uint16, what, control string) {
		call := probe.Call{Protocol: p, To: netip.AddrPortFrom(to, port), ConnectOnly: p == probe.TCP && control == "", Timeout: silence}
		a.add(Question{Check: name, Call: call, expect: nothing, to: what, control: control})
	}
	for i, n := range a.to.Nodes {
		node := func(to, real netip.Addr) (what string) {
			what = knownAs(to, real, "node "+n.Name)
			if n.HostError == nil {
				silent(IsolatedNodes, probe.TCP, to, NodePort, what, a.to.HostID(i))
			}
			if a.to.Own.TCP > 0 && n.Pod.IsValid() {
				silent(IsolatedNodePorts, probe.TCP, to, a.to.Own.TCP, what, ofNodePorts(a.to))
			}
			return what
		}
		if seen, ok := a.to.Known.Nodes.Translate(n.Overlay); ok {
			what := node(seen, n.Overlay)
			if n.HostError == nil {
				silent(IsolatedNodes, probe.UDP, seen, NodePort, what, a.to.HostID(i))
			}
			silent(IsolatedNodes, probe.ICMP, seen, 0, what, "")
			for _, port := range lo.Uniq(lo.Map(a.to.APIServers, func(api netip.AddrPort, _ int) uint16 { return api.Port() })) {
				silent(IsolatedAPI, probe.TCP, seen, port, what, "")
			}
		}
		for _, addr := range n.Addresses {
			for _, to := range a.routesTo(addr) {
				node(to, addr)
			}
		}
	}
	if a.to.Own.IP.IsValid() {
		for _, to := range a.routesTo(a.to.Own.IP) {
			silent(IsolatedServices, probe.TCP, to, PodPort, knownAs(to, a.to.Own.IP, "a cluster IP of "+a.to.Cluster), ofServices(a.to))
		}
	}
	for _, api := range a.to.APIServers {
		if to, ok := a.to.Known.Pods.Translate(api.Addr()); ok {
			silent(IsolatedAPI, probe.TCP, to, api.Port(), knownAs(to, api.Addr(), "an API server of "+a.to.Cluster), "")
		}
	}
	for _, third := range a.to.Third {
		for _, gateway := range third.Gateways {
			if seen, ok := a.to.Known.Nodes.Translate(gateway); ok {
				what := knownAs(seen, gateway, "the gateway to "+third.Name)
				silent(IsolatedThird, probe.ICMP, seen, 0, what, "")
				silent(IsolatedThird, probe.TCP, seen, wire.ExchangePort, what, "")
			}
		}
	}
}

// routesTo are the addresses by which something of the peer that is no pod might be reached. One is what it would be known by if it were a
// pod. The other one is its own, unless the peering makes that somebody else's.
func (a *asking) routesTo(addr netip.Addr) (out []netip.Addr) {
	if mapped, ok := a.to.Known.Pods.Translate(addr); ok {
		out = append(out, mapped)
	}
	if !a.from.Leads(addr) {
		out = append(out, addr)
	}
	return slices.Compact(out)
}

func (a *asking) ofNode() {
	for _, s := range a.servers {
		ask := func(name, how string, c probe.Call) {
			c.To = s.at
			a.add(Question{Check: name, Call: c, how: how, to: s.whose, by: []string{s.id}})
		}
		ask(NodesToPods, "", probe.Call{Protocol: probe.TCP})
		ask(NodesToPods, "", probe.Call{Protocol: probe.UDP})
		for _, plane := range a.from.Peering.Spec.Planes {
			link := wire.NodeLink(a.from.Peering.Spec.Index, plane.Index)
			ask(Planes, fmt.Sprintf(" by plane %d (%s)", plane.Index, link), probe.Call{Protocol: probe.UDP, Link: link})
		}
	}
}
