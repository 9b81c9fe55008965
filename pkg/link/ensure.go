package link

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Alias is the IFLA_IFALIAS of every interface of ours.
const Alias = "liqonet"

// Want is what an interface shall be like.
type Want struct {
	// MTU in bytes.
	MTU int
	// Group is the number by which rules know interfaces of one purpose (IFLA_GROUP):
	// it is compared faster than a name. 0 is that of all others.
	Group uint32
	// MAC is nil for interfaces without one.
	MAC net.HardwareAddr
	// Address is the only one, as a /32 or /128; the zero value means none.
	Address netip.Addr
	// Neighbors are the permanent ones; others are removed. Entries that the
	// kernel learned by itself are left alone.
	Neighbors []Neighbor
	// Offloads are switched on or off; those that are not named are left alone.
	Offloads map[Offload]bool
}

// Ensure changes what differs between have and want, brings the interface up,
// and says what it changed in words ("mtu 1400", "address 10.0.0.1"). It sets
// the alias, forwarding on, rp_filter to loose and IPv6 link-local addresses
// off as well, and takes it out of a bridge. After an error a part may have been changed.
func (c *Conn) Ensure(have *State, want Want) (changed []string, err error) {
	attributes, changed := difference(have, want)
	if len(attributes) > 0 {
		if err := c.set(have.Index, false, attributes...); err != nil {
			return nil, fmt.Errorf("set %v of interface %q: %w", changed, have.Name, err)
		}
	}
	for o, on := range want.Offloads {
		switched, err := c.ensureOffload(have.Name, o, on)
		if err != nil {
			return changed, err
		}
		if switched {
			changed = append(changed, fmt.Sprintf("%s %t", o, on))
		}
	}
	if !have.Up {
		// Separately, because with the first message the kernel would make a
		// link-local address before it reads that it shall not.
		if err := c.set(have.Index, true); err != nil {
			return changed, fmt.Errorf("set interface %q up: %w", have.Name, err)
		}
		changed = append(changed, "up")
	}
	addrs, err := c.ensureAddress(have, want.Address)
	changed = append(changed, addrs...)
	if err != nil {
		return changed, err
	}
	// Both a new MAC and having been down empty the neighbour table.
	flushed := !have.Up || (want.MAC != nil && !bytes.Equal(have.MAC, want.MAC))
	neighbors, err := c.ensureNeighbors(have, want.Neighbors, flushed)
	return append(changed, neighbors...), err
}

func difference(have *State, want Want) (attributes []*nl.RtAttr, changed []string) {
	if have.Alias != Alias {
		attributes = append(attributes, nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(Alias)))
		changed = append(changed, "alias "+Alias)
	}
	if have.MTU != want.MTU {
		attributes = append(attributes, nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(want.MTU))))
		changed = append(changed, fmt.Sprintf("mtu %d", want.MTU))
	}
	if have.Group != want.Group {
		attributes = append(attributes, nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(want.Group)))
		changed = append(changed, fmt.Sprintf("group %d", want.Group))
	}
	if want.MAC != nil && !bytes.Equal(have.MAC, want.MAC) {
		attributes = append(attributes, nl.NewRtAttr(unix.IFLA_ADDRESS, want.MAC))
		changed = append(changed, "mac") // it is a secret of the overlay
	}
	if have.Master != 0 {
		attributes = append(attributes, nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(0)))
		changed = append(changed, "no master")
	}
	families := nl.NewRtAttr(unix.IFLA_AF_SPEC|unix.NLA_F_NESTED, nil)
	if have.Forwarding != 1 || have.RPFilter != rpFilterLoose {
		conf := families.AddRtAttr(unix.AF_INET|unix.NLA_F_NESTED, nil).AddRtAttr(iflaInetConf|unix.NLA_F_NESTED, nil)
		if have.Forwarding != 1 {
			conf.AddRtAttr(devconfForwarding, nl.Uint32Attr(1))
			changed = append(changed, "forwarding 1")
		}
		if have.RPFilter != rpFilterLoose {
			conf.AddRtAttr(devconfRPFilter, nl.Uint32Attr(rpFilterLoose))
			changed = append(changed, "rp_filter 2")
		}
	}
	if have.HasIPv6 && have.AddrGenMode != addrGenModeNone {
		families.AddRtAttr(unix.AF_INET6|unix.NLA_F_NESTED, nil).
			AddRtAttr(iflaInet6AddrGenMode, nl.Uint8Attr(addrGenModeNone))
		changed = append(changed, "addrgenmode none")
	}
	if families.Len() > unix.SizeofRtAttr {
		attributes = append(attributes, families)
	}
	return attributes, changed
}

func (c *Conn) set(index int, up bool, attributes ...*nl.RtAttr) error {
	req := c.NewRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	if up {
		msg.Flags, msg.Change = unix.IFF_UP, unix.IFF_UP
	}
	req.AddData(msg)
	for _, a := range attributes {
		req.AddData(a)
	}
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

func (c *Conn) ensureAddress(have *State, want netip.Addr) (changed []string, err error) {
	prefix := netip.PrefixFrom(want, want.BitLen())
	// The wanted one first, so that a route with it as source can be set
	// whatever happens to the others.
	if want.IsValid() && !slices.Contains(have.Addrs, prefix) {
		addr := &netlink.Addr{IPNet: ipNet(prefix)}
		if want.Is6() {
			// Nobody else can have it, and until the kernel has made sure of that, no
			// route could have it as its source.
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := c.Handle.AddrReplace(have.Link, addr); err != nil {
			return nil, fmt.Errorf("add address %s to interface %q: %w", prefix, have.Name, err)
		}
		changed = append(changed, "address "+want.String())
	}
	for _, a := range have.Addrs {
		if a == prefix {
			continue
		}
		if err := c.Handle.AddrDel(have.Link, &netlink.Addr{IPNet: ipNet(a)}); err != nil {
			return changed, fmt.Errorf("remove address %s from interface %q: %w", a, have.Name, err)
		}
		changed = append(changed, "no address "+a.String())
	}
	return changed, nil
}

func (c *Conn) ensureNeighbors(have *State, want []Neighbor, flushed bool) (changed []string, err error) {
	present := make(map[netip.Addr]Neighbor, len(have.Neighbors))
	if !flushed {
		for _, n := range have.Neighbors {
			present[n.Addr] = n
		}
	}
	for _, n := range want {
		p, ok := present[n.Addr]
		delete(present, n.Addr)
		if ok && p.Permanent && bytes.Equal(p.MAC, n.MAC) {
			continue
		}
		err := c.Handle.NeighSet(&netlink.Neigh{
			LinkIndex: have.Index, State: netlink.NUD_PERMANENT, IP: n.Addr.AsSlice(), HardwareAddr: n.MAC,
		})
		if err != nil {
			return changed, fmt.Errorf("add neighbour %s to interface %q: %w", n.Addr, have.Name, err)
		}
		changed = append(changed, "neighbour "+n.Addr.String())
	}
	for _, n := range present {
		if !n.Permanent {
			continue
		}
		err := c.Handle.NeighDel(&netlink.Neigh{LinkIndex: have.Index, IP: n.Addr.AsSlice()})
		if err != nil {
			return changed, fmt.Errorf("remove neighbour %s from interface %q: %w", n.Addr, have.Name, err)
		}
		changed = append(changed, "no neighbour "+n.Addr.String())
	}
	return changed, nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
