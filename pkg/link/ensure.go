package link

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"unsafe"

	"github.com/samber/lo"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"go4.org/netipx"
	"golang.org/x/sys/unix"
)

// Alias is the IFLA_IFALIAS of every interface of ours.
const Alias = "liqonet"

// Want is the wanted state of an interface.
type Want struct {
	// MTU in bytes.
	MTU int
	// Group identifies interfaces of one purpose in rules (IFLA_GROUP): it is compared faster than a name. All other
	// interfaces have group 0.
	Group uint32
	// MAC is nil for interfaces without one.
	MAC net.HardwareAddr
	// Address is the only address, as a /32. The zero value means none.
	Address netip.Addr
	// Neighbors are the permanent neighbors; others are removed. Entries that the kernel has learned are left alone.
	Neighbors map[netip.Addr]net.HardwareAddr
	// Offloads are switched on or off. Those that are not in the map are left alone.
	Offloads map[Offload]bool
}

// Ensure changes the differences between have and want, brings the interface up, and adds a description of each change
// ("mtu 1400", "address 10.0.0.1") to steps. It also sets the alias, enables forwarding, sets rp_filter to loose,
// disables ARP replies and IPv6 link-local addresses, and takes the interface out of a bridge. After an error, it may
// have made a part of the changes.
//
// The other end of a link is a permanent neighbor, so no ARP is needed. ARP requests need no secret, and would add
// their senders as neighbors: the kernel records those it replies to.
func (c *Conn) Ensure(steps *Steps, have *State, want Want) {
	if attributes, changed := difference(have, want); len(attributes) > 0 {
		steps.Do(fmt.Sprintf("set %v of interface %q", changed, have.Name),
			func() error { return c.set(have.Index, false, attributes...) }, changed...)
	}
	for o, on := range want.Offloads {
		c.ensureOffload(steps, have.Name, o, on)
	}
	if !have.isUp() {
		// Separately, because with the first message the kernel would create a link-local address before it reads the
		// setting against it.
		steps.Do(fmt.Sprintf("set interface %q up", have.Name), func() error { return c.set(have.Index, true) }, "up")
	}
	c.ensureAddress(steps, have, want.Address)
	// A new MAC empties the neighbor table, and so does having been down.
	present := lo.Ternary(have.isUp() && !differs(have.HardwareAddr, want.MAC), have.Neighbors, nil)
	c.ensureNeighbors(steps, have, present, want.Neighbors)
}

// Steps run one after the other until one fails.
type Steps struct {
	// Changed describes the changes.
	Changed []string
	Err     error
}

// Do runs a step, unless an earlier one has failed. The first text describes the step in the error.
func (s *Steps) Do(what string, step func() error, changed ...string) {
	if s.Err != nil {
		return
	}
	if err := step(); err != nil {
		s.Err = fmt.Errorf("%s: %w", what, err)
		return
	}
	s.Changed = append(s.Changed, changed...)
}

// differs reports whether a MAC address has to be set.
func differs(have, want net.HardwareAddr) bool { return want != nil && !bytes.Equal(have, want) }

