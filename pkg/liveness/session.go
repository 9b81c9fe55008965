package liveness

import (
	"context"
	"crypto/rand"
	"errors"
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
	// flowLength is how many questions of full size come from one port. A network that drops new flows may still forward
	// those that it knows.
	flowLength = 16
	// headers is the size of the headers of IPv4 and UDP, in bytes.
	headers = 28
	// deafLife is how long the other end's last report that it receives nothing stays valid.
	deafLife = time.Second
)

// Session asks one responder. Its methods are safe for concurrent use.
type Session struct {
	// Received returns how many packets have arrived over this path, of any kind. With it, answers that wait in a queue
	// behind other packets do not count as lost. Then the other end has to report whether it receives packets: see
	// Told. Received may be nil, and is set before Run.
	Received func() (uint64, error)
	// Assumed is set if packets have passed over this path until now. Then the path counts as up until questions remain
	// unanswered, instead of counting as down until the first answer. Assumed is set before Run.
	Assumed bool

	local  netip.Addr
	remote netip.AddrPort
	nonce  [8]byte
	start  time.Time
	// idle is the factor for the time between questions while the path is not in use.
	idle int
	// changed signals that the path has come up or gone down.
	changed notify.Signal
	wake    [2]notify.Signal
	// asked is how many questions were sent.
	asked atomic.Uint64

	mu sync.Mutex
	// streams are the stream of small questions, and the one of questions of full size.
	streams [2]stream
	use     use
	turns   turns
	// lastAnswer is the responder's last answer, and answeredAt its time. was is the last signalled state. lost is when a
	// lost question was last detected.
	lastAnswer Answer
	answeredAt time.Time
	was        State
	lost       time.Time
	arrivals   arrivals
	deaf       deaf
}

// deaf is when the other end stopped receiving, and when it last reported that, zero if it receives again.
type deaf struct{ since, reported time.Time }

// use is how the path is used.
type use struct {
	often bool
	// size is the payload size of the packets, 0 while none are sent. asking is the size of the questions, which
	// continue until one is answered.
	size, asking int
	// news is set if the other end must be told immediately whether packets are sent.
	news bool
}

// turns is when the session asks.
type turns struct {
	// overtaking is when the small question was sent that may have overtaken larger ones, and next the candidate for the
	// next turn. Answers that arrive together are read in any order, so the newest ones do not count yet.
	overtaking, next time.Time
	// planned is when the next small question is due, zero if unknown.
	planned time.Time
	// flow counts the questions of full size from this port.
	flow int
}

// arrivals are packets of any kind. They were counted at counted, which is zero unless an answer is late. heard is when
// something arrived after that.
type arrivals struct {
	received       uint64
	counted, heard time.Time
}

// These are the streams of a session.
const (
	small = iota
	full
)

// New returns a session from a local address to a responder. While the path is not in use, the time between questions
// is multiplied by idle. Each change of up, down and leaving is signalled. Nothing is sent before Run.
func New(local netip.Addr, remote netip.AddrPort, idle int, changed notify.Signal) *Session {
	wake := [2]notify.Signal{notify.NewSignal(), notify.NewSignal()}
	s := &Session{local: local, remote: remote, start: time.Now(), idle: idle, changed: changed, wake: wake}
	_, _ = rand.Read(s.nonce[:]) // never fails, see crypto/rand
	return s
}

// Use sets whether to ask frequently, and the size of the packets that are sent over this path, in bytes, 0 if there
// are none. While packets are sent, questions report that to the other end, and some have that size. The other end
// learns immediately when that begins or ends.
func (s *Session) Use(often bool, size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	size = max(min(size-headers, maxLength), 0)
	if s.use.often == often && s.use.size == size {
		return
	}
	s.use.news = s.use.news || (s.use.size > 0) != (size > 0)
	s.use.often, s.use.size = often, size
	if big := &s.streams[full]; size > 0 && size != s.use.asking || size == 0 && !big.missing(time.Now(), s.turns.overtaking, s.base()) {
		*big, s.use.asking = stream{}, size
	}
	s.wake[small].Send()
	s.wake[full].Send()
}

