package tunnel

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/link"
)

const kindVeth = "veth"

// ensureLink ensures the attributes of the interface, and the pair that aggregates its packets.
func (d *Device) ensureLink(steps *link.Steps, c Config) error {
	links, err := d.conn.List()
	if err != nil {
		return err
	}
	l := links[d.name]
	if l == nil {
		return errors.New("the interface is gone")
	}
	d.conn.Ensure(steps, l, link.Want{MTU: c.MTU, Group: Group, Address: c.Address})
	return ensureReceiver(steps, d.conn, links, c)
}

// ensureReceiver ensures the pair of interfaces that aggregates the packets of the tunnel and the overlay.
//
// wireguard-go requests aggregated packets from the kernel (UDP_GRO), and relies on them: it reads two messages at a
// time, which contain 128 packets with aggregation and two without. Packets from other machines arrive one by one,
// unless an interface of this namespace aggregates them. So do the overlay's packets if the network plugin has a
// bridge, which splits aggregated encapsulated packets. The pod's own interface cannot aggregate: a veth does not
// aggregate packets from an end with segmentation offload (veth_skb_is_eligible_for_gro in the kernel). So the sending
// end of this pair has it disabled.
func ensureReceiver(steps *link.Steps, conn *link.Conn, links map[string]*link.State, c Config) (err error) {
	underlay := links[c.Underlay]
	if underlay == nil || len(underlay.HardwareAddr) != 6 {
		removeReceiver(steps, conn, links)
		return steps.Err
	}
	entry, receive := links[EntryInterface], links[ReceiveInterface]
	for _, l := range []*link.State{entry, receive} {
		if l != nil && !isReceiver(l) {
			return cmp.Or(steps.Err, foreignInterface(l))
		}
	}
	if entry == nil || receive == nil {
		removeReceiver(steps, conn, links)
		steps.Do(fmt.Sprintf("add interfaces %q and %q", EntryInterface, ReceiveInterface), func() (err error) {
			entry, receive, err = addReceiver(conn)
			return err
		})
		if steps.Err != nil || entry == nil {
			return steps.Err
		}
	}
	// The packets pass the loose reverse path filter because of the address. The MAC is their destination.
	conn.Ensure(steps, receive, link.Want{
		MTU: underlay.MTU, Group: ReceiveGroup, MAC: underlay.HardwareAddr, Address: c.Address,
		Offloads: map[link.Offload]bool{link.GRO: true},
	})
	conn.Ensure(steps, entry, link.Want{MTU: underlay.MTU, Offloads: map[link.Offload]bool{link.TSO: false}})
	return steps.Err
}

// addReceiver returns nil if the kernel does not support such interfaces.
func addReceiver(conn *link.Conn) (entry, receive *link.State, err error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = EntryInterface
	err = conn.Handle.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: ReceiveInterface})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	links, err := conn.List()
	return links[EntryInterface], links[ReceiveInterface], err
}

// removeReceiver removes the pair, or the remaining end.
func removeReceiver(steps *link.Steps, conn *link.Conn, links map[string]*link.State) {
	for _, name := range []string{EntryInterface, ReceiveInterface} {
		l := links[name]
		if l == nil || !isReceiver(l) {
			continue
		}
		steps.Do(fmt.Sprintf("remove interface %q", name), func() error {
			return link.IgnoreError(conn.Handle.LinkDel(l.Link), unix.ENODEV) // removed together with the other end
		}, "no "+name)
	}
}

// isReceiver reports whether an interface is ours. One without an alias was just created.
func isReceiver(l *link.State) bool {
	return l.Kind() == kindVeth && (l.Alias == link.Alias || l.Alias == "")
}

// Remove deletes the interface of a tunnel, if there is one of ours.
func Remove(name string) error {
	conn, err := link.Open()
	if err != nil {
		return err
	}
	defer conn.Close()
	return remove(conn, name)
}

func remove(conn *link.Conn, name string) error {
	links, err := conn.List()
	steps := link.Steps{Err: err}
	removeReceiver(&steps, conn, links)
	switch l := links[name]; {
	case steps.Err != nil || l == nil:
	case l.Alias != link.Alias && (l.Alias != "" || l.Kind() != LinkKind):
		// An interface of this kind without an alias is ours, and was just created.
		steps.Err = foreignInterface(l)
	default:
		steps.Err = conn.Handle.LinkDel(l.Link)
	}
	if steps.Err != nil {
		return fmt.Errorf("remove tunnel %q: %w", name, steps.Err)
	}
	return nil
}

func foreignInterface(l *link.State) error {
	return fmt.Errorf("interface %q is not ours (kind %q, alias %q)", l.Name, l.Kind(), l.Alias)
}
