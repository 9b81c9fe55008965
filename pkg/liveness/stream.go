package liveness

import (
	"math"
	"time"

	"github.com/samber/lo"
)

const (
	// usual is the least time between questions while the way is in use, if the responder does not
	// ask for more.
	usual = 100 * time.Millisecond
	// An answer is late after lateAfter and twice the usual round trip time. From then on the pauses
	// between questions are a quarter as long, until one is answered, for hurryTime at most.
	lateAfter, hurryTime = 50 * time.Millisecond, 5 * time.Second
	// A way is down if minLost questions in a row were not answered, and the first of them is older than
	// twice the usual time. On a busy machine, a slow answer announces others that take up to three times as long.
	// So it is peaks times as long as the slowest one took lately, if that is more, but no longer than downMost.
	// While other packets come, answers may wait for longer: heardMost.
	minLost, peaks      = 4, 4
	downMost, heardMost = time.Second, 3 * time.Second
	// The longest time that an answer took counts for half as much after peakHalf.
	peakHalf = 10 * time.Second
)

// stream are questions of one size. Times are of this machine's monotonic clock.
type stream struct {
	// sequence is that of the last question, newest that of the newest one with an answer.
	sequence, newest uint32
	// sent are the times of the last questions, and down are those that were sent while the way was down.
	sent [64]time.Time
	down [64]bool
	// first is the time of the oldest question without an answer, enough that of the one by which minLost
	// have none.
	first, enough time.Time
	// rtt is the smoothed round trip time, as in RFC 6298. peak is the longest one lately.
	rtt, peak time.Duration
	// answered is when there was last an answer, passed when its question was sent.
	answered, passed time.Time
}

// ask notes a question by a way that is down, or is not. It returns its sequence number.
func (s *stream) ask(now time.Time, down bool) uint32 {
	if s.sequence == s.newest {
		s.first = now
	}
	if s.sequence++; s.sequence-s.newest == minLost {
		s.enough = now
	}
	i := s.sequence % uint32(len(s.sent))
	s.sent[i], s.down[i] = now, down
	return s.sequence
}

// answer notes an answer. It says whether it is to a question that waited for one, and whether several
// questions before it have had none. A single one says nothing.
func (s *stream) answer(sequence uint32, now time.Time) (isNew, lost bool) {
	if behind := s.sequence - sequence; behind >= uint32(len(s.sent)) || sequence-s.newest-1 >= 1<<31 {
		return false, false // of another stream, a second one, or very late
	}
	lost = sequence-s.newest > 2 && !s.answered.IsZero()
	i := sequence % uint32(len(s.sent))
	s.passed = s.sent[i]
	rtt := now.Sub(s.passed)
	if s.answered.IsZero() {
		s.rtt = rtt
	} else {
		s.rtt += (rtt - s.rtt) / 8
		s.peak = time.Duration(float64(s.peak) * math.Exp2(-now.Sub(s.answered).Seconds()/peakHalf.Seconds()))
	}
	// A tunnel keeps packets for some time until it is up, and a process that was stopped reads them later.
	if !s.down[i] && rtt < downMost {
		s.slow(rtt)
	}
	s.newest, s.answered = sequence, now
	s.first = s.sent[(sequence+1)%uint32(len(s.sent))]
	s.enough = s.sent[(sequence+minLost)%uint32(len(s.sent))] // if there are as many
	return true, lost
}

// slow notes how long an answer took, or would have taken.
func (s *stream) slow(rtt time.Duration) { s.peak = max(s.peak, rtt) }

// forgive takes questions without an answer for answered: it was not the way's fault.
func (s *stream) forgive() { s.newest = s.sequence }

// waits says that a question waits for its answer, and not yet for so long that asking more often tells nothing.
func (s *stream) waits() bool {
	return s.sequence != s.newest && s.asked().Sub(s.first) <= hurryTime
}

// late is when the answer to the oldest question that waits is late.
func (s *stream) late() time.Time { return s.first.Add(lateAfter + 2*s.rtt) }

// hurries says that questions follow each other faster, because an answer is late.
func (s *stream) hurries(now time.Time) bool { return s.waits() && !now.Before(s.late()) }

// asked is when the last question was sent.
func (s *stream) asked() time.Time { return s.sent[s.sequence%uint32(len(s.sent))] }

// missing says that answers are missing to questions that were sent before a time. base is the time between
// questions while the way is in use.
func (s *stream) missing(now, before time.Time, base time.Duration) bool {
	return s.sequence-s.newest >= minLost && !s.enough.After(before) &&
		now.Sub(s.first) >= max(2*base, min(peaks*s.peak, downMost))
}

// due is when the next question is, if they follow each other in an interval, and in base while the
// way is in use.
func (s *stream) due(interval, base time.Duration) time.Time {
	last := s.asked()
	next := last.Add(interval)
	if !s.waits() {
		return next
	}
	return lo.Earliest(next, lo.Latest(s.late(), last.Add(base/4)))
}
