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

// ensureLink makes the interface's own attributes right, and the pair before it.
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

// ensureReceiver makes the pair of interfaces by which packets reach the tunnel
// and the overlay in bundles.
//
// wireguard-go asks the kernel for bundles of packets (UDP_GRO) and relies on them: it
// reads two messages at a time, which are 128 packets in bundles and two without. Packets
// from other machines arrive one by one, unless an interface of this namespace aggregates
// them. So do the overlay's packets if the network plugin has a bridge, which takes bundles
// of encapsulated packets apart. The pod's own interface cannot aggregate: a veth does not
// touch packets from an end with segmentation offload (veth_skb_is_eligible_for_gro in the
// kernel). So the sending end of this pair has none.
func ensureReceiver(steps *link.Steps, conn *link.Conn, links map[string]*link.State, c Config) (err error) {
	underlay := links[c.Underlay]
	if underlay == nil || len(underlay.HardwareAddr) != 6 {
		removeReceiver(steps, conn, links)
		return steps.Err
	}
	entry, receive := links[EntryInterface], links[ReceiveInterface]
	for _, l := range []*link.State{entry, receive} {
		if l != nil && !isReceiver(l) {
			return cmp.Or(steps.Err, notOurs(l))
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
	// The address lets the loose reverse path filter pass, and the MAC is that to
	// which the packets were sent.
	conn.Ensure(steps, receive, link.Want{
		MTU: underlay.MTU, Group: ReceiveGroup, MAC: underlay.HardwareAddr, Address: c.Address,
		Offloads: map[link.Offload]bool{link.GRO: true},
	})
	conn.Ensure(steps, entry, link.Want{MTU: underlay.MTU, Offloads: map[link.Offload]bool{link.TSO: false}})
	return steps.Err
}

// addReceiver returns nothing where the kernel has no such interfaces.
func addReceiver(conn *link.Conn) (entry, receive *link.State, err error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = EntryInterface
	err = conn.Handle.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: ReceiveInterface})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil, nil
	}
	if err == nil {
		entry, err = conn.Get(EntryInterface)
	}
	if err == nil {
		receive, err = conn.Get(ReceiveInterface)
	}
	return entry, receive, err
}

// removeReceiver removes the pair, or what is left of it.
func removeReceiver(steps *link.Steps, conn *link.Conn, links map[string]*link.State) {
	for _, name := range []string{EntryInterface, ReceiveInterface} {
		l := links[name]
		if l == nil || !isReceiver(l) {
			continue
		}
		steps.Do(fmt.Sprintf("remove interface %q", name), func() error {
			err := conn.Handle.LinkDel(l.Link)
			if errors.Is(err, unix.ENODEV) {
				return nil // one goes with the other
			}
			return err
		}, "no "+name)
	}
}

// isReceiver recognises ours; one without an alias was just made.
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
		// One without an alias is an interface of ours that was just made.
		steps.Err = notOurs(l)
	default:
		steps.Err = conn.Handle.LinkDel(l.Link)
	}
	if steps.Err != nil {
		return fmt.Errorf("remove tunnel %q: %w", name, steps.Err)
	}
	return nil
}

func notOurs(l *link.State) error {
	return fmt.Errorf("interface %q is not ours (kind %q, alias %q)", l.Name, l.Kind(), l.Alias)
}
