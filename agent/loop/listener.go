package loop

import (
	"cmp"
	"net"
	"net/netip"
	"slices"
	"sync"
)

// maxConns is how many connections a server has open at the same time, and maxConnsPerSource how many of them with one
// address. Every pod can connect to the metrics port, and everybody who reaches the pod to that of health checks.
const maxConns, maxConnsPerSource = 64, 4

// limitedListener limits the open connections. If there are too many, it closes the oldest one of the source that has
// the most. So a new client is served, whatever others hold.
type limitedListener struct {
	net.Listener
	mu   sync.Mutex
	open []*limitedConn
}

type limitedConn struct {
	net.Conn
	source   netip.Addr
	listener *limitedListener
}

// Accept returns the next connection.
func (l *limitedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	source, _ := netip.ParseAddrPort(conn.RemoteAddr().String())
	c := &limitedConn{Conn: conn, source: source.Addr().Unmap(), listener: l}
	if excess := l.add(c); excess != nil {
		_ = excess.Close()
	}
	return c, nil
}

// add registers a connection, and returns the one to close, nil if there is room.
func (l *limitedListener) add(c *limitedConn) *limitedConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = append(l.open, c)
	count := map[netip.Addr]int{}
	for _, o := range l.open {
		count[o.source]++
	}
	if len(l.open) <= maxConns && count[c.source] <= maxConnsPerSource {
		return nil
	}
	// The first of equal ones is the oldest.
	return slices.MaxFunc(l.open, func(a, b *limitedConn) int { return cmp.Compare(count[a.source], count[b.source]) })
}

// Close makes room for another connection.
func (c *limitedConn) Close() error {
	c.listener.mu.Lock()
	if i := slices.Index(c.listener.open, c); i >= 0 {
		c.listener.open = slices.Delete(c.listener.open, i, i+1)
	}
	c.listener.mu.Unlock()
	return c.Conn.Close()
}
