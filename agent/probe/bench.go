package probe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/liqonet/liqonet/pkg/probe"
)

const (
	// streams is how many connections carry as much as they can, askers how many ask and wait.
	streams, askers = 4, 8
	// chunk is what is written at once.
	chunk = 256 << 10
	// connecting is how long a connection may take.
	connecting = 3 * time.Second
)

// bench measures the three speeds, one after the other.
func bench(ctx context.Context, token string, b probe.Bench) (*probe.Speed, error) {
	lasts := time.Duration(b.Milliseconds) * time.Millisecond
	var s probe.Speed
	var err error
	if s.BitsPerSecond, err = throughput(ctx, token, b.To, lasts); err != nil {
		return nil, err
	}
	if s.MedianMicroseconds, s.SlowMicroseconds, err = latency(ctx, token, b.To, lasts); err != nil {
		return nil, err
	}
	s.RequestsPerSecond, err = requests(ctx, token, b.To, lasts)
	return &s, err
}

// connect asks by a connection of its own, which is left open until a deadline.
func connect(ctx context.Context, token string, to netip.AddrPort, mode byte, lasts time.Duration) (*net.TCPConn, error) {
	dialed, err := (&net.Dialer{Timeout: connecting}).DialContext(ctx, "tcp4", to.String())
	if err != nil {
		return nil, fmt.Errorf("connect: %s", plainly(err))
	}
	conn := dialed.(*net.TCPConn)
	if err = conn.SetDeadline(time.Now().Add(lasts + 2*connecting)); err == nil {
		_, err = ask(conn, token, mode)
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("connected, and then: %s", plainly(err))
	}
	return conn, nil
}

// together has connections of a mode do something at the same time, and adds up what comes of it.
func together(ctx context.Context, token string, to netip.AddrPort, n int, mode byte, lasts time.Duration, do func(*net.TCPConn) (float64, error)) (sum float64, err error) {
	conns := make([]*net.TCPConn, n)
	for i := range conns {
		if conns[i], err = connect(ctx, token, to, mode, lasts); err != nil {
			return 0, err
		}
		defer conns[i].Close()
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, conn := range conns {
		wg.Go(func() {
			n, doErr := do(conn)
			mu.Lock()
			defer mu.Unlock()
			sum, err = sum+n, errors.Join(err, doErr)
		})
	}
	wg.Wait()
	return sum, err
}

// throughput is how many bits per second arrive.
func throughput(ctx context.Context, token string, to netip.AddrPort, lasts time.Duration) (float64, error) {
	return together(ctx, token, to, streams, modeSink, lasts, func(conn *net.TCPConn) (float64, error) {
		start := time.Now()
		for block := make([]byte, chunk); time.Since(start) < lasts; {
			if _, err := conn.Write(block); err != nil {
				return 0, err
			}
		}
		if err := conn.CloseWrite(); err != nil {
			return 0, err
		}
		arrived := make([]byte, 8)
		if _, err := io.ReadFull(conn, arrived); err != nil {
			return 0, err
		}
		return float64(binary.BigEndian.Uint64(arrived)) * 8 / time.Since(start).Seconds(), nil
	})
}

// requests is how many questions per second are answered.
func requests(ctx context.Context, token string, to netip.AddrPort, lasts time.Duration) (float64, error) {
	return together(ctx, token, to, askers, modeAnswer, lasts, func(conn *net.TCPConn) (float64, error) {
		n, start := 0, time.Now()
		for ; time.Since(start) < lasts; n++ {
			if _, err := ask(conn, token, modeAnswer); err != nil {
				return 0, err
			}
		}
		return float64(n) / time.Since(start).Seconds(), nil
	})
}

// latency is how long packets and their answers take, in microseconds. Lost ones do not count.
func latency(ctx context.Context, token string, to netip.AddrPort, lasts time.Duration) (median, slow float64, err error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "udp4", to.String())
	if err != nil {
		return 0, 0, err
	}
	defer conn.Close()
	var took []time.Duration
	buf := make([]byte, largest)
	for start := time.Now(); time.Since(start) < lasts; {
		asked := time.Now()
		if err := conn.SetDeadline(asked.Add(again)); err != nil {
			return 0, 0, err
		}
		if _, err := conn.Write(question(token, modeAnswer, 0)); err == nil {
			if _, err = conn.Read(buf); err == nil {
				took = append(took, time.Since(asked))
			}
		}
	}
	if len(took) == 0 {
		return 0, 0, errors.New("no packet was answered")
	}
	slices.Sort(took)
	at := func(part float64) float64 { return float64(took[int(part*float64(len(took)-1))].Nanoseconds()) / 1000 }
	return at(0.5), at(0.99), nil
}
