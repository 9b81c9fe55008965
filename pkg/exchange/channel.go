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
	// keysGap is the least time between two messages about keys, of which keysBurst may follow each other. Both
	// kinds together are less than a peer may send.
	keysGap, keysBurst = time.Second, 3
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

	// said and heard are about keys, nil if there is nothing, and nothing new.
	said, heard []byte
	saidChanged notify.Signal
	keysNews    notify.Signal
	// interrupt ends the present connection, or the attempt at one, of the side that calls.
	interrupt context.CancelCauseFunc
}

// New makes a channel between this gateway's overlay address, local, and the one by which
// this cluster knows the peer's gateway. If call is set, this side makes the connection: one
// of both does. It signals news when the peer has announced something else than before, and
// keysNews when it has said something about keys.
func New(local, remote netip.Addr, call bool, news, keysNews notify.Signal) *Channel {
	return &Channel{
		local: local, remote: remote, call: call,
		changed: notify.NewSignal(), news: news, saidChanged: notify.NewSignal(), keysNews: keysNews,
	}
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

// SayOfKeys has the peer told this about keys, now and with each later connection. What that is package rekey knows.
func (c *Channel) SayOfKeys(message []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said = message
	c.saidChanged.Send()
}

// HeardOfKeys returns what the peer has said about keys since the last call, nil if nothing.
func (c *Channel) HeardOfKeys() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	message := c.heard
	c.heard = nil
	return message
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

// errInterrupted is why a connection has ended that is followed by another one at once.
var errInterrupted = errors.New("interrupted")

// Interrupt has the side that calls make another connection. Nothing that was said by the present one arrives any more, unless it has.
func (c *Channel) Interrupt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.interrupt != nil {
		c.interrupt(errInterrupted)
	}
}

func (c *Channel) dial(ctx context.Context) error {
	for {
		present, interrupt := context.WithCancelCause(ctx)
		c.mu.Lock()
		c.interrupt = interrupt
		c.mu.Unlock()
		err := c.dialOnce(present)
		wasInterrupted := errors.Is(context.Cause(present), errInterrupted)
		if interrupt(nil); !wasInterrupted {
			return err
		}
	}
}

func (c *Channel) dialOnce(ctx context.Context) error {
	d := net.Dialer{
		Timeout: 5 * time.Second, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(c.local, 0)), KeepAliveConfig: keepAlive,
	}
	conn, err := d.DialContext(ctx, "tcp", netip.AddrPortFrom(c.remote, Port).String())
	if err != nil {
		return err
	}
	// The kernel forgets what it has not sent when the connection is closed.
	if err := conn.(*net.TCPConn).SetLinger(0); err != nil {
		return errors.Join(err, conn.Close())
	}
	return c.talk(ctx, conn, newFrameLimit())
}

// newFrameLimit is what a peer may send.
func newFrameLimit() *rate.Limiter {
	return rate.NewLimiter(rate.Every(announceGap/framesPerGap), framesPerGap)
}

// serve goes over to a later connection, where there is one: the peer's gateway has started anew, and it may take
// seconds to notice that the former one is gone.
func (c *Channel) serve(ctx context.Context) error {
	l, err := (&net.ListenConfig{KeepAliveConfig: keepAlive}).Listen(ctx, "tcp", netip.AddrPortFrom(c.local, Port).String())
	if err != nil {
		return err
	}
	conns := make(chan net.Conn)
	both, ctx := errgroup.WithContext(ctx)
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	both.Go(func() error { return c.accept(ctx, l, conns) })
	both.Go(func() error { return c.useLatest(ctx, conns) })
	return both.Wait()
}

// accept passes on connections of the peer's gateway until it fails.
func (c *Channel) accept(ctx context.Context, l net.Listener, conns chan<- net.Conn) error {
	gap := newFrameLimit() // each connection brings a frame
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		if from, ok := conn.RemoteAddr().(*net.TCPAddr); ok && from.AddrPort().Addr().Unmap() == c.remote && gap.Allow() {
			select {
			case conns <- conn:
				continue
			case <-ctx.Done():
			}
		}
		_ = conn.Close()
	}
}

// useLatest talks by the latest connection, until one ends by itself. All of them together have one limit.
func (c *Channel) useLatest(ctx context.Context, conns <-chan net.Conn) error {
	frames := newFrameLimit()
	var conn net.Conn
	select {
	case conn = <-conns:
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		talking, stop := context.WithCancel(ctx)
		ended, why := make(chan struct{}), error(nil)
		go func() {
			defer close(ended)
			why = c.talk(talking, conn, frames)
		}()
		var next net.Conn
		select {
		case <-ended:
		case next = <-conns:
		}
		stop()
		if <-ended; next == nil {
			return why
		}
		conn = next
	}
}

// talk says what there is to say, and reads what the peer says, until the connection ends. It
// returns why.
func (c *Channel) talk(ctx context.Context, conn net.Conn, frames *rate.Limiter) error {
	all, ctx := errgroup.WithContext(ctx)
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	all.Go(func() error {
		return write(ctx, conn, rate.NewLimiter(rate.Every(announceGap), 1), c.changed, c.announcement)
	})
	all.Go(func() error {
		return write(ctx, conn, rate.NewLimiter(rate.Every(keysGap), keysBurst), c.saidChanged, c.ofKeys)
	})
	all.Go(func() error { return c.read(conn, frames) })
	return all.Wait()
}

// announcement is the frame that the peer is sent.
func (c *Channel) announcement() ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return encode(c.own)
}

// ofKeys is the same about keys, nil if there is none.
func (c *Channel) ofKeys() ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.said == nil {
		return nil, nil
	}
	return frameOf(typeKeys, c.said), nil
}

// write sends a frame, when it has changed and every announceInterval, until it fails or ctx ends.
func write(ctx context.Context, conn net.Conn, gap *rate.Limiter, changed notify.Signal, frame func() ([]byte, error)) error {
	for {
		if err := gap.Wait(ctx); err != nil {
			return err
		}
		b, err := frame()
		if err != nil {
			return err
		}
		if b != nil {
			if err := conn.SetWriteDeadline(time.Now().Add(ioTimeout)); err != nil {
				return err
			}
			if _, err := conn.Write(b); err != nil {
				return fmt.Errorf("tell the peer's gateway: %w", err)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
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
	message, err := aboutKeys(frame)
	if err != nil {
		return err
	}
	a, err := decode(frame)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case message != nil:
		c.heard = message
		c.keysNews.Send()
	case a != nil:
		isNews := c.received == nil || !equal(*c.received, *a)
		if c.received = a; isNews {
			c.news.Send()
		}
	}
	return nil
}
