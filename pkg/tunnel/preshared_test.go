package tunnel_test

import (
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/liqonet/liqonet/test/kit"
)

// With the key pair of a gateway, but without the pre-shared key, there is no handshake.
func TestNoHandshakeWithoutThePresharedKey(t *testing.T) {
	for _, backend := range backends() {
		t.Run(string(backend), func(t *testing.T) {
			server, client := pair(t, backend)
			client.handshake(t, time.Time{})
			preshared := kit.Must(wgtypes.GenerateKey())(t)
			server.tunnel.PresharedKey = preshared
			kit.ErrorIf(t, !server.proc.Configure(t, *server.tunnel), "the server has no pre-shared key")
			before := server.proc.Stats(t).TxBytes
			client.proc.Reset(t)
			kit.Within(t, 20*time.Second, "the server answers the handshake, as it would with any key", func() string {
				if server.proc.Stats(t).TxBytes == before {
					return "it has sent nothing"
				}
				return ""
			})
			if h := client.proc.Stats(t).LastHandshake; !h.IsZero() {
				t.Errorf("without the pre-shared key there was a handshake, at %s", h)
			}
			client.tunnel.PresharedKey = preshared
			kit.ErrorIf(t, !client.proc.Configure(t, *client.tunnel), "the client has no pre-shared key")
			client.proc.Reset(t)
			client.handshake(t, time.Time{})
			ping(t, client, 0)
			for _, e := range []*end{server, client} {
				kit.ErrorIf(t, e.proc.Configure(t, *e.tunnel), "a second Configure changed something")
			}
		})
	}
}
