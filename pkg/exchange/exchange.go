// Package exchange is the channel between the two gateways of a peering, inside their
// tunnel. Each one tells the other what it has to know of its cluster.
//
// The peer is not trusted. All that it sends is bounded in size and rate, is checked
// field by field, and an error ends no more than one connection. What the values may be
// used for is decided by the caller (see Filter).
//
// The channel is one TCP connection, which the client makes. Each side sends frames:
// the length of the rest (4 bytes, network byte order), the version of the frame (1
// byte), its type (1 byte), and the content. Frames of another version or an unknown type are skipped,
// so that an older gateway understands a newer one.
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
	"slices"
	"sync"
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
	// announceInterval is how often an announcement is sent that has not changed.
	announceInterval = 30 * time.Second
	// announceGap is the least time between two announcements, and framesPerGap how many
	// frames a peer may send in it.
	announceGap, framesPerGap = 2 * time.Second, 5
	// ioTimeout is how long a peer may take to read a frame, and how long it may be silent
	// beyond announceInterval.
	ioTimeout = 30 * time.Second
)

// keepAlive finds soon that the gateway at the other end is gone. The next one, which has
// the same address, cannot be heard before.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: time.Second, Count: 5}

// Channel is one side of the channel to the peer's gateway.
type Channel struct {
	local, remote netip.Addr
	call          bool

	// own is what the peer is told, and changed signals that it is something else than before.
	own     atomic.Pointer[Announcement]
	changed notify.Signal
	// received is what the peer has announced last, nil if nothing.
	received atomic.Pointer[Announcement]
	news     notify.Signal
}

// New makes a channel between this gateway's overlay address, local, and the one by which
// this cluster knows the peer's gateway. If call is set, this side makes the connection: one
// of both does. It signals news when the peer has announced something else than before.
func New(local, remote netip.Addr, call bool, news notify.Signal) *Channel {
	c := &Channel{local: local, remote: remote, call: call, changed: notify.NewSignal(), news: news}
	c.own.Store(&Announcement{})
	return c
}

// Announce has the peer told of it, now and later.
func (c *Channel) Announce(a Announcement) {
	if !equal(*c.own.Swap(&a), a) {
		c.changed.Send()
	}
}

// Received returns what the peer has announced last, nil if nothing.
func (c *Channel) Received() *Announcement { return c.received.Load() }

// Connect makes one connection, or waits for one, and uses it until it ends. It returns why that is.
func (c *Channel) Connect(ctx context.Context) error {
	use := c.serve
	if c.call {
		use = c.dial
	}
	return fmt.Errorf("talk to the peer's gateway: %w", use(ctx))
}

func (c *Channel) dial(ctx context.Context) error {
	d := net.Dialer{
		Timeout: 5 * time.Second, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(c.local, 0)), KeepAliveConfig: keepAlive,
	}
	conn, err := d.DialContext(ctx, "tcp", netip.AddrPortFrom(c.remote, Port).String())
	if err != nil {
		return err
	}
	return c.talk(ctx, conn, newFrameLimit())
}

// newFrameLimit is what a peer may send.
func newFrameLimit() *rate.Limiter {
	return rate.NewLimiter(rate.Every(announceGap/framesPerGap), framesPerGap)
}

// serve goes over to a later connection, where there is one: the peer's gateway has restarted, and it may take
// seconds to notice that the former one is gone. It ends when one ends by itself.
func (c *Channel) serve(ctx context.Context) error {
	l, err := (&net.ListenConfig{KeepAliveConfig: keepAlive}).Listen(ctx, "tcp", netip.AddrPortFrom(c.local, Port).String())
	if err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(ctx)
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	gap, frames := newFrameLimit(), newFrameLimit() // each connection brings a frame; all of them together have one limit
	var last sync.WaitGroup
	endLast := func() {}
	for {
		conn, err := l.Accept()
		if err != nil {
			end(err) // or why it has ended before
			last.Wait()
			return context.Cause(ctx)
		}
		if from, ok := conn.RemoteAddr().(*net.TCPAddr); !ok || from.AddrPort().Addr().Unmap() != c.remote || !gap.Allow() {
			_ = conn.Close()
			continue
		}
		endLast()
		last.Wait()
		talking, stop := context.WithCancel(ctx)
		endLast = stop
		last.Go(func() {
			if err := c.talk(talking, conn, frames); talking.Err() == nil {
				end(err)
			}
		})
	}
}

