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

func TestDue(t *testing.T) {
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	for name, tc := range map[string]struct {
		never                bool
		broken, reset, heard time.Time
		want                 bool
	}{
		"the first time":                             {never: true, broken: now, want: true},
		"never answered, too early":                  {never: true, broken: ago(200 * time.Millisecond), reset: ago(200 * time.Millisecond)},
		"never answered":                             {never: true, broken: ago(300 * time.Millisecond), reset: ago(300 * time.Millisecond), want: true},
		"far away: more time than the first attempt": {never: true, broken: ago(1800 * time.Millisecond), reset: ago(500 * time.Millisecond)},
		"for a long time":                            {never: true, broken: ago(time.Hour), reset: ago(1900 * time.Millisecond)},
		"for a long time, and again":                 {never: true, broken: ago(time.Hour), reset: ago(2 * time.Second), want: true},
		"the handshake is answered":                  {never: true, broken: ago(3 * time.Second), reset: ago(1500 * time.Millisecond), heard: ago(time.Second)},
		"the handshake was answered, and no more":    {never: true, broken: ago(5 * time.Second), reset: ago(3 * time.Second), heard: ago(2 * time.Second), want: true},
		"something came before":                      {never: true, broken: ago(time.Second), reset: ago(400 * time.Millisecond), heard: ago(500 * time.Millisecond), want: true},
		"worked before, too early":                   {broken: ago(900 * time.Millisecond), reset: ago(900 * time.Millisecond)},
		"worked before":                              {broken: now, reset: ago(time.Hour), heard: ago(2500 * time.Millisecond), want: true},
		"packets come all the time, by one way":      {broken: now, reset: ago(time.Hour), heard: now, want: true},
		"the same, just after":                       {broken: ago(3 * time.Second), reset: ago(3 * time.Second), heard: now},
	} {
		if got := due(tc.never, tc.broken, tc.reset, tc.heard, now); got != tc.want {
			t.Errorf("%s: due is %v, want %v", name, got, tc.want)
		}
	}
}
