// Package probe is what the command line and its probe pods tell each other. A Task is
// what a pod is to do, in its argument. Lines are what it says, one JSON document in each
// line of its standard output.
//
// It is pure. Who starts the pods is pkg/peering, who does the tasks is agent/probe.
package probe

import (
	"encoding/json"
	"net/netip"
	"time"
)

// Task is what one probe does: all of it that is set. It begins to watch and to serve, says that it is
// ready, and makes its calls. One that watches or serves goes on until it is told to end.
type Task struct {
	// Token is in all that the probes of one run send each other. Nobody else is answered.
	Token string `json:"token,omitempty"`
	// Serve is set where calls of other probes are answered.
	Serve *Serve `json:"serve,omitempty"`
	// Watch is set where packets of the node are counted until the probe is told to end.
	Watch *Watch `json:"watch,omitempty"`
	// Calls are made at the same time.
	Calls []Call `json:"calls,omitempty"`
	// Gateways are where gateways of the cluster show their metrics, of which drops are read before and after the calls.
	Gateways []netip.AddrPort `json:"gateways,omitempty"`
	// Bench is set where the speed of the way to another probe is measured.
	Bench *Bench `json:"bench,omitempty"`
	// Kernel is set where the node's kernel is read.
	Kernel *KernelTask `json:"kernel,omitempty"`
}

// String is the argument of the agent's command.
func (t Task) String() string {
	raw, _ := json.Marshal(t) // there is nothing in it that cannot be written
	return string(raw)
}

// Parse reads the argument of the agent's command.
func Parse(s string) (t Task, err error) {
	err = json.Unmarshal([]byte(s), &t)
	return t, err
}

// Serve answers calls by TCP and UDP on one port of all addresses.
type Serve struct {
	// Name is in each answer.
	Name string `json:"name"`
	Port uint16 `json:"port"`
}

// Watch counts packets of a node, in its network.
type Watch struct {
	// Run tells its counters from those of others.
	Run string `json:"run"`
	// Remote are the ranges by which the node knows the peer.
	Remote []netip.Prefix `json:"remote"`
	// Gateways are the pods on the node that have an end of the tunnel.
	Gateways []netip.Addr `json:"gateways,omitempty"`
	// Addresses are the node's own: their interfaces lead out of it.
	Addresses []netip.Addr `json:"addresses,omitempty"`
}

// Watched is what was counted.
type Watched struct {
	// Plain are packets of the peer's ranges that left the node by another interface than the overlay's. ToPeer and FromPeer are
	// those by the overlay.
	Plain    uint64 `json:"plain"`
	ToPeer   uint64 `json:"toPeer"`
	FromPeer uint64 `json:"fromPeer"`
	// TunnelOut and TunnelIn are the bytes of encrypted packets of gateways on the node.
	TunnelOut uint64 `json:"tunnelOut"`
	TunnelIn  uint64 `json:"tunnelIn"`
	// Dropped is by how much counters of what the node's rules drop have grown, by their names.
	Dropped map[string]uint64 `json:"dropped,omitempty"`
}

// Gateway is what a gateway has dropped while calls were made.
type Gateway struct {
	// Dropped is by how much counters have grown, by their names.
	Dropped map[string]uint64 `json:"dropped,omitempty"`
	// Error is why that is not known.
	Error string `json:"error,omitempty"`
}

// Protocol is by what a call is made.
type Protocol string

// The protocols of calls.
const (
	TCP  Protocol = "tcp"
	UDP  Protocol = "udp"
	ICMP Protocol = "icmp"
)

// Call is one question to another probe.
type Call struct {
	// ID tells it from others of the task.
	ID       string         `json:"id"`
	Protocol Protocol       `json:"protocol"`
	To       netip.AddrPort `json:"to"`
	// Size is how many bytes come back. By UDP it is that of the IP packet, by TCP what is sent beside the question.
	// 0 is as few as there can be.
	Size int `json:"size,omitempty"`
	// DontFragment has packets sent as they are, or not at all. Otherwise large ones are sent in fragments.
	DontFragment bool `json:"dontFragment,omitempty"`
	// OrLess sends less where the interface by which packets leave allows no more.
	OrLess bool `json:"orLess,omitempty"`
	// Link is the interface by which packets leave, empty for the one that routes lead to. It is for UDP.
	Link string `json:"link,omitempty"`
	// ConnectOnly asks nothing: that a TCP connection is accepted is the answer.
	ConnectOnly bool `json:"connectOnly,omitempty"`
	// Timeout is in milliseconds. Until it is over, what was lost is sent again.
	Timeout int `json:"timeout"`
}

// Answer is what came back of a call.
type Answer struct {
	ID string `json:"id"`
	// Answered says that all that was asked for has come back.
	Answered bool `json:"answered,omitempty"`
	// From is the name of who has answered, and Source the address that it has seen.
	From   string     `json:"from,omitempty"`
	Source netip.Addr `json:"source,omitzero"`
	// Size is what was sent, where that is less than asked for.
	Size int `json:"size,omitempty"`
	// Tries is how often the question was sent.
	Tries int `json:"tries,omitempty"`
	// Refusal is the ICMP error that came back.
	Refusal *Refusal `json:"refusal,omitempty"`
	// Error is why there is no answer.
	Error string `json:"error,omitempty"`
}