// Asked returns how many questions were sent.
func (s *Session) Asked() uint64 { return s.asked.Load() }

// State returns the current state.
func (s *Session) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state(time.Now())
}

func (s *Session) state(now time.Time) State {
	out := State{Leaving: s.lastAnswer.Leaving}
	if s.streams[small].answered.IsZero() {
		if out.Up = s.Assumed && !s.isDeaf(now); !out.Up {
			out.Down = now.Sub(s.start)
		}
		return out
	}
	if out.Up = s.lastAnswer.Up; !out.Up {
		out.Down = s.lastAnswer.Down + now.Sub(s.answeredAt)
	}
	missing := func(since time.Time) { out.Up, out.Down = false, max(out.Down, now.Sub(since)) }
	if s.isDeaf(now) {
		missing(s.streams[small].first)
	}
	// A question overtaken by a later small one is lost. The others may be in the same queue.
	if big := &s.streams[full]; big.missing(s.awake(now), s.turns.overtaking, s.base()) {
		missing(big.first)
	}
	if now.Sub(s.deaf.reported) < deafLife {
		missing(s.deaf.since)
	}
	if out.Up {
		out.Clean = min(now.Sub(s.start), s.lastAnswer.Clean+now.Sub(s.answeredAt))
	}
	if !s.lost.IsZero() {
		out.Clean = min(out.Clean, now.Sub(s.lost))
	}
	return out
}

// isDeaf reports whether nothing arrives over this path: neither answers nor other packets.
func (s *Session) isDeaf(now time.Time) bool {
	st := &s.streams[small]
	now = s.awake(now)
	waits := now.Sub(s.arrivals.heard) < 2*s.base() && now.Sub(st.first) < heardMost
	return st.missing(now, now, s.base()) && !waits
}

// awake returns now, or when this process was last awake, as far as known: answers wait until the process reads them.
func (s *Session) awake(now time.Time) time.Time {
	if s.turns.planned.IsZero() {
		return now
	}
	return lo.Earliest(now, s.turns.planned.Add(lateAfter))
}

// Told processes the other end's report about this path in its own questions.
func (s *Session) Told(q Question) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Sub(s.deaf.reported) >= deafLife {
		s.deaf.since = now
	}
	s.deaf.reported = lo.Ternary(q.Deaf, now, time.Time{})
	s.check(now)
}

// checkReceived records whether something has arrived since the previous question. It counts only while an answer is
// late, which is rare.
func (s *Session) checkReceived(now time.Time) {
	if s.Received == nil {
		return
	}
	if st := &s.streams[small]; st.sequence == st.newest {
		s.arrivals.counted = time.Time{}
		return
	}
	n, err := s.Received()
	if err != nil {
		return // without an interface, nothing arrives
	}
	if !s.arrivals.counted.IsZero() && n != s.arrivals.received {
		s.arrivals.heard = lo.Latest(s.arrivals.counted, now.Add(-lateAfter))
	}
	s.arrivals.received, s.arrivals.counted = n, now
}

// base returns the time between questions while the path is in use.
func (s *Session) base() time.Duration { return max(usualInterval, s.lastAnswer.Interval) }

// check signals changes.
func (s *Session) check(now time.Time) {
	state := s.state(now)
	if state.Up != s.was.Up || state.Leaving != s.was.Leaving {
		s.changed.Send()
		if !state.Up {
			s.lost = now
		}
	}
	s.was = state
}

// Run asks until ctx ends.
func (s *Session) Run(ctx context.Context) {
	s.mu.Lock()
	s.was.Up = s.Assumed
	s.mu.Unlock()
	var both sync.WaitGroup
	for i := range s.streams {
		both.Go(func() { s.asker(i).Run(ctx) })
	}
	both.Wait()
}

