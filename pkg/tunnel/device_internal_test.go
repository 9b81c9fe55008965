package tunnel

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

func key(t *testing.T) wgtypes.Key {
	t.Helper()
	k, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	return k
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
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
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
	have, err := decode(text)
	if err != nil {
		t.Fatal(err)
	}
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

func TestSecurity_23_ConfigHidesKeys(t *testing.T) {
	c := config(t)
	for _, key := range []wgtypes.Key{c.PrivateKey, c.PresharedKey} {
		for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
			if s := fmt.Sprintf(format, c) + fmt.Sprintf(format, c.Peer); strings.Contains(s, key.String()) || strings.Contains(s, fmt.Sprintf("%x", key[:])) {
				t.Errorf("%s shows a key", format)
			}
		}
	}
}

func TestSnapshot(t *testing.T) {
	p := NewProber(netip.Addr{}, netip.MustParseAddrPort("192.0.2.1:6095"), time.Second)
	start := time.Now()
	if s := p.snapshot(start); s != (ProbeStats{Pause: hurryInterval}) {
		t.Errorf("before the first probe: %+v", s)
	}
	// Twelve probes, 100 ms apart. Every third one is not answered.
	at := func(i int) time.Time { return start.Add(time.Duration(i) * 100 * time.Millisecond) }
	for i := range 12 {
		n := p.mark(at(i))
		if i%3 != 0 {
			p.answered(n, at(i).Add(time.Duration(i+1)*time.Millisecond), 1440)
			// A duplicate does not count.
			p.answered(n, at(i).Add(time.Hour), 1440)
		}
	}
	s := p.snapshot(at(100))
	want := ProbeStats{
		Window: 10, Loss: 0.3, Median: 8 * time.Millisecond, Jitter: 1500 * time.Microsecond, LastReply: at(11).Add(12 * time.Millisecond), RemoteMTU: 1440, Pause: s.Pause,
	}
	if s != want {
		t.Errorf("got %+v", s)
	}
	// A probe in flight is neither lost nor answered.
	p.mark(at(100))
	if got := p.snapshot(at(101)); got.Loss != 0.3 || got.Unanswered != 1 {
		t.Errorf("a probe in flight counts: %+v", got)
	}
	if got := p.snapshot(at(200)); got.Loss <= 0.3 {
		t.Errorf("a lost probe does not count: %+v", got)
	}
}

// At the shortest interval, lost probes keep counting as lost.
func TestSnapshotOfLoss(t *testing.T) {
	p := NewProber(netip.Addr{}, netip.MustParseAddrPort("192.0.2.1:6095"), MinProbeInterval-1)
	if p.interval != MinProbeInterval {
		t.Errorf("the interval is %s", p.interval)
	}
	now := time.Now()
	for range 1000 {
		now = now.Add(MinProbeInterval)
		p.mark(now)
	}
	if s := p.snapshot(now); s.Window != ProbeWindow || s.Loss != 1 {
		t.Errorf("all were lost: %+v", s)
	}
}

// A probe that is not answered in time is soon followed by others, until one is answered.
func TestHurry(t *testing.T) {
	const interval = 1500 * time.Millisecond
	p := NewProber(netip.Addr{}, netip.MustParseAddrPort("192.0.2.1:6095"), interval)
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	want := func(what string, ms int, unanswered uint64) {
		t.Helper()
		if got := p.due().Sub(start); got != at(ms).Sub(start) {
			t.Errorf("%s: the next probe is due after %s, want %d ms", what, got, ms)
		}
		if got := p.snapshot(at(ms)).Unanswered; got != unanswered {
			t.Errorf("%s: %d are unanswered, want %d", what, got, unanswered)
		}
	}
	first := p.mark(at(0))
	want("never answered", 100, 1)
	p.answered(first, at(10), 1440)
	want("answered for the first time", 100, 0)
	for range ProbeWindow {
		p.answered(p.mark(at(0)), at(10), 1440)
	}
	want("answered", 1500, 0)
	second := p.mark(at(1500))
	want("in flight", 1800, 1)
	p.mark(at(1800))
	want("late", 1900, 2)
	fourth := p.mark(at(1900))
	want("late again", 2000, 3)
	// A reply is now late after twice the time that this one took.
	p.answered(second, at(2000), 1440)
	want("a slow answer", 1800+1000, 2)
	p.answered(fourth, at(2010), 1440)
	want("answered, with one lost", 1900+1500, 0)
	// No more replies: even forgotten probes count as late.
	for i := range 2 * len(p.window) {
		p.mark(at(3400 + 100*i))
	}
	want("all lost", 3400+100*2*len(p.window), uint64(2*len(p.window)))
}
