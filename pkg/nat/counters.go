package nat

import (
	"errors"
	"fmt"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"github.com/samber/lo"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/link"
	"github.com/liqonet/liqonet/pkg/nft"
	"github.com/liqonet/liqonet/pkg/probe"
)

// watcherPrefix is the prefix of the names of tables that only count.
const watcherPrefix = TableName + "-watch-"

// Watch configures what a Watcher counts on a node.
type Watch struct {
	probe.Watch
	// Uplinks are the interfaces that lead out of the node.
	Uplinks []string
	// OverlayGroup is the interface group of the overlay's interfaces, TunnelPort the UDP port of gateways.
	OverlayGroup uint32
	TunnelPort   uint16
}

// Watcher is a table that only counts. The kernel removes it when the process that created it ends, for whatever
// reason. If the kernel does not support that, Close or Purge removes the table.
type Watcher struct {
	conn  *nftables.Conn
	table *nftables.Table
}

// The names of the counters.
const (
	countPlain     = "plain"
	countToPeer    = "to-peer"
	countFromPeer  = "from-peer"
	countTunnelOut = "tunnel-out"
	countTunnelIn  = "tunnel-in"
	countCookies   = "cookies"
)

// rules returns the watcher's table. Its chain at postrouting comes after all others, when packets have their final
// addresses.
func (w Watch) rules() table {
	const last, first nftables.ChainPriority = 310, -320
	in, out := iifGroup(w.OverlayGroup), oifGroup(w.OverlayGroup)
	leaving := rules{
		{"to the peer by the overlay", concat(out, to(setRemote), counter(countToPeer))},
		{"to the peer unencrypted", concat(not(out), to(setRemote), counter(countPlain))},
	}
	for _, uplink := range w.Uplinks {
		leaving.add("from the peer, by "+uplink,
			nft.Meta(expr.MetaKeyOIFNAME, ifname(uplink)...), from(setRemote), counter(countPlain))
	}
	return table{
		family: nftables.TableFamilyIPv4,
		sets:   []set{prefixSet(setRemote, w.Remote), addrSet(setGateways, w.Gateways)},
		chains: []chain{
			base("leaving", nftables.ChainHookPostrouting, last, leaving),
			base("coming", nftables.ChainHookPrerouting, first, rules{
				{"from the peer by the overlay", concat(in, from(setRemote), counter(countFromPeer))},
			}),
			base("tunnel", nftables.ChainHookForward, *nftables.ChainPriorityFilter, rules{
				{"tunnel, out", concat(from(setGateways), udpSport(w.TunnelPort), counter(countTunnelOut))},
				{"tunnel, in", concat(to(setGateways), udpDport(w.TunnelPort), counter(countTunnelIn))},
			}),
		},
	}
}

// NewWatcher starts to count in the calling thread's network namespace.
func NewWatcher(w Watch) (*Watcher, error) {
	if err := onlyIPv4(w.Gateways, w.Remote); err != nil {
		return nil, err
	}
	var socket *netlink.Conn
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
		socket = c // the library cannot set flags of a table
		return forTransactions(c)
	}))
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	out := &Watcher{conn: conn, table: &nftables.Table{Name: watcherPrefix + w.Run, Family: nftables.TableFamilyIPv4}}
	create := func(flags uint32) error {
		return send(socket, []netlink.Message{message(unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_NEWTABLE, netlink.Acknowledge|netlink.Create|netlink.Excl,
			byte(out.table.Family), text(unix.NFTA_TABLE_NAME, out.table.Name), number(unix.NFTA_TABLE_FLAGS, flags))})
	}
	err = create(nft.FlagOwner)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		err = create(0)
	}
	if err == nil {
		err = w.rules().fill(conn, out.table)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("add nftables table %q: %w", out.table.Name, err), out.Close())
	}
	return out, nil
}

// Read returns what the watcher has counted since it started.
func (w *Watcher) Read() (probe.Counters, error) {
	counted, err := counters(w.conn, w.table)
	return probe.Counters{
		Unencrypted: counted[countPlain].Packets, ToPeer: counted[countToPeer].Packets, FromPeer: counted[countFromPeer].Packets,
		TunnelOut: counted[countTunnelOut].Bytes, TunnelIn: counted[countTunnelIn].Bytes,
	}, err
}

// Close removes the table.
func (w *Watcher) Close() error {
	w.conn.DelTable(w.table)
	return errors.Join(link.IgnoreError(w.conn.Flush(), unix.ENOENT), w.conn.CloseLasting())
}

// The names of hooks in the names of counters.
const (
	hookPrerouting  = "prerouting"
	hookInput       = "input"
	hookForward     = "forward"
	hookOutput      = "output"
	hookPostrouting = "postrouting"
)

// Unencrypted is the reason for which packets to peers are dropped that would leave a node outside the overlay.
const Unencrypted = "unencrypted"

// Reasons that several rules share.
const (
	reasonForged   = "forged-source"
	outsideOverlay = "outside-overlay"
	toNode         = "to-node"
	tunnelEnd      = "tunnel-end"
)

// counterSeparator separates the parts of a counter's name.
const counterSeparator = "/"

// Drop is the number of packets that were dropped at a hook for one reason.
type Drop struct {
	// Hook is a hook of the kernel, Reason is why the rules drop packets.
	Hook, Reason string
	// Link is the interface on which the packets arrived, if the counter is specific to one.
	Link    string
	Packets uint64
}

// CookieReplies returns how many of WireGuard's messages with a cookie have reached this gateway. A server under load
// answers a handshake with such a message, and processes only another handshake with that cookie.
func CookieReplies() (replies uint64, err error) {
	c := &nftables.Conn{}
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		counted, err := counters(c, &nftables.Table{Name: TableName, Family: family})
		if err != nil {
			return 0, err
		}
		replies += counted[countCookies].Packets
	}
	return replies, nil
}

// Drops returns the numbers of packets that our tables in the calling thread's network namespace have dropped, by hook,
// reason and link. A counter keeps its value when rules change. It restarts at zero when an agent has to write the
// whole table, after a change by someone else. Kernels without named counters have none.
func Drops() ([]Drop, error) {
	sum := map[string]uint64{}
	c := &nftables.Conn{}
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		counted, err := counters(c, &nftables.Table{Name: TableName, Family: family})
		if err != nil {
			return nil, err
		}
		delete(counted, countCookies) // they were not dropped
		for name, counter := range counted {
			sum[name] += counter.Packets
		}
	}
	return lo.MapToSlice(sum, func(name string, packets uint64) Drop {
		parts := append(strings.SplitN(name, counterSeparator, 3), "", "")
		return Drop{Hook: parts[0], Reason: parts[1], Link: parts[2], Packets: packets}
	}), nil
}