// asker returns the asker of a stream.
func (s *Session) asker(i int) udp.Asker {
	a := udp.Asker{Local: s.local, Remote: s.remote, Size: maxLength, Wake: s.wake[i]}
	if i == full {
		a.Options = map[int]int{unix.IP_MTU_DISCOVER: unix.IP_PMTUDISC_PROBE} // packets are sent whole, or not at all
	}
	a.Turn = func(conn *net.UDPConn, due time.Time) (time.Time, bool) { return s.turn(i, conn, due) }
	a.Take = func(b []byte) { s.take(i, b) }
	a.Fail = func() time.Time { // questions that cannot be sent count as unanswered
		s.mu.Lock()
		defer s.mu.Unlock()
		now := time.Now()
		s.turns.planned = time.Time{}
		s.streams[i].ask(now, true)
		s.check(now)
		return now
	}
	return a
}

// turn asks if a question is due. was is when this turn was due, or zero. It returns when the next question is due,
// and whether the next one needs another socket.
func (s *Session) turn(i int, conn *net.UDPConn, was time.Time) (due time.Time, isLast bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	st := &s.streams[i]
	if i == small {
		defer func() { s.turns.planned = due }()
	}
	if i == full && s.use.asking <= headerLength {
		return now.Add(time.Hour), false
	}
	base, interval := s.base(), s.interval(i, now)
	if i == small && s.use.news {
		s.use.news = false
	} else if due = st.due(interval, base); now.Before(due) {
		s.check(now)
		return due, false
	}
	if i == full && s.turns.flow >= flowLength {
		if st.sequence == st.newest {
			s.turns.flow = 0
			return now, true // this socket waits for no answer
		}
		if late := st.late(); now.Before(late) {
			return late, false
		}
	}
	// If this process is late itself, it may have had no time to read the answers.
	late := lo.Ternary(was.IsZero(), 0, now.Sub(was))
	if late <= max(usualInterval, interval/2) {
		st.slow(2 * late)
	} else if now.Sub(st.answered) < heardMost {
		st.forgive()
	}
	s.ask(i, conn, now)
	return st.due(interval, base), false
}

// interval returns the time between the questions of a stream.
func (s *Session) interval(i int, now time.Time) time.Duration {
	switch {
	case i == small && s.streams[full].hurries(now):
		return s.base() / 4 // to find out whether the size is the cause
	case s.use.often:
		return s.base()
	}
	return time.Duration(s.idle) * s.base()
}

// ask sends a question.
func (s *Session) ask(i int, conn *net.UDPConn, now time.Time) {
	st, size := &s.streams[i], headerLength
	if i == full {
		size = s.use.asking
	} else {
		s.checkReceived(now)
		s.turns.overtaking, s.turns.next = s.turns.next, st.passed
	}
	b := make([]byte, size)
	sequence := st.ask(now, !s.was.Up)
	frame{kind: question, nonce: s.nonce, sequence: sequence, Question: Question{InUse: s.use.size > 0, Deaf: s.isDeaf(now)}}.encode(b)
	s.asked.Add(1)
	if _, err := conn.WriteToUDPAddrPort(b, s.remote); errors.Is(err, unix.EMSGSIZE) {
		st.forgive() // the interface's MTU has decreased since the size was set
	}
	s.check(now)
	if i == full {
		if st.hurries(now) {
			s.wake[small].Send()
		}
		s.turns.flow++
	}
}

// take processes an answer.
func (s *Session) take(i int, b []byte) {
	f, ok := decode(b, answer)
	if !ok || f.nonce != s.nonce {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	// A responder repeats its last answer when its state changes.
	st := &s.streams[i]
	if i == full && len(b) != s.use.asking {
		return // it proves nothing about that size
	}
	isNew, lost := st.answer(f.sequence, now)
	if lost {
		s.lost = now
	}
	if isNew || f.sequence == st.newest {
		s.lastAnswer, s.answeredAt = f.Answer, now
		s.check(now)
	}
	if i == full && s.use.size == 0 {
		*st, s.use.asking = stream{}, 0
	}
}
