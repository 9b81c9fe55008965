package liveness

import (
	"context"
	"crypto/rand"
	"errors"
	"math"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/samber/lo"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/pkg/udp"
)

const (
	// flowLength is how many requests of full size come from one port. A network that drops new flows may still forward
	// those that it knows.
	flowLength = 16
	// headerOverhead is the size of the headers of IPv4 and UDP, in bytes.
	headerOverhead = 28
	// reportTimeout is how long the other end's last report that it loses answers stays valid.
	reportTimeout = 2 * maxInterval
)

// Session asks one responder. Its methods are safe for concurrent use.
type Session struct {
	// Received returns how many packets have arrived over this path, of any kind. With it, answers that wait in a queue
	// behind other packets do not count as lost. Then the other end has to report whether it receives packets: see
	// Told. Received may be nil, and is set before Run.
	Received func() (uint64, error)
	// Assumed is set if packets have passed over this path until now. Then the path counts as up until requests remain
	// unanswered, instead of counting as down until the first answer. Assumed is set before Run.
	Assumed bool

	local  netip.Addr
	remote netip.AddrPort
	nonce  [8]byte
	start  time.Time
	// idle is the factor for the time between requests while the path is not in use.
	idle int
	// changed signals that the path has come up or gone down.
	changed notify.Signal
	wake    [2]notify.Signal
	// requestsSent is how many requests were sent.
	requestsSent atomic.Uint64

	mu sync.Mutex
	// streams are the stream of small requests, and the one of requests of full size.
	streams  [2]stream
	usage    usage
	schedule schedule
	// lastAnswer is the responder's last answer, and answeredAt its time. signaled is the last signaled state. lastLoss
	// is when a lost request was last detected.
	lastAnswer     Answer
	answeredAt     time.Time
	signaled       State
	lastLoss       time.Time
	arrivals       arrivals
	receiveFailure receiveFailure
}

// receiveFailure is when the other end began to lose answers, and when it last reported that, zero if it gets them again.
type receiveFailure struct{ since, reported time.Time }

// usage is how the path is used.
type usage struct {
	// size is the payload size of the packets, 0 while none are sent. requestSize is the size of the requests, which
	// continue until one is answered.
	size, requestSize int
	// mustReport is set if the other end must be told immediately whether packets are sent, what is reached, or that
	// answers are lost.
	mustReport bool
	// reached and loses are what Request.Reached and Request.LosesAnswers say.
	reached uint8
	loses   bool
}

// schedule is when the session asks.
type schedule struct {
	// overtaking is when the small request was sent that may have overtaken larger ones, and candidate the one for the
	// next turn. Answers that arrive together are read in any order, so the newest ones do not count yet.
	overtaking, candidate time.Time
	// due is when the next small request is due, zero if unknown.
	due time.Time
	// flowCount counts the requests of full size from this port.
	flowCount int
}

// arrivals are packets of any kind. They were counted at countedAt, which is zero unless an answer is late. lastArrival
// is when something arrived after that.
type arrivals struct {
	received               uint64
	countedAt, lastArrival time.Time
}

// These are the streams of a session.
const (
	small = iota
	full
)

// New returns a session from a local address to a responder. While the path is not in use, the time between requests
// is multiplied by idle. Each change of up, down and leaving is signaled. Nothing is sent before Run.
func New(local netip.Addr, remote netip.AddrPort, idle int, changed notify.Signal) *Session {
	wake := [2]notify.Signal{notify.NewSignal(), notify.NewSignal()}
	s := &Session{local: local, remote: remote, start: time.Now(), idle: idle, changed: changed, wake: wake}
	_, _ = rand.Read(s.nonce[:]) // never fails, see crypto/rand
	return s
}

