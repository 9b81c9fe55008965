package loop

import (
	"testing"
	"time"
)

// A delay of one second each second counts fully, and one long delay counts as one. Old delays are forgotten.
func TestPunctuality(t *testing.T) {
	p := &DelayMonitor{}
	if got := p.Starved(); got != 0 {
		t.Errorf("at first %d", got)
	}
	p.record(time.Minute)
	if got := p.Starved(); got != 1 {
		t.Errorf("after a minute's sleep %d", got)
	}
	for range beats {
		p.record(time.Second)
	}
	if got := p.Starved(); got != 100 {
		t.Errorf("with a second each second %d", got)
	}
	for range beats {
		p.record(-time.Millisecond)
	}
	if got := p.Starved(); got != 0 {
		t.Errorf("later %d", got)
	}
}
