// Package link reads and repairs the attributes of network interfaces over
// rtnetlink, in the network namespace of the calling thread.
//
// It handles the attributes that overlay links and tunnels have in common: alias, MTU, address, neighbors, forwarding,
// reverse path filter, ARP and offloads. Forwarding, rp_filter and arp_ignore are set with netlink instead of
// /proc/sys, which is read-only in an unprivileged pod.
//
// Out of scope: creating interfaces, routes and rules.
package link

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"go4.org/netipx"
	"golang.org/x/sys/unix"
)

// dumpAttempts bounds how often a dump is repeated that the kernel reports as interrupted by a change.
const dumpAttempts = 5

// Conn is a connection to rtnetlink in the network namespace in which it was
// opened. It is safe for concurrent use.
type Conn struct {
	// Handle is for requests whose attributes the netlink library knows.
	Handle *netlink.Handle
	socket *nl.SocketHandle
}

// Open connects to rtnetlink in the calling thread's network namespace.
func Open() (*Conn, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	// Without a group, the subscription is a plain socket.
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		handle.Close()
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	// Extended errors contain the kernel's reason. Kernels that lack them return only the number.
	_ = socket.SetExtAck(true)
	return &Conn{handle, &nl.SocketHandle{Socket: socket}}, nil
}

// Close releases the connection.
func (c *Conn) Close() {
	c.Handle.Close()
	c.socket.Close()
}

// Send sends a message about an interface, such as unix.RTM_NEWLINK, and returns the kernel's replies.
func (c *Conn) Send(typ, flags int, msg *nl.IfInfomsg, attributes ...*nl.RtAttr) ([][]byte, error) {
	r := nl.NewNetlinkRequest(typ, flags)
	r.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: c.socket}
	r.AddData(msg)
	for _, a := range attributes {
		r.AddData(a)
	}
	return r.Execute(unix.NETLINK_ROUTE, 0)
}

// Dump repeats list while the kernel reports that a change interrupted it.
func Dump[T any](list func() (T, error)) (out T, err error) {
	for range dumpAttempts {
		if out, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return out, err
}

// probeName is not a valid interface name (dev_valid_name in the kernel
// refuses the slash), so that a request with it never leaves an interface.
const probeName = "loq/probe"

// Supports reports whether the kernel supports interfaces of this kind ("vxlan", "geneve", "wireguard"). It requests
// one with an invalid name: the kernel looks for the kind, loading its module, before it refuses the name. This needs
// only CAP_NET_ADMIN in the network namespace, and leaves nothing behind.
func (c *Conn) Supports(kind string) (bool, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = probeName
	err := c.Handle.LinkAdd(&netlink.GenericLink{LinkAttrs: attrs, LinkType: kind})
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return false, nil
	case errors.Is(err, unix.EINVAL):
		return true, nil
	case err == nil:
		err = fmt.Errorf("the kernel accepted the name %q", probeName)
	}
	return false, fmt.Errorf("probe for interfaces of kind %q: %w", kind, err)
}

// Attributes below IFLA_AF_SPEC, see linux/if_link.h and linux/ip.h.
const (
	nlaTypeMask          = 0x3fff // without the flags "nested" and "byte order"
	iflaInetConf         = 1
	iflaInet6AddrGenMode = 8

	devconfForwarding = 1
	devconfProxyARP   = 3
	devconfRPFilter   = 8
	devconfARPIgnore  = 19

	// rpFilterLoose accepts a source that is routed over any interface, see
	// rp_filter in the kernel's ip-sysctl document.
	rpFilterLoose = 2
	// arpIgnoreAll disables all ARP replies, see arp_ignore there.
	arpIgnoreAll = 8
	// addrGenModeNone keeps the kernel from adding IPv6 link-local addresses.
	addrGenModeNone = 1
)

// State is an interface as the kernel has it.
type State struct {
	*netlink.LinkAttrs
	// Link has the attributes of its kind.
	Link netlink.Link

	// Forwarding, RPFilter and ARPIgnore are the interface's own settings for IPv4.
	Forwarding, RPFilter, ARPIgnore int
	// ProxyARP is true if the machine answers ARP for addresses that it routes elsewhere.
	ProxyARP bool
	// HasIPv6 is true if the interface supports IPv6.
	HasIPv6     bool
	AddrGenMode int

	Addrs []netip.Prefix
	// Neighbors are the permanent neighbors. The kernel learns and forgets others.
	Neighbors map[netip.Addr]net.HardwareAddr
}

