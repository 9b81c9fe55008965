package exchange

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/liqonet/liqonet/pkg/notify"
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

	mu       sync.Mutex
	own      Announcement
	changed  notify.Signal
	received *Announcement
	news     notify.Signal
}

// New makes a channel between this gateway's overlay address, local, and the one by which
// this cluster knows the peer's gateway. If call is set, this side makes the connection: one
// of both does. It signals news when the peer has announced something else than before.
func New(local, remote netip.Addr, call bool, news notify.Signal) *Channel {
	return &Channel{local: local, remote: remote, call: call, changed: notify.NewSignal(), news: news}
}

// Announce has the peer told of it, now and later.
func (c *Channel) Announce(a Announcement) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !equal(c.own, a) {
		c.own = a
		c.changed.Send()
	}
}

// Received returns what the peer has announced last, nil if nothing.
func (c *Channel) Received() *Announcement {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.received
}

// Connect makes one connection, or waits for one, and uses it until it ends. It returns why that is.
func (c *Channel) Connect(ctx context.Context) error {
	use := c.serve
	if c.call {
		use = c.dial
	}
	if err := use(ctx); err != nil {
		return fmt.Errorf("talk to the peer's gateway: %w", err)
	}
	return nil
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

// serve goes over to a later connection, where there is one: the peer's gateway has started anew, and it may take
// seconds to notice that the former one is gone. It ends when one ends by itself.
func (c *Channel) serve(ctx context.Context) error {
	l, err := (&net.ListenConfig{KeepAliveConfig: keepAlive}).Listen(ctx, "tcp", netip.AddrPortFrom(c.local, Port).String())
	if err != nil {
		return err
	}
	all, ctx := errgroup.WithContext(ctx)
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	all.Go(func() error {
		gap, frames := newFrameLimit(), newFrameLimit() // each connection brings a frame; all of them together have one limit
		endLast := func() {}
		for {
			conn, err := l.Accept()
			if err != nil {
				return err
			}
			if from, ok := conn.RemoteAddr().(*net.TCPAddr); !ok || from.AddrPort().Addr().Unmap() != c.remote || !gap.Allow() {
				_ = conn.Close()
				continue
			}
			endLast()
			talking, stop := context.WithCancel(ctx)
			ended := make(chan struct{})
			endLast = func() {
				stop()
				<-ended
			}
			all.Go(func() error {
				defer close(ended)
				if err := c.talk(talking, conn, frames); talking.Err() == nil {
					return err
				}
				return nil // it was ended
			})
		}
	})
	return all.Wait()
}

// talk says what there is to say, and reads what the peer says, until the connection ends. It
// returns why.
func (c *Channel) talk(ctx context.Context, conn net.Conn, frames *rate.Limiter) error {
	both, ctx := errgroup.WithContext(ctx)
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	both.Go(func() error { return c.write(ctx, conn) })
	both.Go(func() error { return c.read(conn, frames) })
	return both.Wait()
}

// write announces, when that has changed and every announceInterval, until it fails or ctx ends.
func (c *Channel) write(ctx context.Context, conn net.Conn) error {
	gap := rate.NewLimiter(rate.Every(announceGap), 1)
	for {
		if err := gap.Wait(ctx); err != nil {
			return err
		}
		c.mu.Lock()
		own := c.own
		c.mu.Unlock()
		frame, err := encode(own)
		if err != nil {
			return err
		}
		if err := conn.SetWriteDeadline(time.Now().Add(ioTimeout)); err != nil {
			return err
		}
		if _, err := conn.Write(frame); err != nil {
			return fmt.Errorf("tell the peer's gateway: %w", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.changed:
		case <-time.After(announceInterval):
		}
	}
}

// errTooMuch ends a connection.
var errTooMuch = errors.New("the peer's gateway sends too much")

// read takes what the peer says, until it fails.
func (c *Channel) read(conn net.Conn, frames *rate.Limiter) error {
	for {
		if err := conn.SetReadDeadline(time.Now().Add(announceInterval + ioTimeout)); err != nil {
			return err
		}
		frame, err := readFrame(conn)
		if err == nil && !frames.Allow() {
			return errTooMuch
		}
		if err == nil {
			err = c.take(frame)
		}
		if err != nil {
			return fmt.Errorf("listen to the peer's gateway: %w", err)
		}
	}
}

// take keeps what a frame says.
func (c *Channel) take(frame []byte) error {
	a, err := decode(frame)
	if err != nil || a == nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	isNews := c.received == nil || !equal(*c.received, *a)
	if c.received = a; isNews {
		c.news.Send()
	}
	return nil
}
