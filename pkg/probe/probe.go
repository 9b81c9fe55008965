// Package probe defines the messages between the command line and its probe pods. A Task is the argument of a pod,
// and describes what it does. Lines are the pod's output, one JSON document in each line.
//
// It is pure. pkg/peering starts the pods, and agent/probe runs the tasks.
package probe

import (
	"encoding/json"
	"net/netip"
	"time"
)

// Task describes what one probe does: everything whose field is set. The probe starts to watch and to serve, reports
// that it is ready, and makes its calls. If it watches or serves, it continues until it is stopped.
type Task struct {
	// Token is part of everything that the probes of one run send each other. Packets without it are not answered.
	Token string `json:"token,omitempty"`
	// Serve is set to answer calls of other probes.
	Serve *Serve `json:"serve,omitempty"`
	// Watch is set to count packets of the node until the probe is stopped.
	Watch *Watch `json:"watch,omitempty"`
	// Calls are made at the same time.
	Calls []Call `json:"calls,omitempty"`
	// Gateways are where the cluster's gateways serve their metrics. Their drops are read before and after the calls.
	Gateways []netip.AddrPort `json:"gateways,omitempty"`
	// Bench is set to measure the speed of the path to another probe.
	Bench *Bench `json:"bench,omitempty"`
	// Kernel is set to read the node's kernel.
	Kernel *KernelTask `json:"kernel,omitempty"`
}

// String returns the argument of the agent's command.
func (t Task) String() string {
	raw, _ := json.Marshal(t) // all of its fields can be encoded
	return string(raw)
}

// Parse parses the argument of the agent's command.
func Parse(s string) (t Task, err error) {
	err = json.Unmarshal([]byte(s), &t)
	return t, err
}

// Serve answers calls over TCP and UDP on one port of all addresses.
type Serve struct {
	// Name is part of each answer.
	Name string `json:"name"`
	Port uint16 `json:"port"`
}

// Watch counts packets of a node, in the node's network namespace.
type Watch struct {
	// Run distinguishes its counters from those of other runs.
	Run string `json:"run"`
	// Remote are the ranges by which the node knows the peer.
	Remote []netip.Prefix `json:"remote"`
	// Gateways are the pods on the node that run an end of the tunnel.
	Gateways []netip.Addr `json:"gateways,omitempty"`
	// Addresses are the node's own addresses. Their interfaces lead to other machines.
	Addresses []netip.Addr `json:"addresses,omitempty"`
}

// Counters is the result of a Watch.
type Counters struct {
	// Unencrypted counts packets of the peer's ranges that left the node through another interface than the overlay's.
	// ToPeer and FromPeer count those through the overlay.
	Unencrypted uint64 `json:"plain"`
	ToPeer      uint64 `json:"toPeer"`
	FromPeer    uint64 `json:"fromPeer"`
	// TunnelOut and TunnelIn are the bytes of encrypted packets of gateways on the node.
	TunnelOut uint64 `json:"tunnelOut"`
	TunnelIn  uint64 `json:"tunnelIn"`
	// Dropped is by how much the drop counters of the node's rules have increased, by their names.
	Dropped map[string]uint64 `json:"dropped,omitempty"`
}

// Gateway is the drops of a gateway while calls were made.
type Gateway struct {
	// Dropped is by how much the counters have increased, by their names.
	Dropped map[string]uint64 `json:"dropped,omitempty"`
	// Error is why the drops are not known.
	Error string `json:"error,omitempty"`
}

// Protocol is the protocol of a call.
type Protocol string

// These are the protocols of calls.
const (
	TCP  Protocol = "tcp"
	UDP  Protocol = "udp"
	ICMP Protocol = "icmp"
)

// Call is one request to another probe.
type Call struct {
	// ID distinguishes it from other calls of the task.
	ID       string         `json:"id"`
	Protocol Protocol       `json:"protocol"`
	To       netip.AddrPort `json:"to"`
	// Size is how many bytes come back. For UDP it is the size of the IP packet, for TCP that of the data in addition to
	// the request. 0 means as few as possible.
	Size int `json:"size,omitempty"`
	// DontFragment sends packets whole, or not at all. Otherwise large ones are sent in fragments.
	DontFragment bool `json:"dontFragment,omitempty"`
	// AllowSmaller sends less if the interface through which packets leave has a smaller MTU.
	AllowSmaller bool `json:"orLess,omitempty"`
	// Link is the interface through which packets leave, empty for the one that routes select. It applies to UDP only.
	Link string `json:"link,omitempty"`
	// ConnectOnly sends no request: an accepted TCP connection is the answer.
	ConnectOnly bool `json:"connectOnly,omitempty"`
	// Timeout is in milliseconds. Until then, lost packets are sent again.
	Timeout int `json:"timeout"`
}