// Kind returns the type of the interface, such as "vxlan".
func (s *State) Kind() string { return s.Link.Type() }

func (s *State) isUp() bool { return s.RawFlags&unix.IFF_UP != 0 }

// List returns the interfaces of the network namespace by name.
func (c *Conn) List() (map[string]*State, error) {
	states, err := Dump(func() ([]*State, error) { return c.links(unix.NLM_F_DUMP) })
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	byName, byIndex := make(map[string]*State, len(states)), make(map[int]*State, len(states))
	for _, s := range states {
		byName[s.Name], byIndex[s.Index] = s, s
	}
	addrs, err := Dump(func() ([]netlink.Addr, error) { return c.Handle.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		if p, ok := netipx.FromStdIPNet(a.IPNet); ok && byIndex[a.LinkIndex] != nil {
			s := byIndex[a.LinkIndex]
			s.Addrs = append(s.Addrs, p)
		}
	}
	neighbors, err := Dump(func() ([]netlink.Neigh, error) { return c.Handle.NeighList(0, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list neighbors: %w", err)
	}
	for _, n := range neighbors {
		addr, ok := netipx.FromStdIP(n.IP)
		if s := byIndex[n.LinkIndex]; ok && s != nil && n.State&netlink.NUD_PERMANENT != 0 {
			s.Neighbors[addr] = n.HardwareAddr
		}
	}
	return byName, nil
}

// Get returns one interface that was just created, without its addresses and neighbors.
func (c *Conn) Get(name string) (*State, error) {
	states, err := c.links(0, nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	if err != nil {
		return nil, fmt.Errorf("read interface %q: %w", name, err)
	}
	if len(states) != 1 {
		return nil, fmt.Errorf("read interface %q: %d replies", name, len(states))
	}
	return states[0], nil
}

func (c *Conn) links(flags int, attributes ...*nl.RtAttr) ([]*State, error) {
	msgs, err := c.Send(unix.RTM_GETLINK, flags, nl.NewIfInfomsg(unix.AF_UNSPEC), attributes...)
	if err != nil {
		return nil, err
	}
	out := make([]*State, 0, len(msgs))
	for _, m := range msgs {
		s, err := parse(m)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

func parse(m []byte) (*State, error) {
	l, err := netlink.LinkDeserialize(nil, m)
	if err != nil {
		return nil, err
	}
	s := &State{LinkAttrs: l.Attrs(), Link: l, Neighbors: map[netip.Addr]net.HardwareAddr{}}
	families := Attributes(Attributes(m[unix.SizeofIfInfomsg:])[unix.IFLA_AF_SPEC])
	// The array starts with setting number 1.
	settings := Attributes(families[unix.AF_INET])[iflaInetConf]
	s.Forwarding, s.RPFilter = devconf(settings, devconfForwarding), devconf(settings, devconfRPFilter)
	s.ARPIgnore, s.ProxyARP = devconf(settings, devconfARPIgnore), devconf(settings, devconfProxyARP) != 0
	inet6, hasIPv6 := families[unix.AF_INET6]
	s.HasIPv6 = hasIPv6
	if mode := Attributes(inet6)[iflaInet6AddrGenMode]; len(mode) > 0 {
		s.AddrGenMode = int(mode[0])
	}
	return s, nil
}

// Attributes returns the attributes of a kernel message or of an attribute, by type.
func Attributes(b []byte) map[uint16][]byte {
	attrs, _ := nl.ParseRouteAttr(b) // the kernel sends only valid ones
	out := make(map[uint16][]byte, len(attrs))
	for _, a := range attrs {
		out[a.Attr.Type&nlaTypeMask] = a.Value
	}
	return out
}

func devconf(values []byte, number int) int {
	at := (number - 1) * 4
	if len(values) < at+4 {
		return 0
	}
	return int(nl.NativeEndian().Uint32(values[at:]))
}
