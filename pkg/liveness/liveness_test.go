package liveness_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/liqonet/liqonet/pkg/liveness"
	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/test/kit"
)

// link is a responder behind a relay that can drop packets.
type link struct {
	responder liveness.Responder
	answer    atomic.Pointer[liveness.Answer]
	drop      atomic.Pointer[func(length int) bool]
	remote    netip.AddrPort
	session   *liveness.Session
	changed   notify.Signal
	used      atomic.Bool
	reached   atomic.Uint32
	// asked counts the requests that were recorded. unknown is set if the requester is unknown.
	asked   atomic.Uint64
	unknown atomic.Bool
	// losesAnswers is what the last request has reported.
	losesAnswers atomic.Bool
	// others counts packets. flowing is set if packets other than requests and answers always arrive.
	others  atomic.Uint64
	flowing atomic.Bool
	// delay is how long answers wait in a queue, in nanoseconds.
	delay atomic.Int64
	// flow is the port to which the last large packet went. While noNewFlows is set, large packets to others are dropped.
	flow       atomic.Int64
	noNewFlows atomic.Bool
	// hold makes the relay hold back answers, which are in held.
	hold atomic.Bool
	mu   sync.Mutex
	held []func(large bool)
}

// newLink makes a link and its session. If counts is set, the session also counts other packets.
func newLink(t *testing.T, counts bool) *link {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &link{changed: notify.NewSignal()}
	l.answer.Store(&liveness.Answer{State: liveness.State{Up: true, LossFree: time.Hour}})
	l.pass()
	l.responder.State = func(netip.Addr) liveness.Answer { return *l.answer.Load() }
	l.responder.OnRequest = func(_ netip.Addr, q liveness.Request) (known bool) {
		l.asked.Add(1)
		l.used.Store(q.InUse)
		l.reached.Store(uint32(q.Reached))
		l.losesAnswers.Store(q.LosesAnswers)
		return !l.unknown.Load()
	}
	l.responder.Measured = func(netip.Addr, [8]byte) uint16 { return 1420 }
	conn := kit.Must(net.ListenPacket("udp4", "127.0.0.1:0"))(t)
	l.remote = netip.MustParseAddrPort(conn.LocalAddr().String())
	l.session = liveness.New(netip.MustParseAddr("127.0.0.1"), l.remote, 10, l.changed)
	if counts {
		l.session.Received = func() (uint64, error) {
			if l.flowing.Load() {
				l.others.Add(1)
			}
			return l.others.Load(), nil
		}
	}
	done := make(chan struct{}, 2)
	go func() { _ = l.responder.Serve(ctx, lossy{conn, l}); done <- struct{}{} }()
	go func() { l.session.Run(ctx); done <- struct{}{} }()
	t.Cleanup(func() { cancel(); <-done; <-done })
	return l
}

func (l *link) pass() { l.drop.Store(new(func(int) bool { return false })) }

func (l *link) cut(drop func(length int) bool) { l.drop.Store(&drop) }

// lossy drops or delays answers.
type lossy struct {
	net.PacketConn
	l *link
}

func (c lossy) WriteTo(b []byte, to net.Addr) (int, error) {
	if (*c.l.drop.Load())(len(b)) {
		return len(b), nil
	}
	if port := int64(to.(*net.UDPAddr).Port); len(b) > 1000 {
		if c.l.noNewFlows.Load() && port != c.l.flow.Load() {
			return len(b), nil
		}
		c.l.flow.Store(port)
	}
	c.l.others.Add(1)
	if c.l.hold.Load() {
		later := bytes.Clone(b) // the sender reuses its buffer
		c.l.mu.Lock()
		defer c.l.mu.Unlock()
		c.l.held = append(c.l.held, func(large bool) {
			if large == (len(later) > 1000) {
				_, _ = c.PacketConn.WriteTo(later, to) // late answers may be lost, too
			}
		})
		return len(b), nil
	}
	if d := time.Duration(c.l.delay.Load()); d > 0 {
		late := bytes.Clone(b)                                              // the sender reuses its buffer
		time.AfterFunc(d, func() { _, _ = c.PacketConn.WriteTo(late, to) }) // late answers may be lost, too
		return len(b), nil
	}
	return c.PacketConn.WriteTo(b, to)
}

// await waits for a state, and returns how long that took.
func (l *link) await(t *testing.T, what string, is func(liveness.State) bool) time.Duration {
	t.Helper()
	start := time.Now()
	for !is(l.session.State()) {
		if time.Since(start) > 20*time.Second {
			t.Fatalf("%s: %+v", what, l.session.State())
		}
		select {
		case <-l.changed:
		case <-time.After(10 * time.Millisecond):
		}
	}
	return time.Since(start)
}