// SetUsage sets the size of the packets that are sent over this path, in bytes, 0 if there are none. While packets are
// sent, requests are frequent and report that to the other end, and some have that size. The other end learns
// immediately when that begins or ends.
func (s *Session) SetUsage(size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	size = max(min(size-headerOverhead, maxLength), 0)
	if s.usage.size == size {
		return
	}
	s.usage.mustReport = s.usage.mustReport || (s.usage.size > 0) != (size > 0)
	s.usage.size = size
	if big := &s.streams[full]; size > 0 && size != s.usage.requestSize || size == 0 &&
		!big.hasLostAnswers(time.Now(), s.schedule.overtaking) {
		*big, s.usage.requestSize = stream{}, size
	}
	s.wake[small].Send()
	s.wake[full].Send()
}

// SetReached sets Request.Reached. The other end learns of a change immediately.
func (s *Session) SetReached(planes uint8) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.usage.reached == planes {
		return
	}
	s.usage.reached, s.usage.mustReport = planes, true
	s.wake[small].Send()
}

// RequestsSent returns how many requests were sent.
func (s *Session) RequestsSent() uint64 { return s.requestsSent.Load() }

// State returns the current state.
func (s *Session) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state(time.Now())
}

func (s *Session) state(now time.Time) State {
	out := State{Leaving: s.lastAnswer.Leaving}
	if s.streams[small].answeredAt.IsZero() {
		if out.Up = s.Assumed && !s.isReceivingNothing(now); !out.Up {
			out.Down = now.Sub(s.start)
		}
		return out
	}
	if out.Up = s.lastAnswer.Up; !out.Up {
		out.Down = s.lastAnswer.Down + now.Sub(s.answeredAt)
	}
	missing := func(since time.Time) { out.Up, out.Down = false, max(out.Down, now.Sub(since)) }
	if s.isReceivingNothing(now) {
		missing(s.streams[small].firstUnanswered)
	}
	if s.losesLarge(now) {
		missing(s.streams[full].firstUnanswered)
	}
	if now.Sub(s.receiveFailure.reported) < reportTimeout {
		missing(s.receiveFailure.since)
	}
	if out.Up {
		out.LossFree = min(now.Sub(s.start), s.lastAnswer.LossFree+now.Sub(s.answeredAt))
	}
	if !s.lastLoss.IsZero() {
		out.LossFree = min(out.LossFree, now.Sub(s.lastLoss))
	}
	return out
}

// isReceivingNothing reports whether nothing arrives over this path: neither answers nor other packets.
func (s *Session) isReceivingNothing(now time.Time) bool {
	st := &s.streams[small]
	now = s.lastAwake(now)
	waits := now.Sub(s.arrivals.lastArrival) < 2*s.baseInterval() && now.Sub(st.firstUnanswered) < maxQueueDelay
	return st.hasLostAnswers(now, now) && !waits
}

// losesLarge reports whether requests of full size, or their answers, are lost. A request overtaken by a later small one
// is lost. The others may be in the same queue.
func (s *Session) losesLarge(now time.Time) bool {
	return s.streams[full].hasLostAnswers(s.lastAwake(now), s.schedule.overtaking)
}

// losesAnswers returns Request.LosesAnswers.
func (s *Session) losesAnswers(now time.Time) bool {
	return s.isReceivingNothing(now) || s.losesLarge(now)
}

// lastAwake returns now, or when this process was last awake, as far as known: answers wait until the process reads
// them.
func (s *Session) lastAwake(now time.Time) time.Time {
	if s.schedule.due.IsZero() {
		return now
	}
	return lo.Earliest(now, s.schedule.due.Add(lateAfter))
}

// HandleReport processes the other end's report about this path in its own requests.
func (s *Session) HandleReport(q Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Sub(s.receiveFailure.reported) >= reportTimeout {
		s.receiveFailure.since = now
	}
	s.receiveFailure.reported = lo.Ternary(q.LosesAnswers, now, time.Time{})
	s.check(now)
}

