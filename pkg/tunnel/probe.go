package tunnel

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/pkg/udp"
)

// A probe is a UDP packet of probeLength bytes, and so is its reply: an echo responder never sends more than it
// received. In network byte order:
//
//	0  magic "lqpb"
//	4  version
//	5  1 for a probe, 2 for a reply
//	6  in replies: the MTU of the responder, bytes, 2 bytes; else 0
//	8  nonce of the prober, 8 bytes: replies with another one are ignored
//	16 sequence number, 8 bytes
//	24 send time by the prober's clock, nanoseconds, 8 bytes
const (
	probeMagic   = "lqpb"
	probeVersion = 1
	probeRequest = 1
	probeReply   = 2
	probeLength  = 32
)

const (
	// ProbeWindow is the number of probes that a ProbeStats covers.
	ProbeWindow = 10
	// ProbeTimeout is the time after which an unanswered probe counts as lost.
	ProbeTimeout = time.Second

	// MinProbeInterval is the shortest interval. A prober remembers enough probes for it, so that none is forgotten
	// before it counts as lost.
	MinProbeInterval = 20 * time.Millisecond

	// A reply is late after both lateAfter and lateFactor times the last round trip time. From then on, probes are sent
	// every hurryInterval until one is answered: a single lost probe means nothing, many in a row do. The first
	// ProbeWindow probes that can be answered are sent at the same interval.
	lateAfter     = 300 * time.Millisecond
	lateFactor    = 2
	hurryInterval = 100 * time.Millisecond
	// hurryTime is how long that lasts after an event that made a reply likely. Afterwards the pauses grow: each is the
	// time since hurryTime ended, divided by hurryShare.
	hurryTime, hurryShare = time.Minute, 10
)

// ServeEcho answers probes on conn until ctx ends or conn fails permanently, and closes it. The end of ctx is not an
// error. The replies contain the result of mtu, so that each gateway learns the other's MTU, even if it changes.
func ServeEcho(ctx context.Context, conn net.PacketConn, mtu func() uint16) error {
	return udp.Serve(ctx, conn, probeLength, func(b []byte, from netip.AddrPort) {
		if !isProbe(b, probeRequest) {
			return
		}
		b[5] = probeReply
		binary.BigEndian.PutUint16(b[6:], mtu())
		// If it cannot be sent, it is lost like any packet.
		_, _ = conn.WriteTo(b, net.UDPAddrFromAddrPort(from))
	})
}

func isProbe(b []byte, kind byte) bool {
	return len(b) == probeLength && string(b[:4]) == probeMagic && b[4] == probeVersion && b[5] == kind
}

// ProbeStats summarizes the last ProbeWindow probes. Those sent before the first reply are left out, because they
// waited for a handshake.
type ProbeStats struct {
	// Window is the number of probes that the following fields cover: those that were answered or are lost, at most
	// ProbeWindow.
	Window int
	// Loss is the share of lost probes, 0 to 1; 0 if Window is 0.
	Loss float64
	// Median is the median round trip time of answered probes, 0 if there are none.
	Median time.Duration
	// Jitter is the mean difference between the round trip times of two consecutive answered probes, 0 if there are
	// fewer than two. Unlike that of RFC 3550, section 6.4.1, it is not smoothed: ten probes are few.
	Jitter time.Duration
	// LastReply is the time of the last reply, the zero time if there was none. Unanswered is the number of probes sent
	// after the newest answered one.
	LastReply  time.Time
	Unanswered uint64
	// RemoteMTU is the responder's MTU in the last reply, in bytes.
	RemoteMTU uint16
	// Pause is the current pause between two probes.
	Pause time.Duration
}

// Prober sends probes to one echo responder. Its methods are safe for concurrent use.
type Prober struct {
	// Answered is called with the round trip time of each probe that was answered within ProbeTimeout, and Lost for
	// each other one. Probes that ProbeStats leaves out do not count here, either. Both may be nil, have to be set
	// before Run, and must not call the Prober.
	Answered func(rtt time.Duration)
	Lost     func()

	local  netip.Addr
	remote netip.AddrPort
	nonce  [8]byte
	start  time.Time

	// interval is the interval of probes while they are answered.
	interval time.Duration

	mu sync.Mutex
	// likely is the time of the last event that made a reply likely.
	likely time.Time
	// retime tells Run that the time of the next probe has changed, wanted that it is due now.
	retime   notify.Signal
	wanted   bool
	sequence uint64
	// settled is the newest probe for which, and for all before it, it is known whether it was lost.
	settled uint64
	// newest is the most recently sent probe that was answered.
	newest    uint64
	last      time.Duration
	lastReply time.Time
	remoteMTU uint16
	// first is the first probe that counts: those before it were sent before the path worked.
	first uint64
	// window is a ring of the last probes sent. It is larger than ProbeWindow, so that probes in flight do not displace
	// those that count.
	window [8 * ProbeWindow]probe
}

type probe struct {
	sequence uint64 // 0 for none
	sent     time.Time
	rtt      time.Duration
	answered bool
}

// NewProber returns a prober from a local address to a remote responder. If the local address is invalid, the kernel
// chooses one. The interval is that of probes while they are answered, at least MinProbeInterval. Nothing is sent
// before Run.
func NewProber(local netip.Addr, remote netip.AddrPort, interval time.Duration) *Prober {
	now := time.Now()
	p := &Prober{local: local, remote: remote, interval: max(interval, MinProbeInterval), start: now, likely: now, retime: notify.NewSignal()}
	// Never fails, see crypto/rand.
	_, _ = rand.Read(p.nonce[:])
	return p
}

// Hurry reports an event that makes a reply likely. Probes are then sent more often again.
func (p *Prober) Hurry() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.likely = time.Now()
	p.retime.Send()
}

