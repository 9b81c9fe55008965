package liveness

import (
	"context"
	"crypto/rand"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/pkg/udp"
)

const (
	// ProbeWindow is the number of probes that a ProbeStats covers.
	ProbeWindow = 10
	// ProbeTimeout is the time after which an unanswered probe counts as lost.
	ProbeTimeout = time.Second

	// MinProbeInterval is the shortest interval. A prober remembers enough probes for it, so that none is forgotten
	// before it counts as lost.
	MinProbeInterval = 20 * time.Millisecond

	// A reply is late after both lateProbe and lateFactor times the last round trip time. From then on, probes are sent
	// every fastInterval until one is answered: a single lost probe means nothing, many in a row do. The first
	// ProbeWindow probes that can be answered are sent at the same interval.
	lateProbe    = 300 * time.Millisecond
	lateFactor   = 2
	fastInterval = 100 * time.Millisecond
	// likelyTime is how long that lasts after an event that made a reply likely. Afterwards the pauses grow: each is the
	// time since likelyTime ended, divided by hurryShare.
	likelyTime, hurryShare = time.Minute, 10
)

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
	Unanswered uint32
	// RemoteMTU is the responder's MTU in the last reply, in bytes.
	RemoteMTU uint16
	// Pause is the current pause between two probes.
	Pause time.Duration
}

// Prober measures the path to one responder with probes, which are requests that measure. Its methods are safe for
// concurrent use.
type Prober struct {
	// Answered is called with the round trip time of each probe that was answered within ProbeTimeout, and Lost for
	// each other one. Probes that ProbeStats leaves out do not count here, either. Both may be nil, have to be set
	// before Run, and must not call the Prober.
	Answered func(rtt time.Duration)
	Lost     func()

	local  netip.Addr
	remote netip.AddrPort
	nonce  [8]byte
	// interval is the interval of probes while they are answered.
	interval time.Duration

	mu sync.Mutex
	// expectedAt is the time of the last event that made a reply likely.
	expectedAt time.Time
	// retime tells Run that the time of the next probe has changed, probeNow that it is due now.
	retime   notify.Signal
	probeNow bool
	sequence uint32
	// countedUntil is the newest probe for which, and for all before it, it is known whether it was lost.
	countedUntil uint32
	// newest is the most recently sent probe that was answered.
	newest    uint32
	last      time.Duration
	lastReply time.Time
	remoteMTU uint16
	// first is the first probe that counts: those before it were sent before the path worked.
	first uint32
	// window is a ring of the last probes sent. It is larger than ProbeWindow, so that probes in flight do not displace
	// those that count.
	window [8 * ProbeWindow]probe
}

type probe struct {
	sequence uint32 // 0 for none
	sent     time.Time
	rtt      time.Duration
	answered bool
}

// NewProber returns a prober from a local address to a remote responder. If the local address is invalid, the kernel
// chooses one. The interval is that of probes while they are answered, at least MinProbeInterval. Nothing is sent
// before Run.
func NewProber(local netip.Addr, remote netip.AddrPort, interval time.Duration) *Prober {
	p := &Prober{
		local: local, remote: remote, interval: max(interval, MinProbeInterval), expectedAt: time.Now(),
		retime: notify.NewSignal(),
	}
	_, _ = rand.Read(p.nonce[:]) // never fails, see crypto/rand
	return p
}

// ExpectReply reports an event that makes a reply likely. Probes are then sent more often again.
func (p *Prober) ExpectReply() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expectedAt = time.Now()
	p.retime.Send()
}

// Probe makes a probe due immediately.
func (p *Prober) Probe() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.probeNow = true
	p.retime.Send()
}

// RequestsSent returns the number of probes sent.
func (p *Prober) RequestsSent() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return uint64(p.sequence)
}