// Answer is the result of a call.
type Answer struct {
	ID string `json:"id"`
	// Answered is set if everything asked for has come back.
	Answered bool `json:"answered,omitempty"`
	// From is the name of the answering probe, and Source the address that it has seen.
	From   string     `json:"from,omitempty"`
	Source netip.Addr `json:"source,omitzero"`
	// Size is the size sent, if it is smaller than requested.
	Size int `json:"size,omitempty"`
	// Tries is how often the request was sent.
	Tries int `json:"tries,omitempty"`
	// Refusal is the ICMP error that came back.
	Refusal *Refusal `json:"refusal,omitempty"`
	// Error is why there is no answer.
	Error string `json:"error,omitempty"`
}

// Refusal is an ICMP error about a sent packet, see RFC 792. The type is 0 if the sender's own kernel made it.
type Refusal struct {
	Type uint8 `json:"type,omitempty"`
	Code uint8 `json:"code,omitempty"`
	// MTU is the next link's MTU, if the packet was too large.
	MTU  int        `json:"mtu,omitempty"`
	From netip.Addr `json:"from,omitzero"`
}

// Bench measures three speeds, one after another.
type Bench struct {
	To netip.AddrPort `json:"to"`
	// Milliseconds is how long each of the three measurements takes.
	Milliseconds int `json:"milliseconds"`
}

// Speed is the result of a Bench.
type Speed struct {
	// BitsPerSecond is the total throughput of several connections.
	BitsPerSecond float64 `json:"bitsPerSecond"`
	// MedianMicroseconds and SlowMicroseconds are the median and the 99th percentile of the round trip time of a small
	// packet.
	MedianMicroseconds float64 `json:"medianMicroseconds"`
	SlowMicroseconds   float64 `json:"slowMicroseconds"`
	// RequestsPerSecond is how many requests are answered over several connections in total. Each connection sends one
	// request at a time.
	RequestsPerSecond float64 `json:"requestsPerSecond"`
}

// Line is one line of a probe's output.
type Line struct {
	// Ready is set when the probe serves.
	Ready bool `json:"ready,omitempty"`
	// Result contains new results since the previous line.
	Result *Result `json:"result,omitempty"`
	// Error is why the probe could not do its task.
	Error string `json:"error,omitempty"`
}

// Result is the results of a probe. Its parts come in several lines, which are all decoded into the same Result.
type Result struct {
	Answers  []Answer  `json:"answers,omitempty"`
	Counters *Counters `json:"watched,omitempty"`
	// Gateways are in the order of the task.
	Gateways []Gateway `json:"gateways,omitempty"`
	Speed    *Speed    `json:"speed,omitempty"`
	// Kernel is the state of the node's kernel.
	Kernel *Kernel `json:"kernel,omitempty"`
}

// KernelTask is the task of a pod on a node's host network to read the kernel.
type KernelTask struct {
	// Duration is how long it watches for changes.
	Duration time.Duration `json:"for"`
	// Nodes are addresses of this cluster's nodes whose neighbor entries are reported.
	Nodes []netip.Addr `json:"nodes,omitempty"`
	// Ping are addresses to ping with packets of each size, which no router may fragment. Sizes are those of IP packets,
	// in bytes.
	Ping []Ping `json:"ping,omitempty"`
	// Losses are addresses to ping repeatedly, with the number of pings.
	Losses []Loss `json:"losses,omitempty"`
	// Remote are the peers' ranges.
	Remote []netip.Prefix `json:"remote,omitempty"`
	// Health is where this node's agent answers the kubelet.
	Health netip.AddrPort `json:"health,omitzero"`
}

// Ping is a set of packets to one address.
type Ping struct {
	To netip.Addr `json:"to"`
	// Sizes are the sizes to send, and Answered those that were answered.
	Sizes    []int `json:"sizes"`
	Answered []int `json:"answered,omitempty"`
}

// Loss is how many pings to one address are sent, and how many of them are lost.
type Loss struct {
	To   netip.Addr `json:"to"`
	Sent int        `json:"sent"`
	Lost int        `json:"lost,omitempty"`
}

