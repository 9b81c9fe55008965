package udp_test

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/pkg/udp"
	"github.com/liqonet/liqonet/test/kit"
)

// A process that was held up learns how late it is, even if it was woken as well in the meantime.
func TestWokenLate(t *testing.T) {
	server := kit.Must(net.ListenPacket("udp4", "127.0.0.1:0"))(t)
	defer func() { kit.CheckNoError(t, server.Close()) }()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const rounds, delay = 50, 3 * time.Millisecond
	wake := notify.NewSignal()
	n, unaware := 0, 0
	udp.Client{
		Remote: netip.MustParseAddrPort(server.LocalAddr().String()), Size: 32, Wake: wake, Receive: func([]byte) {},
		Unavailable: func() time.Time { return time.Now().Add(delay) },
		Send: func(_ *net.UDPConn, due time.Time) (time.Time, bool) {
			if n++; n > 1 && time.Since(due) < delay || due.IsZero() {
				unaware++
			}
			if n > rounds {
				cancel()
			}
			next := time.Now().Add(delay)
			wake.Send()
			time.Sleep(2 * delay) // the process is held up
			return next, false
		},
	}.Run(ctx)
	kit.ErrorIf(t, unaware > 0, "%d of %d late requests did not count as late", unaware, n)
}

// A client that is woken before its next request is due is not late.
func TestWokenEarly(t *testing.T) {
	server := kit.Must(net.ListenPacket("udp4", "127.0.0.1:0"))(t)
	defer func() { kit.CheckNoError(t, server.Close()) }()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wake := notify.NewSignal()
	var dues []bool
	udp.Client{
		Remote: netip.MustParseAddrPort(server.LocalAddr().String()), Size: 32, Wake: wake, Receive: func([]byte) {},
		Unavailable: func() time.Time { return time.Now() },
		Send: func(_ *net.UDPConn, due time.Time) (time.Time, bool) {
			if dues = append(dues, !due.IsZero()); len(dues) == 2 {
				cancel()
			}
			wake.Send()
			return time.Now().Add(time.Hour), false
		},
	}.Run(ctx)
	kit.Check(t, "requests that were due", dues[:2], []bool{true, false})
}
