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
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"syscall"
	"unsafe"

	"github.com/samber/lo"
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

// IgnoreError ignores the error that means that someone else has removed the object.
func IgnoreError(err, gone error) error {
	if errors.Is(err, gone) {
		return nil
	}
	return err
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
	byName := lo.KeyBy(states, func(s *State) string { return s.Name })
	byIndex := lo.KeyBy(states, func(s *State) int { return s.Index })
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
	return lo.MapErr(msgs, parse)
}

func parse(m []byte, _ int) (*State, error) {
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
	return lo.SliceToMap(attrs, func(a syscall.NetlinkRouteAttr) (uint16, []byte) { return a.Attr.Type & nlaTypeMask, a.Value })
}

func devconf(values []byte, number int) int {
	at := (number - 1) * 4
	if len(values) < at+4 {
		return 0
	}
	return int(nl.NativeEndian().Uint32(values[at:]))
}

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

func (o Offload) String() string { return map[Offload]string{TSO: "tso", GRO: "gro"}[o] }

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
