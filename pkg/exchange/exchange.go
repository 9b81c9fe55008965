// Package exchange implements the channel between the two gateways of a peering, inside their tunnel. Each gateway
// tells the other one what it needs to know about its cluster.
//
// The peer is not trusted. All its data is limited in size and rate and checked field by field, and an error ends
// only one connection. The caller decides how to use the values (see Filter).
//
// The channel is one TCP connection, which the client opens. Each side sends frames: the length of the rest (4 bytes,
// network byte order), the version of the frame (1 byte), its type (1 byte), and the content. Frames of another
// version or an unknown type are skipped, so that an older gateway understands a newer one.
package exchange

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/samber/lo"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/pkg/wire"
)

const (
	// announceInterval is how often an unchanged announcement is sent again.
	announceInterval = 30 * time.Second
	// announceGap is the minimum time between two announcements. perGap is how many frames of a topic the peer may send in
	// that time, and how often it may connect.
	announceGap, perGap = 2 * time.Second, 5
	// ioTimeout is how long a peer may take to read a frame, and how long beyond announceInterval it may be silent.
	ioTimeout = 30 * time.Second
)

// Channel is one side of the channel to the peer's gateway.
type Channel struct {
	local, remote netip.Addr
	isInitiator   bool

	// own is this side's announcement, and changed signals that it has changed.
	own     atomic.Pointer[Announcement]
	changed notify.Signal
	// received is the peer's last announcement, nil if there is none.
	received  atomic.Pointer[Announcement]
	announced notify.Signal
	// heard is when the last frame arrived, at first when the channel was created.
	heard atomic.Pointer[time.Time]
	// age is how long a connection is used. A new one shows whether TCP connections still pass: a proxy or a firewall may
	// leave existing ones alone.
	age time.Duration
}

// New returns a channel between this gateway's overlay address, local, and the address by which this cluster knows
// the peer's gateway. If isInitiator is set, this side opens the connection, which exactly one side must do. The channel
// signals news when the peer's announcement has changed.
func New(local, remote netip.Addr, isInitiator bool, news notify.Signal) *Channel {
	c := &Channel{local: local, remote: remote, isInitiator: isInitiator, changed: notify.NewSignal(), announced: news, age: announceInterval}
	c.own.Store(&Announcement{})
	c.heard.Store(new(time.Now()))
	return c
}

// Silence returns for how long nothing has arrived by TCP, although the peer sends at least every announceInterval.
func (c *Channel) Silence() time.Duration { return time.Since(*c.heard.Load()) }

// Announce sends an announcement to the peer, now and later.
func (c *Channel) Announce(a Announcement) {
	if !reflect.DeepEqual(*c.own.Swap(&a), a) {
		c.changed.Send()
	}
}

// Received returns the peer's last announcement, nil if there is none.
func (c *Channel) Received() *Announcement { return c.received.Load() }

// Connect opens or accepts one connection, and uses it until it ends. It returns the reason.
func (c *Channel) Connect(ctx context.Context) error {
	frames := newBudgets() // of all connections: each starts with a frame
	connection := Connector{
		Local: c.local, Remote: c.remote, Port: Port, IsInitiator: c.isInitiator, Age: c.age,
		Use: func(ctx context.Context, conn net.Conn) error { return c.serveConn(ctx, conn, frames) },
	}
	return connection.Connect(ctx)
}

// topic is one kind of frames. A peer that sends more frames than its budget allows loses the connection. The budget is
// the topic's own: no topic uses up what another one needs.
type topic string

const (
	announcements topic = "announcements"
	// unknown is what this version ignores: frames of other versions and types. They are not kept in memory.
	unknown topic = "unknown"
)

// budgets are the rate limits of a peer's frames.
type budgets map[topic]*rate.Limiter

func newBudgets() budgets {
	return budgets{announcements: newLimit(), unknown: newLimit()}
}

func newLimit() *rate.Limiter { return rate.NewLimiter(rate.Every(announceGap/perGap), perGap) }

// serveConn sends announcements and reads those of the peer until the connection ends. It returns the reason.
func (c *Channel) serveConn(ctx context.Context, conn net.Conn, frames budgets) error {
	both, ctx := errgroup.WithContext(ctx)
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	both.Go(func() error { return fmt.Errorf("send to the peer's gateway: %w", c.write(ctx, conn)) })
	both.Go(func() error { return fmt.Errorf("receive from the peer's gateway: %w", c.read(conn, frames)) })
	return both.Wait()
}

