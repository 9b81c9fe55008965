package loop

import (
	"testing"
	"time"
)

// A second's delay each second is half of the time. One that is long ago is forgotten.
func TestPunctuality(t *testing.T) {
	p := &Punctuality{}
	if got := p.Starved(); got != 0 {
		t.Errorf("at first %d", got)
	}
	for range beats {
		p.note(time.Second)
	}
	if got := p.Starved(); got != 50 {
		t.Errorf("with a second each second %d", got)
	}
	for range beats {
		p.note(-time.Millisecond)
	}
	if got := p.Starved(); got != 0 {
		t.Errorf("later %d", got)
	}
}
