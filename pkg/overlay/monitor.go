package overlay

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"github.com/samber/lo"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/link"
	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/pkg/wire"
)

// The message about an interface's settings, see linux/netconf.h. It has one byte, and padding.
const (
	sizeofNetconfMsg = 4
	netconfaIfindex  = 1
)

// Monitor subscribes to the kernel's notifications, and signals after changes that concern us. These are changes of the
// following.
//
//   - Links whose name starts with wire.LinkPrefix or is in others, such as the tunnel's, with their addresses and
//     settings.
//   - Permanent neighbors and forwarding entries of links whose name starts with wire.LinkPrefix.
//   - Routes and rules in our tables, and rules with our protocol.
//   - Routes of others with a next hop (see Uplinks) or to a subnet (see Routes).
//
// Our own changes may also cause signals. After a loss of notifications there is also a signal. The subscription ends
// with ctx.
func (k *Kernel) Monitor(ctx context.Context, changed notify.Signal, others ...string) error {
	m := &monitor{others: others}
	s, err := notify.Subscribe(unix.NETLINK_ROUTE,
		unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV4_RULE,
		unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV6_RULE)
	if err != nil {
		return err
	}
	// After the subscription, so that nothing is missed in between.
	if err := m.list(k); err != nil {
		return errors.Join(err, s.Close())
	}
	go s.Run(ctx, func(msg netlink.Message) {
		if m.isRelevant(msg) {
			changed.Send()
		}
	}, func() {
		_ = m.list(k) // after an error, the previous lists stay
		changed.Send()
	})
	return nil
}

type monitor struct {
	others []string
	// indices are the indexes of our interfaces, by which addresses and neighbors are reported. They are true for
	// overlay links.
	indices map[uint32]bool
	// permanent are the permanent neighbors of overlay links. The kernel may learn others from packets, and anyone can
	// send packets.
	permanent map[neighbor]bool
}

type neighbor struct {
	index uint32
	addr  netip.Addr
}

// list reads the current links and neighbors.
func (m *monitor) list(k *Kernel) error {
	links, err := k.conn.List()
	if err != nil {
		return err
	}
	m.indices, m.permanent = map[uint32]bool{}, map[neighbor]bool{}
	for _, l := range links {
		if !m.isOurName(l.Name) {
			continue
		}
		m.indices[uint32(l.Index)] = strings.HasPrefix(l.Name, wire.LinkPrefix)
		for addr := range l.Neighbors {
			m.permanent[neighbor{uint32(l.Index), addr}] = true
		}
	}
	return nil
}

func (m *monitor) isOurName(name string) bool {
	return strings.HasPrefix(name, wire.LinkPrefix) || slices.Contains(m.others, name)
}

func (m *monitor) isRelevant(msg netlink.Message) bool {
	switch msg.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return m.isRelevantLink(msg)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return len(msg.Data) >= unix.SizeofIfAddrmsg && m.isMonitored(index(msg.Data))
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		return len(msg.Data) >= unix.SizeofNdMsg && m.indices[index(msg.Data)] && m.isRelevantNeighbor(msg)
	case unix.RTM_NEWNETCONF:
		return m.isMonitored(attribute32(msg.Data, sizeofNetconfMsg, netconfaIfindex))
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE, unix.RTM_NEWRULE, unix.RTM_DELRULE:
		// RTA_TABLE and FRA_TABLE have the same number, and the headers of both messages have the same length.
		if isOurTable(int(attribute32(msg.Data, unix.SizeofRtMsg, unix.RTA_TABLE))) {
			return true
		}
		if msg.Header.Type > unix.RTM_DELROUTE {
			return bytes.Equal(attribute(msg.Data, unix.SizeofRtMsg, nl.FRA_PROTOCOL), []byte{Protocol})
		}
		return isFact(msg.Data)
	}
	return false
}

// isRelevantNeighbor reports whether a neighbor is or was permanent, or is a forwarding entry.
func (m *monitor) isRelevantNeighbor(msg netlink.Message) bool {
	if msg.Data[0] == unix.AF_BRIDGE {
		return true // an entry of a VXLAN link's forwarding table, which has no learned ones
	}
	addr, _ := netip.AddrFromSlice(attribute(msg.Data, unix.SizeofNdMsg, unix.NDA_DST))
	key := neighbor{index(msg.Data), addr}
	was := m.permanent[key]
	if state := binary.NativeEndian.Uint16(msg.Data[8:]); msg.Header.Type == unix.RTM_NEWNEIGH && state&unix.NUD_PERMANENT != 0 {
		m.permanent[key] = true
		return true
	}
	delete(m.permanent, key)
	return was
}

// isFact reports whether a route of others affects the result of Uplinks or Routes. Routes to single addresses do not
// count, because they change with each pod.
func isFact(route []byte) bool {
	if attribute(route, unix.SizeofRtMsg, unix.RTA_GATEWAY) != nil {
		return true
	}
	// struct rtmsg: the length of the destination, and the type.
	dst, ok := netip.AddrFromSlice(attribute(route, unix.SizeofRtMsg, unix.RTA_DST))
	return ok && route[7] == unix.RTN_UNICAST && int(route[1]) < dst.BitLen() && isGlobal(dst)
}

func (m *monitor) isMonitored(index uint32) bool { return lo.HasKey(m.indices, index) }

func (m *monitor) isRelevantLink(msg netlink.Message) bool {
	if len(msg.Data) < unix.SizeofIfInfomsg {
		return false
	}
	i := index(msg.Data)
	name := strings.TrimRight(string(attribute(msg.Data, unix.SizeofIfInfomsg, unix.IFLA_IFNAME)), "\x00")
	ours, known := m.isOurName(name), m.isMonitored(i)
	if ours && msg.Header.Type == unix.RTM_NEWLINK {
		m.indices[i] = strings.HasPrefix(name, wire.LinkPrefix)
	} else {
		// Deleted, or renamed to a name that is not ours.
		delete(m.indices, i)
	}
	return ours || known
}

// index returns the interface index, which is at the same position in ifinfomsg, ifaddrmsg and ndmsg.
func index(data []byte) uint32 {
	return binary.NativeEndian.Uint32(data[4:])
}

func attribute32(data []byte, header int, typ uint16) uint32 {
	b := attribute(data, header, typ)
	if len(b) != 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

func attribute(data []byte, header int, typ uint16) []byte {
	if len(data) < header {
		return nil
	}
	return link.Attributes(data[header:])[typ]
}

// CountDeletions counts the deletions of routes in our table, and of rules for it, until ctx ends: an agent restores
// those that others delete. It also returns the deleted prefixes, or "rule".
func (k *Kernel) CountDeletions(ctx context.Context) (changes int, gone []string, err error) {
	s, err := notify.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV4_RULE)
	if err != nil {
		return 0, nil, err
	}
	s.Run(ctx, func(msg netlink.Message) {
		// Both messages have headers of the same length, and the same number for the table.
		isRule := msg.Header.Type == unix.RTM_DELRULE
		if msg.Header.Type != unix.RTM_DELROUTE && !isRule || attribute32(msg.Data, unix.SizeofRtMsg, unix.RTA_TABLE) != Table {
			return
		}
		changes++
		if isRule {
			gone = append(gone, "rule")
			return
		}
		if dst, ok := netip.AddrFromSlice(attribute(msg.Data, unix.SizeofRtMsg, unix.RTA_DST)); ok {
			gone = append(gone, fmt.Sprintf("%s/%d", dst, msg.Data[1]))
		}
	}, func() {})
	return changes, gone, nil
}
