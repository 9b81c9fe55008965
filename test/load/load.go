// Package load measures a path between two network namespaces: how many bytes
// per second TCP carries over it, how many requests are answered and connections
// opened, and how late the slowest answers are.
//
// Both ends are goroutines of this process, whose sockets were opened inside of
// the namespaces, so what is compared differs in nothing but the path. Figures
// of different runs, or of different machines, cannot be compared: measure in
// turn, and compare in pairs.
package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Path is from where to where. A place runs a function in a network namespace,
// on a thread of its own.
type Path struct {
	From, To func(func() error) error
	// Listen is the server's own address, Address the one by which the client
	// knows it.
	Listen, Address netip.Addr
}

const (
	// patience bounds connecting, and any one answer.
	patience = 10 * time.Second
	// warmUp is what a TCP connection gets to open its window.
	warmUp = 300 * time.Millisecond
	// chunk is what is written and read at once, in bytes.
	chunk = 256 << 10
	// question is the size of a request and of its answer, in bytes.
	question = 64
	// exchanges are how many messages a connection carries before it is loaded.
	exchanges = 20
)

// listen opens a server at the far end.
func (p Path) listen() (l net.Listener, err error) {
	err = p.To(func() error {
		l, err = net.Listen("tcp4", netip.AddrPortFrom(p.Listen, 0).String())
		return err
	})
	return l, err
}

// connect opens a connection and returns both of its ends.
func (p Path) connect(ctx context.Context, l net.Listener) (client, server net.Conn, err error) {
	type accepted struct {
		conn net.Conn
		err  error
	}
	done := make(chan accepted, 1)
	go func() {
		conn, err := l.Accept()
		done <- accepted{conn, err}
	}()
	port := l.Addr().(*net.TCPAddr).AddrPort().Port()
	to := netip.AddrPortFrom(p.Address, port).String()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err = p.From(func() error {
		// Literal addresses of one family: the connection is made on this thread.
		client, err = (&net.Dialer{}).DialContext(ctx, "tcp4", to)
		return err
	})
	if err != nil {
		_ = l.Close() // ends the waiting
		<-done
		return nil, nil, fmt.Errorf("connect to %s: %w", to, err)
	}
	a := <-done
	return client, a.conn, a.err
}

// Throughput sends over some TCP connections at once for about a duration, and returns the bits per second that
// arrived. It sends when all connections are made, and have carried some small messages. TCP sizes the bundles of a connection by the
// shortest round trip that it has seen (tcp_tso_rtt_log in the kernel's ip-sysctl). One that is made under load has seen long ones only.
// One that has only been made has seen one, by chance a short or a long one.
func Throughput(ctx context.Context, p Path, streams int, duration time.Duration) (float64, error) {
	l, err := p.listen()
	if err != nil {
		return 0, err
	}
	defer l.Close()
	var all []net.Conn
	defer func() {
		for _, c := range all {
			_ = c.Close()
		}
	}()
	var received atomic.Int64
	var wg sync.WaitGroup
	for range streams {
		client, server, err := p.connect(ctx, l)
		if err != nil {
			return 0, err
		}
		all = append(all, client, server)
		for _, c := range []net.Conn{client, server} {
			if err := c.SetDeadline(time.Now().Add(warmUp + duration + patience)); err != nil {
				return 0, err
			}
		}
		if err := exchange(client, server); err != nil {
			return 0, fmt.Errorf("exchange messages with %s: %w", p.Address, err)
		}
	}
	for i := 0; i < len(all); i += 2 {
		// Both end when the connections are closed.
		wg.Go(func() { send(all[i]) })
		wg.Go(func() { receive(all[i+1], &received) })
	}
	count := func(for_ time.Duration) (int64, time.Duration) {
		before, start := received.Load(), time.Now()
		select {
		case <-ctx.Done():
		case <-time.After(for_):
		}
		return received.Load() - before, time.Since(start)
	}
	count(warmUp)
	bytes, took := count(duration)
	// A machine that is busy with something else may do nothing for long.
	for late := time.Duration(0); bytes == 0 && late < patience && ctx.Err() == nil; late += duration {
		more, longer := count(duration)
		bytes, took = more, took+longer
	}
	for _, c := range all {
		_ = c.Close()
	}
	wg.Wait()
	if bytes == 0 {
		return 0, errors.Join(fmt.Errorf("nothing arrived at %s within %s", p.Address, took.Round(time.Millisecond)), ctx.Err())
	}
	return float64(bytes) * 8 / took.Seconds(), ctx.Err()
}

// exchange sends small messages there and back, one after the other.
func exchange(client, server net.Conn) error {
	buf := make([]byte, question)
	for range exchanges {
		for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
			if _, err := way[0].Write(buf); err != nil {
				return err
			}
			if _, err := io.ReadFull(way[1], buf); err != nil {
				return err
			}
		}
	}
	return nil
}

