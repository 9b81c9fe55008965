package liveness

import "time"

const (
	// usual is the least time between questions while the way is in use, if the responder does not
	// ask for more.
	usual = 100 * time.Millisecond
	// An answer is late after lateAfter and twice the usual round trip time. From then on the pauses
	// between questions are a quarter as long, until one is answered, for hurryTime at most.
	lateAfter, hurryTime = 50 * time.Millisecond, 5 * time.Second
	// A way is down if minLost questions in a row were not answered, and the first of them is older than
	// twice the usual time. If answers take longer, so does this, but no longer than downMost.
	minLost  = 4
	downMost = time.Second
)

// stream are questions of one size. Times are of this machine's monotonic clock.
type stream struct {
	// sequence is that of the last question, newest that of the newest one with an answer.
	sequence, newest uint32
	// sent are the times of the last questions, first is that of the oldest one without an answer.
	sent  [64]time.Time
	first time.Time
	// rtt and deviation are smoothed, as in RFC 6298.
	rtt, deviation time.Duration
	// answered is when there was last an answer.
	answered time.Time
}

// ask notes a question, and returns its sequence number.
func (s *stream) ask(now time.Time) uint32 {
	if s.sequence == s.newest {
		s.first = now
	}
	s.sequence++
	s.sent[s.sequence%uint32(len(s.sent))] = now
	return s.sequence
}

// answer notes an answer. It says whether it is to a question that waited for one, and whether several
// questions before it have had none. A single one says nothing.
func (s *stream) answer(sequence uint32, now time.Time) (isNew, lost bool) {
	if behind := s.sequence - sequence; behind >= uint32(len(s.sent)) || sequence-s.newest-1 >= 1<<31 {
		return false, false // of another stream, a second one, or very late
	}
	lost = sequence-s.newest > 2 && !s.answered.IsZero()
	rtt := now.Sub(s.sent[sequence%uint32(len(s.sent))])
	if s.answered.IsZero() {
		s.rtt, s.deviation = rtt, rtt/2
	} else {
		s.deviation += ((rtt - s.rtt).Abs() - s.deviation) / 4
		s.rtt += (rtt - s.rtt) / 8
	}
	s.newest, s.answered = sequence, now
	s.first = s.sent[(sequence+1)%uint32(len(s.sent))]
	return true, lost
}

// forgive takes questions without an answer for answered: it was not the way's fault.
func (s *stream) forgive() { s.newest = s.sequence }

// missing says that answers are missing: the way does not carry packets of this size. base is the time
// between questions while the way is in use.
func (s *stream) missing(now time.Time, base time.Duration) bool {
	return s.sequence-s.newest >= minLost && now.Sub(s.first) >= max(2*base, min(s.rtt+4*s.deviation+lateAfter, downMost))
}

// due is when the next question is, if they follow each other in an interval, and in base while the
// way is in use.
func (s *stream) due(interval, base time.Duration) time.Time {
	last := s.sent[s.sequence%uint32(len(s.sent))]
	next := last.Add(interval)
	if s.sequence == s.newest || last.Sub(s.first) > hurryTime {
		return next
	}
	late := s.first.Add(lateAfter + 2*s.rtt)
	if hurried := last.Add(base / 4); hurried.After(late) {
		late = hurried
	}
	if late.Before(next) {
		return late
	}
	return next
}
