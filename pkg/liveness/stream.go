package liveness

import (
	"math"
	"time"

	"github.com/samber/lo"
)

const (
	// usualInterval is the minimum time between requests while the path is in use, unless the responder asks for more.
	usualInterval = 100 * time.Millisecond
	// An answer is late after lateAfter plus twice the usual round trip time. From then on the pauses between requests
	// are a quarter as long, until one is answered, for at most fastTime.
	lateAfter, fastTime = 50 * time.Millisecond, 5 * time.Second
	// A path is down if minLost requests in a row were not answered, and the first of them is older than two
	// intervals. On a busy machine, after one slow answer others may take up to three times as long. So the limit
	// is at least peakFactor times the slowest recent answer, but not more than maxDelay. While other packets arrive,
	// answers may wait longer: maxQueueDelay.
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

// hasLostAnswers reports whether answers are missing to requests sent before a time. base is the time between requests
// while the path is in use.
func (s *stream) hasLostAnswers(now, before time.Time, base time.Duration) bool {
	return s.sequence-s.newestAnswered >= minLost && !s.minLostAt.After(before) &&
		now.Sub(s.firstUnanswered) >= max(2*base, min(peakFactor*s.peak, maxDelay))
}

// nextAt returns when the next request is due. interval is the usual time between requests, and base the one while the
// path is in use.
func (s *stream) nextAt(interval, base time.Duration) time.Time {
	last := s.lastSent()
	next := last.Add(interval)
	if !s.isWaiting() {
		return next
	}
	return lo.Earliest(next, lo.Latest(s.lateAt(), last.Add(base/4)))
}