func send(c net.Conn) {
	buf := make([]byte, chunk)
	for {
		if _, err := c.Write(buf); err != nil {
			return
		}
	}
}

func receive(c net.Conn, received *atomic.Int64) {
	buf := make([]byte, chunk)
	for {
		n, err := c.Read(buf)
		received.Add(int64(n))
		if err != nil {
			return
		}
	}
}

// Answers is what Requests measured.
type Answers struct {
	// PerSecond is the number of requests that were answered.
	PerSecond float64
	// Median and P99 are times from the request to its answer.
	Median, P99 time.Duration
}

// Rate is the number of requests that were answered per second.
func (a Answers) Rate() float64 { return a.PerSecond }

// Requests has some clients send a small request over TCP and wait for its
// answer, again and again for a duration.
func Requests(ctx context.Context, p Path, clients int, duration time.Duration) (Answers, error) {
	l, err := p.listen()
	if err != nil {
		return Answers{}, err
	}
	defer l.Close()
	var wg sync.WaitGroup
	var all []net.Conn
	defer func() {
		for _, c := range all {
			_ = c.Close()
		}
		wg.Wait()
	}()
	times := make([][]time.Duration, clients)
	errs := make([]error, clients)
	var asking sync.WaitGroup
	var ends []net.Conn
	for range clients {
		client, server, err := p.connect(ctx, l)
		if err != nil {
			return Answers{}, err
		}
		all, ends = append(all, client, server), append(ends, client)
		wg.Go(func() { answer(server) })
	}
	start := time.Now()
	for i, c := range ends {
		asking.Go(func() { times[i], errs[i] = ask(ctx, c, start.Add(duration)) })
	}
	asking.Wait()
	took := time.Since(start)
	if err := errors.Join(errs...); err != nil {
		return Answers{}, fmt.Errorf("requests to %s: %w", p.Address, err)
	}
	rtt := slices.Concat(times...)
	if len(rtt) == 0 {
		return Answers{}, fmt.Errorf("no request to %s was answered within %s", p.Address, duration)
	}
	slices.Sort(rtt)
	return Answers{
		PerSecond: float64(len(rtt)) / took.Seconds(), Median: rtt[len(rtt)/2], P99: rtt[len(rtt)*99/100],
	}, nil
}

// Connections has some clients open a TCP connection, ask one question, wait for its answer and close it, again
// and again for a duration. It returns how many there were in a second.
func Connections(ctx context.Context, p Path, clients int, duration time.Duration) (float64, error) {
	l, err := p.listen()
	if err != nil {
		return 0, err
	}
	var servers sync.WaitGroup
	servers.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			servers.Go(func() {
				defer c.Close()
				if err := c.SetDeadline(time.Now().Add(patience)); err == nil { // or the client gets no answer, and fails
					answer(c)
				}
			})
		}
	})
	defer servers.Wait()
	defer l.Close()
	to := netip.AddrPortFrom(p.Address, l.Addr().(*net.TCPAddr).AddrPort().Port()).String()
	var opened atomic.Int64
	errs := make([]error, clients)
	start := time.Now()
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			// One thread in the namespace for all connections: making one takes longer than connecting.
			errs[i] = p.From(func() error {
				for time.Since(start) < duration && ctx.Err() == nil {
					c, err := net.DialTimeout("tcp4", to, patience)
					if err != nil {
						return err
					}
					_, err = ask(ctx, c, time.Now())
					if err := errors.Join(err, c.Close()); err != nil {
						return err
					}
					opened.Add(1)
				}
				return ctx.Err()
			})
		})
	}
	wg.Wait()
	return float64(opened.Load()) / time.Since(start).Seconds(), errors.Join(errs...)
}

// ask asks once at least.
func ask(ctx context.Context, c net.Conn, until time.Time) ([]time.Duration, error) {
	if err := c.SetDeadline(until.Add(patience)); err != nil {
		return nil, err
	}
	var out []time.Duration
	buf := make([]byte, question)
	for start := time.Now(); len(out) == 0 || start.Before(until) && ctx.Err() == nil; {
		if _, err := c.Write(buf); err != nil {
			return out, err
		}
		if _, err := io.ReadFull(c, buf); err != nil {
			return out, err
		}
		now := time.Now()
		out = append(out, now.Sub(start))
		start = now
	}
	return out, ctx.Err()
}

// answer ends when the connection is closed.
func answer(c net.Conn) {
	buf := make([]byte, question)
	for {
		if _, err := io.ReadFull(c, buf); err != nil {
			return
		}
		if _, err := c.Write(buf); err != nil {
			return
		}
	}
}
