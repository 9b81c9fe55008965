package watch

import (
	"net"
	"testing"
)

func TestDialPatiently(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := dialer.DialContext(t.Context(), "tcp", address); err == nil {
		t.Fatal("somebody else answers")
	}
	connected := make(chan error, 1)
	go func() {
		conn, err := dialPatiently(t.Context(), "tcp", address)
		if err == nil {
			err = conn.Close()
		}
		connected <- err
	}()
	if l, err = net.Listen("tcp", address); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := <-connected; err != nil {
		t.Error(err)
	}
}
