package liveness

import (
	"math"
	"time"

	"github.com/samber/lo"
)

const (
	// usualInterval is the minimum time between questions while the path is in use, unless the responder asks for more.
	usualInterval = 100 * time.Millisecond
	// An answer is late after lateAfter plus twice the usual round trip time. From then on the pauses between questions
	// are a quarter as long, until one is answered, for at most hurryTime.
	lateAfter, hurryTime = 50 * time.Millisecond, 5 * time.Second
	// A path is down if minLost questions in a row were not answered, and the first of them is older than two
	// intervals. On a busy machine, after one slow answer others may take up to three times as long. So the limit
	// is at least peaks times the slowest recent answer, but not more than downMost. While other packets arrive, answers
	// may wait longer: heardMost.
	minLost, peaks      = 4, 4
	downMost, heardMost = time.Second, 3 * time.Second
	// The slowest answer counts for half as much after each peakHalf.
	peakHalf = 10 * time.Second
)

// stream is a series of questions of one size. Its times are from this machine's monotonic clock.
type stream struct {
	// sequence is the number of the last question, and newest that of the newest answered one.
	sequence, newest uint32
	// sent are the times of the last questions. down marks those that were sent while the path was down.
	sent [64]time.Time
	down [64]bool
	// first is the time of the oldest unanswered question, and enough the time of the one that makes minLost unanswered.
	first, enough time.Time
	// rtt is the smoothed round trip time, as in RFC 6298, and peak the longest recent one.
	rtt, peak time.Duration
	// answered is when the last answer came, and passed when its question was sent.
	answered, passed time.Time
}

// ask records a question, and whether the path is down. It returns its sequence number.
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

// answer records an answer. It returns whether a question was waiting for it, and whether several earlier questions
// have had no answer. A single lost one proves nothing.
func (s *stream) answer(sequence uint32, now time.Time) (isNew, lost bool) {
	if behind := s.sequence - sequence; behind >= uint32(len(s.sent)) || sequence-s.newest-1 >= 1<<31 {
		return false, false // of another stream, a duplicate, or very late
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
	// A tunnel holds packets for a while until it is up, and a process that was stopped reads them late.
	if !s.down[i] && rtt < downMost {
		s.slow(rtt)
	}
	s.newest, s.answered = sequence, now
	s.first = s.sent[(sequence+1)%uint32(len(s.sent))]
	s.enough = s.sent[(sequence+minLost)%uint32(len(s.sent))] // if there are that many
	return true, lost
}

// slow records how long an answer took, or would have taken.
func (s *stream) slow(rtt time.Duration) { s.peak = max(s.peak, rtt) }

// forgive counts unanswered questions as answered: the path is not the cause.
func (s *stream) forgive() { s.newest = s.sequence }

// waits reports whether a question waits for its answer, and asking faster may still help.
func (s *stream) waits() bool {
	return s.sequence != s.newest && s.asked().Sub(s.first) <= hurryTime
}

// late returns when the answer to the oldest waiting question becomes late.
func (s *stream) late() time.Time { return s.first.Add(lateAfter + 2*s.rtt) }

// hurries reports whether questions follow each other faster because an answer is late.
func (s *stream) hurries(now time.Time) bool { return s.waits() && !now.Before(s.late()) }

// asked returns when the last question was sent.
func (s *stream) asked() time.Time { return s.sent[s.sequence%uint32(len(s.sent))] }

// missing reports whether answers are missing to questions sent before a time. base is the time between questions
// while the path is in use.
func (s *stream) missing(now, before time.Time, base time.Duration) bool {
	return s.sequence-s.newest >= minLost && !s.enough.After(before) &&
		now.Sub(s.first) >= max(2*base, min(peaks*s.peak, downMost))
}

// due returns when the next question is due. interval is the usual time between questions, and base the one while the
// path is in use.
func (s *stream) due(interval, base time.Duration) time.Time {
	last := s.asked()
	next := last.Add(interval)
	if !s.waits() {
		return next
	}
	return lo.Earliest(next, lo.Latest(s.late(), last.Add(base/4)))
}
