package link

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"go4.org/netipx"
	"golang.org/x/sys/unix"
)

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
	// arpIgnoreAll answers no ARP at all, see arp_ignore there.
	arpIgnoreAll = 8
	// addrGenModeNone keeps the kernel from making IPv6 link-local addresses.
	addrGenModeNone = 1
)

// State is an interface as the kernel has it.
type State struct {
	*netlink.LinkAttrs
	// Link has what is special to its kind.
	Link netlink.Link

	// Forwarding, RPFilter and ARPIgnore are the interface's own settings for IPv4.
	Forwarding, RPFilter, ARPIgnore int
	// ProxyARP says that the machine answers for what it routes elsewhere.
	ProxyARP bool
	// HasIPv6 says that the interface has IPv6 at all.
	HasIPv6     bool
	AddrGenMode int

	Addrs []netip.Prefix
	// Neighbors are the permanent ones; others the kernel learns and forgets.
	Neighbors map[netip.Addr]net.HardwareAddr
}

// Kind is what the interface was made as, for instance "vxlan".
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
		return nil, fmt.Errorf("list neighbours: %w", err)
	}
	for _, n := range neighbors {
		addr, ok := netipx.FromStdIP(n.IP)
		if s := byIndex[n.LinkIndex]; ok && s != nil && n.State&netlink.NUD_PERMANENT != 0 {
			s.Neighbors[addr] = n.HardwareAddr
		}
	}
	return byName, nil
}

// Get returns one interface that was just made: its addresses and neighbours
// are not read.
func (c *Conn) Get(name string) (*State, error) {
	states, err := c.links(0, nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	if err != nil {
		return nil, fmt.Errorf("read interface %q: %w", name, err)
	}
	if len(states) != 1 {
		return nil, fmt.Errorf("read interface %q: %d answers", name, len(states))
	}
	return states[0], nil
}

func (c *Conn) links(flags int, attributes ...*nl.RtAttr) ([]*State, error) {
	req := c.NewRequest(unix.RTM_GETLINK, flags)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	for _, a := range attributes {
		req.AddData(a)
	}
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
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
	// An array that starts with the setting numbered 1.
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

// Attributes are those of a message of the kernel, or of an attribute, by their types.
func Attributes(b []byte) map[uint16][]byte {
	attrs, _ := nl.ParseRouteAttr(b) // the kernel makes no others
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
