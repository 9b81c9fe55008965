package overlay

import (
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/link"
)

// A VXLAN link sends by its forwarding table and not by its own remote address:
// that makes only the first entry, for all MAC addresses, when the link is made.

// readForwarding reads the forwarding tables of our VXLAN links.
func (a *applier) readForwarding() error {
	a.forwarding = map[int][]netlink.Neigh{}
	for _, l := range a.links {
		if l.Kind() == string(VXLAN) && isOurs(l) {
			a.forwarding[l.Index] = nil
		}
	}
	if len(a.forwarding) == 0 {
		return nil
	}
	entries, err := link.Dump(func() ([]netlink.Neigh, error) {
		return a.kernel.conn.Handle.NeighList(0, unix.AF_BRIDGE)
	})
	if err != nil {
		return fmt.Errorf("list forwarding tables: %w", err)
	}
	for _, e := range entries {
		if _, ours := a.forwarding[e.LinkIndex]; ours && e.Flags&netlink.NTF_SELF != 0 {
			a.forwarding[e.LinkIndex] = append(a.forwarding[e.LinkIndex], e)
		}
	}
	return nil
}

// ensureForwarding has all that a link sends go to its remote address, and says
// what it changed in words. A change of the link's own remote address, which the
// kernel takes over into the table, has to come before.
func (a *applier) ensureForwarding(want Link, have *link.State) (changed []string, err error) {
	all := make(net.HardwareAddr, 6)
	entries, ok := a.forwarding[have.Index]
	if !ok {
		return nil, nil // made just now
	}
	wanted := func(e netlink.Neigh) bool {
		return slices.Equal(e.HardwareAddr, all) && addrFrom(e.IP) == want.Remote && e.VNI == 0
	}
	if !slices.ContainsFunc(entries, wanted) && sameRemote(want, have) {
		// Appended, because the kernel replaces none of this kind.
		err := a.kernel.conn.Handle.NeighAppend(&netlink.Neigh{
			LinkIndex: have.Index, Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT | netlink.NUD_NOARP, Flags: netlink.NTF_SELF,
			HardwareAddr: all, IP: want.Remote.AsSlice(),
		})
		if err != nil {
			return nil, fmt.Errorf("add forwarding to %s to link %q: %w", want.Remote, want.Name, err)
		}
		changed = append(changed, "forwarding to "+want.Remote.String())
	}
	_, _, remote := parameters(have)
	for _, e := range entries {
		// The one of the former remote address has gone with that.
		gone := !sameRemote(want, have) && slices.Equal(e.HardwareAddr, all) && addrFrom(e.IP) == addrFrom(remote)
		if wanted(e) || gone {
			continue
		}
		e.Family = unix.AF_BRIDGE
		if err := a.kernel.conn.Handle.NeighDel(&e); err != nil {
			return changed, fmt.Errorf("remove forwarding of %s to %s from link %q: %w", e.HardwareAddr, e.IP, want.Name, err)
		}
		changed = append(changed, fmt.Sprintf("no forwarding of %s to %s", e.HardwareAddr, e.IP))
	}
	return changed, nil
}
