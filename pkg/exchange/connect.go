package exchange

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/udp"
)

// keepAlive detects soon that the remote gateway is gone. Until then its successor, which has the same address,
// cannot connect.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: time.Second, Count: 5}

// ackTimeout is how long the remote kernel may leave sent bytes without an acknowledgment (RFC 5482).
const ackTimeout = 10 * time.Second

// Connector keeps one TCP connection between two gateways, inside their tunnel.
type Connector struct {
	// Local is this gateway's overlay address, and Remote the address by which this cluster knows the peer's gateway.
	Local, Remote netip.Addr
	// Port is the port at which the side listens that is not the initiator. Exactly one side is.
	Port        uint16
	IsInitiator bool
	// Age is how long the initiator uses a connection before it opens another one, 0 for as long as it lasts.
	Age time.Duration
	// Use uses a connection until ctx or the connection ends, and closes it.
	Use func(ctx context.Context, conn net.Conn) error
}

// Connect opens or accepts one connection, and uses it until it ends. It returns the reason.
func (c *Connector) Connect(ctx context.Context) error {
	if c.IsInitiator {
		return c.dial(ctx)
	}
	return c.serve(ctx)
}

var options = udp.Options(unix.IPPROTO_TCP, map[int]int{unix.TCP_USER_TIMEOUT: int(ackTimeout.Milliseconds())})

// dial replaces the connection every c.Age, as long as the next one can be opened. It returns when that fails,
// or when a connection ends by itself.
func (c *Connector) dial(ctx context.Context) error {
	d := net.Dialer{
		Timeout: 5 * time.Second, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(c.Local, 0)), KeepAliveConfig: keepAlive, Control: options,
	}
	ctx, end := context.WithCancelCause(ctx)
	var last, before *connection
	defer func() {
		end(nil)
		before.end()
		last.end()
	}()
	for {
		conn, err := d.DialContext(ctx, "tcp", netip.AddrPortFrom(c.Remote, c.Port).String())
		if err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
		// The server ends the last one when it accepts this one. If this side did, the server could take it for a failure.
		before.end()
		before, last = last, use(ctx, end, func(ctx context.Context) error { return c.Use(ctx, conn) })
		if c.Age == 0 {
			<-ctx.Done()
			return context.Cause(ctx)
		}
		if !failure.Pause(ctx, c.Age) {
			return context.Cause(ctx)
		}
		last.mayEnd.Store(true)
	}
}

// connection is a connection in use.
type connection struct {
	stop  context.CancelFunc
	ended chan struct{}
	// mayEnd is set if it is no failure that the connection ends by itself.
	mayEnd atomic.Bool
}

// use uses a connection until it ends. If it ends by itself, use calls failed.
func use(ctx context.Context, failed context.CancelCauseFunc, serve func(context.Context) error) *connection {
	c := &connection{ended: make(chan struct{})}
	ctx, c.stop = context.WithCancel(ctx)
	go func() {
		defer close(c.ended)
		if err := serve(ctx); ctx.Err() == nil && !c.mayEnd.Load() {
			failed(err)
		}
	}()
	return c
}

// end ends the connection, if there is one, and waits for that.
func (c *connection) end() {
	if c != nil {
		c.stop()
		<-c.ended
	}
}

// serve switches to a newer connection when one arrives: the peer's gateway has restarted, and it may take seconds
// to notice that the previous connection is dead. It returns when a connection ends by itself.
func (c *Connector) serve(ctx context.Context) error {
	l, err := (&net.ListenConfig{KeepAliveConfig: keepAlive, Control: options}).Listen(ctx, "tcp", netip.AddrPortFrom(c.Local, c.Port).String())
	if err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(ctx)
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	calls := newLimit()
	var last *connection
	for {
		conn, err := l.Accept()
		if err != nil {
			end(err) // or keep the earlier reason
			last.end()
			return context.Cause(ctx)
		}
		if from, ok := conn.RemoteAddr().(*net.TCPAddr); !ok || from.AddrPort().Addr().Unmap() != c.Remote || !calls.Allow() {
			_ = conn.Close()
			continue
		}
		last.end()
		last = use(ctx, end, func(ctx context.Context) error { return c.Use(ctx, conn) })
	}
}