func difference(have *State, want Want) (attributes []*nl.RtAttr, changed []string) {
	change := func(needed bool, attribute int, value []byte, what string) {
		if needed {
			attributes, changed = append(attributes, nl.NewRtAttr(attribute, value)), append(changed, what)
		}
	}
	change(have.Alias != Alias, unix.IFLA_IFALIAS, []byte(Alias), "alias "+Alias)
	change(have.MTU != want.MTU, unix.IFLA_MTU, nl.Uint32Attr(uint32(want.MTU)), fmt.Sprintf("mtu %d", want.MTU))
	change(have.Group != want.Group, unix.IFLA_GROUP, nl.Uint32Attr(want.Group), fmt.Sprintf("group %d", want.Group))
	// The address itself is a secret of the overlay.
	change(differs(have.HardwareAddr, want.MAC), unix.IFLA_ADDRESS, want.MAC, "mac")
	change(have.MasterIndex != 0, unix.IFLA_MASTER, nl.Uint32Attr(0), "no master")
	families := nl.NewRtAttr(unix.IFLA_AF_SPEC|unix.NLA_F_NESTED, nil)
	settings := nl.NewRtAttr(iflaInetConf|unix.NLA_F_NESTED, nil)
	for _, s := range []struct {
		name               string
		number, have, want int
	}{
		{"forwarding", devconfForwarding, have.Forwarding, 1},
		{"rp_filter", devconfRPFilter, have.RPFilter, rpFilterLoose},
		{"arp_ignore", devconfARPIgnore, have.ARPIgnore, arpIgnoreAll},
	} {
		if s.have != s.want {
			settings.AddRtAttr(s.number, nl.Uint32Attr(uint32(s.want)))
			changed = append(changed, fmt.Sprintf("%s %d", s.name, s.want))
		}
	}
	if settings.Len() > unix.SizeofRtAttr {
		families.AddRtAttr(unix.AF_INET|unix.NLA_F_NESTED, nil).AddChild(settings)
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
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	if up {
		msg.Flags, msg.Change = unix.IFF_UP, unix.IFF_UP
	}
	_, err := c.Send(unix.RTM_SETLINK, unix.NLM_F_ACK, msg, attributes...)
	return err
}

func (c *Conn) ensureAddress(steps *Steps, have *State, want netip.Addr) {
	prefix := netip.PrefixFrom(want, want.BitLen())
	// First the wanted address, so that a route with it as source can be set even if removing the others fails.
	if want.IsValid() && !slices.Contains(have.Addrs, prefix) {
		addr := &netlink.Addr{IPNet: netipx.PrefixIPNet(prefix)}
		steps.Do(fmt.Sprintf("add address %s to interface %q", prefix, have.Name),
			func() error { return c.Handle.AddrReplace(have.Link, addr) }, "address "+want.String())
	}
	for _, a := range lo.Without(have.Addrs, prefix) {
		addr := &netlink.Addr{IPNet: netipx.PrefixIPNet(a)}
		steps.Do(fmt.Sprintf("remove address %s from interface %q", a, have.Name),
			func() error { return c.Handle.AddrDel(have.Link, addr) }, "no address "+a.String())
	}
}

func (c *Conn) ensureNeighbors(steps *Steps, have *State, present, want map[netip.Addr]net.HardwareAddr) {
	neighbor := func(addr netip.Addr) *netlink.Neigh {
		return &netlink.Neigh{
			LinkIndex: have.Index, State: netlink.NUD_PERMANENT, IP: addr.AsSlice(), HardwareAddr: want[addr],
		}
	}
	for addr, mac := range want {
		if !bytes.Equal(present[addr], mac) {
			steps.Do(fmt.Sprintf("add neighbor %s to interface %q", addr, have.Name),
				func() error { return c.Handle.NeighSet(neighbor(addr)) }, "neighbor "+addr.String())
		}
	}
	for addr := range present {
		if want[addr] == nil {
			steps.Do(fmt.Sprintf("remove neighbor %s from interface %q", addr, have.Name),
				func() error { return c.Handle.NeighDel(neighbor(addr)) }, "no neighbor "+addr.String())
		}
	}
}

// Offload is what an interface, or the kernel on its behalf, does with many packets at once. Its value is ethtool's
// request to read it; the request to set it has the next number.
type Offload uint32

const (
	// TSO sends TCP segments of up to 64 KiB: everything that ethtool calls tcp-segmentation-offload.
	TSO Offload = unix.ETHTOOL_GTSO
	// GRO is generic-receive-offload.
	GRO Offload = unix.ETHTOOL_GGRO
)

func (o Offload) String() string {
	return map[Offload]string{TSO: "tso", GRO: "gro"}[o]
}

// ensureOffload switches an offload unless it is as wanted. It needs only CAP_NET_ADMIN in the interface's namespace.
func (c *Conn) ensureOffload(steps *Steps, name string, o Offload, on bool) {
	have, want := uint32(0), lo.Ternary[uint32](on, 1, 0)
	steps.Do(fmt.Sprintf("read %s of interface %q", o, name), func() (err error) {
		have, err = c.ethtool(name, uint32(o), 0)
		return err
	})
	if have != want {
		steps.Do(fmt.Sprintf("switch %s of interface %q", o, name), func() error {
			_, err := c.ethtool(name, uint32(o)+1, want)
			return err
		}, fmt.Sprintf("%s %t", o, on))
	}
}

// ethtool sends a request with one value, which the kernel may replace (struct ethtool_value and struct ifreq; see
// netdevice(7)). Any socket of the namespace works.
func (c *Conn) ethtool(name string, request, value uint32) (uint32, error) {
	arg := struct{ request, value uint32 }{request, value}
	ifreq := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte // the rest of the union
	}{data: unsafe.Pointer(&arg)}
	copy(ifreq.name[:unix.IFNAMSIZ-1], name)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(c.socket.Socket.GetFd()), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&ifreq)))
	runtime.KeepAlive(&arg)
	if errno != 0 {
		return 0, errno
	}
	return arg.value, nil
}
