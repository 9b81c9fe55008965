package liveness

import (
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/kit"
)

// A large cluster's nodes ask rarely. Once one of their requests is not answered, they detect the failure as fast as
// those of a small cluster, with few requests: a gateway that is only slow gets them from all nodes.
func TestFailureInALargeCluster(t *testing.T) {
	const rtt = time.Millisecond
	for nodes, most := range map[int]uint32{100: 250, 1000: 120, 5000: 30} {
		base := max(usualInterval, time.Duration(nodes)*200*time.Microsecond)
		var s stream
		now := time.Now()
		for range 100 {
			s.recordAnswer(s.recordRequest(now, false), now.Add(rtt))
			now = s.nextAt(base, base)
		}
		start := now
		var detected time.Duration
		for first := s.sequence; now.Sub(start) < fastTime; now = s.nextAt(base, base) {
			if detected == 0 && s.hasLostAnswers(now, now) {
				detected = now.Sub(start)
				kit.ErrorIf(t, s.sequence-first > 9, "%d nodes: %d requests until the failure is detected", nodes, s.sequence-first)
			}
			s.recordRequest(now, false)
			kit.ErrorIf(t, s.sequence-first > most, "%d nodes: more than %d requests in %s", nodes, most, fastTime)
		}
		t.Logf("%d nodes: detected %s after the first request that was not answered", nodes, detected)
		kit.ErrorIf(t, detected < minLostTime || detected > 250*time.Millisecond, "%d nodes: detected after %s", nodes, detected)
	}
}
