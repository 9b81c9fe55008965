package gateway

import (
	"net"
	"testing"
	"time"
)

// A port without a listener refuses packets, and a silent one does not.
func TestKnock(t *testing.T) {
	silent, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	to := silent.LocalAddr().(*net.UDPAddr).AddrPort()
	refused := func() bool {
		t.Helper()
		k, err := newPortCheck(to, false, 0)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Until(k.until))
		return k.refused()
	}
	if refused() {
		t.Error("a port with a listener has refused")
	}
	if err := silent.Close(); err != nil {
		t.Fatal(err)
	}
	if !refused() {
		t.Error("a port without a listener has not refused")
	}
}