// talk says what there is to say, and reads what the peer says, until the connection ends. It
// returns why.
func (c *Channel) talk(ctx context.Context, conn net.Conn, frames *rate.Limiter) error {
	both, ctx := errgroup.WithContext(ctx)
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	both.Go(func() error { return fmt.Errorf("tell the peer's gateway: %w", c.write(ctx, conn)) })
	both.Go(func() error { return fmt.Errorf("listen to the peer's gateway: %w", c.read(conn, frames)) })
	return both.Wait()
}

// write announces, when that has changed and every announceInterval, until it fails or ctx ends.
func (c *Channel) write(ctx context.Context, conn net.Conn) error {
	gap := rate.NewLimiter(rate.Every(announceGap), 1)
	for {
		if err := gap.Wait(ctx); err != nil {
			return err
		}
		if err := conn.SetWriteDeadline(time.Now().Add(ioTimeout)); err != nil {
			return err
		}
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

// read takes what the peer says, until it fails.
func (c *Channel) read(conn net.Conn, frames *rate.Limiter) error {
	for {
		if err := conn.SetReadDeadline(time.Now().Add(announceInterval + ioTimeout)); err != nil {
			return err
		}
		frame, err := readFrame(conn)
		if err != nil {
			return err
		}
		if !frames.Allow() {
			return errors.New("it sends too much")
		}
		a, err := decode(frame)
		if err != nil {
			return err
		}
		if before := c.received.Load(); a != nil && (before == nil || !equal(*before, *a)) {
			c.received.Store(a)
			c.news.Send()
		}
	}
}

const (
	// Port is the TCP port of a gateway's overlay address.
	Port uint16 = wire.ExchangePort

	// MaxFrame is the most that a frame may hold after its length, bytes: an announcement
	// of the most addresses, of IPv6, fits.
	MaxFrame = 256 << 10
	// MaxEndpoints and MaxNodeIPs are what an announcement may hold, as in the definition of
	// Peering.
	MaxEndpoints, MaxNodeIPs = 16, 4096

	frameVersion     = 1
	typeAnnouncement = 1
	headerLength     = 2
)

// Announcement is what a gateway tells of its cluster: where it can be called, nowhere
// if it only calls itself, and the real addresses of the cluster's nodes. From and to these
// go the tunnel's packets.
type Announcement = v1alpha1.RemoteAnnouncement

func equal(a, b Announcement) bool {
	return slices.Equal(a.Endpoints, b.Endpoints) && slices.Equal(a.NodeIPs, b.NodeIPs)
}

// errMalformed ends a connection.
var errMalformed = errors.New("malformed frame")

// encode makes a frame. What there is no room for is left out.
func encode(a Announcement) []byte {
	a.Endpoints, a.NodeIPs = a.Endpoints[:min(len(a.Endpoints), MaxEndpoints)], a.NodeIPs[:min(len(a.NodeIPs), MaxNodeIPs)]
	content, _ := json.Marshal(a) // texts and addresses
	frame := binary.BigEndian.AppendUint32(nil, uint32(headerLength+len(content)))
	return append(append(frame, frameVersion, typeAnnouncement), content...)
}

// readFrame reads one frame, without its length.
func readFrame(r io.Reader) ([]byte, error) {
	var n uint32
	if err := binary.Read(r, binary.BigEndian, &n); err != nil {
		return nil, err
	}
	if n < headerLength || n > MaxFrame {
		return nil, fmt.Errorf("%w: it claims to have %d bytes", errMalformed, n)
	}
	// Memory is taken as bytes come: a length alone must not cost much.
	var frame bytes.Buffer
	if _, err := io.CopyN(&frame, r, int64(n)); err != nil {
		return nil, err
	}
	return frame.Bytes(), nil
}

// decode reads what a frame holds. It returns nil if the frame is of another version or
// type.
func decode(frame []byte) (*Announcement, error) {
	if frame[0] != frameVersion || frame[1] != typeAnnouncement {
		return nil, nil
	}
	a := &Announcement{}
	if err := json.Unmarshal(frame[headerLength:], a); err != nil {
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
		if !ip.IsValid() { // what is no address is read as such
			return nil, fmt.Errorf("%w: node address %d", errMalformed, i)
		}
		a.NodeIPs[i].Addr = ip.Unmap()
	}
	return a, nil
}

// minPort is the lowest port of a tunnel that a peer may name by itself: below are well
// known services, which no peer may have us call.
const minPort = 1024

// Filter says what a peer's announcement may be used for. A hostile peer must not have
// this cluster send packets to machines that are not its own. It may only lead its own
// tunnel astray.
type Filter struct {
	// Own are this cluster's addresses: of its pods, nodes, gateways and its API server.
	Own []netip.Prefix
	// Tunneled are the ranges that lead to the peer through the tunnel: its endpoints are
	// not in them.
	Tunneled []netip.Prefix
	// Endpoints and NodeIPs are the peer's as somebody with access to both clusters wrote
	// them down. Where none of them is private, the peer is reached by the Internet, and
	// an address of a private network would be one of ours.
	Endpoints []string
	NodeIPs   []v1alpha1.IP
}

// Usable returns the endpoints that may be called, and what may be taken for the peer's
// nodes, sorted.
func (f Filter) Usable(in Announcement) (out Announcement) {
	own, tunneled := v1alpha1.SetOf(f.Own), v1alpha1.SetOf(f.Tunneled)
	allows := func(a netip.Addr, mayBePrivate bool) bool {
		return usable(a) && !own.Contains(a) && (mayBePrivate || !ipam.PrivateAddr(a))
	}
	called := lo.FilterMap(f.Endpoints, func(e string, _ int) (netip.AddrPort, bool) {
		addrPort, err := netip.ParseAddrPort(e)
		return addrPort, err == nil // else it is a name
	})
	isPrivate := slices.ContainsFunc(called, func(e netip.AddrPort) bool { return ipam.PrivateAddr(e.Addr()) })
	for _, s := range in.Endpoints {
		e, err := netip.ParseAddrPort(s)
		known := slices.ContainsFunc(called, func(c netip.AddrPort) bool { return c.Port() == e.Port() })
		if err == nil && (known || e.Port() >= minPort) && allows(e.Addr(), isPrivate) && !tunneled.Contains(e.Addr()) && !slices.Contains(out.Endpoints, s) {
			out.Endpoints = append(out.Endpoints, s)
		}
	}
	isPrivate = slices.ContainsFunc(f.NodeIPs, func(ip v1alpha1.IP) bool { return ipam.PrivateAddr(ip.Addr) })
	out.NodeIPs = slices.DeleteFunc(slices.Clone(in.NodeIPs), func(ip v1alpha1.IP) bool { return !allows(ip.Addr, isPrivate) })
	slices.SortFunc(out.NodeIPs, func(a, b v1alpha1.IP) int { return a.Compare(b.Addr) })
	out.NodeIPs = slices.Compact(out.NodeIPs)
	return out
}

// usable says whether an address may be a machine's.
func usable(a netip.Addr) bool {
	// A zone, loopback, link-local, multicast, broadcast, unspecified, reserved are not.
	return a.Zone() == "" && a.IsGlobalUnicast() && (!a.Is4() || a.As4()[0] > 0 && a.As4()[0] < 240)
}
