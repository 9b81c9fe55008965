package tunnel

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/liqonet/liqonet/test/kit"
)

func key(t *testing.T) wgtypes.Key {
	t.Helper()
	return kit.Must(wgtypes.GeneratePrivateKey())(t)
}

func config(t *testing.T) Config {
	t.Helper()
	return Config{
		PrivateKey: key(t), PresharedKey: key(t), ListenPort: 51840, MTU: 1420, Address: netip.MustParseAddr("10.80.31.254"),
		Peer: Peer{
			PublicKey: key(t).PublicKey(), Endpoint: netip.MustParseAddrPort("192.0.2.1:30840"), Keepalive: 5 * time.Second,
			AllowedIPs: []netip.Prefix{netip.MustParsePrefix("10.61.0.0/16"), netip.MustParsePrefix("10.62.0.0/19")},
		},
	}
}

// deviceWith returns the kernel's state after a configuration was applied.
func deviceWith(c Config) *wgtypes.Device {
	return &wgtypes.Device{
		PrivateKey: c.PrivateKey, ListenPort: int(c.ListenPort), Peers: []wgtypes.Peer{{
			PublicKey: c.Peer.PublicKey, PresharedKey: c.PresharedKey, Endpoint: net.UDPAddrFromAddrPort(c.Peer.Endpoint),
			PersistentKeepaliveInterval: c.Peer.Keepalive, AllowedIPs: ipNets(c.Peer.AllowedIPs),
		}},
	}
}

func TestDifference(t *testing.T) {
	c := config(t)
	moved := net.UDPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.99:1234"))
	old := c
	old.Peer.Endpoint = netip.MustParseAddrPort("192.0.2.5:30840")
	for _, tc := range []struct {
		name    string
		change  func(*wgtypes.Device)
		applied *Config
		// want are the keys of the text for wireguard-go, nil if there is nothing to do.
		want []string
	}{
		{"nothing", func(*wgtypes.Device) {}, nil, nil},
		{"order of prefixes", func(d *wgtypes.Device) {
			ips := d.Peers[0].AllowedIPs
			ips[0], ips[1] = ips[1], ips[0]
		}, nil, nil},
		{"new device", func(d *wgtypes.Device) { *d = wgtypes.Device{} }, nil, []string{
			"private_key", "listen_port", "public_key", "preshared_key", "endpoint", "replace_allowed_ips", "allowed_ip", "allowed_ip",
			"persistent_keepalive_interval",
		}},
		{"key", func(d *wgtypes.Device) { d.PrivateKey = wgtypes.Key{} }, nil, []string{"private_key"}},
		{"pre-shared key", func(d *wgtypes.Device) { d.Peers[0].PresharedKey = wgtypes.Key{} }, nil, []string{"public_key", "update_only", "preshared_key"}},
		{"port", func(d *wgtypes.Device) { d.ListenPort = 1 }, nil, []string{"listen_port"}},
		{"peer is gone", func(d *wgtypes.Device) { d.Peers = nil }, &c, []string{
			"public_key", "preshared_key", "endpoint", "replace_allowed_ips", "allowed_ip", "allowed_ip", "persistent_keepalive_interval",
		}},
		{"another peer", func(d *wgtypes.Device) {
			d.Peers = append(d.Peers, wgtypes.Peer{PublicKey: wgtypes.Key{1}})
		}, nil, []string{"public_key", "remove"}},
		{"prefixes", func(d *wgtypes.Device) { d.Peers[0].AllowedIPs = d.Peers[0].AllowedIPs[:1] }, nil, []string{
			"public_key", "update_only", "replace_allowed_ips", "allowed_ip", "allowed_ip",
		}},
		{"keepalive", func(d *wgtypes.Device) { d.Peers[0].PersistentKeepaliveInterval = 0 }, nil, []string{
			"public_key", "update_only", "persistent_keepalive_interval",
		}},
		{"peer moved", func(d *wgtypes.Device) { d.Peers[0].Endpoint = moved }, &c, nil},
		{"peer moved before this process", func(d *wgtypes.Device) { d.Peers[0].Endpoint = moved }, nil, []string{
			"public_key", "update_only", "endpoint",
		}},
		{"endpoint is wanted elsewhere", func(d *wgtypes.Device) { d.Peers[0].Endpoint = moved }, &old, []string{
			"public_key", "update_only", "endpoint",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			have := deviceWith(c)
			tc.change(have)
			diff := difference(have, c, tc.applied)
			var got []string
			if diff != nil {
				for line := range strings.Lines(encode(*diff)) {
					k, _, _ := strings.Cut(line, "=")
					got = append(got, k)
				}
			}
			kit.Check(t, "result", got, tc.want)
		})
	}
}

func TestServerLearnsEndpoint(t *testing.T) {
	c := config(t)
	have := deviceWith(c)
	c.Peer.Endpoint = netip.AddrPort{}
	if diff := difference(have, c, nil); diff != nil {
		t.Errorf("a server changes the learned endpoint: %s", encode(*diff))
	}
	if diff := difference(have, c, &c); diff != nil {
		t.Errorf("a server later changes the learned endpoint: %s", encode(*diff))
	}
	called := config(t)
	called.Peer.PublicKey = c.Peer.PublicKey
	diff := difference(have, c, &called)
	if diff == nil || len(diff.Peers) != 2 || !diff.Peers[0].Remove || diff.Peers[1].Remove || diff.Peers[1].Endpoint != nil ||
		diff.Peers[1].PublicKey != c.Peer.PublicKey || len(diff.Peers[1].AllowedIPs) != len(c.Peer.AllowedIPs) {
		t.Errorf("a server still has the endpoint that it had as a client: %+v", diff)
	}
	other := called
	other.Peer.PublicKey = key(t).PublicKey()
	if diff := difference(have, c, &other); diff != nil {
		t.Errorf("the configuration of another peer counts: %s", encode(*diff))
	}
	if text := encode(resetPeer(have, c)); !strings.Contains(text, "endpoint=192.0.2.1:30840\n") {
		t.Errorf("a reset forgets the endpoint: %s", text)
	}
}

func TestDecode(t *testing.T) {
	c := config(t)
	d := difference(&wgtypes.Device{}, c, nil)
	text := encode(*d) + "last_handshake_time_sec=100\nlast_handshake_time_nsec=5\nrx_bytes=7\ntx_bytes=8\nerrno=0\n"
	have := kit.Must(decode(text))(t)
	if diff := difference(have, c, nil); diff != nil {
		t.Errorf("decoding does not return the encoded configuration")
	}
	want := Stats{LastHandshake: time.Unix(100, 5), Endpoint: c.Peer.Endpoint, RxBytes: 7, TxBytes: 8, AsConfigured: true}
	if got := statsOf(have, c); got != want {
		t.Errorf("stats %+v", got)
	}
	want.AsConfigured, have.Peers[0].AllowedIPs = false, nil
	if got := statsOf(have, c); got != want {
		t.Errorf("stats after a change by others %+v", got)
	}
	secret := strings.Repeat("ab", 33)
	if _, err := decode("private_key=" + secret + "\n"); err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("a bad key gives %v", err)
	}
}

func TestConfigHidesKeys(t *testing.T) {
	c := config(t)
	for _, key := range []wgtypes.Key{c.PrivateKey, c.PresharedKey} {
		for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
			if s := fmt.Sprintf(format, c) + fmt.Sprintf(format, c.Peer); strings.Contains(s, key.String()) || strings.Contains(s, fmt.Sprintf("%x", key[:])) {
				t.Errorf("%s shows a key", format)
			}
		}
	}
}
