package watch

import (
	"errors"
	"net"
	"syscall"
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
	// Somebody listens when it tries for the third time.
	tries := 0
	control := dialer.Control
	defer func() { dialer.Control = control }()
	dialer.Control = func(string, string, syscall.RawConn) (err error) {
		if tries++; tries == 3 {
			l, err = net.Listen("tcp", address)
		}
		return err
	}
	conn, err := dialPatiently(t.Context(), "tcp", address)
	if err != nil || tries != 3 {
		t.Fatalf("after %d tries: %v", tries, err)
	}
	if err := errors.Join(conn.Close(), l.Close()); err != nil {
		t.Error(err)
	}
}
