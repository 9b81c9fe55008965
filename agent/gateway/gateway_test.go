package gateway

import (
	"testing"
	"time"

	"github.com/liqonet/liqonet/pkg/tunnel"
)

func TestBroken(t *testing.T) {
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	for name, tc := range map[string]struct {
		reply      time.Time
		unanswered uint64
		heard      time.Time
		want       bool
	}{
		"never answered":                     {time.Time{}, 1, now, true},
		"answered":                           {ago(time.Second), 0, ago(time.Second), false},
		"one probe was lost":                 {ago(2800 * time.Millisecond), 2, ago(2800 * time.Millisecond), false},
		"many were":                          {ago(2800 * time.Millisecond), 10, ago(2800 * time.Millisecond), true},
		"many in a short time":               {ago(2 * time.Second), 10, ago(2 * time.Second), false},
		"this process was held up":           {ago(time.Minute), 2, ago(time.Minute), false},
		"many, but other packets come":       {ago(2800 * time.Millisecond), 10, ago(100 * time.Millisecond), false},
		"packets come, and none is answered": {ago(6 * time.Second), 40, now, true},
	} {
		if got := broken(tunnel.ProbeStats{LastReply: tc.reply, Unanswered: tc.unanswered}, tc.heard, now); got != tc.want {
			t.Errorf("%s: broken is %v, want %v", name, got, tc.want)
		}
	}
}