// awaitLoss waits until the session is certain that large packets are lost, and calls push again and again. Until
// forgiveness has passed since the last answer, a request counts as answered if the session itself was late, which
// happens on a busy machine: then it is up again, and knows of no loss.
func (l *link) awaitLoss(t *testing.T, push func()) {
	t.Helper()
	const forgiveness = 3 * time.Second
	l.await(t, "large packets are lost", func(s liveness.State) bool {
		push()
		return !s.Up && s.Down > forgiveness
	})
}

func isUp(s liveness.State) bool { return s.Up }

func isDown(s liveness.State) bool { return !s.Up }

func TestSession(t *testing.T) {
	t.Parallel()
	l := newLink(t, false)
	l.await(t, "it works", isUp)
	l.session.SetUsage(1400)
	l.await(t, "packets of full size pass, too", func(s liveness.State) bool { return s.Up && l.used.Load() })
	for name, drop := range map[string]func(int) bool{
		"nothing passes": func(int) bool { return true }, "large packets do not pass": func(n int) bool { return n > 1000 },
	} {
		l.cut(drop)
		took := l.await(t, name, isDown)
		t.Logf("%s: detected after %s", name, took.Round(time.Millisecond))
		l.pass()
		l.await(t, name+", fixed", isUp)
	}
	// A path that is not in use is checked rarely, but a failure is still detected.
	l.session.SetUsage(0)
	l.cut(func(int) bool { return true })
	l.await(t, "idle, and nothing passes", isDown)
}

// A responder that is asked rarely learns immediately when packets start or stop being sent: a gateway that ends
// waits for that.
func TestUseIsToldAtOnce(t *testing.T) {
	t.Parallel()
	l := newLink(t, false)
	l.answer.Store(&liveness.Answer{State: liveness.State{Up: true}, Interval: time.Minute})
	l.await(t, "up", isUp)
	for _, size := range []int{1400, 0, 1400, 0} {
		l.session.SetUsage(size)
		kit.Within(t, 10*time.Second, "the responder knows whether packets are sent", func() string {
			if used := l.used.Load(); used != (size > 0) {
				return fmt.Sprintf("in use: %v", used)
			}
			return ""
		})
	}
}

// While large packets are lost, the path stays down even if none are sent. Otherwise it would seem to work until the
// next large packet.
func TestLargePacketsStayLost(t *testing.T) {
	t.Parallel()
	l := newLink(t, false)
	l.await(t, "it works", isUp)
	l.cut(func(n int) bool { return n > 1000 })
	l.session.SetUsage(1400)
	l.await(t, "large packets are lost", isDown)
	reports := func(liveness.State) bool { return l.losesAnswers.Load() }
	l.awaitLoss(t, func() {})
	l.await(t, "the other end learns that", reports)
	l.session.SetUsage(0)
	asked := l.session.RequestsSent()
	for l.session.RequestsSent() < asked+5 {
		kit.FatalIf(t, l.session.State().Up, "it counts as up")
		kit.FatalIf(t, !l.losesAnswers.Load(), "it is no longer reported")
		time.Sleep(10 * time.Millisecond)
	}
	l.pass()
	l.await(t, "large packets pass", isUp)
	if took := l.await(t, "the other end learns that", func(liveness.State) bool { return !l.losesAnswers.Load() }); took > time.Second {
		t.Errorf("it learned that after %s", took)
	}
}

// A network that drops new flows may still forward those that it knows. This is detected even if each request is sent
// before the previous one is answered.
func TestNewFlowsAreLost(t *testing.T) {
	t.Parallel()
	for name, delay := range map[string]time.Duration{"near": 0, "far": 250 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLink(t, false)
			l.delay.Store(int64(delay))
			l.session.SetUsage(60) // the size of small requests
			l.await(t, "it works as usual", func(s liveness.State) bool {
				return s.Up && s.LossFree > time.Second && l.session.RequestsSent() > 20
			})
			l.session.SetUsage(1400)
			for l.flow.Load() == 0 {
				time.Sleep(10 * time.Millisecond)
			}
			for asked := l.session.RequestsSent(); l.session.RequestsSent() < asked+100; time.Sleep(10 * time.Millisecond) {
				if s := l.session.State(); !s.Up {
					t.Fatalf("another flow: %+v", s)
				}
			}
			l.noNewFlows.Store(true)
			l.await(t, "new flows are lost", isDown)
			l.noNewFlows.Store(false)
			l.await(t, "new flows pass", isUp)
		})
	}
}

