package exchange

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

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
	// retryFirst and retryMost are the pauses between connections.
	retryFirst, retryMost = 500 * time.Millisecond, 10 * time.Second
)

// Channel is one side of the channel to the peer's gateway.
type Channel struct {
	// Local is this gateway's overlay address, Remote the one by which this cluster knows
	// the peer's gateway. Call says that this side makes the connection: one of both does.
	Local, Remote netip.Addr
	Call          bool

	problem func(error)
	listen  func(ctx context.Context) (net.Listener, error)
	dial    func(ctx context.Context) (net.Conn, error)

	mu      sync.Mutex
	own     Announcement
	changed notify.Signal
	heard   *Announcement
	news    notify.Signal
}

// New makes a channel. It signals news when the peer has announced something else than
// before, and tells why a connection has ended, from any goroutine.
func New(local, remote netip.Addr, call bool, news notify.Signal, problem func(error)) *Channel {
	c := &Channel{Local: local, Remote: remote, Call: call, problem: problem, changed: notify.NewSignal(), news: news}
	c.listen = func(ctx context.Context) (net.Listener, error) {
		return (&net.ListenConfig{}).Listen(ctx, "tcp", netip.AddrPortFrom(local, Port).String())
	}
	c.dial = func(ctx context.Context) (net.Conn, error) {
		d := net.Dialer{Timeout: 5 * time.Second, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(local, 0))}
		return d.DialContext(ctx, "tcp", netip.AddrPortFrom(remote, Port).String())
	}
	return c
}

// Announce has the peer told of it, now and later.
func (c *Channel) Announce(a Announcement) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.own.equal(a) {
		c.own = a
		c.changed.Send()
	}
}

// Heard returns what the peer has announced last, nil if nothing.
func (c *Channel) Heard() *Announcement {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.heard
}

// Run connects until ctx ends.
func (c *Channel) Run(ctx context.Context) {
	pause, last := retryFirst, ""
	for ctx.Err() == nil {
		start := time.Now()
		var err error
		if c.Call {
			err = c.call(ctx)
		} else {
			err = c.serve(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		if time.Since(start) > announceInterval {
			pause, last = retryFirst, ""
		}
		if err != nil && err.Error() != last {
			last = err.Error()
			c.problem(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, retryMost)
	}
}

func (c *Channel) call(ctx context.Context) error {
	conn, err := c.dial(ctx)
	if err != nil {
		return fmt.Errorf("call the peer's gateway: %w", err)
	}
	return c.talk(ctx, conn)
}

// serve accepts connections. A new one replaces the one before: that one may be of a
// gateway that is gone.
func (c *Channel) serve(ctx context.Context) error {
	l, err := c.listen(ctx)
	if err != nil {
		return fmt.Errorf("wait for calls of the peer's gateway: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	defer l.Close()
	var talking sync.WaitGroup
	defer talking.Wait()
	end := func() {}
	defer func() { end() }()
	for {
		conn, err := l.Accept()
		if err != nil {
			return fmt.Errorf("wait for calls of the peer's gateway: %w", err)
		}
		if from, ok := conn.RemoteAddr().(*net.TCPAddr); ok && from.AddrPort().Addr().Unmap() != c.Remote {
			_ = conn.Close()
			continue
		}
		end()
		talking.Wait()
		end = func() { _ = conn.Close() }
		talking.Go(func() {
			if err := c.talk(ctx, conn); err != nil && !errors.Is(err, net.ErrClosed) {
				c.problem(err)
			}
		})
		// Whoever calls again and again is served now and then.
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retryFirst):
		}
	}
}

// talk sends announcements and reads those of the peer until the connection ends.
func (c *Channel) talk(ctx context.Context, conn net.Conn) error {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	read := make(chan error, 1)
	go func() { read <- c.read(conn) }()
	wrote := c.write(ctx, conn, read)
	cancel()
	_ = conn.Close()
	return wrote
}

// write announces, until it fails or read has ended.
func (c *Channel) write(ctx context.Context, conn net.Conn, read <-chan error) error {
	for {
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
		gap := time.After(announceGap)
		select {
		case <-ctx.Done():
			return nil
		case err := <-read:
			return err
		case <-c.changed:
			select {
			case <-ctx.Done():
				return nil
			case err := <-read:
				return err
			case <-gap:
			}
		case <-time.After(announceInterval):
		}
	}
}

// errTooMuch ends a connection.
var errTooMuch = errors.New("the peer's gateway sends too much")

// read takes what the peer announces, until it fails.
func (c *Channel) read(conn net.Conn) error {
	gapEnds, frames := time.Now().Add(announceGap), 0
	for {
		if err := conn.SetReadDeadline(time.Now().Add(announceInterval + ioTimeout)); err != nil {
			return err
		}
		frame, err := readFrame(conn)
		if err != nil {
			return fmt.Errorf("listen to the peer's gateway: %w", err)
		}
		if now := time.Now(); now.After(gapEnds) {
			gapEnds, frames = now.Add(announceGap), 0
		}
		if frames++; frames > framesPerGap {
			return errTooMuch
		}
		a, err := decode(frame)
		if err != nil {
			return fmt.Errorf("listen to the peer's gateway: %w", err)
		}
		if a == nil {
			continue
		}
		c.mu.Lock()
		isNews := c.heard == nil || !c.heard.equal(*a)
		c.heard = a
		c.mu.Unlock()
		if isNews {
			c.news.Send()
		}
	}
}
