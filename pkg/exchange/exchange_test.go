package exchange

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/test/kit"
)

var comparable = cmpopts.EquateComparable(v1alpha1.IP{})

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }
func ip(s string) v1alpha1.IP  { return v1alpha1.IP{Addr: addr(s)} }

// contentStart is where the content of a frame begins.
const contentStart = 4 + headerLength

func frame(version, kind byte, content string) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(headerLength+len(content)))
	return append(append(b, version, kind), content...)
}

func TestFrames(t *testing.T) {
	want := Announcement{Endpoints: []string{"192.0.2.1:31820", "[2001:db8::1]:31820"}}
	for i := range MaxNodeIPs {
		want.NodeIPs = append(want.NodeIPs, v1alpha1.IP{Addr: netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, byte(i >> 8), byte(i)})})
	}
	b := encode(want)
	topic, f, err := readFrame(bytes.NewReader(b), newBudgets())
	if err != nil || topic != announcements {
		t.Fatal(topic, err)
	}
	got, err := decode(f)
	kit.NoError(t, err)
	kit.Check(t, "result", got, &want, comparable)
	// The sender leaves out what exceeds the limits.
	want.NodeIPs = append(want.NodeIPs, want.NodeIPs...)
	for range MaxEndpoints {
		want.Endpoints = append(want.Endpoints, want.Endpoints[0])
	}
	b = encode(want)
	if got, err := decode(b[contentStart:]); err != nil || len(got.NodeIPs) != MaxNodeIPs || len(got.Endpoints) != MaxEndpoints {
		t.Errorf("too much gave %v", err)
	}
}

func TestDecode(t *testing.T) {
	many := strings.TrimSuffix(strings.Repeat(`"192.0.2.1:1",`, MaxEndpoints+1), ",")
	for _, bad := range []string{
		``, `x`, `[]`, `7`, `{"endpoints": 7}`, `{"endpoints": ["192.0.2.1"]}`, `{"endpoints": ["host:1"]}`, `{"endpoints": ["192.0.2.1:0"]}`, `{"endpoints": [""]}`,
		`{"endpoints": ["[fe80::1%eth0]:1"]}`, `{"nodeIPs": [""]}`, `{"nodeIPs": ["10.0.0.0/8"]}`, `{"nodeIPs": ["fe80::1%eth0"]}`, `{"nodeIPs": [7]}`, `{"endpoints": [` + many + `]}`,
	} {
		if a, err := decode([]byte(bad)); err == nil {
			t.Errorf("%q gave %v", bad, a)
		}
	}
	a, err := decode([]byte(`{"new": {"field": 1}, "nodeIPs": ["::ffff:192.0.2.1"]}`))
	kit.ErrorIf(t, err != nil || len(a.NodeIPs) != 1 || a.NodeIPs[0] != ip("192.0.2.1"), "of a newer version: %v, %v", a, err)
	for _, length := range []uint32{0, 1, MaxFrame + 1, 1 << 31} {
		for _, kind := range []byte{typeAnnouncement, 9} {
			header := append(binary.BigEndian.AppendUint32(nil, length), frameVersion, kind)
			if _, _, err := readFrame(bytes.NewReader(header), newBudgets()); !errors.Is(err, errMalformed) {
				t.Errorf("length %d of type %d: %v", length, kind, err)
			}
		}
	}
	for _, kind := range []byte{typeAnnouncement, 9} {
		if _, _, err := readFrame(bytes.NewReader(frame(frameVersion, kind, "{}")[:7]), newBudgets()); err == nil {
			t.Errorf("half a frame of type %d was accepted", kind)
		}
	}
}

