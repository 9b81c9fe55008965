package loop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"testing"
	"time"
)

// serve serves HTTP on a free port of loopback, and returns its address.
func serve(t *testing.T) netip.AddrPort {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(free.Addr().String())
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go Serve(ctx, slog.New(slog.DiscardHandler), "serve", at, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "ok")
	}))
	for deadline := time.Now().Add(5 * time.Second); get(at, "127.0.0.1") != nil; {
		if time.Now().After(deadline) {
			t.Fatal(get(at, "127.0.0.1"))
		}
	}
	return at
}

// get requests a page from a source address.
func get(at netip.AddrPort, from string) error {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c := &http.Client{Timeout: time.Second, Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}}
	resp, err := c.Get("http://" + at.String())
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return errors.Join(err, resp.Body.Close())
}

// Thousands of connections that send nothing, from one source or from many, neither keep others from being served nor
// take memory.
func TestConnectionsAreBounded(t *testing.T) {
	for name, source := range map[string]func(int) string{
		"one source":       func(int) string { return "127.0.1.1" },
		"the prober's own": func(int) string { return "127.0.2.2" },
		"many sources":     func(i int) string { return fmt.Sprintf("127.0.1.%d", 1+i%200) },
	} {
		t.Run(name, func(t *testing.T) {
			at := serve(t)
			before := runtime.NumGoroutine()
			for i := range 3000 {
				dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source(i))}}
				conn, err := dialer.Dial("tcp", at.String())
				if err != nil {
					t.Fatalf("connection %d: %v", i, err)
				}
				defer func() {
					if err := conn.Close(); err != nil {
						t.Error(err)
					}
				}()
				if _, err := conn.Write([]byte("GET / HTTP/1.1\r\nX: ")); err != nil {
					continue // closed already
				}
				if i%500 == 499 {
					if err := get(at, "127.0.2.2"); err != nil {
						t.Errorf("next to %d connections: %v", i+1, err)
					}
				}
			}
			if now := runtime.NumGoroutine(); now > before+2*maxConns {
				t.Errorf("%d goroutines for 3000 connections, %d before", now, before)
			}
		})
	}
}

func TestConnectionsThatAreClosed(t *testing.T) {
	l := &limitedListener{}
	conn := func(source string) *limitedConn {
		server, client := net.Pipe()
		t.Cleanup(func() {
			if err := errors.Join(server.Close(), client.Close()); err != nil {
				t.Error(err)
			}
		})
		return &limitedConn{Conn: server, source: netip.MustParseAddr(source), listener: l}
	}
	other := conn("10.0.0.9")
	if got := l.add(other); got != nil {
		t.Error("the first connection has no room")
	}
	var own []*limitedConn
	for range maxConnsPerSource {
		c := conn("10.0.0.1")
		if got := l.add(c); got != nil {
			t.Error("a connection within the limit has no room")
		}
		own = append(own, c)
	}
	if got := l.add(conn("10.0.0.1")); got != own[0] {
		t.Errorf("want the oldest of the source, got %v", got)
	}
	if err := own[0].Close(); err != nil {
		t.Error(err)
	}
	for i := range maxConns - len(l.open) {
		if got := l.add(conn(fmt.Sprintf("10.1.0.%d", i))); got != nil {
			t.Fatal("a connection within the limit has no room")
		}
	}
	if got := l.add(conn("10.2.0.1")); got != own[1] {
		t.Errorf("want the oldest of the source with the most, got %v", got)
	}
}