// Probe makes a probe due immediately.
func (p *Prober) Probe() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wanted = true
	p.retime.Send()
}

// Asked returns the number of probes sent.
func (p *Prober) Asked() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sequence
}

// Run sends probes until ctx ends. Probes that cannot be sent count as lost: the local address may come and go.
func (p *Prober) Run(ctx context.Context) {
	udp.Asker{
		Local: p.local, Remote: p.remote, Size: probeLength, Wake: p.retime,
		Turn: func(conn *net.UDPConn, due time.Time) (next time.Time, isLast bool) {
			if !due.IsZero() {
				p.send(conn)
			}
			return p.due(), false
		},
		Take: func(b []byte) {
			if isProbe(b, probeReply) && [8]byte(b[8:16]) == p.nonce {
				p.answered(binary.BigEndian.Uint64(b[16:]), time.Now(), binary.BigEndian.Uint16(b[6:]))
			}
		},
		Fail: func() time.Time {
			p.mark(time.Now())
			return p.due()
		},
	}.Run(ctx)
}

// due returns when the next probe has to be sent.
func (p *Prober) due() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wanted {
		return time.Now()
	}
	return p.sent(p.sequence).Add(p.pause())
}

// pause returns the time between the last probe and the next one.
func (p *Prober) pause() time.Duration {
	usual, hurry := p.interval, min(p.interval, hurryInterval)
	if p.sequence+1 < p.first+ProbeWindow {
		usual = hurry
	}
	hurry = max(hurry, min((time.Since(p.likely)-hurryTime)/hurryShare, p.interval))
	switch {
	case p.lastReply.IsZero():
		return hurry
	case p.newest == p.sequence:
		return usual
	}
	waiting := min(p.sequence-p.newest, uint64(len(p.window))) // earlier ones are forgotten
	late := p.sent(p.sequence - waiting + 1).Add(max(lateAfter, lateFactor*p.last))
	return min(usual, max(late.Sub(p.sent(p.sequence)), hurry))
}

// sent returns when one of the last probes was sent.
func (p *Prober) sent(sequence uint64) time.Time {
	return p.window[sequence%uint64(len(p.window))].sent
}

func (p *Prober) send(conn *net.UDPConn) {
	now := time.Now()
	sequence := p.mark(now)
	b := make([]byte, 0, probeLength)
	b = append(b, probeMagic...)
	b = append(b, probeVersion, probeRequest, 0, 0)
	b = append(b, p.nonce[:]...)
	b = binary.BigEndian.AppendUint64(b, sequence)
	b = binary.BigEndian.AppendUint64(b, uint64(now.Sub(p.start)))
	// A probe that was not sent is lost.
	_, _ = conn.WriteToUDPAddrPort(b, p.remote)
}

// mark records a probe and returns its sequence number, 1 for the first.
func (p *Prober) mark(now time.Time) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settle(now)
	p.wanted = false
	p.sequence++
	p.window[p.sequence%uint64(len(p.window))] = probe{sequence: p.sequence, sent: now}
	return p.sequence
}

// settle reports the probes that are lost by now.
func (p *Prober) settle(now time.Time) {
	for p.settled < p.sequence {
		e := p.window[(p.settled+1)%uint64(len(p.window))]
		if !e.answered && now.Sub(e.sent) < ProbeTimeout {
			return
		}
		p.settled++
		if p.Lost != nil && p.counts(p.settled) && (!e.answered || e.rtt >= ProbeTimeout) {
			p.Lost()
		}
	}
}

// counts reports whether a probe was sent after the path worked.
func (p *Prober) counts(sequence uint64) bool { return !p.lastReply.IsZero() && sequence >= p.first }

func (p *Prober) answered(sequence uint64, now time.Time, mtu uint16) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := &p.window[sequence%uint64(len(p.window))]
	if sequence == 0 || e.sequence != sequence || e.answered {
		return
	}
	e.answered, e.rtt = true, now.Sub(e.sent)
	if p.lastReply.IsZero() {
		p.first = p.sequence + 1
	}
	if p.Answered != nil && p.counts(sequence) && e.rtt < ProbeTimeout {
		p.Answered(e.rtt)
	}
	p.newest = max(p.newest, sequence)
	p.last, p.lastReply, p.likely, p.remoteMTU = e.rtt, now, now, mtu
	p.retime.Send()
}

// Snapshot returns the current state.
func (p *Prober) Snapshot() ProbeStats {
	return p.snapshot(time.Now())
}

func (p *Prober) snapshot(now time.Time) ProbeStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settle(now)
	s := ProbeStats{LastReply: p.lastReply, Unanswered: p.sequence - p.newest, RemoteMTU: p.remoteMTU, Pause: p.pause()}
	var rtts []time.Duration
	lost := 0
	oldest := max(p.first, p.sequence-min(p.sequence, uint64(len(p.window)))+1)
	for i := p.sequence; i >= oldest && s.Window < ProbeWindow; i-- {
		e := p.window[i%uint64(len(p.window))]
		switch {
		case e.answered:
			rtts = append(rtts, e.rtt)
		case now.Sub(e.sent) >= ProbeTimeout:
			lost++
		default:
			// Still in flight.
			continue
		}
		s.Window++
	}
	if s.Window > 0 {
		s.Loss = float64(lost) / float64(s.Window)
	}
	for i := 1; i < len(rtts); i++ {
		s.Jitter += (rtts[i] - rtts[i-1]).Abs()
	}
	if len(rtts) > 0 {
		s.Jitter /= time.Duration(max(len(rtts)-1, 1))
		slices.Sort(rtts)
		s.Median = rtts[len(rtts)/2]
	}
	return s
}
