package tunnel

import (
	"encoding/hex"
	"fmt"
	"net"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/samber/lo"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/liqonet/liqonet/pkg/notify"
)

// userspace is wireguard-go on a TUN device. wgctrl can configure it too, but uses a socket in the file system. That
// would need a writable directory, and network namespaces share the file system.
type userspace struct {
	device *device.Device
	// received is the peer's queue of received batches of packets, nil while there is no peer.
	received atomic.Pointer[reflect.Value]
}

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
	u, windows := newUserspaceOn(t, logger)
	go releaseAfterLoad(u.device.Wait(), windows...)
	return u, nil
}

func newUserspaceOn(t tun.Device, logger *device.Logger) (u *userspace, windows []*window) {
	out, in := newWindow(), newWindow()
	u = &userspace{}
	in.idle = u.isIdle
	u.device = device.NewDevice(
		&boundedTUN{Device: t, out: reader{window: out}, in: in}, &bind{Bind: conn.NewDefaultBind(), out: out, in: in}, logger,
	)
	return u, []*window{out, in}
}

// isIdle reports whether no received packets wait, so at most the last batch is being processed. The library does not
// export that, and does not report forged and replayed packets that it drops.
func (u *userspace) isIdle() bool {
	queue := u.received.Load()
	return queue != nil && queue.Len() == 0
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
	if err := u.device.IpcSet(encode(c)); err != nil {
		return err
	}
	for _, p := range c.Peers { // a tunnel has one peer, and the others are removed
		if peer := u.device.LookupPeer(device.NoisePublicKey(p.PublicKey)); peer != nil {
			u.received.Store(new(reflect.ValueOf(peer).Elem().FieldByName("queue").FieldByName("inbound").Elem().FieldByName("c")))
		}
	}
	return nil
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

// window bounds how many packets are in flight in wireguard-go in one direction. Without it, wireguard-go reads as fast
// as it can, and keeps each packet in a buffer of 64 KiB until a worker has time for it. Thousands of buffers need
// hundreds of MiB. They also cost time, because they do not fit into the processor's caches.
//
// Packets leave in the order in which they arrived, in the same buffers. So when one leaves, those before it have left
// as well, or were dropped. wireguard-go does not report the packets that it drops.
type window struct {
	limit int
	left  notify.Signal
	// idle reports whether at most the last batch is still being processed. It may be nil.
	idle func() bool

	mu sync.Mutex
	// batch is the size of the last batch.
	batch int
	// inFlight are the buffers of the packets in flight.
	inFlight []*byte
	// leaving is the number of calls that are sending packets.
	leaving int
	// maxInFlight is the maximum number in flight since the last call of peak.
	maxInFlight int
}

const (
	// perThread is the number of packets that have room, per thread that runs Go code. Packets are read while there are
	// fewer, up to 128 at once. A bundle has 46 packets of 1,400 bytes. So there is room for one bundle for each
	// thread, and one more.
	perThread = 64
	// dropStep and dropSteps define how long nothing leaves until all packets in flight count as dropped. The time is
	// counted in steps: if the process does not get the processor, time passes although its workers have not run.
	dropStep  = time.Millisecond
	dropSteps = 3
	// yields is how often a reader lets others run before it waits for a step.
	yields = 8
)

func newWindow() *window {
	return &window{limit: perThread * runtime.GOMAXPROCS(0), left: notify.NewSignal()}
}

// wait returns when there is room. First it lets wireguard-go process what was read, if no other thread does.
func (w *window) wait() {
	for range yields {
		if !w.full(false) {
			return
		}
		runtime.Gosched()
	}
	for step := 0; w.full(step >= dropSteps); step++ {
		select {
		case <-w.left:
			step = -1
		case <-time.After(dropStep):
		}
	}
}

func (w *window) full(dropped bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if dropped && w.leaving == 0 && len(w.left) == 0 { // nothing has left just now
		w.inFlight = w.inFlight[:0]
	}
	if len(w.inFlight) >= w.limit && w.idle != nil && w.idle() {
		w.inFlight = slices.Delete(w.inFlight, 0, max(0, len(w.inFlight)-w.batch))
		return false
	}
	return len(w.inFlight) >= w.limit
}

// enter ignores packets that are nil.
func (w *window) enter(packets []*byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := len(w.inFlight)
	for _, p := range packets {
		if p != nil {
			w.inFlight = append(w.inFlight, p)
		}
	}
	w.batch = len(w.inFlight) - before
	w.maxInFlight = max(w.maxInFlight, len(w.inFlight))
}

// leave calls a function that sends packets together.
func (w *window) leave(packets [][]byte, leave func() error) error {
	last := &packets[len(packets)-1][0] // the function may exchange buffers
	w.mu.Lock()
	w.leaving++
	w.mu.Unlock()
	defer w.hasLeft(last)
	return leave()
}

func (w *window) hasLeft(last *byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leaving--
	i := slices.Index(w.inFlight, last)
	if i < 0 {
		return // a message of WireGuard's own
	}
	w.inFlight = slices.Delete(w.inFlight, 0, i+1)
	w.left.Send()
}

func (w *window) drop(packets []*byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inFlight = slices.DeleteFunc(w.inFlight, func(p *byte) bool { return slices.Contains(packets, p) })
}

// peak returns the maximum number of packets in flight since the last call.
func (w *window) peak() (most int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	most, w.maxInFlight = w.maxInFlight, len(w.inFlight)
	return most
}

// reader reads packets into a window.
type reader struct {
	window *window
	// last are the packets of the last read.
	last []*byte
}

// read calls a function that reads packets, when there is room for them. Only packets with data count.
func (r *reader) read(buffers [][]byte, data func(packet []byte) bool, read func() (int, error)) (int, error) {
	// The buffer of a packet that was dropped immediately is still in its place. This has to be detected here: anyone
	// can send packets that are dropped, and they must not delay others.
	var dropped []*byte
	for i, p := range r.last {
		if p != nil && p == &buffers[i][0] {
			dropped = append(dropped, p)
		}
	}
	if dropped != nil {
		r.window.drop(dropped)
	}
	r.window.wait()
	n, err := read()
	r.last = r.last[:0]
	for _, b := range buffers[:n] {
		var p *byte
		if data(b) {
			p = &b[0]
		}
		r.last = append(r.last, p)
	}
	r.window.enter(r.last)
	return n, err
}

// boundedTUN is a TUN device from which only as many packets are read as there is room for.
type boundedTUN struct {
	tun.Device
	out reader
	in  *window
}

// Read implements tun.Device.
func (t *boundedTUN) Read(buffers [][]byte, sizes []int, offset int) (int, error) {
	return t.out.read(buffers, func([]byte) bool { return true }, func() (int, error) {
		return t.Device.Read(buffers, sizes, offset)
	})
}

// Write implements tun.Device.
func (t *boundedTUN) Write(buffers [][]byte, offset int) (n int, err error) {
	err = t.in.leave(buffers, func() error {
		n, err = t.Device.Write(buffers, offset)
		return err
	})
	return n, err
}

const (
	// idleInterval is the interval of checks for the end of a load.
	idleInterval = 5 * time.Second
	// idlePeak is the maximum number of packets in flight without load.
	idlePeak = 16
)

// releaseAfterLoad returns memory to the system after the start and after each load, until done. Go's runtime would
// keep it for minutes, and some of it forever.
func releaseAfterLoad(done <-chan struct{}, windows ...*window) {
	tick := time.Tick(idleInterval)
	l := loads{loaded: true} // the start needs memory, too
	for {
		select {
		case <-done:
			return
		case <-tick:
		}
		most := 0
		for _, w := range windows {
			most = max(most, w.peak())
		}
		if l.ended(most) {
			// Objects in pools become garbage only at the second collection.
			runtime.GC()
			debug.FreeOSMemory()
		}
	}
}

// loads detects the end of loads.
type loads struct{ loaded bool }

// ended reports whether a load has ended, given the maximum number of packets in flight since the last call.
func (l *loads) ended(limit int) bool {
	before := l.loaded
	l.loaded = limit > idlePeak
	return before && !l.loaded
}