// Refusal is an ICMP error about a packet that was sent, see RFC 792. Of one that the sender's own kernel makes, the
// type is 0.
type Refusal struct {
	Type uint8 `json:"type,omitempty"`
	Code uint8 `json:"code,omitempty"`
	// MTU is what the next link can carry, where the packet was too large.
	MTU  int        `json:"mtu,omitempty"`
	From netip.Addr `json:"from,omitzero"`
}

// Bench measures one thing after the other.
type Bench struct {
	To netip.AddrPort `json:"to"`
	// Milliseconds is how long each of the three takes.
	Milliseconds int `json:"milliseconds"`
}

// Speed is what was measured.
type Speed struct {
	// BitsPerSecond is what several connections carry together.
	BitsPerSecond float64 `json:"bitsPerSecond"`
	// MedianMicroseconds and SlowMicroseconds are how long a small packet and its answer take: half of them, and 99 of 100, take
	// no longer.
	MedianMicroseconds float64 `json:"medianMicroseconds"`
	SlowMicroseconds   float64 `json:"slowMicroseconds"`
	// RequestsPerSecond is how many questions are answered by several connections together, on each one after the other.
	RequestsPerSecond float64 `json:"requestsPerSecond"`
}

// Line is one line of a probe's output.
type Line struct {
	// Ready says that the probe serves.
	Ready bool `json:"ready,omitempty"`
	// Result is what it has found out since the line before.
	Result *Result `json:"result,omitempty"`
	// Error is why it could not do its task.
	Error string `json:"error,omitempty"`
}

// Result is what a probe has found out. The parts of it come in several lines. Each of them is read into the same Result.
type Result struct {
	Answers []Answer `json:"answers,omitempty"`
	Watched *Watched `json:"watched,omitempty"`
	// Gateways are in the order of the task.
	Gateways []Gateway `json:"gateways,omitempty"`
	Speed    *Speed    `json:"speed,omitempty"`
	// Kernel is what was read of the node.
	Kernel *Kernel `json:"kernel,omitempty"`
}

// KernelTask is what a pod on a node's host network is asked to read.
type KernelTask struct {
	// For is how long it watches what changes.
	For time.Duration `json:"for"`
	// Nodes are addresses of this cluster's nodes, whose neighbour entries are reported.
	Nodes []netip.Addr `json:"nodes,omitempty"`
	// Ping are addresses that are sent packets of each of the sizes, which no router may fragment. Sizes are those of IP packets, in bytes.
	Ping []Ping `json:"ping,omitempty"`
	// Health is where this node's agent answers the kubelet.
	Health netip.AddrPort `json:"health,omitzero"`
}

// Ping is packets to one address.
type Ping struct {
	To netip.Addr `json:"to"`
	// Sizes are those that were asked for, Answered those that were answered.
	Sizes    []int `json:"sizes"`
	Answered []int `json:"answered,omitempty"`
}

// Kernel is what was read of a node.
type Kernel struct {
	Release string `json:"release"`
	// Nftables is why it does not work, empty if it does.
	Nftables string `json:"nftables,omitempty"`
	// What links can be made, and whether there is /dev/net/tun.
	WireGuard bool `json:"wireguard"`
	TUN       bool `json:"tun"`
	VXLAN     bool `json:"vxlan"`
	Geneve    bool `json:"geneve"`
	// Blocked are chains of others that drop, and that agents cannot change.
	Blocked []string `json:"blocked,omitempty"`

	Links []Link `json:"links"`
	// Tracked are the connections that the kernel remembers.
	Tracked Tracked `json:"tracked"`
	// Neighbors are the other nodes' hardware addresses, as this one knows them.
	Neighbors map[string]string `json:"neighbors,omitempty"`
	// Duplicates are hardware addresses of others that answer for an address of this node, by that address.
	Duplicates map[string]string `json:"duplicates,omitempty"`
	// RouteChanges is how often a route of our table came or went during the probe, Changed which ones went.
	RouteChanges int      `json:"routeChanges,omitempty"`
	Changed      []string `json:"changed,omitempty"`
	// ForeignRules are rules and routes of others that use our table or our priority.
	ForeignRules []string `json:"foreignRules,omitempty"`
	// PortTaken says who else has our UDP port.
	PortTaken string `json:"portTaken,omitempty"`

	Pings []Ping `json:"pings,omitempty"`
	// Unhealthy is why the agent's health check was not answered, empty if it was.
	Unhealthy string `json:"unhealthy,omitempty"`
	// Failed are parts that could not be read, and why.
	Failed []string `json:"failed,omitempty"`
}

// Link is an interface.
type Link struct {
	Name string `json:"name"`
	Kind string `json:"kind,omitempty"`
	MTU  int    `json:"mtu"`
	MAC  string `json:"mac,omitempty"`
	// Addresses with their subnets.
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	// Ours says that it bears our mark, Uplink that it leads to other machines.
	Ours   bool `json:"ours,omitempty"`
	Uplink bool `json:"uplink,omitempty"`
	// ProxyARP says that the machine answers for addresses of others.
	ProxyARP bool `json:"proxyARP,omitempty"`
	// Forwarding says that it forwards what comes in. RPFilter is rp_filter of the kernel's ip-sysctl: 0 none, 1 strict, 2 loose.
	Forwarding bool `json:"forwarding,omitempty"`
	RPFilter   int  `json:"rpFilter,omitempty"`
}

// Tracked is the table of connections.
type Tracked struct {
	Count int `json:"count"`
	Max   int `json:"max"`
	// Refused is how many connections found no room during the probe.
	Refused uint64 `json:"refused,omitempty"`
}
