package tunnel_test

import (
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// With the key pair of a gateway, but without the pre-shared key, there is no handshake.
func TestNoHandshakeWithoutThePresharedKey(t *testing.T) {
	for _, backend := range backends() {
		t.Run(string(backend), func(t *testing.T) {
			server, client := pair(t, backend)
			client.handshake(t, time.Time{})
			preshared, err := wgtypes.GenerateKey()
			if err != nil {
				t.Fatal(err)
			}
			server.tunnel.PresharedKey = preshared
			if !server.proc.Configure(t, *server.tunnel) {
				t.Error("the server has no pre-shared key")
			}
			before := server.proc.Stats(t).TxBytes
			client.proc.Reset(t)
			for deadline := time.Now().Add(20 * time.Second); server.proc.Stats(t).TxBytes == before; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("the server does not answer the handshake, which it would with any key")
				}
			}
			if h := client.proc.Stats(t).LastHandshake; !h.IsZero() {
				t.Errorf("without the pre-shared key there was a handshake, at %s", h)
			}
			client.tunnel.PresharedKey = preshared
			if !client.proc.Configure(t, *client.tunnel) {
				t.Error("the client has no pre-shared key")
			}
			client.proc.Reset(t)
			client.handshake(t, time.Time{})
			ping(t, client, 0)
			for _, e := range []*end{server, client} {
				if e.proc.Configure(t, *e.tunnel) {
					t.Error("a second Configure changed something")
				}
			}
		})
	}
}