// What a responder repeats at a change is no answer to a request of full size.
func TestPushOverAPathThatLosesLargePackets(t *testing.T) {
	t.Parallel()
	l := newLink(t, false)
	l.await(t, "it works", isUp)
	l.session.SetUsage(1400)
	for l.flow.Load() == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	l.cut(func(n int) bool { return n > 1000 })
	l.awaitLoss(t, l.responder.Push)
	l.session.SetUsage(0)
	l.responder.Push()
	for sent := l.session.RequestsSent(); l.session.RequestsSent() < sent+5; time.Sleep(10 * time.Millisecond) {
		kit.FatalIf(t, l.session.State().Up, "it counts as up while no packets are sent")
	}
}

// Requesters that ask rarely learn immediately of a change behind the responder.
func TestPush(t *testing.T) {
	t.Parallel()
	l := newLink(t, false)
	l.await(t, "it works", isUp)
	l.answer.Store(&liveness.Answer{State: liveness.State{Up: true, Leaving: true}})
	l.responder.Push()
	l.await(t, "it leaves", func(s liveness.State) bool { return s.Leaving && s.Up })
	l.answer.Store(&liveness.Answer{})
	l.responder.Push()
	l.await(t, "the path behind is down", isDown)
}

// An unknown requester is neither answered, nor told of changes.
func TestStrangers(t *testing.T) {
	t.Parallel()
	l := newLink(t, false)
	l.unknown.Store(true)
	l.await(t, "it has asked", func(liveness.State) bool { return l.asked.Load() > 2 })
	sent := l.others.Load()
	l.responder.Push()
	if now := l.others.Load(); now != sent || sent > 0 || l.session.State().Up {
		t.Errorf("%d packets were sent to a stranger, %d of them by Push", now, now-sent)
	}
	l.unknown.Store(false)
	l.await(t, "it is known", isUp)
}

