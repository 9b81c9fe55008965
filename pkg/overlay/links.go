package overlay

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/samber/lo"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/link"
	"github.com/liqonet/liqonet/pkg/wire"
)

func (a *applier) readLinks() (err error) {
	if a.links, err = a.kernel.conn.List(); err != nil {
		return err
	}
	return a.readForwarding()
}

// isOurs reports whether a link is ours. The alias can only be set after an interface was created, so a link without it
// is also ours if it uses our port. A link that someone has renamed keeps both.
func isOurs(s *link.State) bool {
	usesPort := parametersOf(s).port == int(Port)
	switch {
	case !strings.HasPrefix(s.Name, wire.LinkPrefix):
		return usesPort && s.Alias == link.Alias
	case s.Alias != "":
		return s.Alias == link.Alias
	}
	return usesPort
}

func (a *applier) addLinks() {
	a.removeConflicting()
	for _, want := range a.want.Links {
		have := a.links[want.Name]
		if have != nil && !isOurs(have) {
			a.failLink(want.Name, fmt.Errorf("link %q: there is an interface of this name that is not ours (kind %q, alias %q)",
				want.Name, have.Kind(), have.Alias))
			delete(a.links, want.Name) // no route may use it
			continue
		}
		if err := a.addLink(want, have); err != nil {
			// A link that fails does not keep the others from working.
			a.failLink(want.Name, err)
		}
	}
}

func (a *applier) addLink(want Link, have *link.State) (err error) {
	var steps link.Steps
	added := have == nil
	switch {
	case added:
		if err := a.kernel.send(want, false); err != nil {
			return fmt.Errorf("add %s: %w", want.describe(), err)
		}
		if have, err = a.kernel.conn.Get(want.Name); err != nil {
			return err
		}
		a.links[want.Name] = have
	case parametersOf(have).remote != want.Remote:
		steps.Do(fmt.Sprintf("change remote of link %q to %s", want.Name, want.Remote),
			func() error { return a.kernel.send(want, true) }, "remote "+want.Remote.String())
	}
	a.kernel.conn.Ensure(&steps, have, link.Want{
		MTU: want.MTU, Group: Group, MAC: want.LocalMAC[:], Address: want.Local,
		Neighbors: map[netip.Addr]net.HardwareAddr{want.Peer: want.PeerMAC[:]},
		// The kernel aggregates packets here, once for all later processing.
		Offloads: map[link.Offload]bool{link.GRO: true},
	})
	if want.Kind == VXLAN && !added {
		a.ensureForwarding(&steps, want, have)
	}
	if added {
		a.changed("added %s", want.describe())
	} else if len(steps.Changed) > 0 {
		a.changed("changed link %s: %s", want.Name, strings.Join(steps.Changed, ", "))
	}
	return steps.Err
}

func (l Link) describe() string {
	return fmt.Sprintf("link %s (%s id %d remote %s)", l.Name, l.Kind, l.VNI, l.Remote)
}

// removeConflicting deletes our links that conflict with a wanted one: they have its identifier, or use its port and
// are of another kind. A link with a wanted name is deleted if it cannot be changed into the wanted one.
func (a *applier) removeConflicting() {
	taken, kind := make(map[int]bool, len(a.want.Links)), ""
	for _, w := range a.want.Links {
		taken[int(w.VNI)], kind = true, string(w.Kind)
	}
	for name, have := range a.links {
		if !isOurs(have) {
			continue
		}
		w, isWanted := a.wantedLinks[name]
		p := parametersOf(have)
		conflicts := kind != "" && p.port == int(Port) && (taken[p.vni] || kind != have.Kind())
		if isWanted && !changeable(w, have) || !isWanted && conflicts {
			a.removeLink(have)
		}
	}
}

func (a *applier) removeLinks() {
	for name, have := range a.links {
		if _, wanted := a.wantedLinks[name]; isOurs(have) && !wanted {
			a.removeLink(have)
		}
	}
}

func (a *applier) removeLink(have *link.State) {
	if a.removed(a.kernel.conn.Handle.LinkDel(have.Link), "link %s", have.Name) {
		delete(a.links, have.Name)
	}
}

// parameters identify a link and its remote end.
type parameters struct {
	vni, port int
	remote    netip.Addr
}

func parametersOf(s *link.State) parameters {
	switch l := s.Link.(type) {
	case *netlink.Vxlan:
		return parameters{l.VxlanId, l.Port, addrFrom(l.Group)}
	case *netlink.Geneve:
		return parameters{int(l.ID), int(l.Dport), addrFrom(l.Remote)}
	}
	return parameters{}
}