func TestFilter(t *testing.T) {
	own := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("172.18.0.2/32")}
	for name, tt := range map[string]struct {
		known, in, want []string
	}{
		"nodes of the same network":           {[]string{"172.18.0.9:31820"}, []string{"172.18.0.10:31820", "203.0.113.1:31820"}, []string{"172.18.0.10:31820", "203.0.113.1:31820"}},
		"private, where all were public":      {[]string{"203.0.113.1:31820"}, []string{"172.18.0.10:31820", "100.64.0.1:31820", "fd00::1:31820", "203.0.113.2:31820"}, []string{"203.0.113.2:31820"}},
		"nothing is known":                    {nil, []string{"172.18.0.10:31820", "203.0.113.2:31820"}, []string{"203.0.113.2:31820"}},
		"our own":                             {[]string{"172.18.0.9:31820"}, []string{"172.18.0.2:31820", "10.244.3.4:31820"}, nil},
		"inside of the tunnel":                {[]string{"172.18.0.9:31820"}, []string{"10.70.0.9:31820", "10.71.0.9:31820"}, []string{"10.71.0.9:31820"}},
		"a name is known":                     {[]string{"lb.example.test:443"}, []string{"172.18.0.10:31820", "203.0.113.1:443", "203.0.113.1:31820"}, []string{"203.0.113.1:31820"}},
		"no machine of the peer":              {[]string{"172.18.0.9:31820"}, []string{"127.0.0.1:31820", "169.254.169.254:31820", "224.0.0.1:31820", "255.255.255.255:31820", "0.0.0.0:31820", "0.1.2.3:31820", "240.0.0.1:31820", "[::1]:31820", "[fe80::1]:31820", "[ff02::1]:31820", "[::]:31820"}, nil},
		"IPv4 addresses in those of IPv6":     {[]string{"172.18.0.9:31820"}, []string{"[::ffff:10.244.3.4]:31820", "[::10.244.3.4]:31820", "[64:ff9b::af4:304]:31820", "[64:ff9b:1::af4:304]:31820", "[2001:0:af4:304::]:31820", "[2002:af4:304::1]:31820", "[2001:4860::1]:31820"}, []string{"[2001:4860::1]:31820"}},
		"well known ports":                    {[]string{"172.18.0.9:31820"}, []string{"203.0.113.2:53", "203.0.113.2:1023", "203.0.113.2:1024"}, []string{"203.0.113.2:1024"}},
		"a well known port that was given":    {[]string{"203.0.113.1:443"}, []string{"203.0.113.2:443", "203.0.113.2:443"}, []string{"203.0.113.2:443"}},
		"private addresses of the other kind": {[]string{"[fd00::9]:31820"}, []string{"[fd00::10]:31820"}, []string{"[fd00::10]:31820"}},
	} {
		f := Filter{Own: own, Tunneled: []netip.Prefix{netip.MustParsePrefix("10.70.0.0/18")}, Endpoints: tt.known}
		usable, own := f.Usable(Announcement{Endpoints: tt.in})
		kit.Check(t, name, usable.Endpoints, tt.want)
		kit.Check(t, name+": of this cluster", own, lo.Ternary(name == "our own", tt.in, nil))
	}
	f := Filter{Own: own, NodeIPs: []v1alpha1.IP{ip("172.18.0.9")}}
	got, _ := f.Usable(Announcement{NodeIPs: []v1alpha1.IP{ip("172.18.0.11"), ip("172.18.0.10"), ip("172.18.0.2"), ip("127.0.0.1"), ip("172.18.0.11")}})
	kit.Check(t, "addresses of nodes", got.NodeIPs, []v1alpha1.IP{ip("172.18.0.10"), ip("172.18.0.11")}, comparable)
	f = Filter{Endpoints: []string{"172.18.0.9:31820"}, NodeIPs: []v1alpha1.IP{ip("203.0.113.9")}}
	got, _ = f.Usable(Announcement{NodeIPs: []v1alpha1.IP{ip("172.18.0.11"), ip("203.0.113.10")}})
	kit.Check(t, "addresses of nodes, where all were public", got.NodeIPs, []v1alpha1.IP{ip("203.0.113.10")}, comparable)
}

