package tunnel

import (
	"encoding/hex"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/samber/lo"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// userspace is wireguard-go on a TUN device. wgctrl can configure it too, but uses a socket in the file system. That
// would need a writable directory, and network namespaces share the file system.
type userspace struct{ device *device.Device }

func newUserspace(name string, report func(error)) (*userspace, error) {
	t, err := tun.CreateTUN(name, device.DefaultMTU)
	if err != nil {
		return nil, err
	}
	logger := &device.Logger{
		Verbosef: device.DiscardLogf,
		Errorf: func(format string, args ...any) {
			report(fmt.Errorf("tunnel %q: %w", name, fmt.Errorf(format, args...)))
		},
	}
	out, in := newWindow(), newWindow()
	u := &userspace{device.NewDevice(
		&boundedTUN{Device: t, out: reader{window: out}, in: in}, &bind{Bind: conn.NewDefaultBind(), out: out, in: in}, logger,
	)}
	go releaseAfterLoad(u.device.Wait(), out, in)
	return u, nil
}

// bind has wireguard-go's sockets, which receive only as many packets as there is room for.
//
// Those sockets reuse the memory of destination addresses. After an IPv4 address, they write only 4 bytes of the next
// IPv6 address, so that packet is lost. Therefore it is sent twice. The peer drops duplicates.
type bind struct {
	conn.Bind
	out, in *window
	wasIPv4 atomic.Bool
}

// Open implements conn.Bind.
func (b *bind) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	receive, port, err := b.Bind.Open(port)
	for i, f := range receive {
		r := reader{window: b.in}
		receive[i] = func(buffers [][]byte, sizes []int, endpoints []conn.Endpoint) (int, error) {
			return r.read(buffers, isData, func() (int, error) { return f(buffers, sizes, endpoints) })
		}
	}
	return receive, port, err
}

// isData distinguishes packets with data from handshakes, which are processed differently.
func isData(packet []byte) bool { return packet[0] == device.MessageTransportType }

// Send implements conn.Bind.
func (b *bind) Send(packets [][]byte, to conn.Endpoint) error {
	return b.out.leave(packets, func() error {
		is4 := to.DstIP().Is4()
		if b.wasIPv4.Swap(is4) && !is4 {
			_ = b.Bind.Send(packets, to)
		}
		return b.Bind.Send(packets, to)
	})
}

// Device returns the state of wireguard-go.
func (u *userspace) Device(string) (*wgtypes.Device, error) {
	text, err := u.device.IpcGet()
	if err != nil {
		return nil, err
	}
	return decode(text)
}

func (u *userspace) ConfigureDevice(_ string, c wgtypes.Config) error {
	return u.device.IpcSet(encode(c))
}

func (u *userspace) Close() error {
	u.device.Close()
	return nil
}

// encode writes a configuration in wireguard-go's format, see
// https://www.wireguard.com/xplatform/#configuration-protocol.
func encode(c wgtypes.Config) string {
	var b strings.Builder
	line := func(wanted bool, format string, value any) {
		if wanted {
			fmt.Fprintf(&b, format+"\n", value)
		}
	}
	line(c.PrivateKey != nil, "private_key=%x", keyBytes(c.PrivateKey))
	line(c.ListenPort != nil, "listen_port=%d", lo.FromPtr(c.ListenPort))
	for _, p := range c.Peers {
		line(true, "public_key=%x", keyBytes(&p.PublicKey))
		if p.Remove {
			line(true, "remove=%t", true)
			continue
		}
		line(p.UpdateOnly, "update_only=%t", true)
		line(p.PresharedKey != nil, "preshared_key=%x", keyBytes(p.PresharedKey))
		line(p.Endpoint != nil, "endpoint=%s", p.Endpoint)
		line(p.ReplaceAllowedIPs, "replace_allowed_ips=%t", true)
		for _, n := range p.AllowedIPs {
			line(true, "allowed_ip=%s", &n)
		}
		// Last, because enabling it sends a packet immediately.
		keepalive := p.PersistentKeepaliveInterval
		line(keepalive != nil, "persistent_keepalive_interval=%d", int(lo.FromPtr(keepalive).Seconds()))
	}
	return b.String()
}

// keyBytes returns a key as bytes, because fmt prints a wgtypes.Key in base64.
func keyBytes(k *wgtypes.Key) [wgtypes.KeyLen]byte { return lo.FromPtr(k) }

// decode reads the state of wireguard-go. Errors contain the key of a line and never its value, which may be secret.
func decode(text string) (*wgtypes.Device, error) {
	out := &wgtypes.Device{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if decodeLine(out, key, value) != nil {
			return nil, fmt.Errorf("unexpected value of %q", key)
		}
	}
	return out, nil
}

func decodeLine(out *wgtypes.Device, key, value string) (err error) {
	if key == "public_key" { // the first line of a peer
		out.Peers = append(out.Peers, wgtypes.Peer{})
	}
	p := &wgtypes.Peer{}
	if n := len(out.Peers); n > 0 {
		p = &out.Peers[n-1]
	}
	number, numberErr := strconv.ParseInt(value, 10, 64)
	switch key {
	case "private_key":
		out.PrivateKey, err = decodeKey(value)
	case "listen_port":
		out.ListenPort, err = int(number), numberErr
	case "public_key":
		p.PublicKey, err = decodeKey(value)
	case "preshared_key":
		p.PresharedKey, err = decodeKey(value)
	case "endpoint":
		p.Endpoint, err = net.ResolveUDPAddr("udp", value)
	case "allowed_ip":
		var n *net.IPNet
		if _, n, err = net.ParseCIDR(value); err == nil {
			p.AllowedIPs = append(p.AllowedIPs, *n)
		}
	case "rx_bytes":
		p.ReceiveBytes, err = number, numberErr
	case "tx_bytes":
		p.TransmitBytes, err = number, numberErr
	case "persistent_keepalive_interval":
		p.PersistentKeepaliveInterval, err = time.Duration(number)*time.Second, numberErr
	case "last_handshake_time_sec":
		p.LastHandshakeTime, err = time.Unix(number, 0), numberErr
	case "last_handshake_time_nsec":
		p.LastHandshakeTime, err = p.LastHandshakeTime.Add(time.Duration(number)), numberErr
	}
	return err
}

func decodeKey(value string) (wgtypes.Key, error) {
	b, err := hex.DecodeString(value)
	if err != nil {
		return wgtypes.Key{}, err
	}
	return wgtypes.NewKey(b)
}