// checkReceived records whether something has arrived since the previous request. It counts only while an answer is
// late, which is rare.
func (s *Session) checkReceived(now time.Time) {
	if st := &s.streams[small]; s.Received == nil || st.sequence == st.newestAnswered {
		s.arrivals.countedAt = time.Time{}
		return
	}
	n, err := s.Received()
	if err != nil {
		return // without an interface, nothing arrives
	}
	if !s.arrivals.countedAt.IsZero() && n != s.arrivals.received {
		s.arrivals.lastArrival = lo.Latest(s.arrivals.countedAt, now.Add(-lateAfter))
	}
	s.arrivals.received, s.arrivals.countedAt = n, now
}

// baseInterval returns the time between requests while the path is in use.
func (s *Session) baseInterval() time.Duration { return max(usualInterval, s.lastAnswer.Interval) }

// check signals changes.
func (s *Session) check(now time.Time) {
	state := s.state(now)
	if state.Up != s.signaled.Up || state.Leaving != s.signaled.Leaving {
		s.changed.Send()
		if !state.Up {
			s.lastLoss = now
		}
	}
	s.signaled = state
	if loses := s.losesAnswers(now); loses != s.usage.loses {
		s.usage.loses, s.usage.mustReport = loses, true
		s.wake[small].Send()
	}
}

// Run asks until ctx ends.
func (s *Session) Run(ctx context.Context) {
	s.mu.Lock()
	s.signaled.Up = s.Assumed
	s.mu.Unlock()
	var both sync.WaitGroup
	for i := range s.streams {
		both.Go(func() { s.client(i).Run(ctx) })
	}
	both.Wait()
}

// client returns the client of a stream.
func (s *Session) client(i int) udp.Client {
	a := udp.Client{Local: s.local, Remote: s.remote, Size: maxLength, Wake: s.wake[i]}
	if i == full {
		a.Options = map[int]int{unix.IP_MTU_DISCOVER: unix.IP_PMTUDISC_PROBE} // packets are sent whole, or not at all
	}
	a.Send = func(conn *net.UDPConn, due time.Time) (time.Time, bool) { return s.sendIfDue(i, conn, due) }
	a.Receive = func(b []byte) { s.receive(i, b) }
	a.Unavailable = func() time.Time { // requests that cannot be sent count as unanswered
		s.mu.Lock()
		defer s.mu.Unlock()
		now := time.Now()
		s.schedule.due = time.Time{}
		s.streams[i].recordRequest(now, true)
		s.check(now)
		return now
	}
	return a
}

// sendIfDue asks if a request is due. was is when it was due, or zero if it was not due yet. It returns when the next request is due,
// and whether the next one needs another socket.
func (s *Session) sendIfDue(i int, conn *net.UDPConn, was time.Time) (due time.Time, isLast bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	st := &s.streams[i]
	if i == small {
		defer func() { s.schedule.due = due }()
	}
	if i == full && s.usage.requestSize <= headerLength {
		return now.Add(time.Hour), false
	}
	base, interval := s.baseInterval(), s.interval(i, now)
	if i == small && s.usage.mustReport {
		s.usage.mustReport = false
	} else if due = st.nextAt(interval, base); now.Before(due) {
		s.check(now)
		return due, false
	}
	if i == full && s.schedule.flowCount >= flowLength {
		if st.sequence == st.newestAnswered {
			s.schedule.flowCount = 0
			return now, true // this socket waits for no answer
		}
		if late := st.lateAt(); now.Before(late) {
			return late, false
		}
	}
	// If this process is late itself, it may have had no time to read the answers.
	late := lo.Ternary(was.IsZero(), 0, now.Sub(was))
	if late <= max(usualInterval, interval/2) {
		st.recordDelay(2 * late)
	} else if now.Sub(st.answeredAt) < maxQueueDelay {
		st.countAllAnswered()
	}
	s.send(i, conn, now)
	return st.nextAt(interval, base), false
}

// interval returns the time between the requests of a stream.
func (s *Session) interval(i int, now time.Time) time.Duration {
	switch {
	case i == small && s.streams[full].isFast(now):
		return s.streams[full].lateInterval(s.baseInterval()) // to find out whether the size is the cause
	case s.usage.size > 0:
		return s.baseInterval()
	}
	return min(time.Duration(s.idle)*s.baseInterval(), maxInterval)
}

