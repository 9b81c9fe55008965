package tunnel_test

import (
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/flow"
)

// Who has the key pair of a gateway and not the pre-shared key gets no handshake.
func TestSecurity_23_NoHandshakeWithoutThePresharedKey(t *testing.T) {
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
					t.Error("configuring again changed something")
				}
			}
		})
	}
}

// renew has a new session agreed on, and asks as often and as soon again as package rekey does if there is none.
func (e *end) renew(t *testing.T, last time.Time) time.Time {
	t.Helper()
	const again, renewals = 300 * time.Millisecond, 5
	for range renewals {
		e.proc.Renew(t)
		if h, ok := e.handshakeWithin(t, again, last); ok {
			return h
		}
	}
	return e.handshake(t, last)
}

// Pre-shared keys are replaced, and sessions by ones of the new keys, while packets pass. None is lost, also not of those that are
// on their way, and not between the change at one end and at the other.
func TestRenewLosesNothing(t *testing.T) {
	const echo = 7777
	for _, backend := range backends() {
		t.Run(string(backend), func(t *testing.T) {
			server, client := pair(t, backend)
			last := client.handshake(t, time.Time{})
			var flows []*flow.Flow
			for _, way := range [][2]*end{{client, server}, {server, client}} {
				from, to := way[0], way[1]
				dataplane.ServeUDP(t, to.ns, echo)
				flows = append(flows, dataplane.Send(t, from.ns, inner(to.index), echo, from.ns.String(), 8))
			}
			for range 10 {
				key, err := wgtypes.GenerateKey()
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range []*end{server, client} {
					e.tunnel.PresharedKey = key
					e.proc.Configure(t, *e.tunnel)
					time.Sleep(50 * time.Millisecond) // packets pass while the ends have different keys
				}
				last = client.renew(t, last)
				time.Sleep(50 * time.Millisecond)
			}
			for _, r := range flow.End(flows...) {
				if r.Lost > 0 || r.Sent < 100 {
					t.Error(r)
				}
			}
			for _, e := range []*end{server, client} {
				if e.proc.Configure(t, *e.tunnel) {
					t.Error("something is not as it was configured")
				}
			}
		})
	}
}