func TestChannel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := New(addr("127.0.0.1"), addr("127.0.0.2"), false, notify.NewSignal())
		client := New(addr("127.0.0.2"), addr("127.0.0.1"), true, notify.NewSignal())
		here, there := net.Pipe()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		go func() { ended <- server.serveConn(ctx, here, newBudgets()) }()
		go func() { ended <- client.serveConn(ctx, there, newBudgets()) }()
		defer func() {
			cancel()
			if a, b := <-ended, <-ended; a == nil || b == nil {
				t.Errorf("ended with %v and %v", a, b)
			}
		}()
		server.Announce(Announcement{Endpoints: []string{"192.0.2.1:1"}})
		client.Announce(Announcement{NodeIPs: []v1alpha1.IP{ip("192.0.2.9")}})
		time.Sleep(5 * time.Second)
		if h := client.Received(); h == nil || !slices.Equal(h.Endpoints, []string{"192.0.2.1:1"}) {
			t.Errorf("the client has received %v", h)
		}
		if h := server.Received(); h == nil || !slices.Equal(h.NodeIPs, []v1alpha1.IP{ip("192.0.2.9")}) {
			t.Errorf("the server has received %v", h)
		}
		select {
		case <-client.announced:
		default:
			t.Error("no signal")
		}
		// The sender's rate limit is lower than the receiver's.
		for i := range 600 {
			server.Announce(Announcement{Endpoints: []string{netip.AddrPortFrom(addr("192.0.2.2"), uint16(i+1)).String()}})
			time.Sleep(100 * time.Millisecond)
		}
		for range 10 {
			server.Announce(Announcement{Endpoints: []string{"192.0.2.2:2"}})
			time.Sleep(time.Minute)
		}
		if h := client.Received(); !slices.Equal(h.Endpoints, []string{"192.0.2.2:2"}) {
			t.Errorf("later the client has received %v", h)
		}
		<-client.announced
		time.Sleep(10 * time.Minute)
		select {
		case <-client.announced:
			t.Error("a signal although nothing has changed")
		default:
		}
	})
}

