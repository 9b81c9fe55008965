package probe

import (
	"net/netip"
	"time"
)

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
	Release string    `json:"release"`
	Time    time.Time `json:"time"`
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
	// Routes is how many there are in our table, RouteChanges how often one of them came or went meanwhile.
	Routes       int      `json:"routes"`
	RouteChanges int      `json:"routeChanges,omitempty"`
	Changed      []string `json:"changed,omitempty"`
	// ForeignRules are rules and routes of others that use our table or our priority.
	ForeignRules []string `json:"foreignRules,omitempty"`
	// PortTaken says who else has our UDP port.
	PortTaken string `json:"portTaken,omitempty"`
	// Drops are our counters that have grown meanwhile, by name.
	Drops map[string]uint64 `json:"drops,omitempty"`

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
	// Refused is how many connections found no room meanwhile.
	Refused uint64 `json:"refused,omitempty"`
}
