package gateway

import (
	"net"
	"testing"
	"time"

	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/pkg/wire"
	"github.com/liqonet/liqonet/test/kit"
)

// A port without a listener refuses packets, and a silent one does not.
func TestKnock(t *testing.T) {
	silent := kit.Must(net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}))(t)
	to := silent.LocalAddr().(*net.UDPAddr).AddrPort()
	refused := func() bool {
		t.Helper()
		k := kit.Must(newPortCheck(to, false, 0))(t)
		time.Sleep(time.Until(k.until))
		return k.refused()
	}
	kit.ErrorIf(t, refused(), "a port with a listener has refused")
	_, from, err := silent.ReadFromUDPAddrPort(make([]byte, 9))
	kit.ErrorIf(t, err != nil || from.Port() < tunnel.ListenPort || from.Port() > wire.EndOfRange(tunnel.ListenPort), "from %s, which nodes do not know as a tunnel: %v", from, err)
	kit.NoError(t, silent.Close())
	kit.ErrorIf(t, !refused(), "a port without a listener has not refused")
}
