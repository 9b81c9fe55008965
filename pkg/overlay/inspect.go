package overlay

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	netlinks "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/link"
	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/pkg/wire"
)

// Inspection is what is ours in a node's kernel, and what is in the way of it.
type Inspection struct {
	// Links are all interfaces, Foreign those of them that have a name of ours and are not.
	Links   map[string]*link.State
	Foreign []string
	// Routes is how many of ours there are.
	Routes int
	// InTheWay are rules and routes of others in our tables, and tunnels of others with our port.
	InTheWay []string
	PortOf   []string
	// Neighbors are hardware addresses of others, as they were learned.
	Neighbors map[netip.Addr]string
}

// Inspect reads, and changes nothing.
func (k *Kernel) Inspect() (in Inspection, err error) {
	a := &applier{kernel: k}
	if in.Links, err = k.conn.List(); err != nil {
		return in, err
	}
	a.links = in.Links
	for name, l := range in.Links {
		if strings.HasPrefix(name, wire.LinkPrefix) && !isOurs(l) {
			in.Foreign = append(in.Foreign, name)
		} else if usesPort(l.Link) && !isOurs(l) {
			in.PortOf = append(in.PortOf, fmt.Sprintf("interface %s (%s)", name, l.Kind()))
		}
	}
	for _, read := range []func() error{a.readRoutes, a.readRules} {
		if err := read(); err != nil {
			return in, err
		}
	}
	for _, r := range a.routes {
		if r.raw == nil || r.raw.Protocol == Protocol {
			in.Routes++
		}
	}
	for _, foreign := range a.failed.errs {
		in.InTheWay = append(in.InTheWay, foreign.Error())
	}
	neighbors, err := link.Dump(func() ([]netlinks.Neigh, error) { return k.conn.Handle.NeighList(0, netlinks.FAMILY_V4) })
	if err != nil {
		return in, fmt.Errorf("list neighbours: %w", err)
	}
	in.Neighbors = map[netip.Addr]string{}
	for _, n := range neighbors {
		if addr := addrFrom(n.IP); len(n.HardwareAddr) > 0 && n.State&(netlinks.NUD_PERMANENT|netlinks.NUD_NOARP) == 0 {
			in.Neighbors[addr] = n.HardwareAddr.String()
		}
	}
	slices.Sort(in.Foreign)
	return in, nil
}

// usesPort says that a tunnel has our port.
func usesPort(l netlinks.Link) bool {
	switch l := l.(type) {
	case *netlinks.Vxlan:
		return l.Port == int(Port)
	case *netlinks.Geneve:
		return l.Dport == Port
	}
	return false
}

// CountRoutes counts how often routes of our table come and go, until ctx ends: an agent puts back what somebody
// deletes. Those are named that have gone.
func (k *Kernel) CountRoutes(ctx context.Context) (changes int, gone []string, err error) {
	s, err := notify.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_ROUTE)
	if err != nil {
		return 0, nil, err
	}
	s.Run(ctx, func(msg netlink.Message) {
		if msg.Header.Type != unix.RTM_DELROUTE || attribute32(msg.Data, unix.SizeofRtMsg, unix.RTA_TABLE) != Table {
			return
		}
		changes++
		if dst, ok := netip.AddrFromSlice(attribute(msg.Data, unix.SizeofRtMsg, unix.RTA_DST)); ok {
			gone = append(gone, fmt.Sprintf("%s/%d", dst, msg.Data[1]))
		}
	}, func() {})
	return changes, gone, nil
}
