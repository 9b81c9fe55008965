package node

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"github.com/samber/lo"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/liveness"
)

// A node tries each of its gateways by TCP once per tcpInterval, and once per failedInterval after a failure. After
// maxTCPFailures in a row, while probes by UDP are answered, it reports that TCP does not pass.
const (
	tcpInterval, failedInterval = 30 * time.Second, 10 * time.Second
	maxTCPFailures              = 5
	// tcpTimeout is less than the second after which a kernel sends another SYN (RFC 6298, section 2): that packet would
	// look like one of others.
	tcpTimeout = 900 * time.Millisecond
	// closingPackets is how many packets a node sends at most to complete and close a connection.
	closingPackets = 3
)

// tryTCP counts the attempts in a row that failed, until ctx ends.
func (p *prober) tryTCP(ctx context.Context, local, gateway netip.Addr) {
	for pause := rand.N(tcpInterval); failure.Pause(ctx, pause); {
		p.attemptTCP(ctx, local, netip.AddrPortFrom(gateway, liveness.Port))
		pause = lo.Ternary(p.failedTCP.Load() > 0, failedInterval, tcpInterval)
	}
}

// attemptTCP tries once. Nothing listens on the port, so a gateway's kernel refuses the connection, and whatever accepts
// it is not the gateway.
func (p *prober) attemptTCP(ctx context.Context, local netip.Addr, to netip.AddrPort) {
	dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(local, 0)), Timeout: tcpTimeout}
	p.sentTCP.Add(1)
	conn, err := dialer.DialContext(ctx, "tcp4", to.String())
	if err == nil {
		p.sentTCP.Add(closingPackets)
		_ = conn.Close() // nothing was sent that could be lost
	}
	if errors.Is(err, unix.ECONNREFUSED) {
		p.failedTCP.Store(0)
		return
	}
	p.failedTCP.Add(1)
}
