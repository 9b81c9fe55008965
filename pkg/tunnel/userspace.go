package tunnel

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/liqonet/liqonet/pkg/link"
)

var _ Device = (*userspaceDevice)(nil)

// userspaceDevice is wireguard-go over a TUN device.
type userspaceDevice struct {
	name    string
	conn    *link.Conn
	options options

	mu      sync.Mutex
	dev     *device.Device
	applied *Config
}

func openUserspace(name string, o options) (Device, error) {
	c, err := link.Open()
	if err != nil {
		return nil, err
	}
	d := &userspaceDevice{name: name, conn: c, options: o}
	if err := d.start(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return d, nil
}

// start makes the TUN device and wireguard-go over it.
func (d *userspaceDevice) start() error {
	// What the kernel's backend left is in the way; a TUN device vanishes with
	// its process, so one that is there belongs to somebody.
	if err := removeLeftover(d.conn, d.name); err != nil {
		return err
	}
	t, err := tun.CreateTUN(d.name, device.DefaultMTU)
	if err != nil {
		return fmt.Errorf("open tunnel %q: %w", d.name, err)
	}
	logger := &device.Logger{
		Verbosef: device.DiscardLogf,
		Errorf: func(format string, args ...any) {
			d.options.report(fmt.Errorf("tunnel %q: "+format, prepend(d.name, args)...))
		},
	}
	d.dev, d.applied = device.NewDevice(t, conn.NewDefaultBind(), logger), nil
	return nil
}

// restartIfGone starts again after somebody deleted the interface.
func (d *userspaceDevice) restartIfGone() error {
	links, err := d.conn.List()
	if err != nil {
		return err
	}
	if links[d.name] != nil {
		return nil
	}
	d.dev.Close()
	return d.start()
}

func prepend(name string, args []any) []any {
	return append([]any{name}, args...)
}

func removeLeftover(c *link.Conn, name string) error {
	links, err := c.List()
	if err != nil {
		return err
	}
	if l := links[name]; l != nil && l.Kind() == kindWireGuard {
		return remove(c, name)
	}
	return nil
}

func (d *userspaceDevice) Configure(ctx context.Context, c Config) (changed bool, err error) {
	if err := c.validate(d.name); err != nil {
		return false, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if err := d.restartIfGone(); err != nil {
		return false, err
	}
	have, err := d.read()
	if err != nil {
		return false, err
	}
	if diff := difference(have, c, d.applied); diff != nil {
		if err := d.dev.IpcSet(encode(*diff)); err != nil {
			return false, fmt.Errorf("configure tunnel %q: %w", d.name, err)
		}
		changed = true
	}
	d.applied = &c
	linkChanged, err := ensureLink(d.conn, d.name, c)
	if err != nil {
		return changed || linkChanged, err
	}
	// It follows the interface, but in a while.
	if err := d.dev.Up(); err != nil {
		return changed || linkChanged, fmt.Errorf("start tunnel %q: %w", d.name, err)
	}
	return changed || linkChanged, nil
}

func (d *userspaceDevice) Stats() (Stats, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.applied == nil {
		return Stats{}, nil
	}
	have, err := d.read()
	if err != nil {
		return Stats{}, err
	}
	return statsOf(have, d.applied), nil
}

func (d *userspaceDevice) Reset(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if d.applied == nil {
		return fmt.Errorf("reset tunnel %q: %w", d.name, ErrNotConfigured)
	}
	have, err := d.read()
	if err != nil {
		return err
	}
	if err := d.dev.IpcSet(encode(resetPeer(have, *d.applied))); err != nil {
		return fmt.Errorf("reset tunnel %q: %w", d.name, err)
	}
	return nil
}

func (d *userspaceDevice) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dev.Close()
	return d.conn.Close()
}

func (d *userspaceDevice) read() (wgtypes.Device, error) {
	text, err := d.dev.IpcGet()
	if err != nil {
		return wgtypes.Device{}, fmt.Errorf("read tunnel %q: %w", d.name, err)
	}
	have, err := decode(text)
	if err != nil {
		return wgtypes.Device{}, fmt.Errorf("read tunnel %q: %w", d.name, err)
	}
	return have, nil
}

// encode writes a configuration in the language of wireguard-go, see
// https://www.wireguard.com/xplatform/#configuration-protocol.
func encode(c wgtypes.Config) string {
	var b strings.Builder
	line := func(key, value string) { b.WriteString(key + "=" + value + "\n") }
	if c.PrivateKey != nil {
		line("private_key", hex.EncodeToString(c.PrivateKey[:]))
	}
	if c.ListenPort != nil {
		line("listen_port", strconv.Itoa(*c.ListenPort))
	}
	for _, p := range c.Peers {
		line("public_key", hex.EncodeToString(p.PublicKey[:]))
		if p.Remove {
			line("remove", "true")
			continue
		}
		if p.UpdateOnly {
			line("update_only", "true")
		}
		if p.Endpoint != nil {
			line("endpoint", p.Endpoint.String())
		}
		if p.ReplaceAllowedIPs {
			line("replace_allowed_ips", "true")
		}
		for _, n := range p.AllowedIPs {
			line("allowed_ip", n.String())
		}
		// Last, because turning it on sends a packet at once.
		if p.PersistentKeepaliveInterval != nil {
			line("persistent_keepalive_interval", strconv.Itoa(int(p.PersistentKeepaliveInterval.Seconds())))
		}
	}
	return b.String()
}

// decode reads what wireguard-go says of itself. Errors name the key of a line
// and never its value, which may be secret.
func decode(text string) (wgtypes.Device, error) {
	var out wgtypes.Device
	scanner := bufio.NewScanner(strings.NewReader(text))
	for scanner.Scan() {
		key, value, _ := strings.Cut(scanner.Text(), "=")
		if decodeLine(&out, key, value) != nil {
			return wgtypes.Device{}, fmt.Errorf("unexpected value of %q", key)
		}
	}
	return out, scanner.Err()
}

func decodeLine(out *wgtypes.Device, key, value string) (err error) {
	switch key {
	case "private_key":
		out.PrivateKey, err = decodeKey(value)
		return err
	case "listen_port":
		out.ListenPort, err = strconv.Atoi(value)
		return err
	case "public_key":
		var peer wgtypes.Peer
		peer.PublicKey, err = decodeKey(value)
		out.Peers = append(out.Peers, peer)
		return err
	}
	if len(out.Peers) == 0 {
		return nil
	}
	p := &out.Peers[len(out.Peers)-1]
	switch key {
	case "endpoint":
		var endpoint netip.AddrPort
		if endpoint, err = netip.ParseAddrPort(value); err == nil {
			p.Endpoint = net.UDPAddrFromAddrPort(endpoint)
		}
	case "allowed_ip":
		var n *net.IPNet
		if _, n, err = net.ParseCIDR(value); err == nil {
			p.AllowedIPs = append(p.AllowedIPs, *n)
		}
	case "rx_bytes":
		p.ReceiveBytes, err = strconv.ParseInt(value, 10, 64)
	case "tx_bytes":
		p.TransmitBytes, err = strconv.ParseInt(value, 10, 64)
	case "persistent_keepalive_interval", "last_handshake_time_sec", "last_handshake_time_nsec":
		var n int64
		if n, err = strconv.ParseInt(value, 10, 64); err != nil {
			return err
		}
		switch key {
		case "persistent_keepalive_interval":
			p.PersistentKeepaliveInterval = time.Duration(n) * time.Second
		case "last_handshake_time_sec":
			p.LastHandshakeTime = time.Unix(n, 0)
		default:
			p.LastHandshakeTime = time.Unix(p.LastHandshakeTime.Unix(), n)
		}
	}
	return err
}

func decodeKey(value string) (wgtypes.Key, error) {
	b, err := hex.DecodeString(value)
	if err != nil {
		return wgtypes.Key{}, errors.New("not hexadecimal")
	}
	return wgtypes.NewKey(b)
}
