package dataplane

import (
	"fmt"
	"strings"

	"golang.zx2c4.com/wireguard/conn"
	wireguard "golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"

	"github.com/liqonet/liqonet/pkg/tunnel"
)

// Upstream is a backend only for StartTunnel: wireguard-go as its own program runs it, for comparison. It can be
// configured once. The caller sets its interface up.
const Upstream tunnel.Backend = "upstream"

type upstream struct{ *wireguard.Device }

func openUpstream(name string) (upstream, error) {
	t, err := tun.CreateTUN(name, wireguard.DefaultMTU)
	if err != nil {
		return upstream{}, err
	}
	return upstream{wireguard.NewDevice(t, conn.NewDefaultBind(), wireguard.NewLogger(wireguard.LogLevelError, name+": "))}, nil
}

// Configure is like that of tunnel.Device.
func (u upstream) Configure(c tunnel.Config) (changed bool, err error) {
	var text strings.Builder
	fmt.Fprintf(&text, "private_key=%x\nlisten_port=%d\npublic_key=%x\n", c.PrivateKey[:], c.ListenPort, c.Peer.PublicKey[:])
	if c.Peer.Endpoint.IsValid() {
		fmt.Fprintf(&text, "endpoint=%s\n", c.Peer.Endpoint)
	}
	for _, p := range c.Peer.AllowedIPs {
		fmt.Fprintf(&text, "allowed_ip=%s\n", p)
	}
	if err := u.IpcSet(text.String()); err != nil {
		return false, err
	}
	return true, u.Up()
}

// Stats returns nothing.
func (u upstream) Stats() (tunnel.Stats, error) { return tunnel.Stats{}, nil }

// Reset does nothing.
func (u upstream) Reset() error { return nil }

// Close closes the device.
func (u upstream) Close() error {
	u.Device.Close()
	return nil
}
