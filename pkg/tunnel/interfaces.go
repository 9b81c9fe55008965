package tunnel

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/link"
)

const kindVeth = "veth"

// ensureLink makes the interface's own attributes right, and the pair before it.
func ensureLink(conn *link.Conn, name string, c Config) (changed bool, err error) {
	links, err := conn.List()
	if err != nil {
		return false, err
	}
	l := links[name]
	if l == nil {
		return false, errors.New("the interface is gone")
	}
	changes, err := conn.Ensure(l, link.Want{MTU: c.MTU, Group: Group, Address: c.Address})
	if err != nil {
		return len(changes) > 0, err
	}
	changed, err = ensureReceiver(conn, links, c)
	return changed || len(changes) > 0, err
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
func ensureReceiver(conn *link.Conn, links map[string]*link.State, c Config) (changed bool, err error) {
	underlay := links[c.Underlay]
	if underlay == nil || len(underlay.HardwareAddr) != 6 {
		return removeReceiver(conn, links)
	}
	entry, receive := links[EntryInterface], links[ReceiveInterface]
	for _, l := range []*link.State{entry, receive} {
		if l != nil && !isReceiver(l) {
			return false, notOurs(l)
		}
	}
	if entry == nil || receive == nil {
		if _, err := removeReceiver(conn, links); err != nil {
			return false, err
		}
		if entry, receive, err = addReceiver(conn); err != nil || entry == nil {
			return false, err
		}
		changed = true
	}
	// The address lets the loose reverse path filter pass, and the MAC is that to
	// which the packets were sent.
	receiveChanges, err := conn.Ensure(receive, link.Want{
		MTU: underlay.MTU, Group: ReceiveGroup, MAC: underlay.HardwareAddr, Address: c.Address,
		Offloads: map[link.Offload]bool{link.GRO: true},
	})
	if err != nil {
		return changed, err
	}
	entryChanges, err := conn.Ensure(entry, link.Want{
		MTU: underlay.MTU, Offloads: map[link.Offload]bool{link.TSO: false},
	})
	return changed || len(receiveChanges) > 0 || len(entryChanges) > 0, err
}

// addReceiver returns nothing where the kernel has no such interfaces.
func addReceiver(conn *link.Conn) (entry, receive *link.State, err error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = EntryInterface
	err = conn.Handle.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: ReceiveInterface})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("add interfaces %q and %q: %w", EntryInterface, ReceiveInterface, err)
	}
	if entry, err = conn.Get(EntryInterface); err != nil {
		return nil, nil, err
	}
	receive, err = conn.Get(ReceiveInterface)
	return entry, receive, err
}

// removeReceiver removes the pair, or what is left of it.
func removeReceiver(conn *link.Conn, links map[string]*link.State) (changed bool, err error) {
	for _, name := range []string{EntryInterface, ReceiveInterface} {
		l := links[name]
		if l == nil || !isReceiver(l) {
			continue
		}
		// One goes with the other.
		if err := conn.Handle.LinkDel(l.Link); err != nil && !errors.Is(err, unix.ENODEV) {
			return changed, fmt.Errorf("remove interface %q: %w", name, err)
		}
		changed = true
	}
	return changed, nil
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
	if err == nil {
		_, err = removeReceiver(conn, links)
	}
	switch l := links[name]; {
	case err != nil || l == nil:
	case l.Alias != link.Alias && (l.Alias != "" || l.Kind() != LinkKind):
		// One without an alias is an interface of ours that was just made.
		err = notOurs(l)
	default:
		err = conn.Handle.LinkDel(l.Link)
	}
	if err != nil {
		return fmt.Errorf("remove tunnel %q: %w", name, err)
	}
	return nil
}

func notOurs(l *link.State) error {
	return fmt.Errorf("interface %q is not ours (kind %q, alias %q)", l.Name, l.Kind(), l.Alias)
}