// A restarted gateway is heard immediately, although the server does not know yet that the previous one is gone.
func TestLatestConnection(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	news := notify.NewSignal()
	server := New(addr("127.41.9.1"), addr("127.41.9.2"), false, news)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	all.Go(func() { _ = server.Connect(ctx) })
	for _, node := range []string{"192.0.2.9", "192.0.2.10", "192.0.2.11"} {
		client := New(addr("127.41.9.2"), addr("127.41.9.1"), true, notify.NewSignal())
		client.Announce(Announcement{NodeIPs: []v1alpha1.IP{ip(node)}})
		all.Go(func() {
			for ctx.Err() == nil && client.Connect(ctx) != nil && server.Received() == nil {
				time.Sleep(time.Millisecond) // the server does not listen yet
			}
		})
		select {
		case <-news:
			if h := server.Received(); !slices.Equal(h.NodeIPs, []v1alpha1.IP{ip(node)}) {
				t.Errorf("received %v", h)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("nothing was received")
		}
	}
}

// The connection is replaced again and again, and nothing notices that. Once no new one can be opened, both sides are
// silent, although the last one was not cut.
func TestConnectionsAreReplaced(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	server := New(addr("127.41.8.1"), addr("127.41.8.2"), false, notify.NewSignal())
	client := New(addr("127.41.8.2"), addr("127.41.8.1"), true, notify.NewSignal())
	kit.Check(t, "time until a new connection", client.age, announceInterval)
	client.age = 500 * time.Millisecond
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	served, called := make(chan error, 1), make(chan error, 1)
	listening, stop := context.WithCancel(ctx)
	all.Go(func() { served <- server.Connect(listening) })
	kit.Eventually(t, 5*time.Second, "the server listens", func() error {
		c, err := net.Dial("tcp", netip.AddrPortFrom(addr("127.41.8.1"), Port).String())
		if err == nil {
			err = c.Close()
		}
		return err
	})
	all.Go(func() { called <- client.Connect(ctx) })
	for range 5 {
		before, beforeServer := *client.heard.Load(), *server.heard.Load()
		kit.Eventually(t, time.Minute, "a frame on another connection", func() error {
			select {
			case err := <-called:
				t.Fatalf("the client has ended: %v", err)
			case err := <-served:
				t.Fatalf("the server has ended: %v", err)
			default:
			}
			if client.heard.Load().Equal(before) || server.heard.Load().Equal(beforeServer) {
				return errors.New("nothing was heard")
			}
			return nil
		})
	}
	stop()
	kit.ErrorIf(t, <-called == nil, "the client continues")
	before := client.Silence()
	kit.Eventually(t, time.Minute, "both are silent", func() error {
		if client.Silence() <= before || server.Silence() < 100*time.Millisecond {
			return errors.New("something was heard")
		}
		return nil
	})
}

// A hostile peer is disconnected soon, and has at most one connection at a time.
func TestHostilePeer(t *testing.T) {
	for name, send := range map[string]func(net.Conn){
		"garbage": func(c net.Conn) { _, _ = c.Write(bytes.Repeat([]byte{0xff}, 64)) },
		"silence": func(net.Conn) {},
		"too much": func(c net.Conn) {
			for {
				if _, err := c.Write(frame(7, 7, "x")); err != nil {
					return
				}
			}
		},
		"byte by byte": func(c net.Conn) {
			for _, b := range frame(frameVersion, typeAnnouncement, strings.Repeat(" ", 1000)+"{}") {
				time.Sleep(time.Second)
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := New(addr("127.0.0.1"), addr("127.0.0.2"), true, notify.NewSignal())
				here, there := net.Pipe()
				go func() { _, _ = io.Copy(io.Discard, there) }()
				go send(there)
				ended := make(chan error, 1)
				go func() { ended <- c.serveConn(t.Context(), here, newBudgets()) }()
				select {
				case err := <-ended:
					if err == nil || c.Received() != nil {
						t.Errorf("ended with %v, received %v", err, c.Received())
					}
				case <-time.After(2 * time.Minute):
					t.Error("the connection is still open")
				}
				_ = there.Close()
				time.Sleep(2 * time.Second)
			})
		})
	}
}

// Only the peer's gateway is heard, and its successor after it is gone.
func TestStranger(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	keep := func(c *Channel, until context.Context) {
		for until.Err() == nil {
			t.Log(c.Connect(until))
			time.Sleep(10 * time.Millisecond)
		}
	}
	news := notify.NewSignal()
	server := New(addr("127.41.7.1"), addr("127.41.7.2"), false, news)
	stranger := New(addr("127.41.7.3"), addr("127.41.7.1"), true, notify.NewSignal())
	stranger.Announce(Announcement{NodeIPs: []v1alpha1.IP{ip("192.0.2.66")}})
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	all.Go(func() { keep(server, ctx) })
	all.Go(func() { keep(stranger, ctx) })
	for _, node := range []string{"192.0.2.9", "192.0.2.10"} {
		client := New(addr("127.41.7.2"), addr("127.41.7.1"), true, notify.NewSignal())
		client.Announce(Announcement{NodeIPs: []v1alpha1.IP{ip(node)}})
		gone, end := context.WithCancel(ctx)
		all.Go(func() { keep(client, gone) })
		select {
		case <-news:
			if h := server.Received(); !slices.Equal(h.NodeIPs, []v1alpha1.IP{ip(node)}) {
				t.Errorf("received %v", h)
			}
		case <-time.After(30 * time.Second):
			t.Error("nothing was received")
		}
		end()
	}
	if h := stranger.Received(); h != nil {
		t.Errorf("the stranger has received %v", h)
	}
}

