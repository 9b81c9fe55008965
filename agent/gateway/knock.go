package gateway

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"
)

// A knock is a datagram to an endpoint that is not in use. It finds out whether packets sent there would be refused: a
// node refuses them until its kube-proxy knows the Service's port, with an ICMP port unreachable. WireGuard itself never
// answers what is not its own, so that nothing comes says nothing.
type knock struct {
	conn net.Conn
	to   netip.AddrPort
	// busy says that nodes sent packets by the tunnel already.
	busy bool
	// until is how long an answer may take.
	until time.Time
}

// minKnockTime is how long the answer to a knock may take at least.
const minKnockTime = 20 * time.Millisecond

// newKnock sends it. rtt is what an answer from there takes.
func newKnock(to netip.AddrPort, busy bool, rtt time.Duration) (*knock, error) {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err == nil {
		if _, err = conn.Write([]byte{0}); err != nil {
			_ = conn.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("send to endpoint %s: %w", to, err)
	}
	return &knock{conn, to, busy, time.Now().Add(max(2*rtt, minKnockTime))}, nil
}

// refused ends the knock, and says whether it was.
func (k *knock) refused() bool {
	defer func() { _ = k.conn.Close() }()
	// An error that the socket has is returned first, whatever the deadline.
	_, err := k.conn.Write([]byte{0})
	return errors.Is(err, syscall.ECONNREFUSED)
}