// write sends the announcement when it changes and every announceInterval, until it fails or ctx ends.
func (c *Channel) write(ctx context.Context, conn net.Conn) error {
	gap := rate.NewLimiter(rate.Every(announceGap), 1)
	for {
		if err := gap.Wait(ctx); err != nil {
			return err
		}
		_ = conn.SetWriteDeadline(time.Now().Add(ioTimeout)) // fails only for a closed connection, as Write does
		if _, err := conn.Write(encode(*c.own.Load())); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.changed:
		case <-time.After(announceInterval):
		}
	}
}

// read receives the peer's frames until it fails.
func (c *Channel) read(conn net.Conn, frames budgets) error {
	for {
		_ = conn.SetReadDeadline(time.Now().Add(announceInterval + ioTimeout)) // fails only for a closed connection
		t, content, err := readFrame(conn, frames)
		if err != nil {
			return err
		}
		c.heard.Store(new(time.Now()))
		if t != announcements {
			continue
		}
		a, err := decode(content)
		if err != nil {
			return err
		}
		if !reflect.DeepEqual(c.received.Swap(a), a) {
			c.announced.Send()
		}
	}
}

const (
	// Port is the TCP port at a gateway's overlay address.
	Port uint16 = wire.ExchangePort

	// MaxFrame is the maximum size of a frame of any topic after its length, in bytes. It has room for an announcement
	// with the maximum number of IPv6 addresses.
	MaxFrame = 256 << 10
	// MaxEndpoints and MaxNodeIPs are the limits of an announcement, as in the definition of Peering.
	MaxEndpoints, MaxNodeIPs = 16, 4096

	frameVersion     = 1
	typeAnnouncement = 1
	headerLength     = 2
)

// Announcement is what a gateway announces of its cluster: the endpoints at which it can be reached, none if it only
// connects, and the real addresses of the cluster's nodes. The tunnel's packets come from these and go to these.
type Announcement = v1alpha1.RemoteAnnouncement

// errMalformed ends a connection.
var errMalformed = errors.New("malformed frame")

// encode returns a frame. It leaves out what exceeds the limits.
func encode(a Announcement) []byte {
	a.Endpoints, a.NodeIPs = a.Endpoints[:min(len(a.Endpoints), MaxEndpoints)], a.NodeIPs[:min(len(a.NodeIPs), MaxNodeIPs)]
	content, _ := json.Marshal(a) // strings and addresses always encode
	frame := binary.BigEndian.AppendUint32(nil, uint32(headerLength+len(content)))
	return append(append(frame, frameVersion, typeAnnouncement), content...)
}

// readFrame reads one frame, and returns its topic and what follows its header. It returns an error if the header shows that the
// frame exceeds the limits of its topic. The content of an unknown topic is empty.
func readFrame(r io.Reader, frames budgets) (t topic, content []byte, err error) {
	var header struct {
		Length        uint32
		Version, Kind byte
	}
	if err := binary.Read(r, binary.BigEndian, &header); err != nil {
		return t, nil, err
	}
	if t = unknown; header.Version == frameVersion && header.Kind == typeAnnouncement {
		t = announcements
	}
	switch {
	case header.Length < headerLength || header.Length > MaxFrame:
		return t, nil, fmt.Errorf("%w: it claims to have %d bytes, of topic %s", errMalformed, header.Length, t)
	case !frames[t].Allow():
		return t, nil, fmt.Errorf("it sends too many frames of topic %s", t)
	}
	// Allocate memory only as bytes arrive: a length alone must not cost much.
	var kept bytes.Buffer
	to := io.Writer(&kept)
	if t == unknown {
		to = io.Discard
	}
	_, err = io.CopyN(to, r, int64(header.Length)-headerLength)
	return t, kept.Bytes(), err
}

// decode parses the content of an announcement.
func decode(content []byte) (*Announcement, error) {
	a := &Announcement{}
	if err := json.Unmarshal(content, a); err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	if len(a.Endpoints) > MaxEndpoints || len(a.NodeIPs) > MaxNodeIPs {
		return nil, fmt.Errorf("%w: %d endpoints, %d node addresses", errMalformed, len(a.Endpoints), len(a.NodeIPs))
	}
	for i, e := range a.Endpoints {
		addrPort, err := netip.ParseAddrPort(e)
		if err != nil || addrPort.Addr().Zone() != "" || addrPort.Port() == 0 {
			return nil, fmt.Errorf("%w: endpoint %q", errMalformed, e)
		}
		a.Endpoints[i] = netip.AddrPortFrom(addrPort.Addr().Unmap(), addrPort.Port()).String()
	}
	for i, ip := range a.NodeIPs {
		if !ip.IsValid() { // unmarshaling turns an invalid address into the zero value
			return nil, fmt.Errorf("%w: node address %d", errMalformed, i)
		}
		a.NodeIPs[i].Addr = ip.Unmap()
	}
	return a, nil
}