// Kernel is the state of a node's kernel.
type Kernel struct {
	Release string `json:"release"`
	// Nftables is why nftables does not work, empty if it does.
	Nftables string `json:"nftables,omitempty"`
	// These are the kinds of links that can be created. TUN is set if /dev/net/tun exists.
	WireGuard bool `json:"wireguard"`
	TUN       bool `json:"tun"`
	VXLAN     bool `json:"vxlan"`
	Geneve    bool `json:"geneve"`
	// Blocked are chains of others that drop packets and that agents cannot change.
	Blocked []string `json:"blocked,omitempty"`

	Links []Link `json:"links"`
	// Conntrack is the state of connection tracking.
	Conntrack ConntrackTable `json:"tracked"`
	// Neighbors are the other nodes' hardware addresses, as this node knows them.
	Neighbors map[string]string `json:"neighbors,omitempty"`
	// Routers are the hardware addresses of the next hops of default routes.
	Routers []string `json:"routers,omitempty"`
	// Duplicates are hardware addresses of other machines that answer for an address of this node, by that address.
	Duplicates map[string]string `json:"duplicates,omitempty"`
	// RouteChanges is how often a route of our table was added or removed during the probe, and Changed are the removed
	// ones.
	RouteChanges int      `json:"routeChanges,omitempty"`
	Changed      []string `json:"changed,omitempty"`
	// ForeignRules are rules and routes of others that use our table or our priority.
	ForeignRules []string `json:"foreignRules,omitempty"`
	// PortTaken describes what else uses our UDP port.
	PortTaken string `json:"portTaken,omitempty"`

	Pings []Ping `json:"pings,omitempty"`
	// Unhealthy is why the agent's health check failed, empty if it succeeded.
	Unhealthy string `json:"unhealthy,omitempty"`
	// Others is what others do to packets of peers.
	Others Interference `json:"others,omitzero"`
	// Errors lists parts that could not be read, with the reasons.
	Errors []string `json:"failed,omitempty"`
}

// Interference is what others do to packets of peers.
type Interference struct {
	// Recent is what the agent reports with its health check.
	Recent Recent `json:"recent,omitzero"`
	// Unencrypted is how many packets to peers were dropped during the probe, because they would have left unencrypted.
	Unencrypted uint64 `json:"unencrypted,omitempty"`
	// EarlierRules are rules of others that come before ours, and send packets to peers elsewhere.
	EarlierRules []string `json:"earlierRules,omitempty"`
	// PartialDrops are rules of others that drop some of the packets of gateways or peers.
	PartialDrops []string `json:"partialDrops,omitempty"`
	// WrongChecksums is how many packets arrived with a wrong checksum during the probe.
	WrongChecksums uint64 `json:"wrongChecksums,omitempty"`
	// Losses are the results of the task's pings.
	Losses []Loss `json:"losses,omitempty"`
}

// Recent is what a node's agent has noticed in the last hour.
type Recent struct {
	// Repairs is how often others had changed our links, routes, rules or table, and Repaired is the last repair.
	Repairs  uint64 `json:"repairs,omitempty"`
	Repaired string `json:"repaired,omitempty"`
	// Unencrypted is how many packets to peers were dropped because they would have left unencrypted.
	Unencrypted uint64 `json:"unencrypted,omitempty"`
}

// Link is an interface.
type Link struct {
	Name string `json:"name"`
	Kind string `json:"kind,omitempty"`
	MTU  int    `json:"mtu"`
	MAC  string `json:"mac,omitempty"`
	// Addresses include their prefix lengths.
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	// IsOwn is set if the interface has our mark, and Uplink if it leads to other machines.
	IsOwn  bool `json:"ours,omitempty"`
	Uplink bool `json:"uplink,omitempty"`
	// ProxyARP is set if the machine answers for addresses of others.
	ProxyARP bool `json:"proxyARP,omitempty"`
	// Forwarding is set if the interface forwards received packets. RPFilter is the kernel's rp_filter (ip-sysctl): 0
	// none, 1 strict, 2 loose.
	Forwarding bool `json:"forwarding,omitempty"`
	RPFilter   int  `json:"rpFilter,omitempty"`
}

// ConntrackTable is the connection tracking table.
type ConntrackTable struct {
	Count int `json:"count"`
	Max   int `json:"max"`
	// Refused is how many connections did not fit during the probe.
	Refused uint64 `json:"refused,omitempty"`
}
