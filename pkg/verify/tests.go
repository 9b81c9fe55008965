// Package verify determines which packets the probes of two peered clusters send to each other, and evaluates the responses. It is pure.
//
//	sides ─> Tests ─> probes ask (pkg/diagnose, agent/probe) ─> Evaluate ─> Report
//
// Out of scope: running probes, and printing.
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

// The TCP and UDP ports on which probes in pods and on nodes listen. NodePort is neither an ephemeral port nor in the range of NodePorts.
const (
	PodPort  = 5701
	NodePort = 22761
)

// Side is one of the two clusters.
type Side struct {
	// Letter begins the names of its probes.
	Letter string
	// Cluster is the user's name for it, and Kubectl the user's command for it.
	Cluster, Kubectl string
	// Peering is the cluster's Peering with the other one.
	Peering *v1alpha1.Peering
	// Translation translates this cluster's addresses to those that the peer uses. Remote are the ranges that this cluster uses for the
	// peer.
	Translation ipam.Translation
	Remote      []netip.Prefix
	// Nodes are the nodes with probes.
	Nodes []Node
	// Notes list what is left out, and why.
	Notes []string
	// APIServers are the endpoints of the cluster's API servers.
	APIServers []netip.AddrPort
	// OtherPeers are the other peers of the cluster.
	OtherPeers []OtherPeer
	// LocalService is a Service with the cluster's own probes as endpoints, and RemoteService one with those of the peer.
	LocalService, RemoteService Service
	// Imported are some of the peer's services that are imported.
	Imported []ImportedService
}

// ImportedService is a service of the peer, with its address in this cluster and one of its TCP ports.
type ImportedService struct {
	Name string
	At   netip.AddrPort
}

// Node is a node with probes.
type Node struct {
	Name string
	// Addresses are the addresses of the node itself, Overlay is its address in the overlay.
	Addresses []netip.Addr
	Overlay   netip.Addr
	// MTU is the largest packet to the peer, in bytes.
	MTU int
	// Gateways are the planes whose gateways run on the node.
	Gateways []int32
	// Pod is the address of the probe pod on the node, invalid if there is none.
	Pod netip.Addr
	// PodError is why the probe pod does not run, HostError why the probe in the node's own network does not.
	PodError, HostError error
}

// OtherPeer is another peer of a cluster, with the overlay addresses of the gateways to it.
type OtherPeer struct {
	Name     string
	Gateways []netip.Addr
}

// Service is a Service for the probes.
type Service struct {
	IP netip.Addr
	// TCP and UDP are the NodePorts, 0 if there are none.
	TCP, UDP uint16
	// Error is why the Service could not be created.
	Error error
}

// PodID returns the name of the probe pod on the node with this index.
func (s *Side) PodID(node int) string { return s.Letter + strconv.Itoa(node) + "-pod" }

// HostID returns the name of the probe in the node's own network.
func (s *Side) HostID(node int) string { return s.Letter + strconv.Itoa(node) + "-node" }

// RoutesToPeer reports whether packets to an address are routed to the peer.
func (s *Side) RoutesToPeer(a netip.Addr) bool {
	return slices.ContainsFunc(s.Remote, func(p netip.Prefix) bool { return p.Contains(a) })
}

// ChooseNodes returns the nodes, of one or more, that get a probe in their own network. The node with the gateway of the lowest plane comes
// first, then the others with gateways, and last a node without a gateway, if there is one. The first and the last node also get a probe
// pod.
func ChooseNodes(nodes []Node) []Node {
	nodes = slices.SortedStableFunc(slices.Values(nodes), func(a, b Node) int {
		return cmp.Or(cmp.Compare(min(len(b.Gateways), 1), min(len(a.Gateways), 1)), slices.Compare(a.Gateways, b.Gateways))
	})
	last := len(nodes) - 1
	gateways := lo.CountBy(nodes, func(n Node) bool { return len(n.Gateways) > 0 })
	return append(nodes[:min(max(gateways, 1), last)], nodes[last])
}

// Times, in milliseconds, and sizes in bytes.
const (
	// answerTime is the timeout for an answer. serviceTime includes the time until nodes have learned of a new Service.
	answerTime  = 5000
	serviceTime = 6000
	// noAnswerTime is how long no answer may arrive.
	noAnswerTime = 1500
	// bulkSize is the size of a transfer that exceeds the initial packets of a connection.
	bulkSize = 100_000
	// fragmentedSize exceeds the MTU of usual links.
	fragmentedSize = 4000
)

// expectation is the expected response to a test.
type expectation int

const (
	answer expectation = iota
	refusal
	noAnswer
)