// Occasional losses do not make a path down. A path that has lost several packets in a row is not clean.
func TestSomeLoss(t *testing.T) {
	t.Parallel()
	l := newLink(t, false)
	l.await(t, "it works", isUp)
	var n atomic.Int64
	l.cut(func(int) bool { return n.Add(1)%20 < 4 })
	l.session.SetUsage(1400)
	for n.Load() < 100 {
		if s := l.session.State(); !s.Up || s.LossFree > 4*time.Second {
			t.Fatalf("after %d packets: %+v", n.Load(), s)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Under load, answers suddenly wait in a queue behind other packets. The path does not count as down.
func TestQueue(t *testing.T) {
	t.Parallel()
	l := newLink(t, true)
	l.session.SetUsage(1400)
	l.await(t, "it works", isUp)
	l.flowing.Store(true)
	l.delay.Store(int64(700 * time.Millisecond))
	start := time.Now()
	l.await(t, "it works for 2 s", func(s liveness.State) bool {
		kit.FatalIf(t, !s.Up, "after %s: %+v", time.Since(start), s)
		return time.Since(start) >= 2*time.Second
	})
	kit.ErrorIf(t, l.losesAnswers.Load(), "it has reported that nothing arrives")
}

// Delayed answers arrive all at once, and those of full size are read last. The path does not count as down.
func TestReadLast(t *testing.T) {
	t.Parallel()
	l := newLink(t, true)
	l.session.SetUsage(1400)
	l.await(t, "it works", isUp)
	l.flowing.Store(true)
	up := func(what string, least time.Duration) {
		t.Helper()
		start := time.Now()
		l.await(t, what, func(s liveness.State) bool {
			kit.FatalIf(t, !s.Up, "%s, after %s: %+v", what, time.Since(start), s)
			return time.Since(start) >= least
		})
	}
	up("it works", time.Second)
	l.hold.Store(true)
	up("answers are held up", 500*time.Millisecond)
	l.hold.Store(false)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, large := range []bool{false, true} {
		for _, send := range l.held {
			send(large)
		}
		up("some are read", 5*time.Millisecond)
	}
	up("all are read", time.Second)
}

// Other packets arrive, but no answers for a long time. The requester learns about it from the other end, or assumes it
// after a while.
func TestDeaf(t *testing.T) {
	t.Parallel()
	l := newLink(t, true)
	l.session.SetUsage(1400)
	l.await(t, "it works", isUp)
	l.flowing.Store(true)
	l.cut(func(int) bool { return true })
	if took := l.await(t, "answers do not arrive", isDown); took < 2*time.Second {
		t.Errorf("it went down after %s, although other packets arrived", took)
	}
	l.flowing.Store(false)
	l.pass()
	l.await(t, "answers arrive", isUp)
	l.session.HandleReport(liveness.Request{LosesAnswers: true})
	for asked := l.session.RequestsSent(); l.session.RequestsSent() < asked+15; time.Sleep(10 * time.Millisecond) {
		kit.FatalIf(t, l.session.State().Up, "the other end loses answers, and its next report comes later, but the path is up")
	}
	l.session.HandleReport(liveness.Request{})
	kit.ErrorIf(t, !l.session.State().Up, "the other end receives again, but the path is down")
	l.cut(func(int) bool { return true })
	took := l.await(t, "nothing arrives", isDown)
	t.Logf("detected after %s", took.Round(time.Millisecond))
	l.await(t, "it reports that nothing arrives", func(liveness.State) bool { return l.losesAnswers.Load() })
}

// A path that has carried packets until now is up immediately, and goes down when its requests remain unanswered.
func TestAssumed(t *testing.T) {
	t.Parallel()
	conn := kit.Must(net.ListenPacket("udp4", "127.0.0.1:0"))(t)
	defer func() { _ = conn.Close() }() // nobody answers
	changed := notify.NewSignal()
	s := liveness.New(netip.MustParseAddr("127.0.0.1"), netip.MustParseAddrPort(conn.LocalAddr().String()), 2, changed)
	s.Assumed = true
	if got := s.State(); !got.Up {
		t.Fatalf("before it runs: %+v", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { s.Run(ctx); close(done) }()
	defer func() { cancel(); <-done }()
	select {
	case <-changed:
		if got := s.State(); got.Up || got.Down < 200*time.Millisecond {
			t.Errorf("after questions without an answer: %+v", got)
		}
	case <-time.After(5 * time.Second):
		t.Errorf("it has not gone down: %+v", s.State())
	}
}

// A request that measures is answered, and changes nothing else: it is no request of this requester, and nothing is
// pushed to its port.
func TestMeasuring(t *testing.T) {
	t.Parallel()
	l := newLink(t, false)
	l.await(t, "it works", isUp)
	l.answer.Store(&liveness.Answer{}) // the path behind is down
	l.responder.Push()
	l.await(t, "it is down", isDown)
	ctx, cancel := context.WithCancel(t.Context())
	p := liveness.NewProber(netip.MustParseAddr("127.0.0.1"), l.remote, liveness.MinProbeInterval)
	done := make(chan struct{})
	go func() { p.Run(ctx); close(done) }()
	defer func() { cancel(); <-done }()
	kit.Within(t, 10*time.Second, "probes are answered", func() string {
		if s := p.Snapshot(); s.Window < liveness.ProbeWindow {
			return fmt.Sprintf("%+v", s)
		}
		return ""
	})
	if s := p.Snapshot(); s.Loss != 0 || s.Median <= 0 || time.Since(s.LastReply) > time.Second || s.RemoteMTU != 1420 {
		t.Errorf("stats: %+v", s)
	}
	// Only the session's requests count.
	if recorded, asked, probes := l.asked.Load(), l.session.RequestsSent(), p.RequestsSent(); recorded > asked ||
		probes < liveness.ProbeWindow {
		t.Errorf("%d questions were recorded, the session has asked %d, the prober %d", recorded, asked, probes)
	}
	// A change is still pushed to the session, which asked before the probes.
	l.answer.Store(&liveness.Answer{State: liveness.State{Up: true}})
	l.responder.Push()
	l.await(t, "it is up", isUp)
}

// measuring is a valid request that measures.
func measuring() []byte {
	return append([]byte("lqlv\x01\x01\x08"), make([]byte, 25)...)
}

// Invalid requests get no answer, and no answer to a request that measures is pushed later.
func TestInvalidQuestions(t *testing.T) {
	t.Parallel()
	l := newLink(t, false)
	c := kit.Must(net.Dial("udp4", l.remote.String()))(t)
	defer func() { _ = c.Close() }()
	valid, buf := measuring(), make([]byte, 100)
	for _, b := range [][]byte{
		{},
		[]byte("hello"), valid[:31], append(bytes.Clone(valid), 0),
		bytes.Replace(valid, []byte("lqlv\x01"), []byte("lqlv\x02"), 1), bytes.Replace(valid, []byte("\x01\x01"), []byte("\x01\x02"), 1),
	} {
		kit.NoError(t, kit.Err(c.Write(b)))
	}
	kit.NoError(t, kit.Err(c.Write(valid)))
	l.await(t, "the valid one is answered", func(liveness.State) bool {
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Millisecond)) // a socket has deadlines
		n, err := c.Read(buf)
		kit.ErrorIf(t, err == nil && n != len(valid), "an invalid one of %d bytes is answered", n)
		return err == nil && n == len(valid)
	})
	l.responder.Push()
	_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := c.Read(buf); err == nil {
		t.Errorf("another answer: %q", buf[:n])
	}
}

// A socket that fails permanently ends the responder, so that another one can be opened. Single errors do not.
func TestBrokenSocket(t *testing.T) {
	for _, tt := range []struct {
		name   string
		errors int
		want   error
	}{
		{"errors of packets, then closed", 5, net.ErrClosed},
		{"always the same error", 1 << 30, errBroken},
	} {
		conn := &brokenConn{errors: tt.errors}
		if err := (&liveness.Responder{}).Serve(t.Context(), conn); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, err, tt.want)
		}
		kit.ErrorIf(t, !conn.closed || conn.reads < min(tt.errors, 6) || conn.reads > 1000,
			"%s: read %d times, closed: %t", tt.name, conn.reads, conn.closed)
	}
}

// A change is pushed only to requesters of the last 15 s, and never in a large packet.
func TestPushIsForRecentRequesters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := &playedConn{received: make(chan received), sent: map[string][]int{}}
		r := &liveness.Responder{
			OnRequest: func(netip.Addr, liveness.Request) bool { return true },
			State:     func(netip.Addr) liveness.Answer { return liveness.Answer{} },
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = r.Serve(ctx, conn) }()
		small := measuring()
		small[6] = 0
		conn.received <- received{small, "192.0.2.1"}
		conn.received <- received{append(bytes.Clone(small), make([]byte, 1368)...), "192.0.2.2"}
		synctest.Wait()
		r.Push()
		kit.Check(t, "sent", conn.sent, map[string][]int{"192.0.2.1": {32, 32}, "192.0.2.2": {1400}})
		time.Sleep(16 * time.Second)
		r.Push()
		kit.Check(t, "sent later", conn.sent, map[string][]int{"192.0.2.1": {32, 32}, "192.0.2.2": {1400}})
		cancel()
		close(conn.received)
	})
}

