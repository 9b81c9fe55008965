package node

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/liveness"
)

// A node tries each of its gateways by TCP once per tcpInterval. After maxTCPFailures in a row, while probes by UDP are
// answered, it reports that TCP does not pass.
const (
	tcpInterval    = 30 * time.Second
	tcpTimeout     = 5 * time.Second // enough for two more SYNs
	maxTCPFailures = 3
	// maxTCPPackets is how many packets an attempt sends at most: three SYNs, or what opens and closes a connection.
	maxTCPPackets = 3
)

// tryTCP counts the attempts in a row that failed, until ctx ends. Nothing listens on the port, so a gateway's kernel
// refuses the connection, and whatever accepts it is not the gateway.
func (p *prober) tryTCP(ctx context.Context, local, gateway netip.Addr) {
	dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(local, 0)), Timeout: tcpTimeout}
	for pause := rand.N(tcpInterval); failure.Pause(ctx, pause); pause = tcpInterval {
		p.sentTCP.Add(1)
		conn, err := dialer.DialContext(ctx, "tcp4", netip.AddrPortFrom(gateway, liveness.Port).String())
		if err == nil {
			_ = conn.Close() // nothing was sent
		}
		if errors.Is(err, unix.ECONNREFUSED) {
			p.failedTCP.Store(0)
			continue
		}
		p.failedTCP.Add(1)
		p.sentTCP.Add(maxTCPPackets - 1)
	}
}
