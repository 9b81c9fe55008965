package link

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Attributes below IFLA_AF_SPEC, see linux/if_link.h and linux/ip.h.
const (
	nlaTypeMask          = 0x3fff // without the flags "nested" and "byte order"
	iflaInetConf         = 1
	iflaInet6AddrGenMode = 8

	devconfForwarding = 1
	devconfRPFilter   = 8

	// rpFilterLoose accepts a source that is routed over any interface, see
	// rp_filter in the kernel's ip-sysctl document.
	rpFilterLoose = 2
	// addrGenModeNone keeps the kernel from making IPv6 link-local addresses.
	addrGenModeNone = 1
)

// Neighbor is an entry of the neighbour table of one interface.
type Neighbor struct {
	Addr      netip.Addr
	MAC       net.HardwareAddr
	Permanent bool
}

// State is an interface as the kernel has it.
type State struct {
	Link  netlink.Link
	Index int
	Name  string
	Kind  string
	Alias string
	MTU   int
	MAC   net.HardwareAddr
	Up    bool
	Group uint32
	// Master is the index of the interface that this one is a port of, or 0.
	Master int

	// Forwarding and RPFilter are the interface's own settings for IPv4.
	Forwarding, RPFilter int
	// HasIPv6 says that the interface has IPv6 at all.
	HasIPv6     bool
	AddrGenMode int

	Addrs     []netip.Prefix
	Neighbors []Neighbor
}

// List returns the interfaces of the network namespace by name.
func (c *Conn) List() (map[string]*State, error) {
	states, err := Dump(c.links)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	byIndex := make(map[int]*State, len(states))
	for _, s := range states {
		byIndex[s.Index] = s
	}
	addrs, err := Dump(func() ([]netlink.Addr, error) { return c.Handle.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		s, ip := byIndex[a.LinkIndex], a.IP
		addr, ok := addrOf(ip)
		if s == nil || !ok {
			continue
		}
		bits, _ := a.Mask.Size()
		s.Addrs = append(s.Addrs, netip.PrefixFrom(addr, bits))
	}
	neighbors, err := Dump(func() ([]netlink.Neigh, error) { return c.Handle.NeighList(0, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list neighbours: %w", err)
	}
	for _, n := range neighbors {
		s := byIndex[n.LinkIndex]
		addr, ok := addrOf(n.IP)
		if s == nil || !ok {
			continue
		}
		s.Neighbors = append(s.Neighbors, Neighbor{
			Addr: addr, MAC: n.HardwareAddr, Permanent: n.State&netlink.NUD_PERMANENT != 0,
		})
	}
	return states, nil
}

func (c *Conn) links() (map[string]*State, error) {
	req := c.NewRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil {
		return nil, err
	}
	out := make(map[string]*State, len(msgs))
	for _, m := range msgs {
		s, err := parse(m)
		if err != nil {
			return nil, err
		}
		out[s.Name] = s
	}
	return out, nil
}

func parse(m []byte) (*State, error) {
	l, err := netlink.LinkDeserialize(nil, m)
	if err != nil {
		return nil, err
	}
	a := l.Attrs()
	s := &State{
		Link: l, Index: a.Index, Name: a.Name, Kind: l.Type(), Alias: a.Alias, MTU: a.MTU,
		MAC: a.HardwareAddr, Up: a.RawFlags&unix.IFF_UP != 0, Group: a.Group, Master: a.MasterIndex,
	}
	attrs, err := nl.ParseRouteAttr(m[unix.SizeofIfInfomsg:])
	if err != nil {
		return nil, err
	}
	for _, attr := range attrs {
		if attr.Attr.Type&nlaTypeMask != unix.IFLA_AF_SPEC {
			continue
		}
		if err := s.parseFamilies(attr.Value); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *State) parseFamilies(b []byte) error {
	families, err := nl.ParseRouteAttr(b)
	if err != nil {
		return err
	}
	for _, f := range families {
		attrs, err := nl.ParseRouteAttr(f.Value)
		if err != nil {
			return err
		}
		family := int(f.Attr.Type & nlaTypeMask)
		s.HasIPv6 = s.HasIPv6 || family == unix.AF_INET6
		for _, a := range attrs {
			switch typ := a.Attr.Type & nlaTypeMask; {
			case family == unix.AF_INET && typ == iflaInetConf:
				// An array that starts with the setting numbered 1.
				s.Forwarding = devconf(a.Value, devconfForwarding)
				s.RPFilter = devconf(a.Value, devconfRPFilter)
			case family == unix.AF_INET6 && typ == iflaInet6AddrGenMode && len(a.Value) > 0:
				s.AddrGenMode = int(a.Value[0])
			}
		}
	}
	return nil
}

func devconf(values []byte, number int) int {
	at := (number - 1) * 4
	if len(values) < at+4 {
		return 0
	}
	return int(nl.NativeEndian().Uint32(values[at:]))
}

// Get returns one interface that was just made: its addresses and neighbours
// are not read.
func (c *Conn) Get(name string) (*State, error) {
	req := c.NewRequest(unix.RTM_GETLINK, 0)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil {
		return nil, fmt.Errorf("read interface %q: %w", name, err)
	}
	if len(msgs) != 1 {
		return nil, fmt.Errorf("read interface %q: %d answers", name, len(msgs))
	}
	return parse(msgs[0])
}