// Test is a call of a probe, with the expected response.
type Test struct {
	Check string
	// Source is the probe that asks, on node.
	Source string
	node   *Node
	Call   probe.Call
	// detail adds details to the description of the source, to describes the receiver.
	detail, to string
	expect     expectation
	// responders are the probes of which one must answer.
	responders []string
	// control names the control that must be answered inside of the other cluster, or the test proves nothing.
	control string
}

// testBuilder collects the tests of one side to the other.
type testBuilder struct {
	from, to *Side
	servers  []server
	// source is the probe whose tests are being added, on node.
	source string
	node   *Node
	out    []Test
}

// server is an answering pod of the peer.
type server struct {
	id string
	// at is its address on this side, described by description.
	at          netip.AddrPort
	description string
}

// Tests returns the tests of one side's probes to the peer and, as controls, to their own cluster.
func Tests(from, to *Side) []Test {
	a := &testBuilder{from: from, to: to}
	for i, n := range to.Nodes {
		if known, ok := to.Translation.Translate(n.Pod); ok {
			a.servers = append(a.servers, server{to.PodID(i), netip.AddrPortFrom(known, PodPort), describeAddress(known, n.Pod, "a pod on "+n.Name)})
		}
	}
	for i := range from.Nodes {
		a.node = &from.Nodes[i]
		if a.node.Pod.IsValid() {
			a.source = from.PodID(i)
			a.addFromPod()
		}
		if a.node.HostError == nil {
			a.source = from.HostID(i)
			a.addFromNode()
		}
	}
	return a.out
}

// Calls returns the calls of one probe.
func Calls(all []Test, source string) []probe.Call {
	return lo.FilterMap(all, func(q Test, _ int) (probe.Call, bool) { return q.Call, q.Source == source })
}

// add adds a test of the current source, with defaults for unset fields.
func (a *testBuilder) add(q Test) {
	q.Source, q.node = a.source, a.node
	q.Call.ID = a.from.Letter + strconv.Itoa(len(a.out))
	q.Call.Timeout = cmp.Or(q.Call.Timeout, answerTime)
	a.out = append(a.out, q)
}

// ask adds a test to one of the peer's pods.
func (a *testBuilder) ask(s server, q Test) {
	q.Call.To, q.to, q.responders = s.at, s.description, []string{s.id}
	a.add(q)
}

// describeAddress describes an address by its owner, with the real address if it is translated.
func describeAddress(mapped, real netip.Addr, whose string) string {
	if mapped == real {
		return whose
	}
	return fmt.Sprintf("%s, %s", real, whose)
}

func (a *testBuilder) addFromPod() {
	mtu := a.node.MTU
	for _, s := range a.servers {
		a.ask(s, Test{Check: PodsTCP, Call: probe.Call{Protocol: probe.TCP, Size: bulkSize}})
		a.ask(s, Test{Check: PodsUDP, Call: probe.Call{Protocol: probe.UDP}})
		a.ask(s, Test{Check: PodsICMP, Call: probe.Call{Protocol: probe.ICMP}})
		a.ask(s, Test{Check: PodsFragments, Call: probe.Call{Protocol: probe.UDP, Size: max(fragmentedSize, 2*mtu)}})
		if mtu > 0 {
			a.ask(s, Test{Check: PodsMTU, Call: probe.Call{Protocol: probe.UDP, Size: mtu, DontFragment: true, AllowSmaller: true}})
			a.ask(s, Test{Check: PodsTooLarge, Call: probe.Call{Protocol: probe.UDP, Size: mtu + 1, DontFragment: true}, expect: refusal})
		}
	}
	a.services()
	for _, s := range a.from.Imported {
		a.add(Test{Check: ServiceImported, Call: probe.Call{Protocol: probe.TCP, To: s.At, ConnectOnly: true, Timeout: serviceTime}, to: "service " + s.Name})
	}
	a.isolation()
	a.controls()
}

// The names of controls for NodePorts and cluster IPs. The control for a node's probe has the name of the probe.
func nodePortControl(s *Side) string { return s.Letter + "-node-ports" }
func serviceControl(s *Side) string  { return s.Letter + "-services" }

// controls adds tests within the cluster, to addresses that the peer must not reach.
func (a *testBuilder) controls() {
	s := a.from
	ask := func(what string, addr netip.Addr, port uint16) {
		to := netip.AddrPortFrom(addr, port)
		call := probe.Call{Protocol: probe.TCP, To: to, Timeout: serviceTime}
		a.add(Test{Check: control, Call: call, to: to.String(), control: what})
	}
	for i, n := range s.Nodes {
		for _, addr := range n.Addresses {
			if n.HostError == nil {
				ask(s.HostID(i), addr, NodePort)
			}
			if s.LocalService.TCP > 0 && n.Pod.IsValid() { // externalTrafficPolicy Local: only to pods of that node
				ask(nodePortControl(s), addr, s.LocalService.TCP)
			}
		}
	}
	if s.LocalService.IP.IsValid() {
		ask(serviceControl(s), s.LocalService.IP, PodPort)
	}
}