// changeable reports whether have can become want without being re-created. The kernel can change the remote address of
// both kinds, but not the other parameters that matter. With a foreign source address or TTL, possibly no packet
// arrives.
func changeable(want Link, have *link.State) bool {
	p := parametersOf(have)
	if have.Kind() != string(want.Kind) || p.vni != int(want.VNI) || p.port != int(Port) ||
		!p.remote.Is4() {
		return false
	}
	switch l := have.Link.(type) {
	case *netlink.Vxlan:
		return !l.Learning && !l.FlowBased && !l.Proxy && !l.GBP && !l.UDP6ZeroCSumRx && l.VtepDevIndex == 0 &&
			l.SrcAddr == nil && l.TTL == 0 && l.TOS == 0
	case *netlink.Geneve:
		return !l.FlowBased && l.Ttl == 0 && l.Tos == 0 && l.Df == netlink.GENEVE_DF_UNSET
	}
	return false
}

// send creates a link or, with change, sets the remote address of an existing one. The kernel changes it without a gap
// for either kind.
func (k *Kernel) send(l Link, change bool) error {
	flags := unix.NLM_F_ACK
	remote, id, port := nl.IFLA_GENEVE_REMOTE, nl.IFLA_GENEVE_ID, nl.IFLA_GENEVE_PORT
	if l.Kind == VXLAN {
		remote, id, port = nl.IFLA_VXLAN_GROUP, nl.IFLA_VXLAN_ID, nl.IFLA_VXLAN_PORT
	}
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated(string(l.Kind)))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	data.AddRtAttr(remote, l.Remote.AsSlice())
	attributes := []*nl.RtAttr{nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(l.Name)), info}
	// Geneve adjusts its MTU to a new remote address unless the request has one, while VXLAN refuses a change with an
	// MTU.
	if !change || l.Kind == Geneve {
		attributes = append(attributes, nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(l.MTU))))
	}
	if !change {
		flags |= unix.NLM_F_CREATE | unix.NLM_F_EXCL
		attributes = append(attributes, nl.NewRtAttr(unix.IFLA_ADDRESS, l.LocalMAC[:]))
		data.AddRtAttr(id, nl.Uint32Attr(l.VNI))
		data.AddRtAttr(port, nl.BEUint16Attr(Port))
		if l.Kind == VXLAN {
			// There is only one other end, and its MAC is known.
			data.AddRtAttr(nl.IFLA_VXLAN_LEARNING, nl.Uint8Attr(0))
		}
	}
	_, err := k.conn.Send(unix.RTM_NEWLINK, flags, nl.NewIfInfomsg(unix.AF_UNSPEC), attributes...)
	return err
}

// A VXLAN link sends according to its forwarding table, not to its own remote address. That address only becomes the
// first entry, for all MAC addresses, when the link is created.

// readForwarding reads the forwarding tables if VXLAN links are wanted.
func (a *applier) readForwarding() error {
	if lo.NoneBy(a.want.Links, func(l Link) bool { return l.Kind == VXLAN }) {
		return nil
	}
	entries, err := link.Dump(func() ([]netlink.Neigh, error) {
		return a.kernel.conn.Handle.NeighList(0, unix.AF_BRIDGE)
	})
	if err != nil {
		return fmt.Errorf("list forwarding tables: %w", err)
	}
	own := lo.Filter(entries, func(e netlink.Neigh, _ int) bool { return e.Flags&netlink.NTF_SELF != 0 })
	a.forwarding = lo.GroupBy(own, func(e netlink.Neigh) int { return e.LinkIndex })
	return nil
}

// ensureForwarding makes a VXLAN link that was not just created send everything to its remote address. A change of the
// link's own remote address has to come first, because the kernel also changes the table then.
func (a *applier) ensureForwarding(steps *link.Steps, want Link, have *link.State) {
	all, remote := make(net.HardwareAddr, 6), parametersOf(have).remote
	entries := a.forwarding[have.Index]
	wanted := func(e netlink.Neigh) bool {
		return slices.Equal(e.HardwareAddr, all) && addrFrom(e.IP) == want.Remote && e.VNI == 0
	}
	if remote == want.Remote && !slices.ContainsFunc(entries, wanted) {
		// Appended, because the kernel cannot replace such entries.
		entry := &netlink.Neigh{
			LinkIndex: have.Index, Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT | netlink.NUD_NOARP, Flags: netlink.NTF_SELF,
			HardwareAddr: all, IP: want.Remote.AsSlice(),
		}
		steps.Do(fmt.Sprintf("add forwarding to %s to link %q", want.Remote, want.Name),
			func() error { return a.kernel.conn.Handle.NeighAppend(entry) }, "forwarding to "+want.Remote.String())
	}
	for _, e := range entries {
		// The kernel has removed the entry of the former remote address.
		gone := remote != want.Remote && slices.Equal(e.HardwareAddr, all) && addrFrom(e.IP) == remote
		if wanted(e) || gone {
			continue
		}
		e.Family = unix.AF_BRIDGE
		what := fmt.Sprintf("forwarding of %s to %s", e.HardwareAddr, e.IP)
		steps.Do(fmt.Sprintf("remove %s from link %q", what, want.Name),
			func() error { return a.kernel.conn.Handle.NeighDel(&e) }, "no "+what)
	}
}