// playedConn receives packets from a channel, and records the sizes of those that are sent.
type playedConn struct {
	net.PacketConn
	received chan received
	sent     map[string][]int
}

type received struct {
	packet []byte
	from   string
}

func (c *playedConn) ReadFrom(b []byte) (int, net.Addr, error) {
	r, ok := <-c.received
	if !ok {
		return 0, nil, net.ErrClosed
	}
	return copy(b, r.packet), net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(r.from), 7)), nil
}

func (c *playedConn) WriteTo(b []byte, to net.Addr) (int, error) {
	by := to.(*net.UDPAddr).IP.String()
	c.sent[by] = append(c.sent[by], len(b))
	return len(b), nil
}

func (c *playedConn) Close() error { return nil }

var errBroken = errors.New("broken")

// brokenConn fails this many times, and is then closed.
type brokenConn struct {
	net.PacketConn
	errors, reads int
	closed        bool
}

func (c *brokenConn) ReadFrom([]byte) (int, net.Addr, error) {
	if c.reads++; c.reads > c.errors {
		return 0, nil, net.ErrClosed
	}
	return 0, nil, errBroken
}

func (c *brokenConn) Close() error {
	c.closed = true
	return nil
}

// A node tells its gateways immediately through which planes it reaches the peer, however rarely it asks.
func TestReachedIsToldAtOnce(t *testing.T) {
	l := newLink(t, false)
	kit.Within(t, 5*time.Second, "the first request", func() string {
		if l.asked.Load() == 0 {
			return "none came"
		}
		return ""
	})
	for _, planes := range []uint8{liveness.ReachKnown | 5, liveness.ReachKnown, 0} {
		begun := time.Now()
		l.session.SetReached(planes)
		kit.Within(t, 5*time.Second, "the report", func() string {
			if got := l.reached.Load(); got != uint32(planes) {
				return fmt.Sprintf("it is %#x, want %#x", got, planes)
			}
			return ""
		})
		if took := time.Since(begun); took > 500*time.Millisecond { // the next regular request is due after a second
			t.Errorf("it took %s", took)
		}
	}
}
