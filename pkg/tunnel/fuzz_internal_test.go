package tunnel

import (
	"strings"
	"testing"

	"golang.zx2c4.com/wireguard/device"

	"github.com/liqonet/liqonet/test/kit"
)

// Packets of any type, of which wireguard-go drops some and forwards others, never block the reader, and never fill more
// than the window.
func FuzzWindow(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 0x84, 0x14, 4, 4, 4})
	f.Fuzz(func(t *testing.T, packets []byte) {
		const batch = 4
		w := newWindow()
		w.limit = 2 * batch
		r := reader{window: w}
		buffers := make([][]byte, batch)
		for i := range buffers {
			buffers[i] = make([]byte, 1)
		}
		for len(packets) > 0 {
			n := 0
			read := func() (int, error) {
				for n = 0; n < batch && len(packets) > 0; n++ {
					buffers[n][0], packets = packets[0], packets[1:]
				}
				return n, nil
			}
			got, err := r.read(buffers, isData, read)
			kit.FatalIf(t, err != nil || got != n, "%d of %d, %v", got, n, err)
			kit.FatalIf(t, w.peak() > w.limit+batch, "more packets than there is room for")
			for i := range n {
				if used := buffers[i]; used[0]&0x80 != 0 || used[0] == device.MessageTransportType { // forwarded
					buffers[i] = make([]byte, 1)
					kit.NoError(t, w.leave([][]byte{used}, func() error { return nil }))
				}
			}
		}
	})
}

// The state of wireguard-go contains the peer's endpoint.
func FuzzDevice(f *testing.F) {
	key := strings.Repeat("ab", 32)
	f.Add("private_key=" + key + "\nlisten_port=51840\npublic_key=" + key + "\nendpoint=[fe80::1%25eth0]:51840\nallowed_ip=10.0.0.0/8\nlast_handshake_time_sec=1\nlast_handshake_time_nsec=2\nrx_bytes=3\n")
	f.Fuzz(func(t *testing.T, text string) {
		if d, err := decode(text); err == nil {
			for _, p := range d.Peers {
				_ = udpEndpoint(p.Endpoint)
			}
		}
	})
}