// minPort is the lowest tunnel port that a peer may announce by itself. Below it are well-known services, which no
// peer may make us call.
const minPort = 1024

// Filter limits how a peer's announcement may be used. A hostile peer must not make this cluster send packets to
// machines that are not the peer's. It may misdirect only its own tunnel.
type Filter struct {
	// Own are this cluster's addresses: those of its pods, nodes, gateways and API server.
	Own []netip.Prefix
	// Tunneled are the ranges that lead to the peer through the tunnel, which cannot contain its endpoints.
	Tunneled []netip.Prefix
	// Endpoints and NodeIPs are the peer's addresses as recorded by somebody with access to both clusters. If none of
	// them is private, the peer is reached over the Internet, and a private address would be one of ours.
	Endpoints []string
	NodeIPs   []v1alpha1.IP
}

// Usable returns the endpoints that may be used, and the addresses that may be the peer's nodes, sorted. own are the
// endpoints with addresses of this cluster.
func (f Filter) Usable(in Announcement) (out Announcement, own []string) {
	ownAddrs, tunneled := ipam.Set(f.Own), ipam.Set(f.Tunneled)
	allows := func(a netip.Addr, mayBePrivate bool) bool {
		return isUsable(a) && !ownAddrs.Contains(a) && (mayBePrivate || !ipam.IsPrivateAddr(a))
	}
	called := lo.FilterMap(f.Endpoints, func(e string, _ int) (netip.AddrPort, bool) {
		addrPort, err := netip.ParseAddrPort(e)
		return addrPort, err == nil // otherwise it is a name
	})
	isPrivate := slices.ContainsFunc(called, func(e netip.AddrPort) bool { return ipam.IsPrivateAddr(e.Addr()) })
	for _, s := range lo.Uniq(in.Endpoints) {
		e, err := netip.ParseAddrPort(s)
		known := slices.ContainsFunc(called, func(c netip.AddrPort) bool { return c.Port() == e.Port() })
		if err == nil && (known || e.Port() >= minPort) && allows(e.Addr(), isPrivate) && !tunneled.Contains(e.Addr()) {
			out.Endpoints = append(out.Endpoints, s)
		} else if err == nil && ownAddrs.Contains(e.Addr()) {
			own = append(own, s)
		}
	}
	isPrivate = slices.ContainsFunc(f.NodeIPs, func(ip v1alpha1.IP) bool { return ipam.IsPrivateAddr(ip.Addr) })
	out.NodeIPs = slices.DeleteFunc(slices.Clone(in.NodeIPs), func(ip v1alpha1.IP) bool { return !allows(ip.Addr, isPrivate) })
	out.NodeIPs = slices.Compact(slices.SortedFunc(slices.Values(out.NodeIPs), func(a, b v1alpha1.IP) int { return a.Compare(b.Addr) }))
	return out, own
}

// isUsable reports whether an address may belong to a machine.
func isUsable(a netip.Addr) bool {
	// This excludes addresses with a zone, and loopback, link-local, multicast, broadcast, unspecified and reserved
	// ones.
	return a.Zone() == "" && a.IsGlobalUnicast() && (!a.Is4() || a.As4()[0] > 0 && a.As4()[0] < 240) && !embedsIPv4(a)
}

// embedsIPv4 reports whether packets to an IPv6 address may reach an IPv4 address in it, such as one of this cluster. These
// are IPv4-mapped and compatible ones (RFC 4291), NAT64 (RFC 6052, RFC 8215), Teredo (RFC 4380) and 6to4 (RFC 3056).
func embedsIPv4(a netip.Addr) bool {
	return a.Is4In6() || slices.ContainsFunc([]string{"::/96", "64:ff9b::/96", "64:ff9b:1::/48", "2001::/32", "2002::/16"}, func(p string) bool {
		return netip.MustParsePrefix(p).Contains(a)
	})
}