// New connections do not renew the budget of the peer's frames, and have one themselves.
func TestBudgetOfConnections(t *testing.T) {
	for name, tt := range map[string]struct {
		frames, calls int
		// each is set if the test looks at each connection before it opens the next, else it looks at the last one.
		each, ends bool
	}{
		"too many frames":      {perGap, 4, true, true},
		"too many connections": {0, 6 * perGap, false, true},
		"within both":          {1, 3, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			server := New(addr("127.41.9.1"), addr("127.41.9.2"), false, notify.NewSignal())
			var all sync.WaitGroup
			defer all.Wait()
			defer cancel()
			all.Go(func() { t.Log(server.Connect(ctx)) })
			d, isEnded := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr("127.41.9.2"), 0))}, false
			for i := range tt.calls {
				var c net.Conn
				kit.Eventually(t, 5*time.Second, "the server listens", func() (err error) {
					c, err = d.DialContext(ctx, "tcp", netip.AddrPortFrom(addr("127.41.9.1"), Port).String())
					return err
				})
				defer func() { _ = c.Close() }()
				_, err := c.Write(bytes.Repeat(frame(frameVersion, typeAnnouncement, "{}"), tt.frames))
				kit.NoError(t, cmp.Or(err, c.SetReadDeadline(time.Now().Add(300*time.Millisecond))))
				if tt.each || i == tt.calls-1 {
					_, err = io.Copy(io.Discard, c)
					isEnded = !errors.Is(err, os.ErrDeadlineExceeded)
				}
				if isEnded {
					break
				}
			}
			kit.Check(t, "ended", isEnded, tt.ends)
		})
	}
}

// Each topic has a budget of its own: frames that this version ignores leave that of the announcements alone. More than
// the budget of either ends the connection.
func TestBudgets(t *testing.T) {
	ignored, announced := frame(frameVersion, typeAnnouncement+1, "{}"), frame(frameVersion, typeAnnouncement, "{}")
	var within []byte
	for range perGap {
		within = slices.Concat(within, ignored, announced)
	}
	for name, tt := range map[string]struct {
		sent []byte
		want string
	}{
		"both budgets are used up":    {within, ""},
		"one more that is ignored":    {slices.Concat(within, ignored), "unknown"},
		"one more announcement":       {slices.Concat(within, announced), "announcements"},
		"ignored ones only, one more": {append(bytes.Repeat(ignored, perGap), ignored...), "unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, frames := bytes.NewReader(tt.sent), newBudgets()
				var err error
				for err == nil {
					_, _, err = readFrame(r, frames)
				}
				if tt.want == "" && !errors.Is(err, io.EOF) || tt.want != "" && !strings.Contains(err.Error(), "too many frames of topic "+tt.want) {
					t.Errorf("want %q, got %v", tt.want, err)
				}
			})
		})
	}
}

// Frames of another version, of unknown types and with unknown fields, as from a newer gateway, are ignored, and the
// connection continues.
func TestNewerGateway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(addr("127.0.0.1"), addr("127.0.0.2"), false, notify.NewSignal())
		here, there := net.Pipe()
		ended := make(chan error, 1)
		go func() { ended <- c.read(here, newBudgets()) }()
		for _, f := range [][]byte{
			frame(frameVersion, typeAnnouncement+1, `{"topic": true}`), frame(frameVersion, 255, ""),
			frame(frameVersion, typeAnnouncement, `{"endpoints": ["192.0.2.1:1"], "field": {"of": ["a", "newer", "version"]}}`),
			frame(frameVersion+1, typeAnnouncement, `{"endpoints": ["192.0.2.9:9"]}`), frame(frameVersion, 0, ""),
		} {
			if _, err := there.Write(f); err != nil {
				t.Fatalf("%q: %v, %v", f, err, <-ended)
			}
		}
		synctest.Wait()
		if got := c.Received(); got == nil || !slices.Equal(got.Endpoints, []string{"192.0.2.1:1"}) {
			t.Errorf("it has accepted %v", got)
		}
		_ = there.Close()
		if err := <-ended; !errors.Is(err, io.EOF) {
			t.Errorf("it ended with %v", err)
		}
	})
}