// services adds tests through a Service of this cluster whose endpoints are the peer's pods.
func (a *testBuilder) services() {
	s := a.from.RemoteService
	ids := lo.Map(a.servers, func(s server, _ int) string { return s.id })
	for _, by := range []struct {
		protocol probe.Protocol
		nodePort uint16
	}{{probe.TCP, s.TCP}, {probe.UDP, s.UDP}} {
		ask := func(name string, to netip.AddrPort, what string) {
			a.add(Test{Check: name, Call: probe.Call{Protocol: by.protocol, To: to, Timeout: serviceTime}, to: what, responders: ids})
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

// isolation adds tests that must not be answered. Through addresses that the peering routes, any answer is a failure. Other addresses
// may be reachable through other networks, so they are only tested if a probe answers, which reports the source. Where no probe listens,
// the test only tries to connect.
func (a *testBuilder) isolation() {
	silent := func(name string, p probe.Protocol, to netip.Addr, port uint16, what, control string) {
		call := probe.Call{
			Protocol: p, To: netip.AddrPortFrom(to, port), ConnectOnly: p == probe.TCP && control == "",
			Timeout: noAnswerTime,
		}
		a.add(Test{Check: name, Call: call, expect: noAnswer, to: what, control: control})
	}
	for i, n := range a.to.Nodes {
		node := func(to, real netip.Addr) (what string) {
			what = describeAddress(to, real, "node "+n.Name)
			if n.HostError == nil {
				silent(IsolatedNodes, probe.TCP, to, NodePort, what, a.to.HostID(i))
			}
			if a.to.LocalService.TCP > 0 && n.Pod.IsValid() {
				silent(IsolatedNodePorts, probe.TCP, to, a.to.LocalService.TCP, what, nodePortControl(a.to))
			}
			return what
		}
		if seen, ok := a.to.Translation.Nodes.Translate(n.Overlay); ok {
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
	if a.to.LocalService.IP.IsValid() {
		for _, to := range a.routesTo(a.to.LocalService.IP) {
			silent(IsolatedServices, probe.TCP, to, PodPort, describeAddress(to, a.to.LocalService.IP, "a cluster IP of "+a.to.Cluster),
				serviceControl(a.to))
		}
	}
	for _, api := range a.to.APIServers {
		if to, ok := a.to.Translation.Pods.Translate(api.Addr()); ok {
			silent(IsolatedAPI, probe.TCP, to, api.Port(), describeAddress(to, api.Addr(), "an API server of "+a.to.Cluster), "")
		}
	}
	for _, third := range a.to.OtherPeers {
		for _, gateway := range third.Gateways {
			if seen, ok := a.to.Translation.Nodes.Translate(gateway); ok {
				what := describeAddress(seen, gateway, "the gateway to "+third.Name)
				silent(IsolatedOtherPeers, probe.ICMP, seen, 0, what, "")
				silent(IsolatedOtherPeers, probe.TCP, seen, wire.ExchangePort, what, "")
			}
		}
	}
}

// routesTo returns the addresses by which something of the peer other than a pod might be reachable. One is the address that it would have
// on this side if it were a pod. The other one is its real address, unless the peering routes that to another destination.
func (a *testBuilder) routesTo(addr netip.Addr) (out []netip.Addr) {
	if mapped, ok := a.to.Translation.Pods.Translate(addr); ok {
		out = append(out, mapped)
	}
	if !a.from.RoutesToPeer(addr) {
		out = append(out, addr)
	}
	return slices.Compact(out)
}

func (a *testBuilder) addFromNode() {
	for _, s := range a.servers {
		a.ask(s, Test{Check: NodesToPods, Call: probe.Call{Protocol: probe.TCP}})
		a.ask(s, Test{Check: NodesToPods, Call: probe.Call{Protocol: probe.UDP}})
		for _, plane := range a.from.Peering.Spec.Planes {
			link := wire.NodeLink(a.from.Peering.Spec.Index, plane.Index)
			how := fmt.Sprintf(" through plane %d (%s)", plane.Index, link)
			a.ask(s, Test{Check: Planes, Call: probe.Call{Protocol: probe.UDP, Link: link}, detail: how})
		}
	}
}