// send sends a request.
func (s *Session) send(i int, conn *net.UDPConn, now time.Time) {
	st, size := &s.streams[i], headerLength
	if i == full {
		size = s.usage.requestSize
	} else {
		s.checkReceived(now)
		s.schedule.overtaking, s.schedule.candidate = s.schedule.candidate, st.answeredSentAt
	}
	b := make([]byte, size)
	sequence := st.recordRequest(now, !s.signaled.Up)
	frame{
		kind: kindRequest, nonce: s.nonce, sequence: sequence,
		Request: Request{InUse: s.usage.size > 0, LosesAnswers: s.losesAnswers(now), Reached: s.usage.reached},
	}.encode(b)
	s.requestsSent.Add(1)
	if _, err := conn.WriteToUDPAddrPort(b, s.remote); errors.Is(err, unix.EMSGSIZE) {
		st.countAllAnswered() // the interface's MTU has decreased since the size was set
	}
	s.check(now)
	if i == full {
		if st.isFast(now) {
			s.wake[small].Send()
		}
		s.schedule.flowCount++
	}
}

// receive processes an answer.
func (s *Session) receive(i int, b []byte) {
	f, ok := decode(b, kindAnswer)
	if !ok || f.nonce != s.nonce {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	// A responder repeats its last answer when its state changes.
	st := &s.streams[i]
	if i == full && len(b) != s.usage.requestSize {
		return // it proves nothing about that size
	}
	isNew, lost := st.recordAnswer(f.sequence, now)
	if lost {
		s.lastLoss = now
	}
	if isNew || f.sequence == st.newestAnswered {
		s.lastAnswer, s.answeredAt = f.Answer, now
		s.check(now)
	}
	if i == full && s.usage.size == 0 {
		*st, s.usage.requestSize = stream{}, 0
	}
}

const (
	// usualInterval is the minimum time between requests while the path is in use, unless the responder asks for more.
	// maxInterval is the maximum at any time. Responders count on a request in twice that time.
	usualInterval, maxInterval = 100 * time.Millisecond, 10 * time.Second
	// An answer is late after lateAfter plus twice the usual round trip time. From then on the pauses between requests
	// are shorter, until one is answered, for at most fastTime: see lateInterval.
	lateAfter, fastTime = 50 * time.Millisecond, 5 * time.Second
	// A path is down if minLost requests in a row were not answered, and the first of them is older than minLostTime.
	// On a busy machine, after one slow answer others may take up to three times as long. So the limit is at least
	// peakFactor times the slowest recent answer, but not more than maxDelay. While other packets arrive, answers may
	// wait longer: maxQueueDelay.
	minLostTime             = 2 * usualInterval
	minLost, peakFactor     = 4, 4
	maxDelay, maxQueueDelay = time.Second, 3 * time.Second
	// The slowest answer counts for half as much after each peakHalf.
	peakHalf = 10 * time.Second
)

// stream is a series of requests of one size. Its times are from this machine's monotonic clock.
type stream struct {
	// sequence is the number of the last request, and newestAnswered that of the newest answered one.
	sequence, newestAnswered uint32
	// sent are the times of the last requests. down marks those that were sent while the path was down.
	sent [64]time.Time
	down [64]bool
	// firstUnanswered is the time of the oldest unanswered request, and minLostAt the time of the one that makes
	// minLost unanswered.
	firstUnanswered, minLostAt time.Time
	// rtt is the smoothed round trip time, as in RFC 6298, and peak the longest recent one.
	rtt, peak time.Duration
	// answeredAt is when the last answer came, and answeredSentAt when its request was sent.
	answeredAt, answeredSentAt time.Time
}

// recordRequest records a request, and whether the path is down. It returns its sequence number.
func (s *stream) recordRequest(now time.Time, down bool) uint32 {
	if s.sequence == s.newestAnswered {
		s.firstUnanswered = now
	}
	if s.sequence++; s.sequence-s.newestAnswered == minLost {
		s.minLostAt = now
	}
	i := s.sequence % uint32(len(s.sent))
	s.sent[i], s.down[i] = now, down
	return s.sequence
}

// recordAnswer records an answer. It returns whether a request was waiting for it, and whether several earlier requests
// have had no answer. A single lost one proves nothing.
func (s *stream) recordAnswer(sequence uint32, now time.Time) (isNew, lost bool) {
	if behind := s.sequence - sequence; behind >= uint32(len(s.sent)) || sequence-s.newestAnswered-1 >= 1<<31 {
		return false, false // of another stream, a duplicate, or very late
	}
	lost = sequence-s.newestAnswered > 2 && !s.answeredAt.IsZero()
	i := sequence % uint32(len(s.sent))
	s.answeredSentAt = s.sent[i]
	rtt := now.Sub(s.answeredSentAt)
	if s.answeredAt.IsZero() {
		s.rtt = rtt
	} else {
		s.rtt += (rtt - s.rtt) / 8
		s.peak = time.Duration(float64(s.peak) * math.Exp2(-now.Sub(s.answeredAt).Seconds()/peakHalf.Seconds()))
	}
	// A tunnel holds packets for a while until it is up, and a process that was stopped reads them late.
	if !s.down[i] && rtt < maxDelay {
		s.recordDelay(rtt)
	}
	s.newestAnswered, s.answeredAt = sequence, now
	s.firstUnanswered = s.sent[(sequence+1)%uint32(len(s.sent))]
	s.minLostAt = s.sent[(sequence+minLost)%uint32(len(s.sent))] // if there are that many
	return true, lost
}

// recordDelay records how long an answer took, or would have taken.
func (s *stream) recordDelay(rtt time.Duration) { s.peak = max(s.peak, rtt) }

// countAllAnswered counts unanswered requests as answered: the path is not the cause.
func (s *stream) countAllAnswered() { s.newestAnswered = s.sequence }

// isWaiting reports whether a request waits for its answer, and asking faster may still help.
func (s *stream) isWaiting() bool {
	return s.sequence != s.newestAnswered && s.lastSent().Sub(s.firstUnanswered) <= fastTime
}

// lateAt returns when the answer to the oldest waiting request becomes late.
func (s *stream) lateAt() time.Time { return s.firstUnanswered.Add(lateAfter + 2*s.rtt) }

// isFast reports whether requests follow each other faster because an answer is late.
func (s *stream) isFast(now time.Time) bool { return s.isWaiting() && !now.Before(s.lateAt()) }

// lastSent returns when the last request was sent.
func (s *stream) lastSent() time.Time { return s.sent[s.sequence%uint32(len(s.sent))] }

// hasLostAnswers reports whether answers are missing to requests sent before a time.
func (s *stream) hasLostAnswers(now, before time.Time) bool {
	return s.sequence-s.newestAnswered >= minLost && !s.minLostAt.After(before) &&
		now.Sub(s.firstUnanswered) >= max(minLostTime, min(peakFactor*s.peak, maxDelay))
}

// lateInterval returns the time between requests while an answer is late. base is the time between requests while the
// path is in use. The first requests do not depend on it, so that a large cluster detects a failure as fast as a small
// one. They are few, because each of its nodes sends them when its gateway is only slow.
func (s *stream) lateInterval(base time.Duration) time.Duration {
	return lo.Ternary(s.lastSent().Sub(s.firstUnanswered) < minLostTime, usualInterval, base) / 4
}

// nextAt returns when the next request is due. interval is the usual time between requests, and base the one while the
// path is in use.
func (s *stream) nextAt(interval, base time.Duration) time.Time {
	last := s.lastSent()
	next := last.Add(interval)
	if !s.isWaiting() {
		return next
	}
	return lo.Earliest(next, lo.Latest(s.lateAt(), last.Add(s.lateInterval(base))))
}