// Run sends probes until ctx ends. Probes that cannot be sent count as lost: the local address may come and go.
func (p *Prober) Run(ctx context.Context) {
	udp.Client{
		Local: p.local, Remote: p.remote, Size: headerLength, Wake: p.retime,
		Send: func(conn *net.UDPConn, due time.Time) (next time.Time, isLast bool) {
			if !due.IsZero() {
				p.send(conn)
			}
			return p.nextAt(), false
		},
		Receive: func(b []byte) {
			if f, ok := decode(b, kindAnswer); ok && len(b) == headerLength && f.nonce == p.nonce {
				p.answered(f.sequence, time.Now(), f.MTU)
			}
		},
		Unavailable: func() time.Time {
			p.record(time.Now())
			return p.nextAt()
		},
	}.Run(ctx)
}

// nextAt returns when the next probe has to be sent.
func (p *Prober) nextAt() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.probeNow {
		return time.Now()
	}
	return p.sent(p.sequence).Add(p.pause())
}

// pause returns the time between the last probe and the next one.
func (p *Prober) pause() time.Duration {
	usual, hurry := p.interval, min(p.interval, fastInterval)
	if p.sequence+1 < p.first+ProbeWindow {
		usual = hurry
	}
	hurry = max(hurry, min((time.Since(p.expectedAt)-likelyTime)/hurryShare, p.interval))
	switch {
	case p.lastReply.IsZero():
		return hurry
	case p.newest == p.sequence:
		return usual
	}
	waiting := min(p.sequence-p.newest, uint32(len(p.window))) // earlier ones are forgotten
	late := p.sent(p.sequence - waiting + 1).Add(max(lateProbe, lateFactor*p.last))
	return min(usual, max(late.Sub(p.sent(p.sequence)), hurry))
}

// sent returns when one of the last probes was sent.
func (p *Prober) sent(sequence uint32) time.Time {
	return p.window[sequence%uint32(len(p.window))].sent
}

func (p *Prober) send(conn *net.UDPConn) {
	b := make([]byte, headerLength)
	frame{kind: kindRequest, nonce: p.nonce, sequence: p.record(time.Now()), Request: Request{Measures: true}}.encode(b)
	// A probe that was not sent is lost.
	_, _ = conn.WriteToUDPAddrPort(b, p.remote)
}

// record records a probe and returns its sequence number, 1 for the first.
func (p *Prober) record(now time.Time) uint32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.countLost(now)
	p.probeNow = false
	p.sequence++
	p.window[p.sequence%uint32(len(p.window))] = probe{sequence: p.sequence, sent: now}
	return p.sequence
}

// countLost reports the probes that are lost by now.
func (p *Prober) countLost(now time.Time) {
	for p.countedUntil < p.sequence {
		e := p.window[(p.countedUntil+1)%uint32(len(p.window))]
		if !e.answered && now.Sub(e.sent) < ProbeTimeout {
			return
		}
		p.countedUntil++
		if p.Lost != nil && p.counts(p.countedUntil) && (!e.answered || e.rtt >= ProbeTimeout) {
			p.Lost()
		}
	}
}

// counts reports whether a probe was sent after the path worked.
func (p *Prober) counts(sequence uint32) bool { return !p.lastReply.IsZero() && sequence >= p.first }

func (p *Prober) answered(sequence uint32, now time.Time, mtu uint16) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := &p.window[sequence%uint32(len(p.window))]
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
	p.last, p.lastReply, p.expectedAt, p.remoteMTU = e.rtt, now, now, mtu
	p.retime.Send()
}

// Snapshot returns the current state.
func (p *Prober) Snapshot() ProbeStats {
	return p.snapshot(time.Now())
}

func (p *Prober) snapshot(now time.Time) ProbeStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.countLost(now)
	s := ProbeStats{LastReply: p.lastReply, Unanswered: p.sequence - p.newest, RemoteMTU: p.remoteMTU, Pause: p.pause()}
	var rtts []time.Duration
	oldest := max(p.first, p.sequence-min(p.sequence, uint32(len(p.window)))+1)
	for i := p.sequence; i >= oldest && s.Window < ProbeWindow; i-- {
		e := p.window[i%uint32(len(p.window))]
		if e.answered {
			rtts = append(rtts, e.rtt)
		} else if now.Sub(e.sent) < ProbeTimeout {
			continue // still in flight
		}
		s.Window++
	}
	if s.Window > 0 {
		s.Loss = float64(s.Window-len(rtts)) / float64(s.Window)
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
