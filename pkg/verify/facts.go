// Package verify decides what probes of two peered clusters ask each other, and what the
// answers mean: facts and answers in, a report out. It is pure.
//
//	sides ─> Questions ─> probes ask (pkg/diagnose, agent/probe) ─> Judge ─> Report
//
// Out of scope: making probes, printing.
package verify

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"

	"github.com/liqonet/liqonet/pkg/ipam"
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
	// Cluster is what the user calls it, and Peering is the object's name.
	Cluster, Peering string
	// Kubectl is how the user reaches the cluster.
	Kubectl string
	// Index is that of the peering, Planes are its planes.
	Index  int32
	Planes []int32
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
